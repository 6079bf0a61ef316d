"""Probes: questions about documents that measure knowledge, written or generated before training.

Two forms (see recovery.types.Probe): "choice" measures stored knowledge in the document's own wording; "question"
measures accessible knowledge in a chat. :mod:`evals.probe_building` makes them, from sentences that are never used for
training questions; here they are read, written and counted.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from recovery.data.corpus.json_lines import json_line, read_records
from recovery.errors import UsageError, printable
from recovery.types import Probe
from recovery.workspace import write_atomically

logger = logging.getLogger(__name__)

PROBES_FILE = "probes.jsonl"
FEWEST_PROBES = 100
FEWEST_QUESTIONS = 20
NATURAL = "natural"  # tag of questions in natural wording
NEAR_MISS = "near_miss"  # form of questions about what no document holds
STATEMENT = "wh"  # tag of questions for the value of a simple statement: "The port is 8443."
GAPS = frozenset({"cloze", "continuation"})  # tags of questions with a gap, as earlier releases froze them


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
    if form not in ("question", "choice", NEAR_MISS):
        raise ValueError(f'form is "{form}"; it is "question", "choice" or "{NEAR_MISS}"')
    absent = str(record.get("absent") or "").strip()
    if form == NEAR_MISS and (answers or not absent):
        raise ValueError('a near miss has no answers, and names what no document holds as "absent"')
    if form != NEAR_MISS and (not answers or not all(a.strip() for a in answers)):
        raise ValueError("no answer")
    if form == "choice" and (answers[0] not in choices or len(set(choices)) < 2):
        raise ValueError("choices must hold the first answer and at least one other")
    if form == "choice" and not all(choices):
        raise ValueError("one of the choices is empty")
    return Probe(
        id=str(record.get("id") or probe_id(form, question, answers[0] if answers else absent)),
        form=form,
        question=question,
        answers=answers,
        choices=choices if form != "question" else (),
        source=str(record.get("source") or ""),
        control=bool(record.get("control", False)),
        tags=_strings(record.get("tags"), "tags"),
        passage=str(record.get("passage") or ""),
        absent=absent if form == NEAR_MISS else "",
    )


def to_record(probe: Probe) -> dict[str, Any]:
    """Return the JSON object of a probe without empty fields."""
    record: dict[str, Any] = {"id": probe.id, "form": probe.form, "question": probe.question}
    record["answers"] = list(probe.answers)
    optional = {"choices": list(probe.choices), "source": probe.source, "control": probe.control}
    record.update({k: v for k, v in optional.items() if v})
    if probe.tags:
        record["tags"] = list(probe.tags)
    record.update({k: v for k, v in (("passage", probe.passage), ("absent", probe.absent)) if v})
    if not probe.answers:
        del record["answers"]
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


def probe_id(form: str, question: str, answer: str) -> str:
    """Return an id that depends only on the wording."""
    digest = hashlib.sha256(f"{question}\x1f{answer}".encode("utf-8", "surrogatepass"))
    return f"{form}-{digest.hexdigest()[:12]}"


# --- counting ---------------------------------------------------------------------------------------------------


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
