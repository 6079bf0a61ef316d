"""Generation of probes by a model that is given passages of the documents.

A question is kept if the model answers it correctly with the passage (open book) and incorrectly without it (closed
book). Kept questions are also rephrased and reversed. Decoding is greedy, so the same documents and model give the
same questions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from evals.answer_matching import contains, exact_match, normalise
from evals.generation import SuiteProgress, answer, counted
from evals.probe_formats import probe_id
from recovery.data.corpus.documents import Document
from recovery.data.corpus.passages import Passage
from recovery.data.corpus.question_templates import BLANK, place_of
from recovery.data.corpus.text import normalise as wording
from recovery.models.chat_template import ChatFormat
from recovery.rollouts.engine import Engine
from recovery.types import Message, Probe

_WRITE = (
    "{text}\n\nWrite one question that the text answers and give the answer. Write two lines: "
    '"Question: ..." and "Answer: ...". The question names what it is about, and the answer is a few words of the '
    "text.",
    "Write a question and its answer about this text:\n{text}",
)
_READ = "Read this text:\n{text}\n\n{question}"
_REPHRASE = "Write this question in other words, so that it asks exactly the same:\n{question}"
_REVERSE = 'The answer to "{question}" is "{answer}". What belongs in the blank?'
_WAYS = (" Answer as briefly as you can.", "")
_FIRST_ASKED = 0.6  # share of the probes; the others are rephrased and reversed questions
_WRITE_TOKENS, _REPHRASE_TOKENS, _ANSWER_TOKENS = 96, 64, 24
_MOST_ANSWER_WORDS, _LONGEST_QUESTION = 8, 300
_PAIR = re.compile(  # two lines or one, numbered or emphasised
    r"Question\W{0,4}:\W{0,4}(?P<question>[^\n]+?)(?:\s*\n\W{0,12}|\s+)Answer\W{0,4}:\W{0,4}(?P<answer>[^\n]+)",
    re.IGNORECASE,
)
_NAMES = re.compile(r"(?<=[a-z,] )[A-Z][\w-]+")
_REFERS_TO_TEXT = re.compile(r"\b(?:text|passage|paragraph|excerpt|sentence|above|below|author)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Written:
    """A question with its answer, the passage that contains it, and its kind: written, paraphrase or reversed."""

    question: str
    answer: str
    passage: Passage
    kind: str = "written"

    @property
    def asked(self) -> str:
        """The question, prefixed with its document's title if it does not name it."""
        first = self.passage.sentences[0]
        if self.kind == "reversed" or _names(self.question, first.title):
            return self.question
        return f'According to "{place_of(first)}": {self.question}'


