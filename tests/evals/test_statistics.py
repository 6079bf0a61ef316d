"""Scores and paired tests against scipy, known values and simulated coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from evals.statistics import (
    effect_in_words,
    holm,
    independent_contrast,
    mcnemar,
    minimum_detectable_effect,
    non_inferiority,
    paired_contrast,
    paired_difference,
    paired_values,
    ratio_of,
    recovered,
    score_of,
    spread,
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


def verdicts(draw: np.random.Generator, base: float, student: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return correlated verdicts: each item has a latent ease, so that mostly the same items fail."""
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


def test_an_exact_tie_with_the_wanted_share_counts() -> None:
    base = np.ones(1000)
    student = np.concatenate([np.ones(990), np.zeros(10)])
    assert non_inferiority(base, student, until=0.99).recovered


def test_the_strict_rule_shows_the_share_itself_over_all_tests() -> None:
    base, student = np.ones(1000), np.concatenate([np.ones(995), np.zeros(5)])
    once, often = (non_inferiority(base, student, looks=looks) for looks in (1, 20))
    for result, level in ((once, 0.05), (often, 0.0025)):
        z2 = stats.norm.isf(level) ** 2  # base is right on all items: Wilson's bound of the student's score
        wilson = (0.995 + z2 / 2000 - math.sqrt(z2 * (0.995 * 0.005 + z2 / 4000) / 1000)) / (1 + z2 / 1000)
        assert result.bound == pytest.approx(wilson - 0.99, abs=1e-6)
    assert once.bound > often.bound
    assert (once.recovered, often.recovered) == (once.bound >= 0, often.bound >= 0) == (False, False)
    assert "must reach 0; one of 20 tests" in often.reason and "lower 0.9975 bound" in often.reason
    worse = non_inferiority(base, np.concatenate([np.ones(989), np.zeros(11)]), until=0.99, margin=0.5, looks=1)
    assert not worse.recovered, "there is no margin"


def test_the_strict_rule_is_wrong_in_one_run_of_twenty_at_most() -> None:
    """A student at the wanted share exactly, judged four times: 5% of runs, or fewer, call it above."""
    draw, looks, runs = np.random.default_rng(4), 4, 150
    hits = 0
    for _ in range(runs):
        tests = (verdicts(draw, 0.9, 0.99 * 0.9, 1000) for _ in range(looks))
        hits += any(non_inferiority(*test, until=0.99, looks=looks).recovered for test in tests)
    assert 0 < hits / runs < 0.07


def test_non_inferiority_refuses_too_little() -> None:
    with pytest.raises(RecoveryError, match="at least 1000"):
        non_inferiority([1] * 999, [1] * 999)
    with pytest.raises(RecoveryError, match="nothing to recover"):
        non_inferiority([0] * 1000, [1] * 1000)


def test_level_of_the_evidence_by_simulation() -> None:
    """At the margin (true student = until * base - margin) the bound exceeds -margin in 5% of samples."""
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


def test_minimum_detectable_effect_by_hand() -> None:
    # (1.959964 + 0.841621) * sqrt(2 * 0.25 * 0.5 / 300) = 2.801585 * 0.0288675
    assert minimum_detectable_effect(300) == pytest.approx(0.080875, abs=1e-5)
    assert minimum_detectable_effect(1200) == pytest.approx(minimum_detectable_effect(300) / 2)
    assert minimum_detectable_effect(300, correlation=0.875) == pytest.approx(minimum_detectable_effect(300) / 2)
    assert effect_in_words(300) == "with 300 prompts you can see a difference of 8 points"
    assert effect_in_words(300, p=0.9) == "with 300 prompts you can see a difference of 5 points"
    assert effect_in_words(50_000, p=0.9) == "with 50000 prompts you can see a difference of 0.4 points"
    assert effect_in_words(1, items="probes") == "with 1 probes you can see no difference, however large: take more"
    with pytest.raises(RecoveryError, match="at least one"):
        minimum_detectable_effect(0)
    for wrong in ({"p": 1.0}, {"correlation": 1.0}, {"power": 0.0}, {"alpha": math.nan}):
        with pytest.raises(RecoveryError, match="between 0 and 1"):
            minimum_detectable_effect(10, **wrong)


def test_minimum_detectable_effect_is_found_as_often_as_it_says() -> None:
    draw = np.random.default_rng(8)
    n, p, correlation = 400, 0.5, 0.6
    effect = minimum_detectable_effect(n, p=p, correlation=correlation)
    # verdicts of mean p ± effect/2 that differ on 2 p (1 - p) (1 - correlation) of all items
    differ = 2 * p * (1 - p) * (1 - correlation)
    worse, better = (differ - effect) / 2, (differ + effect) / 2
    difference = draw.choice([-1.0, 0.0, 1.0], p=[worse, 1 - worse - better, better], size=(2000, n))
    z = difference.mean(axis=1) / stats.sem(difference, axis=1)
    assert np.mean(z > stats.norm.ppf(0.975)) == pytest.approx(0.8, abs=0.03)


