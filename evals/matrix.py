"""Knowledge over time: R[i, j], what the model of cycle i answers about corpus j, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KnowledgeMatrix:
    """``rows[i][j]``: the score of the checkpoint that ended the i-th kept cycle on corpus j (cycle numbers).

    ``chance`` is what the clean model answers of each corpus: knowledge that no cycle taught.
    """

    cycles: tuple[int, ...]
    rows: tuple[Mapping[int, float], ...]
    chance: Mapping[int, float]

    @property
    def average(self) -> float | None:
        """Mean of the last row over all corpora learnt so far: what is known now."""
        last = [self.rows[-1].get(j) for j in self.cycles] if self.rows else []
        return _mean([value for value in last if value is not None])

    @property
    def backward_transfer(self) -> float | None:
        """Mean over earlier corpora of R[T, j] − R[j, j]: negative where learning more cost what was known.

        Source: Lopez-Paz & Ranzato, Gradient Episodic Memory (arXiv 1706.08840).
        """
        return _mean([now - learnt for j in self.cycles[:-1] for now, learnt in [self._pair(j)] if _both(now, learnt)])

    def forgetting(self, corpus: int) -> float | None:
        """max over earlier rows of R[i, j] − R[T, j]: how much of the best that was ever known is gone.

        Source: Chaudhry et al., Riemannian Walk (arXiv 1801.10112). None for the newest corpus.
        """
        earlier = [row[corpus] for row in self.rows[:-1] if corpus in row]
        now = self.rows[-1].get(corpus) if self.rows else None
        return max(earlier) - now if earlier and now is not None else None

    def kept(self, corpus: int) -> float | None:
        """R[T, j] / R[j, j], both above chance: the share of what was learnt of a corpus that is still there."""
        now, learnt = self._pair(corpus)
        chance = self.chance.get(corpus, 0.0)
        return (now - chance) / (learnt - chance) if _both(now, learnt) and learnt > chance else None

    def corrected(self, value: float, corpus: int) -> float:
        """(R − c) / (1 − c) with c what the clean model answers: 0 for nothing learnt, 1 for everything."""
        chance = self.chance.get(corpus, 0.0)
        return (value - chance) / (1 - chance) if chance < 1 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain values, as they are stored and printed."""
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
        """What is answered of a corpus now, and what was when it had just been learnt."""
        learnt = self.rows[self.cycles.index(corpus)] if corpus in self.cycles else {}
        return (self.rows[-1].get(corpus) if self.rows else None), learnt.get(corpus)


def _both(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
