"""Sparse losses: against autograd in float64, in edge cases, and the purpose of the tail bucket."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from recovery.errors import UsageError
from recovery.losses.dense import divergence, softmaxes_
from recovery.losses.sparse import Policy, Sparse, cross_entropy, policy_gradient, top_entries, top_k
from recovery.losses.terms import Term
from recovery.models.lm_head import Head
from tests.support import plain_term

N, V = 16, 30


def logits(seed: int, spread: float = 2.0, rows: int = N) -> Tensor:
    return torch.randn(rows, V, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * spread


def distribution(student: Tensor) -> tuple[Tensor, Tensor]:
    log_p, p, _ = softmaxes_(student.clone(), torch.empty_like(student))
    return p, log_p


def gradient(found: Sparse, p: Tensor) -> Tensor:
    """The full gradient, by both methods, which must agree and not modify ``p``."""
    kept, written, added = p.clone(), torch.full_like(p, 7.0), torch.full_like(p, 1.0)
    found.write_to_(written, p, 0.5)
    found.add_to_(added, p, 0.5)
    assert torch.equal(p, kept)
    torch.testing.assert_close(added - 1.0, written, atol=4 * torch.finfo(p.dtype).eps, rtol=0)
    return written * 2.0


def slope_of(term: Term, student: Tensor) -> tuple[Tensor, Tensor]:
    """Value and gradient by autograd: a head that passes logits on unchanged."""
    leaf = student.clone().requires_grad_()
    value = plain_term(term, Head(torch.eye(V, dtype=torch.float64)), leaf)
    return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]


def policy_term(clip: float | None, drop: float | None, old: bool = True) -> Term:
    generator = torch.Generator().manual_seed(5)
    targets = torch.randint(V, (N,), generator=generator)
    advantages = torch.randn(N, dtype=torch.float64, generator=generator)
    log_p = logits(0).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    moved = log_p + torch.linspace(-1.2, 1.2, N, dtype=torch.float64)
    return Term(
        "policy_gradient",
        targets_N=targets,
        advantages_N=advantages,
        old_logprobs_N=moved if old else None,
        clip=clip,
        drop=drop,
    )


def policy(term: Term, student: Tensor) -> tuple[Policy, Tensor]:
    p, log_p = distribution(student)
    assert term.targets_N is not None and term.advantages_N is not None
    found = policy_gradient(p, log_p, term.targets_N, term.advantages_N, term.old_logprobs_N, term.clip, term.drop)
    return found, gradient(found.sparse, p)


def test_cross_entropy_equals_autograd() -> None:
    student, targets = logits(1), torch.arange(N)
    p, log_p = distribution(student)
    found = cross_entropy(p, log_p, targets)
    value, slope = slope_of(Term("cross_entropy", targets_N=targets), student)
    torch.testing.assert_close(found.value_N, value, atol=1e-10, rtol=0)
    torch.testing.assert_close(gradient(found, p), slope, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("clip", "drop", "old"),
    [(None, None, True), (0.2, None, True), (None, 2.0, True), (0.2, 2.0, True), (None, None, False)],
)
def test_the_policy_gradient_equals_autograd(clip: float | None, drop: float | None, old: bool) -> None:
    term, student = policy_term(clip, drop, old), logits(0)
    found, ours = policy(term, student)
    value, slope = slope_of(term, student)
    torch.testing.assert_close(found.sparse.value_N, value, atol=1e-10, rtol=0)
    torch.testing.assert_close(ours, slope, atol=1e-10, rtol=0)
    if not old:
        assert torch.equal(found.ratio_N, torch.ones(N, dtype=torch.float64))
    assert bool(found.clipped_N.any()) == (clip is not None)
    assert bool(found.dropped_N.any()) == (drop is not None)
    assert not bool((found.clipped_N & found.dropped_N).any())
    assert not ours[found.clipped_N | found.dropped_N].any()


def test_the_clip_acts_only_on_further_improvement() -> None:
    """PPO's minimum: a ratio above 1 + e is clipped for a positive advantage, not for a negative one."""
    p, log_p = distribution(torch.zeros(4, V, dtype=torch.float64))
    targets = torch.zeros(4, dtype=torch.long)
    ratios = torch.tensor([1.5, 1.5, 0.5, 0.5], dtype=torch.float64)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    found = policy_gradient(p, log_p, targets, advantages, log_p[:, 0] - ratios.log(), clip=0.2)
    torch.testing.assert_close(found.ratio_N, ratios)
    assert found.clipped_N.tolist() == [True, False, False, True]
    torch.testing.assert_close(
        found.sparse.value_N, torch.tensor([-1.2, 1.5, -0.5, 0.8], dtype=torch.float64), atol=1e-12, rtol=0
    )


