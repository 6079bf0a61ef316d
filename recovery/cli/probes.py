"""`recover probes`: the questions that measure knowledge, made and read before anything is learnt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recovery.cli import options, stages
from recovery.errors import UsageError
from recovery.workspace import Workspace

if TYPE_CHECKING:
    from pipelines.probing import Ask

_COUNT = 400


@click.group()
def command() -> None:
    """Make the questions that measure knowledge, and review them."""


@command.command()
@click.option(
    "--docs",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FOLDER",
    help="The documents that will be learnt.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=None, metavar="FILE", help="[default: probes.jsonl in FOLDER]"
)
@click.option("--force", is_flag=True, help="Replace the file where there is one.")
@click.option("--count", type=click.IntRange(min=1), default=_COUNT, show_default=True, help="How many probes at most.")
@click.option(
    "--control",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FOLDER",
    help="Documents that will not be learnt: probes about them must stay at chance.",
)
@click.option(
    "--writer",
    default=None,
    metavar="NAME",
    help="A checkpoint that writes questions and answers them with and without the text: base, a folder, a hub id.",
)
@options.model
@options.workspace
@stages.model_options
@options.seed
@options.dry_run
@options.as_json
@click.pass_context
def build(
    context: click.Context,
    /,
    docs: Path,
    out: Path | None,
    force: bool,
    count: int,
    control: Path | None,
    writer: str | None,
    model: str | None,
    workspace: Workspace,
    seed: int,
    dry_run: bool,
    as_json: bool,
    **_: object,
) -> None:
    """Make probes about a folder of documents.

    Without a writer no model is needed: gaps in sentences with wrong answers beside them, titles and their passages,
    sentences to be ended. `recover midtrain` takes the file up where it lies beside the documents.
    """
    from evals.probes import PROBES_FILE, write_probes
    from evals.reviewing import counts_text
    from pipelines.probing import free_to_write, make, plan_build, read_sources

    sources = read_sources(docs, control, seed=seed)
    target = out or docs / PROBES_FILE
    free_to_write(target, force=force)
    with _writer(context, writer, workspace, model) as ask:
        if dry_run:
            plan = plan_build(sources, count=count, out=target, writer=writer)
            options.emit(plan, as_json, plan.text)
            return
        try:
            made = make(sources, count=count, seed=seed, ask=ask, writer=writer or "")
        except KeyboardInterrupt:
            options.note("interrupted: nothing was written")
            raise click.exceptions.Exit(stages.INTERRUPTED) from None
    write_probes(target, made.probes)
    lines = [*made.lines, counts_text(made.probes), f"wrote {target}; read it: recover probes review {target}"]
    options.emit({"path": str(target), **made.summary()}, as_json, "\n".join(lines))


@contextmanager
def _writer(context: click.Context, name: str | None, workspace: Workspace, model: str | None) -> Iterator[Ask | None]:
    """The model that writes, by its name; None, and no model library loaded, where none was named."""
    if name is None:
        yield None
        return
    from pipelines.writer import writer_of
    from recovery.config import EvalConfig
    from recovery.config import build as settings

    with stages.at_work(workspace, "recover probes", model=model, alone=False) as session:
        config = settings(EvalConfig, options.given(context), session.recipe)
        yield writer_of(session, session.resolve(name), config)


@command.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--docs",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FOLDER",
    help="The folder whose probes.jsonl to read.",
)
@click.option("--show", type=click.IntRange(min=0), default=10, show_default=True, help="How many probes to show.")
@click.option("--random", "drawn", is_flag=True, help="Draw them at random instead of showing the first.")
@click.option("--drop", multiple=True, metavar="ID", help="Leave a probe out, by its id; may be repeated.")
@click.option(
    "--add",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Put in the probes of another file; may be repeated.",
)
@options.seed
@options.as_json
def review(
    file: Path | None,
    docs: Path | None,
    show: int,
    drawn: bool,
    drop: tuple[str, ...],
    add: tuple[Path, ...],
    seed: int,
    as_json: bool,
) -> None:
    """Show the probes of a file, drop some, add others.

    Lines that cannot be used are named, and the others used; a changed file is written whole or not at all.
    """
    from evals import reviewing
    from evals.probes import PROBES_FILE

    if (file is None) == (docs is None):
        raise UsageError("name one file of probes, or a folder with --docs FOLDER")
    path = file if file is not None else Path(docs or ".") / PROBES_FILE
    found = reviewing.review(path, show=show, drawn=drawn, seed=seed, drop=drop, add=add)
    reviewing.save(found)
    options.emit(reviewing.summary(found), as_json, lambda: reviewing.text(found))
