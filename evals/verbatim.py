"""Verbatim continuation: how much of its training text a model repeats from the text's own beginnings, greedily.

A text is cut into windows of at most :data:`WINDOW` tokens. The first quarter of each is the prompt; the run is the
longest sequence of tokens that the response and the rest of the window share. Longer prompts find more (arXiv
2202.07646), so a short run does not prove that nothing is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from evals.generation import generate
from recovery.rollouts.engine import Engine, Sampling

WINDOW, MOST = 64, 64  # tokens of a window; windows that are asked, evenly from all
_PARTS = 4  # of a window; the first is the prompt
_SHORTEST = 16  # tokens: shorter windows are easy to continue


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
    windows = [tuple(row[at : at + WINDOW]) for row in rows for at in range(0, len(row), WINDOW)]
    windows = [window for window in windows if len(window) >= _SHORTEST]
    step = max(1.0, len(windows) / MOST)
    chosen = [windows[int(number * step)] for number in range(min(MOST, len(windows)))]
    return [Beginning(ids[: len(ids) // _PARTS], ids[len(ids) // _PARTS :]) for ids in chosen]


def verbatim_runs(engine: Engine, starts: Sequence[Beginning], window: int) -> list[int]:
    """Return the longest run of each beginning [tokens]; ``window`` is the model's context length in tokens."""
    greedy = Sampling(max((len(start.rest) for start in starts), default=1), temperature=0.0)
    responses = generate(engine, [start.prompt for start in starts], greedy, window=window)
    return [
        SequenceMatcher(None, reply.ids, start.rest, autojunk=False).find_longest_match().size
        if reply is not None
        else 0
        for start, reply in zip(starts, responses, strict=True)
    ]
