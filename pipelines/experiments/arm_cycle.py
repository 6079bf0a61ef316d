"""One arm of one cycle, with the same documents and the same mid-training tokens for every arm.

Replay takes its share of these tokens. The second stage (a recovery or an interpolation) is counted separately:
:func:`pipelines.experiments.compare.cost_of` returns the cost of the stage of each checkpoint.

A stage that has run with the same settings on the same student is not run again; one that was stopped is resumed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from db import queries, records
from pipelines.cycle_plan import STOPPED, config_of, recovery_config
from pipelines.data.corpus_snapshot import ABOUT, CorpusSnapshot, load_snapshot, load_snapshots
from pipelines.distillation.stage import distill
from pipelines.interpolate import interpolate
from pipelines.midtraining.material import open_cycle
from pipelines.midtraining.plan import length_of
from pipelines.midtraining.stage import midtrain
from pipelines.runtime.recorded_paths import matches_recorded, spellings
from pipelines.runtime.session import ASKED, Session
from recovery.arms import DISTILL, INTERPOLATE, NONE, Arm
from recovery.config import (
    CycleConfig,
    DistillConfig,
    InterpolateConfig,
    MidtrainConfig,
    ModelConfig,
    preset_settings,
    to_json,
)
from recovery.config.build import current
from recovery.data.corpus.folder import read_corpus
from recovery.data.sources import parse
from recovery.errors import UsageError
from recovery.workspace import Checkpoint


def matching_stages(session: Session, kind: str, config: Any, cycle: int, student: Checkpoint) -> list[records.Stage]:
    """Return the stages of a cycle with these settings and this student, of any status, newest first."""
    database, experiment = session.tracker.database, session.experiment_id
    stages = queries.stages(database, experiment, cycle_id=session.cycle_id(cycle), kind=kind, limit=1000)
    usual = to_json(type(config)())
    wanted = spellings(dataclasses.replace(config, student=student.name), session.registry)

    def ran(stage: records.Stage) -> Mapping[str, Any]:
        """Return its settings. What its "auto" became depends on the memory there was: it stays "auto"."""
        auto = getattr(config, "tuning", "") == "auto" == stage.details.get(ASKED, "auto")  # not kept before 0.2
        return {**usual, **current(stage.config), **({"tuning": "auto"} if auto else {})}

    return [s for s in stages if s.student_id == student.id and any(matches_recorded(ran(s), w) for w in wanted)]


def stopped(session: Session, stages: list[records.Stage], name: str) -> records.Stage | None:
    """Return the first of the stages that was stopped; before all the one that has made the checkpoint ``name``.

    That one ended after its checkpoint and before its last record: only its own end makes the name one of a finished
    stage.
    """
    made = next((checkpoint for checkpoint in session.registry.all() if checkpoint.name == name), None)
    unfinished = [stage for stage in stages if stage.status in STOPPED]
    owner = (stage for stage in unfinished if made is not None and session.registry.of_stage(stage.id) == made)
    return next(owner, next(iter(unfinished), None))


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
    """Run an arm's mid-training on ``docs`` and its second stage; return their checkpoints in that order.

    Mid-training takes ``tokens`` target tokens, default: as many as ``midtrain_config`` gives, its replay included.
    ``student`` is the checkpoint to start from, default: base, or the last checkpoint of the cycle before. Stages that
    the session has finished, for this arm or another, are reused; interrupted ones are resumed. Raises
    StageInterrupted on an interrupt, UsageError if the cycle already has other documents.
    """
    start = session.registered(session.resolve(student) if student is not None else _start(session, arm, cycle))
    config = _midtraining(session, arm, dataclasses.replace(midtrain_config, docs=docs), cycle, start, tokens)
    name = _name(arm, cycle, "midtrained")
    made, resume = _earlier_run(session, "midtrain", config, cycle, start, name)
    if made is None:
        config = config_of(session, resume, config)
        made = midtrain(session, config, load_snapshot(session.workspace, cycle), resume=resume, name=name)
    if arm.follow == NONE:
        return [made]
    return [made, _second_stage(session, arm, made, cycle, distill_config)]


def _start(session: Session, arm: Arm, cycle: int) -> Checkpoint:
    """Return the last checkpoint of the cycle before. Raises UsageError if there is none, or more than one."""
    if cycle == 1:
        return session.base
    kind = "midtrained" if arm.follow == NONE else "recovered"
    ends = [c for c in session.registry.all() if c.cycle == cycle - 1 and c.kind == kind]
    if len(ends) != 1:
        raise UsageError(
            f"cycle {cycle - 1} ended with {len(ends)} {kind} checkpoints: name the one that {arm.name} starts from"
        )
    return ends[0]


def _midtraining(
    session: Session, arm: Arm, config: MidtrainConfig, cycle: int, start: Checkpoint, tokens: int | None
) -> MidtrainConfig:
    """Return the arm's settings, with the tokens that ``config`` takes, in steps of as many or of its own."""
    share = config.replay_documents
    settings = dataclasses.replace(
        config,
        student=start.name,
        replay_documents=CycleConfig().replay_documents if share is None else share,
    )
    length = length_of(session, settings, _snapshot(session, settings, cycle))
    total = length.steps * length.per_step if tokens is None else tokens
    per_step = arm.midtrain.get("batch_tokens") or length.per_step
    fixed = {"steps": math.ceil(total / per_step), "epochs": None, "batch_tokens": per_step}
    # An arm is measured against documents alone, whatever the defaults replay.
    return dataclasses.replace(settings, **{"replay": 0.0, "replay_loss": "answers", **fixed, **arm.midtrain})


