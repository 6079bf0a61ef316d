"""`recover cycle`: mid-training, recovery and evaluation for each folder of documents; `recover resume` goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli import common, stage_options
from pipelines.cli.stage_options import option_of, options_of
from recovery.config import (
    CycleConfig,
    DistillConfig,
    EvalConfig,
    MidtrainConfig,
    Recipe,
    build_cycle,
    from_recipes,
    naming_recipes,
)
from recovery.errors import RecoveryError
from recovery.workspace import Workspace

if TYPE_CHECKING:
    from pipelines.cycle_plan import CyclePlan
    from pipelines.runtime.session import Session

_ASKED_SECONDS = 10.0  # for a teacher's server in a dry run


@click.command(
    cls=common.ShortHelp,
    common="docs model workspace recipe prompts replay augment trial gate limit ifeval tasks tuning engine dry_run",
)
@option_of(CycleConfig, "docs", type=common.NamedPath(), callback=stage_options.check_documents)
@common.model
@common.workspace
@common.report_to()
@common.recipe
@option_of(MidtrainConfig, "epochs", help="Passes over each cycle's documents.")
@option_of(MidtrainConfig, "steps", "--midtrain-steps", help="Steps of each mid-training, instead of --epochs.")
@option_of(MidtrainConfig, "lr", "--midtrain-lr", help="Peak learning rate of mid-training.")
@option_of(MidtrainConfig, "replay", help="Share of mid-training's tokens that are replayed chat of the clean model.")
@option_of(CycleConfig, "replay_documents")
@options_of(MidtrainConfig, "older_versions", "withdrawn", "fewest_questions")
@stage_options.augmentation
@option_of(
    MidtrainConfig,
    "writer_questions",
    help="Train also on the questions with answers among the texts of rewritten.jsonl, and ask them of the knowledge "
    "teacher.",
)
@option_of(DistillConfig, "steps", "--distill-steps", help="Maximum steps of each recovery.")
@option_of(DistillConfig, "lr", "--distill-lr", help="Peak learning rate of recovery.")
@option_of(CycleConfig, "knowledge_teacher")
@options_of(DistillConfig, "knowledge_share", "earlier_share", "near_miss_share", "blend")
@option_of(DistillConfig, "document_loss", help="Share of recovery's trained tokens that are document text.")
@options_of(DistillConfig, "document_teacher", "document_texts")
@option_of(DistillConfig, "until", help="Stop a recovery at this share of base's score; 0: never.")
@options_of(EvalConfig, "limit", "earlier_limit", "near_misses")
@stage_options.trial
@stage_options.retired("--recognise/--no-recognise")
@stage_options.ifeval
@options_of(CycleConfig, "gate", "gate_samples", "gate_extend", "gate_alpha", "prune")
@stage_options.prompts
@stage_options.suites
@option_of(
    EvalConfig,
    "max_new_tokens",
    help="Maximum tokens of a completion; in training 128 unless this is given.",
)
@stage_options.tuning_options
@stage_options.model_options
@click.option(
    "--abandon",
    is_flag=True,
    help="Roll back the unfinished cycle of an earlier run, and start again with these documents.",
)
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
    abandon: bool,
    dry_run: bool,
    as_json: bool,
    **_: object,
) -> None:
    """Run whole cycles: midtrain, eval, distill, eval for each corpus.

    One cycle for each --docs, in that order. `recover resume` continues it after an interruption.
    """
    from pipelines.cycle_plan import check_request, new_plan
    from pipelines.runtime.teacher_server import NOT_BEGUN, reach_teacher

    flags = common.given(context)
    with naming_recipes(from_recipes(CycleConfig, flags, recipe)):
        check_request(build_cycle(flags, recipe))  # report wrong flags before anything is opened
    with (
        stage_options.at_work(workspace, "recover cycle", model=model, dry_run=dry_run) as session,
        stage_options.configured(session, CycleConfig, flags, recipe) as config,
    ):
        # Mistakes are reported before torch is imported, and before an abandoned plan is replaced. A dry run begins
        # nothing: unfinished cycles do not prevent it.
        plan = new_plan(session, config, abandon=abandon or dry_run)
        if config.trial:
            plan = _trial(session, plan, flags)
        if dry_run:
            _show_plan(session, plan, as_json)
            _warn_of_teacher(plan.config.distill)
            return
        reach_teacher(plan.config.distill, NOT_BEGUN, session.display.say)
        from pipelines.cycle import start_plan

        start_plan(session, plan)
    from pipelines.cli.status import show_end

    show_end(workspace, as_json)


def _trial(session: Session, plan: CyclePlan, flags: Mapping[str, Any]) -> CyclePlan:
    """Return the plan at the sizes of a trial."""
    from pipelines.cycle_estimate import estimate, fitted

    def sized(stages: Mapping[str, Any]) -> CyclePlan:
        return dataclasses.replace(plan, config=dataclasses.replace(plan.config, **stages))

    stages = {name: getattr(plan.config, name) for name in ("midtrain", "distill", "eval")}
    with session.display.phase("sizing the trial"):
        return sized(fitted(stages, flags, lambda tried: estimate(session, sized(tried)).rows, session.display))


def _warn_of_teacher(config: DistillConfig) -> None:
    """Print that a teacher's server does not respond now, since the run needs it before it trains. It is asked once."""
    from pipelines.runtime.teacher_server import reach_teacher

    once = dataclasses.replace(config, server_wait=0.0, server_timeout=min(config.server_timeout, _ASKED_SECONDS))
    try:
        reach_teacher(once, "start it before the run")
    except RecoveryError as error:
        common.note(f"warning: {error}")


