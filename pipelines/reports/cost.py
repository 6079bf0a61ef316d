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


def stage_of(session: Session, name: str) -> records.Stage:
    """Return the stage that made a checkpoint. Raises UsageError if no stage of the session made it."""
    made = queries.checkpoint(session.tracker.database, session.experiment_id, name)
    stage = queries.stage(session.tracker.database, made.stage_id) if made and made.stage_id else None
    if stage is None:
        raise UsageError(f"no stage of this workspace has made {name}: its cost is not known")
    return stage
