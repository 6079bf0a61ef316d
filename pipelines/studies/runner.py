"""Runs studies seed by seed, stores their figures, and writes their page. A finished seed is not run again."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from db import Tracker
from evals.statistics import spread
from pipelines.planning.machine import machine
from pipelines.reports.document import table_lines
from pipelines.runtime.progress import Display, duration
from pipelines.runtime.session import Session
from pipelines.studies.experiment import ExperimentRunner, experiment_name
from pipelines.studies.study import CONFIDENCE, Figures, Outcome, Part, Study, Word
from recovery.errors import UsageError
from recovery.workspace import MINIATURE, Workspace, write_atomically

FIGURES = "figures.json"


@dataclass(frozen=True)
class Kept:
    """One seed's stored figures, with budget and duration."""

    seed: int
    budget: float
    items: int
    minutes: float
    date: str
    figures: dict[str, float]


def run_study(study: Study, workspace: Workspace, seeds: Sequence[int], budget: float, display: Display) -> Outcome:
    """Run the missing seeds of a study in a workspace and return the outcome over all seeds.

    Runs of another budget are another experiment and are not used.
    """
    for seed in seeds:
        if read(study, workspace.folder, seed, budget) is None:
            about = f"about {study.minutes * budget:.0f} minutes"
            display.say(f"\nstudy {study.name}, seed {seed}: {study.claim} ({about})")
            _run(study, workspace, seed, budget, display)
    outcome = kept_outcome(study, workspace.folder, seeds, budget)
    assert outcome is not None  # every seed is done
    _publish(outcome, workspace)
    return outcome


def kept_outcome(
    study: Study, folder: Path, seeds: Sequence[int] | None = None, budget: float | None = None
) -> Outcome | None:
    """Return the stored outcome of a study (default: of the largest budget); None if no seed is done."""
    if budget is None:
        budget = max(_budgets(study, folder), default=1.0)
    wanted = seeds if seeds is not None else _seeds(study, folder, budget)
    kept = [found for seed in wanted if (found := read(study, folder, seed, budget)) is not None]
    if not kept:
        return None
    runs = {found.seed: found.figures for found in kept}
    days = sorted({found.date for found in kept})
    minutes = sum(found.minutes for found in kept) / len(kept)
    return Outcome(study, runs, min(found.items for found in kept), minutes, budget, tuple(days))


def read(study: Study, folder: Path, seed: int, budget: float) -> Kept | None:
    """Return one seed's stored figures at a budget. Raises UsageError if the file is damaged."""
    path = _home(study, folder, seed, budget) / FIGURES
    if not path.is_file():
        return None
    try:
        return Kept(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} cannot be read ({error}): delete it to run that seed's last step again") from error


def _run(study: Study, workspace: Workspace, seed: int, budget: float, display: Display) -> None:
    home = _home(study, workspace.folder, seed, budget)
    started = time.monotonic()
    with Session.open(
        Workspace(home, str(workspace.database), workspace.report_to),
        model=MINIATURE,
        display=display,
        experiment=experiment_name(study.name, budget, seed),
        purpose=f"recover study {study.name}",
    ) as session:
        runner = ExperimentRunner(session, seed, budget, others=_others(study, workspace.folder, seed, budget))
        figures = {name: float(value) for name, value in study.run(runner).items()}
    minutes = (time.monotonic() - started) / 60  # since the last resume
    kept = Kept(seed, budget, runner.items, round(minutes, 2), datetime.date.today().isoformat(), figures)
    write_atomically(home / FIGURES, json.dumps(vars(kept), indent=2) + "\n")
    display.say(f"study {study.name}, seed {seed}: done in {duration(minutes * 60)}")


def _publish(outcome: Outcome, workspace: Workspace) -> None:
    """Write the table and the verdict into the tracker, for the dashboard."""
    with Tracker(workspace.database) as tracker:
        number = tracker.experiment(f"study/{outcome.study.name}/budget-{outcome.budget:g}")
        tracker.describe_experiment(number, as_json(outcome))


def _others(study: Study, folder: Path, seed: int, budget: float) -> dict[str, dict[str, float]]:
    """Return this seed's figures of other studies at the same budget."""
    done = (folder / "studies").glob(f"*/budget-{budget:g}/seed-{seed}/{FIGURES}")
    found = {path.parent.parent.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in done}
    return {name: kept["figures"] for name, kept in sorted(found.items()) if name != study.name}


def _home(study: Study, folder: Path, seed: int, budget: float) -> Path:
    return folder / "studies" / study.name / f"budget-{budget:g}" / f"seed-{seed}"


def _budgets(study: Study, folder: Path) -> list[float]:
    """Return the budgets at which at least one seed is done."""
    done = (folder / "studies" / study.name).glob(f"budget-*/seed-*/{FIGURES}")
    return [float(path.parent.parent.name.removeprefix("budget-")) for path in done]


def _seeds(study: Study, folder: Path, budget: float) -> list[int]:
    found = (folder / "studies" / study.name).glob(f"budget-{budget:g}/seed-*/{FIGURES}")
    return sorted(int(path.parent.name.removeprefix("seed-")) for path in found)


