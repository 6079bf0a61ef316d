"""Rarity of words in documents: a rare word that two questions share is a sign that they ask about the same thing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from recovery.data.corpus.facts.fact import content
from recovery.data.corpus.question_templates import place_of
from recovery.data.corpus.sentences import Sentence
from recovery.data.corpus.text import NUMBER_WORDS, normalise, spaced, unspaced_pairs, words

_STEM = 6  # letters: "constructed" and "construction" share them
_LONGEST = 12  # letters of a word: longer ones are mostly names of code, many of which begin alike
_FEW, _SHARE = 3, 0.05
_ASKING = words("how many much do does did has have had who whom whose where why there year")
_SEPARATOR = re.compile(r"(?<=\d)(?:,(?=\d{3})|\s(?=\d{3}(?!\d)))")
_VERSION = re.compile(r"\bv(?=\d)")


class Rarity:
    """Counts of the sentences in which each word occurs, itself or in the title and heading above."""

    def __init__(self, sentences: Sequence[Sentence]) -> None:
        self._counts = Counter(stem for s in sentences for stem in stems(f"{place_of(s)} {s.plain}"))
        self._specific = max(_FEW, _SHARE * len(sentences))

    def specific(self, stem: str) -> bool:
        """Return whether a word is so rare that it tells what a sentence is about."""
        return self._counts[stem] <= self._specific

    def rare(self, answer: str) -> bool:
        """Return whether an answer, or a word of it, occurs in few sentences."""
        return min((self._counts[stem] for stem in stems(answer)), default=self._specific) <= _FEW


def stems(text: str) -> frozenset[str]:
    """Return the beginnings of the words of a text, without function words and the words of questions.

    Where no spaces are written between words, pairs of characters stand for them.
    """
    parts = (part for word in content(text) - _ASKING for part in re.findall(r"[^\W_]+", word))
    stems = {_stem(part) for part in parts if len(part) > 1 or part.isdigit()}
    return frozenset(stems.union(unspaced_pairs(normalise(text))))


def _stem(word: str) -> str:
    return word if len(word) > _LONGEST or len(word) < 4 else word.removesuffix("s")[:_STEM]


def canonical(answer: str) -> str:
    """Return the normal form of an answer between spaces: "v1,500 twelve" is " 1500 12 "."""
    normal = _VERSION.sub("", spaced(normalise(_SEPARATOR.sub("", answer))))
    return f" {' '.join(NUMBER_WORDS.get(word, word) for word in normal.split())} "
