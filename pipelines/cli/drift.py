"""`recover drift`: distances between two checkpoints' completions and distributions."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import common, stage_options
from recovery.config import EvalConfig, Recipe, build, read_recipe
from recovery.workspace import Workspace


@click.command(cls=common.ShortHelp, common="reference model workspace recipe limit prompts engine as_json")
@click.argument("checkpoint", default="latest")
@click.option(
    "--from", "reference", default="base", show_default=True, metavar="NAME", help="Checkpoint to compare with."
)
@common.own_model
@common.workspace
@common.recipe
@click.option("--limit", type=common.WholeRange(min=2), default=None, help="Number of prompts.  [default: 200]")
@stage_options.max_new_tokens
@stage_options.prompts
@stage_options.model_options
@stage_options.seed
@common.as_json
@click.pass_context
def command(
    context: click.Context,
    /,
    workspace: Workspace,
    model: str | None,
    recipe: Path | None,
    reference: str,
    limit: int | None,
    as_json: bool,
    **_: object,
) -> None:
    """Measure how far a checkpoint has moved from another.

    Both are sampled on the same behaviour prompts. Reports distances between the completions, each with its value under
    chance alone, and the divergences of the two distributions on requests and on held-out documents. The result is
    recorded in the tracker.
    """
    own = read_recipe(recipe) if recipe else Recipe()
    stage_options.check_clean_model(workspace, model, context.params["checkpoint"], reference)
    with stage_options.at_work(workspace, "recover drift", model=model, alone=False) as session:
        session.check_names(
            context.params["checkpoint"], reference
        )  # a wrong name is reported before torch is imported
        from pipelines.evaluation.drift import PROMPTS, measure_drift

        flags = common.given(context) | {"limit": limit or PROMPTS}
        found = measure_drift(session, build(EvalConfig, flags, own, session.recipe), reference)
    common.emit(found, as_json, found.text)
