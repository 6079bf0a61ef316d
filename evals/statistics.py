"""Scores, their errors, and paired comparisons of two models on the same items.

Standard errors follow E. Miller, "Adding Error Bars to Evals" (arXiv 2411.00640): by the central limit
theorem over items, clustered where items share a group, and paired wherever two models answered the same
items.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from recovery.errors import RecoveryError
from recovery.types import Score, SuiteResult

Floats = NDArray[np.float64]


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
    """Outcome of :func:`non_inferiority`.

    ``bound`` is the lower one-sided confidence bound of mean(student − until·base).
    """

    recovered: bool
    ratio: float
    difference: float
    bound: float
    n: int
    reason: str


def score_of(values: ArrayLike, groups: Sequence[str] | None = None) -> Score:
    """Mean of ``values`` [n] with its standard error, clustered by ``groups`` [n] where these are given.

    An empty group name stands for a cluster of its own. Clustered (arXiv 2411.00640, with the usual G/(G−1)
    correction for G clusters): sqrt(G/(G−1) · Σ_clusters (Σ_members (x − mean))²) / n, which for clusters of
    one is the plain s/√n. With a single cluster the plain form is used, and one item has a standard error of
    0: there is nothing to estimate it from.
    """
    array = _array(values)
    mean = float(array.mean())
    sums, _ = _cluster_sums(array - mean, groups)
    clusters = len(sums)
    if clusters < 2:
        sums, clusters = array - mean, len(array)
    if clusters < 2:
        return Score(mean, 0.0, len(array))
    stderr = math.sqrt(clusters / (clusters - 1) * float(sums @ sums)) / len(array)
    return Score(mean, stderr, len(array))


def ratio_of(numerators: ArrayLike, denominators: ArrayLike) -> Score:
    """Σ numerators / Σ denominators (both [n], an entry a cluster) with the linearised standard error of a
    ratio.

    Source: W. G. Cochran, "Sampling Techniques", 3rd ed., chapter 6 (ratio estimator, finite-population term
    left out).
    """
    above, below = _array(numerators), _array(denominators)
    if below.sum() <= 0:
        raise RecoveryError("a ratio score has an empty denominator: give at least one text that is not empty")
    ratio = float(above.sum() / below.sum())
    residual = above - ratio * below
    n = len(above)
    stderr = math.sqrt(n / (n - 1) * float(residual @ residual)) / float(below.sum()) if n > 1 else 0.0
    return Score(ratio, stderr, n)


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval (without continuity correction) of a proportion of ``n`` trials."""
    if n <= 0 or not 0 <= successes <= n:
        raise RecoveryError(f"{successes} successes in {n} trials is not a proportion")
    interval = stats.binomtest(successes, n).proportion_ci(confidence_level=confidence, method="wilson")
    return float(interval.low), float(interval.high)


def mcnemar(first: ArrayLike, second: ArrayLike) -> McNemar:
    """Exact McNemar test on paired verdicts [n] (0 or 1): a binomial test on the discordant pairs."""
    one, two = _pair(first, second)
    if not np.isin(np.concatenate([one, two]), (0.0, 1.0)).all():
        raise RecoveryError("McNemar's test takes verdicts of 0 and 1: use the paired bootstrap for graded scores")
    only_first, only_second = int(((one == 1) & (two == 0)).sum()), int(((one == 0) & (two == 1)).sum())
    discordant = only_first + only_second
    p_value = stats.binomtest(min(only_first, only_second), discordant, 0.5).pvalue if discordant else 1.0
    return McNemar(only_first, only_second, float(p_value))


