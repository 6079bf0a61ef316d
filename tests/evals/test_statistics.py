"""Scores and paired tests against scipy, known values, and simulated coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from evals.statistics import (
    mcnemar,
    non_inferiority,
    paired_bootstrap,
    paired_values,
    ratio_of,
    recovered,
    score_of,
    wilson,
)
from recovery.errors import RecoveryError
from recovery.types import Item, Score, SuiteResult


def test_plain_score_is_the_standard_error_of_the_mean() -> None:
    values = [0.0, 1.0, 1.0, 0.5, 0.25]
    score = score_of(values)
    assert score == Score(pytest.approx(0.55), pytest.approx(stats.sem(values)), 5)


def test_clusters_of_one_change_nothing() -> None:
    values = [0.0, 1.0, 1.0, 0.0]
    assert score_of(values, ["a", "b", "c", "d"]) == score_of(values)
    assert score_of(values, ["", "", "", ""]) == score_of(values)


def test_clustered_error_by_hand() -> None:
    # mean 0.5; cluster sums of deviations: a: +0.5 +0.5 = 1, b: -0.5 -0.5 = -1; G/(G-1) = 2; sqrt(2 * 2) / 4
    score = score_of([1, 1, 0, 0], ["a", "a", "b", "b"])
    assert score.stderr == pytest.approx(0.5)
    assert score.stderr > score_of([1, 1, 0, 0]).stderr


def test_clustered_error_is_right_on_average() -> None:
    draw = np.random.default_rng(0)
    groups = [str(i // 5) for i in range(200)]
    means, errors = [], []
    for _ in range(400):
        shared = np.repeat(draw.normal(size=40), 5)
        score = score_of(shared + draw.normal(size=200), groups)
        means.append(score.value)
        errors.append(score.stderr)
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.1)


def test_ends_of_score_of() -> None:
    assert score_of([0.25]) == Score(0.25, 0.0, 1)
    assert score_of([0.0, 1.0], ["a", "a"]).stderr == pytest.approx(0.5)
    with pytest.raises(RecoveryError, match="at least one item"):
        score_of([])
    with pytest.raises(RecoveryError, match="not finite"):
        score_of([0.1, math.nan])
    with pytest.raises(RecoveryError, match="group names"):
        score_of([0.1, 0.2], ["a"])


def test_ratio_of_is_the_pooled_ratio_with_the_jackknifes_error() -> None:
    draw = np.random.default_rng(1)
    sizes = draw.integers(100, 4000, 60).astype(float)
    bits = sizes * draw.normal(2.0, 0.2, 60)
    score = ratio_of(bits, sizes)
    left_out = [(bits.sum() - b) / (sizes.sum() - s) for b, s in zip(bits, sizes, strict=True)]
    jackknife = math.sqrt(59 / 60 * sum((x - np.mean(left_out)) ** 2 for x in left_out))
    assert score.value == pytest.approx(bits.sum() / sizes.sum())
    assert score.stderr == pytest.approx(jackknife, rel=0.05)
    assert score.n == 60


def test_wilson_known_values() -> None:
    low, high = wilson(0, 10)
    assert (low, high) == (pytest.approx(0.0, abs=1e-12), pytest.approx(0.2775, abs=5e-4))
    low, high = wilson(5, 10)
    assert (low, high) == (pytest.approx(0.2366, abs=5e-4), pytest.approx(0.7634, abs=5e-4))
    with pytest.raises(RecoveryError, match="proportion"):
        wilson(11, 10)


def test_mcnemar_counts_only_what_differs() -> None:
    first = [1] * 10 + [0] * 2 + [1] * 50 + [0] * 30
    second = [0] * 10 + [1] * 2 + [1] * 50 + [0] * 30
    result = mcnemar(first, second)
    assert (result.only_first, result.only_second) == (10, 2)
    # two-sided exact: 2 * P(X <= 2), X ~ Binomial(12, 1/2) = 2 * (1 + 12 + 66) / 4096
    assert result.p_value == pytest.approx(2 * 79 / 4096)
    assert mcnemar([1, 0], [1, 0]).p_value == 1.0
    with pytest.raises(RecoveryError, match="bootstrap"):
        mcnemar([0.5], [1])
    with pytest.raises(RecoveryError, match="same items"):
        mcnemar([1, 0], [1])


def test_bootstrap_agrees_with_the_normal_interval() -> None:
    draw = np.random.default_rng(2)
    first = draw.binomial(1, 0.7, 600)
    second = np.where(draw.random(600) < 0.2, 1 - first, first)
    result = paired_bootstrap(first, second, seed=3)
    half = stats.norm.ppf(0.975) * stats.sem(second - first)
    assert result.value == pytest.approx((second - first).mean())
    assert result.low == pytest.approx(result.value - half, abs=0.004)
    assert result.high == pytest.approx(result.value + half, abs=0.004)
    assert result == paired_bootstrap(first, second, seed=3)


def test_bootstrap_of_whole_clusters_is_wider_where_clusters_agree() -> None:
    draw = np.random.default_rng(4)
    shift = np.repeat(draw.normal(0.1, 0.3, 30), 10)
    zeros, groups = np.zeros(300), [str(i // 10) for i in range(300)]
    plain, clustered = paired_bootstrap(zeros, shift), paired_bootstrap(zeros, shift, groups)
    assert clustered.high - clustered.low > 2 * (plain.high - plain.low)
    assert clustered.value == pytest.approx(plain.value)


def test_bootstrap_of_identical_models_has_no_width() -> None:
    result = paired_bootstrap([1, 0, 1], [1, 0, 1])
    assert (result.value, result.low, result.high) == (0.0, 0.0, 0.0)


def verdicts(draw: np.random.Generator, base: float, student: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Correlated verdicts: one latent ease an item, so that mostly the same items fail."""
    ease = draw.random(n)
    noise = draw.normal(0, 0.02, n)
    return (ease < base).astype(float), (ease + noise < student).astype(float)