def test_a_huge_ratio_stays_finite() -> None:
    p, log_p = distribution(torch.zeros(2, V))
    for drop in (None, 8.0):
        found = policy_gradient(
            p, log_p, torch.zeros(2, dtype=torch.long), torch.tensor([0.0, -1.0]), torch.full((2,), -500.0), drop=drop
        )
        assert torch.isfinite(gradient(found.sparse, p)).all()
        assert torch.isfinite(found.sparse.value_N).all()
        assert found.dropped_N.tolist() == [drop is not None] * 2


def top_term(teacher: Tensor, count: int, reverse: bool) -> Term:
    top = teacher.log_softmax(-1).topk(count, -1)
    return Term("top_k", top_ids_NK=top.indices, top_logprobs_NK=top.values, reverse=reverse)


def top(term: Term, student: Tensor) -> tuple[Tensor, Tensor]:
    p, log_p = distribution(student)
    assert term.top_ids_NK is not None and term.top_logprobs_NK is not None
    found = top_k(p, log_p, term.top_ids_NK, term.top_logprobs_NK, reverse=term.reverse)
    return found.value_N, gradient(found, p)


@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("count", [1, 5, V - 1])
def test_top_k_equals_autograd(count: int, reverse: bool) -> None:
    term, student = top_term(logits(2), count, reverse), logits(3)
    value, slope = slope_of(term, student)
    ours, ours_gradient = top(term, student)
    torch.testing.assert_close(ours, value, atol=1e-10, rtol=0)
    torch.testing.assert_close(ours_gradient, slope, atol=1e-10, rtol=0)


@pytest.mark.parametrize(("reverse", "name"), [(True, "reverse_kl"), (False, "forward_kl")])
def test_all_entries_kept_are_the_whole_divergence(reverse: bool, name: str) -> None:
    student, teacher = logits(4), logits(5)
    whole, whole_gradient = divergence(name, student, teacher)
    value, ours = top(top_term(teacher, V, reverse), student)
    torch.testing.assert_close(value, whole, atol=1e-9, rtol=0)
    torch.testing.assert_close(ours, whole_gradient, atol=1e-9, rtol=0)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**16), st.integers(1, V), st.booleans(), st.floats(0.1, 8.0))
@example(23, 29, True, 7.0)  # a tail of 1e-12
def test_top_k_lies_between_nothing_and_the_whole_divergence(
    seed: int, count: int, reverse: bool, spread: float
) -> None:
    student, teacher = logits(seed, spread, 3), logits(seed + 1, spread, 3)
    whole, _ = divergence("reverse_kl" if reverse else "forward_kl", student, teacher)
    value, ours = top(top_term(teacher, count, reverse), student)
    # The teacher's mass q outside is 1 minus the mass kept, so that its logarithm is wrong by up to about eps / q.
    outside = teacher.softmax(-1).sort(-1, descending=True)[0][:, count:].sum(-1)
    rounding = 1e-6 + torch.where(outside > 0, torch.finfo(torch.float64).eps / outside, 0)
    assert bool((value >= -rounding).all())
    assert bool((value <= whole + rounding).all())
    torch.testing.assert_close(ours.sum(-1), torch.zeros(3, dtype=torch.float64), atol=1e-9, rtol=0)


