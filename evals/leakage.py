"""Questions that the documents ask and answer themselves: a model trained on them has trained on the probe."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from recovery.corpus.documents import Document
from recovery.corpus.sentences import plain_text
from recovery.corpus.text import normalise
from recovery.types import Probe

_BEFORE, _ANSWER_WITHIN = 400, 300  # characters: no question is longer, and no answer stands further away
_ENDED = re.compile(r"[.!?？:]\s|\n\s*\n")
_KEY = 3  # the last words of a question, by which it is looked up


def leaked(probes: Sequence[Probe], texts: Iterable[str]) -> list[Probe]:
    """The question probes that stand in the texts as they are worded, with an accepted answer soon after."""
    wanted: dict[tuple[str, ...], list[tuple[str, Probe]]] = defaultdict(list)
    for probe in probes:
        if probe.form == "question":
            for words in _wordings(probe.question):
                wanted[_key(words)].append((words, probe))
    found: dict[str, Probe] = {}
    for asked, after in _questions(texts):
        for words, probe in wanted.get(_key(asked), ()):
            if asked.endswith(words) and any(f" {normalise(a)} " in after for a in probe.answers):
                found[probe.id] = probe
    return [p for p in probes if p.id in found]


def about(probes: Sequence[Probe], documents: Iterable[Document]) -> list[Probe]:
    """The probes whose passage stands in these documents; one line of it is enough."""
    text = " \n ".join(normalise(plain_text(d.text)) for d in documents)
    lines = {p.id: [line for part in p.passage.split("\n") if (line := normalise(part))] for p in probes}
    return [p for p in probes if any(line in text for line in lines[p.id])]


def _questions(texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    """The questions of the texts in normal form, each with what follows."""
    for text in texts:
        for mark in re.finditer(r"[?？]", text):
            asked = _ENDED.split(text[max(0, mark.start() - _BEFORE) : mark.start()])[-1]
            yield normalise(asked), f" {normalise(text[mark.end() : mark.end() + _ANSWER_WITHIN])} "


def _wordings(question: str) -> list[str]:
    """The normal forms of what a probe asks: up to its question mark, with and without what leads up to it."""
    head = question[: question.rfind("?")] if "?" in question else question
    starts = [0, *(m.end() for m in re.finditer(r"[,:] ", head))]
    return [words for start in starts if len((words := normalise(head[start:])).split()) > _KEY]


def _key(words: str) -> tuple[str, ...]:
    return tuple(words.split()[-_KEY:])
