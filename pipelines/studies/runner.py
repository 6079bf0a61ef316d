"""Runs studies seed by seed and stores their figures as they come. A finished seed is not run again.

A study with arms and cycles to choose is run again whatever is stored: its figures may be those of other arms or fewer
cycles. Its finished runs are found by their names, so that only the others cost time.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from db import Tracker
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from pipelines.studies.results import as_json
from pipelines.studies.study import Figures, Outcome, Study
from pipelines.units import duration
from recovery.errors import UsageError
from recovery.lazy_import import lazily
from recovery.workspace import MINIATURE, Workspace, write_atomically

experiment = lazily("pipelines.studies.experiment")  # torch; what is stored does not need it
FIGURES = "figures.json"


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


@dataclass(frozen=True)
class Choice:
    """Arms and number of cycles of a study that has them; empty for its own."""

    arms: tuple[str, ...] = ()
    cycles: int | None = None

    def check(self, study: Study) -> None:
        """Raise UsageError if the study has no such choice."""
        if (self.arms or self.cycles) and not study.arms:
            raise UsageError(f"the study {study.name} has no arms and cycles to choose: omit --arms and --cycles")
        for arm in self.arms:
            if arm not in study.arms:
                raise UsageError(f"the study {study.name} has no arm {arm!r}: {'; '.join(study.arms)}")


def run_study(
    study: Study,
    workspace: Workspace,
    seeds: Sequence[int],
    budget: float,
    display: Display,
    choice: Choice | None = None,
) -> Outcome:
    """Run the missing seeds of a study in a workspace and return the outcome over all seeds.

    Runs of another budget are another experiment and are not used. A finished seed of a study with arms is extended by
    the ``choice``: runs that are done are not repeated. Raise UsageError if the study has no such arm.
    """
    choice = choice or Choice()
    choice.check(study)
    for seed in seeds:
        kept = read(study, workspace.folder, seed, budget)
        if study.arms or kept is None or not kept.complete:
            about = f"about {study.minutes * budget:.0f} minutes"
            display.say(f"\nstudy {study.name}, seed {seed}: {study.claim} ({about})")
            _run(study, workspace, seed, budget, display, choice)
    outcome = kept_outcome(study, workspace.folder, seeds, budget)
    assert outcome is not None  # every seed is done
    _publish(outcome, workspace)
    return outcome


def kept_outcome(
    study: Study, folder: Path, seeds: Sequence[int] | None = None, budget: float | None = None
) -> Outcome | None:
    """Return the stored outcome of a study (default: of the largest budget that a seed has finished, if any has); None
    if no seed has figures.
    """
    found = _all_kept(study, folder)
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


def read(study: Study, folder: Path, seed: int, budget: float) -> Kept | None:
    """Return one seed's stored figures at a budget. Raises UsageError if the file is damaged."""
    path = _home(study, folder, seed, budget) / FIGURES
    return _read(path) if path.is_file() else None


def _read(path: Path) -> Kept:
    try:
        return Kept(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} cannot be read ({error}): delete it to run that seed's last step again") from error


def _all_kept(study: Study, folder: Path) -> list[Kept]:
    """Return the stored figures of every seed and budget, by seed."""
    paths = (folder / "studies" / study.name).glob(f"budget-*/seed-*/{FIGURES}")
    return sorted(map(_read, paths), key=lambda kept: kept.seed)


def _run(study: Study, workspace: Workspace, seed: int, budget: float, display: Display, choice: Choice) -> None:
    home = _home(study, workspace.folder, seed, budget)
    before = read(study, workspace.folder, seed, budget)
    started = time.monotonic()

    def record(figures: Figures, complete: bool = False) -> None:
        minutes = (time.monotonic() - started) / 60  # since the last resume
        all_figures = {**(before.figures if before else {}), **{name: float(value) for name, value in figures.items()}}
        today = datetime.date.today().isoformat()
        kept = Kept(seed, budget, runner.items, round(minutes, 2), today, all_figures, complete)
        if complete and before is not None and before.complete and before.figures == all_figures:
            kept = before  # nothing was left to run: its date and duration are still those of the runs
        write_atomically(home / FIGURES, json.dumps(vars(kept), indent=2) + "\n")

    with Session.open(
        Workspace(home, str(workspace.database), workspace.report_to),
        model=MINIATURE,
        display=display,
        experiment=experiment.experiment_name(study.name, budget, seed),
        purpose=f"recover study {study.name}",
    ) as session:
        others = _others(study, workspace.folder, seed, budget)
        runner = experiment.ExperimentRunner(
            session, seed, budget, study.items, others, choice.arms, choice.cycles, record
        )
        record(study.run(runner), complete=True)
    display.say(f"study {study.name}, seed {seed}: done in {duration(time.monotonic() - started)}")


def _publish(outcome: Outcome, workspace: Workspace) -> None:
    """Write the figures and the verdict into the tracker, for the dashboard."""
    with Tracker(workspace.database) as tracker:
        number = tracker.experiment(f"study/{outcome.study.name}/budget-{outcome.budget:g}")
        tracker.describe_experiment(number, as_json(outcome))


def _others(study: Study, folder: Path, seed: int, budget: float) -> dict[str, dict[str, float]]:
    """Return this seed's figures of other studies at the same budget."""
    done = (folder / "studies").glob(f"*/budget-{budget:g}/seed-{seed}/{FIGURES}")
    found = {path.parent.parent.parent.name: _read(path) for path in done}
    return {name: kept.figures for name, kept in sorted(found.items()) if name != study.name and kept.complete}


def _home(study: Study, folder: Path, seed: int, budget: float) -> Path:
    return folder / "studies" / study.name / f"budget-{budget:g}" / f"seed-{seed}"
