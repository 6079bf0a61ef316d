"""Measurements that the acceptance gate compares: items with scores, by suite and checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evals.acceptance_rules import DECLINED
from evals.beyond_constant import Row, single_instructions
from evals.domain_pmi import BITS
from evals.statistics import is_headline, score_of
from recovery.errors import UsageError
from recovery.types import Score


@dataclass(frozen=True)
class Measurement:
    """Results of one suite on one checkpoint: item scores in [0, 1] and the items' clusters, both by id.

    ``score`` is used if there are no items. ``unscored``: there are items, but only the whole suite has a score, as
    with BLEU or a perplexity. Such a score cannot be tested: how far it varies with the items is unknown.
    ``beyond_constant`` holds the single instructions that no constant reply follows (:mod:`evals.beyond_constant`).
    ``declined`` counts the items that decline (:func:`evals.suites.declines`).
    ``cells`` are the items with the likelihood of candidates, as :func:`evals.domain_pmi.blocks_of` reads them.
    """

    items: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    score: Score | None = None
    unscored: bool = False
    beyond_constant: Measurement | None = None
    cells: tuple[tuple[str, str, Mapping[str, Any]], ...] = ()
    declined: int = 0

    @property
    def untestable(self) -> str:
        """Why it cannot be tested although it was measured; "" if it can."""
        if self.unscored:
            return "its items have no scores of their own"
        values = list(self.items.values()) or ([] if self.score is None else [self.score.value])
        return "" if all(0 <= value <= 1 for value in values) else "its scores are not between 0 and 1"

    @property
    def headline(self) -> Score | None:
        """The mean over the items, or ``score`` if there are none; None if nothing can be tested."""
        if self.untestable:
            return None
        if not self.items:
            return self.score if self.score is not None and self.score.n > 0 else None
        return score_of(list(self.items.values()), [self.groups.get(key, "") for key in self.items])


@dataclass(frozen=True)
class Evidence:
    """All measurements: checkpoint (as in :class:`evals.acceptance_rules.Need`) → suite → measurement.

    ``corpus`` is the number of the cycle being judged, to which ``domain`` and ``stored`` without a number refer.
    "first" combines suites of several checkpoints: for each corpus those measured at the end of its own cycle.
    """

    measured: Mapping[str, Mapping[str, Measurement]]
    corpus: int | None = None


def measurement(rows: Iterable[Row]) -> Measurement:
    """Return the headline items of (id, score, group, verdicts, extra) rows, as a suite or the tracker returns them.

    Items without a score (None or nan) are skipped. Raises UsageError if two items share an id.
    """
    items: dict[str, float] = {}
    groups: dict[str, str] = {}
    cells: list[tuple[str, str, Mapping[str, Any]]] = []
    skipped, rows, declined = False, list(rows), 0
    for key, score, group, verdicts, extra in rows:
        if not is_headline(extra):
            continue
        if score is None or math.isnan(score):
            skipped = True
            continue
        if key in items:
            raise UsageError(f"two items share the id {key!r}: a paired comparison needs them distinct")
        items[key], groups[key] = float(score), group
        declined += bool((verdicts or {}).get(DECLINED))
        if extra and BITS in extra:
            cells.append((key, group, extra))
    beyond = measurement(single) if (single := list(single_instructions(rows))) else None
    unscored = skipped and not items
    return Measurement(items, groups, None, unscored, beyond, tuple(cells), declined)


def evidence_of(results: Mapping[str, Mapping[str, Mapping[str, Measurement]]], corpus: int | None = None) -> Evidence:
    """Return the evidence of checkpoint → suite → results by name: the suite itself, else the tasks of a group."""
    measured = {
        checkpoint: {suite: parts[suite] if suite in parts else merged(parts) for suite, parts in suites.items()}
        for checkpoint, suites in results.items()
    }
    return Evidence(measured, corpus)


def merged(parts: Mapping[str, Measurement]) -> Measurement:
    """Merge several suites into one with equal weight per item, as lm-eval does for a task group such as mmlu."""
    items = {f"{suite}/{key}": score for suite, part in parts.items() for key, score in part.items.items()}
    groups = {
        f"{suite}/{key}": group and f"{suite}/{group}" for suite, m in parts.items() for key, group in m.groups.items()
    }
    return Measurement(items, groups, unscored=any(part.unscored for part in parts.values()))
