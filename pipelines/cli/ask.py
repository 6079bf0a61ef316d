"""`recover ask`: one prompt, several checkpoints."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from pipelines.cli import common, stage_options
from pipelines.cli.stage_options import options_of
from recovery.config import EvalConfig, Recipe, build, model_recipe
from recovery.errors import UsageError
from recovery.text_files import MARK
from recovery.workspace import Workspace

if TYPE_CHECKING:
    from pipelines.evaluation.ask import Reply


@click.command()
@click.argument("prompt")
@click.option(
    "--checkpoint",
    "names",
    multiple=True,
    metavar="NAME",
    help="Checkpoint to prompt; may be repeated.  [default: base, the newest mid-trained and the newest recovered one]",
)
@common.workspace
@common.recipe
@stage_options.max_new_tokens
@options_of(EvalConfig, "precision", "device")
@stage_options.template
@common.as_json
@click.pass_context
def command(
    context: click.Context,
    /,
    prompt: str,
    names: tuple[str, ...],
    workspace: Workspace,
    recipe: Recipe,
    as_json: bool,
    **_: object,
) -> None:
    """Send one prompt to several checkpoints.

    PROMPT is the text, or - to read it from standard input. Decoding is greedy, as in an evaluation, and nothing is
    recorded. One model is loaded at a time.
    """
    text = _text_of(prompt)
    from pipelines.runtime.registry import existing, reading

    existing(workspace)
    from pipelines.runtime.checkpoint_names import check, resolve

    with reading(workspace) as registry:
        config = build(EvalConfig, common.given(context), recipe, model_recipe(resolve(registry, "base").path))
        for name in names:
            check(registry, name)  # a wrong name is reported before torch is imported
        from pipelines.evaluation.ask import ask

        replies = ask(registry, names, text, config, common.note)
        if as_json:
            common.emit(list(replies), as_json, "")
            return
        for reply in replies:  # each as soon as it is complete
            click.echo(_block(reply))


def _text_of(prompt: str) -> str:
    """Return the prompt, of standard input if it is "-". Raise UsageError if it is empty or no text."""
    try:
        data = sys.stdin.buffer.read() if prompt == "-" else os.fsencode(prompt)
        text = data.decode("utf-8").replace(MARK, "")
    except UnicodeDecodeError as error:
        where = " on standard input" if prompt == "-" else ""
        raise UsageError(f"the prompt{where} is not UTF-8 text: {error}") from error
    if not text.strip():
        raise UsageError("the prompt is empty: give some text, or - to read it from standard input")
    return text


def _block(reply: Reply) -> str:
    """Return a response under its checkpoint's name."""
    cut = "" if reply.finished else ", cut off"
    title = f"{reply.checkpoint} ({reply.tokens:,} tokens in {reply.seconds:.1f} s{cut})"
    return f"{title}\n{'-' * len(title)}\n{reply.answer or '(nothing)'}\n"
