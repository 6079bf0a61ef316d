"""`recover midtrain`: continued training on documents."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import common, stage_options
from pipelines.cli.stage_options import option_of, options_of
from recovery.config import MidtrainConfig, Recipe, build
from recovery.errors import UsageError
from recovery.workspace import Workspace


def _one_source(context: click.Context, parameter: click.Parameter, values: tuple[Path, ...]) -> Path | None:
    """Return the documents' place. Fails if there are several: click would silently take the last."""
    if len(values) > 1:
        several = "takes one folder or file; `recover cycle` takes several, for a cycle each."
        raise click.BadParameter(several, context, parameter)
    return stage_options.check_documents(context, parameter, values[0] if values else None)


@click.command(
    cls=common.ShortHelp,
    common="docs student model workspace recipe epochs lr replay augment trial tuning engine dry_run",
)
@option_of(MidtrainConfig, "docs", type=common.NamedPath(), multiple=True, callback=_one_source)
@option_of(MidtrainConfig, "student")
@common.model
@common.workspace
@common.report_to()
@common.recipe
@options_of(MidtrainConfig, "epochs", "steps", "lr", "batch_tokens", "row_length")
@options_of(
    MidtrainConfig, "replay", "replay_loss", "replay_prompts", "replay_focus", "replay_data", "anchor", "project"
)
@options_of(
    MidtrainConfig, "replay_documents", "router_loss", "held_out", "near_duplicates", "older_versions", "withdrawn"
)
@stage_options.augmentation
@options_of(MidtrainConfig, "writer_questions", "fewest_questions")
@stage_options.trial
@stage_options.prompts
@option_of(MidtrainConfig, "max_new_tokens")
@stage_options.tuning_options
@stage_options.model_options
@stage_options.seed
@common.dry_run
@common.as_json
@click.pass_context
def command(
    context: click.Context,
    /,
    workspace: Workspace,
    model: str | None,
    recipe: Recipe,
    dry_run: bool,
    as_json: bool,
    **_: object,
) -> None:
    """Mid-train the model on a folder of documents.

    The result is this cycle's `midtrained` checkpoint: it knows the documents and has lost some of its behaviour,
    which `recover distill` recovers.
    """
    from pipelines.cycle_plan import check_no_plan
    from pipelines.runtime.checkpoint_names import is_elsewhere

    flags = common.given(context)
    config = build(MidtrainConfig, flags, recipe)  # report wrong flags before anything is opened
    if config.docs is None:  # before torch is imported
        raise UsageError("no documents to train on: give a folder with --docs FOLDER")
    clean = config.student if is_elsewhere(config.student) else None
    with (
        stage_options.at_work(workspace, "recover midtrain", model=model, fallback=clean, dry_run=dry_run) as session,
        stage_options.configured(session, MidtrainConfig, flags, recipe) as config,
    ):
        session.check_names(config.student)  # a wrong name is reported before torch is imported
        if not dry_run:
            check_no_plan(session)
        from pipelines.midtraining.plan import plan_midtrain
        from pipelines.midtraining.stage import midtrain

        if config.trial:
            config = stage_options.trial_sizes(session, "midtrain", config, flags, plan_midtrain)
        if dry_run:
            plan = plan_midtrain(session, config)
            few = [f"warning: {plan.few_questions}"] if plan.few_questions else []
            common.emit(plan.to_json(), as_json, "\n".join((plan.text(), *plan.questions, *few)))
            return
        made = midtrain(session, config)
    text = f"made {made.name}: {made.path}\nnext: recover distill --teacher base --knowledge-teacher midtrained"
    common.emit({"checkpoint": stage_options.checkpoint_json(made)}, as_json, text)
