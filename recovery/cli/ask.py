"""`recover ask`: one prompt, several checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recovery.cli import options, stages
from recovery.errors import UsageError
from recovery.workspace import Workspace

if TYPE_CHECKING:
    from pipelines.ask import Reply


@click.command()
@click.argument("prompt")
@click.option(
    "--checkpoint",
    "names",
    multiple=True,
    metavar="NAME",
    help="Who is asked; may be repeated.  [default: base, the newest mid-trained and the newest recovered one]",
)
@options.workspace
@options.recipe
@stages.max_new_tokens
@options.precision
@options.device
@options.template
@options.as_json
@click.pass_context
def command(
    context: click.Context,
    /,
    prompt: str,
    names: tuple[str, ...],
    workspace: Workspace,
    recipe: Path | None,
    as_json: bool,
    **_: object,
) -> None:
    """Put one prompt to several checkpoints.

    PROMPT is the text, or - to read it from standard input. Answers are greedy, as in an evaluation, and are recorded
    nowhere. The models are loaded one after the other.
    """
    from pipelines.registry import existing, reading

    existing(workspace)
    from pipelines.ask import ask
    from pipelines.session import resolve
    from recovery.config import EvalConfig, Recipe, build, model_recipe, read_recipe

    own = read_recipe(recipe) if recipe else Recipe()
    with reading(workspace) as registry:
        config = build(EvalConfig, options.given(context), own, model_recipe(resolve(registry, "base").path))
        replies = ask(registry, names, _standard_input() if prompt == "-" else prompt, config, options.note)
        if as_json:
            options.emit(list(replies), as_json, "")
            return
        for reply in replies:  # each as soon as it is there
            click.echo(_block(reply))


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"the prompt on standard input is not UTF-8 text: {error}") from error


def _block(reply: Reply) -> str:
    """An answer under its checkpoint's name."""
    cut = "" if reply.finished else ", cut off there"
    title = f"{reply.checkpoint} ({reply.tokens:,} tokens in {reply.seconds:.1f} s{cut})"
    return f"{title}\n{'-' * len(title)}\n{reply.answer or '(nothing)'}\n"
