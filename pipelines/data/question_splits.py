"""A file of written questions, split by fact into the probes and training questions of a folder of documents.

Each line is a question. Its ``use`` is "train" (a training question), "test-form" (a fact of a training question, asked
in another form) or "test" (a fact that no training question asks). A line that violates this split would invalidate
the scores and is rejected, with its line number. A corpus may ask again what an earlier one asks, as of a newer version
of its documents: in the same words, with the same fact and use, and the answers of that version.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evals.answer_matching import normalise
from evals.knowledge import GROUP
from evals.probe_building import build_probes
from evals.probes import NATURAL, PROBES_FILE, write_probes
from recovery.data.corpus.folder import read_corpus
from recovery.data.corpus.json_lines import read_records
from recovery.data.prompt_files import write_prompts
from recovery.data.sources import QUESTIONS_FILE
from recovery.errors import CorpusError, UsageError
from recovery.types import Message, Probe, Prompt

USES = ("train", "test", "test-form")
GROUPS = {"test": "held-out fact", "test-form": "held-out form"}
MOST_WORDS = 6  # of an answer: a model does not reproduce longer ones verbatim
_MOST_GAPS = 50  # multiple-choice gaps per corpus: each is scored once per choice, which costs more than an answer
_TEXTS = ("id", "fact", "corpus", "page", "use", "form", "question")


@dataclass(frozen=True)
class Question:
    """One question about a fact of a page. ``control``: no page of the corpora contains the fact of ``subject``."""

    id: str
    fact: str
    corpus: str
    page: str
    use: str
    form: str
    question: str
    answers: tuple[str, ...]
    control: bool = False
    passage: str = ""
    subject: str = ""


@dataclass
class _Seen:
    """Ids, wordings, facts and forms of earlier lines, which later lines must not repeat."""

    ids: set[str] = field(default_factory=set)
    wordings: dict[str, Question] = field(default_factory=dict)
    worded: set[tuple[str, str]] = field(default_factory=set)  # in each corpus
    tested: set[str] = field(default_factory=set)
    trained: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    held: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, question: Question) -> None:
        """Add a question. Raise ValueError, with the reason, if it violates the split."""
        if question.id in self.ids:
            raise ValueError(f'the id "{question.id}" is taken by an earlier line')
        wording = normalise(question.question)
        first = self.wordings.setdefault(wording, question)
        again = (first.fact, first.use, first.form) == (question.fact, question.use, question.form)
        if (question.corpus, wording) in self.worded or not again:
            raise ValueError("an earlier line asks the same in the same words")
        fact, form = question.fact, question.form
        in_training = fact in self.trained or fact in self.held
        if in_training if question.use == "test" else fact in self.tested:
            raise ValueError(f'the fact "{fact}" is asked both in training and as a held-out fact: give it one use')
        forms, others = (self.held, self.trained) if question.use == "test-form" else (self.trained, self.held)
        if question.use != "test" and form in others.get(fact, ()):
            raise ValueError(f'the fact "{fact}" is trained and tested in the form "{form}": change one')
        self.ids.add(question.id)
        self.worded.add((question.corpus, wording))
        if question.use == "test":
            self.tested.add(fact)
        else:
            forms[fact].add(form)


def held_out_ids(path: Path) -> set[str]:
    """Return the ids of a file's questions about facts that no training question asks; errors as load_questions."""
    return {question.id for question in load_questions(path) if question.use == "test" and not question.control}


def load_questions(path: Path) -> tuple[Question, ...]:
    """Return the questions of a JSON Lines file. Raise UsageError for the first invalid line, or if there is none."""
    records, problems = read_records(path)
    seen = _Seen()
    kept: dict[int, Question] = {}
    for number, record in records:
        try:
            question = from_record(record)
            seen.add(question)
            kept[number] = question
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    for number, question in kept.items():
        if question.use == "test-form" and question.fact not in seen.trained:
            problems.append(f'line {number}: no training question asks the fact "{question.fact}" of this "test-form"')
    problems.sort(key=lambda problem: int(problem.split()[1].rstrip(":")))
    if problems:
        more = f" (and {len(problems) - 1} more such lines)" if len(problems) > 1 else ""
        raise UsageError(f"{path} cannot be used, {problems[0]}{more}; correct or remove the line")
    if not kept:
        raise UsageError(f"{path} holds no question: write one JSON object per line")
    return tuple(kept.values())