def _snapshot(session: Session, config: MidtrainConfig, cycle: int) -> CorpusSnapshot:
    """Return the snapshot of the cycle's documents, made if there is none. Raises UsageError if it holds others."""
    if not (session.workspace.corpus(cycle) / ABOUT).is_file():
        open_cycle(session, config, cycle)
    assert config.docs is not None  # set by run
    docs = parse(config.docs)
    frozen = load_snapshot(session.workspace, cycle)
    if not matches_recorded(frozen.folder, docs.lasting):  # the same ones in another place, if all was moved
        raise UsageError(
            f"cycle {cycle} of {session.workspace.folder} began with the documents in {frozen.folder}, not with "
            f"{docs.text}: use another --workspace; if this one is a copy, it goes on once {frozen.folder} is gone"
        )
    if docs.path.exists() and _hash(session, config, frozen) != frozen.hash:
        raise UsageError(
            f"{docs.text} has changed since cycle {cycle} of {session.workspace.folder} began: restore it, or use "
            f"another --workspace"
        )
    return frozen


def _hash(session: Session, config: MidtrainConfig, frozen: CorpusSnapshot) -> str:
    """Return the hash of the documents as they are now, split as in the snapshot (if old, with the settings' seed)."""
    assert config.docs is not None  # set by run
    split = config.seed if frozen.seed is None else frozen.seed
    before = [one.split for one in load_snapshots(session.workspace, frozen.after).values()]
    return read_corpus(
        config.docs, held_out=config.held_out, seed=split, skip_near=config.skips_near, before=before
    ).hash


def _second_stage(session: Session, arm: Arm, trained: Checkpoint, cycle: int, defaults: DistillConfig) -> Checkpoint:
    name = _name(arm, cycle, "recovered")
    if arm.follow == INTERPOLATE:
        between = _interpolating(arm, defaults, trained)
        made, resume = _earlier_run(session, INTERPOLATE, between, cycle, trained, name)
        return made or interpolate(session, config_of(session, resume, between), cycle=cycle, resume=resume, name=name)
    config = _distilling(arm, defaults, trained, cycle)
    made, resume = _earlier_run(session, DISTILL, config, cycle, trained, name)
    return made or distill(session, config_of(session, resume, config), cycle=cycle, resume=resume, name=name)


def _name(arm: Arm, cycle: int, kind: str) -> str:
    """Return the name of a checkpoint, after the arm that made it; other arms may share it."""
    return f"{arm.name}/cycle-{cycle}/{kind}"


def _distilling(arm: Arm, defaults: DistillConfig, trained: Checkpoint, cycle: int) -> DistillConfig:
    settings = dict(arm.settings)
    teacher = settings.pop("knowledge_teacher", None)
    method = str(settings.get("method", "opd"))
    settings = {**preset_settings(method, [settings], [vars(defaults)]), **settings}
    if "prompts" in settings:
        settings["prompts"] = Path(settings["prompts"])
    if settings.get("alpha") == 0.0:  # one response per prompt, so as many prompts as other arms have completions
        prompts = defaults.prompts_per_step * defaults.samples_per_prompt
        settings |= {"prompts_per_step": prompts, "samples_per_prompt": 1}
    config = dataclasses.replace(defaults, **settings, knowledge_teacher=None, earlier_teacher=None)
    recovery = recovery_config(CycleConfig(knowledge_teacher=teacher, distill=config), trained, cycle)
    return dataclasses.replace(recovery, prompts_before=defaults.prompts_before)  # as in the records that there are


def _interpolating(arm: Arm, defaults: DistillConfig, trained: Checkpoint) -> InterpolateConfig:
    shared = {f.name: getattr(defaults, f.name) for f in dataclasses.fields(ModelConfig)}
    settings = {"prompts": defaults.prompts, "max_new_tokens": defaults.max_new_tokens, **arm.settings}
    if settings.get("origin") == "start":
        settings["origin"] = trained.parent or "base"
    return InterpolateConfig(**shared, **settings, student=trained.name)


def _earlier_run(
    session: Session, kind: str, config: Any, cycle: int, student: Checkpoint, name: str
) -> tuple[Checkpoint | None, records.Stage | None]:
    """Return the checkpoint of a finished stage with these settings; else the newest one that was stopped."""
    stages = matching_stages(session, kind, config, cycle, student)
    checkpoints = (session.registry.of_stage(stage.id) for stage in stages if stage.status == "finished")
    made = next((checkpoint for checkpoint in checkpoints if checkpoint is not None), None)
    return made, None if made is not None else stopped(session, stages, name)
