"""`recover cycle`: mid-training, recovery and evaluation for each folder of documents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from pipelines.cli import common, stage_options
from recovery.workspace import Workspace


@click.command()
@common.docs
@common.model
@common.workspace
@common.recipe
@click.option(
    "--epochs", type=click.FloatRange(min=0, min_open=True), default=None, help="Passes over each cycle's documents."
)
@click.option(
    "--midtrain-steps",
    type=click.IntRange(min=1),
    default=None,
    help="Steps of each mid-training, instead of --epochs.",
)
@click.option(
    "--midtrain-lr", type=click.FloatRange(min=0, min_open=True), default=None, help="Peak rate of mid-training."
)
@click.option(
    "--replay",
    type=click.FloatRange(0, 0.95),
    default=None,
    help="Share of mid-training tokens that are replayed chat of the clean model.  [default: 0]",
)
@click.option(
    "--replay-documents",
    type=click.FloatRange(0, 0.95),
    default=None,
    help="Share of document tokens from earlier cycles.  [default: 0.5]",
)
@stage_options.augmentation
@click.option("--distill-steps", type=click.IntRange(min=1), default=None, help="Maximum steps of each recovery.")
@click.option("--distill-lr", type=click.FloatRange(min=0, min_open=True), default=None, help="Peak rate of recovery.")
@click.option(
    "--knowledge-teacher",
    default=None,
    metavar="NAME",
    help="Teacher for questions about the documents; 'none' for base alone.  [default: midtrained]",
)
@click.option(
    "--knowledge-share",
    type=click.FloatRange(0, 0.95),
    default=None,
    help="Share of prompts that are questions about the documents.",
)
@click.option(
    "--document-loss",
    type=click.FloatRange(0, 0.95),
    default=None,
    help="Share of recovery's trained tokens that are document text.",
)
@click.option(
    "--until",
    type=click.FloatRange(0, 1),
    default=None,
    help="Stop a recovery at this share of base's score; 0: never.",
)
@click.option("--limit", type=click.IntRange(min=1), default=None, help="Maximum items per suite.")
@click.option(
    "--gate",
    multiple=True,
    metavar="RULE",
    help="Accept or reject each cycle by this rule, as 'ifeval >= 0.98*base'; may be repeated. 'standard': the usual "
    "three.",
)
@click.option(
    "--gate-samples",
    type=click.IntRange(min=1),
    default=None,
    help="Maximum items per suite that an undecided gate may evaluate.  [default: 4000]",
)
@click.option(
    "--gate-extend",
    type=click.IntRange(min=0),
    default=None,
    help="How many times an undecided gate may extend the distillation.  [default: 1]",
)
@click.option("--gate-alpha", type=float, default=None, help="Error probability of a gate's verdict.  [default: 0.05]")
@stage_options.prompts
@stage_options.suites
@stage_options.max_new_tokens
@stage_options.tuning_options
@stage_options.model_options
@click.option("--abandon", is_flag=True, help="Discard the unfinished cycles of an earlier run and start again.")
@common.seed
@common.dry_run
@common.as_json
@click.pass_context
def command(
    context: click.Context,
    /,
    workspace: Workspace,
    model: str | None,
    recipe: Path | None,
    abandon: bool,
    dry_run: bool,
    as_json: bool,
    **_: object,
) -> None:
    """Run whole cycles: midtrain, eval, distill, eval for each corpus.

    One cycle for each --docs, in that order. `recover resume` continues it after an interruption.
    """
    from pipelines.cycle import drop_plan, start_cycles
    from recovery.config import Recipe, build_cycle, read_recipe

    own = read_recipe(recipe) if recipe else Recipe()
    flags = common.given(context)
    build_cycle(flags, own)  # report wrong flags before anything is opened
    with stage_options.at_work(workspace, "recover cycle", model=model) as session:
        config = build_cycle(flags, own, session.recipe)
        if dry_run:
            _show_plan(session, config, as_json)
            return
        if abandon:
            drop_plan(session)
        start_cycles(session, config)
    from pipelines.cli.status import show

    show(workspace, as_json)


def _show_plan(session: Any, config: Any, as_json: bool) -> None:
    """Print the mid-training plan of each folder, from the current checkpoint: later ones do not exist yet."""
    from pipelines.midtrain import plan_midtrain

    plans = [plan_midtrain(session, replace(config.midtrain, docs=folder)) for folder in config.docs]
    text = "\n\n".join(plan.text() for plan in plans)
    each = f"each followed by at most {config.distill.steps} steps of recovery and two evaluations"
    common.emit({"midtrain": plans, "distill_steps": config.distill.steps}, as_json, f"{text}\n\n{each}")
