"""Probes: questions about documents that measure knowledge, written or generated before training.

Two forms (see recovery.types.Probe): "choice" measures stored knowledge in the document's own wording; "question"
measures accessible knowledge in a chat. Both are built from sentences that are never used for training questions.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from evals.probe_formats import choice_probe, fact_probe, probe_id, statement_probe, title_probe
from recovery.data.corpus import Corpus
from recovery.data.corpus.cloze import Vocabulary, pick_gaps
from recovery.data.corpus.facts import Fact, Stated, facts_of, pick_facts
from recovery.data.corpus.json_lines import json_line, read_records
from recovery.data.corpus.passages import openings
from recovery.data.corpus.sentences import Sentence, sentences, side
from recovery.data.corpus.text import normalise, share
from recovery.errors import UsageError, printable
from recovery.types import Probe
from recovery.workspace import write_atomically

logger = logging.getLogger(__name__)

PROBES_FILE = "probes.jsonl"
FEWEST_PROBES = 100
FEWEST_QUESTIONS = 20
_WORDINGS = 3  # at most, of one fact
_TITLES = 20  # one probe in twenty is a title


# --- files ---------------------------------------------------------------------------------------------------


def load_probes(path: Path, *, problems: list[str] | None = None) -> list[Probe]:
    """Load the probes of a JSONL file. Raises UsageError if it has no usable line.

    Unusable lines are skipped and reported by number, in ``problems`` if given, otherwise as a warning.
    """
    path = Path(path)
    records, found = read_records(path)
    probes: list[Probe] = []
    ids: set[str] = set()
    for number, record in records:
        try:
            probe = from_record(record)
        except ValueError as error:
            found.append(f"line {number}: {error}")
            continue
        if probe.id in ids:
            found.append(f'line {number}: the id "{probe.id}" is taken by an earlier line')
            continue
        ids.add(probe.id)
        probes.append(probe)
    if not probes:
        first = f" ({found[0]})" if found else ""
        raise UsageError(f"no usable probe in {path}{first}: give question and answers on each line")
    for problem in found:
        if problems is None:
            logger.warning("%s", printable(f"{path.name} {problem}"))
        else:
            problems.append(printable(f"{path.name} {problem}"))
    return probes


def from_record(record: Any) -> Probe:
    """Convert a JSON object to a Probe. Raises ValueError with the reason if it is not a valid probe."""
    if not isinstance(record, dict):
        raise ValueError("not an object")
    question = record.get("question")
    if not isinstance(question, str) or not question.strip():
        raise ValueError("no question")
    answers = _strings(record.get("answers", record.get("answer")), "answers")
    choices = _strings(record.get("choices"), "choices")
    form = record.get("form") or ("choice" if choices else "question")
    if form not in ("question", "choice"):
        raise ValueError(f'form is "{form}"; it is "question" or "choice"')
    if not answers or not all(a.strip() for a in answers):
        raise ValueError("no answer")
    if form == "choice" and (answers[0] not in choices or len(set(choices)) < 2):
        raise ValueError("choices must hold the first answer and at least one other")
    if form == "choice" and not all(choices):
        raise ValueError("one of the choices is empty")
    return Probe(
        id=str(record.get("id") or probe_id(form, question, answers[0])),
        form=form,
        question=question,
        answers=answers,
        choices=choices if form == "choice" else (),
        source=str(record.get("source") or ""),
        control=bool(record.get("control", False)),
        tags=_strings(record.get("tags"), "tags"),
        passage=str(record.get("passage") or ""),
    )


def to_record(probe: Probe) -> dict[str, Any]:
    """Return the JSON object of a probe without empty fields."""
    record: dict[str, Any] = {"id": probe.id, "form": probe.form, "question": probe.question}
    record["answers"] = list(probe.answers)
    optional = {"choices": list(probe.choices), "source": probe.source, "control": probe.control}
    record.update({k: v for k, v in optional.items() if v})
    if probe.tags:
        record["tags"] = list(probe.tags)
    if probe.passage:
        record["passage"] = probe.passage
    return record


def write_probes(path: Path, probes: Sequence[Probe]) -> None:
    """Write probes atomically as JSON Lines that load_probes reads back unchanged."""
    write_atomically(Path(path), "".join(_line(p) + "\n" for p in probes))


def probes_hash(probes: Sequence[Probe]) -> str:
    """Return the hexadecimal SHA-256 of a probe set, independent of its order."""
    return hashlib.sha256("\n".join(sorted(map(_line, probes))).encode("utf-8", "surrogatepass")).hexdigest()


def _line(probe: Probe) -> str:
    return json_line(to_record(probe))


def _strings(value: Any, name: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return (str(value),)
    if not isinstance(value, list) or not all(isinstance(v, (str, int, float)) for v in value):
        raise ValueError(f"{name} is not a list of strings")
    return tuple(str(v) for v in value)


# --- building ------------------------------------------------------------------------------------------------


def build_probes(corpus: Corpus, *, count: int = 400, seed: int = 0, written: Sequence[Probe] = ()) -> list[Probe]:
    """Build probes of both forms, about half each, from the training documents without a model.

    Questions are those that a person would ask: about facts (tag "natural"), ``written`` by a model
    (evals.probe_generation), and for the value of a simple statement (tag "wh"). Choices ask for a gap in the
    document's own text, or for the passage under a title. The result is shorter than ``count`` if the text lacks facts,
    names, numbers and terms (see ``too_few``). Every probe records its document in ``source``, its answer type and its
    form in ``tags``, and its ``passage``.
    """
    everything = sentences(corpus.documents, alone=False)
    vocabulary = Vocabulary(everything)
    facts = facts_of(corpus.documents)
    mine = probe_side(everything, facts)
    gaps = pick_gaps(mine, vocabulary, 2 * count, seed)
    choices = _titles(mine, vocabulary, count // _TITLES, seed)
    choices += [p for gap in gaps if (p := choice_probe(gap, vocabulary, seed))]
    stated = [p for gap in gaps if (p := statement_probe(gap))]
    questions = _questions(facts, [*written, *stated], max(count // 2, count - len(choices)), seed)
    probes = {p.id: p for p in [*choices[: count - len(questions)], *questions]}
    return list(probes.values())


def _questions(facts: Sequence[Fact], others: Sequence[Probe], wanted: int, seed: int) -> list[Probe]:
    """Return up to ``wanted`` questions: each fact of the probe side, the ``others``, then facts in further wordings.

    What is told of an entry on several pages is asked once. Facts whose value is easy to guess, such as a type, are
    asked only where there is too little else.
    """
    mine = {(normalise(f.name), f.relation, normalise(f.value)): f for f in facts if f.side == "probe"}
    picked = pick_facts(mine.values(), len(mine), seed)
    known, guessed = [f for f in picked if not f.guessed], [f for f in picked if f.guessed]
    first, *further = ([fact_probe(f, turn) for f in known if turn < len(f.questions)] for turn in range(_WORDINGS))
    found = [*first, *others]
    if len(found) < FEWEST_QUESTIONS:
        found += [fact_probe(f) for f in guessed]
    return [*found, *(probe for turn in further for probe in turn)][:wanted]


def probe_side(everything: Sequence[Sentence], facts: Sequence[Fact]) -> list[Sentence]:
    """Return the sentences from which probes may be built; training questions are built from the others.

    Sentences that state one of the ``facts`` used for training questions are excluded.
    """
    trained = Stated(fact for fact in facts if fact.side == "question")
    return [s for s in everything if s.alone and side(s) == "probe" and s.plain not in trained]


def _titles(mine: Sequence[Sentence], vocabulary: Vocabulary, count: int, seed: int) -> list[Probe]:
    found = sorted(openings(mine, vocabulary), key=lambda s: share(s.lead, f"title {seed}"))
    made = (p for s in found if (p := title_probe(s, found, seed)))  # each compared with all others: no more than asked
    return list(islice(made, count))


def asked(probes: Iterable[Probe]) -> list[Probe]:
    """Return the questions among probes, without control probes and further wordings of the same fact."""
    found: dict[tuple[str, str], Probe] = {}
    for probe in probes:
        if probe.form == "question" and not probe.control:
            found.setdefault((probe.passage or probe.question, probe.answers[0]), probe)
    return list(found.values())


def too_few(probes: Sequence[Probe], asked_for: int | None = None) -> str | None:
    """Return a warning if there are too few probes for a precise score, otherwise None.

    No more than ``asked_for`` were wanted.
    """
    choices, questions = sum(p.form == "choice" for p in probes), len(asked(probes))
    if min(choices, questions) >= FEWEST_PROBES // 2:
        return None
    if asked_for is not None and len(probes) >= asked_for:
        return f"{len(probes)} probes make scores imprecise: a larger --count may give more"
    return (
        f"only {questions} questions and {choices} choices are about these documents, so scores will be imprecise: put "
        f"your own beside those that are made (`recover probes build`, then `recover probes review {PROBES_FILE} --add "
        f"MORE.jsonl`), or let a model write them (`recover probes build --writer base`)"
    )
