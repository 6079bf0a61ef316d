"""The figures of an experiment's checkpoints, and the bounds that they are compared with (docs/log.md, 2026-11-29)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evals.beyond_constant import DETAIL
from pipelines.data.question_splits import Question
from pipelines.experiments.paired import share_of_base
from pipelines.experiments.records import ASKED, IFEVAL, OWN, Record, Value, of

HELD_FACT, HELD_FORM, CONTROL = "held-out fact/contains", "held-out form/contains", "control/contains"
LIKELIHOOD, OPEN_BOOK, TEXT = "domain_knowledge_likelihood", "open_book", "unrelated_text"


def suite(name: str, detail: str = "", own_corpus: bool = False) -> Value:
    """Return a function that reads a suite's score of a checkpoint; ``own_corpus``: on the cycle's own corpus."""

    def value(record: Record, cycle: int, kind: str) -> float | None:
        found = record.at(0 if kind == "base" else cycle, kind)
        return None if found is None else of(found, f"{name}/{cycle}" if own_corpus else name, detail)

    return value


def relative(value: Value, kind: str, to: str = "base") -> Callable[[Record, int], float | None]:
    """Return a function for a cycle's score as a share of another checkpoint's."""

    def ratio(record: Record, cycle: int) -> float | None:
        above, below = value(record, cycle, kind), value(record, cycle, to)
        return above / below if above is not None and below else None

    return ratio


BEYOND, OWN_BEYOND = suite(IFEVAL, DETAIL), suite(OWN, DETAIL)
ENDED = suite(OWN, "ended")
FACTS = suite(ASKED, HELD_FACT, own_corpus=True)
# The columns of the table of all figures.
COLUMNS: Mapping[str, Value] = {
    "IFEval, instructions strict": suite(IFEVAL, "instruction_strict"),
    "IFEval, prompts strict": suite(IFEVAL),
    "IFEval, beyond constant replies": BEYOND,
    "own prompts, instructions strict": suite(OWN, "instruction_strict"),
    "own prompts, prompts strict": suite(OWN),
    "own prompts, beyond constant replies": OWN_BEYOND,
    "responses that end": ENDED,
    "held-out facts answered": FACTS,
    "held-out forms answered": suite(ASKED, HELD_FORM, own_corpus=True),
    "control questions answered": suite(ASKED, CONTROL, own_corpus=True),
    "held-out facts, open book": suite(OPEN_BOOK, HELD_FACT, own_corpus=True),
    "gap closed": suite("gap_closed", own_corpus=True),
    "K, bits": suite("k", own_corpus=True),
    "centred top-1": suite(LIKELIHOOD, own_corpus=True),
    "stored": suite("domain_knowledge_stored", own_corpus=True),
    "bits per byte, plain English": suite(TEXT),
    "prompts of two turns": suite("behaviour/dialogue"),
    "refusals": suite("behaviour/refusal"),
    "no loops": suite("behaviour/no_loops"),
}


@dataclass(frozen=True)
class Bound:
    """A registered bound: what it is about, in words with its must, and whether a cycle of the ``records`` keeps it:
    None where it was not measured.
    """

    name: str
    kept: Callable[[Sequence[Record], int, str], bool | None]
    kinds: tuple[str, ...] = ("recovered",)


def _beyond(name: str, value: Value) -> Callable[[Sequence[Record], int, str], bool | None]:
    def kept(records: Sequence[Record], cycle: int, kind: str) -> bool | None:
        shares = [share for record in records if (share := relative(value, kind)(record, cycle)) is not None]
        found = share_of_base(records, cycle, value, f"{name}/{DETAIL}", kind)
        return None if found is None else statistics.fmean(shares) >= 0.95 and found.low >= 0.85

    return kept


def _gap(records: Sequence[Record], cycle: int, kind: str) -> bool | None:
    found = [row for record in records if (row := gained(record, cycle, kind, "gap_closed"))]
    means = [
        statistics.fmean(column) for column in zip(*((r["value"], r["details"]["low"]) for r in found), strict=True)
    ]
    return means[0] >= 0.30 and means[1] > 0.05 if found else None


def _learnt(records: Sequence[Record], cycle: int, kind: str) -> bool | None:
    found = [row["details"]["p_value"] for record in records if (row := gained(record, cycle, kind, "k"))]
    return all(p < 0.05 for p in found) if found else None


def _ended(records: Sequence[Record], cycle: int, kind: str) -> bool | None:
    shares = [share for record in records if (share := relative(ENDED, kind)(record, cycle)) is not None]
    return statistics.fmean(shares) >= 0.95 if shares else None


def gained(record: Record, cycle: int, kind: str, name: str) -> Mapping[str, Any] | None:
    """Return what a checkpoint gained over base on its cycle's corpus: "gap_closed" or "k"; None if not measured."""
    found = record.at(cycle, kind)
    return None if found is None else found.suites.get(f"{name}/{cycle}")


BOUNDS = (
    Bound("IFEval beyond constant replies: 0.95 of base, lower bound 0.85", _beyond(IFEVAL, BEYOND)),
    Bound("own prompts beyond constant replies: 0.95 of base, lower bound 0.85", _beyond(OWN, OWN_BEYOND)),
    Bound("gap closed on held-out facts: 0.30, lower bound above 0.05", _gap, ("midtrained", "recovered")),
    Bound("K above 0: p below 0.05", _learnt),
    Bound("responses that end: 0.95 of base", _ended),
)


def answered(record: Record, cycle: int, kind: str, corpus: int, questions: Sequence[Question]) -> tuple[int, int]:
    """Return how many questions about held-out facts of a corpus a checkpoint answers, and how many it was asked."""
    facts = {question.id for question in questions if question.use == "test" and not question.control}
    found = record.at(cycle, kind)
    items = {} if found is None else found.items.get(f"{ASKED}/{corpus}", {})
    asked = [verdicts for name, verdicts in items.items() if name in facts]
    return sum("1" in verdicts for verdicts in asked), len(asked)
