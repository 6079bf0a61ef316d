"""The distillation stage, for every method: sample, score, update. `recover distill` is the on-policy method.

Completions of behaviour prompts are scored by the clean base. Questions about the documents can be routed to a second
teacher, the frozen mid-trained checkpoint, which knows the answers; the base does not. Other methods (completions from
data, rewards, the student as its own teacher with a context) are settings of the configuration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from db import records
from pipelines.distillation.batch_builder import BatchBuilder
from pipelines.distillation.early_stopping import EarlyStopping, Observer
from pipelines.distillation.plan import make_plan
from pipelines.distillation.pools import build_pools, given_completions
from pipelines.distillation.prefetch import Prefetcher
from pipelines.distillation.resolve import ResolvedDistillation, resolve, resumable_config
from pipelines.distillation.teaching import (
    check_same_teacher,
    model_specs,
    teacher_engine,
    teacher_label,
    teacher_metrics,
)
from pipelines.distillation.token_logging import TokenLogger
from pipelines.runtime.generation import (
    SampledTurn,
    reference_result,
)
from pipelines.runtime.model_loading import LoadedModels, load_models, reach_teacher
from pipelines.runtime.session import Session
from pipelines.runtime.stage import Stage, running, settings_of
from recovery.config import DistillConfig
from recovery.training.loop import Hooks
from recovery.types import Message, SuiteResult
from recovery.workspace import Checkpoint


def distill(
    session: Session,
    config: DistillConfig,
    *,
    cycle: int | None = None,
    resume: records.Stage | None = None,
    name: str | None = None,
    observe: Observer | None = None,
) -> Checkpoint:
    """Run the stage and return its checkpoint, which becomes ``latest``.

    ``name`` is the checkpoint's name, "cycle-K/recovered" by default; ``observe`` evaluates the model every
    ``check_every`` steps; ``resume`` is the record of an interrupted stage to continue. Raise StageInterrupted if a
    stop is requested.
    """
    resolved = resolve(session, config, resume.cycle if resume is not None else cycle)
    plan = make_plan(config, resolved, session.base)
    student = session.registered(resolved.student, cycle_id=session.cycle_id(resolved.cycle))
    # The tuning is fixed here: a resumed stage may find another amount of free memory.
    config = replace(resumable_config(config, student, resolved), tuning=plan.tuning)
    session.display.say(plan.text())
    with (
        running(session, "distill", config, cycle=resolved.cycle, student=student, resume=resume) as stage,
        contextlib.ExitStack() as resources,
    ):
        loss_config = config.loss_config()
        if loss_config.loss_title:
            stage.declare(loss_config.loss_metric, loss_config.loss_title)
        reach_teacher(config)
        reference = reference_result(stage, resolved.teacher or session.base, resolved.development, config)
        given, sampled_tokens = given_completions(session, stage, config, resolved, student)
        settings = settings_of(config, plan.steps, plan.lr)
        with load_models(stage, model_specs(session, config, resolved, student, plan.tuning), settings) as models:
            check_same_teacher(stage, models.teachers)
            memory = {"spent": float(sampled_tokens)}
            prefetcher: Prefetcher[list[SampledTurn]] | None = (
                resources.enter_context(contextlib.closing(Prefetcher())) if config.overlap else None
            )
            batch_builder = _batch_builder(stage, config, resolved, models, given, memory, prefetcher)
            result = models.train(
                stage,
                batch_builder,
                settings,
                hooks=_hooks(stage, config, plan.steps, models, batch_builder, resolved, reference, observe),
                figure="reverse_kl" if config.divergence == "sampled" else loss_config.loss_metric,
                memory=memory,
            )
        extra = {
            "cycle": resolved.cycle,
            "method": config.method,
            "teacher": teacher_label(models.teachers, plan.teacher),
            "steps": result.step,
            "stopped": result.stopped,
        }
        stage.details = {
            **extra,
            "development": memory.get("checks", []),
            **{name: memory.get(name, []) for name in ("observed", "geometry")},
            "parameters": plan.parameters,
        }
        if result.stopped.startswith("collapse"):
            session.display.say(f"stopped: {result.stopped}; the weights of step {result.step} are kept")
        return stage.keep(models.loaded, "recovered", student, extra, name=name)


def _batch_builder(
    stage: Stage,
    config: DistillConfig,
    resolved: ResolvedDistillation,
    models: LoadedModels,
    given: Sequence[tuple[Message, ...]],
    memory: dict[str, Any],
    prefetcher: Prefetcher[list[SampledTurn]] | None,
) -> BatchBuilder:
    return BatchBuilder(
        config,
        models.loaded,
        models.engine,
        build_pools(config, resolved, models.loaded, given),
        models.teachers,
        models.logprobs,
        resolved.context,
        resolved.reward,
        teacher_engine(models.timed, config),
        memory,
        prefetcher,
        stage.sampled,
    )


def _hooks(
    stage: Stage,
    config: DistillConfig,
    steps: int,
    models: LoadedModels,
    batch_builder: BatchBuilder,
    resolved: ResolvedDistillation,
    reference: SuiteResult | None,
    observe: Observer | None,
) -> Hooks:
    """Token logging and early stopping."""
    loaded, say = models.loaded, stage.session.display.say
    early_stopping = EarlyStopping(
        stage,
        config,
        loaded,
        models.engine,
        resolved.development,
        reference,
        models.instrumentation,
        batch_builder.memory,
        observe,
        teacher_metrics(models.timed, config, batch_builder.pools.behaviour, loaded, say),
    )
    token_logger = TokenLogger(stage, loaded, models.teachers, steps, config.token_views)

    def after_step(step: int) -> str | None:
        token_logger.record(step)
        return early_stopping.after_step(step)

    return Hooks(
        log=lambda _step, metrics: early_stopping.add_metrics(metrics),
        on_batch=token_logger.keep,
        after_step=after_step,
        sound=early_stopping.sound,
    )


# --- training data -------------------------------------------------------------------------------------------
