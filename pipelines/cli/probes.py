"""`recover probes`: building and reviewing the questions that measure knowledge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipelines.cli import common, stage_options
from pipelines.cli.main import INTERRUPTED
from recovery.errors import UsageError
from recovery.workspace import Workspace

if TYPE_CHECKING:
    from pipelines.data.probe_build import Ask


@click.group()
def command() -> None:
    """Build and review the questions that measure knowledge."""


@command.command(cls=common.ShortHelp, common="docs out force count control writer model workspace dry_run as_json")
@stage_options.documents("--docs", required=True, help="The documents that will be trained on.")
@click.option(
    "--out",
    type=common.NamedPath(),
    metavar="FILE",
    help="The file to write.  [default: probes.jsonl in their folder; NAME.probes.jsonl next to a file NAME]",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option(
    "--count", type=common.WholeRange(min=1), default=400, show_default=True, help="Maximum number of probes."
)
@stage_options.documents(
    "--control", help="Documents that will not be trained on: probes about them must stay at chance."
)
@click.option(
    "--writer",
    metavar="NAME",
    help="A checkpoint that writes questions and answers them with and without the text: base, a folder, a hub id.",
)
@common.own_model
@common.workspace
@stage_options.model_options
@stage_options.seed
@common.dry_run
@common.as_json
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
    """Build probes about documents.

    Without a writer no model is needed: questions about facts, and choices of what goes into a gap of the text or
    stands under a title. `recover midtrain` uses the file if it is at its default place.
    """
    from evals.probes import PROBES_FILE, drawn_lines, write_probes
    from pipelines.data.probe_build import free_to_write, make, plan_build, read_sources
    from recovery.data.sources import beside

    sources = read_sources(docs, control, seed=seed)
    target = out or beside(docs, PROBES_FILE)
    if target is None:
        raise UsageError(f"--docs {docs} is on the hub: name the file to write with --out FILE")
    free_to_write(target, force=force)
    for corpus in (sources.corpus, *([sources.control] if sources.control else [])):
        for line in corpus.report.lines() if corpus.report.skipped else ():
            common.note(line)
    with _writer(context, writer, workspace, model, dry_run) as ask:
        if dry_run:
            values, text = plan_build(sources, count=count, out=target, writer=writer)
            common.emit(values, as_json, text)
            return
        try:
            made = make(sources, count=count, seed=seed, ask=ask, writer=writer or "")
        except KeyboardInterrupt:
            common.note("interrupted: nothing was written")
            raise click.exceptions.Exit(INTERRUPTED) from None
    write_probes(target, made.probes)
    lines = [*made.lines, *drawn_lines(made.probes, seed), f"wrote {target}; review it: recover probes review {target}"]
    common.emit({"path": str(target), **made.summary()}, as_json, "\n".join(lines))


@contextmanager
def _writer(
    context: click.Context, name: str | None, workspace: Workspace, model: str | None, dry_run: bool
) -> Iterator[Ask | None]:
    """Yield the writer called ``name``; None, without loading a model library, if there is no name."""
    if name is None:
        yield None
        return
    from pipelines.data.probe_build import writer_of
    from recovery.config import EvalConfig
    from recovery.config import build as settings

    stage_options.check_clean_model(workspace, model, name)
    with stage_options.at_work(workspace, "recover probes", model=model, exclusive=False, dry_run=dry_run) as session:
        config = settings(EvalConfig, common.given(context), session.recipe)
        yield writer_of(session, session.resolve(name), config)


@command.command()
@click.argument("file", type=common.NamedPath(), required=False)
@stage_options.documents(
    "--docs", help="The documents whose probes to read: probes.jsonl in their folder, or next to a file."
)
@click.option(
    "--show",
    type=common.WholeRange(min=0),
    default=10,
    show_default=True,
    help="How many probes to show, questions first.",
)
@click.option("--random", "drawn", is_flag=True, help="Show a random sample instead of the first.")
@click.option("--drop", multiple=True, metavar="ID", help="Id of a probe to drop; may be repeated.")
@click.option(
    "--add",
    type=common.NamedPath(),
    multiple=True,
    metavar="FILE",
    help="Another file whose probes to add; may be repeated.",
)
@stage_options.seed
@common.as_json
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

    Unusable lines are reported and skipped; a changed file is written atomically.
    """
    from evals import probes
    from evals.answer_matching import doubts
    from evals.probes import PROBES_FILE
    from recovery.data.sources import beside

    if (file is None) == (docs is None):
        raise UsageError("name one file of probes, or the documents with --docs SOURCE")
    path = file if file is not None else beside(docs or ".", PROBES_FILE)
    if path is None:
        raise UsageError(f"--docs {docs} is on the hub: name the file of its probes")
    if docs is not None and not path.exists():
        raise UsageError(f"--docs {docs}: there is no {path} yet: `recover probes build --docs {docs}` makes it")
    edited = probes.review(path, show=show, drawn=drawn, seed=seed, drop=drop, add=add)
    probes.save(edited)
    lines = doubts(edited.after)
    common.emit(probes.summary(edited) | {"doubts": lines}, as_json, lambda: "\n".join([probes.text(edited), *lines]))
