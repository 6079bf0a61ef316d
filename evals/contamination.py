"""Detection of probes whose question and answer occur verbatim in the training documents."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from recovery.data.corpus.documents import Document
from recovery.data.corpus.sentences import plain_text
from recovery.data.corpus.text import normalise
from recovery.types import Probe

_BEFORE, _ANSWER_WITHIN = 400, 300  # characters before and after the question mark that are searched
_KEY = 3  # number of last words of a question, used as the lookup key


def leaked(probes: Sequence[Probe], texts: Iterable[str]) -> list[Probe]:
    """Return the question probes that occur verbatim in the texts, followed closely by an accepted answer."""
    wanted: dict[tuple[str, ...], list[tuple[str, Probe]]] = defaultdict(list)
    for probe in probes:
        if probe.form == "question":
            for words in _wordings(probe.question):
                wanted[_key(words)].append((words, probe))
    found: dict[str, Probe] = {}
    for before, after in _questions(texts):
        for words, probe in wanted.get(_key(before), ()):
            if before.endswith(f" {words}") and any(f" {normalise(a)} " in after for a in probe.answers):
                found[probe.id] = probe
    return [p for p in probes if p.id in found]


def about(probes: Sequence[Probe], documents: Iterable[Document]) -> list[Probe]:
    """Return the probes whose passage, or one line of it, occurs in these documents."""
    text = " \n ".join(normalise(plain_text(d.text)) for d in documents)
    lines = {p.id: [line for part in p.passage.split("\n") if (line := normalise(part))] for p in probes}
    return [p for p in probes if any(line in text for line in lines[p.id])]


def _questions(texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yield the text before each question mark in normal form, which ends with the question, and the text that follows.

    Where the question begins is not looked for: a full stop may be part of it, as in "St. Kilda".
    """
    for text in texts:
        for mark in re.finditer(r"[?？]", text):
            before = normalise(text[max(0, mark.start() - _BEFORE) : mark.start()])
            yield f" {before}", f" {normalise(text[mark.end() : mark.end() + _ANSWER_WITHIN])} "


def _wordings(question: str) -> list[str]:
    """Return the normal forms of a probe's question: up to its question mark, with and without its lead-in."""
    head = question[: question.rfind("?")] if "?" in question else question
    starts = [0, *(m.end() for m in re.finditer(r"[,:] ", head))]
    return [words for start in starts if len((words := normalise(head[start:])).split()) > _KEY]


def _key(words: str) -> tuple[str, ...]:
    return tuple(words.split()[-_KEY:])
