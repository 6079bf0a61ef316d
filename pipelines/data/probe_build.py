"""Probes generated before training, for review and editing: `recover probes`.

Most are built without a model (:mod:`evals.probe_building`). A model can write more, given passages of the documents: a
question is kept if the model answers it correctly with the passage (open book) and incorrectly without it (closed
book). Kept questions are also rephrased and reversed. Decoding is greedy, so the same documents and model give the same
questions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evals.answer_matching import contains, exact_match, normalise
from evals.generation import SuiteProgress, answer, counted
from evals.probe_building import also_asked, build_probes, leaked, probe_side
from evals.probes import PROBES_FILE, counts, probe_id, too_few
from pipelines.runtime.engines import engine_of
from pipelines.runtime.model_loading import load_frozen
from pipelines.runtime.progress import SuccessiveBars
from pipelines.runtime.session import Session
from recovery.config import ModelConfig
from recovery.data.corpus.cloze import Passage, passages
from recovery.data.corpus.documents import Corpus, Document, sampled
from recovery.data.corpus.facts.extraction import facts_of
from recovery.data.corpus.folder import read_corpus
from recovery.data.corpus.sentences import Sentence, sentences
from recovery.data.corpus.text import normalise as wording
from recovery.data.document_questions import BLANK, place_of
from recovery.data.prompt_files import load_prompts
from recovery.data.sources import QUESTIONS_FILE, given_beside
from recovery.errors import CorpusError, UsageError
from recovery.models.chat_template import ChatFormat
from recovery.rollouts.engine import Engine
from recovery.types import Message, Probe, Prompt
from recovery.workspace import Checkpoint

_WRITE_PROMPTS = (
    "{text}\n\nWrite one question that the text answers and give the answer. Write two lines: "
    '"Question: ..." and "Answer: ...". The question names what it is about, and the answer is a few words of the '
    "text.",
    "Write a question and its answer about this text:\n{text}",
)
_OPEN_BOOK = "Read this text:\n{text}\n\n{question}"
_REPHRASE = "Write this question in other words, so that it asks exactly the same:\n{question}"
_REVERSE = 'The answer to "{question}" is "{answer}". What belongs in the blank?'
_SUFFIXES = (" Answer as briefly as you can.", "")
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
        for template in _WRITE_PROMPTS:
            if len(kept) < count:
                kept += self._tested(self._write(passages, template, kept))
        first = kept[: math.ceil(_FIRST_ASKED * count)]
        again = self._tested(reversed_questions(first, documents)) + self._tested(self._rephrased(first))
        return [self._probe(w) for w in [*first, *again, *kept[len(first) :]][:count]]

    def _write(self, passages: Sequence[Passage], template: str, kept: Sequence[Written]) -> list[Written]:
        known = {(w.passage.text, normalise(w.answer)) for w in kept}
        completions = self._complete("writing", [template.format(text=_shown(p)) for p in passages], _WRITE_TOKENS)
        questions: list[Written] = []
        for passage, text in zip(passages, completions, strict=True):
            for question, reply in pairs(text):
                kind = "paraphrase" if (passage.text, normalise(reply)) in known else "written"
                questions.append(Written(question, reply, passage, kind))
        return self._new(questions)

    def _rephrased(self, kept: Sequence[Written]) -> list[Written]:
        prompts = [_REPHRASE.format(question=w.question) for w in kept]
        completions = self._complete("rephrasing", prompts, _REPHRASE_TOKENS)
        lines = [re.sub(r"^\W*Question\W*:\s*", "", text.split("\n")[0]).strip().strip('"') for text in completions]
        questions = [replace(w, question=line, kind="paraphrase") for w, line in zip(kept, lines, strict=True)]
        return self._new(questions)

    def _new(self, questions: Sequence[Written]) -> list[Written]:
        """Return the well-formed questions, each wording once."""
        new = []
        for w in questions:
            if sound(w) and wording(w.question) not in self._wordings:
                self._wordings.add(wording(w.question))
                new.append(w)
        return new

    def _tested(self, questions: Sequence[Written]) -> list[Written]:
        """Return the questions answered correctly with the passage and incorrectly without it."""
        right = self._open_book(questions)
        completions = self._complete("closed book", [w.asked + (self.way or "") for w in right], _ANSWER_TOKENS)
        return [w for w, text in zip(right, completions, strict=True) if not contains(text, [w.answer])]

    def _open_book(self, questions: Sequence[Written]) -> list[Written]:
        """Return the questions answered correctly with the passage; the first call selects ``way``.

        Chat models need an instruction to be brief; a model trained on bare answers does worse with it.
        """
        right: dict[str, list[Written]] = {}
        for way in _SUFFIXES if self.way is None else (self.way,):
            prompts = [_OPEN_BOOK.format(text=_shown(w.passage), question=w.asked + way) for w in questions]
            completions = self._complete("open book", prompts, _ANSWER_TOKENS)
            right[way] = [w for w, text in zip(questions, completions, strict=True) if exact_match(text, [w.answer])]
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


def reversed_questions(questions: Sequence[Written], documents: Sequence[Document]) -> list[Written]:
    """Return questions that give the value and ask for the name, if the value belongs to one name only.

    The name is the document's title, which must occur in the question.
    """
    texts = [(d.title, f" {normalise(d.text)} ") for d in documents]
    turned = []
    for w in questions:
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


CONTROL_SHARE = 5  # other probes per control probe
_PASSAGES_PER_QUESTION = 2  # about half of the written questions pass both tests
_FEW_WRITTEN = 0.25

# (corpus, count) -> question probes that a model wrote about the documents
Ask = Callable[[Corpus, int], list[Probe]]


@dataclass(frozen=True)
class Sources:
    """The documents to train on, others, not trained on, for control probes, and the training questions given."""

    corpus: Corpus
    control: Corpus | None = None
    questions: tuple[Prompt, ...] = ()


@dataclass(frozen=True)
class BuiltProbes:
    """Probes, and report lines about how they were made."""

    probes: tuple[Probe, ...]
    lines: tuple[str, ...]

    def summary(self) -> dict[str, Any]:
        """Return counts by form and kind, the hash and the report lines, as JSON types."""
        return {**counts(self.probes), "lines": list(self.lines)}


def read_sources(docs: Path, control: Path | None, *, seed: int) -> Sources:
    """Read both folders. Raise CorpusError if one cannot be used, or if both contain the same documents."""
    corpus, given = sampled(read_corpus(docs, seed=seed)), given_beside(docs, QUESTIONS_FILE)
    questions = tuple(load_prompts(given, kind="knowledge")) if given else ()
    if control is None:
        return Sources(corpus, None, questions)
    other = sampled(read_corpus(control, held_out=0.0, seed=seed))
    trained = {d.text for d in read_corpus(docs, held_out=0.0, seed=seed).documents}
    kept = tuple(d for d in other.documents if d.text not in trained)
    if not kept:
        raise CorpusError(f"{control} contains only documents of {docs}: give --control others, not trained on")
    return Sources(corpus, replace(other, documents=kept), questions)


def plan_build(sources: Sources, *, count: int, out: Path, writer: str | None) -> tuple[dict[str, Any], str]:
    """Return the plan of a build as JSON types and as text; loads no weights and writes nothing."""
    documents, controls = len(sources.corpus.documents), len(sources.control.documents) if sources.control else 0
    usable = len(_probe_sentences(sources.corpus))
    shown = len(question_passages(sources.corpus, count // 2, 0)) if writer else 0
    values = {"documents": documents, "control_documents": controls, "sentences": usable, "passages": shown}
    control = f", and {controls} documents for control" if controls else ""
    written = f"; {writer} writes questions about {shown} passages" if writer else ""
    text = f"up to {count} probes about {documents} documents{control}, made from {usable} sentences that no training "
    text += f"question is made from{written}: to {out}"
    return {**values, "count": count, "out": str(out), "writer": writer}, text


def free_to_write(out: Path, *, force: bool) -> None:
    """Raise UsageError if ``out`` must not or cannot be written; called before any work is done."""
    if out.is_dir():
        raise UsageError(f"{out} is a folder: give a file with --out FILE")
    if out.exists() and not force:
        raise UsageError(f"{out} exists already: read it with `recover probes review`, or replace it with --force")
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent}: create it, or use another --out FILE")


def question_passages(corpus: Corpus, count: int, seed: int) -> list[Passage]:
    """Return a writer's passages for ``count`` questions, from sentences that no training question is made from."""
    return passages(_probe_sentences(corpus), _PASSAGES_PER_QUESTION * count, seed)


