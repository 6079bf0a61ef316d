"""Detection of probes that training data answers: documents with question and answer, or training questions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from recovery.data.corpus.documents import Document
from recovery.data.corpus.sentences import plain_text
from recovery.data.corpus.text import normalise, spaced, without_format
from recovery.data.document_questions import ProbeGuard
from recovery.types import Probe, Prompt

_BEFORE, _ANSWER_WITHIN = 400, 300  # characters before and after the question mark that are searched
_FEWEST_WORDS = 6  # of a line of a passage that no other text has by chance
_KEY = 3  # number of last words of a question, used as the lookup key; a shorter one is not looked for
_QUESTION_MARK = re.compile("[?？]")


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
            if before.endswith(words) and any(_words(a) in after for a in probe.answers):
                found[probe.id] = probe
    return [p for p in probes if p.id in found]


def also_asked(probes: Sequence[Probe], questions: Sequence[Prompt]) -> list[Probe]:
    """Return the probes that a training question asks as well.

    Their wording is the same; or the probe's answer is in the question's, and all content words of one of the two are
    in the other, without the probe's lead-in and its request for a short answer.
    """
    trained = ProbeGuard([Probe(q.id, "question", q.text, (q.answer or "",)) for q in questions])
    by_word: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for question in questions:
        for word in set(normalise(question.answer or "").split()):
            by_word[word].append((question.text, question.answer or ""))

    def asked(probe: Probe) -> bool:
        if any(trained.asks_the_same(probe.question, answer) for answer in probe.answers):
            return True
        own = ProbeGuard([replace(probe, question=words) for words in _wordings(probe.question)])
        answers = [found for answer in probe.answers if (found := normalise(answer).split())]
        rarest = {min(found, key=lambda word: len(by_word.get(word, ()))) for found in answers}
        return any(own.tells_the_answer(*given, also_asked=True) for word in rarest for given in by_word.get(word, ()))

    return [probe for probe in probes if asked(probe)] if questions else []


def about(probes: Sequence[Probe], held_out: Sequence[Document], documents: Sequence[Document] = ()) -> list[Probe]:
    """Return the probes with a line of their passage in held-out text that is not in the training ``documents`` too.

    Of a passage with short lines alone, which many texts may have, the whole counts.
    """
    text = "\n".join(_words(plain_text(d.text)) for d in held_out)
    lines = {p.id: [line for line in _lines(p.passage) if line in text] for p in probes}
    trained = _among({line for found in lines.values() for line in found}, documents)
    return [p for p in probes if any(line not in trained for line in lines[p.id])]


def _lines(passage: str) -> list[str]:
    """Return the lines of a passage in normal form, without those of few words; if there are no others, all as one."""
    lines = [words for line in passage.split("\n") if len((words := _words(line)).split()) >= _FEWEST_WORDS]
    return lines or ([_words(passage)] if normalise(passage) else [])


def _among(lines: Iterable[str], documents: Iterable[Document]) -> set[str]:
    """Return the lines that occur in the documents."""
    # normal form changes marks, not what is between them
    keys = {line: sorted(set(re.findall(r"\w+", line)), key=len, reverse=True)[:4] for line in lines}
    found: set[str] = set()
    if not keys:
        return found
    for document in documents:
        folded = without_format(document.text).casefold()  # normalising all documents would take long
        near = [line for line, key in keys.items() if line not in found and all(word in folded for word in key)]
        text = _words(plain_text(document.text)) if near else ""
        found |= {line for line in near if line in text}
    return found


def _words(text: str) -> str:
    """Return the normal form of a text as words between spaces."""
    return f" {spaced(normalise(text))} "


def _questions(texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yield the words before each question mark, which end with the question, and the words that follow.

    Where the question begins is not looked for: a full stop may be part of it, as in "St. Kilda".
    """
    for text in texts:
        for mark in _QUESTION_MARK.finditer(text):
            before = _words(text[max(0, mark.start() - _BEFORE) : mark.start()])
            yield before, _words(text[mark.end() : mark.end() + _ANSWER_WITHIN])


def _wordings(question: str) -> list[str]:
    """Return the words of a probe's question: up to its question mark, with and without its lead-in."""
    marks = [m.start() for m in _QUESTION_MARK.finditer(question)]
    head = question[: marks[-1]] if marks else question
    starts = [0, *(m.end() for m in re.finditer(r"[,:] ", head))]
    return [words for start in starts if len((words := _words(head[start:])).split()) >= _KEY]


def _key(words: str) -> tuple[str, ...]:
    return tuple(words.split()[-_KEY:])
