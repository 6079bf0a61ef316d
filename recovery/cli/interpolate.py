"""`recover interpolate`: weights between two checkpoints."""

from __future__ import annotations

from pathlib import Path

import click

from recovery.cli import options, stages
from recovery.workspace import Workspace


@click.command()
@click.option(
    "--student",
    default=None,
    metavar="NAME",
    help="What was mid-trained: a name, a folder, a hub id.  [default: latest]",
)
@click.option(
    "--origin",
    default=None,
    metavar="NAME",
    help="The other end: a checkpoint, or 'start', what the student was trained from.  [default: base]",
)
@click.option(
    "--alpha",
    "alphas",
    type=click.FloatRange(0, 1),
    multiple=True,
    help="How far from the origin to the student; repeated, the places to choose from.  [default: 0.1, 0.2 ... 1]",
)
@click.option(
    "--keep",
    type=click.FloatRange(0, 1),
    default=None,
    help="Share of base's score on development prompts that the chosen place must reach.",
)
@click.option(
    "--development", type=click.IntRange(min=1), default=None, help="Development prompts asked at each place."
)
@click.option(
    "--questions",
    type=click.IntRange(min=0),
    default=None,
    help="Training questions about the documents asked at each; 0: none, and the largest alpha is taken.",
)
@options.model
@options.workspace
@options.recipe
@stages.prompts
@stages.max_new_tokens
@stages.model_options
@options.seed
@options.as_json
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
    """Take weights between two checkpoints instead of a recovery.

    The cheapest way to trade what was learnt against what was lost: nothing is trained, one number is chosen on
    development prompts. The result is this cycle's `recovered` checkpoint, like that of `recover distill`.
    """
    from pipelines.interpolate import interpolate
    from recovery.config import InterpolateConfig, Recipe, build, read_recipe

    own = read_recipe(recipe) if recipe else Recipe()
    flags = {key: value for key, value in options.given(context).items() if value != ()}
    build(InterpolateConfig, flags, own)  # what is wrong with the flags is said before anything is opened
    with stages.at_work(workspace, "recover interpolate", model=model) as session:
        made = interpolate(session, build(InterpolateConfig, flags, own, session.recipe))
    options.emit({"checkpoint": stages.checkpoint_json(made)}, as_json, f"made {made.name}: {made.path}")
