"""Detection of greedy completions that repeat themselves up to the token limit, which is common in small models.

Half of the tokens of SmolLM2-135M's greedy completions of long prompts are in such repetitions (docs/log.md). A model
that has repeated the same tokens several times nearly always continues to do so, so the rest of the completion can be
filled in without decoding it.
"""

from __future__ import annotations

from collections.abc import Sequence

# Minimum number of repeats and of tokens for a repetition to count.
TIMES = 4
LEAST = 64


def period_of(ids: Sequence[int]) -> int:
    """Return the period in tokens of the shortest repetition at the end of ``ids``; 0 if there is none."""
    for period in range(1, len(ids) // TIMES + 1):
        length = max(TIMES * period, LEAST)
        if length > len(ids):
            return 0
        if ids[-1] == ids[-1 - period] and all(ids[-n] == ids[-n - period] for n in range(1, length - period + 1)):
            return period
    return 0
