"""Stages that ran before with the same settings on the same student, so that none is run twice or begun anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from db import queries, records
from pipelines.cycle_plan import STOPPED
from pipelines.runtime.recorded_paths import alike, spellings
from pipelines.runtime.session import Session
from recovery.config import to_json
from recovery.workspace import Checkpoint


def stages_alike(session: Session, kind: str, config: Any, cycle: int, student: Checkpoint) -> list[records.Stage]:
    """Return the stages of a cycle with these settings and this student, whatever became of them, newest first."""
    database, experiment = session.tracker.database, session.experiment_id
    stages = queries.stages(database, experiment, cycle_id=session.cycle_id(cycle), kind=kind, limit=1000)
    usual = to_json(type(config)())
    wanted = spellings(dataclasses.replace(config, student=student.name), session.registry)
    return [s for s in stages if s.student_id == student.id and any(_alike({**usual, **s.config}, w) for w in wanted)]


def finished(session: Session, stages: list[records.Stage]) -> Checkpoint | None:
    """Return the checkpoint of the first of the stages that is finished and has one."""
    made = (session.registry.of_stage(stage.id) for stage in stages if stage.status == "finished")
    return next((checkpoint for checkpoint in made if checkpoint is not None), None)


def stopped(session: Session, stages: list[records.Stage], name: str) -> records.Stage | None:
    """Return the first of the stages that was stopped; before all the one that has made the checkpoint ``name``.

    That one ended after its checkpoint and before its last record: only its own end makes the name one of a finished
    stage.
    """
    made = next((checkpoint for checkpoint in session.registry.all() if checkpoint.name == name), None)
    left = [stage for stage in stages if stage.status in STOPPED]
    owner = (stage for stage in left if made is not None and session.registry.of_stage(stage.id) == made)
    return next(owner, next(iter(left), None))


def _alike(ran: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a stage ran with these settings; with tuning "auto", any tuning matches."""
    chosen = {"tuning": ran.get("tuning")} if wanted.get("tuning") == "auto" else {}
    return alike(ran, {**wanted, **chosen})