def _show_plan(session: Session, plan: CyclePlan, as_json: bool) -> None:
    """Print the plan of each mid-training, as the run would do it, what every stage takes, and what follows it."""
    from pipelines.cycle_estimate import estimate
    from pipelines.cycle_plan import planned_recovery, read_plan
    from pipelines.table import total_of

    config = plan.config
    with session.display.phase("reading the documents and planning"):
        planned = estimate(session, plan)
    text = "\n\n".join("\n".join((one.summary(), *one.questions)) for one in planned.midtrain)
    recovery = planned_recovery(session, config, plan.first)
    share = recovery.knowledge_share if recovery.knowledge_teacher is not None else 0.0
    start = f" from {recovery.blend:.0%} of its change" if recovery.blend != 1.0 else ""
    asked = f" with up to {share:.0%} questions about the documents" if share else ""
    measured = ", and by two evaluations" if config.evaluate else "; nothing is evaluated"
    each = f"each followed by a recovery{start} of at most {recovery.steps} steps{asked}{measured}"
    if (before := read_plan(session)) is not None:
        each += (
            f"\n\n{before.with_verb('is', 'are')} unfinished, counted here as they are now, and given up only by a run "
            f"with --abandon"
        )
    facts = {"distill_steps": recovery.steps, "blend": recovery.blend, "knowledge_share": share}
    facts |= dict(zip(("seconds", "memory"), total_of(planned.rows), strict=True))
    trained = [one.to_json() for one in planned.midtrain]
    values = {"midtrain": trained, **facts, "evaluate": config.evaluate, "rows": planned.rows, "free": planned.free}
    few = [f"\n\nwarning: {one.few_questions}" for one in planned.midtrain if one.few_questions]
    common.emit(values, as_json, f"{text}\n\n{planned.table()}\n\n{each}{''.join(few)}")


@click.command()
@common.workspace
@common.report_to()
@common.dry_run
@common.as_json
def resume(workspace: Workspace, dry_run: bool, as_json: bool) -> None:
    """Resume interrupted work.

    A stage continues from its newest saved state; cycles continue with the parts that the tracker does not hold. What
    was rejected or rolled back is not continued.
    """
    from pipelines.runtime.registry import existing

    existing(workspace)
    from pipelines.cycle_plan import begun_from_recipes, interrupted, read_plan, resumable

    with stage_options.at_work(workspace, "recover resume") as session:
        if dry_run:
            plan, stage = read_plan(session), resumable(session)
            value = {
                "cycles": [plan.first + at for at in range(len(plan.config.docs))] if plan else [],
                "stage": {"id": stage.id, "kind": stage.kind, "step": stage.steps} if stage else None,
            }
            text = f"stage {stage.id} ({stage.kind}){stage.at_step}" if stage else "no stage"
            common.emit(value, as_json, f"to resume: {text}; planned cycles: {value['cycles'] or 'none'}")
            return
        session.tracker.database.require_sound()
        session.remove_finished()
        plan, stage = interrupted(session)
        session.from_recipes = begun_from_recipes(session, plan, stage)
        with naming_recipes(session.from_recipes, "; what is resumed keeps its settings"):
            from pipelines.cycle import resume

            done = resume(session)
    if plan is None or as_json:
        common.emit({"done": done}, as_json, done)
        return
    from pipelines.cli.status import show_end

    common.note(done)
    show_end(workspace, as_json)
