"""Rewriting of passages by a model, as in Active Reading (arXiv 2508.09494), filtered by support in the passage.

A sentence is kept if every number, name and code term in it occurs in the passage, and it is neither a copy nor a
question. This removes sentences with invented details. An answer to a question is kept whole, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from recovery.data.corpus.cloze import Passage
from recovery.data.corpus.facts.blocks import sentences_in
from recovery.data.corpus.sentences import leans
from recovery.data.corpus.text import normalise
from recovery.data.document_questions import place_of

# say(prompts) -> (text, number of sampled tokens) for each prompt
Say = Callable[[Sequence[str]], list[tuple[str, int]]]

WRITE_TOKENS = 128
FILTER = 3  # version of the filter: texts that an earlier one kept are not used
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
# Words, with all parts of a number or a version: 7:15, 16.x, 3.5MB, python3.12, 16.0.0-canary.12.
_WORD = re.compile(r"\w+(?:[.,:]\w+|-[^\W\d]+\.\d+)*")
_DIGIT = re.compile(r"\d")
_VERSION = re.compile(r"v(?=\d)")
_CODE = re.compile(r"`([^`]+)`|(?<![\w/])([\w@$./-]*(?:[a-z][A-Z]|\w[_/@$]\w|\w\.\w|--\w)[\w@$./-]*)")
_NAME = re.compile(r"(?<=[\w,;:)] )[A-Z][\w-]+")
# Marks of lists, bold text and headings; code (`**`) and paths (cache/**/*) have none.
_MARKS = re.compile(r"(`[^`]*`)|^\s*(?:[-*+•]|\d+[.)])\s+|(?<!/)\*\*(?=[^\s/*])|(?<=[^\s/*])\*\*(?!/)|^#+\s*")


@dataclass(frozen=True)
class Rewriting:
    """The kept sentences of one rewriting of a passage, with its document and place; some answer a ``question``."""

    document: str
    place: str
    text: str
    question: str = ""


@dataclass(frozen=True)
class Rewritten:
    """All kept rewritings, with the numbers of sentences written and kept and of tokens sampled."""

    kept: tuple[Rewriting, ...]
    sentences: int
    sentences_kept: int
    tokens: int


def rewrite(passages: Sequence[Passage], ways: int, say: Say) -> Rewritten:
    """Rewrite each passage in up to ``ways`` ways (at most ``len(WAYS)``); keep the sentences that it supports."""
    texts: list[tuple[Rewriting, str, int]] = []
    for way in WAYS[:ways]:
        completions = say([way.format(text=shown(passage)) for passage in passages])
        for passage, (text, count) in zip(passages, completions, strict=True):
            first = passage.sentences[0]
            texts.append((Rewriting(first.document, place_of(first), text), shown(passage), count))
    return keep_supported(texts)


def keep_supported(texts: Sequence[tuple[Rewriting, str, int]]) -> Rewritten:
    """Keep the sentences that their source supports; of an answer all or none. ``texts`` are (text, source, tokens)."""
    kept: list[Rewriting] = []
    wrote = kept_count = 0
    for text, source, _ in texts:
        parts = _sentences(text.text)
        supported_parts = supported(parts, source, answer=bool(text.question))
        if text.question and len(supported_parts) < len(parts):  # the rest may no longer answer it
            supported_parts = []
        wrote, kept_count = wrote + len(parts), kept_count + len(supported_parts)
        if supported_parts:
            kept.append(replace(text, text=" ".join(supported_parts)))
    return Rewritten(tuple(kept), wrote, kept_count, sum(tokens for *_, tokens in texts))


def shown(passage: Passage) -> str:
    """Return a passage as given to the writer, below its place in the document."""
    return f"{place_of(passage.sentences[0])}\n{passage.line}"


def supported(sentences: Sequence[str], passage: str, *, answer: bool = False) -> list[str]:
    """Return the sentences that the passage supports; one that depends on a dropped sentence is dropped too.

    An ``answer`` may be short, may copy the passage, and may take its subject from the question.
    """
    words, source = _forms(passage)
    kept: list[str] = []
    unbroken = True
    for sentence in sentences:
        usable = answer or not _says_nothing_new(sentence, words)
        unbroken = (
            usable
            and _supported(sentence, words, source)
            and (unbroken or not leans(sentence))
            and (kept != [] or answer or not leans(sentence))
        )
        if unbroken:
            kept.append(sentence)
    return kept


@lru_cache(maxsize=64)
def _forms(passage: str) -> tuple[str, str]:
    """Return a passage as normalised words and in lower case; many texts may be about one passage."""
    return f" {normalise(passage)} ", passage.lower()


def _says_nothing_new(sentence: str, words: str) -> bool:
    plain = normalise(sentence)
    return len(plain.split()) < _FEWEST_WORDS or f" {plain} " in words or "?" in sentence


def _supported(sentence: str, words: str, source: str) -> bool:
    if not sentence.endswith((".", "!")) or _CHATTER.match(sentence):
        return False
    numbers = [_VERSION.sub("", word, count=1) for word in _WORD.findall(sentence.lower()) if _DIGIT.search(word)]
    if any(not re.search(rf"(?<![\w.])v?{re.escape(number)}(?!\w|[.,]\d)", source) for number in numbers):
        return False
    terms = [first or second for first, second in _CODE.findall(sentence)]
    if any(term.lower().strip(".") not in source for term in terms):
        return False
    return all(f" {normalise(name)} " in words for name in _NAME.findall(sentence))


def _sentences(text: str) -> list[str]:
    """Split a completion into sentences without list markers; a truncated last sentence is dropped."""
    lines = [_MARKS.sub(r"\1", line).strip() for line in text.split("\n")]
    return [part for line in lines if line for part in sentences_in(line)]
