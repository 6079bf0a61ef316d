"""A fact of a document: what is said of what, how it can be asked, what counts as an answer, how else it is said."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from recovery.corpus.text import normalise, share, words

MOST_WORDS, MOST_CHARACTERS = 6, 60  # of a value that can be judged
_GUESSED = words(
    "true false yes no required optional recommended string number boolean object function array null none undefined"
)
_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)")


@dataclass(frozen=True)
class Fact:
    """One thing that a document says. ``subject`` and ``relation`` name it, ``value`` is the answer.

    ``place`` is the document's title, with the heading where there is one; ``sentence`` a plain statement of it.
    ``questions`` are several wordings of the same question, ``statements`` of the same statement; ``brief`` asks for
    the value alone. ``answers`` are the accepted spellings, the value first.
    """

    document: str
    place: str
    subject: str
    relation: str
    value: str
    sentence: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    statements: tuple[str, ...]
    brief: str = "Answer as briefly as you can."

    @property
    def key(self) -> str:
        """A name that subject and relation alone decide."""
        return hashlib.sha256(f"{self.relation}\x1f{normalise(self.subject)}".encode()).hexdigest()[:16]

    @property
    def side(self) -> str:
        """ "probe" or "question", by the key: no fact may be both measured and asked in training."""
        return "probe" if share(self.key, "side") < 0.5 else "question"

    @property
    def guessed(self) -> bool:
        """Whether the value is one of a few that anybody would guess."""
        return normalise(self.value) in _GUESSED


def judged(value: str) -> bool:
    """Whether a value can be an answer: not empty once punctuation is dropped, and short."""
    short = len(value) <= MOST_CHARACTERS and len(value.split()) <= MOST_WORDS
    return short and bool(re.search(r"[^\W_]", value)) and value.lower() not in ("a", "an", "the")


def spellings(value: str, *, version: bool = False, product: str = "") -> tuple[str, ...]:
    """The value and other ways to write it: a version with and without ``v`` and trailing zeros, code without quotes.

    What differs in quotation marks, capitals or backticks only is one spelling to those who compare answers.
    """
    if version and (match := _VERSION.fullmatch(value)):
        number = match[1]
        short = re.sub(r"(?<=\d)\.0$", "", number) if number.count(".") > 1 else number
        found = [f"{head}{n}" for n in (number, short) for head in ("", "v", "version ")]
        found += [f"{product} {n}" for n in (number, short) if product]
        return tuple(dict.fromkeys(found))
    found = [value]
    if match := re.fullmatch(r"(.+?)\s*\(([^()]+)\)", value):  # "259200000 (3 days)"
        found += [match[1], match[2]]
    if re.fullmatch(r"\d{1,3}(,\d{3})+", value):
        found.append(value.replace(",", ""))
    if re.fullmatch(r"[\w.$-]+\(\)", value):
        found.append(value[:-2])
    if match := re.fullmatch(r"(?:experimental|unstable)[._](.+)", value):
        found.append(match[1])
    if " | " in value:
        found += [value.replace(" | ", " or "), value.replace(" | ", ", ")]
    return tuple(dict.fromkeys(v for v in found if judged(v)))


def content(text: str) -> frozenset[str]:
    """The words of a text in normal form, without those that every text holds."""
    return frozenset(w for w in re.findall(r"[\w-]+", normalise(text)) if w not in _FRAME)


_FRAME = frozenset(
    "a an the of in on at to for from by with as and or is are was were be it its this that which what you your can "
    "use used when not no than".split()
)


class Stated:
    """Tells whether a text states one of some facts: all words of its subject, and its value."""

    def __init__(self, facts: Iterable[Fact]) -> None:
        self._by_value: dict[str, list[tuple[str, frozenset[str]]]] = defaultdict(list)
        for fact in facts:
            words = content(fact.subject)
            for answer in dict.fromkeys(map(normalise, fact.answers)):
                if answer:
                    self._by_value[answer.split()[0]].append((answer, words))

    def __contains__(self, text: str) -> bool:
        said = normalise(text)
        words = content(text)
        return any(
            subject <= words and f" {value} " in f" {said} "
            for first in set(said.split())
            for value, subject in self._by_value.get(first, ())
        )
