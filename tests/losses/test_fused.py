"""The fused loss against a plain implementation, differentiated by autograd in float64."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from recovery.errors import ModelError, RecoveryError, UsageError
from recovery.losses import fused as fused_module
from recovery.losses import kernels
from recovery.losses.config import WHOLE_VOCABULARY as WHOLE
from recovery.losses.fused import FusedOutput, fused_loss
from recovery.losses.terms import BehaviourPolicy, Term
from recovery.models.lm_head import Head
from tests.support import plain_term

ROOT = Path(__file__).resolve().parents[2]
N, D, E, V = 37, 8, 6, 50
# Every form of a term, with its arguments.
FORMS: dict[str, dict[str, Any]] = {
    **{name: {"divergence": name} for name in (*WHOLE, "cross_entropy")},
    **{f"{name}, entries clipped": {"divergence": name, "entry_clip": 0.05} for name in WHOLE},
    **{f"{name}, floored": {"divergence": name, "floor": -8.0} for name in ("reverse_kl", "forward_kl")},
    "reverse_kl, floored and clipped": {"divergence": "reverse_kl", "floor": -8.0, "entry_clip": 0.05},
    "policy_gradient": {"divergence": "policy_gradient"},
    "policy_gradient, clipped": {"divergence": "policy_gradient", "clip": 0.2},
    "policy_gradient, dropped": {"divergence": "policy_gradient", "clip": 0.2, "drop": 2.0},
    "top_k": {"divergence": "top_k"},
    "top_k, forward": {"divergence": "top_k", "reverse": False},
}
# Several terms at once: form and weight.
SUMS: dict[str, list[tuple[str, float]]] = {
    "one of some weight": [("reverse_kl", 0.3)],
    "one sparse of some weight": [("policy_gradient, clipped", 0.3)],
    "label and anchor": [("cross_entropy", 1.0), ("reverse_kl", 0.1)],
    "teacher, reward, anchor": [("jsd", 0.7), ("policy_gradient, dropped", 0.3), ("reverse_kl", 0.05)],
    "two teachers": [("reverse_kl", 0.6), ("reverse_kl, floored", 0.4)],
    "three teachers": [("forward_kl", 0.5), ("jsd, entries clipped", 0.3), ("reverse_kl", 0.2)],
    "sparse alone": [("policy_gradient, clipped", 0.5), ("top_k", 0.3), ("cross_entropy", 0.2)],
    "measured only": [("reverse_kl", 1.0), ("forward_kl", 0.0)],
}
HEADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": True},
    "scaled": {"scale": 0.7},
    "capped": {"softcap": 5.0},
    "all": {"bias": True, "scale": 0.7, "softcap": 5.0},
}


def make_head(width: int = D, bias: bool = False, vocabulary: int = V, **settings: Any) -> Head:
    bias_V = torch.randn(vocabulary, dtype=torch.float64) if bias else None
    return Head(torch.randn(vocabulary, width, dtype=torch.float64), bias_V, **settings)


def trained(head: Head) -> Head:
    for tensor in (head.weight_VD, head.bias_V):
        if tensor is not None:
            tensor.requires_grad_()
    return head


def assert_close(found: Sequence[Tensor], expected: Sequence[Tensor], atol: float) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=atol, rtol=0)


class Case:
    """One seeded comparison: student, teacher, targets, advantages, kept entries and weights."""

    def __init__(self, seed: int = 0, tokens: int = N, head: dict[str, Any] | None = None) -> None:
        torch.manual_seed(seed)
        self.hidden_ND = torch.randn(tokens, D, dtype=torch.float64, requires_grad=True)
        self.head = trained(make_head(**(head or {})))
        self.teacher_NE = torch.randn(tokens, E, dtype=torch.float64)
        self.teacher_head = make_head(E, bias=True, scale=1.3, softcap=9.0)
        self.targets_N = torch.randint(V, (tokens,))
        self.weights_N = torch.rand(tokens, dtype=torch.float64)
        self.advantages_N = torch.randn(tokens, dtype=torch.float64)
        log_p = self.head.logits(self.hidden_ND).log_softmax(-1).detach()
        moved_N = torch.linspace(-1.2, 1.2, tokens, dtype=torch.float64)
        self.old_N = log_p.gather(-1, self.targets_N[:, None])[:, 0] + moved_N
        self.top = self.teacher_head.logits(self.teacher_NE).log_softmax(-1).topk(7, -1)

    @property
    def leaves(self) -> list[Tensor]:
        found = [self.hidden_ND, self.head.weight_VD, self.head.bias_V]
        return [tensor for tensor in found if tensor is not None]

    def term(self, form: str, weight: float = 1.0, **settings: Any) -> Term:
        """A term of a form, with the tensors it needs."""
        given = {**FORMS[form], **settings}
        name = given["divergence"]
        if name in WHOLE:
            given |= {"teacher_hidden_NE": self.teacher_NE, "teacher_head": self.teacher_head}
        elif name == "top_k":
            given |= {"top_ids_NK": self.top.indices, "top_logprobs_NK": self.top.values}
        else:
            given |= {"targets_N": self.targets_N}
        if name == "policy_gradient":
            given |= {"advantages_N": self.advantages_N, "old_logprobs_N": self.old_N}
        return Term(weight=weight, **given)

    def loss(self, *terms: Term, **settings: Any) -> FusedOutput:
        return fused_loss(self.hidden_ND, self.head, terms, **{"weights_N": self.weights_N, **settings})

    def fused(self, form: str, beta: float = 0.5, **settings: Any) -> FusedOutput:
        return self.loss(self.term(form, beta=beta), **settings)

    def plain(self, *terms: Term, temperature: float = 1.0) -> Tensor:
        """The weighted sum of the terms at each token, as they are defined."""
        values = [term.weight * plain_term(term, self.head, self.hidden_ND, temperature) for term in terms]
        return torch.stack(values).sum(0)


def assert_equals_autograd(case: Case, terms: list[Term], temperature: float, **settings: Any) -> FusedOutput:
    """Value and every gradient to 1e-9, with token weights, for a loss that is scaled afterwards."""
    value_N = case.plain(*terms, temperature=temperature)
    weights_N = settings.get("weights_N", case.weights_N)
    total = value_N.sum() if weights_N is None else (value_N * weights_N).sum()
    expected = torch.autograd.grad(total * 2.5, case.leaves)
    output = case.loss(*terms, temperature=temperature, chunk_tokens=5, **settings)
    found = torch.autograd.grad(output.loss * 2.5, case.leaves)
    torch.testing.assert_close(output.per_token_N, value_N.detach(), atol=1e-9, rtol=0)
    torch.testing.assert_close(output.loss.detach(), total.detach(), atol=1e-9, rtol=0)
    assert_close(found, expected, 1e-9)
    return output


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_value_and_every_gradient_equal_autograd(form: str, kind: str, temperature: float) -> None:
    case = Case(head=HEADS[kind])
    assert_equals_autograd(case, [case.term(form)], temperature)


@pytest.mark.parametrize("terms", SUMS)
@pytest.mark.parametrize("kind", ["plain", "all"])
@pytest.mark.parametrize("weighted", [True, False])
def test_several_terms_at_once_equal_autograd(terms: str, kind: str, weighted: bool) -> None:
    case = Case(head=HEADS[kind])
    given = [case.term(form, weight) for form, weight in SUMS[terms]]
    settings = {} if weighted else {"weights_N": None}
    output = assert_equals_autograd(case, given, 0.7, **settings)
    assert output.values_TN.shape == (len(given), N)
    for term, value_N in zip(given, output.values_TN, strict=True):
        plain_N = plain_term(term, case.head, case.hidden_ND, 0.7).detach()
        torch.testing.assert_close(value_N, plain_N, atol=1e-9, rtol=0)


def test_the_order_of_the_terms_does_not_matter() -> None:
    case = Case()
    terms = [case.term(form, 0.25) for form in ("jsd", "policy_gradient, clipped", "reverse_kl", "cross_entropy")]
    first = torch.autograd.grad(case.loss(*terms).loss, case.leaves)
    assert_close(torch.autograd.grad(case.loss(*reversed(terms)).loss, case.leaves), first, 1e-11)


@pytest.mark.parametrize("beta", [0.0, 0.2, 1.0])
def test_beta_reaches_the_formula(beta: float) -> None:
    case = Case()
    expected = case.plain(case.term("jsd", beta=beta)).detach()
    torch.testing.assert_close(case.fused("jsd", beta=beta).per_token_N, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("form", ["reverse_kl", "forward_kl", "jsd", "cross_entropy", "policy_gradient", "top_k"])
def test_gradcheck(form: str) -> None:
    case = Case(tokens=4, head=HEADS["all"])
    hidden = case.hidden_ND

    def loss(hidden_ND: Tensor) -> Tensor:
        case.hidden_ND = hidden_ND
        return case.fused(form).loss

    case.head = Head(case.head.weight_VD.detach(), case.head.bias_V.detach(), 0.7, 5.0)  # type: ignore[union-attr]
    assert torch.autograd.gradcheck(loss, (hidden,))


@pytest.mark.parametrize("weighted", [True, False])
def test_entropy_and_gradients_are_those_of_each_token(weighted: bool) -> None:
    case = Case(head=HEADS["all"])
    terms = [case.term("reverse_kl", 0.6), case.term("policy_gradient, clipped", 0.4)]
    output = case.loss(*terms, temperature=0.7, chunk_tokens=8, **({} if weighted else {"weights_N": None}))
    log_p = (case.head.logits(case.hidden_ND) / 0.7).log_softmax(-1)
    entropy_N = -(log_p.exp() * log_p).sum(-1).detach()
    torch.testing.assert_close(output.entropy_N, entropy_N, atol=1e-9, rtol=0)
    (slope_ND,) = torch.autograd.grad(case.plain(*terms, temperature=0.7).sum(), case.hidden_ND)
    torch.testing.assert_close(output.gradient_ND, slope_ND, atol=1e-9, rtol=0)
    torch.testing.assert_close(output.grad_norm_N, slope_ND.norm(dim=-1), atol=1e-9, rtol=0)
    for name, tensor in vars(output).items():
        assert tensor is None or tensor.requires_grad == (name == "loss"), name


def test_the_returned_gradient_is_the_stored_buffer() -> None:
    case = Case()
    output = case.fused("reverse_kl", weights_N=None)
    kept = output.loss.grad_fn.hidden_grad  # type: ignore[union-attr]
    assert output.gradient_ND.data_ptr() == kept.data_ptr()


def test_clipped_and_dropped_tokens_are_returned() -> None:
    case = Case()
    plain = case.fused("reverse_kl")
    assert plain.ratio_N is plain.clipped_N is plain.dropped_N is None
    free = case.fused("policy_gradient")
    assert free.clipped_N is free.dropped_N is None
    log_p = case.head.logits(case.hidden_ND).log_softmax(-1).gather(-1, case.targets_N[:, None])[:, 0]
    ratio_N = (log_p - case.old_N).exp().detach()
    torch.testing.assert_close(free.ratio_N, ratio_N, atol=1e-9, rtol=0)
    held = case.fused("policy_gradient, dropped", chunk_tokens=8)
    assert held.clipped_N is not None and held.dropped_N is not None
    assert torch.equal(held.dropped_N, (ratio_N > 2.0) | (ratio_N < 0.5))
    outside = torch.where(case.advantages_N > 0, ratio_N > 1.2, ratio_N < 0.8)
    assert torch.equal(held.clipped_N, outside & ~held.dropped_N)
    assert held.clipped_N.any() and held.dropped_N.any()
    assert not held.gradient_ND[held.clipped_N | held.dropped_N].any()


@settings(max_examples=30, deadline=None)
@given(
    tokens=st.integers(0, 40),
    chunk=st.integers(1, 50),
    block=st.integers(1, 50),
    forms=st.lists(st.sampled_from(sorted(FORMS)), min_size=1, max_size=3, unique_by=lambda form: form[:4]),
    seed=st.integers(0, 1000),
)
def test_chunks_and_blocks_do_not_change_the_result(
    tokens: int, chunk: int, block: int, forms: list[str], seed: int
) -> None:
    case = Case(seed, tokens)
    terms = [case.term(form, 0.5) for form in forms]
    whole = case.loss(*terms, chunk_tokens=100)
    expected = torch.autograd.grad(whole.loss, case.leaves)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_module, "_BLOCK_BYTES", block * V * 8)
        patch.setattr(fused_module, "_HEAD_TILE", block)
        parts = case.loss(*terms, chunk_tokens=chunk)
    found = torch.autograd.grad(parts.loss, case.leaves)
    torch.testing.assert_close(parts.per_token_N, whole.per_token_N, atol=1e-11, rtol=0)
    assert_close(found, expected, 1e-10)


def test_one_batch_or_several_give_the_same_gradient() -> None:
    case = Case()
    whole = torch.autograd.grad(case.fused("reverse_kl").loss, case.leaves)
    parts = [torch.zeros_like(leaf) for leaf in case.leaves]
    for rows in (slice(0, 10), slice(10, N)):
        term = Term("reverse_kl", teacher_hidden_NE=case.teacher_NE[rows], teacher_head=case.teacher_head)
        piece = fused_loss(case.hidden_ND[rows], case.head, [term], weights_N=case.weights_N[rows])
        for total, gradient in zip(parts, torch.autograd.grad(piece.loss, case.leaves), strict=True):
            total += gradient
    assert_close(parts, whole, 1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("divergence", ["reverse_kl", "forward_kl", "jsd"])
@pytest.mark.parametrize("entry_clip", [None, 0.05])
def test_a_student_equal_to_its_teacher_has_no_gradient(
    divergence: str, dtype: torch.dtype, entry_clip: float | None
) -> None:
    hidden = torch.randn(20, 16, dtype=dtype, requires_grad=True)
    head = Head(torch.randn(300, 16, dtype=dtype, requires_grad=True))
    term = Term(divergence, teacher_hidden_NE=hidden.detach(), entry_clip=entry_clip)
    output = fused_loss(hidden, head, [term, replace(term, weight=0.5)])
    output.loss.backward()
    assert output.per_token_N.abs().max() <= 1e-7
    assert hidden.grad is not None
    assert head.weight_VD.grad is not None
    assert hidden.grad.abs().max() <= 1e-7
    assert head.weight_VD.grad.abs().max() <= 1e-7


@pytest.mark.parametrize("form", FORMS)
def test_no_tokens_and_no_weight_give_nothing(form: str) -> None:
    for case, weights in ((Case(tokens=0), None), (Case(), torch.zeros(N))):
        output = case.fused(form, weights_N=weights)
        output.loss.backward()
        assert output.loss.item() == 0.0
        assert all(leaf.grad is not None and not leaf.grad.any() for leaf in case.leaves)


def test_tokens_of_no_weight_change_no_gradient() -> None:
    """Padding, if passed in, would have no effect."""
    case = Case()
    weights = case.weights_N.clone()
    weights[::2] = 0.0
    gradients = torch.autograd.grad(case.fused("reverse_kl", weights_N=weights).loss, case.leaves)
    term = Term("reverse_kl", teacher_hidden_NE=case.teacher_NE[1::2], teacher_head=case.teacher_head)
    kept = fused_loss(case.hidden_ND[1::2], case.head, [term], weights_N=weights[1::2])
    assert_close(gradients, torch.autograd.grad(kept.loss, case.leaves), 1e-11)


def test_a_tied_embedding_gets_both_its_gradients() -> None:
    """Weights used as embedding and head: autograd adds both gradients."""
    torch.manual_seed(0)
    table = torch.randn(V, D, dtype=torch.float64, requires_grad=True)
    ids, teacher = torch.randint(V, (N,)), torch.randn(N, D, dtype=torch.float64)
    teacher_head = make_head()
    term = Term("reverse_kl", teacher_hidden_NE=teacher, teacher_head=teacher_head)

    def gradient(fuse: bool) -> Tensor:
        hidden = torch.nn.functional.embedding(ids, table).tanh()
        if fuse:
            loss = fused_loss(hidden, Head(table), [term]).loss
        else:
            log_p = (hidden @ table.t()).log_softmax(-1)
            log_q = teacher_head.logits(teacher).log_softmax(-1)
            loss = (log_p.exp() * (log_p - log_q)).sum()
        return torch.autograd.grad(loss, table)[0]

    torch.testing.assert_close(gradient(True), gradient(False), atol=1e-9, rtol=0)


def test_a_frozen_head_gets_no_gradient_and_holds_no_buffer_for_one() -> None:
    case = Case()
    case.head = Head(case.head.weight_VD.detach())
    output = case.fused("reverse_kl")
    assert output.loss.grad_fn.head_grads == (None, None)  # type: ignore[union-attr]
    output.loss.backward()
    assert case.hidden_ND.grad is not None
    assert case.head.weight_VD.grad is None


def test_without_gradients_the_loss_is_only_a_number() -> None:
    case = Case()
    with torch.no_grad():
        output = case.fused("reverse_kl")
    assert not output.loss.requires_grad
    torch.testing.assert_close(output.loss, case.fused("reverse_kl").loss.detach())


def test_a_trained_heads_gradient_is_computed_once() -> None:
    output = Case().fused("reverse_kl")
    output.loss.backward(retain_graph=True)
    with pytest.raises(UsageError, match="can be computed once"):
        output.loss.backward()


@pytest.mark.parametrize("trained_head", [False, True])
def test_bfloat16_is_close_to_float32(trained_head: bool) -> None:
    torch.manual_seed(0)
    weight = torch.randn(3000, 64) / 8
    hidden, teacher = torch.randn(300, 64) * 2, torch.randn(300, 64) * 2
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        leaf = hidden.detach().clone().to(dtype).requires_grad_()
        head = Head(weight.clone().to(dtype).requires_grad_(trained_head))
        terms = [Term("reverse_kl", 0.5, teacher_hidden_NE=teacher.to(dtype)), Term("jsd", teacher_hidden_NE=teacher)]
        output = fused_loss(leaf, head, terms, chunk_tokens=64)
        output.loss.backward()
        gradients = [leaf.grad] + ([head.weight_VD.grad] if trained_head else [])
        assert all(g is not None and g.dtype == dtype for g in gradients)
        found[dtype] = output.loss.detach(), [g.float().flatten() for g in gradients if g is not None]
        assert output.loss.dtype == torch.float32
    (exact, slopes), (near, near_slopes) = found[torch.float32], found[torch.bfloat16]
    torch.testing.assert_close(near, exact, rtol=1e-2, atol=0)
    for ours, theirs in zip(near_slopes, slopes, strict=True):
        assert torch.cosine_similarity(ours, theirs, dim=0) > 0.999


def test_autocast_and_mixed_types_run_in_the_narrower_type() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(30, 16, requires_grad=True)
    head = Head(torch.randn(100, 16).requires_grad_())
    teacher = torch.randn(30, 16)
    term = Term("reverse_kl", teacher_hidden_NE=teacher)
    narrow = Term("reverse_kl", teacher_hidden_NE=teacher.to(torch.bfloat16))
    half = fused_loss(hidden.to(torch.bfloat16), Head(head.weight_VD.to(torch.bfloat16)), [narrow])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = fused_loss(hidden, head, [term])
    mixed = fused_loss(hidden.to(torch.bfloat16), head, [term])
    assert torch.equal(output.per_token_N, half.per_token_N)
    assert torch.equal(mixed.per_token_N, half.per_token_N)
    output.loss.backward()
    assert hidden.grad is not None
    assert head.weight_VD.grad is not None
    assert hidden.grad.dtype == head.weight_VD.grad.dtype == torch.float32


@pytest.mark.parametrize("bias", [False, True])
def test_the_float32_product_of_onednn_equals_the_ordinary_one(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernels._onednn() is None:
        pytest.skip("this build of torch has no oneDNN product")
    torch.manual_seed(0)
    hidden, weight = torch.randn(33, 24), torch.randn(70, 24)
    bias_V = torch.randn(70) if bias else None
    monkeypatch.setattr(kernels, "_prefers_mkl", lambda: False)
    fast = kernels.linear(hidden, weight, bias_V)
    fast_back = kernels.linear(fast, weight.t(), None)
    monkeypatch.setattr(kernels, "_prefers_mkl", lambda: True)
    plain = kernels.linear(hidden, weight, bias_V)
    torch.testing.assert_close(fast, plain)
    torch.testing.assert_close(fast_back, kernels.linear(plain, weight.t(), None))


def test_chunks_are_small_for_large_vocabularies_and_large_for_small_ones() -> None:
    assert fused_module.chunk_size(151_936, torch.float32) == 128
    assert fused_module.chunk_size(151_936, torch.bfloat16) == 256
    assert fused_module.chunk_size(1_536, torch.float32) == 1280
    assert fused_module.chunk_size(49_152, torch.bfloat16) == 1024, "96 MiB: faster products of the head's gradient"
    assert fused_module.chunk_size(49_152, torch.float32) == 512
    assert kernels.chunk_size(151_936, torch.bfloat16, trained=False) == 512
    assert kernels.chunk_size(151_936, torch.bfloat16, trained=True) == 1024
    assert kernels.chunk_size(1_000_000, torch.float32, trained=False) == 128


def test_a_gpu_is_tried_once_by_whatever_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(kernels, "_runs", lambda name: tried.append(name) or True)  # type: ignore[func-returns-value]
    tried: list[str] = []
    assert all(kernels.available(torch.device(name)) for name in ("cuda", "cuda:1", "cuda:0"))
    assert tried == ["cuda:1", "cuda:1", "cuda:0"]


@pytest.mark.triton
def test_the_kernel_of_a_gpu_equals_the_plain_operations(require_component: Callable[[bool, str], None]) -> None:
    """In Triton's interpreter; tests/pipelines/test_on_a_gpu.py runs the same on a GPU."""
    require_component(importlib.util.find_spec("triton") is not None, "Triton (make test-triton)")
    finished = subprocess.run(
        [sys.executable, "-m", "tests.kernel_checks"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout == "7 cases agree\n"


@pytest.mark.parametrize(
    "change",
    [
        {"term": {"divergence": "skew_kl"}},
        {"term": {"divergence": "cross_entropy", "targets_N": torch.zeros(N, dtype=torch.long)}},
        {"term": {"entry_clip": 0.1}},
        {"term": {"floor": -8.0}},
        {"term": {"active_N": torch.arange(N) > 3}},
        {"term": {"teacher_head": Head(torch.ones(V, E), softcap=30.0)}},
        {"head": {"softcap": 30.0}},
        {"dtype": torch.float64},
    ],
    ids=str,
)
def test_the_kernel_is_not_asked_for_what_it_does_not_compute(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "available", lambda _device: True)
    head = Head(torch.ones(V, D))
    known: dict[str, Any] = {"teacher_hidden_NE": torch.ones(N, E), "teacher_head": Head(torch.ones(V, E))}

    def computed(term: dict[str, Any], student: dict[str, Any], dtype: torch.dtype) -> bool:
        terms = [Term(**({"divergence": "reverse_kl"} | known | given)) for given in ({}, term)]
        return kernels.compute(terms, replace(head, **student), dtype, torch.device("cpu"))

    assert computed({"divergence": "jsd"}, {}, torch.bfloat16)
    assert not computed(change.get("term", {}), change.get("head", {}), change.get("dtype", torch.float32))


def test_invalid_shapes_are_refused_in_one_line() -> None:
    case = Case()
    teacher = {"teacher_hidden_NE": case.teacher_NE, "teacher_head": case.teacher_head}
    wider = make_head(E, vocabulary=V + 14)
    good = case.term("reverse_kl")
    twice = torch.zeros(N, 2, dtype=torch.long)
    repeated = Term("top_k", top_ids_NK=twice, top_logprobs_NK=torch.full((N, 2), -1.0))
    policy = case.term("policy_gradient")
    refusals: list[tuple[type[RecoveryError], str, Callable[[], object]]] = [
        (UsageError, "above 0", lambda: case.loss(good, temperature=0.0)),
        (UsageError, "at least 1", lambda: case.loss(good, chunk_tokens=0)),
        (UsageError, "no term", lambda: case.loss()),
        (UsageError, "two policy gradients", lambda: case.loss(policy, policy)),
        (UsageError, "do not fit a head of width 8", lambda: fused_loss(torch.zeros(3, 5), case.head, [good])),
        (UsageError, "one entry for each of 37", lambda: case.loss(good, weights_N=torch.ones(3))),
        (UsageError, "advantages_N has shape .3,.", lambda: case.loss(replace(policy, advantages_N=torch.ones(3)))),
        (UsageError, "teacher head of width 8", lambda: case.loss(replace(good, teacher_head=None))),
        (UsageError, "the same k entries", lambda: case.loss(replace(case.term("top_k"), top_ids_NK=twice))),
        (UsageError, "has an entry twice", lambda: case.loss(repeated)),
        (ModelError, "Head.first", lambda: case.loss(Term("reverse_kl", **{**teacher, "teacher_head": wider}))),
    ]
    for kind, words, call in refusals:
        with pytest.raises(kind, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)
    halves = Head(case.head.weight_VD.half())
    with pytest.raises(UsageError, match="float32 or bfloat16"):
        fused_loss(case.hidden_ND.half(), halves, [good])


def test_an_invalid_term_is_refused_on_creation() -> None:
    hidden, ids, ones = torch.zeros(3, 5), torch.zeros(3, dtype=torch.long), torch.ones(3)
    policy = {"targets_N": ids, "advantages_N": ones}
    refusals: list[tuple[str, str, dict[str, Any]]] = [
        ("unknown divergence 'kl'", "kl", {"teacher_hidden_NE": hidden}),
        ("between 0 and 1", "jsd", {"teacher_hidden_NE": hidden, "beta": -1.0}),
        ("not a finite number", "reverse_kl", {"teacher_hidden_NE": hidden, "weight": float("nan")}),
        ("needs teacher_hidden_NE", "reverse_kl", {}),
        ("needs targets_N", "cross_entropy", {}),
        ("needs advantages_N", "policy_gradient", {"targets_N": ids}),
        ("needs top_logprobs_NK", "top_k", {"top_ids_NK": ids[:, None]}),
        ("--clip is 1.5, but must be above 0 and", "policy_gradient", {**policy, "old_logprobs_N": ones, "clip": 1.5}),
        ("--drop is 0.5, but must be above 1", "policy_gradient", {**policy, "old_logprobs_N": ones, "drop": 0.5}),
        ("--clip 0.2 needs the log-probabilities", "policy_gradient", {**policy, "clip": 0.2}),
        ("--drop 4.0 acts on importance ratios", "reverse_kl", {"teacher_hidden_NE": hidden, "drop": 4.0}),
        ("--entry-clip 0.1 needs a divergence over", "cross_entropy", {"targets_N": ids, "entry_clip": 0.1}),
        ("--floor -10.0 has no effect on", "jsd", {"teacher_hidden_NE": hidden, "floor": -10.0}),
    ]
    for words, divergence, arguments in refusals:
        with pytest.raises(UsageError, match=words) as caught:
            Term(divergence, **arguments)
        assert "\n" not in str(caught.value)


def test_a_teacher_of_a_padded_vocabulary_is_cut_to_the_students() -> None:
    case = Case()
    wide = make_head(E, vocabulary=V + 14)
    same = replace(wide, weight_VD=wide.weight_VD[:V].clone())
    cut, expected = (
        case.loss(Term("reverse_kl", teacher_hidden_NE=case.teacher_NE, teacher_head=head))
        for head in (wide.first(V), same)
    )
    assert torch.equal(cut.per_token_N, expected.per_token_N)


class Watch(TorchDispatchMode):
    """Records the size of the largest tensor that any operation creates, and counts those as large as a chunk."""

    def __init__(self, wide: int = 0) -> None:
        super().__init__()
        self.wide, self.largest, self.made = wide, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
                self.made += tensor.numel() == self.wide and func.overloadpacket in MAKERS
        return result


MAKERS = (torch.ops.aten.empty, torch.ops.aten.zeros, torch.ops.aten.mm, torch.ops.aten.addmm)


def test_never_all_logits_at_once() -> None:
    """The largest tensor of any operation is a chunk of logits, forward and backward."""
    tokens, vocabulary, chunk = 96, 512, 8
    targets, ones = torch.randint(vocabulary, (tokens,)), torch.ones(tokens)
    top_ids = torch.arange(4).expand(tokens, 4)
    for dtype in (torch.float32, torch.bfloat16):
        hidden = torch.randn(tokens, D, dtype=dtype, requires_grad=True)
        head = Head(torch.randn(vocabulary, D, dtype=dtype))
        teacher = torch.randn(tokens, D, dtype=dtype)
        terms = [
            *[Term(name, teacher_hidden_NE=teacher, entry_clip=clip) for name in WHOLE for clip in (None, 0.05)],
            Term("cross_entropy", targets_N=targets),
            Term("policy_gradient", targets_N=targets, advantages_N=ones, old_logprobs_N=-7 * ones, clip=0.2),
            Term("top_k", top_ids_NK=top_ids, top_logprobs_NK=torch.full((tokens, 4), -2.0)),
        ]
        for together in (*[[term] for term in terms], terms):
            watch = Watch()
            with watch:
                fused_loss(hidden, head, together, chunk_tokens=chunk).loss.backward()
            assert watch.largest == chunk * vocabulary


def test_one_term_makes_no_buffer_for_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers as wide as the vocabulary: two sides and a work buffer, for any number of chunks."""
    monkeypatch.setattr(kernels, "_prefers_mkl", lambda: True)  # oneDNN's products are not formed in buffers
    tokens, vocabulary = 32, 512
    hidden = torch.randn(tokens, D, requires_grad=True)
    head, teacher = Head(torch.randn(vocabulary, D)), torch.randn(tokens, D)

    def made(*terms: Term) -> int:
        watch = Watch(wide=8 * vocabulary)
        with watch:
            fused_loss(hidden, head, terms, chunk_tokens=8)
        # The products are formed in the buffers, two for each of four chunks.
        return watch.made - 4 * (1 + sum(term.whole for term in terms))

    whole = Term("reverse_kl", teacher_hidden_NE=teacher)
    assert made(whole) == 3
    assert made(Term("cross_entropy", targets_N=torch.zeros(tokens, dtype=torch.long))) == 2
    assert made(whole, whole) == 3 + 1 + 2
    assert made(whole, whole, whole) == 3 + 2 + 2


@pytest.mark.parametrize("form", ["reverse_kl", "top_k", "cross_entropy"])
def test_tokens_of_another_sampler_are_weighted_by_earlier_ratios(form: str) -> None:
    case = Case()
    terms = [case.term(form)]
    tokens = len(case.targets_N)
    log_p_N = case.head.logits(case.hidden_ND).log_softmax(-1).gather(-1, case.targets_N[:, None])[:, 0].detach()
    ratio_N = (log_p_N - case.old_N).exp()
    rows_N = torch.arange(tokens) // 4  # rows that chunks of five split
    before_N = torch.stack([ratio_N[4 * (at // 4) : at].prod() for at in range(tokens)])
    behaviour = BehaviourPolicy(case.targets_N, case.old_N, rows_N, cap=2.0)
    output = case.loss(*terms, behaviour=behaviour, chunk_tokens=5)
    total = (case.weights_N * before_N.clamp(max=2.0) * case.plain(*terms)).sum()
    torch.testing.assert_close(output.loss.detach(), total.detach())
    assert output.ratio_N is not None and output.clipped_N is not None
    torch.testing.assert_close(output.ratio_N, ratio_N)
    assert output.clipped_N.tolist() == (before_N > 2.0).tolist() and output.clipped_N.any()
    assert_close(torch.autograd.grad(output.loss, case.leaves), torch.autograd.grad(total, case.leaves), 1e-9)
    with pytest.raises(UsageError, match="its own importance ratio"):
        case.loss(case.term("policy_gradient"), behaviour=behaviour)


def test_importance_weights_correct_for_older_weights() -> None:
    """Completions of two tokens sampled from older weights: the weighted mean is that of the current weights."""
    torch.manual_seed(0)
    words = 5
    first_D, second_WD = torch.randn(8, dtype=torch.float64), torch.randn(words, 8, dtype=torch.float64)
    head, old = (Head(torch.randn(words, 8, dtype=torch.float64)) for _ in range(2))
    teacher = Head(torch.randn(words, 8, dtype=torch.float64))
    now_W, then_W = head.logits(first_D).log_softmax(-1), old.logits(first_D).log_softmax(-1)
    hidden_ND = torch.stack([part for word in range(words) for part in (first_D, second_WD[word])])
    targets_N = torch.tensor([part for word in range(words) for part in (word, 0)])
    logprobs_N = torch.stack([part for word in range(words) for part in (then_W[word], then_W[0])])
    rows_N = torch.arange(2 * words) // 2

    def mean(logprobs_W: torch.Tensor, behaviour: BehaviourPolicy | None) -> torch.Tensor:
        term = Term("reverse_kl", teacher_hidden_NE=hidden_ND, teacher_head=teacher)
        weights_N = logprobs_W.exp().repeat_interleave(2)
        return fused_loss(hidden_ND, head, [term], weights_N=weights_N, behaviour=behaviour).loss

    expected = mean(now_W, None)
    assert (mean(then_W, None) - expected).abs() > 0.01
    torch.testing.assert_close(mean(then_W, BehaviourPolicy(targets_N, logprobs_N, rows_N, cap=1e6)), expected)


@pytest.mark.parametrize("cap", [0.0, -1.0, float("nan")])
def test_a_cap_of_importance_weights_is_positive(cap: float) -> None:
    case = Case()
    behaviour = BehaviourPolicy(case.targets_N, case.old_N, torch.zeros_like(case.targets_N), cap=cap)
    with pytest.raises(UsageError, match="--ratio-cap .* must be above 0"):
        behaviour.check(len(case.targets_N))
