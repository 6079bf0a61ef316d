"""Scores with standard errors, and paired comparisons of two models on the same items.

Standard errors follow E. Miller, "Adding Error Bars to Evals" (arXiv 2411.00640): by the central limit theorem over
items, clustered if items share a group, and paired if two models were evaluated on the same items.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recovery.errors import RecoveryError
from recovery.lazy_import import lazily
from recovery.types import Score, SuiteResult

optimize, stats = lazily("scipy.optimize"), lazily("scipy.stats")

Floats = NDArray[np.float64]

_ROUNDING = 1e-9  # a standard error below this is treated as 0


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
    difference: float
    bound: float
    n: int
    reason: str


@dataclass(frozen=True)
class Contrast:
    """mean(first) − (factor·mean(second) + shift) over ``n`` items, with confidence bounds and test.

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
        critical = _quantile(1 - alpha, self.degrees)
        root = critical / abs(self.statistic) + float(stats.norm.ppf(power)) * self.stderr / abs(self.value)
        factor = root * root
        return max(1, math.ceil(self.n * (factor - 1))) if factor <= most else None


def score_of(values: ArrayLike, groups: Sequence[str] | None = None) -> Score:
    """Return the mean of ``values`` [n] with its standard error, clustered by ``groups`` [n] if given.

    An empty group name is a cluster of its own. Clustered (arXiv 2411.00640, with the usual G/(G−1) correction for
    G clusters): sqrt(G/(G−1) · Σ_clusters (Σ_members (x − mean))²) / n, which for clusters of size one is the plain
    s/√n. With a single cluster the plain form is used; with a single item the standard error is 0.
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
    quantiles = _quantile(1 - alpha / 2) + _quantile(power)
    return quantiles * math.sqrt(2 * p * (1 - p) * (1 - correlation) / n)


def effect_in_words(n: int, *, p: float = 0.5, items: str = "prompts") -> str:
    """Describe :func:`minimum_detectable_effect`: "with 300 prompts you can see a difference of 8 points"."""
    points = 100 * minimum_detectable_effect(n, p=p)
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
    one, two = _pair(first, second)
    _shares(one, two)
    _level(alpha)
    # rounded so that equal differences count as one value
    difference = np.round(one - factor * two - shift, 12)
    score, plain = score_of(difference, groups), score_of(difference)
    clusters = len(_cluster_sums(difference, groups)[0])
    design = max(1.0, (score.stderr / plain.stderr) ** 2) if plain.stderr > _ROUNDING else 1.0
    degrees = float(clusters - 1) if 1 < clusters < len(difference) else math.inf
    mean = _BoundedMean(
        *np.unique(difference, return_counts=True), -factor - shift, 1.0 - shift, len(difference) / design
    )
    statistic = mean.statistic(0.0)
    return Contrast(
        value=score.value,
        stderr=score.stderr,
        **mean.limits(_quantile(1 - alpha, degrees)),
        statistic=statistic,
        degrees=degrees,
        p_below=float(stats.t.cdf(statistic, degrees)),
        n=len(difference),
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
    _level(alpha)
    scores = [first] if second is None else [first, second]
    _shares([score.value for score in scores])
    if min(score.n for score in scores) < 1:
        raise RecoveryError("a score needs at least one item")
    rest = Score(0.0, 0.0, 1) if second is None else second
    factor = 0.0 if second is None else factor
    value = first.value - factor * rest.value - shift

    def limits(critical: float) -> tuple[float, float]:
        low_1, high_1 = _wilson_of(first, critical)
        low_2, high_2 = _wilson_of(rest, critical)
        return (
            value - math.hypot(first.value - low_1, factor * (high_2 - rest.value)),
            value + math.hypot(high_1 - first.value, factor * (rest.value - low_2)),
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
    low, high = limits(_quantile(1 - alpha))
    stderr = math.hypot(first.stderr, factor * rest.stderr)
    n = min(score.n for score in scores)
    return Contrast(value, stderr, low, high, statistic, math.inf, float(stats.norm.cdf(statistic)), n)


def mcnemar(first: ArrayLike, second: ArrayLike) -> McNemar:
    """Run the exact McNemar test on paired verdicts [n] (0 or 1): a binomial test on the discordant pairs."""
    one, two = _pair(first, second)
    if not np.isin(np.concatenate([one, two]), (0.0, 1.0)).all():
        raise RecoveryError("McNemar's test takes verdicts of 0 and 1: use paired_difference for graded scores")
    only_first, only_second = int(((one == 1) & (two == 0)).sum()), int(((one == 0) & (two == 1)).sum())
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
    one, two = _pair(first, second)
    score, alpha = score_of(two - one, groups), (1 - confidence) / 2
    if min(one.min(), two.min()) >= 0 and max(one.max(), two.max()) <= 1:
        found = paired_contrast(two, one, groups, alpha=alpha)
        return Difference(score.value, score.stderr, found.low, found.high, score.n)
    half = _quantile(1 - alpha, max(1, len(_cluster_sums(two - one, groups)[0]) - 1)) * score.stderr
    return Difference(score.value, score.stderr, score.value - half, score.value + half, score.n)


def non_inferiority(
    base: ArrayLike,
    student: ArrayLike,
    *,
    until: float = 0.99,
    margin: float = 0.02,
    confidence: float = 0.95,
    groups: Sequence[str] | None = None,
    minimum: int = 1000,
    looks: int | None = None,
) -> NonInferiority:
    """Test whether the student recovered the share ``until`` of the base's score (in [0, 1]) on the same items [n].

    Two conditions, both on d_i = student_i − until·base_i:

    1. estimate: mean(student) / mean(base) ≥ until, that is mean(d) ≥ 0;
    2. evidence: mean(d) − z·se(d) > −margin, with z the one-sided ``confidence`` quantile of the normal
       distribution and se(d) paired and clustered. It rejects H0 "the student is worse than until·base by
       ``margin`` or more" at level 1 − confidence.

    The contrast with a fixed fraction of the reference is the "at least as good as" criterion of Laster,
    Johnson & Kotler, Statistics in Medicine 25 (2006) 1115–1130; the paired, clustered error follows
    arXiv 2411.00640. Tested repeatedly during training, condition 2 alone would reject too often; condition 1
    constrains the estimate itself. The final verdict is the one on test prompts, which are not used for stopping.
    What this promises is the level at ``margin`` below; a student a little below ``until`` often passes
    (benchmarks/results/stopping.md has the rates).

    With ``looks``, the number of times a run is tested, the rule is strict instead: the lower bound of mean(d) by
    :func:`paired_contrast`, at level (1 − confidence) / looks (Bonferroni), is 0 or above. At most a share
    1 − confidence of runs whose student stays below until·base are then called recovered; it takes many more items.

    Raises RecoveryError if there are fewer than ``minimum`` items or the base scores 0 on all of them.
    """
    one, two = _pair(base, student)
    if len(one) < minimum:
        raise RecoveryError(
            f"{len(one)} development prompts are too few to call a model recovered: give at least {minimum}"
        )
    if one.sum() <= 0:
        raise RecoveryError("the base model scores 0 on the development prompts: there is nothing to recover")
    contrast = score_of(two - until * one, groups)
    level = (1.0 - confidence) / (looks or 1)
    if looks is None:
        bound = contrast.value - float(stats.norm.ppf(confidence)) * contrast.stderr
    else:
        bound = paired_contrast(two, one, groups, factor=until, alpha=level).low
    ratio = float(two.sum() / one.sum())
    estimate_holds = contrast.value >= -1e-12  # equal up to rounding counts as equal
    evidence_holds = bound > -margin if looks is None else bound >= -1e-12
    reason = (
        f"{ratio:.4f} of base (wanted {until:g}) on {len(one)} prompts; "
        + f"lower {1 - level:.4g} bound {bound:+.4f} "
        + (f"(margin -{margin:g})" if looks is None else f"(must reach 0; one of {looks} tests)")
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
    looks: int | None = None,
) -> NonInferiority:
    """Apply :func:`non_inferiority` to two results of one suite, their items paired by id."""
    one, two, groups = paired_values(base, student)
    return non_inferiority(
        one, two, until=until, margin=margin, confidence=confidence, groups=groups, minimum=minimum, looks=looks
    )


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


def is_headline(extra: object) -> bool:
    """Return whether an item counts in the headline score; ``extra`` excludes refusals and control probes."""
    return not isinstance(extra, dict) or bool(extra.get("headline", True))


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
        away, variance = self.mean - mean, self.variance(mean)
        if abs(away) < 1e-12:
            return 0.0
        return away / math.sqrt(variance / self.n) if variance > 0 else math.copysign(math.inf, away)

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


def _of_verdicts(score: Score) -> bool:
    """Return whether value, standard error and n are those of a plain mean of verdicts 0 and 1."""
    if score.n < 1 or not 0 <= score.value <= 1 or abs(score.value * score.n - round(score.value * score.n)) > 1e-6:
        return False
    plain = math.sqrt(score.value * (1 - score.value) / (score.n - 1)) if score.n > 1 else 0.0
    return math.isclose(score.stderr, plain, rel_tol=1e-6, abs_tol=1e-12)


def _wilson_of(score: Score, critical: float) -> tuple[float, float]:
    """Return Wilson's limits at a critical value, for the number of trials that gives the score's standard error."""
    value, trials = score.value, float(score.n)
    if score.stderr > _ROUNDING and 0 < value < 1 and not _of_verdicts(score):
        trials = value * (1 - value) / score.stderr**2
    share = critical * critical / trials
    middle = value + share / 2
    half = math.sqrt(share * (value * (1 - value) + share / 4))
    return max(0.0, (middle - half) / (1 + share)), min(1.0, (middle + half) / (1 + share))


def _quantile(probability: float, degrees: float = math.inf) -> float:
    return float(stats.t.ppf(probability, degrees))


def _level(alpha: float) -> None:
    if not 0 < alpha < 0.5:
        raise RecoveryError(f"alpha {alpha:g} must be between 0 and 0.5")


def _shares(*values: ArrayLike) -> None:
    every = np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in values])
    if not ((every >= 0) & (every <= 1)).all():
        raise RecoveryError(
            f"a score of {every[(every < 0) | (every > 1) | np.isnan(every)][0]:g} cannot be compared: "
            "scores must be between 0 and 1, and a rule of the gate needs a suite of such"
        )


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
