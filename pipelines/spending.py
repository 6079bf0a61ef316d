"""What it took to make a checkpoint: tokens, operations, seconds."""

from __future__ import annotations

from dataclasses import dataclass

from db import queries
from pipelines.estimates import flops, parameters
from pipelines.session import Session
from recovery.errors import UsageError


@dataclass(frozen=True)
class Spent:
    """What a run took: tokens sampled, scored and trained; floating-point operations; seconds."""

    sampled: int
    scored: int
    trained: int
    flops: float
    seconds: float


def spent(session: Session, name: str) -> Spent:
    """What the stage that made a checkpoint took by itself, not what it started from.

    Raises UsageError where no stage of the session has made it.
    """
    where = session.tracker.database, session.experiment_id
    number = next((c.stage_id for c in queries.checkpoints(*where) if c.name == name), None)
    stage = next((s for s in queries.stages(*where, limit=10_000) if s.id == number), None)
    if stage is None:
        raise UsageError(f"no stage of this workspace has made {name}: what it took is not known")
    count = parameters(session.base.weights)
    tokens = {"sampled": stage.tokens_sampled, "scored": stage.tokens_scored, "trained": stage.tokens_trained}
    return Spent(**tokens, flops=flops(count, **tokens), seconds=stage.wall_seconds)
