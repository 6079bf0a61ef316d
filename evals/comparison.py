"""Two checkpoints on the same items: what was lost, what was won, and whether chance explains it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evals.statistics import holm, is_headline, mcnemar, paired_bootstrap, paired_contrast, score_of


@dataclass(frozen=True)
class Judged:
    """One item as a comparison needs it: its score, its cluster, its verdict by instruction type."""

    score: float
    group: str = ""
    verdicts: Mapping[str, bool] | None = None


@dataclass(frozen=True)
class Comparison:
    """second − first on ``n`` items that both answered.

    ``lost`` are items that only the first got right, ``won`` those that only the second did (None for graded scores).
    ``low`` and ``high`` are a 95% paired bootstrap interval, clustered where items have groups; ``p_value`` is exact
    McNemar's for verdicts, that of the clustered score test where verdicts share groups, None for graded scores.
    ``p_adjusted`` is Holm's where several were tested at once.
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
        """Plain values, as they are stored."""
        return asdict(self)


def judged(rows: Iterable[tuple[str, float | None, str, Mapping[str, Any], Any]]) -> dict[str, Judged]:
    """Items as (id, score, group, verdicts, extra) by id; only those that the headline counts."""
    return {
        key: Judged(float(score), group, {name: bool(v) for name, v in verdicts.items()})
        for key, score, group, verdicts, extra in rows
        if score is not None and is_headline(extra)
    }


def compare(name: str, first: Mapping[str, Judged], second: Mapping[str, Judged]) -> Comparison | None:
    """The two on the items that both have; None where there is none."""
    common = [key for key in first if key in second]
    if not common:
        return None
    one, two = [first[key].score for key in common], [second[key].score for key in common]
    return _compared(name, one, two, [first[key].group for key in common])


def by_type(first: Mapping[str, Judged], second: Mapping[str, Judged]) -> list[Comparison]:
    """One comparison for each instruction type, ordered by what was lost; p-values corrected over all (Holm)."""
    types: dict[str, tuple[list[float], list[float]]] = {}
    for key in (key for key in first if key in second):  # in order: the bootstrap's draws depend on it
        one, two = first[key].verdicts or {}, second[key].verdicts or {}
        for verdict in one.keys() & two.keys():
            pair = types.setdefault(verdict.split(" (")[0], ([], []))  # a repeated instruction is numbered
            pair[0].append(float(one[verdict]))
            pair[1].append(float(two[verdict]))
    found = [_compared(name, one, two) for name, (one, two) in sorted(types.items())]
    return sorted(corrected(found), key=lambda c: (c.difference, c.name))


def corrected(found: Sequence[Comparison]) -> list[Comparison]:
    """The same comparisons with Holm's p-values, over those that were tested."""
    tested = [c.p_value for c in found if c.p_value is not None]
    adjusted = iter(holm(tested).adjusted)
    return [Comparison(**(asdict(c) | {"p_adjusted": None if c.p_value is None else next(adjusted)})) for c in found]


def _compared(name: str, one: Sequence[float], two: Sequence[float], groups: Sequence[str] | None = None) -> Comparison:
    difference = paired_bootstrap(one, two, groups)
    before, after = score_of(one).value, score_of(two).value
    numbers = (before, after, difference.value, difference.low, difference.high, difference.n)
    if not set(one) | set(two) <= {0.0, 1.0}:
        return Comparison(name, *numbers)
    test = mcnemar(one, two)
    p_value = test.p_value if not _clustered(groups) else _clustered_p(one, two, groups)
    return Comparison(name, *numbers, test.only_first, test.only_second, p_value)


def _clustered(groups: Sequence[str] | None) -> bool:
    """Whether items share groups: then they are no independent trials, which McNemar's test takes them for."""
    named = [group for group in groups or () if group]
    return len(set(named)) < len(named)


def _clustered_p(one: Sequence[float], two: Sequence[float], groups: Sequence[str] | None) -> float:
    """Two-sided p-value of "no difference" by the clustered score test (evals.statistics.paired_contrast)."""
    below = paired_contrast(two, one, groups).p_below
    return min(1.0, 2 * min(below, 1 - below))
