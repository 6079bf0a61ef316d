"""Retention: a checkpoint's scores compared with those of the clean model and of its ancestors, on the same items.

Both metrics compare with a reference measured on the same items (an earlier checkpoint, or the clean model):

- **forgetting** = reference − now, the points lost; with several earlier checkpoints the reference is the best one
  (Chaudhry et al., Riemannian Walk, arXiv 1801.10112);
- **retention** = now / reference, the share retained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from evals.contrasts import paired_contrast
from evals.measurement import Measurement
from pipelines.evaluation.stored_results import items_of, newest, result_items
from pipelines.runtime.session import Session
from recovery.lazy_import import lazily
from recovery.types import SuiteResult
from recovery.workspace import Checkpoint

optimize = lazily("scipy.optimize")

_ALPHA = 0.025  # per side
_LARGEST_RATIO = 100.0  # upper limit of the ratio; larger ones only mean that the reference is close to 0


@dataclass(frozen=True)
class Interval:
    """A value with its 95% interval, from the ``n`` common items of both checkpoints."""

    value: float
    low: float
    high: float
    n: int


def forgetting(now: Measurement, earlier: Mapping[str, Measurement]) -> tuple[str, Interval] | None:
    """Return the best earlier checkpoint and its score − now, which is positive if something was lost.

    The interval is that of :func:`~evals.contrasts.paired_contrast`, paired by item and clustered by group; it does
    not account for the selection of the best checkpoint. None if no item is common to all of them.
    """
    common = _common(now, *earlier.values())
    if not earlier or not common:
        return None
    before = {name: [one.items[key] for key in common] for name, one in earlier.items()}
    best = max(before, key=lambda name: sum(before[name]))
    lost = paired_contrast(before[best], [now.items[key] for key in common], _groups(now, common), alpha=_ALPHA)
    return best, Interval(lost.value, lost.low, lost.high, lost.n)


def retention(now: Measurement, reference: Measurement) -> Interval | None:
    """Return now / reference: 1 if nothing was lost.

    The interval contains the ratios that the same test does not reject (Nam & Blackwelder's, for verdicts), so it has
    a positive width even if no item changed. None if no item is common, or the reference scores 0 on all of them.
    """
    common = _common(now, reference)
    one, two = [now.items[key] for key in common], [reference.items[key] for key in common]
    if sum(two) <= 0:
        return None
    bounds = partial(paired_contrast, one, two, _groups(now, common), alpha=_ALPHA)
    return Interval(
        sum(one) / sum(two),
        _root(lambda ratio: bounds(factor=ratio).low, 0.0),
        _root(lambda ratio: bounds(factor=ratio).high, math.inf),
        len(common),
    )


def _root(falling: Callable[[float], float], otherwise: float) -> float:
    """Return the root of a decreasing function of a ratio; ``otherwise`` if it has none."""
    if falling(0.0) <= 0 or falling(_LARGEST_RATIO) >= 0:
        return otherwise
    return float(optimize.brentq(falling, 0.0, _LARGEST_RATIO, xtol=1e-6))


def _common(*measured: Measurement) -> list[str]:
    """Return the ids of the common items, in the order of the first measurement."""
    return [key for key in measured[0].items if all(key in other.items for other in measured[1:])]


def _groups(measured: Measurement, keys: Sequence[str]) -> list[str]:
    return [measured.groups.get(key, "") for key in keys]


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
    by_suite: dict[str, Kept] = {}
    for result in results:
        now = result_items(result)
        kind = result.suite.partition("/")[0]
        if kind in _LESS_IS_BETTER or not now.items or not all(0 <= score <= 1 for score in now.items.values()):
            continue
        asked = {name: rows[result.suite] for name, rows in before.items() if result.suite in rows}
        earlier = {name: one for name, row in asked.items() if _shares_items(now, one := items_of(database, row))}
        lost = forgetting(now, earlier)
        if lost is not None:
            base = earlier.get("base") if kind not in _LEARNT else None
            by_suite[result.suite] = Kept(None if base is None else retention(now, base), lost[1], lost[0])
    return by_suite


def _shares_items(now: Measurement, before: Measurement) -> bool:
    """Whether at least half of the items are in both: an ancestor with few would leave few for the comparison."""
    return 2 * len(now.items.keys() & before.items.keys()) >= len(now.items)
