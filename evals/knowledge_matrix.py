"""Knowledge matrix R[i, j], the score of the model after cycle i on corpus j, and metrics derived from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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
        return _mean([now - learnt for j in self.cycles[:-1] for now, learnt in [self._pair(j)] if _both(now, learnt)])

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
        return (now - chance) / (learnt - chance) if _both(now, learnt) and learnt > chance else None

    def corrected(self, value: float, corpus: int) -> float:
        """Return (R − c) / (1 − c) with c the clean model's score: 0 if nothing was learnt, 1 if everything was."""
        chance = self.chance.get(corpus, 0.0)
        return (value - chance) / (1 - chance) if chance < 1 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as stored and printed."""
        return {
            "cycles": list(self.cycles),
            "rows": [{str(j): value for j, value in row.items()} for row in self.rows],
            "chance": {str(j): value for j, value in self.chance.items()},
            "average": self.average,
            "average_corrected": _mean([self.corrected(self.rows[-1][j], j) for j in self.cycles if j in self.rows[-1]])
            if self.rows
            else None,
            "backward_transfer": self.backward_transfer,
            "forgetting": {str(j): self.forgetting(j) for j in self.cycles[:-1]},
            "kept": {str(j): self.kept(j) for j in self.cycles[:-1]},
        }

    def _pair(self, corpus: int) -> tuple[Any, Any]:
        """Return the current score on a corpus, and the score at the end of its own cycle."""
        learnt = self.rows[self.cycles.index(corpus)] if corpus in self.cycles else {}
        return (self.rows[-1].get(corpus) if self.rows else None), learnt.get(corpus)


def _both(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
