"""Divergences against golden values, against autograd in float64, and in edge cases."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recovery.errors import UsageError
from recovery.losses.config import MIXTURES, UNBOUNDED, WHOLE_VOCABULARY, LossConfig
from recovery.losses.dense import LOSSES, divergence, resolve_divergence
from recovery.losses.divergences import DIVERGENCES
from tests.support import plain_divergence

# Every divergence with each value of its mixture that it accepts.
ROOT = Path(__file__).resolve().parents[2]
BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)
FORMS = [(name, 0.5) for name in LOSSES if name not in MIXTURES] + [
    (name, beta) for name in MIXTURES for beta in BETAS if (DIVERGENCES[name].ends or ())[int(beta)] or 0 < beta < 1
]


# Those of DistiLLM, and the divergences that they are without a mixture.
SKEWED = {"skew_kl": "forward_kl", "skew_reverse_kl": "reverse_kl"}


def reference(name: str, student: Tensor, teacher: Tensor, targets: Tensor, tau: float = 1.0, **limits: Any) -> Tensor:
    """The definitions, written out, differentiable."""
    log_p, log_q = (student / tau).log_softmax(-1), (teacher / tau).log_softmax(-1)
    if name == "cross_entropy":
        return -log_p.gather(-1, targets[:, None])[:, 0]
    return plain_divergence(name, log_p, log_q, **limits)


@pytest.mark.parametrize(
    ("name", "expected", "about"),
    [
        ("forward_kl", 0.7 * math.log(0.7 / 0.5) + 0.2 * math.log(0.2 / 0.4), 0.0969),
        ("reverse_kl", 0.5 * math.log(0.5 / 0.7) + 0.4 * math.log(0.4 / 0.2), 0.1090),
        ("skew_kl", 0.7 * math.log(0.7 / 0.52) + 0.2 * math.log(0.2 / 0.38), 0.0797),
        ("skew_reverse_kl", 0.5 * math.log(0.5 / 0.68) + 0.4 * math.log(0.4 / 0.22), 0.0854),
    ],
)
def test_golden_values(name: str, expected: float, about: float) -> None:
    """q = (.7, .2, .1) and p = (.5, .4, .1), of the skewed ones with beta 0.1, by hand to four digits."""
    teacher = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64).log()
    student = torch.tensor([[0.5, 0.4, 0.1]], dtype=torch.float64).log()
    value, _ = divergence(name, student, teacher, beta=0.1)
    assert float(value) == pytest.approx(expected, abs=1e-12)
    assert expected == pytest.approx(about, abs=1e-4)


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("name", "beta"), FORMS)
def test_value_and_gradient_equal_autograd(name: str, beta: float, tau: float) -> None:
    torch.manual_seed(0)
    student = (torch.randn(11, 23, dtype=torch.float64) * 4).requires_grad_()
    teacher = torch.randn(11, 23, dtype=torch.float64) * 4
    targets = torch.randint(23, (11,))
    expected = reference(name, student, teacher, targets, tau, beta=beta)
    (slope,) = torch.autograd.grad(expected.sum(), student)
    value, gradient = divergence(name, student, teacher, targets_N=targets, beta=beta, temperature=tau)
    torch.testing.assert_close(value, expected.detach(), atol=1e-10, rtol=0)
    torch.testing.assert_close(gradient, slope, atol=1e-10, rtol=0)


@pytest.mark.parametrize("tau", [1.0, 2.0])
@pytest.mark.parametrize(
    ("name", "beta", "limits"),
    [
        *[(name, 0.5, {"entry_clip": clip}) for name in WHOLE_VOCABULARY for clip in (0.002, 0.05, 10.0)],
        *[(name, beta, {"entry_clip": 0.02}) for name, beta in FORMS if name in MIXTURES],
        *[(name, 0.5, {"floor": floor}) for name in UNBOUNDED for floor in (-5.0, -30.0)],
        *[(name, 0.5, {"floor": -5.0, "entry_clip": 0.05}) for name in UNBOUNDED],
        *[("jsd", end, {"floor": -5.0}) for end in (0.0, 1.0)],
    ],
)
def test_limits_on_entries_equal_autograd(name: str, beta: float, limits: dict[str, float], tau: float) -> None:
    torch.manual_seed(2)
    student = (torch.randn(13, 29, dtype=torch.float64) * 4).requires_grad_()
    teacher = torch.randn(13, 29, dtype=torch.float64) * 4
    expected = reference(name, student, teacher, torch.empty(0), tau, beta=beta, **limits)
    (slope,) = torch.autograd.grad(expected.sum(), student)
    value, gradient = divergence(name, student, teacher, beta=beta, temperature=tau, **limits)
    torch.testing.assert_close(value, expected.detach(), atol=1e-10, rtol=0)
    torch.testing.assert_close(gradient, slope, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", WHOLE_VOCABULARY)
def test_a_clip_no_entry_reaches_changes_nothing(name: str) -> None:
    torch.manual_seed(3)
    student, teacher = torch.randn(5, 40, dtype=torch.float64), torch.randn(5, 40, dtype=torch.float64)
    free, free_gradient = divergence(name, student, teacher)
    value, gradient = divergence(name, student, teacher, entry_clip=1e3)
    torch.testing.assert_close(value, free, atol=1e-12, rtol=0)
    torch.testing.assert_close(gradient, free_gradient, atol=1e-12, rtol=0)


def test_the_pivot_token_is_clipped_in_the_forward_form_and_not_in_the_reverse() -> None:
    """Student 0.01, teacher 0.6: the entry is 2.46 nats forward and -0.04 in reverse, where a cap does nothing."""
    student = torch.tensor([[0.01, 0.99]], dtype=torch.float64).log()
    teacher = torch.tensor([[0.6, 0.4]], dtype=torch.float64).log()
    entry = 0.6 * math.log(0.6 / 0.01)
    free, _ = divergence("forward_kl", student, teacher)
    value, gradient = divergence("forward_kl", student, teacher, entry_clip=0.05)
    assert entry == pytest.approx(2.457, abs=1e-3)
    assert float(free - value) == pytest.approx(entry - 0.05)
    assert gradient[0, 0] > -0.01, "the capped entry has no gradient"
    _, uncapped = divergence("reverse_kl", student, teacher)
    _, capped = divergence("reverse_kl", student, teacher, entry_clip=2.0)
    assert 0.01 * math.log(0.01 / 0.6) == pytest.approx(-0.041, abs=1e-3)
    torch.testing.assert_close(capped, uncapped)


def test_inputs_are_not_modified() -> None:
    student, teacher = torch.randn(3, 7), torch.randn(3, 7)
    kept = student.clone(), teacher.clone()
    for name in WHOLE_VOCABULARY:
        divergence(name, student, teacher)
    assert torch.equal(student, kept[0])
    assert torch.equal(teacher, kept[1])


@pytest.mark.parametrize("name", WHOLE_VOCABULARY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_student_equal_to_its_teacher_has_no_gradient(name: str, dtype: torch.dtype) -> None:
    logits = torch.randn(5, 1000, dtype=dtype) * 5
    for limits in ({}, {"entry_clip": 0.05}):
        value, gradient = divergence(name, logits, logits.clone(), beta=0.3, **limits)
        assert value.abs().max() <= 1e-7
        assert gradient.abs().max() <= 1e-7


@pytest.mark.parametrize("name", WHOLE_VOCABULARY)
def test_probabilities_that_underflow_stay_finite(name: str) -> None:
    """Student and teacher certain of different tokens, by more than float32 can exponentiate."""
    student = torch.tensor([[0.0, -400.0, -500.0], [0.0, -400.0, -500.0]])
    teacher = torch.tensor([[-400.0, 0.0, -500.0], [-500.0, -300.0, 0.0]])
    value, gradient = divergence(name, student, teacher)
    assert torch.isfinite(value).all()
    assert torch.isfinite(gradient).all()
    capped = divergence(name, student, teacher, entry_clip=0.05)
    assert all(torch.isfinite(part).all() for part in capped)
    if name == "jsd":  # bounded by the entropy of beta, and reached here
        torch.testing.assert_close(value, torch.full((2,), math.log(2.0)))


def test_the_ends_of_beta_are_the_limits_of_the_scaled_divergence() -> None:
    torch.manual_seed(1)
    student, teacher = torch.randn(4, 9, dtype=torch.float64), torch.randn(4, 9, dtype=torch.float64)
    small = 1e-6
    for end, beta, scale in ((0.0, small, small), (1.0, 1 - small, small)):
        near, slope = divergence("jsd", student, teacher, beta=beta)
        limit, limit_slope = divergence("jsd", student, teacher, beta=end)
        torch.testing.assert_close(near / scale, limit, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(slope / scale, limit_slope, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "limit"), SKEWED.items())
def test_without_skew_it_is_the_kl_and_with_all_of_it_nothing(name: str, limit: str) -> None:
    torch.manual_seed(1)
    student, teacher = (torch.randn(6, 19, dtype=torch.float64) * 3 for _ in range(2))
    at_zero, expected = divergence(name, student, teacher, beta=0.0), divergence(limit, student, teacher)
    assert torch.equal(at_zero[0], expected[0]) and torch.equal(at_zero[1], expected[1])
    near = divergence(name, student, teacher, beta=1e-9)
    torch.testing.assert_close(near[0], expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(near[1], expected[1], atol=1e-5, rtol=1e-4)
    assert divergence(name, student, teacher, beta=1 - 1e-6)[0].abs().max() < 1e-7
    with pytest.raises(UsageError, match=f"at --beta 1.0 {name} is zero for every student"):
        divergence(name, student, teacher, beta=1.0)
    with pytest.raises(UsageError, match="is zero for every student"):
        LossConfig(divergence=name, beta=1.0)


@pytest.mark.parametrize("name", SKEWED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_skewed_kl_is_bounded_where_the_kl_is_not(name: str, dtype: torch.dtype) -> None:
    """Student and teacher certain of different tokens: -log beta, not the 400 nats of their log-ratio."""
    student, teacher = torch.tensor([[0.0, -400.0]], dtype=dtype), torch.tensor([[-400.0, 0.0]], dtype=dtype)
    value, gradient = divergence(name, student, teacher, beta=0.1)
    torch.testing.assert_close(value, torch.tensor([-math.log(0.1)], dtype=dtype))
    assert torch.isfinite(gradient).all()
    with pytest.raises(UsageError, match=f"has no effect on --divergence {name}, which is bounded"):
        LossConfig(divergence=name, beta=0.1, floor=-10.0)


@settings(max_examples=50, deadline=None)
@given(
    name=st.sampled_from(LOSSES),
    beta=st.floats(0.01, 0.99),
    spread=st.floats(0.01, 50.0),
    shift=st.floats(-100.0, 100.0),
    seed=st.integers(0, 2**16),
)
def test_properties_of_every_divergence(name: str, beta: float, spread: float, shift: float, seed: int) -> None:
    """Never negative, invariant to a shift of the logits, and a gradient that sums to zero over the vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    student = torch.randn(3, 17, dtype=torch.float64, generator=generator) * spread
    teacher = torch.randn(3, 17, dtype=torch.float64, generator=generator) * spread
    targets = torch.randint(17, (3,), generator=generator)
    value, gradient = divergence(name, student, teacher, targets_N=targets, beta=beta)
    moved, moved_gradient = divergence(name, student + shift, teacher - shift, targets_N=targets, beta=beta)
    assert bool((value >= -1e-12).all())
    torch.testing.assert_close(moved, value, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(moved_gradient, gradient, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(gradient.sum(-1), torch.zeros(3, dtype=torch.float64), atol=1e-9, rtol=0)


def test_invalid_arguments_are_refused() -> None:
    logits = torch.zeros(1, 3)
    for call, words in (
        (lambda: resolve_divergence("kl"), "reverse_kl, forward_kl"),
        (lambda: resolve_divergence("jsd", 1.5), "between 0 and 1"),
        (lambda: divergence("reverse_kl", logits, logits, temperature=0.0), "above 0"),
        (lambda: divergence("reverse_kl", logits), "teacher_NV"),
        (lambda: divergence("cross_entropy", logits, logits), "targets_N"),
        (lambda: divergence("cross_entropy", logits, logits, entry_clip=0.1), "--entry-clip 0.1 needs a div"),
        (lambda: divergence("reverse_kl", logits, logits, entry_clip=0.0), "--entry-clip is 0.0, but must be above 0"),
        (lambda: divergence("reverse_kl", logits, logits, floor=0.5), "--floor is 0.5, but must be below 0"),
        (lambda: divergence("jsd", logits, logits, floor=-10.0), "--floor -10.0 has no effect on --divergence jsd"),
    ):
        with pytest.raises(UsageError, match=words):
            call()


def test_the_list_is_what_the_files_declare_and_needs_no_torch() -> None:
    code = (
        "import sys; from recovery.losses.divergences import DIVERGENCES;"
        "assert all(one.title and one.formula and one.source for one in DIVERGENCES.values());"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
    files = {path.stem for path in (ROOT / "recovery" / "losses" / "divergences").glob("[a-z]*.py")}
    assert {one.compute_.__module__.rpartition(".")[2] for one in DIVERGENCES.values()} == files
