"""Stretches of text for probes: what stands under a title, how a sentence ends, what a question is written about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from recovery.corpus.gaps import Vocabulary, same_root
from recovery.corpus.sentences import Sentence
from recovery.corpus.text import normalise, share

_LAST_WORDS = 5
_FEWEST_BEFORE = 9
_FEWEST_TELLING = 2
_LONGEST_PASSAGE = 60  # words
_PLAIN_WORDS = re.compile(r"[\w'’,-]+(?: [\w'’,-]+)*[.!]")


@dataclass(frozen=True)
class Ending:
    """A sentence cut before its last few words: ``before`` and ``rest`` are plain text, without the full stop."""

    sentence: Sentence
    before: str
    rest: str


@dataclass(frozen=True)
class Passage:
    """Neighbouring sentences of one section."""

    sentences: tuple[Sentence, ...]

    @property
    def text(self) -> str:
        """The sentences without markup, one a line."""
        return "\n".join(s.plain for s in self.sentences)

    @property
    def line(self) -> str:
        """The same as running text."""
        return " ".join(s.plain for s in self.sentences)


def openings(sentences: Sequence[Sentence], vocabulary: Vocabulary) -> list[Sentence]:
    """For every section the first of these sentences that says enough and does not name the section.

    A sentence that names it could be matched with its title by anyone who can read.
    """
    found: dict[str, Sentence] = {}
    for sentence in sentences:
        if sentence.lead and sentence.lead not in found and _tells(sentence, vocabulary):
            found[sentence.lead] = sentence
    return list(found.values())


def endings(sentences: Iterable[Sentence], vocabulary: Vocabulary, count: int, seed: int) -> list[Ending]:
    """Up to ``count`` sentences cut before their last words, spread over the text.

    The last words must hold a name, number or term that stands nowhere before, and no two sentences may begin alike.
    """
    cut = [e for s in sentences if (e := _cut(s, vocabulary))]
    begun: dict[str, list[Ending]] = {}
    for ending in cut:
        begun.setdefault(normalise(ending.before), []).append(ending)
    single = [group[0] for group in begun.values() if len(group) == 1]
    return sorted(single, key=lambda e: share(e.sentence.plain, f"ending {seed}"))[:count]


def passages(sentences: Iterable[Sentence], count: int, seed: int) -> list[Passage]:
    """Up to ``count`` passages to write questions about, spread over the text."""
    found = [passage for section in sections(sentences) for passage in section]
    return sorted(found, key=lambda p: share(p.text, f"passage {seed}"))[:count]


def sections(sentences: Iterable[Sentence]) -> list[list[Passage]]:
    """The passages of every section, in order."""
    found: list[list[Passage]] = []
    for _, section in groupby(sentences, key=lambda s: (s.document, s.lead)):
        parts: list[list[Sentence]] = [[]]
        for sentence in section:
            if parts[-1] and sum(len(s.plain.split()) for s in [*parts[-1], sentence]) > _LONGEST_PASSAGE:
                parts.append([])
            parts[-1].append(sentence)
        found.append([Passage(tuple(part)) for part in parts])
    return found


def _tells(sentence: Sentence, vocabulary: Vocabulary) -> bool:
    """Whether a sentence holds enough matter of its own and none of its title's words."""
    title = [w for w in normalise(f"{sentence.title} {sentence.heading}").split() if len(w) > 3]
    own = normalise(sentence.plain).split()
    if any(same_root(a, b) for a in title for b in own):
        return False
    return len({g.answer for g in vocabulary.gaps(sentence)}) >= _FEWEST_TELLING


def _cut(sentence: Sentence, vocabulary: Vocabulary) -> Ending | None:
    parts = sentence.plain.split(" ")
    before, rest = parts[:-_LAST_WORDS], " ".join(parts[-_LAST_WORDS:])
    if len(before) < _FEWEST_BEFORE or not _PLAIN_WORDS.fullmatch(rest):
        return None
    told = " ".join(before)
    ends = rest.rstrip(".!")
    asked = {g.answer for g in vocabulary.gaps(sentence)}
    if not any(answer in ends and answer not in told for answer in asked):
        return None
    return Ending(sentence, told, ends)
