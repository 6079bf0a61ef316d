"""`recover study`: published claims as experiments, in a clone of the repository; `recover miniature`: their model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipelines.cli import common, stage_options
from recovery.errors import UsageError
from recovery.workspace import Workspace

ALL, RESULTS = "all", "results"


@click.command()
@click.argument("name", required=False)
@common.workspace
@common.report_to()
@common.seeds
@click.option(
    "--budget",
    type=common.FiniteRange(min=0, min_open=True),
    help="Scales every run's steps, and below 0.5 also the items per suite.  [default: 1; for results the largest "
    "available]",
)
@click.option("--arms", metavar="A,B", help="Of a study with arms (horizon): run these; 'all': every one.")
@click.option("--cycles", type=common.WholeRange(min=2), help="Of such a study: number of cycles.")
@common.write_docs
@common.as_json
def command(
    name: str | None,
    workspace: Workspace,
    seeds: tuple[int, ...],
    budget: float | None,
    arms: str | None,
    cycles: int | None,
    write_docs: Path | None,
    as_json: bool,
) -> None:
    """Run published claims as experiments on the miniature.

    `recover study NAME` runs one, `recover study all` all but the longest. Without a NAME it lists the studies;
    `recover study results` shows those that were run, stopped ones as far as they went. Each runs on the miniature with
    several seeds (default 0,1,2), and ends in a verdict by a criterion that is fixed in the code: holds, does not hold,
    or undecided at this scale. A stopped study resumes at the first missing run. `--write-docs` also writes every
    figure of every seed as CSV beside the page, and a picture of each study in images/; figures of earlier runs stay.
    """
    from pipelines.runtime.progress import Display

    studies, page, study = (common.of_examples(f"studies{module}") for module in ("", ".page", ".study"))
    if name is None:
        every = studies.STUDIES.values()
        rows = [{"study": s.name, "claim": s.claim, "minutes": s.minutes, "heavy": s.heavy} for s in every]
        common.emit(rows, as_json, lambda: _listed(rows))
        return
    if name == RESULTS:
        kept = [study.kept_outcome(s, workspace.folder, seeds or None, budget) for s in studies.STUDIES.values()]
        outcomes = [outcome for outcome in kept if outcome is not None]
    else:
        named = [arm.strip() for arm in (arms or "").split(",") if arm.strip()]
        settings = (workspace, seeds or (0, 1, 2), budget or 1.0, Display())
        with stage_options.resumable():
            outcomes = [
                study.run_study(one, *settings, arms=one.arms if arms == ALL else named, cycles=cycles)
                for one in studies.chosen(name)
            ]
    if write_docs is not None:
        chose = f" --arms {arms}" * (arms is not None) + f" --cycles {cycles}" * (cycles is not None)
        outcomes, files = page.written(studies.STUDIES, outcomes, f"recover study {name}{chose}", write_docs)
        for path, text in files.items():
            stage_options.write_page(path, text)
    report = "\n\n".join(map(page.text, outcomes)) or "no study has been run here: recover study NAME"
    common.emit([outcome.as_json() for outcome in outcomes], as_json, report)


def _listed(rows: list[dict[str, Any]]) -> str:
    lines = [f"{row['study']:<12} {row['minutes']:>3.0f} min a seed  {row['claim']}" for row in rows]
    return "\n".join([*lines, "\n`recover study NAME` runs one, `recover study all` all but the longest."])


# `recover miniature`: the built-in model and its world.


@click.group()
def miniature() -> None:
    """Rebuild the built-in model, or write its world's corpora."""


@miniature.command()
@click.argument("folder", type=common.NamedPath(file_okay=False), default=Path("miniature"))
@stage_options.seed
@stage_options.steps
@click.option(
    "--items", type=common.WholeRange(min=1), default=1000, show_default=True, help="Questions per evaluation."
)
@click.option("--threads", type=common.WholeRange(min=1), help="Cores to use.  [default: as torch chooses]")
@common.as_json
def build(folder: Path, seed: int, steps: int | None, items: int, threads: int | None, as_json: bool) -> None:
    """Train the miniature from scratch into FOLDER.

    Takes up to 45 minutes on two cores and reports which of the required scores it reached (status 1 if one is
    missed). After an interrupt, the same command resumes.
    """
    from rich.console import Console

    console = Console(stderr=True)
    states = folder.with_name(f".{folder.name}-states")
    report = common.of_examples("miniature.build").build(
        folder, seed=seed, steps=steps, items=items, threads=threads, console=console, state_dir=states
    )
    missed = sorted(name for name, reached in report.reached.items() if not reached)
    text = (
        f"not reached: {', '.join(missed)}" if missed else f"every required score was reached; the model is in {folder}"
    )
    common.emit(report, as_json, text)
    if missed:
        raise click.exceptions.Exit(1)


@miniature.command()
@click.argument("folder", type=common.NamedPath(file_okay=False))
@click.option("--count", type=common.WholeRange(min=1), default=3, show_default=True, help="Number of corpora.")
@stage_options.seed
@common.as_json
def corpora(folder: Path, count: int, seed: int, as_json: bool) -> None:
    """Write corpora of the miniature's world into FOLDER, as Markdown with questions and probes.

    The folders q1, q2 and so on in FOLDER must be new or empty.
    """
    from recovery.miniature.corpora import write_corpora

    for number in range(1, count + 1):  # the documents there would become part of the corpus
        target = folder / f"q{number}"
        if target.is_dir() and any(target.iterdir()):
            raise UsageError(f"{target} is not empty: name another FOLDER, or delete {target} first")
    folders = write_corpora(folder, count, seed)
    common.emit(folders, as_json, "\n".join(map(str, folders)))
