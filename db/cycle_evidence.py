"""Evidence about a cycle: recorded comparisons of its last checkpoint, and what is stored with a decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import exists, select
from sqlalchemy.orm import aliased

from db.records import IN_NATS_OR_BITS, CycleRow, Event, Score, kind_of
from db.schema import Evaluation
from db.session import Database

# Not between 0 and 1, not scored per item, votes of other people on other pairs, or worse where it is more.
NOT_COMPARED = (*IN_NATS_OR_BITS, "preference", "stale_answers")

# Details of an evaluation on questions about a corpus: the share recognised, and what chance would give.
RECOGNISED, CHANCE = "recognised", "recognised/chance"
# What a comparison's p-values are from: items with a common group, as a document, are not independent.
PAIRED_TESTS = "exact McNemar test (the clustered score test where items share a group)"
# Entry of a judgement of the gate: lines about compared checkpoints that two releases judged.
RELEASES = "releases"
OUTDATED = "Judged before the newest evaluation of what it compares"
ABOUT_RECOGNITION = (
    "Questions of which the right answer is preferred among up to eight, by its likelihood: what is known and may not "
    "be said. No measure of what users are told."
)


@dataclass(frozen=True)
class Recognised:
    """Shares of questions of which a cycle's checkpoints recognise the right answer (0 to 1), by corpus."""

    steps: Mapping[str, Mapping[int, Score]]  # of base, mid-trained, recovered: those that were evaluated for it
    chance: Mapping[int, float]


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


def recognised(database: Database, row: CycleRow) -> Recognised | None:
    """Return what a cycle's checkpoints recognise, in their newest evaluations about each corpus; None if that was not
    measured.
    """
    steps = {"base": row.base, "mid-trained": row.midtrained, "recovered": row.recovered}
    found: dict[str, dict[int, Score]] = {}
    chance: dict[int, float] = {}
    for name, step in steps.items():
        if step is None:
            continue
        for corpus, details in _asked(database, step.checkpoint.id).items():
            if RECOGNISED in details:
                found.setdefault(name, {})[corpus] = Score(**details[RECOGNISED])
                chance[corpus] = float(details[CHANCE]["value"])
    return Recognised(found, dict(sorted(chance.items()))) if found else None


def _asked(database: Database, checkpoint_id: int) -> dict[int, Mapping[str, Any]]:
    """Return the details of a checkpoint's newest evaluation on questions about each corpus."""
    query = select(Evaluation.corpus, Evaluation.details).where(
        Evaluation.checkpoint_id == checkpoint_id,
        Evaluation.suite == "domain_knowledge",
        Evaluation.corpus.is_not(None),
    )
    with database.reading() as connection:
        return {one.corpus: one.details for one in connection.execute(query.order_by(Evaluation.id))}


def judges(database: Database, judgement: Event, checkpoint_id: int) -> bool:
    """Whether a judgement of the gate rests on a checkpoint, also if it found nothing measured or does not say."""
    ids = [one for of in judgement.data.get("evaluations", {}).get("student", {}).values() for one in of]
    query = select(Evaluation.id).where(Evaluation.id.in_(ids), Evaluation.checkpoint_id == checkpoint_id)
    with database.reading() as connection:
        return not ids or connection.execute(query.limit(1)).first() is not None


def outdated(database: Database, judgement: Event) -> bool:
    """Whether any evaluation that a judgement of the gate rests on has been made anew since."""
    recorded = judgement.data.get("evaluations", {}).values()
    ids = [one for suites in recorded for of in suites.values() for one in of]
    used, newer = aliased(Evaluation), aliased(Evaluation)
    again = exists().where(
        newer.checkpoint_id == used.checkpoint_id,
        newer.suite == used.suite,
        newer.corpus.is_not_distinct_from(used.corpus),
        newer.id > used.id,
    )
    with database.reading() as connection:
        return connection.execute(select(used.id).where(used.id.in_(ids), again).limit(1)).first() is not None


def why_not_passed(verdict: Mapping[str, Any]) -> str:
    """Return the reason of a rule's verdict, as a judgement stores it; nothing if the rule passed."""
    return "" if verdict["verdict"] == "pass" else str(verdict.get("reason") or "")


def releases(judgement: Event) -> Sequence[str]:
    """Return what a judgement says about checkpoints that two releases of Recovery or of lm_eval judged."""
    found: Sequence[str] = judgement.data.get(RELEASES, ())
    return found


def unpaired(verdict: Mapping[str, Any]) -> bool:
    """Whether a rule compared two checkpoints as independent samples: they were asked too few common items."""
    return verdict.get("reference") is not None and verdict.get("paired") is False


def for_decision(row: CycleRow, compared: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a decision about a cycle is stored with: the comparisons of its last checkpoint, and that one's and
    base's scores by checkpoint.
    """
    if row.end is None:
        return {}
    scores = {one.checkpoint.name: one.scores.to_json() for one in (row.base, row.end) if one is not None}
    return {"checkpoint": row.end.checkpoint.name, **compared, "scores": scores}
