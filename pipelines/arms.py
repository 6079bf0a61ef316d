"""One arm of one cycle, on equal terms: the same documents and the same tokens of mid-training for every arm.

Replay takes its share within these tokens. What follows (a recovery, a choice of weights) comes on top and is counted
by itself: :func:`pipelines.spending.spent` tells what the stage of each checkpoint took.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from db import queries, records
from pipelines.corpora import ABOUT, thaw, thaw_all
from pipelines.cycle import STOPPED, recovery_config
from pipelines.distill import distill
from pipelines.interpolate import interpolate
from pipelines.midtrain import length_of, midtrain, open_cycle
from pipelines.session import Session
from recovery.arms import DISTILL, INTERPOLATE, NONE, Arm, arm_named, arms
from recovery.config import CycleConfig, DistillConfig, InterpolateConfig, MidtrainConfig, ModelConfig, to_json
from recovery.corpus import read_corpus
from recovery.errors import UsageError
from recovery.methods import method_named
from recovery.workspace import Checkpoint

__all__ = ["Arm", "arm_named", "arms", "run_arm"]


def run_arm(
    session: Session,
    arm: Arm,
    docs: Path,
    cycle: int,
    midtrain_config: MidtrainConfig,
    distill_config: DistillConfig,
    *,
    student: str | None = None,
    tokens: int | None = None,
) -> list[Checkpoint]:
    """Mid-train on ``docs`` as an arm does it, then what follows; returns what was made, in that order.

    Mid-training takes ``tokens`` target tokens, or as many as ``midtrain_config`` means for documents alone.
    ``student`` is what the cycle begins with: base, or what the cycle before ended with, where it is left out. Work
    that a session has done already, for this arm or another, is not done again; what was stopped is gone on with.
    Raises StageInterrupted when asked to stop, UsageError where the cycle has other documents already.
    """
    start = session.registered(session.resolve(student) if student is not None else _start(session, arm, cycle))
    config = _midtraining(session, arm, dataclasses.replace(midtrain_config, docs=docs), cycle, start, tokens)
    made, stopped = _found(session, "midtrain", config, cycle, start)
    if made is None:
        name = _name(arm, cycle, "midtrained")
        made = midtrain(session, config, cycle=cycle, opened=True, resume=stopped, name=name)
    if arm.follow == NONE:
        return [made]
    return [made, _followed(session, arm, made, cycle, distill_config)]


def _start(session: Session, arm: Arm, cycle: int) -> Checkpoint:
    """What the cycle before ended with. Raises UsageError where that is nothing, or several things."""
    if cycle == 1:
        return session.base
    kind = "midtrained" if arm.follow == NONE else "recovered"
    found = [c for c in session.registry.all() if c.cycle == cycle - 1 and c.kind == kind]
    if len(found) != 1:
        raise UsageError(
            f"cycle {cycle - 1} ended with {len(found)} {kind} checkpoints: name the one that {arm.name} goes on from"
        )
    return found[0]


def _midtraining(
    session: Session, arm: Arm, config: MidtrainConfig, cycle: int, start: Checkpoint, tokens: int | None
) -> MidtrainConfig:
    """The arm's settings, with as many steps of as many tokens as documents alone would take."""
    share = config.replay_documents
    alone = dataclasses.replace(
        config,
        student=start.name,
        replay=0.0,
        replay_loss="answers",
        replay_documents=CycleConfig().replay_documents if share is None else share,
    )
    _open(session, alone, cycle)
    length = length_of(session, alone, cycle)
    steps = length.steps if tokens is None else math.ceil(tokens / length.per_step)
    fixed = dataclasses.replace(alone, steps=steps, epochs=None, batch_tokens=length.per_step)
    return dataclasses.replace(fixed, **arm.midtrain)


