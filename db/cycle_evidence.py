"""Evidence about a cycle: recorded comparisons of its last checkpoint, and what is stored with a decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from db.records import IN_NATS_OR_BITS, CycleRow, Event, kind_of
from db.schema import Evaluation
from db.session import Database

# Not between 0 and 1, not scored per item, or votes of other people on other pairs.
NOT_COMPARED = (*IN_NATS_OR_BITS, "preference")


def is_compared(suite: str) -> bool:
    """Whether a suite, named with or without what it is about, can be part of a comparison."""
    return kind_of(suite) not in NOT_COMPARED


def newest_compared(database: Database, checkpoint_id: int) -> int:
    """Return the id of a checkpoint's newest evaluation that can be part of a comparison, 0 if there is none."""
    query = select(Evaluation.id, Evaluation.suite).where(Evaluation.checkpoint_id == checkpoint_id)
    with database.reading() as connection:
        rows = connection.execute(query.order_by(Evaluation.id.desc()))
        return next((row.id for row in rows if is_compared(row.suite)), 0)


def current(database: Database, row: CycleRow) -> Mapping[str, Any]:
    """Return the comparisons recorded with a cycle if they cover the newest evaluation of its last checkpoint; nothing
    if they are of another checkpoint, or older.
    """
    recorded: Mapping[str, Any] = row.cycle.details.get("evidence", {})
    if row.end is None or recorded.get("checkpoint") != row.end.checkpoint.name:
        return {}
    newest = newest_compared(database, row.end.checkpoint.id)
    return recorded if 0 < newest <= recorded.get("newest_evaluation", 0) else {}


def judges(database: Database, judgement: Event, checkpoint_id: int) -> bool:
    """Whether a judgement of the gate rests on a checkpoint, also if it found nothing measured or does not say."""
    ids = [one for of in judgement.data.get("evaluations", {}).get("student", {}).values() for one in of]
    query = select(Evaluation.id).where(Evaluation.id.in_(ids), Evaluation.checkpoint_id == checkpoint_id)
    with database.reading() as connection:
        return not ids or connection.execute(query.limit(1)).first() is not None


def for_decision(row: CycleRow, compared: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a decision about a cycle is stored with: the comparisons of its last checkpoint, and that one's and
    base's scores by checkpoint.
    """
    if row.end is None:
        return {}
    scores = {one.checkpoint.name: one.scores.to_json() for one in (row.base, row.end) if one is not None}
    return {"checkpoint": row.end.checkpoint.name, **compared, "scores": scores}
