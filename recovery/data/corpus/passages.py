"""Section openings and passages, from which probes are built."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from recovery.data.corpus.cloze import Vocabulary, same_root
from recovery.data.corpus.sentences import Sentence
from recovery.data.corpus.text import join_sentences, normalise, share, word_count

_FEWEST_GAPS = 2
_LONGEST_PASSAGE = 60  # words


@dataclass(frozen=True)
class Passage:
    """Consecutive sentences of one section."""

    sentences: tuple[Sentence, ...]

    @property
    def text(self) -> str:
        """The sentences without markup, one per line."""
        return "\n".join(s.plain for s in self.sentences)

    @property
    def line(self) -> str:
        """The sentences without markup, on one line."""
        return join_sentences(s.plain for s in self.sentences)


def openings(sentences: Sequence[Sentence], vocabulary: Vocabulary) -> list[Sentence]:
    """Return, for each section, the first informative sentence that does not name the section.

    A sentence that names its section could be matched with the title without knowledge of the document.
    """
    found: dict[str, Sentence] = {}
    for sentence in sentences:
        if sentence.lead and sentence.lead not in found and _informative(sentence, vocabulary):
            found[sentence.lead] = sentence
    return list(found.values())


def passages(sentences: Iterable[Sentence], count: int, seed: int) -> list[Passage]:
    """Return up to ``count`` passages for question generation, spread over the text."""
    found = [passage for section in sections(sentences) for passage in section]
    return sorted(found, key=lambda p: share(p.text, f"passage {seed}"))[:count]


def sections(sentences: Iterable[Sentence]) -> list[list[Passage]]:
    """Return the passages of every section, in order."""
    found: list[list[Passage]] = []
    for _, section in groupby(sentences, key=lambda s: (s.document, s.lead)):
        parts: list[list[Sentence]] = [[]]
        for sentence in section:
            if parts[-1] and sum(word_count(s.plain) for s in [*parts[-1], sentence]) > _LONGEST_PASSAGE:
                parts.append([])
            parts[-1].append(sentence)
        found.append([Passage(tuple(part)) for part in parts])
    return found


def _informative(sentence: Sentence, vocabulary: Vocabulary) -> bool:
    """Return whether a sentence has enough gaps and no word of its title or heading."""
    title = [w for w in normalise(f"{sentence.title} {sentence.heading}").split() if len(w) > 3]
    own = normalise(sentence.plain).split()
    if any(same_root(a, b) for a in title for b in own):
        return False
    return len({g.answer for g in vocabulary.gaps(sentence)}) >= _FEWEST_GAPS
