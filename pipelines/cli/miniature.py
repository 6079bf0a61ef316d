"""`recover miniature`: the built-in model and its world."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import common, stage_options


@click.group()
def command() -> None:
    """Rebuild the built-in model, or write its world's corpora."""


@command.command()
@click.argument("folder", type=common.NamedPath(file_okay=False), default=Path("miniature"))
@stage_options.seed
@stage_options.steps
@click.option(
    "--items", type=common.WholeRange(min=1), default=1000, show_default=True, help="Questions per evaluation."
)
@click.option(
    "--threads", type=common.WholeRange(min=1), default=None, help="Cores to use.  [default: as torch chooses]"
)
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


@command.command()
@click.argument("folder", type=common.NamedPath(file_okay=False))
@click.option("--count", type=common.WholeRange(min=1), default=3, show_default=True, help="Number of corpora.")
@stage_options.seed
@common.as_json
def corpora(folder: Path, count: int, seed: int, as_json: bool) -> None:
    """Write corpora of the miniature's world into FOLDER, as Markdown with questions and probes.

    The folders q1, q2 and so on in FOLDER must be new or empty.
    """
    from recovery.errors import UsageError
    from recovery.miniature.corpora import write_corpora

    for number in range(1, count + 1):  # the documents there would become part of the corpus
        target = folder / f"q{number}"
        if target.is_dir() and any(target.iterdir()):
            raise UsageError(f"{target} is not empty: name another FOLDER, or delete {target} first")
    folders = write_corpora(folder, count, seed)
    common.emit(folders, as_json, "\n".join(map(str, folders)))
