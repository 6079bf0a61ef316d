"""Verbatim continuation: how much of its training text a model repeats from the text's own beginnings, greedily.

A text is cut into windows of at most :data:`WINDOW` tokens. The first quarter of each is the prompt; the run is the
longest sequence of tokens that the response and the rest of the window share. Longer prompts find more (arXiv
2202.07646), so that a short run is no proof that nothing is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from evals.generation import generate
from recovery.rollouts.engine import Engine, Sampling

WINDOW, MOST = 64, 64  # tokens of a window; windows that are asked, evenly from all
_PARTS = 4  # of which the first is the prompt
_SHORTEST = 16  # tokens: less continues itself


@dataclass(frozen=True)
class Beginning:
    """A window of a text [tokens]: its ``prompt``, and the ``rest`` that a model may repeat."""

    prompt: tuple[int, ...]
    rest: tuple[int, ...]

    def continued(self, run: int) -> bool:
        """Whether a run is near-exact: half of the rest or more."""
        return 2 * run >= len(self.rest)


def beginnings(rows: Iterable[Sequence[int]]) -> list[Beginning]:
    """Return the beginnings of texts, given as rows of token ids as they were trained on; at most :data:`MOST`."""
    found = [tuple(row[at : at + WINDOW]) for row in rows for at in range(0, len(row), WINDOW)]
    found = [window for window in found if len(window) >= _SHORTEST]
    step = max(1.0, len(found) / MOST)
    kept = [found[int(number * step)] for number in range(min(MOST, len(found)))]
    return [Beginning(one[: len(one) // _PARTS], one[len(one) // _PARTS :]) for one in kept]


def verbatim_runs(engine: Engine, asked: Sequence[Beginning], window: int) -> list[int]:
    """Return the longest run of each beginning [tokens]; ``window`` is the model's context length in tokens."""
    greedy = Sampling(max((len(one.rest) for one in asked), default=1), temperature=0.0)
    responses = generate(engine, [one.prompt for one in asked], greedy, window=window)
    return [
        SequenceMatcher(None, said.ids, one.rest, autojunk=False).find_longest_match().size if said is not None else 0
        for one, said in zip(asked, responses, strict=True)
    ]
