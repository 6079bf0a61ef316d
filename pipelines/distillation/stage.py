"""The distillation stage, for every method: sample, score, update. `recover distill` is the on-policy method.

Completions of behaviour prompts are scored by the clean base. Questions about the documents can be routed to a second
teacher, the frozen mid-trained checkpoint, which knows the answers; the base does not. Other methods (completions from
data, rewards, the student as its own teacher with a context) are settings of the configuration.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from db import records
from pipelines.distillation.batch_builder import BatchBuilder
from pipelines.distillation.early_stopping import EarlyStopping, Observer, StoppingState
from pipelines.distillation.plan import make_plan
from pipelines.distillation.pools import build_pools, given_completions
from pipelines.distillation.prefetch import Prefetcher
from pipelines.distillation.resolve import ResolvedDistillation, resolve
from pipelines.distillation.teaching import (
    check_same_teacher,
    model_specs,
    teacher_engine,
    teacher_label,
    teacher_metrics,
)
from pipelines.distillation.token_logging import TokenLogger
from pipelines.runtime.generation import SampledTurn, reference_result
from pipelines.runtime.model_group import load_models
from pipelines.runtime.model_loading import FrozenModel
from pipelines.runtime.session import Session
from pipelines.runtime.stage import Stage, running
from pipelines.runtime.teacher_server import reach_teacher
from pipelines.runtime.train_settings import settings_of
from recovery.config import DistillConfig
from recovery.training.interfaces import COLLAPSE, FINISHED, Hooks, TrainResult
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
    plan = make_plan(resolved)
    student = session.registered(resolved.student, cycle_id=session.cycle_id(resolved.cycle))
    # The tuning is fixed here, and what follows from it: a resumed stage may find another amount of free memory.
    config = replace(resolved.config, tuning=plan.tuning, blend=plan.blend)
    resolved = replace(resolved, config=config, student=student, origin=None if plan.blend == 1.0 else resolved.origin)
    say = session.display.say
    say(plan.text())
    with (
        running(
            session, "distill", config, cycle=resolved.cycle, student=student, resume=resume, rows=plan.rows
        ) as stage,
        contextlib.ExitStack() as resources,
    ):
        _check_inputs(session, resolved)
        frozen = FrozenModel(session, config)
        reference = reference_result(stage, frozen, resolved.teacher or resolved.clean, resolved.development, config)
        given, tokens = given_completions(stage, frozen, resolved)
        specs = model_specs(resolved, settings_of(config, plan.steps, plan.lr))
        with load_models(stage, specs, frozen) as models:
            check_same_teacher(stage, models.teachers)
            prefetcher: Prefetcher[list[SampledTurn]] | None = (
                resources.enter_context(contextlib.closing(Prefetcher())) if config.overlap else None
            )
            builder = BatchBuilder(
                config,
                student=models.loaded,
                engine=models.engine,
                pools=build_pools(resolved, models.loaded, given, models.teachers, models.engine, say),
                teachers=models.teachers,
                logprobs=models.logprobs,
                context=resolved.context,
                reward=resolved.reward,
                teacher_engine=teacher_engine(models.scorers, config),
                prefetcher=prefetcher,
                progress=stage.sampled,
                cross=models.cross,
            )
            seen = teacher_metrics(
                models.scorers, config, builder.pools.behaviour, models.loaded, resolved.context, say
            )
            stopping = EarlyStopping(
                stage,
                config,
                models,
                development=resolved.development,
                reference=reference,
                state=StoppingState(float(tokens)),
                observe=observe,
                teacher_metrics=seen,
            )
            result = models.train(
                stage,
                builder,
                hooks=_hooks(stopping, TokenLogger(stage, models, plan.steps, config.token_views, config.teacher)),
                figure=_figure(stage, config),
                resumables=(builder.state, builder.sampler.state, stopping.state, stopping.detector.state),
            )
        extra = {"cycle": resolved.cycle, "method": config.method}
        extra |= {"teacher": teacher_label(models.teachers, plan.teacher), "steps": result.step}
        extra |= {"stopped": result.stopped}
        stage.details = {**extra, **stopping.state.measured, "parameters": plan.parameters}
        if result.stopped != FINISHED:
            say(_end(result, plan.steps))
        return stage.keep(models.loaded, "recovered", student, extra, name=name)


def _check_inputs(session: Session, resolved: ResolvedDistillation) -> None:
    """Raise ServerError if a teacher cannot be reached, CheckpointError if the blend's origin has changed."""
    reach_teacher(resolved.config, say=session.display.say)
    if resolved.origin is not None:
        session.verified(resolved.origin)


def _end(result: TrainResult, steps: int) -> str:
    """Return why a run ended early."""
    if result.stopped.startswith(COLLAPSE):
        return f"stopped: {result.stopped}; the weights of step {result.step} are kept"
    return f"stopped at step {result.step} of {steps}: {result.stopped}"


def _figure(stage: Stage, config: DistillConfig) -> str:
    """Return the metric on the progress bar, after declaring what a divergence is called on the live page."""
    loss = config.loss_config()
    if loss.loss_title:
        stage.declare(loss.loss_metric, loss.loss_title)
    return "reverse_kl" if config.divergence == "sampled" else loss.loss_metric


def _hooks(stopping: EarlyStopping, token_logger: TokenLogger) -> Hooks:
    def after_step(step: int) -> str | None:
        token_logger.record(step)
        return stopping.after_step(step)

    return Hooks(
        log=lambda _step, metrics: stopping.add_metrics(metrics),
        on_batch=token_logger.keep,
        after_step=after_step,
        healthy=stopping.healthy,
    )
