"""Definition of a study: a claim, its criterion, and its outcome.

Bounds were fixed before the first runs, except those of parts that say otherwise (``Part.added``). Whether a statement
was tested at all (``Part.given``) was added by the audit of docs/audit.md, after the first runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from recovery.lazy_import import lazily

if TYPE_CHECKING:
    from pipelines.studies.experiment import ExperimentRunner

stats = lazily("scipy.stats")
Word = Literal["holds", "does not hold", "undecided", "not tested"]
Figures = Mapping[str, float]
Figure = Callable[[Figures], float]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Part:
    """One statement of a claim: a figure of each seed and the bound it must be above (or below).

    It holds if the whole confidence interval of the mean over seeds is beyond the bound, does not hold if none of it
    is, and is undecided otherwise. The spread over seeds counts as at least one item of the largest suite. It is not
    tested if the mean of ``given`` is not beyond its own bound: the runs then could not have shown the statement, or
    could not have refuted it. ``added`` says when, if a statement was added after a run of it.
    """

    statement: str
    figure: Figure
    bound: float
    above: bool = True
    given: Part | None = None
    added: str = ""

    def measured(self, run: Figures) -> bool:
        """Whether a seed has the figure: arms that were not run have none."""
        try:
            self.figure(run)
        except KeyError:
            return False
        return True

    @property
    def side(self) -> str:
        """The bound with its sign."""
        return f"{'>' if self.above else '<'} {self.bound:g}"

    def mean(self, runs: Sequence[Figures]) -> float:
        """Return the mean over seeds."""
        return statistics.fmean(self.figure(run) for run in runs)

    def interval(self, runs: Sequence[Figures], items: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the confidence interval of the mean over seeds, whose suites have ``items`` items at most."""
        return interval([self.figure(run) for run in runs], confidence, least=1 / items)

    def verdict(self, runs: Sequence[Figures], items: int, confidence: float = CONFIDENCE) -> Word:
        """Return the statement's verdict."""
        if self.given is not None and not self.given.met(runs):
            return "not tested"
        low, high = self.interval(runs, items, confidence)
        if not self.above:
            low, high = -high, -low
        bound = self.bound if self.above else -self.bound
        return "holds" if low > bound else "does not hold" if high < bound else "undecided"

    def met(self, runs: Sequence[Figures]) -> bool:
        """Whether the mean over seeds is beyond the bound."""
        return self.mean(runs) > self.bound if self.above else self.mean(runs) < self.bound


@dataclass(frozen=True)
class Study:
    """A published claim as an experiment.

    ``run`` returns one seed's figures; ``parts`` judge them; ``minutes`` is the duration of a seed on two cores;
    ``heavy`` excludes it from ``recover study all``; of ``arms``, and of its cycles, some can be chosen;
    ``items`` is the maximum number of items per suite at the whole budget.
    """

    name: str
    claim: str
    source: str
    setting: str
    parts: tuple[Part, ...]
    run: Callable[[ExperimentRunner], Figures]
    minutes: float = 10.0
    heavy: bool = False
    arms: tuple[str, ...] = ()
    items: int = 300

    @property
    def criterion(self) -> str:
        """The criterion in words."""
        sides = (f"{part.statement} ({part.side})" for part in self.parts)
        return f"with {CONFIDENCE:.0%} confidence over seeds: " + "; ".join(sides)


@dataclass(frozen=True)
class Outcome:
    """A study's figures by seed, and the verdicts. ``items`` is the maximum number of items per suite."""

    study: Study
    runs: Mapping[int, Figures]
    items: int
    minutes: float
    budget: float = 1.0
    dates: tuple[str, ...] = ()

    @property
    def parts(self) -> list[tuple[Part, Word]]:
        """Each statement that at least one seed has figures for, with its verdict."""
        judged = ((part, self.runs_of(part)) for part in self.study.parts)
        return [(part, part.verdict(runs, self.items)) for part, runs in judged if runs]

    def runs_of(self, part: Part) -> list[Figures]:
        """Return the figures of the seeds that have a statement's."""
        return [run for run in self.runs.values() if part.measured(run)]

    @property
    def verdict(self) -> Word:
        """The claim holds if all of its statements do, does not hold if one of them does not at a level shared by all
        that were tested (Bonferroni), and is not tested if none was. Of arms, those that were run are judged.
        """
        judged = self.parts
        words = [word for _, word in judged]
        if set(words) == {"holds"}:
            return "holds" if self.study.arms or len(judged) == len(self.study.parts) else "undecided"
        tested = len(words) - words.count("not tested")
        if not tested:
            return "not tested"
        shared = 1 - (1 - CONFIDENCE) / tested
        failed = any(part.verdict(self.runs_of(part), self.items, shared) == "does not hold" for part, _ in judged)
        return "does not hold" if failed else "undecided"


def figure(name: str) -> Figure:
    """Return a function for one figure of a seed."""
    return lambda figures: figures[name]


def minus(first: str, second: str) -> Figure:
    """Return a function for the difference of two figures."""
    return lambda figures: figures[first] - figures[second]


def gained(what: str, first: str, second: str) -> Part:
    """Return the condition that a figure is five points above another: that something has been learnt at all."""
    return Part(f"that {what}", minus(first, second), 0.05)


def over(first: str, second: str) -> Figure:
    """Return a function for the ratio of two figures; the second is not negative."""
    return lambda figures: figures[first] / max(1e-9, figures[second])


def interval(values: Sequence[float], confidence: float = CONFIDENCE, *, least: float = 0.0) -> tuple[float, float]:
    """Return Student's t interval of the mean over seeds; infinite for a single seed.

    The standard deviation counts as at least ``least``: scores of few items are often equal over a few seeds, which
    does not mean that the next seed's would be.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return -math.inf, math.inf
    deviation = max(statistics.stdev(values), least)
    half = float(stats.t.ppf(0.5 + confidence / 2, len(values) - 1)) * deviation / math.sqrt(len(values))
    return mean - half, mean + half
