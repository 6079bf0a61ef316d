"""`recover study`: published claims as experiments on the built-in miniature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from recovery.cli import options, stages
from recovery.workspace import Workspace

ALL, RESULTS = "all", "results"


@click.command()
@click.argument("name", required=False)
@options.workspace
@options.seeds
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    default=None,
    show_default="1; for results the largest there is",
    help="Scales every run's steps, and below 0.5 the items asked too.",
)
@options.write_docs
@options.as_json
def command(
    name: str | None,
    workspace: Workspace,
    seeds: tuple[int, ...],
    budget: float | None,
    write_docs: Path | None,
    as_json: bool,
) -> None:
    """Run the published claims as experiments on the miniature.

    `recover study NAME` runs one, `recover study all` all but the longest. Without a NAME it lists the studies;
    `recover study results` shows what is done. Each has its criterion fixed in
    the code, runs on the miniature with several seeds (default 0,1,2), and ends in a verdict: holds, does not hold, or
    undecided at this scale. A study that was stopped goes on at the first run that is missing.
    """
    from pipelines.progress import Display
    from pipelines.studies import STUDIES, chosen
    from pipelines.studies.runner import as_json as shown
    from pipelines.studies.runner import kept_outcome, markdown, run_study, text

    if name is None:
        rows = [{"study": s.name, "claim": s.claim, "minutes": s.minutes, "heavy": s.heavy} for s in STUDIES.values()]
        options.emit(rows, as_json, lambda: _listed(list(STUDIES.values())))
        return
    if name == RESULTS:
        kept = (kept_outcome(study, workspace.folder, seeds or None, budget) for study in STUDIES.values())
        outcomes = [outcome for outcome in kept if outcome is not None]
    else:
        with stages.resumable():
            outcomes = [run_study(s, workspace, seeds or (0, 1, 2), budget or 1.0, Display()) for s in chosen(name)]
    stages.write_page(write_docs, markdown(outcomes, f"recover study {name}"))
    told = "\n\n".join(text(outcome) for outcome in outcomes) or "no study has been run here: recover study NAME"
    options.emit([shown(outcome) for outcome in outcomes], as_json, told)


def _listed(studies: list[Any]) -> str:
    lines = [f"{s.name:<12} {s.minutes:>3.0f} min a seed  {s.claim}" for s in studies]
    return "\n".join([*lines, "\n`recover study NAME` runs one, `recover study all` all but the longest."])
