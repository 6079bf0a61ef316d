"""Scores with standard errors, what a number of items can show, and the correction for several tests.

Standard errors follow E. Miller, "Adding Error Bars to Evals" (arXiv 2411.00640): by the central limit theorem over
items, clustered if items share a group, and paired if two models were evaluated on the same items.

The joint bootstrap of several means (:func:`resampled_means`) draws pages with replacement, crossed with seeds where
there are several.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recovery.errors import RecoveryError
from recovery.lazy_import import lazily
from recovery.types import Item, Score

stats = lazily("scipy.stats")

Floats = NDArray[np.float64]

ROUNDING = 1e-9  # a standard error below this is treated as 0
# An accuracy near 0 or 1 would understate the smallest detectable effect once it has moved.
_MIDDLE = (0.1, 0.9)


def score_of(values: ArrayLike, groups: Sequence[str] | None = None) -> Score:
    """Return the mean of ``values`` [n] with its standard error, clustered by ``groups`` [n] if given.

    An empty group name is a cluster of its own. Clustered (arXiv 2411.00640, with the usual G/(G−1) correction for
    G clusters): sqrt(G/(G−1) · Σ_clusters (Σ_members (x − mean))²) / n, which for clusters of size one is the plain
    s/√n. With a single cluster the plain form is used; with a single item the standard error is 0.
    """
    array = _array(values)
    mean = float(array.mean())
    sums, _ = cluster_sums(array - mean, groups)
    clusters = len(sums)
    if clusters < 2:
        sums, clusters = array - mean, len(array)
    if clusters < 2:
        return Score(mean, 0.0, len(array))
    stderr = math.sqrt(clusters / (clusters - 1) * float(sums @ sums)) / len(array)
    return Score(mean, stderr, len(array))


def score_of_items(items: Sequence[Item], values: Iterable[float] | None = None) -> Score:
    """Return :func:`score_of` the items' scores, or of one of ``values`` for each, clustered by the items' groups."""
    scores = [item.score for item in items] if values is None else [*map(float, values)]
    return score_of(scores, [item.group for item in items])


def ratio_of(numerators: ArrayLike, denominators: ArrayLike) -> Score:
    """Return Σ numerators / Σ denominators (both [n], one entry per cluster) with its linearised standard error.

    Source: W. G. Cochran, "Sampling Techniques", 3rd ed., chapter 6 (ratio estimator, without the finite-population
    term).
    """
    above, below = _array(numerators), _array(denominators)
    if below.sum() <= 0:
        raise RecoveryError("a ratio score has an empty denominator: give at least one text that is not empty")
    ratio = float(above.sum() / below.sum())
    residual = above - ratio * below
    n = len(above)
    stderr = math.sqrt(n / (n - 1) * float(residual @ residual)) / float(below.sum()) if n > 1 else 0.0
    return Score(ratio, stderr, n)


def minimum_detectable_effect(
    n: int, *, p: float = 0.5, correlation: float = 0.5, power: float = 0.8, alpha: float = 0.05
) -> float:
    """Return the smallest true difference of two accuracies that a paired, two-sided test on ``n`` items detects.

    (z_{1−alpha/2} + z_power) · sqrt(2·p·(1−p)·(1−correlation) / n), for two models of accuracy ``p`` whose verdicts
    on one item have this correlation: the sample-size formula of E. Miller, "Adding Error Bars to Evals"
    (arXiv 2411.00640), solved for the effect, with the variance of a difference of two correlated verdicts. For a
    one-sided test, as in the gate, pass twice its alpha. Clusters increase it by the square root of the design
    effect. Raises RecoveryError for arguments outside their range.
    """
    if n < 1:
        raise RecoveryError(f"no effect can be detected with {n} items: give at least one")
    if not (0 < p < 1 and -1 <= correlation < 1 and 0 < power < 1 and 0 < alpha < 1):
        raise RecoveryError(
            f"p={p:g}, correlation={correlation:g}, power={power:g}, alpha={alpha:g}: "
            "each must be between 0 and 1, a correlation between -1 and 1"
        )
    quantiles = quantile(1 - alpha / 2) + quantile(power)
    return quantiles * math.sqrt(2 * p * (1 - p) * (1 - correlation) / n)


def effect_in_words(n: int, *, p: float = 0.5, items: str = "prompts") -> str:
    """Describe :func:`minimum_detectable_effect`: "with 300 prompts you can see a difference of 8 points".

    ``p`` below 0.1 or above 0.9 counts as these.
    """
    points = 100 * minimum_detectable_effect(n, p=min(max(p, _MIDDLE[0]), _MIDDLE[1]))
    if points >= 100:
        return f"with {n} {items} you can see no difference, however large: take more"
    shown = f"{round(points, 0 if points >= 3 else 1):g}"
    return f"with {n} {items} you can see a difference of {shown} point{'' if shown == '1' else 's'}"


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's step-down correction, in the input order.

    With p_(1) ≤ … ≤ p_(m): adjusted p_(i) = max_{j ≤ i} min(1, (m − j + 1)·p_(j)). Rejecting those of at most alpha
    bounds the family-wise error rate by alpha, whatever the dependence between the tests. Source: S. Holm, "A Simple
    Sequentially Rejective Multiple Test Procedure", Scandinavian Journal of Statistics 6 (1979) 65–70.
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise RecoveryError("Holm's correction takes p-values between 0 and 1")
    adjusted, reached, m = [0.0] * len(p_values), 0.0, len(p_values)
    for rank, index in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        reached = max(reached, min(1.0, (m - rank) * float(p_values[index])))
        adjusted[index] = reached
    return adjusted


def is_headline(extra: object) -> bool:
    """Return whether an item counts in the headline score; ``extra`` excludes refusals and control probes."""
    return not isinstance(extra, dict) or bool(extra.get("headline", True))


def quantile(probability: float, degrees: float = math.inf) -> float:
    """Return the quantile of Student's t, by default of the normal distribution."""
    return float(stats.t.ppf(probability, degrees))


