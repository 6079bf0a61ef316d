"""The cost of training a checkpoint: tokens, operations, seconds."""

from __future__ import annotations

from dataclasses import dataclass

from db import queries, records
from pipelines.planning.throughput import flops, parameters
from pipelines.runtime.session import Session
from recovery.errors import UsageError


@dataclass(frozen=True)
class Cost:
    """The cost of a run: tokens sampled, scored and trained; floating-point operations; seconds."""

    sampled: int
    scored: int
    trained: int
    flops: float
    seconds: float


def cost_of(session: Session, name: str) -> Cost:
    """Return the cost of the stage that made a checkpoint, without the stages before it.

    Raises UsageError if no stage of the session made it.
    """
    stage = stage_of(session, name)
    count = parameters(session.base.weights)
    tokens = {"sampled": stage.tokens_sampled, "scored": stage.tokens_scored, "trained": stage.tokens_trained}
    return Cost(**tokens, flops=flops(count, **tokens), seconds=stage.wall_seconds)


def stage_of(session: Session, name: str, experiment: str | None = None) -> records.Stage:
    """Return the stage that made a checkpoint, of this session or of another experiment in its tracker.

    Raises UsageError if no stage made it.
    """
    database = session.tracker.database
    other = queries.experiment(database, experiment) if experiment is not None else None
    number = session.experiment_id if experiment is None else other.id if other is not None else None
    made = queries.checkpoint(database, number, name) if number is not None else None
    stage = queries.stage(database, made.stage_id) if made and made.stage_id else None
    if stage is None:
        where = "this workspace" if experiment is None else f"the experiment {experiment}"
        raise UsageError(f"no stage of {where} has made {name}: neither its cost nor its settings are known")
    return stage