def paired_bootstrap(
    first: ArrayLike,
    second: ArrayLike,
    groups: Sequence[str] | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Difference:
    """Percentile bootstrap of mean(second − first) over items [n].

    Where ``groups`` are given, whole clusters are drawn instead of items.
    """
    one, two = _pair(first, second)
    difference = two - one
    score = score_of(difference, groups)
    sums, sizes = _cluster_sums(difference, groups)
    if np.ptp(difference) == 0.0 or len(sums) < 2:
        return Difference(score.value, score.stderr, score.value, score.value, score.n)
    interval = stats.bootstrap(
        (sums, sizes),
        _mean_of_clusters,
        paired=True,
        vectorized=True,
        confidence_level=confidence,
        n_resamples=resamples,
        batch=max(1, 2_000_000 // len(sums)),
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Difference(score.value, score.stderr, float(interval.low), float(interval.high), score.n)


def non_inferiority(
    base: ArrayLike,
    student: ArrayLike,
    *,
    until: float = 0.99,
    margin: float = 0.02,
    confidence: float = 0.95,
    groups: Sequence[str] | None = None,
    minimum: int = 1000,
) -> NonInferiority:
    """Has the student regained the share ``until`` of the base's score (in [0, 1]) on the same items [n]?

    Two conditions, both on d_i = student_i − until·base_i:

    1. the estimate: mean(student) / mean(base) ≥ until, that is mean(d) ≥ 0;
    2. the evidence: mean(d) − z·se(d) > −margin, with z the one-sided ``confidence`` quantile of the normal
       distribution and se(d) paired and clustered. It rejects H0 "the student is worse than until·base by
       ``margin`` or more" at level 1 − confidence.

    The contrast with a fixed fraction of the reference is the "at least as good as" criterion of Laster,
    Johnson & Kotler, Statistics in Medicine 25 (2006) 1115–1130; the paired, clustered error is arXiv
    2411.00640's. Looked at repeatedly while training, condition 2 alone would reject too often; condition 1
    keeps the estimate itself honest, and the verdict that counts is the one on test prompts that took no part
    in stopping.

    Raises RecoveryError when fewer than ``minimum`` items are given or the base scores 0 on all of them.
    """
    one, two = _pair(base, student)
    if len(one) < minimum:
        raise RecoveryError(
            f"{len(one)} development prompts are too few to call a model recovered: give at least {minimum}"
        )
    if one.sum() <= 0:
        raise RecoveryError("the base model scores 0 on the development prompts: there is nothing to recover")
    contrast = score_of(two - until * one, groups)
    bound = contrast.value - float(stats.norm.ppf(confidence)) * contrast.stderr
    ratio = float(two.sum() / one.sum())
    estimate_holds = contrast.value >= -1e-12  # a tie within rounding is a tie
    evidence_holds = bound > -margin
    reason = (
        f"{ratio:.4f} of base (wanted {until:g}) on {len(one)} prompts; "
        f"lower {confidence:.0%} bound {bound:+.4f} (margin -{margin:g})"
    )
    return NonInferiority(
        recovered=estimate_holds and evidence_holds,
        ratio=ratio,
        difference=float(two.mean() - one.mean()),
        bound=bound,
        n=len(one),
        reason=reason,
    )


def recovered(
    base: SuiteResult,
    student: SuiteResult,
    *,
    until: float = 0.99,
    margin: float = 0.02,
    confidence: float = 0.95,
    minimum: int = 1000,
) -> NonInferiority:
    """:func:`non_inferiority` of two results of one suite, their items paired by id."""
    one, two, groups = paired_values(base, student)
    return non_inferiority(one, two, until=until, margin=margin, confidence=confidence, groups=groups, minimum=minimum)


def paired_values(first: SuiteResult, second: SuiteResult) -> tuple[list[float], list[float], list[str]]:
    """Scores of both results on the items of the headline score, paired by id, and the items' groups.

    Raises RecoveryError when the two did not answer the same items, naming one that is missing.
    """
    by_id = {item.id: item for item in second.items if _counts(item.extra)}
    items = [item for item in first.items if _counts(item.extra)]
    ids = {item.id for item in items}
    if len(ids) != len(items):
        raise RecoveryError(f"suite {first.suite!r} has items that share an id: a paired test needs them distinct")
    if stray := ids ^ by_id.keys():
        raise RecoveryError(
            f"suites {first.suite!r} and {second.suite!r} did not answer the same items "
            f"({len(stray)} differ, for example {min(stray)!r}): evaluate both on one set"
        )
    pairs = [(item, by_id[item.id]) for item in items]
    return [a.score for a, _ in pairs], [b.score for _, b in pairs], [a.group for a, _ in pairs]


def _counts(extra: object) -> bool:
    """Items judged beside the headline (refusals among instruction prompts, controls) say so in ``extra``."""
    return not isinstance(extra, dict) or bool(extra.get("headline", True))


def _array(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64).ravel()
    if array.size == 0:
        raise RecoveryError("a score needs at least one item")
    if not np.isfinite(array).all():
        raise RecoveryError("a score has items that are not finite numbers: the model's log-probabilities are broken")
    return array


def _pair(first: ArrayLike, second: ArrayLike) -> tuple[Floats, Floats]:
    one, two = _array(first), _array(second)
    if len(one) != len(two):
        raise RecoveryError(f"a paired test needs the same items on both sides, not {len(one)} and {len(two)}")
    return one, two


def _cluster_sums(values: Floats, groups: Sequence[str] | None) -> tuple[Floats, Floats]:
    """Sum and size of every cluster; without groups each value is its own."""
    if groups is None:
        return values, np.ones_like(values)
    if len(groups) != len(values):
        raise RecoveryError(f"{len(groups)} group names were given for {len(values)} items")
    keys = [group or f"\0{index}" for index, group in enumerate(groups)]
    _, member = np.unique(np.asarray(keys, dtype=object).astype(str), return_inverse=True)
    sums, sizes = np.bincount(member, weights=values), np.bincount(member)
    return sums.astype(np.float64), sizes.astype(np.float64)


def _mean_of_clusters(sums: Floats, sizes: Floats, axis: int = -1) -> Floats:
    return np.asarray(sums.sum(axis=axis) / sizes.sum(axis=axis))
