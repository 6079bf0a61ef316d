"""`recover midtrain`: documents into the weights."""

from __future__ import annotations

from pathlib import Path

import click

from recovery.cli import options, stages
from recovery.workspace import Workspace


@click.command()
@click.option(
    "--docs",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FOLDER",
    help="The folder of documents (.txt .md .rst .html .json .jsonl; .pdf .docx with the docs extra).",
)
@click.option(
    "--student",
    default=None,
    metavar="NAME",
    help="Checkpoint to train: a name, a folder, a hub id.  [default: latest]",
)
@options.model
@options.workspace
@options.recipe
@click.option(
    "--epochs",
    type=click.FloatRange(min=0, min_open=True),
    default=None,
    help="Passes over the documents.  [default: 3]",
)
@options.steps
@options.lr
@click.option("--batch-tokens", type=click.IntRange(min=16), default=None, help="Tokens trained on in one step.")
@click.option(
    "--row-length", type=click.IntRange(min=16), default=None, help="Longest row of tokens; longer documents are cut."
)
@click.option(
    "--replay",
    type=click.FloatRange(0, 0.95),
    default=None,
    help="Share of trained tokens that is chat answered by the clean model itself, e.g. 0.3.  [default: 0]",
)
@click.option(
    "--replay-loss",
    type=click.Choice(["answers", "kl"]),
    default=None,
    help="What is learnt of that chat: its tokens, or the clean model's whole distribution at each of them (forward "
    "KL).  [default: answers]",
)
@click.option(
    "--replay-prompts", type=click.IntRange(min=1), default=None, help="Prompts the clean model answers for the replay."
)
@click.option(
    "--replay-data",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    help="Conversations of your own to replay instead: JSON Lines of messages.",
)
@click.option("--anchor", type=click.FloatRange(min=0), default=None, help="Weight of the KL to base on the documents.")
@click.option(
    "--project/--no-project",
    default=None,
    help="Take out of each gradient what would raise the loss on base's own chat (A-GEM).",
)
@click.option(
    "--replay-documents",
    type=click.FloatRange(0, 0.95),
    default=None,
    help="Share of document tokens taken from earlier cycles' documents.  [default: 0]",
)
@click.option(
    "--held-out", type=click.FloatRange(0, 0.5), default=None, help="Share of documents kept aside to measure on."
)
@stages.augmentation
@stages.prompts
@stages.max_new_tokens
@stages.tuning_options
@stages.model_options
@options.seed
@options.dry_run
@options.as_json
@click.pass_context
def command(
    context: click.Context,
    /,
    workspace: Workspace,
    model: str | None,
    recipe: Path | None,
    dry_run: bool,
    as_json: bool,
    **_: object,
) -> None:
    """Teach the model a folder of documents.

    The result is this cycle's `midtrained` checkpoint: it knows the documents, and has lost some of its behaviour;
    `recover distill` brings that back.
    """
    from pipelines.midtrain import midtrain, plan_midtrain
    from recovery.config import MidtrainConfig, Recipe, build, read_recipe

    own = read_recipe(recipe) if recipe else Recipe()
    build(MidtrainConfig, options.given(context), own)  # what is wrong with the flags is said before anything is opened
    with stages.at_work(workspace, "recover midtrain", model=model) as session:
        config = build(MidtrainConfig, options.given(context), own, session.recipe)
        if dry_run:
            plan = plan_midtrain(session, config)
            options.emit(plan, as_json, plan.text)
            return
        made = midtrain(session, config)
    text = f"made {made.name}: {made.path}\nnext: recover distill --teacher base"
    options.emit({"checkpoint": stages.checkpoint_json(made)}, as_json, text)
