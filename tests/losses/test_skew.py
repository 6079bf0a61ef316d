"""The skewed divergences of DistiLLM: value, gradient, limits and bound."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from recovery.errors import UsageError
from recovery.losses.config import LossConfig
from recovery.losses.dense import divergence

SKEWED = {"skew_kl": "forward_kl", "skew_reverse_kl": "reverse_kl"}


def pair(seed: int = 0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(6, 19, dtype=torch.float64) * 3, torch.randn(6, 19, dtype=torch.float64) * 3


def test_golden_values() -> None:
    """q = (.7, .2, .1) and p = (.5, .4, .1) with beta 0.1, computed by hand to four digits."""
    teacher = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64).log()
    student = torch.tensor([[0.5, 0.4, 0.1]], dtype=torch.float64).log()
    forward = 0.7 * math.log(0.7 / 0.52) + 0.2 * math.log(0.2 / 0.38)
    reverse = 0.5 * math.log(0.5 / 0.68) + 0.4 * math.log(0.4 / 0.22)
    assert float(divergence("skew_kl", student, teacher, beta=0.1)[0]) == pytest.approx(forward, abs=1e-12)
    assert float(divergence("skew_reverse_kl", student, teacher, beta=0.1)[0]) == pytest.approx(reverse, abs=1e-12)
    assert (forward, reverse) == (pytest.approx(0.0797, abs=1e-4), pytest.approx(0.0854, abs=1e-4))


@pytest.mark.parametrize("name", SKEWED)
@pytest.mark.parametrize("beta", [0.1, 0.6])
def test_the_gradient_is_the_slope_of_the_value(name: str, beta: float) -> None:
    """By central differences, entry by entry: no formula is shared with the code."""
    student, teacher = pair()
    _, gradient = divergence(name, student, teacher, beta=beta)
    step, slopes = 1e-5, torch.empty_like(student)
    for v in range(student.shape[1]):
        moved = torch.zeros_like(student)
        moved[:, v] = step
        up, down = (divergence(name, student + sign * moved, teacher, beta=beta)[0] for sign in (1, -1))
        slopes[:, v] = (up - down) / (2 * step)
    torch.testing.assert_close(gradient, slopes, atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize(("name", "limit"), SKEWED.items())
def test_without_skew_it_is_the_kl_and_with_all_of_it_nothing(name: str, limit: str) -> None:
    student, teacher = pair(1)
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
def test_it_is_bounded_where_the_kl_is_not(name: str, dtype: torch.dtype) -> None:
    """Student and teacher certain of different tokens: -log beta, not the 400 nats of their log-ratio."""
    student, teacher = torch.tensor([[0.0, -400.0]], dtype=dtype), torch.tensor([[-400.0, 0.0]], dtype=dtype)
    value, gradient = divergence(name, student, teacher, beta=0.1)
    torch.testing.assert_close(value, torch.tensor([-math.log(0.1)], dtype=dtype))
    assert torch.isfinite(gradient).all()
    with pytest.raises(UsageError, match=f"has no effect on --divergence {name}, which is bounded"):
        LossConfig(divergence=name, beta=0.1, floor=-10.0)