# --- reports -------------------------------------------------------------------------------------------------


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return a study as ``recover study results --json`` prints it."""
    study = outcome.study
    names = list(dict.fromkeys(name for run in outcome.runs.values() for name in run))
    return {
        "study": study.name,
        "claim": study.claim,
        "source": study.source,
        "setting": study.setting,
        "criterion": study.criterion,
        "seeds": list(outcome.runs),
        "n": outcome.items,
        "budget": outcome.budget,
        "dates": list(outcome.dates),
        "figures": {name: _figure(outcome, name) for name in names},
        "parts": [_part(part, word, list(outcome.runs.values())) for part, word in outcome.parts],
        "verdict": outcome.verdict,
    }


def _part(part: Part, word: Word, runs: Sequence[Figures]) -> dict[str, Any]:
    low, high = part.interval(runs)
    found: dict[str, Any] = {"statement": part.statement, "bound": part.side, "mean": part.mean(runs), "verdict": word}
    found |= {"low": low, "high": high} if len(runs) > 1 else {}
    if part.given is not None:
        found["given"] = {
            "statement": part.given.statement,
            "bound": part.given.side,
            "mean": part.given.mean(runs),
            "met": part.given.met(runs),
        }
    return found


def _figure(outcome: Outcome, name: str) -> dict[str, Any]:
    by_seed = {seed: run[name] for seed, run in outcome.runs.items() if name in run}
    mean, deviation = spread(list(by_seed.values()))
    return {"mean": mean, "spread": deviation, "by_seed": by_seed}


def text(outcome: Outcome) -> str:
    """Return a study's table and verdict as text."""
    lines = [f"{outcome.study.name}: {outcome.study.claim}", f"  source: {outcome.study.source}"]
    figures = as_json(outcome)["figures"]
    width = max(len(name) for name in figures)
    lines += [f"  {name:<{width}}  {cell(found)}" for name, found in figures.items()]
    lines += [f"  {word:<14} {part.statement}" for part, word in outcome.parts]
    lines.append(
        f"  verdict: {outcome.verdict} ({len(outcome.runs)} seeds, n at most {outcome.items} a suite, "
        f"budget {outcome.budget:g})"
    )
    return "\n".join(lines)


def cell(figure: dict[str, Any]) -> str:
    """Format the mean ± standard deviation over seeds."""
    if abs(figure["mean"]) >= 1e5:
        return f"{figure['mean']:.3g} ± {figure['spread']:.2g}"
    return f"{figure['mean']:.3f} ± {figure['spread']:.3f}"


def markdown(outcomes: Sequence[Outcome], command: str) -> str:
    """Return all studies as a page of the documentation."""
    rows = [
        (
            *(f"[{o.study.name}](#{o.study.name})", o.study.claim, f"**{o.verdict}**"),
            *(", ".join(map(str, o.runs)), str(o.items), f"{o.budget:g}", ", ".join(o.dates)),
        )
        for o in outcomes
    ]
    lines = [
        "# The studies: published claims, run on the miniature",
        "",
        f"Written by `{command}` on {datetime.date.today().isoformat()}. Each criterion was fixed before the runs; a "
        f"statement holds where the whole {CONFIDENCE:.0%} interval over seeds (Student's t) lies beyond its bound, "
        "does not hold where none of it does, and is undecided at this scale between. A statement is not tested where "
        "its runs could not have decided it, for the reason given ([audit](audit.md)). Steps told in a setting are "
        "those of budget 1. Every figure of every seed is in the CSV file beside this page. A model of two million "
        "parameters in a world of its own contradicts nobody: the verdict is about what happens here.",
        "",
        *table_lines(("study", "claim", "verdict", "seeds", "n at most", "budget", "run on"), rows),
    ]
    for outcome in outcomes:
        lines += ["", *_section(outcome)]
    return "\n".join([*lines, "", machine(), ""])


def _section(outcome: Outcome) -> list[str]:
    study, figures = outcome.study, as_json(outcome)["figures"]
    return [
        f"## {study.name}",
        "",
        f"**Claim.** {study.claim} ({study.source})",
        "",
        f"**Setting.** {study.setting}",
        "",
        f"**Verdict: {outcome.verdict}.**",
        "",
        *table_lines(
            ("statement, fixed before the run", "bound", "mean", "95% interval", "verdict"),
            [_row(part) for part in as_json(outcome)["parts"]],
        ),
        "",
        *table_lines(
            ("figure", "mean ± spread over seeds"), [(name, cell(figure)) for name, figure in figures.items()]
        ),
    ]


def _row(part: dict[str, Any]) -> tuple[str, ...]:
    """Return a statement as a row of the page; a condition is named if it is not met."""
    given, limits = part.get("given"), f"{part['low']:.3f} to {part['high']:.3f}" if "low" in part else "one seed"
    word = part["verdict"]
    if given is not None and not given["met"]:
        word += f": needs {given['statement']} ({given['bound']}), is {given['mean']:.3f}"
    return part["statement"], part["bound"], f"{part['mean']:.3f}", limits, word
