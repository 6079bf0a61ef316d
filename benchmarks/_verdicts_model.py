"""Simulated verdicts of two checkpoints on the same items, the gate's test of many samples at once, and rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from benchmarks import _report
from evals.acceptance import Decision, judge_all
from evals.acceptance_rules import Rule
from evals.contrasts import Contrast
from evals.measurement import Evidence, Measurement
from evals.statistics import holm

Array = np.ndarray[Any, Any]
Noise = Callable[[np.random.Generator, tuple[int, ...]], Array]  # draws an array of a shape
ALPHA = 0.05
LOOKS = 4  # judgements of a cycle by default: before and after more items, and both again after an extension
SURE = 3.0  # an entry is marked if it is beyond its promise by more than this many standard errors
_RIGHT = ((1, 1), (1, 0), (0, 1), (0, 0))  # student and base in each of the four cells of a paired sample


@dataclass(frozen=True)
class Rate:
    """How often an event happened in ``runs`` simulations (None: calculated), and at most or at least how often it is
    promised to.
    """

    event: str
    value: float
    runs: int | None
    most: float | None = None
    least: float | None = None

    @classmethod
    def of(cls, event: str, happened: Any, *, most: float | None = None, least: float | None = None) -> Rate:
        """Return the rate of an event, given whether it happened in each simulation, as an array or a list."""
        return cls(event, float(np.mean(happened)), len(happened), most, least)

    @property
    def error(self) -> float:
        """The standard error of the simulation."""
        return math.sqrt(self.value * (1 - self.value) / self.runs) if self.runs else 0.0

    @property
    def broken(self) -> bool:
        """Whether the promise is broken beyond the error of the simulation, as it is where the promise is just met."""
        promise = self.most if self.most is not None else self.least
        if promise is None:
            return False
        beyond = self.value - promise if self.most is not None else promise - self.value
        return beyond > 1e-9 + (SURE * math.sqrt(promise * (1 - promise) / self.runs) if self.runs else 0.0)

    def __str__(self) -> str:
        text = f"{self.value:.4f}" + (f" ± {self.error:.4f}" if self.runs else "")
        return f"**{text}**" if self.broken else text

    @property
    def promise(self) -> str:
        """The promise in words."""
        return f"≤ {self.most:g}" if self.most is not None else f"≥ {self.least:g}" if self.least is not None else ""


@dataclass(frozen=True)
class Table:
    """Rates of one verdict: labels and rates in every row. The rates of a column have one event."""

    title: str
    note: str
    labels: tuple[str, ...]
    rows: Sequence[tuple[tuple[str, ...], tuple[Rate, ...]]]

    def text(self) -> str:
        """Return it as Markdown; an entry beyond its promise is bold."""
        header = list(self.labels)
        for column, rate in enumerate(self.rows[0][1]):
            promises = list(dict.fromkeys(rates[column].promise for _, rates in self.rows))
            one = promises[0] if len(promises) == 1 else ""
            header.append(f"{rate.event} ({one})" if one else rate.event)
        return f"## {self.title}\n\n{self.note}\n\n" + _report.table(header, [(*a, *map(str, b)) for a, b in self.rows])

    def data(self) -> list[dict[str, Any]]:
        """Return its rates as JSON types."""
        return [
            {
                "table": self.title, **dict(zip(self.labels, labels, strict=True)), "event": rate.event,
                "promise": rate.promise, "rate": rate.value, "error": rate.error, "runs": rate.runs,
                "beyond": rate.broken,
            }
            for labels, rates in self.rows for rate in rates
        ]  # fmt: skip


def cells(base: float, student: float, disagree: float) -> Array:
    """Return the probabilities of: both right, only the student, only base, neither. ``disagree`` is the share of items
    with different verdicts, as far as the two scores allow it.
    """
    gap = base - student
    total = max(abs(gap), min(disagree, 2 * (1 - base) + gap, 2 * base - gap))
    found = np.array([base - (total + gap) / 2, (total - gap) / 2, (total + gap) / 2, 1 - base - (total - gap) / 2])
    found = np.where(np.abs(found) < 1e-12, 0.0, found)
    return found / found.sum()


def values(factor: float, shift: float) -> Array:
    """Return student − factor·base − shift in the four cells."""
    return np.array([right - factor * reference - shift for right, reference in _RIGHT])


def score_tests(counts: Array, factor: float, shift: float, design: Array | float = 1.0) -> tuple[Array, Array]:
    """Return mean(student − factor·base − shift) and its statistic for each sample of ``counts`` [samples, 4].

    The test of :func:`evals.contrasts.paired_contrast`, written a second time for many samples at once; the callers
    compare some of them with the product.
    """
    found, total = values(factor, shift), counts.sum(axis=1)
    mean = counts @ found / total
    least = np.full(len(counts), -(1 - 1e-10) / found.max())
    most = np.full(len(counts), -(1 - 1e-10) / found.min())
    for _ in range(70):
        middle = (least + most) / 2
        rising = (counts * found / (1 + middle[:, None] * found)).sum(axis=1) > 0
        least, most = np.where(rising, middle, least), np.where(rising, most, middle)
    middle = (least + most) / 2
    weights = counts / (total[:, None] * (1 + middle[:, None] * found))
    rest = np.maximum(0.0, 1 - weights.sum(axis=1)) * np.where(middle < 0, found.max(), found.min()) ** 2
    spread = np.sqrt((weights @ found**2 + rest) * design / total)
    return mean, np.where(np.abs(mean) < 1e-12, 0.0, mean / np.maximum(spread, 1e-300))


def decide(mean: Array, statistic: Array, level: float, degrees: float = math.inf) -> tuple[Array, Array]:
    """Return for each sample [samples, rules] whether the rules are passed, and whether they are failed (Holm)."""
    reference = stats.norm if math.isinf(degrees) else stats.t(degrees)
    passed = (statistic >= reference.ppf(1 - level)) & (mean > 1e-9)
    below = reference.cdf(statistic)
    failed = np.zeros_like(passed)
    for run in np.flatnonzero((below <= level).any(axis=1)):
        failed[run] = np.array(holm(below[run].tolist())) <= level
    return passed, failed


def more(counts: Array, factor: float, shift: float, mean: Array, statistic: Array, level: float, rules: int) -> Array:
    """Return the items that :meth:`Contrast.more` asks for, 0 for None; a failure of ``rules`` is corrected.

    The first sample is compared with the product.
    """
    found, n = values(factor, shift), counts.sum(axis=1)
    error = np.sqrt((counts * (found - mean[:, None]) ** 2).sum(axis=1) / (n - 1) / n)
    levels = np.where(mean < 0, level / rules, level)
    with np.errstate(divide="ignore", invalid="ignore"):
        root = stats.norm.isf(levels) / np.abs(statistic) + stats.norm.ppf(0.8) * error / np.abs(mean)
        wanted = np.maximum(1, np.ceil(n * (root**2 - 1)))
    asked = np.where((statistic != 0) & (root**2 <= 1000), wanted, 0).astype(int)
    first = Contrast(float(mean[0]), float(error[0]), 0.0, 0.0, float(statistic[0]), math.inf, 0.5, int(n[0]))
    assert asked[0] == (first.more(alpha=float(levels[0])) or 0)
    return asked


def in_groups(at: Array, sizes: Array, runs: int, draw: np.random.Generator) -> Array:
    """Return the cells of items [runs, items] in groups of these sizes: half of the items have those of their group."""
    n = int(sizes.sum())
    shared = np.repeat(draw.random((runs, len(sizes))), sizes, axis=1)
    chance = np.where(draw.random((runs, n)) < 0.5, shared, draw.random((runs, n)))
    return np.searchsorted(np.cumsum(at)[:3], chance).astype(np.int8)


def group_tests(items: Array, sizes: Array, factor: float, shift: float) -> tuple[Array, Array]:
    """Return what :func:`score_tests` does for samples of items [runs, items] in groups of these sizes."""
    groups, n = len(sizes), int(sizes.sum())
    away = values(factor, shift)[items]
    away -= away.mean(axis=1, keepdims=True)
    sums = np.add.reduceat(away, np.concatenate([[0], np.cumsum(sizes)[:-1]]), axis=1)
    clustered = groups / (groups - 1) * (sums**2).sum(axis=1)
    plain = n / (n - 1) * (away**2).sum(axis=1)
    return score_tests(counted(items), factor, shift, np.maximum(1.0, clustered / plain))


def counted(items: Array) -> Array:
    """Return the number of items in each cell [samples, 4]."""
    return np.stack([(items == cell).sum(axis=1) for cell in range(4)], axis=1)


def names_of(sizes: Array) -> list[str]:
    """Return each item's group."""
    return [f"group {group}" for group in np.repeat(np.arange(len(sizes)), sizes)]


