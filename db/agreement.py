"""Statistics of judgements: agreement between reviewers, and the interval of a share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import permutations
from typing import Any

_Z = 1.959963984540054  # 97.5% quantile of the normal distribution


def interval(one: float, other: float) -> float:
    """Return the distance between two values of an interval scale: their squared difference."""
    return (one - other) ** 2


def krippendorff_alpha(units: Iterable[Sequence[Any]], distance: Callable[[Any, Any], float]) -> float | None:
    """Return the agreement of any number of reviewers: 1 if they agree always, 0 as by chance, below 0 if less often.

    ``units`` are the judgements of each item, by those who judged it; items with fewer than two count for nothing.
    alpha = 1 − D_o/D_e: the mean ``distance`` between two judgements of one item (each item weighted by its number of
    judgements), over that between any two of all n judgements. None if there is no item with two judgements, or all
    judgements are equal. Source: K. Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011).
    """
    paired = [list(unit) for unit in units if len(unit) > 1]
    totals = Counter(value for unit in paired for value in unit)
    n = sum(totals.values())
    if len(totals) < 2:
        return None
    observed = sum(sum(distance(a, b) for a, b in permutations(unit, 2)) / (len(unit) - 1) for unit in paired) / n
    expected = sum(totals[a] * totals[b] * distance(a, b) for a, b in permutations(totals, 2)) / (n * (n - 1))
    return 1 - observed / expected


def equal_pairs(units: Iterable[Sequence[Any]]) -> tuple[int, int]:
    """Return the number of pairs of equal judgements of one item, and the number of all pairs."""
    pairs = [(a == b) for unit in units for i, a in enumerate(unit) for b in unit[i + 1 :]]
    return sum(pairs), len(pairs)


def score_interval(share: float, stderr: float, n: int) -> tuple[float, float]:
    """Return the 95% interval of a score p that is a share: Wilson's for p (1 - p) / stderr² independent items.

    With all items right, or none, the standard error is 0 and cannot show dependent items: all ``n`` count then.
    """
    independent = share * (1 - share) / stderr**2 if stderr > 0 and 0 < share < 1 else n
    return wilson(share, independent)


def wilson(share: float, n: float) -> tuple[float, float]:
    """Return the 95% interval of a share of ``n`` items by Wilson (1927).

    For means of values between 0 and 1 (a tie as one half) it is a little too wide: their variance is at most
    share·(1 − share). Raises ValueError without items.
    """
    if n <= 0:
        raise ValueError("a share needs at least one item")
    middle = share + _Z * _Z / (2 * n)
    half = _Z * math.sqrt(share * (1 - share) / n + _Z * _Z / (4 * n * n))
    denominator = 1 + _Z * _Z / n
    return max(0.0, (middle - half) / denominator), min(1.0, (middle + half) / denominator)
