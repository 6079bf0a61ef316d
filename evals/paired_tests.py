"""Tests of two models on the same items: McNemar's, the difference with its interval, and non-inferiority.

:func:`recovered` is the rule by which a distillation stops: the student is not worse than a share of the base.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from evals.contrasts import paired_contrast
from evals.statistics import cluster_sums, holm, is_headline, pair, quantile, score_of
from recovery.errors import RecoveryError
from recovery.lazy_import import lazily
from recovery.types import SuiteResult

stats = lazily("scipy.stats")

CONFIDENCE = 0.95  # of the bound that ends a recovery
ENOUGH_TO_DECIDE = 1000  # development prompts


@dataclass(frozen=True)
class McNemar:
    """Items that only the first or only the second model got right, and the two-sided exact p-value."""

    only_first: int
    only_second: int
    p_value: float


@dataclass(frozen=True)
class Difference:
    """second − first on the same ``n`` items: mean, standard error, confidence interval."""

    value: float
    stderr: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class NonInferiority:
    """Result of :func:`non_inferiority`.

    ``bound`` is the lower one-sided confidence bound of mean(student − until·base).
    """

    recovered: bool
    ratio: float
    bound: float
    reason: str


def mcnemar(first: ArrayLike, second: ArrayLike) -> McNemar:
    """Run the exact McNemar test on paired verdicts [n] (0 or 1): a binomial test on the discordant pairs."""
    first_N, second_N = pair(first, second)
    if not np.isin(np.concatenate([first_N, second_N]), (0.0, 1.0)).all():
        raise RecoveryError("McNemar's test takes verdicts of 0 and 1: use paired_difference for graded scores")
    only_first = int(((first_N == 1) & (second_N == 0)).sum())
    only_second = int(((first_N == 0) & (second_N == 1)).sum())
    discordant = only_first + only_second
    p_value = stats.binomtest(min(only_first, only_second), discordant, 0.5).pvalue if discordant else 1.0
    return McNemar(only_first, only_second, float(p_value))


def paired_difference(
    first: ArrayLike, second: ArrayLike, groups: Sequence[str] | None = None, *, confidence: float = 0.95
) -> Difference:
    """Return mean(second − first) over items [n] with its two-sided interval, clustered by ``groups``.

    For scores in [0, 1] the interval is that of :func:`paired_contrast`; for others it is Student's t. A bootstrap
    has no width where no item differs, and would miss a true difference of one item in 100 in 39% of samples.
    """
    first_N, second_N = pair(first, second)
    score, alpha = score_of(second_N - first_N, groups), (1 - confidence) / 2
    if min(first_N.min(), second_N.min()) >= 0 and max(first_N.max(), second_N.max()) <= 1:
        contrast = paired_contrast(second_N, first_N, groups, alpha=alpha)
        return Difference(score.value, score.stderr, contrast.low, contrast.high, score.n)
    half = quantile(1 - alpha, max(1, len(cluster_sums(second_N - first_N, groups)[0]) - 1)) * score.stderr
    return Difference(score.value, score.stderr, score.value - half, score.value + half, score.n)


def non_inferiority(
    base: ArrayLike,
    student: ArrayLike,
    *,
    until: float = 0.99,
    margin: float = 0.02,
    groups: Sequence[str] | None = None,
) -> NonInferiority:
    """Test whether the student recovered the share ``until`` of the base's score (in [0, 1]) on the same items [n].

    Two conditions, both on d_i = student_i − until·base_i:

    1. estimate: mean(student) / mean(base) ≥ until, that is mean(d) ≥ 0;
    2. evidence: mean(d) − z·se(d) > −margin, with z the one-sided quantile of the normal distribution at
       :data:`CONFIDENCE`, and se(d) paired and clustered. It rejects H0 "the student is worse than until·base by
       ``margin`` or more" at level 1 − :data:`CONFIDENCE`.

    The contrast with a fixed fraction of the reference is the "at least as good as" criterion of Laster,
    Johnson & Kotler, Statistics in Medicine 25 (2006) 1115–1130; the paired, clustered error follows
    arXiv 2411.00640. Tested repeatedly during training, condition 2 alone would reject too often; condition 1
    constrains the estimate itself. The final verdict is the one on test prompts, which are not used for stopping.
    What this promises is the level at ``margin`` below; a student a little below ``until`` often passes
    (benchmarks/results/stopping.md has the rates).

    Raises RecoveryError if there are fewer than :data:`ENOUGH_TO_DECIDE` items or the base scores 0 on all of them.
    """
    base_N, student_N = pair(base, student)
    if len(base_N) < ENOUGH_TO_DECIDE:
        raise RecoveryError(
            f"{len(base_N)} development prompts are too few to call a model recovered: give at least {ENOUGH_TO_DECIDE}"
        )
    if base_N.sum() <= 0:
        raise RecoveryError("the base model scores 0 on the development prompts: there is nothing to recover")
    contrast = score_of(student_N - until * base_N, groups)
    bound = contrast.value - float(stats.norm.ppf(CONFIDENCE)) * contrast.stderr
    ratio = float(student_N.sum() / base_N.sum())
    estimate_holds = contrast.value >= -1e-12  # equal up to rounding counts as equal
    reason = (
        f"{ratio:.4f} of base (wanted {until:g}) on {len(base_N)} prompts; "
        f"lower {CONFIDENCE:g} bound {bound:+.4f} (margin -{margin:g})"
    )
    return NonInferiority(estimate_holds and bound > -margin, ratio, bound, reason)


def recovered(base: SuiteResult, student: SuiteResult, *, until: float = 0.99, margin: float = 0.02) -> NonInferiority:
    """Apply :func:`non_inferiority` to two results of one suite, their items paired by id."""
    first, second, groups = paired_values(base, student)
    return non_inferiority(first, second, until=until, margin=margin, groups=groups)


def paired_values(first: SuiteResult, second: SuiteResult) -> tuple[list[float], list[float], list[str]]:
    """Return both results' scores on the headline items, paired by id, and the items' groups.

    Raises RecoveryError if the two do not have the same items; it names one that is missing.
    """
    by_id = {item.id: item for item in second.items if is_headline(item.extra)}
    items = [item for item in first.items if is_headline(item.extra)]
    ids = {item.id for item in items}
    if len(ids) != len(items):
        raise RecoveryError(f"suite {first.suite!r} has items that share an id: a paired test needs them distinct")
    if stray := ids ^ by_id.keys():
        raise RecoveryError(
            f"suites {first.suite!r} and {second.suite!r} do not have the same items "
            f"({len(stray)} differ, for example {min(stray)!r}): evaluate both on one set"
        )
    pairs = [(item, by_id[item.id]) for item in items]
    return [a.score for a, _ in pairs], [b.score for _, b in pairs], [a.group for a, _ in pairs]


# Paired comparison of two checkpoints on the same items: items lost and gained, with significance tests.


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
    first_N, second_N = [first[key].score for key in common], [second[key].score for key in common]
    return _compared(name, first_N, second_N, [first[key].group for key in common])


def by_type(first: Mapping[str, Judged], second: Mapping[str, Judged]) -> list[Comparison]:
    """Compare by instruction type, largest loss first; p-values corrected over all types (Holm)."""
    types: dict[str, tuple[list[float], list[float]]] = {}
    for key in (key for key in first if key in second):
        old, new = first[key].verdicts or {}, second[key].verdicts or {}
        for verdict in old.keys() & new.keys():
            pair = types.setdefault(verdict.split(" (")[0], ([], []))  # a repeated instruction is numbered
            pair[0].append(float(old[verdict]))
            pair[1].append(float(new[verdict]))
    comparisons = [_compared(name, old, new) for name, (old, new) in sorted(types.items())]
    return sorted(corrected(comparisons), key=lambda c: (c.difference, c.name))


def corrected(tests: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons with Holm-adjusted p-values, corrected over those that were tested."""
    tested = [c.p_value for c in tests if c.p_value is not None]
    adjusted = iter(holm(tested))
    return [Comparison(**(asdict(c) | {"p_adjusted": None if c.p_value is None else next(adjusted)})) for c in tests]


def _compared(name: str, old: Sequence[float], new: Sequence[float], groups: Sequence[str] | None = None) -> Comparison:
    difference = paired_difference(old, new, groups)
    first_mean, second_mean = score_of(old).value, score_of(new).value
    numbers = (first_mean, second_mean, difference.value, difference.low, difference.high, difference.n)
    if not set(old) | set(new) <= {0.0, 1.0}:
        return Comparison(name, *numbers)
    test = mcnemar(old, new)
    p_value = test.p_value
    named = [group for group in groups or () if group]
    if len(set(named)) < len(named):  # items that share groups are not independent, as McNemar's test assumes
        below = paired_contrast(new, old, groups).p_below
        p_value = min(1.0, 2 * min(below, 1 - below))
    return Comparison(name, *numbers, test.only_first, test.only_second, p_value)