@dataclass
class Writer:
    """The model that writes and answers questions. ``way`` is the suffix of a question: see :meth:`_open_book`."""

    chat: ChatFormat
    engine: Engine
    window: int | None = None
    seed: int = 0
    progress: SuiteProgress | None = None
    way: str | None = None
    _wordings: set[str] = field(default_factory=set)

    def probes(self, passages: Sequence[Passage], documents: Sequence[Document], count: int) -> list[Probe]:
        """Return up to ``count`` question probes about the passages, some of them rephrased or reversed.

        Fewer, or none, if the model cannot write or answer questions about these documents.
        """
        kept: list[Written] = []
        for template in _WRITE:
            if len(kept) < count:
                kept += self._tested(self._write(passages, template, kept))
        first = kept[: math.ceil(_FIRST_ASKED * count)]
        again = self._tested(reversed_questions(first, documents)) + self._tested(self._rephrased(first))
        return [self._probe(w) for w in [*first, *again, *kept[len(first) :]][:count]]

    def _write(self, passages: Sequence[Passage], template: str, kept: Sequence[Written]) -> list[Written]:
        known = {(w.passage.text, normalise(w.answer)) for w in kept}
        completions = self._complete("writing", [template.format(text=_shown(p)) for p in passages], _WRITE_TOKENS)
        found: list[Written] = []
        for passage, text in zip(passages, completions, strict=True):
            for question, given in pairs(text):
                kind = "paraphrase" if (passage.text, normalise(given)) in known else "written"
                found.append(Written(question, given, passage, kind))
        return self._new(found)

    def _rephrased(self, kept: Sequence[Written]) -> list[Written]:
        prompts = [_REPHRASE.format(question=w.question) for w in kept]
        completions = self._complete("rephrasing", prompts, _REPHRASE_TOKENS)
        lines = [re.sub(r"^\W*Question\W*:\s*", "", text.split("\n")[0]).strip().strip('"') for text in completions]
        found = [replace(w, question=line, kind="paraphrase") for w, line in zip(kept, lines, strict=True)]
        return self._new(found)

    def _new(self, found: Sequence[Written]) -> list[Written]:
        """Return the well-formed questions, each wording once."""
        new = []
        for w in found:
            if sound(w) and wording(w.question) not in self._wordings:
                self._wordings.add(wording(w.question))
                new.append(w)
        return new

    def _tested(self, found: Sequence[Written]) -> list[Written]:
        """Return the questions answered correctly with the passage and incorrectly without it."""
        right = self._open_book(found)
        completions = self._complete("closed book", [w.asked + (self.way or "") for w in right], _ANSWER_TOKENS)
        return [w for w, text in zip(right, completions, strict=True) if not contains(text, [w.answer])]

    def _open_book(self, found: Sequence[Written]) -> list[Written]:
        """Return the questions answered correctly with the passage; the first call selects ``way``.

        Chat models need an instruction to be brief; a model trained on bare answers does worse with it.
        """
        right: dict[str, list[Written]] = {}
        for way in _WAYS if self.way is None else (self.way,):
            prompts = [_READ.format(text=_shown(w.passage), question=w.asked + way) for w in found]
            completions = self._complete("open book", prompts, _ANSWER_TOKENS)
            right[way] = [w for w, text in zip(found, completions, strict=True) if exact_match(text, [w.answer])]
        best = max(right, key=lambda way: len(right[way]))
        if right[best]:
            self.way = best
        return right[best]

    def _probe(self, w: Written) -> Probe:
        question = w.asked + (self.way or "")
        return Probe(
            id=probe_id("question", question, w.answer),
            form="question",
            question=question,
            answers=(w.answer,),
            source=w.passage.sentences[0].document,
            tags=("writer", w.kind),
            passage=w.passage.text,
        )

    def _complete(self, step: str, prompts: Sequence[str], tokens: int) -> list[str]:
        conversations = [(Message(role="user", content=prompt),) for prompt in prompts]
        report = counted(self.progress, step, len(prompts))
        limits = {"max_new_tokens": tokens, "seed": self.seed}
        answers = answer(self.chat, self.engine, conversations, window=self.window, progress=report, **limits)
        return [one.text for one in answers]


def pairs(text: str) -> list[tuple[str, str]]:
    """Parse questions and answers from a completion, without emphasis marks."""
    return [(_bare(m["question"]), _bare(m["answer"]).rstrip(".")) for m in _PAIR.finditer(text)]


def sound(w: Written) -> bool:
    """Return whether a question is usable: complete, self-contained, with a short answer from the passage."""
    words = w.question.split()
    if len(words) < 3 or len(w.question) > _LONGEST_QUESTION or w.question[-1] not in "?.？":
        return False
    if _REFERS_TO_TEXT.search(w.question) or contains(w.question, [w.answer]):
        return False
    passage_words = normalise(_shown(w.passage)).split()
    if any(normalise(name) not in passage_words for name in _NAMES.findall(w.question)):
        return False  # an invented name
    return len(w.answer.split()) <= _MOST_ANSWER_WORDS and contains(w.passage.text, [w.answer])


def reversed_questions(found: Sequence[Written], documents: Sequence[Document]) -> list[Written]:
    """Return questions that give the value and ask for the name, if the value belongs to one name only.

    The name is the document's title, which must occur in the question.
    """
    texts = [(d.title, f" {normalise(d.text)} ") for d in documents]
    turned = []
    for w in found:
        name = w.passage.sentences[0].title
        place = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", w.question)
        value = f" {normalise(w.answer)} "
        if place is None or w.kind != "written" or {title for title, text in texts if value in text} != {name}:
            continue
        blanked = f"{w.question[: place.start()]}{BLANK}{w.question[place.end() :]}"
        turned.append(Written(_REVERSE.format(question=blanked, answer=w.answer), name, w.passage, "reversed"))
    return turned


def _shown(passage: Passage) -> str:
    """Return a passage as given to the model, below its title if the passage does not contain it."""
    first = passage.sentences[0]
    return passage.line if _names(passage.line, first.title) else f"{place_of(first)}\n{passage.line}"


def _names(text: str, title: str) -> bool:
    return f" {normalise(title)} " in f" {normalise(text)} "


def _bare(text: str) -> str:
    return text.strip().strip('*_"“” ').strip()