def measured(items: Array, groups: Sequence[str] = (), prefix: str = "") -> tuple[Measurement, Measurement]:
    """Return the student's and base's items, given the cell of each."""
    keys = [f"{prefix}{index}" for index in range(len(items))]
    named = dict(zip(keys, groups, strict=True)) if groups else {}
    sides = [{key: float(_RIGHT[cell][side]) for key, cell in zip(keys, items, strict=True)} for side in (0, 1)]
    return Measurement(sides[0], named), Measurement(sides[1], named)


def judged(
    rules: Sequence[Rule], items: Sequence[Array], *, alpha: float, looks: int = 1, groups: Sequence[str] = ()
) -> Decision:
    """Return the product's decision about the cells of one sample for each rule."""
    pairs = [measured(one, groups) for one in items]
    suites = {
        rule.name: [Measurement(beyond_constant=one) for one in pair] if rule.beyond_constant else pair
        for rule, pair in zip(rules, pairs, strict=True)
    }
    names = {"domain": "domain_knowledge", "instructions": "instruction_following"}
    student = {names.get(name, name): pair[0] for name, pair in suites.items()}
    base = {names.get(name, name): pair[1] for name, pair in suites.items()}
    evidence = Evidence({"student": student, "base": base, "midtrained": base})
    return judge_all(rules, evidence, alpha=alpha, looks=looks)


def agree(decision: Decision, passed: Array, failed: Array) -> None:
    """Raise AssertionError if the product says something else than :func:`decide`."""
    words = ["pass" if p else "fail" if f else "undecided" for p, f in zip(passed, failed, strict=True)]
    said = [verdict.verdict for verdict in decision.verdicts]
    assert said == words, f"the product says {said}, the benchmark {words}: {decision.reason}"
