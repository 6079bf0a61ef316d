"""Suite "no_loops": the share of responses that do not fall into a loop, scored on every response.

A model that was trained too long, or on too narrow a set of states, repeats itself: a fault that instruction checkers
do not detect. A response loops if a stretch of at most 200 words occurs at least four times in direct succession, over
at least 24 words, or if one character does 200 times. Marks without a space between them are one word, so that the
lines of a table or under a heading are no loops. The detail "repeated_4grams" is a graded form: the mean share of a
response's 4-grams that occurred in it before (seq-rep-4 of Welleck et al. 2019, arXiv 1908.04319); lower is better.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from evals.instruction_following import as_headline
from evals.statistics import score_of
from evals.suite import PREFIX
from recovery.types import Item, Prompt, SuiteResult

TIMES, LEAST, LONGEST = 4, 24, 200
_GRAM = 4
_WORD = re.compile(r"\w+|[^\w\s]+")
_ONE_CHARACTER = re.compile(r"(\S)\1{199}")


@dataclass(frozen=True)
class NoLoops:
    """The suite; it takes every prompt that is answered anyway, and none besides."""

    name: str = "no_loops"
    further: bool = False

    def holds(self, _prompt: Prompt) -> bool:
        """Return whether a prompt belongs to this suite: each one does."""
        return True

    def result(self, items: Sequence[Item]) -> SuiteResult:
        """Return the share of responses without a loop."""
        scored = [_scored(item) for item in items]
        score = score_of([item.score for item in scored], [item.group for item in scored])
        repeated = score_of([item.extra["repeated_4grams"] for item in scored])
        return SuiteResult(PREFIX + self.name, score, tuple(scored), {"repeated_4grams": repeated})


def loop_in(response: str) -> int:
    """Return the length in words of the shortest stretch that is repeated in a loop; 0 if there is none."""
    if _ONE_CHARACTER.search(response):
        return 1
    words = _WORD.findall(response)
    for period in range(1, min(len(words) // TIMES, LONGEST) + 1):
        needed = max(TIMES * period, LEAST) - period
        run = 0
        for at in range(period, len(words)):
            run = run + 1 if words[at] == words[at - period] else 0
            if run >= needed:
                return period
    return 0


def repeated_4grams(response: str) -> float:
    """Return the share of a response's 4-grams that occurred in it before; 0 for fewer than four words."""
    words = _WORD.findall(response)
    grams = [tuple(words[at : at + _GRAM]) for at in range(len(words) - _GRAM + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def _scored(item: Item) -> Item:
    period = loop_in(item.response)
    extra = {name: item.extra[name] for name in ("tokens", "finished", "tags") if name in item.extra}
    extra |= {"rule": "loops", "repeated_4grams": repeated_4grams(item.response)}
    extra |= {"loop_words": period} if period else {}
    return as_headline(item, score=float(not period), verdicts={"no_loop": not period}, extra=extra)
