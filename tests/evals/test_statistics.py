"""Scores, detectable effects and Holm's correction against scipy, known values and simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from evals.statistics import effect_in_words, holm, minimum_detectable_effect, ratio_of, score_of, spread
from recovery.errors import RecoveryError
from recovery.types import Score


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
    assert score_of([1, 1, 0, 0], ["a", "a", "b", "b"]).stderr == pytest.approx(0.5)
    # mean 0.5; 0.5 - 0.5 + 0.5 = 0.5, 0.5 - 0.5 = 0, -0.5; G/(G-1) = 3/2; sqrt(3/2 * 1/2) / 6: clusters differ in size
    score = score_of([1, 0, 1, 1, 0, 0], ["a", "a", "a", "b", "b", "c"])
    assert score.stderr == pytest.approx(math.sqrt(3 / 4) / 6)


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


def test_minimum_detectable_effect_by_hand() -> None:
    # (1.959964 + 0.841621) * sqrt(2 * 0.25 * 0.5 / 300) = 2.801585 * 0.0288675
    assert minimum_detectable_effect(300) == pytest.approx(0.080875, abs=1e-5)
    assert minimum_detectable_effect(1200) == pytest.approx(minimum_detectable_effect(300) / 2)
    assert minimum_detectable_effect(300, correlation=0.875) == pytest.approx(minimum_detectable_effect(300) / 2)
    assert effect_in_words(300) == "with 300 prompts you can see a difference of 8 points"
    assert effect_in_words(300, p=0.9) == "with 300 prompts you can see a difference of 5 points"
    assert effect_in_words(300, p=0.0) == effect_in_words(300, p=0.9) == effect_in_words(300, p=1.0)
    assert effect_in_words(50_000, p=0.9) == "with 50000 prompts you can see a difference of 0.4 points"
    assert effect_in_words(1, items="probes") == "with 1 probes you can see no difference, however large: take more"
    with pytest.raises(RecoveryError, match="at least one"):
        minimum_detectable_effect(0)
    for wrong in ({"p": 1.0}, {"correlation": 1.0}, {"power": 0.0}, {"alpha": math.nan}):
        with pytest.raises(RecoveryError, match="between 0 and 1"):
            minimum_detectable_effect(10, **wrong)


def test_holm_by_hand() -> None:
    # sorted 0.005, 0.01, 0.03, 0.04 -> times 4, 3, 2, 1 = 0.02, 0.03, 0.06, 0.04 -> made monotone: 0.06 for the last
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.04]) == [0.04]
    assert holm([]) == []
    with pytest.raises(RecoveryError, match="between 0 and 1"):
        holm([0.5, math.nan])


def test_the_spread_is_mean_and_standard_deviation() -> None:
    assert spread([1.0, 2.0, 6.0]) == (3.0, pytest.approx(7**0.5))
    assert spread([4.0]) == (4.0, 0.0)


def test_the_error_of_a_ratio_of_few_by_hand() -> None:
    # ratio 1; what is left is -1, 1; n/(n-1) = 2; sqrt(2 * 2) / 4
    assert ratio_of([1, 3], [2, 2]) == Score(pytest.approx(1.0), pytest.approx(0.5), 2)


def test_two_seeds_have_a_spread() -> None:
    assert spread([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))
