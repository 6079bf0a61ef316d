"""A study: a claim, the statements that it consists of, the figures of each seed, and the verdict.

Bounds were fixed before the first runs, except those of parts that say otherwise (``Part.added``). Whether a statement
was tested at all (``Part.given``) was added by the audit of docs/audit.md, after the first runs.

Figures are stored in WORKSPACE/studies/NAME/budget-B/seed-S/figures.json as they come. A finished seed is not run
again, except of a study with arms and cycles to choose: its figures may be those of other arms or fewer cycles. Its
finished runs are found by their names, so that only the others cost time.
"""

from __future__ import annotations

import datetime
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from evals.statistics import spread
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from pipelines.table import duration
from recovery.errors import UsageError
from recovery.lazy_import import lazily
from recovery.workspace import MINIATURE, Workspace, write_atomically

if TYPE_CHECKING:
    from examples.studies.runner import Runner
else:
    Runner = Any  # the runner loads torch, which the list of studies and their pages do not need

runners = lazily("examples.studies.runner")
stats = lazily("scipy.stats")
Word = Literal["holds", "does not hold", "undecided", "not tested"]
Figures = Mapping[str, float]
Figure = Callable[[Figures], float]
CONFIDENCE = 0.95
FIGURES = "figures.json"
# Suites of the runs, by the names that the tracker has.
INSTRUCTIONS, KNOWLEDGE = "instruction_following", "domain_knowledge"


def interval(values: Sequence[float], confidence: float = CONFIDENCE, *, least: float = 0.0) -> tuple[float, float]:
    """Return Student's t interval of the mean over n seeds, mean ± t(n - 1) s / sqrt(n); infinite for a single seed.

    The standard deviation s counts as at least ``least``: scores of few items are often equal over a few seeds, which
    does not mean that the next seed's would be.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return -math.inf, math.inf
    deviation = max(statistics.stdev(values), least)
    half = float(stats.t.ppf(0.5 + confidence / 2, len(values) - 1)) * deviation / math.sqrt(len(values))
    return mean - half, mean + half


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

    def as_json(self, runs: Sequence[Figures], items: int, verdict: Word) -> dict[str, Any]:
        """Return the statement with its mean, its interval if there are several seeds, and its verdict."""
        found: dict[str, Any] = {"statement": self.statement, "bound": self.side, "mean": self.mean(runs)}
        found["verdict"] = verdict
        if len(runs) > 1:
            found["low"], found["high"] = self.interval(runs, items)
        if self.added:
            found["added"] = self.added
        if self.given is not None:
            given = {"statement": self.given.statement, "bound": self.given.side}
            found["given"] = {**given, "mean": self.given.mean(runs), "met": self.given.met(runs)}
        return found


@dataclass(frozen=True)
class Study:
    """A published claim as an experiment.

    ``run`` returns one seed's figures; ``parts`` judge them; ``minutes`` is the duration of a seed on two cores;
    ``heavy`` excludes it from ``recover study all``; of ``arms``, and of its cycles, some can be chosen;
    ``items`` is the maximum number of items per suite at the whole budget. ``page`` (of an outcome, a command and the
    address of a picture) and ``picture`` replace the common ones.
    """

    name: str
    claim: str
    source: str
    setting: str
    parts: tuple[Part, ...]
    run: Callable[[Runner], Figures]
    minutes: float = 10.0
    heavy: bool = False
    arms: tuple[str, ...] = ()
    items: int = 300
    page: Callable[[Outcome, str, str], str] | None = None
    picture: Callable[[Outcome], str] | None = None

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

    @property
    def figures(self) -> dict[str, dict[str, Any]]:
        """The mean, the standard deviation over seeds and the value of each seed, by figure."""
        found = {}
        for name in dict.fromkeys(name for run in self.runs.values() for name in run):
            by_seed = {seed: run[name] for seed, run in self.runs.items() if name in run}
            mean, deviation = spread(list(by_seed.values()))
            found[name] = {"mean": mean, "spread": deviation, "by_seed": by_seed}
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as ``recover study results --json`` prints it."""
        study = self.study
        return {
            "study": study.name,
            "claim": study.claim,
            "source": study.source,
            "setting": study.setting,
            "criterion": study.criterion,
            "seeds": list(self.runs),
            "n": self.items,
            "budget": self.budget,
            "dates": list(self.dates),
            "figures": self.figures,
            "parts": [part.as_json(self.runs_of(part), self.items, word) for part, word in self.parts],
            "verdict": self.verdict,
        }


def figure(name: str) -> Figure:
    """Return a function for one figure of a seed."""
    return lambda figures: figures[name]


def minus(first: str, second: str) -> Figure:
    """Return a function for the difference of two figures."""
    return lambda figures: figures[first] - figures[second]