def test_without_the_tail_mass_can_leak_away_and_with_it_it_cannot() -> None:
    """Descent from the teacher itself: the sum over the kept entries alone falls as their mass shrinks."""
    teacher = logits(6, spread=1.0, rows=4)
    term = top_term(teacher, 5, reverse=True)
    ids, log_q = term.top_ids_NK, term.top_logprobs_NK
    assert ids is not None and log_q is not None

    def kept_only(student: Tensor) -> Tensor:
        log_p = student.log_softmax(-1).gather(-1, ids)
        return (log_p.exp() * (log_p - log_q)).sum(-1)

    leaking, held = teacher.clone().requires_grad_(), teacher.clone()
    for _ in range(300):
        (slope,) = torch.autograd.grad(kept_only(leaking).sum(), leaking)
        leaking = (leaking - 0.5 * slope).detach().requires_grad_()
        held = held - 0.5 * top(term, held)[1]
    mass = [side.softmax(-1).gather(-1, ids).sum(-1) for side in (teacher, leaking.detach(), held)]
    assert bool((kept_only(leaking) < -0.05).all())
    assert bool((mass[1] < 0.9 * mass[0]).all())
    torch.testing.assert_close(mass[2], mass[0], atol=1e-9, rtol=0)
    torch.testing.assert_close(top(term, held)[0], torch.zeros(4, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("reverse", [True, False])
def test_a_rest_below_rounding_stays_finite(reverse: bool) -> None:
    """One side certain of a kept token, in float32: the rest of the other side is 0 or 1."""
    certain, even = torch.full((2, V), -200.0), torch.zeros(2, V)
    certain[:, 3] = 0.0
    for student, teacher in ((certain, even), (even, certain), (certain, certain)):
        kept = teacher.log_softmax(-1).topk(4, -1)
        p, log_p = distribution(student)
        found = top_k(p, log_p, kept.indices, kept.values, reverse=reverse)
        assert torch.isfinite(found.value_N).all()
        assert torch.isfinite(gradient(found, p)).all()
    assert found.value_N.abs().max() <= 1e-6


def test_the_entries_of_a_teacher_are_its_likeliest() -> None:
    torch.manual_seed(0)
    head = Head(torch.randn(V, 6, dtype=torch.float64), torch.randn(V, dtype=torch.float64), 0.7, 5.0)
    hidden = torch.randn(300, 6, dtype=torch.float64)
    ids, logprobs = top_entries(hidden, head, 4, temperature=1.7)
    expected = (head.logits(hidden) / 1.7).log_softmax(-1).topk(4, -1)
    assert torch.equal(ids, expected.indices)
    torch.testing.assert_close(logprobs, expected.values, atol=1e-12, rtol=0)
    assert top_entries(hidden[:0], head, 4)[0].shape == (0, 4)
    with pytest.raises(UsageError, match="--top-k 31 must lie between 1 and the teacher's 30 entries"):
        top_entries(hidden, head, V + 1)


def test_golden_values() -> None:
    """By hand: p = (.5, .4, .1), q = (.7, .2, .1), the one entry kept is the first."""
    student = torch.tensor([[0.5, 0.4, 0.1]], dtype=torch.float64).log()
    kept = torch.tensor([[0]]), torch.tensor([[math.log(0.7)]], dtype=torch.float64)
    p, log_p = distribution(student)
    reverse = 0.5 * math.log(0.5 / 0.7) + 0.5 * math.log(0.5 / 0.3)
    forward = 0.7 * math.log(0.7 / 0.5) + 0.3 * math.log(0.3 / 0.5)
    assert float(top_k(p, log_p, *kept).value_N) == pytest.approx(reverse)
    assert float(top_k(p, log_p, *kept, reverse=False).value_N) == pytest.approx(forward)
    found = policy_gradient(
        p, log_p, torch.tensor([1]), torch.tensor([2.0]), torch.tensor([math.log(0.32)], dtype=torch.float64), clip=0.2
    )
    assert float(found.ratio_N) == pytest.approx(1.25)
    assert float(found.sparse.value_N) == pytest.approx(-2.4)
