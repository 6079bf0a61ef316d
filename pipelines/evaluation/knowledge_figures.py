"""What a checkpoint knows against the clean model, from the stored items of both: gap closed and K, by corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from db import Database, queries, records
from db.cycle_evidence import POOLED
from evals import domain_pmi
from evals.domain_pmi import Block, blocks_of, gain
from evals.open_book import OPEN_BOOK, Answered, gap_closed
from pipelines.evaluation.stored_results import newest

# Knowledge matrix R[i, j], the score of the model after cycle i on corpus j, and metrics derived from it.


@dataclass(frozen=True)
class KnowledgeMatrix:
    """``rows[i][j]``: the score on corpus j of the final checkpoint of the i-th accepted cycle (cycle numbers).

    ``chance`` is the clean model's score on each corpus, before any training.
    """

    cycles: tuple[int, ...]
    rows: tuple[Mapping[int, float], ...]
    chance: Mapping[int, float]

    @property
    def average(self) -> float | None:
        """Mean of the last row over all corpora learnt so far: current knowledge."""
        last = [self.rows[-1].get(j) for j in self.cycles] if self.rows else []
        return _mean([value for value in last if value is not None])

    @property
    def backward_transfer(self) -> float | None:
        """Mean over earlier corpora of R[T, j] − R[j, j]: negative if later training reduced earlier knowledge.

        Source: Lopez-Paz & Ranzato, Gradient Episodic Memory (arXiv 1706.08840).
        """
        return _mean([now - learnt for j in self.cycles[:-1] for now, learnt in [self._pair(j)] if _known(now, learnt)])

    def forgetting(self, corpus: int) -> float | None:
        """Return max over earlier rows of R[i, j] − R[T, j]: the loss relative to the best earlier score.

        Source: Chaudhry et al., Riemannian Walk (arXiv 1801.10112). None for the newest corpus.
        """
        earlier = [row[corpus] for row in self.rows[:-1] if corpus in row]
        now = self.rows[-1].get(corpus) if self.rows else None
        return max(earlier) - now if earlier and now is not None else None

    def kept(self, corpus: int) -> float | None:
        """Return R[T, j] / R[j, j], both minus chance: the share of a corpus's learnt knowledge that is retained."""
        now, learnt = self._pair(corpus)
        chance = self.chance.get(corpus, 0.0)
        return (now - chance) / (learnt - chance) if _known(now, learnt) and learnt > chance else None

    def corrected(self, value: float, corpus: int) -> float:
        """Return (R − c) / (1 − c) with c the clean model's score: 0 if nothing was learnt, 1 if everything was."""
        chance = self.chance.get(corpus, 0.0)
        return (value - chance) / (1 - chance) if chance < 1 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as stored and printed."""
        last = self.rows[-1] if self.rows else {}
        return {
            "cycles": list(self.cycles),
            "rows": [{str(j): value for j, value in row.items()} for row in self.rows],
            "chance": {str(j): value for j, value in self.chance.items()},
            "average": self.average,
            "average_corrected": _mean([self.corrected(last[j], j) for j in self.cycles if j in last]),
            "backward_transfer": self.backward_transfer,
            "forgetting": {str(j): self.forgetting(j) for j in self.cycles[:-1]},
            "kept": {str(j): self.kept(j) for j in self.cycles[:-1]},
        }

    def _pair(self, corpus: int) -> tuple[Any, Any]:
        """Return the current score on a corpus, and the score at the end of its own cycle."""
        learnt = self.rows[self.cycles.index(corpus)] if corpus in self.cycles else {}
        return (self.rows[-1].get(corpus) if self.rows else None), learnt.get(corpus)


def _known(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


ASKED = "domain_knowledge"
_MOST_SAMPLES = 1_000_000
_NOT_OPEN = (
    "not measured: the clean model was not asked with the passage (`recover eval base` does), or no passage is known: "
    'a question of your own names its text as "passage"'
)
_TOO_FEW = f"not measured: fewer than {domain_pmi.FEWEST_ANSWERS} different answers of a kind, or not evaluated for it"


def knowledge_figures(database: Database, base: int, checkpoint: int) -> dict[str, dict[str, Any]]:
    """Return ``gap_closed`` and ``likelihood`` (K) of a checkpoint over the clean model, by corpus and pooled.

    {"1": {"gap_closed": {"value", "low", "high", "after", "base", "open_book", "n", "undefined"}, "likelihood":
    {"bits", "low", "high", "standardised", "p_value", "first", "n", "pages", "kinds"}}, "pooled": {...}}. What was not
    measured has only ``undefined``, the reason. Empty if both were asked about no corpus.
    """
    before, now = newest(database, base), newest(database, checkpoint)
    corpora = [name.partition("/")[2] for name in now if name.startswith(f"{ASKED}/") and name in before]
    read = ItemReader(database)
    by_corpus: dict[str, dict[str, Any]] = {}
    parts = sorted(corpora, key=int)
    for name, members in [*((one, [one]) for one in parts), *([(POOLED, parts)] if parts else [])]:
        after = [read.answers(now[f"{ASKED}/{k}"]) for k in members]
        closed = [read.answers(before[f"{ASKED}/{k}"]) for k in members]
        opened = [read.answers(before.get(f"{OPEN_BOOK}/{k}")) for k in members]
        gap = gap_closed([after], closed, opened)
        suites = {k: f"{domain_pmi.SUITE}/{k}" for k in members}
        blocks = [[b for k in members for b in read.blocks(rows.get(suites[k]), k)] for rows in (before, now)]
        known = gain(*blocks)
        figures = {} if known is None else asdict(known)
        figures = {name: value for name, value in figures.items() if name not in ("of_questions", "groups")}
        by_corpus[name] = {
            "gap_closed": {"undefined": _NOT_OPEN} if gap is None else asdict(gap),
            "likelihood": figures or {"undefined": _TOO_FEW},
        }
    return by_corpus


def as_suites(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the figures that are defined in the form of scores, for the records of experiments: "gap_closed/1" and
    "k/1" (bits), with the other numbers as details.
    """
    suites = {}
    for corpus, one in figures.items():
        gap, known = one["gap_closed"], one["likelihood"]
        if gap.get("value") is not None:
            details = {name: gap[name] for name in ("low", "high", "after", "base", "open_book")}
            suites[f"gap_closed/{corpus}"] = {"value": gap["value"], "stderr": None, "n": gap["n"], "details": details}
        if "bits" in known:
            details = {name: known[name] for name in ("low", "high", "standardised", "p_value")}
            details |= dict(zip(("first before", "first after"), known["first"], strict=True))
            suites[f"k/{corpus}"] = {"value": known["bits"], "stderr": None, "n": known["n"], "details": details}
    return suites


class ItemReader:
    """Items of evaluations, each read once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._samples: dict[int, tuple[records.Sample, ...]] = {}

    def answers(self, row: records.Evaluation | None) -> Mapping[str, Answered]:
        """Return the responses to questions about the documents, by the questions' ids."""
        return {
            one.item: Answered(one.response, tuple(one.extra["answers"]), one.group)
            for one in self.items(row)
            if not one.extra.get("control") and one.extra.get("answers")
        }

    def blocks(self, row: records.Evaluation | None, corpus: str) -> list[Block]:
        """Return the likelihoods of candidates; kinds and questions are those of one corpus."""
        items = ((f"{corpus}/{one.item}", one.group and f"{corpus}/{one.group}", one.extra) for one in self.items(row))
        return [replace(block, kind=f"{corpus}/{block.kind}") for block in blocks_of(items)]

    def items(self, row: records.Evaluation | None) -> tuple[records.Sample, ...]:
        """Return the items; none without an evaluation."""
        if row is None:
            return ()
        if row.id not in self._samples:
            self._samples[row.id] = queries.samples(self._database, row.id, limit=_MOST_SAMPLES).samples
        return self._samples[row.id]
