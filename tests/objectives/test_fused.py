"""The fused loss against the same loss written plainly and differentiated by autograd in float64."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from recovery.errors import ModelError, RecoveryError, UsageError
from recovery.objectives import fused, products
from recovery.objectives.fused import FusedOutput, fused_loss
from recovery.objectives.heads import Head

N, D, E, V = 37, 8, 6, 50
DIVERGENCES = ("reverse_kl", "forward_kl", "jsd", "cross_entropy")
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


class Case:
    """One seeded comparison: student, teacher, targets and weights."""

    def __init__(self, seed: int = 0, tokens: int = N, head: dict[str, Any] | None = None) -> None:
        torch.manual_seed(seed)
        self.hidden_ND = torch.randn(tokens, D, dtype=torch.float64, requires_grad=True)
        self.head = trained(make_head(**(head or {})))
        self.teacher_NE = torch.randn(tokens, E, dtype=torch.float64)
        self.teacher_head = make_head(E, bias=True, scale=1.3, softcap=9.0)
        self.targets_N = torch.randint(V, (tokens,))
        self.weights_N = torch.rand(tokens, dtype=torch.float64)

    @property
    def leaves(self) -> list[Tensor]:
        found = [self.hidden_ND, self.head.weight_VD, self.head.bias_V]
        return [tensor for tensor in found if tensor is not None]

    def fused(self, divergence: Any, **settings: Any) -> FusedOutput:
        given_weights = {"weights_N": self.weights_N, **settings}
        if divergence == "cross_entropy":
            return fused_loss(
                self.hidden_ND, self.head, divergence=divergence, targets_N=self.targets_N, **given_weights
            )
        return fused_loss(
            self.hidden_ND,
            self.head,
            divergence=divergence,
            teacher_hidden_NE=self.teacher_NE,
            teacher_head=self.teacher_head,
            **given_weights,
        )

    def plain(self, divergence: str, beta: float = 0.5, temperature: float = 1.0) -> Tensor:
        """The divergence of each token, as it is defined."""
        log_p = (self.head.logits(self.hidden_ND) / temperature).log_softmax(-1)
        log_q = (self.teacher_head.logits(self.teacher_NE) / temperature).log_softmax(-1)
        p, q = log_p.exp(), log_q.exp()
        if divergence == "cross_entropy":
            return -log_p.gather(-1, self.targets_N[:, None])[:, 0]
        if divergence == "reverse_kl":
            return (p * (log_p - log_q)).sum(-1)
        if divergence == "forward_kl":
            return (q * (log_q - log_p)).sum(-1)
        log_m = (beta * q + (1 - beta) * p).log()
        return beta * (q * (log_q - log_m)).sum(-1) + (1 - beta) * (p * (log_p - log_m)).sum(-1)


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_value_and_every_gradient_equal_autograd(divergence: str, kind: str, temperature: float) -> None:
    case = Case(head=HEADS[kind])
    value_N = case.plain(divergence, temperature=temperature)
    expected = torch.autograd.grad((value_N * case.weights_N).sum() * 2.5, case.leaves)
    output = case.fused(divergence, temperature=temperature, chunk_tokens=5)
    found = torch.autograd.grad(output.loss * 2.5, case.leaves)
    torch.testing.assert_close(output.per_token_N, value_N.detach(), atol=1e-9, rtol=0)
    torch.testing.assert_close(output.loss.detach(), (value_N * case.weights_N).sum().detach(), atol=1e-9, rtol=0)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


@pytest.mark.parametrize("beta", [0.0, 0.2, 1.0])
def test_beta_reaches_the_formula(beta: float) -> None:
    case = Case()
    ends = {0.0: "forward_kl", 1.0: "reverse_kl"}
    expected = case.plain(ends.get(beta, "jsd"), beta=beta).detach()
    torch.testing.assert_close(case.fused("jsd", beta=beta).per_token_N, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_gradcheck(divergence: str) -> None:
    case = Case(tokens=4, head=HEADS["all"])
    hidden = case.hidden_ND

    def loss(hidden_ND: Tensor) -> Tensor:
        case.hidden_ND = hidden_ND
        return case.fused(divergence).loss

    case.head = Head(case.head.weight_VD.detach(), case.head.bias_V.detach(), 0.7, 5.0)  # type: ignore[union-attr]
    assert torch.autograd.gradcheck(loss, (hidden,))


def test_entropy_and_gradient_norms_are_those_of_each_token() -> None:
    case = Case(head=HEADS["all"])
    output = case.fused("reverse_kl", temperature=0.7, chunk_tokens=8)
    log_p = (case.head.logits(case.hidden_ND) / 0.7).log_softmax(-1)
    entropy_N = -(log_p.exp() * log_p).sum(-1).detach()
    torch.testing.assert_close(output.entropy_N, entropy_N, atol=1e-9, rtol=0)
    (slope_ND,) = torch.autograd.grad(case.plain("reverse_kl", temperature=0.7).sum(), case.hidden_ND)
    torch.testing.assert_close(output.grad_norm_N, slope_ND.norm(dim=-1), atol=1e-9, rtol=0)
    assert not any(t.requires_grad for t in (output.per_token_N, output.entropy_N, output.grad_norm_N))


@settings(max_examples=30, deadline=None)
@given(
    tokens=st.integers(0, 40),
    chunk=st.integers(1, 50),
    block=st.integers(1, 50),
    divergence=st.sampled_from(DIVERGENCES),
    seed=st.integers(0, 1000),
)
def test_chunks_and_blocks_do_not_change_the_result(
    tokens: int, chunk: int, block: int, divergence: str, seed: int
) -> None:
    case = Case(seed, tokens)
    whole = case.fused(divergence, chunk_tokens=100)
    expected = torch.autograd.grad(whole.loss, case.leaves)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "_BLOCK_BYTES", block * V * 8)
        patch.setattr(fused, "_HEAD_TILE", block)
        parts = case.fused(divergence, chunk_tokens=chunk)
    found = torch.autograd.grad(parts.loss, case.leaves)
    torch.testing.assert_close(parts.per_token_N, whole.per_token_N, atol=1e-11, rtol=0)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0)


def test_one_batch_or_several_give_the_same_gradient() -> None:
    case = Case()
    whole = torch.autograd.grad(case.fused("reverse_kl").loss, case.leaves)
    parts = [torch.zeros_like(leaf) for leaf in case.leaves]
    for rows in (slice(0, 10), slice(10, N)):
        piece = fused_loss(
            case.hidden_ND[rows],
            case.head,
            teacher_hidden_NE=case.teacher_NE[rows],
            teacher_head=case.teacher_head,
            weights_N=case.weights_N[rows],
        )
        for total, gradient in zip(parts, torch.autograd.grad(piece.loss, case.leaves), strict=True):
            total += gradient
    for ours, theirs in zip(parts, whole, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("divergence", ["reverse_kl", "forward_kl", "jsd"])
def test_a_student_that_equals_its_teacher_is_left_alone(divergence: Any, dtype: torch.dtype) -> None:
    hidden = torch.randn(20, 16, dtype=dtype, requires_grad=True)
    head = Head(torch.randn(300, 16, dtype=dtype, requires_grad=True))
    output = fused_loss(hidden, head, divergence=divergence, teacher_hidden_NE=hidden.detach())
    output.loss.backward()
    assert output.per_token_N.abs().max() <= 1e-7
    assert hidden.grad is not None
    assert head.weight_VD.grad is not None
    assert hidden.grad.abs().max() <= 1e-7
    assert head.weight_VD.grad.abs().max() <= 1e-7


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_no_tokens_and_no_weight_give_nothing(divergence: str) -> None:
    for case, weights in ((Case(tokens=0), None), (Case(), torch.zeros(N))):
        output = case.fused(divergence, weights_N=weights)
        output.loss.backward()
        assert output.loss.item() == 0.0
        assert all(leaf.grad is not None and not leaf.grad.any() for leaf in case.leaves)


def test_tokens_of_no_weight_change_no_gradient() -> None:
    """Padding, were it passed in, would count for nothing."""
    case = Case()
    weights = case.weights_N.clone()
    weights[::2] = 0.0
    gradients = torch.autograd.grad(case.fused("reverse_kl", weights_N=weights).loss, case.leaves)
    kept = fused_loss(
        case.hidden_ND[1::2],
        case.head,
        teacher_hidden_NE=case.teacher_NE[1::2],
        teacher_head=case.teacher_head,
        weights_N=weights[1::2],
    )
    for ours, theirs in zip(gradients, torch.autograd.grad(kept.loss, case.leaves), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=0)


def test_a_tied_embedding_gets_both_its_gradients() -> None:
    """Weights that embed the tokens and project them again: autograd adds the two parts."""
    torch.manual_seed(0)
    table = torch.randn(V, D, dtype=torch.float64, requires_grad=True)
    ids, teacher = torch.randint(V, (N,)), torch.randn(N, D, dtype=torch.float64)
    teacher_head = make_head()

    def gradient(fuse: bool) -> Tensor:
        hidden = torch.nn.functional.embedding(ids, table).tanh()
        if fuse:
            loss = fused_loss(hidden, Head(table), teacher_hidden_NE=teacher, teacher_head=teacher_head).loss
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


def test_a_trained_heads_gradient_is_handed_over_once() -> None:
    output = Case().fused("reverse_kl")
    output.loss.backward(retain_graph=True)
    with pytest.raises(UsageError, match="can be taken once"):
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
        output = fused_loss(leaf, head, teacher_hidden_NE=teacher.to(dtype), chunk_tokens=64)
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
    half = fused_loss(
        hidden.to(torch.bfloat16), Head(head.weight_VD.to(torch.bfloat16)), teacher_hidden_NE=teacher.to(torch.bfloat16)
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = fused_loss(hidden, head, teacher_hidden_NE=teacher)
    mixed = fused_loss(hidden.to(torch.bfloat16), head, teacher_hidden_NE=teacher)
    assert torch.equal(output.per_token_N, half.per_token_N)
    assert torch.equal(mixed.per_token_N, half.per_token_N)
    output.loss.backward()
    assert hidden.grad is not None
    assert head.weight_VD.grad is not None
    assert hidden.grad.dtype == head.weight_VD.grad.dtype == torch.float32


@pytest.mark.parametrize("bias", [False, True])
def test_the_float32_product_of_onednn_equals_the_ordinary_one(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if products._onednn() is None:
        pytest.skip("this build of torch has no oneDNN product")
    torch.manual_seed(0)
    hidden, weight = torch.randn(33, 24), torch.randn(70, 24)
    bias_V = torch.randn(70) if bias else None
    fast = products.linear(hidden, weight, bias_V)
    fast_back = products.linear(fast, weight.t(), None)
    monkeypatch.setattr(products, "_onednn", lambda: None)
    plain = products.linear(hidden, weight, bias_V)
    torch.testing.assert_close(fast, plain)
    torch.testing.assert_close(fast_back, products.linear(plain, weight.t(), None))


def test_chunks_are_small_for_large_vocabularies_and_large_for_small_ones() -> None:
    assert fused._chunk_size(151_936, torch.float32) == 128
    assert fused._chunk_size(151_936, torch.bfloat16) == 256
    assert fused._chunk_size(1_536, torch.float32) == 1280


def test_what_does_not_fit_together_is_refused_in_one_line() -> None:
    case = Case()
    teacher = {"teacher_hidden_NE": case.teacher_NE, "teacher_head": case.teacher_head}
    wider = make_head(E, vocabulary=V + 14)
    refusals: list[tuple[type[RecoveryError], str, Tensor, dict[str, Any]]] = [
        (UsageError, "unknown divergence", case.hidden_ND, {"divergence": "kl", **teacher}),
        (UsageError, "between 0 and 1", case.hidden_ND, {"divergence": "jsd", "beta": -1.0, **teacher}),
        (UsageError, "above 0", case.hidden_ND, {"temperature": 0.0, **teacher}),
        (UsageError, "at least 1", case.hidden_ND, {"chunk_tokens": 0, **teacher}),
        (UsageError, "do not fit a head of width 8", torch.zeros(3, 5), teacher),
        (UsageError, "needs teacher_hidden_NE", case.hidden_ND, {}),
        (UsageError, "needs targets_N", case.hidden_ND, {"divergence": "cross_entropy"}),
        (UsageError, "one entry for each of 37", case.hidden_ND, {"weights_N": torch.ones(3), **teacher}),
        (UsageError, "teacher head of width 8", case.hidden_ND, {"teacher_hidden_NE": case.teacher_NE}),
        (ModelError, "Head.first", case.hidden_ND, {**teacher, "teacher_head": wider}),
    ]
    for kind, words, hidden, arguments in refusals:
        with pytest.raises(kind, match=words) as caught:
            fused_loss(hidden, case.head, **arguments)
        assert "\n" not in str(caught.value)
    halves = Head(case.head.weight_VD.half())
    with pytest.raises(UsageError, match="float32 or bfloat16"):
        fused_loss(case.hidden_ND.half(), halves, **teacher)


def test_a_teacher_of_a_padded_vocabulary_is_cut_to_the_students() -> None:
    case = Case()
    wide = make_head(E, vocabulary=V + 14)
    arguments: dict[str, Any] = {"teacher_hidden_NE": case.teacher_NE}
    cut = fused_loss(case.hidden_ND, case.head, teacher_head=wide.first(V), **arguments)
    same = replace(wide, weight_VD=wide.weight_VD[:V].clone())
    expected = fused_loss(case.hidden_ND, case.head, teacher_head=same, **arguments)
    assert torch.equal(cut.per_token_N, expected.per_token_N)


def test_never_all_logits_at_once() -> None:
    """The largest tensor any operation makes is a chunk of logits, forward and backward."""
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else (result,):
                if isinstance(tensor, Tensor):
                    largest = max(largest, tensor.numel())
            return result

    tokens, vocabulary, chunk = 96, 512, 8
    for kind, dtype in itertools.product(DIVERGENCES, (torch.float32, torch.bfloat16)):
        hidden = torch.randn(tokens, D, dtype=dtype, requires_grad=True)
        head = Head(torch.randn(vocabulary, D, dtype=dtype))
        other: dict[str, Any] = {"teacher_hidden_NE": torch.randn(tokens, D, dtype=dtype)}
        if kind == "cross_entropy":
            other = {"targets_N": torch.randint(vocabulary, (tokens,))}
        with Watch():
            fused_loss(hidden, head, divergence=kind, chunk_tokens=chunk, **other).loss.backward()
    assert largest == chunk * vocabulary
