"""Agreement against published values, and the interval of a share."""

from __future__ import annotations

import math
import random

import pytest

from db.agreement import equal_pairs, interval, krippendorff_alpha, score_interval, wilson

# The example of Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011), part C: four observers, twelve
# units, with missing data; 0 stands for no judgement.
OBSERVERS = (
    (1, 2, 3, 3, 2, 1, 4, 1, 2, 0, 0, 0),
    (1, 2, 3, 3, 2, 2, 4, 1, 2, 5, 0, 3),
    (0, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, 0),
    (1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, 0),
)
UNITS = [[value for value in unit if value] for unit in zip(*OBSERVERS, strict=True)]


def nominal(one: object, other: object) -> float:
    """The distance of two categories, of which the published examples are."""
    return float(one != other)


def test_alpha_is_that_of_the_published_example() -> None:
    assert krippendorff_alpha(UNITS, nominal) == pytest.approx(0.743, abs=5e-4)
    assert krippendorff_alpha(UNITS, interval) == pytest.approx(0.849, abs=5e-4)


def test_alpha_of_two_observers_with_two_categories() -> None:
    """Part A of the same paper: ten units, alpha = 0.095."""
    one, two = "0100000010", "1110010000"
    assert krippendorff_alpha(zip(one, two, strict=True), nominal) == pytest.approx(0.095, abs=5e-4)


def test_alpha_is_undefined_without_pairs_or_without_any_difference() -> None:
    assert krippendorff_alpha([], interval) is None
    assert krippendorff_alpha([[1], [0], []], interval) is None
    assert krippendorff_alpha([[1, 1], [1, 1]], interval) is None
    assert krippendorff_alpha([[1, 1], [0, 0]], interval) == 1
    assert (krippendorff_alpha([[1, 0], [0, 1]], interval) or 0) < 0


def test_alpha_of_chance_is_near_zero() -> None:
    dice = random.Random(0)
    units = [[dice.choice((0.0, 0.5, 1.0)) for _ in range(3)] for _ in range(4000)]
    assert krippendorff_alpha(units, interval) == pytest.approx(0, abs=0.03)


def test_equal_pairs_are_counted_over_all_reviewers() -> None:
    assert equal_pairs([[1, 1, 0], [0], [1, 1]]) == (2, 4)


def test_wilson_is_the_published_interval() -> None:
    """Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3."""
    for share, n, low, high in ((81 / 263, 263, 0.2553, 0.3662), (15 / 148, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611)):
        assert wilson(share, n) == pytest.approx((low, high), abs=6e-5)
    assert wilson(1 / 29, 29) == pytest.approx((0.0061, 0.1718), abs=6e-5)
    with pytest.raises(ValueError, match="at least one item"):
        wilson(0.5, 0)


def test_the_interval_of_a_score_counts_the_items_that_its_standard_error_stands_for() -> None:
    plain = math.sqrt(0.9 * 0.1 / 300)
    assert score_interval(0.9, plain, 300) == pytest.approx(wilson(0.9, 300))
    assert score_interval(0.9, 2 * plain, 300) == pytest.approx(wilson(0.9, 75)), "items that belong together"
    assert score_interval(1.0, 0.0, 60) == wilson(1.0, 60) and wilson(1.0, 60)[0] < 0.95


def test_wilson_with_ties_covers_at_least_as_often_as_stated() -> None:
    dice, n, truth, inside = random.Random(1), 40, 0.45, 0
    for _ in range(2000):
        mean = math.fsum(dice.choices((0, 0.5, 1), (0.4, 0.3, 0.3), k=n)) / n
        low, high = wilson(mean, n)
        inside += low <= truth <= high
    assert inside / 2000 >= 0.95
