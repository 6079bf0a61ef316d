"""Passages in a writer's own words, in the manner of Active Reading (arXiv 2508.09494), kept as far as supported.

A sentence is kept where every number, every name and every term of code in it stands in the passage, and where it is
neither a copy nor a question. What a writer of any quality makes up is lost with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recovery.corpus.asking import place_of
from recovery.corpus.facts.blocks import sentences_in
from recovery.corpus.passages import Passage
from recovery.corpus.standalone import leans
from recovery.corpus.text import normalise

# say(prompts) -> for each the text and how many tokens were sampled for it
Say = Callable[[Sequence[str]], list[tuple[str, int]]]

WRITE_TOKENS = 128
WAYS = (
    "{text}\n\nSay what this text says in your own words, in whole sentences. Keep every name and every number.",
    "{text}\n\nWrite down what one should remember of this text, one whole sentence a line, each with its subject.",
    "Explain this text to somebody new to the subject, in a few plain sentences that add nothing to it:\n{text}",
)
_FEWEST_WORDS = 5
_CHATTER = re.compile(
    r"(?:sure|here (?:is|are)|certainly|of course|okay|i |i'|in (?:this|the) (?:text|passage)|the (?:text|passage))",
    re.I,
)
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_CODE = re.compile(r"`([^`]+)`|(?<![\w/])([\w@$./-]*(?:[a-z][A-Z]|\w[_/@$]\w|\w\.\w|--\w)[\w@$./-]*)")
_NAME = re.compile(r"(?<=[\w,;:)] )[A-Z][\w-]+")
_MARKS = re.compile(r"^\s*(?:[-*+•]|\d+[.)])\s+|\*\*|^#+\s*")


@dataclass(frozen=True)
class Rewriting:
    """What was kept of the rewritings of a passage: sentences, under the place they are about."""

    document: str
    place: str
    text: str


@dataclass(frozen=True)
class Rewritten:
    """All that a writer made: what was kept, the sentences it wrote and those kept, the tokens it took."""

    kept: tuple[Rewriting, ...]
    sentences: int
    sentences_kept: int
    tokens: int


def rewrite(passages: Sequence[Passage], ways: int, say: Say) -> Rewritten:
    """Each passage in up to ``ways`` ways (at most ``len(WAYS)``), as far as it supports what was written."""
    kept: list[Rewriting] = []
    wrote = held = tokens = 0
    for way in WAYS[:ways]:
        said = say([way.format(text=shown(passage)) for passage in passages])
        for passage, (text, count) in zip(passages, said, strict=True):
            tokens += count
            parts = _sentences(text)
            good = supported(parts, shown(passage))
            wrote, held = wrote + len(parts), held + len(good)
            if good:
                first = passage.sentences[0]
                kept.append(Rewriting(first.document, place_of(first), " ".join(good)))
    return Rewritten(tuple(kept), wrote, held, tokens)


def shown(passage: Passage) -> str:
    """A passage as the writer reads it, under its place."""
    return f"{place_of(passage.sentences[0])}\n{passage.line}"


def supported(sentences: Sequence[str], passage: str) -> list[str]:
    """Those of the sentences that the passage supports; one that leans on a sentence that is not kept goes with it."""
    told, source = f" {normalise(passage)} ", passage.lower()
    kept: list[str] = []
    whole = True
    for sentence in sentences:
        whole = (
            _supported(sentence, told, source)
            and (whole or not leans(sentence))
            and (kept != [] or not leans(sentence))
        )
        if whole:
            kept.append(sentence)
    return kept


def _supported(sentence: str, told: str, source: str) -> bool:
    plain = normalise(sentence)
    if len(plain.split()) < _FEWEST_WORDS or "?" in sentence or not sentence.endswith((".", "!")):
        return False
    if _CHATTER.match(sentence) or f" {plain} " in told:
        return False
    if any(not re.search(rf"(?<![\w.]){re.escape(n)}(?!\w|[.,]\d)", source) for n in _NUMBER.findall(sentence)):
        return False
    terms = [first or second for first, second in _CODE.findall(sentence)]
    if any(term.lower().strip(".") not in source for term in terms):
        return False
    return all(f" {normalise(name)} " in told for name in _NAME.findall(sentence))


def _sentences(text: str) -> list[str]:
    """The sentences of what a writer wrote, without the marks of lists; the last is dropped where it was cut off."""
    lines = [_MARKS.sub("", line).strip() for line in text.split("\n")]
    return [part for line in lines if line for part in sentences_in(line)]
