"""Word co-occurrence: neighbouring words separate nouns from adjectives and measure how similarly words are used."""

from __future__ import annotations

import math
import re
from collections import Counter

from recovery.data.corpus.text import words

_FRAME = words(
    "the a an of in on at to for from by with into as and or but nor than is are was were be been being has have had "
    "can could may might must will would shall should do does not no if when while which that who whose this these "
    "those its their his her our your each every any all some it they he she we you one two"
)
_BE = words("is are was were be been being")
_BEFORE = re.compile(r"([\w'’-]+|[^\w\s])\s*[\"'“‘*`]*$")
_AFTER = re.compile(r"[\"'”’*`]*\s*([\w'’-]+|[^\w\s])")


class Cooccurrence:
    """Counts of the frames before and after each word: a function word, a punctuation mark, or any other word."""

    def __init__(self) -> None:
        self._seen: dict[str, Counter[str]] = {}

    def add(self, word: str, before: str, after: str) -> None:
        """Count one occurrence of ``word`` between ``before`` and ``after``."""
        self._seen.setdefault(word, Counter()).update(frame(before, after))

    def alike(self, a: str, b: str) -> float:
        """Return the cosine similarity of the frame counts of two words, from 0 to 1."""
        one, other = self._seen.get(a, Counter()), self._seen.get(b, Counter())
        product = sum(n * other[key] for key, n in one.items())
        return product / math.sqrt(_square(one) * _square(other)) if product else 0.0

    def unseen(self, word: str, before: str, after: str) -> int:
        """Return on how many of the two sides, before and after, ``word`` never occurs with this frame (0 to 2)."""
        seen = self._seen.get(word, Counter())
        return sum(not seen[key] for key in frame(before, after))

    def can_follow(self, word: str, before: str) -> bool:
        """Return whether ``word`` occurs after the frame at the end of ``before``."""
        return self._seen.get(word, Counter())[frame(before, "")[0]] > 0

    def modifies(self, word: str) -> float:
        """Return how often a content word follows: near 1 for adjectives, near 0 for nouns."""
        seen = self._seen.get(word, Counter())
        return seen[">*"] / max(1, sum(n for key, n in seen.items() if key[0] == ">"))


def frame(before: str, after: str) -> tuple[str, str]:
    """Return the frames directly before and after a position in a text."""
    left, right = _BEFORE.search(before[-60:]), _AFTER.match(after[:60])
    return f"<{_sort(left)}", f">{_sort(right)}"


def _sort(match: re.Match[str] | None) -> str:
    if match is None:
        return "."
    word = match[1].lower()
    if word in _BE:
        return "be"
    return "*" if word[0].isalnum() and word not in _FRAME else word


def _square(counts: Counter[str]) -> int:
    return sum(n * n for n in counts.values())