def from_record(record: Any) -> Question:
    """Return a JSON object as a Question. Raise ValueError, with the reason, if it is invalid."""
    if not isinstance(record, dict):
        raise ValueError("not an object")
    for key in _TEXTS:
        if not isinstance(record.get(key), str) or not record[key].strip():
            raise ValueError(f'no text under "{key}"')
    if record["use"] not in USES:
        raise ValueError(f'use is "{record["use"]}"; it is "train", "test" or "test-form"')
    answers = record.get("answers")
    if not isinstance(answers, list) or not answers or not all(isinstance(a, str) for a in answers):
        raise ValueError('"answers" is not a list of strings')
    for answer in answers:
        if not normalise(answer):
            raise ValueError(f'the answer "{answer}" is empty once punctuation is left out')
        if len(answer.split()) > MOST_WORDS:
            raise ValueError(f'the answer "{answer}" has more than {MOST_WORDS} words')
    control = record.get("control", False)
    if not isinstance(control, bool):
        raise ValueError('"control" is neither true nor false')
    if control and record["use"] != "test":
        raise ValueError('a control question has the use "test"')
    optional = {key: record.get(key, "") for key in ("passage", "subject")}
    for key, text in optional.items():
        if not isinstance(text, str):
            raise ValueError(f'"{key}" is not a text')
    return Question(**{key: record[key] for key in _TEXTS}, answers=tuple(answers), control=control, **optional)


def write_corpus_files(
    questions: Path, corpus: str, folder: Path, *, pages: Container[str] | None = None
) -> tuple[int, int]:
    """Write the probes and training questions of a corpus next to its documents; return the count of each.

    ``pages`` selects the questions about these pages and all controls, if only a part of the corpus is trained on.
    Raise UsageError if a line of ``questions`` cannot be used, if none is about ``corpus``, or if a file cannot be
    written.
    """
    everything = load_questions(questions)
    selected = [q for q in everything if q.corpus == corpus and (pages is None or q.control or q.page in pages)]
    if not selected:
        known = ", ".join(Counter(q.corpus for q in everything))
        raise UsageError(f"{questions} has nothing about the corpus {corpus!r}: name one of {known}")
    probes = [*map(to_probe, (q for q in selected if q.use != "train")), *_stored_gaps(folder)]
    prompts = [to_prompt(q) for q in selected if q.use == "train"]
    write_probes(folder / PROBES_FILE, probes)
    write_prompts(folder / QUESTIONS_FILE, prompts)
    return len(probes), len(prompts)


def _stored_gaps(folder: Path) -> list[Probe]:
    """Return multiple-choice gaps in the folder's own sentences, which measure stored knowledge."""
    try:
        corpus = read_corpus(folder)
    except CorpusError:  # the folder has no documents, or none yet
        return []
    return [probe for probe in build_probes(corpus, count=_MOST_GAPS * 2) if probe.form == "choice"][:_MOST_GAPS]


def to_probe(question: Question) -> Probe:
    """Return a test question as a probe of form "question"; it is scored separately by its ``group:`` tag."""
    group = () if question.control else (f"{GROUP}{GROUPS[question.use]}",)
    return Probe(
        question.id,
        "question",
        question.question,
        question.answers,
        source=question.page,
        control=question.control,
        tags=(*group, f"fact:{question.fact}", question.form, NATURAL),
        passage=question.passage,
    )


def to_prompt(question: Question) -> Prompt:
    """Return a training question as a prompt for the knowledge teacher; its first answer is the reference."""
    return Prompt(
        question.id,
        (Message(role="user", content=question.question),),
        kind="knowledge",
        answer=question.answers[0],
        tags=(question.form, f"document:{question.page}"),
    )
