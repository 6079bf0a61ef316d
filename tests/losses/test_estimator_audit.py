"""The losses against their definitions in numpy, in cases of benchmarks/estimators.py that strain a number format."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import _outcomes, estimators
from benchmarks._definitions import ENTRIES, Case, Finding, Form
from recovery.losses.dense import divergence
from recovery.losses.divergences import DIVERGENCES

CASES = {case.name: case for case in estimators.cases(np.random.default_rng(1)) if not case.few}
FORMS = list(estimators.forms())
# bfloat16 differs by the rounding of logits and gradients only.
NARROW = ("ordinary", "temperature 0.7", "certain of different tokens", "head with scale and cap")
PLAIN = [form for form in FORMS if form.name in DIVERGENCES]


@functools.cache
def found(dtype: torch.dtype, case: str) -> list[Finding]:
    short = dataclasses.replace(CASES[case], student=CASES[case].student[:3], teacher=CASES[case].teacher[:3])
    return [row for form in FORMS for row in estimators.compared(form, short, dtype, draws=1)]


def test_every_divergence_has_a_definition_here() -> None:
    """A new divergence is not audited before its formula is written out in benchmarks/_definitions.py."""
    assert set(ENTRIES) == set(DIVERGENCES), "write its formula in ENTRIES of benchmarks/_definitions.py"


@pytest.mark.parametrize(
    ("dtype", "case"), [(torch.float32, case) for case in CASES] + [(torch.bfloat16, case) for case in NARROW]
)
def test_values_and_gradients_are_those_of_the_definitions(dtype: torch.dtype, case: str) -> None:
    worst = max(found(dtype, case), key=lambda row: row.times)
    assert worst.times <= estimators.LIMIT, worst


@pytest.mark.parametrize("case", ["ordinary", "temperature 0.7", "ties", "two entries", "head with scale and cap"])
def test_ordinary_logits_have_six_correct_digits_in_float32(case: str) -> None:
    """Absolute bounds, which no model of rounding enters."""
    for row in found(torch.float32, case):
        scale = 1.0 if row.quantity.endswith("value") else 2.0
        assert row.error <= 4e-6 * max(scale, row.size), row


def test_float64_is_far_more_precise() -> None:
    for row in found(torch.float64, "ordinary"):
        assert row.error <= 1e-13 * max(1.0, row.size), row


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_sides_are_exactly_zero(dtype: torch.dtype) -> None:
    """Not small: zero, in value and gradient, of the plain and of the fused form."""
    case = dataclasses.replace(CASES["equal"], teacher=CASES["equal"].student)
    rounded = dataclasses.replace(
        case, **{side: estimators.cast(case.student, dtype) for side in ("student", "teacher")}
    )
    for form in PLAIN:
        if "floor" in form.settings:  # a floored side sums to more than 1
            continue
        samples = estimators.drawn(rounded, torch.float32, seed=0)
        for function in (estimators.plain, estimators.fused):
            value_N, gradient_ND = function(form, rounded, samples, dtype)
            assert not value_N.any() and not gradient_ND.any(), form


def test_means_over_all_outcomes_are_what_is_estimated() -> None:
    rows = list(_outcomes.averages(seed=1))
    assert len(rows) == 16
    for row in rows:
        assert row.times <= 4.0, row
        assert row.size > 0.05, "there is something to estimate"


def test_statistics_are_those_of_the_definitions() -> None:
    for row in _outcomes.statistics(seed=1):
        assert row.times <= 8.0, row


def test_nothing_to_train_on_gives_exactly_nothing() -> None:
    rows = list(_outcomes.nothing())
    assert len(rows) == 11
    assert all(row.error == 0.0 for row in rows), rows


@pytest.mark.parametrize("name", DIVERGENCES)
def test_the_plain_form_of_narrow_logits_is_computed_in_float32(name: str) -> None:
    """In bfloat16 itself skew_kl was wrong by all of its value where the sides disagree, and a KL by 1%."""
    student = torch.tensor([[0.0, -40.0, 3.0], [1.0, 2.0, -1.0]])
    teacher = torch.tensor([[-40.0, 0.0, 1.0], [2.0, -1.0, 0.5]])
    expected = divergence(name, student, teacher, beta=0.9 if DIVERGENCES[name].ends else 0.5)
    for kinds in ((torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16), (torch.float16, torch.float32)):
        sides = (side.to(kind) for side, kind in zip((student, teacher), kinds, strict=True))
        ours = divergence(name, *sides, beta=0.9 if DIVERGENCES[name].ends else 0.5)
        for part, exact in zip(ours, expected, strict=True):
            assert part.dtype == torch.float32
            assert torch.equal(part, exact)


def wrong_by(share: float) -> Callable[..., Any]:
    return lambda *arguments, **settings: tuple((1 + share) * part for part in divergence(*arguments, **settings))


def test_an_error_of_a_ten_thousandth_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit is not satisfied with anything."""
    form: Form = PLAIN[0]
    case: Case = CASES["ordinary"]
    monkeypatch.setattr(estimators, "divergence", wrong_by(1e-4))
    rows = list(estimators.compared(form, case, torch.float32, draws=2))
    assert max(row.times for row in rows) > estimators.LIMIT
    monkeypatch.setattr(estimators, "divergence", wrong_by(float("nan")))
    rows = list(estimators.compared(form, case, torch.float32, draws=2))
    assert max(row.times for row in rows) == float("inf")