def _probe_sentences(corpus: Corpus) -> list[Sentence]:
    return probe_side(sentences(corpus.documents), facts_of(corpus.documents))


def make(sources: Sources, *, count: int, seed: int, ask: Ask | None = None, writer: str = "the writer") -> BuiltProbes:
    """Make up to ``count`` probes about the documents to train on with near misses, and a fifth as many for control, if
    available.

    Raise CorpusError if none can be made.
    """
    probes, lines = _about(sources.corpus, sources.questions, count, seed, ask, writer, near_misses=True)
    if all(probe.absent for probe in probes):
        raise CorpusError(
            f"no probe can be made from {sources.corpus.report.folder}: it leaves no sentence with a name, a number or "
            f"a term to ask for; write {PROBES_FILE} by hand"
        )
    if sources.control is not None:
        controls, more = _about(sources.control, sources.questions, -(-count // CONTROL_SHARE), seed, ask, writer)
        ids = {p.id for p in probes}
        controls = [replace(p, control=True) for p in controls if p.id not in ids]
        if not controls:
            raise CorpusError(f"no control probe can be made from {sources.control.report.folder}")
        probes, lines = probes + controls, [*lines, *(f"control: {line}" for line in more)]
    remark = too_few([p for p in probes if not p.control and not p.absent], count)
    return BuiltProbes(tuple(probes), tuple([*lines, remark] if remark else lines))


def _about(
    corpus: Corpus,
    questions: Sequence[Prompt],
    count: int,
    seed: int,
    ask: Ask | None,
    writer: str,
    *,
    near_misses: bool = False,
) -> tuple[list[Probe], list[str]]:
    wanted = count // 2
    written = ask(corpus, wanted) if ask is not None else []
    lines = []
    if ask is not None:
        few = len(written) < _FEW_WRITTEN * wanted
        instead = f"; of {wanted} wanted that is too few: a larger model may write more" if few else ""
        lines.append(f"{writer} wrote {len(written)} questions that it answers with the text and not without{instead}")
    so_far = [d.text for d in (*corpus.documents, *corpus.held_out)] if near_misses else None
    probes = build_probes(corpus, count=count, seed=seed, written=written, absent_from=so_far)
    in_text = {p.id for p in leaked(probes, (d.text for d in corpus.documents))}
    if in_text:
        lines.append(f"left out {len(in_text)} questions that the documents ask and answer themselves")
    trained = {p.id for p in also_asked(probes, questions)}
    if trained:
        lines.append(f"left out {len(trained)} questions that {QUESTIONS_FILE} asks too, with their answers")
    return [p for p in probes if p.id not in in_text | trained], lines


def writer_of(session: Session, checkpoint: Checkpoint, config: ModelConfig) -> Ask:
    """Return a function that lets a checkpoint write questions; it is loaded on the first call, after validation."""

    def ask(corpus: Corpus, count: int) -> list[Probe]:
        loaded = load_frozen(session.verified(checkpoint), config)
        passages = question_passages(corpus, count, config.seed)
        bars = SuccessiveBars(session.display, f"questions by {checkpoint.name}")
        with engine_of(loaded, config) as engine, bars:
            writer = Writer(loaded.chat, engine, loaded.max_length, config.seed, bars.show)
            return writer.probes(passages, corpus.documents, count)

    return ask
