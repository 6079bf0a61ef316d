"""Contrasts: is one score above a share of another, or above a number? Bounds and p-values for scores in [0, 1].

The acceptance gate and the comparisons of two checkpoints use :func:`paired_contrast` (the same items) and
:func:`independent_contrast` (scores whose items cannot be paired); :func:`ratio_contrast` is about values of any range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evals.statistics import ROUNDING, Floats, cluster_sums, pair, quantile, score_of
from recovery.errors import RecoveryError
from recovery.lazy_import import lazily
from recovery.types import Score

optimize, stats = lazily("scipy.optimize"), lazily("scipy.stats")


@dataclass(frozen=True)
class Contrast:
    """mean(first) − (factor·mean(second) + shift) over ``n`` items, with confidence bounds and test; of a ratio,
    mean(first) / mean(second) − factor.

    ``low`` and ``high`` are one-sided bounds, each wrong with probability alpha at most (together an interval of
    confidence 1 − 2·alpha). ``statistic`` tests "the contrast is 0", with ``degrees`` of freedom (infinite: normal);
    ``p_below`` is the one-sided p-value of "the contrast is at least 0".
    """

    value: float
    stderr: float
    low: float
    high: float
    statistic: float
    degrees: float
    p_below: float
    n: int

    def more(self, *, alpha: float = 0.05, power: float = 0.8, most: float = 1000.0) -> int | None:
        """Return how many more items would make the contrast significant at one-sided level ``alpha``.

        With c the critical value, z the statistic and s the observed standard error, n grows by the factor
        (c/|z| + z_power·s/|value|)²: the usual n = ((z_α·σ_0 + z_β·σ_1)/δ)² with the variances under the null and
        as observed, δ the estimate. If the estimate is the true value, the test then succeeds with probability
        ``power``. None if more than ``most`` times n are needed, as for an estimate of 0.
        """
        if not self.value or not self.statistic:
            return None
        critical = quantile(1 - alpha, self.degrees)
        root = critical / abs(self.statistic) + float(stats.norm.ppf(power)) * self.stderr / abs(self.value)
        factor = root * root
        return max(1, math.ceil(self.n * (factor - 1))) if factor <= most else None


def paired_contrast(
    first: ArrayLike,
    second: ArrayLike,
    groups: Sequence[str] | None = None,
    *,
    factor: float = 1.0,
    shift: float = 0.0,
    alpha: float = 0.05,
) -> Contrast:
    """Test first − (factor·second + shift) for scores in [0, 1] of the same items [n], by the score test of a mean.

    With d_i = first_i − factor·second_i − shift, the statistic for "the mean of d is m" is
    (mean(d) − m) / sqrt(V(m)/n'). V(m) is the variance under the null: that of the maximum-likelihood distribution
    with mean m on the observed values and the two extremes of d (as in empirical likelihood, Owen 1988). For verdicts
    it gives Tango's interval of a paired difference (Statistics in Medicine 17 (1998) 891–908), with a factor the test
    of Nam & Blackwelder (Statistics in Medicine 21 (2002) 689–699), and with factor 0 Wilson's interval. Near a score
    of 1, where gates are usually set, few or no items differ and mean ± z·stderr would be too narrow.

    Clustered by ``groups``: n' = n / max(1, clustered variance / plain variance) (the design effect; Rao & Scott,
    Biometrics 48 (1992) 577–585) and Student's t with one degree of freedom fewer than clusters. With fewer than
    about twenty very different clusters, a bound is wrong up to twice as often as alpha (simulated). Raises
    RecoveryError for scores outside [0, 1].
    """
    one, two = pair(first, second)
    _check_shares(one, two)
    _check_alpha(alpha)
    # rounded so that equal differences count as one value
    difference = np.round(one - factor * two - shift, 12)
    score, plain = score_of(difference, groups), score_of(difference)
    clusters = len(cluster_sums(difference, groups)[0])
    design = max(1.0, (score.stderr / plain.stderr) ** 2) if plain.stderr > ROUNDING else 1.0
    degrees = float(clusters - 1) if 1 < clusters < len(difference) else math.inf
    mean = _BoundedMean(
        *np.unique(difference, return_counts=True), -factor - shift, 1.0 - shift, len(difference) / design
    )
    statistic = mean.statistic(0.0)
    return Contrast(
        value=score.value,
        stderr=score.stderr,
        **mean.limits(quantile(1 - alpha, degrees)),
        statistic=statistic,
        degrees=degrees,
        p_below=float(stats.t.cdf(statistic, degrees)),
        n=len(difference),
    )


def ratio_contrast(
    first: ArrayLike, second: ArrayLike, groups: Sequence[str], *, factor: float, alpha: float = 0.05
) -> Contrast | None:
    """Test mean(first) / mean(second) − factor for values of the same items [n], of any range, by Fieller's method.

    With x and y the two means and V their covariances clustered by ``groups``, a ratio r is rejected if
    (x − r·y)² > t²·(V_xx − 2r·V_xy + r²·V_yy), t the critical value with one degree of freedom fewer than clusters
    (E. C. Fieller, J. R. Stat. Soc. B 16 (1954) 175–185). With a single cluster each item counts as one. None if
    mean(second) is not above 0 at this level: its ratios have no limits then.
    """
    _check_alpha(alpha)
    one, two = pair(first, second)
    x, y = float(one.mean()), float(two.mean())
    centred = (one - x, two - y)
    sums = [cluster_sums(values, groups)[0] for values in centred]
    sums = sums if len(sums[0]) > 1 else list(centred)
    if (clusters := len(sums[0])) < 2:
        return None
    v_xx, v_xy, v_yy = (
        clusters / (clusters - 1) * float(a @ b) / len(one) ** 2 for a, b in (sums[:1] * 2, sums, sums[1:] * 2)
    )
    critical, degrees = quantile(1 - alpha, clusters - 1), float(clusters - 1)
    # the limits are the roots of a·r² − 2b·r + c
    a, b, c = (p - critical**2 * v for p, v in ((y * y, v_yy), (x * y, v_xy), (x * x, v_xx)))
    if a <= 0 or y <= 0:
        return None
    half = math.sqrt(max(0.0, b * b - a * c)) / a
    difference, stderr = x - factor * y, math.sqrt(max(0.0, v_xx - 2 * factor * v_xy + factor**2 * v_yy))
    statistic = difference / stderr if stderr > ROUNDING else math.copysign(math.inf, difference)
    return Contrast(
        value=difference / y,
        stderr=stderr / y,
        low=b / a - half - factor,
        high=b / a + half - factor,
        statistic=statistic,
        degrees=degrees,
        p_below=float(stats.t.cdf(statistic, degrees)),
        n=len(one),
    )


def independent_contrast(
    first: Score, second: Score | None = None, *, factor: float = 1.0, shift: float = 0.0, alpha: float = 0.05
) -> Contrast:
    """Test first − (factor·second + shift) for two scores in [0, 1] whose items cannot be paired.

    The bounds combine both Wilson intervals: low = value − sqrt((first − low_1)² + factor²·(high_2 − second)²),
    high likewise (R. G. Newcombe, Statistics in Medicine 17 (1998) 873–890, method 10; with a factor: Zou & Donner,
    Statistics in Medicine 27 (2008) 1693–1702). A clustered or graded score counts as the number of trials that gives
    its standard error. Without ``second`` the reference is the number ``shift``. Raises RecoveryError for scores
    outside [0, 1] or without items.
    """
    _check_alpha(alpha)
    scores = [first] if second is None else [first, second]
    _check_shares([score.value for score in scores])
    if min(score.n for score in scores) < 1:
        raise RecoveryError("a score needs at least one item")
    reference = Score(0.0, 0.0, 1) if second is None else second
    factor = 0.0 if second is None else factor
    value = first.value - factor * reference.value - shift

    def limits(critical: float) -> tuple[float, float]:
        low_1, high_1 = _wilson_limits(first, critical)
        low_2, high_2 = _wilson_limits(reference, critical)
        return (
            value - math.hypot(first.value - low_1, factor * (high_2 - reference.value)),
            value + math.hypot(high_1 - first.value, factor * (reference.value - low_2)),
        )

    side = 0 if value > 0 else 1
    widest = 40.0  # critical values beyond this are treated as infinite
    if abs(value) < 1e-12:
        statistic = 0.0
    elif (limits(widest)[side] > 0) == (value > 0):
        statistic = math.copysign(widest, value)
    else:
        root = optimize.brentq(lambda critical: limits(critical)[side], 0.0, widest)
        statistic = math.copysign(float(root), value)
    low, high = limits(quantile(1 - alpha))
    stderr = math.hypot(first.stderr, factor * reference.stderr)
    n = min(score.n for score in scores)
    return Contrast(value, stderr, low, high, statistic, math.inf, float(stats.norm.cdf(statistic)), n)


@dataclass(frozen=True)
class _BoundedMean:
    """Distinct values [U] with their counts [U] of a variable in [``low``, ``high``]; ``n`` independent draws."""

    values: Floats
    counts: NDArray[np.int64]
    low: float
    high: float
    n: float

    @property
    def mean(self) -> float:
        return float(self.values @ self.counts / self.counts.sum())

    def variance(self, mean: float) -> float:
        """Return the variance of the maximum-likelihood distribution with this mean on the values and both ends.

        Its weights are counts / (total·(1 + λ·(value − mean))), with λ chosen to give the mean while every
        denominator, including those of the ends, stays positive; at that limit the remaining weight is at the end.
        """
        if not self.low < mean < self.high:
            return 0.0
        centred = self.values - mean
        # slightly inside, since an observed value at an end would divide by 0; λ itself stays away by 1/total
        least, most = -(1 - 1e-10) / (self.high - mean), (1 - 1e-10) / (mean - self.low)

        def slope(multiplier: float) -> float:
            return float((self.counts * centred / (1 + multiplier * centred)).sum())

        if slope(least) <= 0:
            multiplier, end = least, self.high
        elif slope(most) >= 0:
            multiplier, end = most, self.low
        else:
            multiplier, end = float(optimize.brentq(slope, least, most, xtol=1e-14)), mean
        weights = self.counts / (self.counts.sum() * (1 + multiplier * centred))
        return float(weights @ centred**2) + max(0.0, 1 - float(weights.sum())) * (end - mean) ** 2

    def statistic(self, mean: float) -> float:
        """Return the statistic of the test of this mean."""
        difference, variance = self.mean - mean, self.variance(mean)
        if abs(difference) < 1e-12:
            return 0.0
        return difference / math.sqrt(variance / self.n) if variance > 0 else math.copysign(math.inf, difference)

    def limits(self, critical: float) -> dict[str, float]:
        """Return the limits of the means that the test does not reject at this critical value."""

        def gap(mean: float) -> float:
            return self.n * (self.mean - mean) ** 2 - critical**2 * self.variance(mean)

        near = 1e-9  # at the mean itself the gap may be 0 again, which is not the required root
        ends = {}
        for name, end, step in (("low", self.low, -near), ("high", self.high, near)):
            inner = self.mean + step
            outside = abs(end - self.mean) <= 2 * near or gap(inner) >= 0
            ends[name] = self.mean if outside else float(optimize.brentq(gap, end, inner, xtol=1e-10))
        return ends


def _is_plain_share(score: Score) -> bool:
    """Return whether value, standard error and n are those of an unclustered mean of verdicts 0 and 1."""
    if score.n < 1 or not 0 <= score.value <= 1 or abs(score.value * score.n - round(score.value * score.n)) > 1e-6:
        return False
    plain = math.sqrt(score.value * (1 - score.value) / (score.n - 1)) if score.n > 1 else 0.0
    return math.isclose(score.stderr, plain, rel_tol=1e-6, abs_tol=1e-12)


def _wilson_limits(score: Score, critical: float) -> tuple[float, float]:
    """Return Wilson's limits at a critical value, for the number of trials that gives the score's standard error."""
    value, trials = score.value, float(score.n)
    if score.stderr > ROUNDING and 0 < value < 1 and not _is_plain_share(score):
        trials = value * (1 - value) / score.stderr**2
    share = critical * critical / trials
    middle = value + share / 2
    half = math.sqrt(share * (value * (1 - value) + share / 4))
    return max(0.0, (middle - half) / (1 + share)), min(1.0, (middle + half) / (1 + share))


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 0.5:
        raise RecoveryError(f"alpha {alpha:g} must be between 0 and 0.5")


def _check_shares(*values: ArrayLike) -> None:
    flat = np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in values])
    if not ((flat >= 0) & (flat <= 1)).all():
        raise RecoveryError(
            f"a score of {flat[(flat < 0) | (flat > 1) | np.isnan(flat)][0]:g} cannot be compared: "
            "scores must be between 0 and 1, and a rule of the gate needs a suite of such"
        )
