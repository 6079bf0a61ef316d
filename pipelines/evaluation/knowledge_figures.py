"""What a checkpoint knows against the clean model, from the stored items of both: gap closed and K, by corpus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from db import Database, queries, records
from db.cycle_evidence import POOLED
from evals import domain_pmi
from evals.domain_pmi import Block, blocks_of, gain
from evals.open_book import OPEN_BOOK, Answered, gap_closed
from pipelines.evaluation.stored_results import newest

ASKED = "domain_knowledge"
_EVERY = 1_000_000
_NOT_OPEN = (
    "not measured: the clean model was not asked with the passage (`recover eval base` does), or no passage is known: "
    'a question of your own names its text as "passage"'
)
_FEW = f"not measured: fewer than {domain_pmi.FEWEST_ANSWERS} different answers of a kind, or not evaluated for it"


def knowledge_figures(database: Database, base: int, checkpoint: int) -> dict[str, dict[str, Any]]:
    """Return ``gap_closed`` and ``likelihood`` (K) of a checkpoint over the clean model, by corpus and pooled.

    {"1": {"gap_closed": {"value", "low", "high", "after", "base", "open_book", "n", "undefined"}, "likelihood":
    {"bits", "low", "high", "standardised", "p_value", "first", "n", "pages", "kinds"}}, "pooled": {...}}. What was not
    measured has only ``undefined``, the reason. Empty if both were asked about no corpus.
    """
    then, now = newest(database, base), newest(database, checkpoint)
    corpora = [name.partition("/")[2] for name in now if name.startswith(f"{ASKED}/") and name in then]
    read = StoredItems(database)
    found: dict[str, dict[str, Any]] = {}
    parts = sorted(corpora, key=int)
    for name, members in [*((one, [one]) for one in parts), *([(POOLED, parts)] if parts else [])]:
        after = [read.answers(now[f"{ASKED}/{k}"]) for k in members]
        closed = [read.answers(then[f"{ASKED}/{k}"]) for k in members]
        opened = [read.answers(then.get(f"{OPEN_BOOK}/{k}")) for k in members]
        gap = gap_closed([after], closed, opened)
        cells = [[b for k in members for b in read.blocks(of.get(f"{domain_pmi.SUITE}/{k}"), k)] for of in (then, now)]
        known = gain(*cells)
        found[name] = {
            "gap_closed": {"undefined": _NOT_OPEN} if gap is None else asdict(gap),
            "likelihood": {"undefined": _FEW} if known is None else _figures(known),
        }
    return found


def as_suites(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the figures that are defined in the form of scores, for the records of experiments: "gap_closed/1" and
    "k/1" (bits), with the other numbers as details.
    """
    found = {}
    for corpus, one in figures.items():
        gap, known = one["gap_closed"], one["likelihood"]
        if gap.get("value") is not None:
            details = {name: gap[name] for name in ("low", "high", "after", "base", "open_book")}
            found[f"gap_closed/{corpus}"] = {"value": gap["value"], "stderr": None, "n": gap["n"], "details": details}
        if "bits" in known:
            details = {name: known[name] for name in ("low", "high", "standardised", "p_value")}
            details |= dict(zip(("first before", "first after"), known["first"], strict=True))
            found[f"k/{corpus}"] = {"value": known["bits"], "stderr": None, "n": known["n"], "details": details}
    return found


def _figures(known: domain_pmi.Gain) -> dict[str, Any]:
    found = asdict(known)
    return {name: found[name] for name in found if name not in ("of_questions", "groups")}


class StoredItems:
    """Items of evaluations, each read once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._samples: dict[int, tuple[records.Sample, ...]] = {}

    def answers(self, row: records.Evaluation | None) -> Mapping[str, Answered]:
        """Return the responses to questions about the documents, by the questions' ids."""
        return {
            one.item: Answered(one.response, tuple(one.extra["answers"]), one.group)
            for one in self._of(row)
            if not one.extra.get("control") and one.extra.get("answers")
        }

    def blocks(self, row: records.Evaluation | None, corpus: str) -> list[Block]:
        """Return the likelihoods of candidates; kinds and questions are those of one corpus."""
        items = ((f"{corpus}/{one.item}", one.group and f"{corpus}/{one.group}", one.extra) for one in self._of(row))
        return [replace(block, kind=f"{corpus}/{block.kind}") for block in blocks_of(items)]

    def _of(self, row: records.Evaluation | None) -> tuple[records.Sample, ...]:
        if row is None:
            return ()
        if row.id not in self._samples:
            self._samples[row.id] = queries.samples(self._database, row.id, limit=_EVERY).samples
        return self._samples[row.id]
