"""The cost of training a checkpoint: tokens, operations, seconds."""

from __future__ import annotations

from dataclasses import dataclass

from db import queries
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
    where = session.tracker.database, session.experiment_id
    number = next((c.stage_id for c in queries.checkpoints(*where) if c.name == name), None)
    stage = next((s for s in queries.stages(*where, limit=10_000) if s.id == number), None)
    if stage is None:
        raise UsageError(f"no stage of this workspace has made {name}: its cost is not known")
    count = parameters(session.base.weights)
    tokens = {"sampled": stage.tokens_sampled, "scored": stage.tokens_scored, "trained": stage.tokens_trained}
    return Cost(**tokens, flops=flops(count, **tokens), seconds=stage.wall_seconds)