def test_holm_by_hand() -> None:
    # sorted 0.005, 0.01, 0.03, 0.04 -> times 4, 3, 2, 1 = 0.02, 0.03, 0.06, 0.04 -> made monotone: 0.06 for the last
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.04]) == [0.04]
    assert holm([]) == []
    with pytest.raises(RecoveryError, match="between 0 and 1"):
        holm([0.5, math.nan])


def test_holm_keeps_the_familywise_level() -> None:
    draw = np.random.default_rng(9)
    p_values = draw.random((2000, 6))
    p_values[:, :2] /= 1e4  # two false hypotheses, always rejected; the four true ones may be rejected wrongly
    wrong = [any(p <= 0.05 for p in holm(row)[2:]) for row in p_values.tolist()]
    assert np.mean(wrong) == pytest.approx(0.05, abs=0.015)


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a proportion."""
    interval = stats.binomtest(successes, n).proportion_ci(method="wilson")
    return interval.low, interval.high


def tango(b: int, c: int, n: int, delta: float) -> float:
    """Return the score statistic of a paired difference, from the closed form in Tango (1998)."""
    linear, constant = -b - c + (2 * n - b + c) * delta, -c * delta * (1 - delta)
    likeliest = (math.sqrt(linear**2 - 8 * n * constant) - linear) / (4 * n)
    return (b - c - n * delta) / math.sqrt(n * (2 * likeliest + delta * (1 - delta)))


@pytest.mark.parametrize(
    ("a", "b", "c", "d"), [(1, 1, 7, 12), (36, 12, 2, 0), (50, 0, 3, 40), (20, 0, 0, 20), (30, 0, 0, 0)]
)
def test_paired_contrast_is_tangos_interval(a: int, b: int, c: int, d: int) -> None:
    n, z = a + b + c + d, stats.norm.ppf(0.975)
    result = paired_contrast([1] * (a + b) + [0] * (c + d), [1] * a + [0] * b + [1] * c + [0] * d, alpha=0.025)
    assert result.value == pytest.approx((b - c) / n)
    assert tango(b, c, n, result.low) == pytest.approx(z, abs=1e-5)
    assert tango(b, c, n, result.high) == pytest.approx(-z, abs=1e-5)
    assert result.statistic == pytest.approx((b - c) / math.sqrt(b + c) if b + c else 0.0)  # McNemar's


def test_paired_contrast_published_interval() -> None:
    # airway reactivity before and after a transplantation, as in Fagerland, Lydersen & Laake (2014): -0.517 to -0.026
    result = paired_contrast([1] * 2 + [0] * 19, [1, 0] + [1] * 7 + [0] * 12, alpha=0.025)
    assert (result.low, result.high) == (pytest.approx(-0.517, abs=5e-4), pytest.approx(-0.026, abs=5e-4))


def test_paired_contrast_with_a_number_is_wilsons_interval() -> None:
    for right in (0, 1, 17, 20):
        values = [1] * right + [0] * (20 - right)
        result = paired_contrast(values, [0] * 20, factor=0.0, shift=0.3, alpha=0.025)
        low, high = wilson(right, 20)
        assert (result.low, result.high) == (pytest.approx(low - 0.3, abs=1e-6), pytest.approx(high - 0.3, abs=1e-6))
        assert result.statistic == pytest.approx((right / 20 - 0.3) / math.sqrt(0.3 * 0.7 / 20))


def test_paired_contrast_has_width_where_nothing_differs() -> None:
    result = paired_contrast([1] * 20, [1] * 20, factor=0.98)
    assert result.stderr == pytest.approx(0.0)
    assert result.low < 0  # 20 right answers do not show 98%
    assert paired_contrast([1] * 200, [1] * 200, factor=0.98).low > 0
    # no failures: the score test requires 0.02 / sqrt(0.02 * 0.98 / n) > 1.645, that is n > 132.6
    assert [paired_contrast([1] * n, [1] * n, factor=0.98).low > 0 for n in (132, 133)] == [False, True]
    clustered = paired_contrast([1] * 200, [1] * 200, [str(i // 7) for i in range(200)], factor=0.98)
    assert clustered.statistic == pytest.approx(0.02 / math.sqrt(0.02 * 0.98 / 200))  # no design effect of rounding
    assert independent_contrast(score_of([0.7] * 30), shift=0.6).low < 0


def test_paired_contrast_of_many_graded_scores_is_the_normal_interval() -> None:
    draw = np.random.default_rng(10)
    second = draw.uniform(0.3, 0.9, 3000)
    first = np.clip(second + draw.normal(-0.01, 0.1, 3000), 0, 1)
    result = paired_contrast(first, second, factor=0.99)
    difference = first - 0.99 * second
    half = stats.norm.ppf(0.95) * stats.sem(difference)
    assert result.value == pytest.approx(difference.mean())
    assert (result.low, result.high) == pytest.approx((difference.mean() - half, difference.mean() + half), abs=2e-4)


def test_paired_contrast_is_wider_where_clusters_agree() -> None:
    draw = np.random.default_rng(11)
    groups = [str(i // 10) for i in range(300)]
    second = np.ones(300)
    first = np.repeat((draw.random(30) < 0.9).astype(float), 10)
    plain, clustered = (paired_contrast(first, second, g, factor=0.95) for g in (None, groups))
    assert clustered.degrees == 29
    assert clustered.high - clustered.low > 2.5 * (plain.high - plain.low)
    assert paired_contrast(first, second, ["one"] * 300, factor=0.95).low == pytest.approx(plain.low)


def at_the_bound(draw: np.random.Generator, base: float, factor: float, swapped: float, n: int) -> tuple:
    """Return verdicts of a student with true score factor·base; a share ``swapped`` only the student has right."""
    ease = draw.random(n)
    lost = (1 - factor) * base + swapped
    student = (ease < base - lost) | ((ease >= base) & (ease < base + swapped))
    return student.astype(float), (ease < base).astype(float)


@pytest.mark.parametrize(
    ("base", "factor", "swapped", "n"), [(0.95, 0.98, 0.02, 150), (0.9, 0.95, 0.0, 200), (1.0, 0.95, 0.0, 150)]
)
def test_bounds_are_wrong_as_often_as_they_say(base: float, factor: float, swapped: float, n: int) -> None:
    draw = np.random.default_rng(12)
    p_values = [
        paired_contrast(*at_the_bound(draw, base, factor, swapped, n), factor=factor).p_below for _ in range(400)
    ]
    assert np.mean([p >= 0.95 for p in p_values]) == pytest.approx(0.05, abs=0.03)
    assert np.mean([p <= 0.05 for p in p_values]) == pytest.approx(0.05, abs=0.04)


def test_clustered_bounds_are_wrong_as_often_as_they_say() -> None:
    draw = np.random.default_rng(13)
    groups = [str(i // 5) for i in range(300)]
    p_values = []
    for _ in range(300):
        base = draw.random(300) < 0.9
        student = base & (draw.random(300) >= np.repeat(draw.beta(0.2, 3.8, 60), 5))  # whole documents are lost
        p_values.append(paired_contrast(student, base, groups, factor=0.95).p_below)
    assert np.mean([p >= 0.95 for p in p_values]) == pytest.approx(0.05, abs=0.03)
    assert np.mean([p <= 0.05 for p in p_values]) == pytest.approx(0.05, abs=0.03)


def test_independent_contrast_known_values() -> None:
    # Newcombe (1998), example a: 56/70 - 48/80, method 10: 0.0524 to 0.3339
    one, two = score_of([1] * 56 + [0] * 14), score_of([1] * 48 + [0] * 32)
    result = independent_contrast(one, two, alpha=0.025)
    assert (result.low, result.high) == (pytest.approx(0.0524, abs=5e-5), pytest.approx(0.3339, abs=5e-5))
    alone = independent_contrast(one, shift=0.75, alpha=0.025)
    assert (alone.low + 0.75, alone.high + 0.75) == pytest.approx(wilson(56, 70))
    assert alone.statistic == pytest.approx(0.05 / math.sqrt(0.75 * 0.25 / 70))
    assert independent_contrast(Score(0.9, 0.02, 500), Score(0.9, 0.02, 500)).statistic == 0.0
    # a clustered score counts as fewer trials
    wide = independent_contrast(Score(0.9, 0.03, 500), shift=0.85)
    assert wide.low < 0 < independent_contrast(Score(0.9, 0.01, 500), shift=0.85).low


def test_contrasts_refuse_what_is_no_share() -> None:
    with pytest.raises(RecoveryError, match="score of 12.5 cannot"):
        paired_contrast([12.5], [1])
    with pytest.raises(RecoveryError, match="between 0 and 1"):
        independent_contrast(Score(0.5, 0.1, 10), Score(-0.5, 0.1, 10))
    with pytest.raises(RecoveryError, match="at least one item"):
        independent_contrast(Score(0.5, 0.0, 0))
    with pytest.raises(RecoveryError, match="alpha"):
        paired_contrast([1, 0], [1, 0], alpha=0.5)


def test_more_items_as_asked_decide_it_four_times_in_five() -> None:
    draw = np.random.default_rng(14)
    result = paired_contrast([1] * 45 + [0] * 5, [0] * 50, factor=0.0, shift=0.85)
    # n grows by (1.645/z + 0.842 s/0.05)^2: z = 0.05 / sqrt(0.85 * 0.15 / 50) = 0.990, s = sqrt(0.9 * 0.1 / 49)
    wanted = result.more()
    assert wanted == pytest.approx(50 * (1.6449 / 0.9901 + 0.8416 * 0.04286 / 0.05) ** 2 - 50, abs=1.5)
    n = 50 + (wanted or 0)
    rights = draw.binomial(n, 0.9, 2000)
    assert np.mean([(r / n - 0.85) / math.sqrt(0.85 * 0.15 / n) > 1.6449 for r in rights]) == pytest.approx(
        0.8, abs=0.04
    )
    assert paired_contrast([1] * 10, [1] * 10).more() is None


def test_the_spread_is_mean_and_standard_deviation() -> None:
    assert spread([1.0, 2.0, 6.0]) == (3.0, pytest.approx(7**0.5))
    assert spread([4.0]) == (4.0, 0.0)
