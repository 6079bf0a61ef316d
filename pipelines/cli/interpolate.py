"""`recover interpolate`: weights between two checkpoints."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import common, stage_options
from pipelines.cli.stage_options import options_of
from recovery.config import InterpolateConfig, Recipe, build, read_recipe
from recovery.workspace import Workspace


@click.command(cls=common.ShortHelp, common="student origin alphas model workspace recipe prompts engine as_json")
@options_of(InterpolateConfig, "student", "origin", "alphas", "keep", "development", "questions")
@common.own_model
@common.workspace
@common.report_to()
@common.recipe
@stage_options.prompts
@stage_options.max_new_tokens
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
    as_json: bool,
    **_: object,
) -> None:
    """Mix the weights of two checkpoints, in place of a recovery.

    The cheapest trade-off between new knowledge and lost behaviour: nothing is trained, one number is chosen on
    development prompts. The result is this cycle's `recovered` checkpoint, like that of `recover distill`.
    """
    from pipelines.cycle_plan import check_no_plan

    own = read_recipe(recipe) if recipe else Recipe()
    flags = {key: value for key, value in common.given(context).items() if value != ()}
    wanted = build(InterpolateConfig, flags, own)  # wrong flags are reported before anything is opened
    stage_options.check_clean_model(workspace, model, wanted.student, wanted.origin)
    with (
        stage_options.at_work(workspace, "recover interpolate", model=model) as session,
        stage_options.naming_own_recipes(session, InterpolateConfig, flags, own),
    ):
        config = build(InterpolateConfig, flags, own, session.recipe)
        session.check_names(
            config.student, None if config.origin == "start" else config.origin
        )  # a wrong name is reported before torch is imported
        check_no_plan(session)
        from pipelines.interpolate import interpolate

        made = interpolate(session, config)
    common.emit({"checkpoint": stage_options.checkpoint_json(made)}, as_json, f"made {made.name}: {made.path}")