def over(first: str, second: str) -> Figure:
    """Return a function for the ratio of two figures; the second is not negative."""
    return lambda figures: figures[first] / max(1e-9, figures[second])


def gained(what: str, first: str, second: str) -> Part:
    """Return the condition that a figure is five points above another: that something has been learnt at all."""
    return Part(f"that {what}", minus(first, second), 0.05)


@dataclass(frozen=True)
class Kept:
    """One seed's stored figures, with budget and duration; ``complete`` unless its run was stopped."""

    seed: int
    budget: float
    items: int
    minutes: float
    date: str
    figures: dict[str, float]
    complete: bool = True


def read(path: Path) -> Kept:
    """Return the figures that are stored in a file. Raises UsageError if it is damaged."""
    try:
        return Kept(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} cannot be read ({error}): delete it to run that seed's last step again") from error


def kept_outcome(
    study: Study, folder: Path, seeds: Sequence[int] | None = None, budget: float | None = None
) -> Outcome | None:
    """Return the stored outcome of a study (default: of the largest budget that a seed has finished, if any has); None
    if no seed has figures.
    """
    paths = (folder / "studies" / study.name).glob(f"budget-*/seed-*/{FIGURES}")
    found = sorted(map(read, paths), key=lambda kept: kept.seed)
    if budget is None:
        whole = [kept.budget for kept in found if kept.complete]
        budget = max(whole or [kept.budget for kept in found], default=1.0)
    kept = [one for one in found if one.budget == budget and (seeds is None or one.seed in seeds)]
    if not kept:
        return None
    runs = {one.seed: one.figures for one in kept}
    days = sorted({one.date for one in kept})
    minutes = sum(one.minutes for one in kept) / len(kept)
    return Outcome(study, runs, min(one.items for one in kept), minutes, budget, tuple(days))


def run_study(
    study: Study,
    workspace: Workspace,
    seeds: Sequence[int],
    budget: float,
    display: Display,
    *,
    arms: Sequence[str] = (),
    cycles: int | None = None,
) -> Outcome:
    """Run the missing seeds of a study in a workspace and return the outcome over all seeds.

    Runs of another budget are another experiment and are not used. A finished seed of a study with arms is extended by
    the chosen ``arms`` and ``cycles`` (empty: its own): runs that are done are not repeated. Raise UsageError if the
    study has no such arm.
    """
    if (arms or cycles) and not study.arms:
        raise UsageError(f"the study {study.name} has no arms and cycles to choose: omit --arms and --cycles")
    for arm in arms:
        if arm not in study.arms:
            raise UsageError(f"the study {study.name} has no arm {arm!r}: {'; '.join(study.arms)}")
    experiment = f"study/{study.name}/budget-{budget:g}"
    for seed in seeds:
        home = workspace.folder / "studies" / study.name / f"budget-{budget:g}" / f"seed-{seed}"
        before = read(home / FIGURES) if (home / FIGURES).is_file() else None
        if before is not None and before.complete and not study.arms:
            continue
        about = f"about {study.minutes * budget:.0f} minutes"
        display.say(f"\nstudy {study.name}, seed {seed}: {study.claim} ({about})")
        started = time.monotonic()
        place = Workspace(home, str(workspace.database), workspace.report_to)
        name, purpose = f"{experiment}/seed-{seed}", f"recover study {study.name}"
        with Session.open(place, model=MINIATURE, display=display, experiment=name, purpose=purpose) as session:
            runner = runners.Runner(session, seed, study.items, budget, tuple(arms), cycles)
            runner.record = _recorder(home / FIGURES, runner, before)
            runner.record(study.run(runner), complete=True)
        display.say(f"study {study.name}, seed {seed}: done in {duration(time.monotonic() - started)}")
    outcome = kept_outcome(study, workspace.folder, seeds, budget)
    assert outcome is not None  # every seed is done
    return outcome


def _recorder(path: Path, runner: Runner, before: Kept | None) -> Callable[..., None]:
    """Return the function that stores a seed's figures so far, with those that were stored ``before``."""
    started = time.monotonic()

    def record(figures: Figures, complete: bool = False) -> None:
        minutes = (time.monotonic() - started) / 60  # since the last resume
        all_figures = {**(before.figures if before else {}), **{name: float(value) for name, value in figures.items()}}
        today = datetime.date.today().isoformat()
        kept = Kept(runner.seed, runner.budget, runner.items, round(minutes, 2), today, all_figures, complete)
        if complete and before is not None and before.complete and before.figures == all_figures:
            kept = before  # nothing was left to run: its date and duration are still those of the runs
        write_atomically(path, json.dumps(vars(kept), indent=2) + "\n")

    return record