def _array(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64).ravel()
    if array.size == 0:
        raise RecoveryError("a score needs at least one item")
    if not np.isfinite(array).all():
        raise RecoveryError("a score has items that are not finite numbers: the model's log-probabilities are broken")
    return array


def pair(first: ArrayLike, second: ArrayLike) -> tuple[Floats, Floats]:
    """Return the scores of the same items on both sides as arrays."""
    first_N, second_N = _array(first), _array(second)
    if len(first_N) != len(second_N):
        raise RecoveryError(f"a paired test needs the same items on both sides, not {len(first_N)} and {len(second_N)}")
    return first_N, second_N


def cluster_sums(values: Floats, groups: Sequence[str] | None) -> tuple[Floats, Floats]:
    """Return sum and size of every cluster; without groups each value is its own cluster."""
    if groups is None:
        return values, np.ones_like(values)
    if len(groups) != len(values):
        raise RecoveryError(f"{len(groups)} group names were given for {len(values)} items")
    keys = [group or f"\0{index}" for index, group in enumerate(groups)]
    _, member = np.unique(np.asarray(keys, dtype=object).astype(str), return_inverse=True)
    sums, sizes = np.bincount(member, weights=values), np.bincount(member)
    return sums.astype(np.float64), sizes.astype(np.float64)


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation over seeds."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


DRAWS = 2000
SEED = 0


def resampled_means(values: ArrayLike, groups: Sequence[str]) -> Floats:
    """Return means [draws, quantities] of ``values`` [seeds, items, quantities], all quantities of a draw on the same.

    Items of one group are drawn together; an empty group is one of its own. Seeds are drawn independently of groups.
    """
    array = np.asarray(values, dtype=np.float64)
    seeds, _, quantities = array.shape
    sizes = cluster_sums(array[0, :, 0], groups)[1]
    sums = np.array([[cluster_sums(seed_values[:, q], groups)[0] for q in range(quantities)] for seed_values in array])
    generator = np.random.default_rng(SEED)
    pages = generator.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), DRAWS).astype(np.float64)
    runs = generator.multinomial(seeds, np.full(seeds, 1 / seeds), DRAWS) / seeds
    means: Floats = np.einsum("ds,sqc,dc->dq", runs, sums, pages) / (pages @ sizes)[:, None]
    return means


def interval(draws: ArrayLike, alpha: float = 0.05) -> tuple[float, float]:
    """Return the two-sided percentile interval of bootstrap draws."""
    low, high = np.quantile(np.asarray(draws, dtype=np.float64), [alpha / 2, 1 - alpha / 2])
    return float(low), float(high)
