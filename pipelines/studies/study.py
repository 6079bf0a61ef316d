"""What a study is: a claim, the criterion by which it is judged, fixed before any run, and what came of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from scipy import stats

if TYPE_CHECKING:
    from pipelines.lab import Lab

Word = Literal["holds", "does not hold", "undecided"]
Figures = Mapping[str, float]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Part:
    """One statement of a claim: a figure of each seed and the value it must lie above (or below).

    It holds where the whole confidence interval of the mean over seeds does, fails where none of it does, and is
    undecided between.
    """

    statement: str
    figure: Callable[[Figures], float]
    bound: float
    above: bool = True

    def verdict(self, runs: Sequence[Figures]) -> Word:
        """The statement's own verdict."""
        low, high = interval([self.figure(run) for run in runs])
        if not self.above:
            low, high = -high, -low
        bound = self.bound if self.above else -self.bound
        return "holds" if low > bound else "does not hold" if high < bound else "undecided"


@dataclass(frozen=True)
class Study:
    """A published claim as an experiment.

    ``run`` makes one seed's figures in a laboratory; ``parts`` judge them; ``minutes`` is the budget of a seed on two
    cores; ``heavy`` leaves it out of ``recover study all``. ``columns`` name the figures the table shows.
    """

    name: str
    claim: str
    source: str
    setting: str
    parts: tuple[Part, ...]
    run: Callable[[Lab], Figures]
    minutes: float = 10.0
    heavy: bool = False

    @property
    def criterion(self) -> str:
        """What was fixed before the run, in words."""
        sides = (f"{p.statement} ({'>' if p.above else '<'} {p.bound:g})" for p in self.parts)
        return f"with {CONFIDENCE:.0%} confidence over seeds: " + "; ".join(sides)


@dataclass(frozen=True)
class Outcome:
    """A study's figures, a mapping a seed, and what follows from them. No suite asked more than ``items`` items."""

    study: Study
    runs: Mapping[int, Figures]
    items: int
    minutes: float
    budget: float = 1.0
    dates: tuple[str, ...] = ()

    @property
    def parts(self) -> list[tuple[Part, Word]]:
        """Each statement with its verdict."""
        return [(part, part.verdict(list(self.runs.values()))) for part in self.study.parts]

    @property
    def verdict(self) -> Word:
        """The claim holds where all of its statements do, and fails where one of them does."""
        words = [word for _, word in self.parts]
        if all(word == "holds" for word in words):
            return "holds"
        return "does not hold" if "does not hold" in words else "undecided"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's t interval of the mean over seeds; of a single seed nothing is known."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return -math.inf, math.inf
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation over seeds."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
