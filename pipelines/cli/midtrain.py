"""`recover midtrain`: continued training on documents."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import common, stage_options
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
@common.model
@common.workspace
@common.recipe
@click.option(
    "--epochs",
    type=click.FloatRange(min=0, min_open=True),
    default=None,
    help="Passes over the documents.  [default: 3]",
)
@common.steps
@common.lr
@click.option("--batch-tokens", type=click.IntRange(min=16), default=None, help="Tokens trained on per step.")
@click.option(
    "--row-length",
    type=click.IntRange(min=16),
    default=None,
    help="Maximum row length in tokens; longer documents are split.",
)
@click.option(
    "--replay",
    type=click.FloatRange(0, 0.95),
    default=None,
    help="Share of trained tokens that are chat with responses of the clean model itself, e.g. 0.3.  [default: 0]",
)
@click.option(
    "--replay-loss",
    type=click.Choice(["answers", "kl"]),
    default=None,
    help="Loss on that chat: cross-entropy of the responses, or forward KL to the clean model's distribution at each "
    "token.  [default: answers]",
)
@click.option(
    "--replay-prompts", type=click.IntRange(min=1), default=None, help="Prompts that the replayed chat is sampled on."
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
    help="Remove from each gradient the component that would raise the loss on base's own chat (A-GEM).",
)
@click.option(
    "--replay-documents",
    type=click.FloatRange(0, 0.95),
    default=None,
    help="Share of document tokens taken from earlier cycles' documents.  [default: 0]",
)
@click.option(
    "--held-out", type=click.FloatRange(0, 0.5), default=None, help="Share of documents held out for evaluation."
)
@stage_options.augmentation
@stage_options.prompts
@stage_options.max_new_tokens
@stage_options.tuning_options
@stage_options.model_options
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
    dry_run: bool,
    as_json: bool,
    **_: object,
) -> None:
    """Mid-train the model on a folder of documents.

    The result is this cycle's `midtrained` checkpoint: it knows the documents and has lost some of its behaviour,
    which `recover distill` recovers.
    """
    from pipelines.midtrain import midtrain, open_cycle, plan_midtrain
    from recovery.config import MidtrainConfig, Recipe, build, read_recipe

    own = read_recipe(recipe) if recipe else Recipe()
    build(MidtrainConfig, common.given(context), own)  # report wrong flags before anything is opened
    with stage_options.at_work(workspace, "recover midtrain", model=model) as session:
        config = build(MidtrainConfig, common.given(context), own, session.recipe)
        if dry_run:
            plan = plan_midtrain(session, config)
            common.emit(plan, as_json, plan.text)
            return
        made = midtrain(session, config, open_cycle(session, config))
    text = f"made {made.name}: {made.path}\nnext: recover distill --teacher base"
    common.emit({"checkpoint": stage_options.checkpoint_json(made)}, as_json, text)
