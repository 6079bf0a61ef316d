"""Paired comparison of two checkpoints on the same items: items lost and gained, with significance tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evals.contrasts import paired_contrast
from evals.paired_tests import mcnemar, paired_difference
from evals.statistics import holm, is_headline, score_of


@dataclass(frozen=True)
class Judged:
    """One item of a comparison: score, cluster, and verdicts by instruction type."""

    score: float
    group: str = ""
    verdicts: Mapping[str, bool] | None = None


@dataclass(frozen=True)
class Comparison:
    """second − first on the ``n`` common items.

    ``lost`` counts the items that only the first got right, ``won`` those that only the second did (None for graded
    scores). ``low`` and ``high`` are the 95% interval of the paired score test, clustered if items have groups.
    ``p_value`` is from the exact McNemar test for verdicts, from the clustered score test if verdicts share groups, and
    None for graded scores. ``p_adjusted`` is corrected by Holm's method if several comparisons were tested.
    """

    name: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    n: int
    lost: int | None = None
    won: int | None = None
    p_value: float | None = None
    p_adjusted: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as stored."""
        return asdict(self)


def judged(rows: Iterable[tuple[str, float | None, str, Mapping[str, Any], Any]]) -> dict[str, Judged]:
    """Return the headline items of (id, score, group, verdicts, extra) rows by id."""
    return {
        key: Judged(float(score), group, {name: bool(v) for name, v in verdicts.items()})
        for key, score, group, verdicts, extra in rows
        if score is not None and is_headline(extra)
    }


def compare(name: str, first: Mapping[str, Judged], second: Mapping[str, Judged]) -> Comparison | None:
    """Compare two checkpoints on their common items; None if there are none."""
    common = [key for key in first if key in second]
    if not common:
        return None
    one, two = [first[key].score for key in common], [second[key].score for key in common]
    return _compared(name, one, two, [first[key].group for key in common])


def by_type(first: Mapping[str, Judged], second: Mapping[str, Judged]) -> list[Comparison]:
    """Compare by instruction type, largest loss first; p-values corrected over all types (Holm)."""
    types: dict[str, tuple[list[float], list[float]]] = {}
    for key in (key for key in first if key in second):
        one, two = first[key].verdicts or {}, second[key].verdicts or {}
        for verdict in one.keys() & two.keys():
            pair = types.setdefault(verdict.split(" (")[0], ([], []))  # a repeated instruction is numbered
            pair[0].append(float(one[verdict]))
            pair[1].append(float(two[verdict]))
    found = [_compared(name, one, two) for name, (one, two) in sorted(types.items())]
    return sorted(corrected(found), key=lambda c: (c.difference, c.name))


def corrected(found: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons with Holm-adjusted p-values, corrected over those that were tested."""
    tested = [c.p_value for c in found if c.p_value is not None]
    adjusted = iter(holm(tested))
    return [Comparison(**(asdict(c) | {"p_adjusted": None if c.p_value is None else next(adjusted)})) for c in found]


def _compared(name: str, one: Sequence[float], two: Sequence[float], groups: Sequence[str] | None = None) -> Comparison:
    difference = paired_difference(one, two, groups)
    before, after = score_of(one).value, score_of(two).value
    numbers = (before, after, difference.value, difference.low, difference.high, difference.n)
    if not set(one) | set(two) <= {0.0, 1.0}:
        return Comparison(name, *numbers)
    test = mcnemar(one, two)
    p_value = test.p_value
    named = [group for group in groups or () if group]
    if len(set(named)) < len(named):  # items that share groups are not independent, as McNemar's test assumes
        below = paired_contrast(two, one, groups).p_below
        p_value = min(1.0, 2 * min(below, 1 - below))
    return Comparison(name, *numbers, test.only_first, test.only_second, p_value)
