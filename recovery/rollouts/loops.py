"""Greedy answers that repeat themselves to the limit, which small models give often.

Half of the tokens of SmolLM2-135M's greedy answers to long prompts stand in such repetitions (docs/log.md). A model
that has said the same several times in a row nearly always goes on with it, so that the rest of the answer can be
written down without decoding it.
"""

from __future__ import annotations

from collections.abc import Sequence

# A repetition counts once it was said so many times, and takes so many tokens.
TIMES = 4
LEAST = 64


def period_of(ids: Sequence[int]) -> int:
    """How many tokens the shortest repetition takes that ``ids`` ends with; 0 where it ends with none."""
    for period in range(1, len(ids) // TIMES + 1):
        length = max(TIMES * period, LEAST)
        if length > len(ids):
            return 0
        if ids[-1] == ids[-1 - period] and all(ids[-n] == ids[-n - period] for n in range(1, length - period + 1)):
            return period
    return 0
