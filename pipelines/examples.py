"""A file of written questions, split by fact, as the files that a folder of documents has.

One line is one question. ``use`` says what becomes of it: "train" asks a fact in training, "test-form" asks a fact of
the training in another form, and "test" asks a fact that no training question asks. A line that broke this split would
make a score mean nothing, so it is refused by its number.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evals.forms import NATURAL
from evals.knowledge import GROUP, normalise
from evals.probes import PROBES_FILE, build_probes, write_probes
from recovery.corpus import read_corpus
from recovery.corpus.records import read_records
from recovery.errors import CorpusError, UsageError
from recovery.prompts import write_prompts
from recovery.questions import QUESTIONS_FILE
from recovery.types import Message, Probe, Prompt

USES = ("train", "test", "test-form")
GROUPS = {"test": "held-out fact", "test-form": "held-out form"}
MOST_WORDS = 6  # of an answer: longer ones are never given word by word
_STORED = 50  # gaps with choices a corpus: each is read once a choice, which costs more than an answer
_TEXTS = ("id", "fact", "corpus", "page", "use", "form", "question")


@dataclass(frozen=True)
class Question:
    """One question about a fact of a page. ``control``: no page of the corpora holds the fact of ``subject``."""

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
    """What the lines before have taken: a later line may not take it again."""

    ids: set[str] = field(default_factory=set)
    wordings: set[str] = field(default_factory=set)
    tested: set[str] = field(default_factory=set)
    trained: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    held: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, question: Question) -> None:
        """Take note of a question; raises ValueError, saying why, where it breaks the split."""
        if question.id in self.ids:
            raise ValueError(f'the id "{question.id}" is taken by an earlier line')
        wording = normalise(question.question)
        if wording in self.wordings:
            raise ValueError("an earlier line asks the same in the same words")
        fact, form = question.fact, question.form
        in_training = fact in self.trained or fact in self.held
        if in_training if question.use == "test" else fact in self.tested:
            raise ValueError(f'the fact "{fact}" is asked both in training and as a held-out fact: give it one use')
        forms, others = (self.held, self.trained) if question.use == "test-form" else (self.trained, self.held)
        if question.use != "test" and form in others.get(fact, ()):
            raise ValueError(f'the fact "{fact}" is trained and tested in the form "{form}": change one')
        self.ids.add(question.id)
        self.wordings.add(wording)
        if question.use == "test":
            self.tested.add(fact)
        else:
            forms[fact].add(form)


def load_questions(path: Path, *, problems: list[str] | None = None) -> tuple[Question, ...]:
    """The questions of a JSON Lines file.

    A line that cannot be used goes to ``problems``, by its number, where a list is given, and the others are used;
    without a list a UsageError names the file and the first such line. Raises UsageError where none can be used.
    """
    path = Path(path)
    records, found = read_records(path)
    seen = _Seen()
    kept: list[tuple[int, Question]] = []
    for number, record in records:
        try:
            question = from_record(record)
            seen.add(question)
        except ValueError as error:
            found.append(f"line {number}: {error}")
            continue
        kept.append((number, question))
    for number, question in kept:
        if _untrained(question, seen):
            found.append(f'line {number}: no training question asks the fact "{question.fact}" of this "test-form"')
    found.sort(key=lambda problem: int(problem.split()[1].rstrip(":")))
    questions = tuple(question for _, question in kept if not _untrained(question, seen))
    if found and (problems is None or not questions):
        more = f" (and {len(found) - 1} more such lines)" if len(found) > 1 else ""
        raise UsageError(f"{path} cannot be used, {found[0]}{more}; correct the line or take it out")
    if not questions:
        raise UsageError(f"{path} holds no question: write one JSON object a line")
    if problems is not None:
        problems += [f"{path.name} {problem}" for problem in found]
    return questions


def _untrained(question: Question, seen: _Seen) -> bool:
    return question.use == "test-form" and question.fact not in seen.trained


def from_record(record: Any) -> Question:
    """One JSON object as a Question; raises ValueError, with the reason, where it is none."""
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
    """Write the probes and the training questions of one corpus next to its documents; how many of each.

    With ``pages`` only those about them, and all controls: where a part of the corpus is learnt.
    Raises UsageError where a line of ``questions`` cannot be used, or where none is about ``corpus``.
    """
    everything = load_questions(questions)
    mine = [q for q in everything if q.corpus == corpus and (pages is None or q.control or q.page in pages)]
    if not mine:
        known = ", ".join(Counter(q.corpus for q in everything))
        raise UsageError(f"{questions} asks nothing about the corpus {corpus!r}: name one of {known}")
    probes = [*map(to_probe, (q for q in mine if q.use != "train")), *_stored(folder)]
    prompts = [to_prompt(q) for q in mine if q.use == "train"]
    try:
        write_probes(folder / PROBES_FILE, probes)
        write_prompts(folder / QUESTIONS_FILE, prompts)
    except OSError as error:
        raise UsageError(f"cannot write the questions into {folder}: {error.strerror or error}") from error
    return len(probes), len(prompts)


def _stored(folder: Path) -> list[Probe]:
    """Gaps in the folder's own sentences with choices: what is stored is measured next to what can be asked."""
    try:
        corpus = read_corpus(folder)
    except CorpusError:  # the files are written where the documents are not, or not yet
        return []
    return [probe for probe in build_probes(corpus, count=_STORED * 2) if probe.form == "choice"][:_STORED]


def to_probe(question: Question) -> Probe:
    """A test question as a probe of form "question"; its ``group:`` tag is what it is scored apart by."""
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
    """A training question as a prompt for the knowledge teacher; its first answer is the reference."""
    return Prompt(
        question.id,
        (Message(role="user", content=question.question),),
        kind="knowledge",
        answer=question.answers[0],
        tags=(question.form, f"document:{question.page}"),
    )
