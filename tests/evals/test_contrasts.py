"""Contrasts against published intervals and simulated coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from evals.contrasts import independent_contrast, paired_contrast, ratio_contrast
from evals.statistics import score_of
from recovery.errors import RecoveryError
from recovery.types import Score


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


def test_a_ratio_of_means_by_fieller() -> None:
    draw = np.random.default_rng(5)
    second = 2 + draw.normal(size=60)
    first = 0.8 * second + 0.3 * draw.normal(size=60)
    groups = [str(at // 2) for at in range(60)]
    found = ratio_contrast(first, second, groups, factor=0.6, alpha=0.05)
    assert found is not None and (found.n, found.degrees) == (60, 29.0)
    assert found.value + 0.6 == pytest.approx(first.mean() / second.mean())
    # a limit is the ratio that is just not rejected
    for limit in (found.low + 0.6, found.high + 0.6):
        at = ratio_contrast(first, second, groups, factor=limit, alpha=0.05)
        assert at is not None and abs(at.statistic) == pytest.approx(stats.t.ppf(0.95, 29))
        assert min(at.p_below, 1 - at.p_below) == pytest.approx(0.05)
    # units do not matter, and without a mean above 0 there is nothing to say
    scaled = ratio_contrast(5 * first, 5 * second, groups, factor=0.6)
    assert scaled is not None and (scaled.value, scaled.low) == (pytest.approx(found.value), pytest.approx(found.low))
    assert ratio_contrast(first, second - 2, groups, factor=0.6) is None
    assert ratio_contrast(first, -second, groups, factor=0.6) is None
    # of a single page each question counts by itself
    alone, apart = (ratio_contrast(first, second, names, factor=0.6) for names in (["one"] * 60, [""] * 60))
    assert alone is not None and apart is not None and alone.degrees == 59
    assert alone.low == pytest.approx(apart.low) and alone.statistic == pytest.approx(apart.statistic)


def test_contrasts_refuse_what_is_no_share() -> None:
    with pytest.raises(RecoveryError, match="score of 12.5 cannot"):
        paired_contrast([12.5], [1])
    with pytest.raises(RecoveryError, match="between 0 and 1"):
        independent_contrast(Score(0.5, 0.1, 10), Score(-0.5, 0.1, 10))
    with pytest.raises(RecoveryError, match="at least one item"):
        independent_contrast(Score(0.5, 0.0, 0))
    with pytest.raises(RecoveryError, match="alpha"):
        paired_contrast([1, 0], [1, 0], alpha=0.5)


def test_the_number_of_more_items_by_hand() -> None:
    result = paired_contrast([1] * 45 + [0] * 5, [0] * 50, factor=0.0, shift=0.85)
    # n grows by (1.645/z + 0.842 s/0.05)^2: z = 0.05 / sqrt(0.85 * 0.15 / 50) = 0.990, s = sqrt(0.9 * 0.1 / 49)
    assert result.more() == pytest.approx(50 * (1.6449 / 0.9901 + 0.8416 * 0.04286 / 0.05) ** 2 - 50, abs=1.5)
    assert paired_contrast([1] * 10, [1] * 10).more() is None
