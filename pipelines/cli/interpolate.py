"""`recover interpolate`: weights between two checkpoints."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import common, stage_options
from recovery.workspace import Workspace


@click.command()
@click.option(
    "--student",
    default=None,
    metavar="NAME",
    help="The mid-trained checkpoint: a name, a folder, a hub id.  [default: latest]",
)
@click.option(
    "--origin",
    default=None,
    metavar="NAME",
    help="The other end: a checkpoint, or 'start', the one that the student was trained from.  [default: base]",
)
@click.option(
    "--alpha",
    "alphas",
    type=click.FloatRange(0, 1),
    multiple=True,
    help="Weight of the student, from 0 (origin) to 1; repeated, the candidates.  [default: 0.1, 0.2 ... 1]",
)
@click.option(
    "--keep",
    type=click.FloatRange(0, 1),
    default=None,
    help="Share of base's score on development prompts that the chosen candidate must reach.",
)
@click.option("--development", type=click.IntRange(min=1), default=None, help="Development prompts per candidate.")
@click.option(
    "--questions",
    type=click.IntRange(min=0),
    default=None,
    help="Training questions about the documents per candidate; 0: none, and the largest alpha is chosen.",
)
@common.model
@common.workspace
@common.recipe
@stage_options.prompts
@stage_options.max_new_tokens
@stage_options.model_options
@common.seed
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
    """Interpolate weights between two checkpoints instead of training a recovery.

    The cheapest trade-off between new knowledge and lost behaviour: nothing is trained, one number is chosen on
    development prompts. The result is this cycle's `recovered` checkpoint, like that of `recover distill`.
    """
    from pipelines.interpolate import interpolate
    from recovery.config import InterpolateConfig, Recipe, build, read_recipe

    own = read_recipe(recipe) if recipe else Recipe()
    flags = {key: value for key, value in common.given(context).items() if value != ()}
    build(InterpolateConfig, flags, own)  # report wrong flags before anything is opened
    with stage_options.at_work(workspace, "recover interpolate", model=model) as session:
        made = interpolate(session, build(InterpolateConfig, flags, own, session.recipe))
    common.emit({"checkpoint": stage_options.checkpoint_json(made)}, as_json, f"made {made.name}: {made.path}")
