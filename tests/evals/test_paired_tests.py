"""Paired tests against scipy, values by hand and simulated levels."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from evals.paired_tests import mcnemar, non_inferiority, paired_difference, paired_values, recovered
from evals.statistics import score_of
from recovery.errors import RecoveryError
from recovery.types import Item, SuiteResult


def test_mcnemar_counts_only_what_differs() -> None:
    first = [1] * 10 + [0] * 2 + [1] * 50 + [0] * 30
    second = [0] * 10 + [1] * 2 + [1] * 50 + [0] * 30
    result = mcnemar(first, second)
    assert (result.only_first, result.only_second) == (10, 2)
    # two-sided exact: 2 * P(X <= 2), X ~ Binomial(12, 1/2) = 2 * (1 + 12 + 66) / 4096
    assert result.p_value == pytest.approx(2 * 79 / 4096)
    assert mcnemar([1, 0], [1, 0]).p_value == 1.0
    with pytest.raises(RecoveryError, match="paired_difference"):
        mcnemar([0.5], [1])
    with pytest.raises(RecoveryError, match="same items"):
        mcnemar([1, 0], [1])


def test_an_interval_of_many_items_agrees_with_the_normal_one() -> None:
    draw = np.random.default_rng(2)
    first = draw.binomial(1, 0.7, 600)
    second = np.where(draw.random(600) < 0.2, 1 - first, first)
    result = paired_difference(first, second)
    half = stats.norm.ppf(0.975) * stats.sem(second - first)
    assert result.value == pytest.approx((second - first).mean())
    assert result.low == pytest.approx(result.value - half, abs=0.004)
    assert result.high == pytest.approx(result.value + half, abs=0.004)


def test_an_interval_of_whole_clusters_is_wider_where_clusters_agree() -> None:
    draw = np.random.default_rng(4)
    graded = np.repeat(draw.normal(0.1, 0.3, 30), 10)
    zeros, groups = np.zeros(300), [str(i // 10) for i in range(300)]
    for shift in (graded, (graded > 0).astype(float)):
        plain, clustered = paired_difference(zeros, shift), paired_difference(zeros, shift, groups)
        assert clustered.high - clustered.low > 2 * (plain.high - plain.low)
        assert clustered.value == pytest.approx(plain.value)


def test_graded_scores_outside_0_and_1_have_students_interval() -> None:
    first, second = [0.0, 2.0, 5.0, 1.0], [1.0, 2.0, 7.0, 1.5]
    result = paired_difference(first, second)
    expected = stats.t.interval(0.95, 3, 0.875, stats.sem([1.0, 0.0, 2.0, 0.5]))
    assert (result.low, result.high) == pytest.approx(expected)


def test_an_interval_has_a_width_where_no_item_differs() -> None:
    result = paired_difference([1, 0, 1] * 100, [1, 0, 1] * 100)
    assert result.value == 0.0
    assert result.low == pytest.approx(-result.high) and 0.01 < result.high < 0.02


def test_non_inferiority_accepts_the_base_itself() -> None:
    base = (np.random.default_rng(5).random(1000) < 0.95).astype(float)
    result = non_inferiority(base, base)
    assert result.recovered
    assert result.ratio == 1.0
    # d_i = 0.01 * base_i: the bound is 0.01 * (mean - z * sem)
    assert result.bound == pytest.approx(0.01 * (base.mean() - stats.norm.ppf(0.95) * stats.sem(base)))


def test_non_inferiority_by_hand() -> None:
    base = np.ones(1000)
    student = np.concatenate([np.ones(985), np.zeros(15)])
    result = non_inferiority(base, student, until=0.99)
    assert not result.recovered  # the estimate, 0.985, is too low, although the bound is sufficient
    assert result.bound == pytest.approx(-0.005 - stats.norm.ppf(0.95) * stats.sem(student))
    assert result.bound > -0.02
    assert non_inferiority(base, student, until=0.98).recovered
    assert "0.9850 of base" in result.reason


def test_non_inferiority_needs_evidence_too() -> None:
    draw = np.random.default_rng(6)
    base, student = draw.binomial(1, 0.5, 1000), draw.binomial(1, 0.5, 1000)  # independent: a wide error
    student[: int(base.sum() - student.sum()) if base.sum() > student.sum() else 0] = 1
    result = non_inferiority(base, student)
    assert result.ratio >= 0.99
    assert result.bound < -0.02
    assert not result.recovered


def test_non_inferiority_refuses_too_little() -> None:
    with pytest.raises(RecoveryError, match="at least 1000"):
        non_inferiority([1] * 999, [1] * 999)
    with pytest.raises(RecoveryError, match="nothing to recover"):
        non_inferiority([0] * 1000, [1] * 1000)


def result_of(scores: dict[str, float], **extra: dict) -> SuiteResult:
    items = tuple(Item(id, "", "", score, group=id[0], extra=extra.get(id, {})) for id, score in scores.items())
    return SuiteResult("suite", score_of([item.score for item in items]), items)


def test_results_are_paired_by_id_and_headline_items_only() -> None:
    first = result_of({"a1": 1, "b1": 0, "r1": 1}, r1={"headline": False})
    second = result_of({"b1": 1, "r1": 0, "a1": 0}, r1={"headline": False})
    assert paired_values(first, second) == ([1, 0], [0, 1], ["a", "b"])
    with pytest.raises(RecoveryError, match="b1"):
        paired_values(first, result_of({"a1": 1}))


def test_recovered_over_suite_results() -> None:
    base = result_of({f"p{i}": 1.0 for i in range(1000)})
    student = result_of({f"p{i}": float(i % 100 != 0) for i in range(1000)})
    assert recovered(base, student).recovered
    assert not recovered(base, student, until=0.995).recovered