def _open(session: Session, config: MidtrainConfig, cycle: int) -> None:
    """The cycle's documents frozen, unless they are. Raises UsageError where they are others."""
    if not (session.workspace.corpus(cycle) / ABOUT).is_file():
        open_cycle(session, config, cycle)
    docs = Path(str(config.docs)).expanduser().resolve()
    frozen = thaw(session.workspace, cycle)
    if frozen.folder != str(docs):
        raise UsageError(f"cycle {cycle} of {session.workspace.folder} has other documents than {docs}")
    if docs.is_dir() and read_corpus(docs, held_out=config.held_out, seed=config.seed).hash != frozen.hash:
        raise UsageError(
            f"{docs} has changed since cycle {cycle} of {session.workspace.folder} began: put it back as it was, or "
            f"use another --workspace"
        )


def _followed(session: Session, arm: Arm, trained: Checkpoint, cycle: int, given: DistillConfig) -> Checkpoint:
    """What comes after mid-training."""
    name = _name(arm, cycle, "recovered")
    if arm.follow == INTERPOLATE:
        between = _interpolating(arm, given, trained)
        made, stopped = _found(session, INTERPOLATE, between, cycle, trained)
        return made or interpolate(session, between, cycle=cycle, resume=stopped, name=name)
    asked = thaw_all(session.workspace, session.taken_up(trained, cycle)).values()
    config = _distilling(arm, given, trained, cycle, questions=any(corpus.questions for corpus in asked))
    made, stopped = _found(session, DISTILL, config, cycle, trained)
    return made or distill(session, config, cycle=cycle, resume=stopped, name=name)


def _name(arm: Arm, cycle: int, kind: str) -> str:
    """What a checkpoint is called after the arm that made it; others may share it."""
    return f"{arm.name}/cycle-{cycle}/{kind}"


def _distilling(arm: Arm, given: DistillConfig, trained: Checkpoint, cycle: int, *, questions: bool) -> DistillConfig:
    settings = dict(arm.settings)
    teacher = settings.pop("knowledge_teacher", None) if questions else None  # nothing else for it to score
    settings = {**method_named(str(settings.get("method", "opd"))).settings, **settings}
    if "prompts" in settings:
        settings["prompts"] = Path(settings["prompts"])
    if settings.get("alpha") == 0.0:  # an answer a prompt is imitated, so as many prompts as others have answers
        settings |= {
            "prompts_per_step": given.prompts_per_step * given.samples_per_prompt,
            "samples_per_prompt": 1,
        }
    config = dataclasses.replace(given, **settings, knowledge_teacher=None, earlier_teacher=None)
    return recovery_config(CycleConfig(knowledge_teacher=teacher, distill=config), trained, cycle)


def _interpolating(arm: Arm, given: DistillConfig, trained: Checkpoint) -> InterpolateConfig:
    shared = {f.name: getattr(given, f.name) for f in dataclasses.fields(ModelConfig)}
    settings = {"prompts": given.prompts, "max_new_tokens": given.max_new_tokens, **arm.settings}
    if settings.get("origin") == "start":
        settings["origin"] = trained.parent or "base"
    return InterpolateConfig(**shared, **settings, student=trained.name)


def _found(
    session: Session, kind: str, config: Any, cycle: int, student: Checkpoint
) -> tuple[Checkpoint | None, records.Stage | None]:
    """The checkpoint of a stage with these settings that came to its end; else the newest that was stopped."""
    database, experiment = session.tracker.database, session.experiment_id
    stages = queries.stages(database, experiment, cycle_id=session.cycle_id(cycle), kind=kind, limit=1000)
    usual = to_json(type(config)())
    mine = [s for s in stages if s.student_id == student.id and _alike({**usual, **s.config}, to_json(config))]
    for stage in mine:
        made = session.registry.of_stage(stage.id)
        if stage.status == "finished" and made is not None:
            return made, None
    return None, next((stage for stage in mine if stage.status in STOPPED), None)


def _alike(ran: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a stage ran with these settings; the tuning may be what it chose for itself, and what was no setting
    then counts as its default.
    """
    chosen = {"tuning": ran.get("tuning")} if wanted.get("tuning") == "auto" else {}
    return dict(ran) == {**wanted, **chosen}
