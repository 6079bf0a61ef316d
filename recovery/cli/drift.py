"""`recover drift`: how far a checkpoint has moved."""

from __future__ import annotations

from pathlib import Path

import click

from recovery.cli import options, stages
from recovery.workspace import Workspace


@click.command()
@click.argument("checkpoint", default="latest")
@click.option("--from", "reference", default="base", show_default=True, metavar="NAME", help="Moved from which one.")
@options.model
@options.workspace
@options.recipe
@click.option("--limit", type=click.IntRange(min=2), default=None, help="Prompts put to both.  [default: 200]")
@stages.max_new_tokens
@stages.prompts
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
    reference: str,
    limit: int | None,
    as_json: bool,
    **_: object,
) -> None:
    """Say how far a checkpoint has moved from another.

    Both answer the same behaviour prompts. Told are distances between the answers, each beside what chance alone gives,
    and the divergences of their distributions on requests and on held-out documents. It goes into the tracker.
    """
    from pipelines.drift import PROMPTS, measure_drift
    from recovery.config import EvalConfig, Recipe, build, read_recipe

    own = read_recipe(recipe) if recipe else Recipe()
    with stages.at_work(workspace, "recover drift", model=model, alone=False) as session:
        flags = options.given(context) | {"limit": limit or PROMPTS}
        found = measure_drift(session, build(EvalConfig, flags, own, session.recipe), reference)
    options.emit(found, as_json, found.text)