def test_non_inferiority_accepts_the_base_itself() -> None:
    base, _ = verdicts(np.random.default_rng(5), 0.95, 0.95, 1000)
    result = non_inferiority(base, base)
    assert result.recovered
    assert result.ratio == 1.0
    # d_i = 0.01 * base_i: the bound is 0.01 * (mean - z * sem)
    assert result.bound == pytest.approx(0.01 * (base.mean() - stats.norm.ppf(0.95) * stats.sem(base)))


def test_non_inferiority_by_hand() -> None:
    base = np.ones(1000)
    student = np.concatenate([np.ones(985), np.zeros(15)])
    result = non_inferiority(base, student, until=0.99)
    assert not result.recovered  # the estimate, 0.985, falls short, though the evidence would do
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


def test_an_exact_tie_with_the_wanted_share_counts() -> None:
    base = np.ones(1000)
    student = np.concatenate([np.ones(990), np.zeros(10)])
    assert non_inferiority(base, student, until=0.99).recovered


def test_non_inferiority_refuses_too_little() -> None:
    with pytest.raises(RecoveryError, match="at least 1000"):
        non_inferiority([1] * 999, [1] * 999)
    with pytest.raises(RecoveryError, match="nothing to recover"):
        non_inferiority([0] * 1000, [1] * 1000)


def test_level_of_the_evidence_by_simulation() -> None:
    """At the edge of the margin (true student = until * base - margin) the bound exceeds -margin in 5% of samples."""
    draw = np.random.default_rng(7)
    base_rate, until, margin = 0.9, 0.99, 0.02
    hits = sum(
        non_inferiority(*verdicts(draw, base_rate, until * base_rate - margin, 1000), until=until).bound > -margin
        for _ in range(2000)
    )
    assert hits / 2000 == pytest.approx(0.05, abs=0.02)


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
