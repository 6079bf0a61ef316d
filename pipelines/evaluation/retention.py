"""Retention: a checkpoint's scores compared with those of the clean model and of its ancestors, on the same items."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from evals.measurement import Measurement
from evals.retention import Interval, forgetting, retention
from pipelines.evaluation.stored_results import items_of, newest, result_items
from pipelines.runtime.session import Session
from recovery.types import SuiteResult
from recovery.workspace import Checkpoint

# Suites about documents that the clean model has never seen: no retention relative to base.
_LEARNT = ("domain_knowledge", "domain_knowledge_stored", "domain_knowledge_likelihood", "open_book")
_LESS_IS_BETTER = ("bits_per_byte", "unrelated_text", "stale_answers")


@dataclass(frozen=True)
class Kept:
    """Retention of a suite: the share of the clean model's score, and the points lost since the best ancestor."""

    retention: Interval | None
    forgetting: Interval
    since: str

    def text(self) -> str:
        """Return both as text."""
        share, lost = self.retention, self.forgetting
        points = [f"{0.0 - 100 * value:+.1f}" for value in (lost.value, lost.high, lost.low)]
        against = f"{points[0]} points against {self.since} ({points[1]} to {points[2]})"
        if share is None:
            return against
        return f"{share.value:.0%} of base ({share.low:.0%} to {share.high:.0%}), {against}"


def kept(session: Session, checkpoint: Checkpoint, results: Iterable[SuiteResult]) -> dict[str, Kept]:
    """Return the retention of each suite with scores from 0 to 1 that an ancestor of the checkpoint has too."""
    database = session.tracker.database
    before = {
        one.name: newest(database, one.id) for one in session.registry.ancestors(checkpoint) if one.id is not None
    }
    found: dict[str, Kept] = {}
    for result in results:
        now = result_items(result)
        kind = result.suite.partition("/")[0]
        if kind in _LESS_IS_BETTER or not now.items or not all(0 <= score <= 1 for score in now.items.values()):
            continue
        asked = {name: rows[result.suite] for name, rows in before.items() if result.suite in rows}
        earlier = {name: one for name, row in asked.items() if _alike(now, one := items_of(database, row))}
        lost = forgetting(now, earlier)
        if lost is not None:
            base = earlier.get("base") if kind not in _LEARNT else None
            found[result.suite] = Kept(None if base is None else retention(now, base), lost[1], lost[0])
    return found


def _alike(now: Measurement, before: Measurement) -> bool:
    """Whether at least half of the items are in both: an ancestor with few would leave few for the comparison."""
    return 2 * len(now.items.keys() & before.items.keys()) >= len(now.items)
