"""Probes: questions about documents that measure knowledge, written or generated before training.

Two forms (see recovery.types.Probe): "choice" measures stored knowledge in the document's own wording; "question"
measures accessible knowledge in a chat. :mod:`evals.probe_building` makes them, from sentences that are never used for
training questions; here they are read, written and counted.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from recovery.data.corpus.encodings import decode
from recovery.data.corpus.json_lines import as_list, json_line, read_records
from recovery.errors import UsageError, printable
from recovery.types import Probe
from recovery.workspace import write_atomically

logger = logging.getLogger(__name__)

PROBES_FILE = "probes.jsonl"
FEWEST_PROBES = 100
FEWEST_QUESTIONS = 20
NATURAL = "natural"  # tag of questions in natural wording
NEAR_MISS = "near_miss"  # form of questions about something that no document holds
STATEMENT = "wh"  # tag of questions for the value of a simple statement: "The port is 8443."
GAPS = frozenset({"cloze", "continuation"})  # tags of questions with a gap, as earlier releases froze them


# --- files ---------------------------------------------------------------------------------------------------


def load_probes(path: Path, *, problems: list[str] | None = None) -> list[Probe]:
    """Load the probes of a JSONL file. Raises UsageError if it has no usable line.

    Unusable lines are skipped and reported by number, in ``problems`` if given, otherwise as a warning.
    """
    path = Path(path)
    records, reasons = read_records(path)
    probes: list[Probe] = []
    ids: set[str] = set()
    for number, record in records:
        try:
            probe = from_record(record)
        except ValueError as error:
            reasons.append(f"line {number}: {error}")
            continue
        if probe.id in ids:
            reasons.append(f'line {number}: the id "{probe.id}" is taken by an earlier line')
            continue
        ids.add(probe.id)
        probes.append(probe)
    if not probes:
        first = f" ({reasons[0]})" if reasons else ""
        raise UsageError(f"no usable probe in {path}{first}: give question and answers on each line")
    for problem in reasons:
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
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(probe).items() if value}


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
    by_fact: dict[tuple[str, str], Probe] = {}
    for probe in _questions(probes):
        by_fact.setdefault((probe.passage or probe.question, probe.answers[0]), probe)
    return list(by_fact.values())


def _questions(probes: Iterable[Probe]) -> list[Probe]:
    return [probe for probe in probes if probe.form == "question" and not probe.control]


def too_few(probes: Sequence[Probe], asked_for: int | None = None) -> str | None:
    """Return a warning if there are too few probes for a precise score, otherwise None.

    ``asked_for`` is the number of probes that the user requested, if any.
    """
    choices, facts = sum(p.form == "choice" for p in probes), len(asked(probes))
    if min(choices, facts) >= FEWEST_PROBES // 2:
        return None
    if asked_for is not None and len(probes) >= asked_for:
        return f"{len(probes)} probes make scores imprecise: a larger --count may give more"
    return (
        f"there are questions about only {facts} facts and {choices} choices, so scores will be imprecise: put your "
        f"own beside those that are made (`recover probes build`, then `recover probes review {PROBES_FILE} --add "
        f"MORE.jsonl`), or let a model write them (`recover probes build --writer base`)"
    )


# Review and editing of a probe file: drop probes by id, add them from other files, show counts and samples.

_DRAWN, _LONGEST_SHOWN = 10, 300


@dataclass(frozen=True)
class Review:
    """A probe file before and after a change, its invalid lines, and the probes to show."""

    path: str
    before: tuple[Probe, ...]
    after: tuple[Probe, ...]
    shown: tuple[Probe, ...]
    problems: tuple[str, ...]

    @property
    def changed(self) -> bool:
        """Whether the file must be rewritten."""
        return self.before != self.after


def review(
    path: Path, *, show: int, drawn: bool, seed: int, drop: Sequence[str] = (), add: Sequence[Path] = ()
) -> Review:
    """Read a probe file, remove the ids in ``drop`` and add the probes of the files ``add``, without writing.

    Raises UsageError for an unknown id, or an added id that already belongs to a different probe.
    """
    problems: list[str] = []
    before = load_probes(path, problems=problems)
    unknown = [id for id in drop if id not in {p.id for p in before}]
    if unknown:
        raise UsageError(f'there is no probe "{unknown[0]}" in {path}: see the ids with `recover probes review {path}`')
    after = {p.id: p for p in before if p.id not in drop}
    for file in add:
        for probe in load_probes(file, problems=problems):
            if after.setdefault(probe.id, probe) != probe:
                raise UsageError(f'the id "{probe.id}" of {file} is taken in {path}: give it another id, or --drop it')
    if not after:
        raise UsageError(f"nothing would be left in {path}: delete the file instead, and new probes are built")
    # Questions first, as in the list before a cycle: a file of several hundred probes begins with choices.
    shown = sorted(after.values(), key=lambda probe: (probe.form != "question", probe.control))
    if drawn:
        shown = random.Random(seed).sample(shown, min(show, len(shown)))
    return Review(str(path), tuple(before), tuple(after.values()), tuple(shown[:show]), tuple(problems))


def save(changed: Review) -> None:
    """Write the changes of a review to its file, atomically.

    Only dropped probes are removed and added ones appended; all other lines or records, including invalid ones and
    unknown fields, stay unchanged.
    """
    if not changed.changed:
        return
    path = Path(changed.path)
    before, after = {p.id for p in changed.before}, {p.id: p for p in changed.after}
    dropped = before - after.keys()
    added = [to_record(probe) for key, probe in after.items() if key not in before]
    text = decode(path.read_bytes()).text
    value = _json_value(text) if path.suffix.lower() == ".json" else None
    if value is None:
        lines = [line for line in text.rstrip("\n").split("\n") if _probe_id(_json_value(line)) not in dropped]
        write_atomically(path, "".join(f"{line}\n" for line in (*lines, *map(json_line, added))))
        return
    records = as_list(value)
    is_single = records[:1] == [value]
    records[:] = [*(record for record in records if _probe_id(record) not in dropped), *added]  # in place, within whole
    write_atomically(path, json.dumps(records if is_single else value, indent=2, ensure_ascii=False) + "\n")


def _json_value(text: str) -> Any:
    """Return the value of a JSON text; None if it is invalid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _probe_id(record: Any) -> str | None:
    """Return the id of the probe of a record, or None if it is invalid."""
    try:
        return from_record(record).id
    except ValueError:
        return None


def counts(probes: Sequence[Probe]) -> dict[str, Any]:
    """Return the number of probes by form and kind, and their hash."""
    kinds = Counter(_kind(p) for p in probes if not p.control)
    return {
        "probes": len(probes),
        "control": sum(p.control for p in probes),
        "kinds": dict(kinds.most_common()),
        "hash": probes_hash(probes),
    }


def _kind(probe: Probe) -> str:
    """Return the form and the kind of a probe; the kind of a question about a fact is its relation."""
    asked_for = probe.tags[-2:-1] if probe.tags[-1:] == (NATURAL,) and len(probe.tags) > 1 else probe.tags[-1:]
    return ": ".join((probe.form, *asked_for))


def drawn_lines(probes: Sequence[Probe], seed: int) -> tuple[str, ...]:
    """Return the number of probes by kind, and ten random questions about different facts with their answers, and ten
    near misses, whose right reply is that there is no such thing.
    """
    facts, missed = asked(probes), [p for p in probes if p.form == NEAR_MISS]
    drawn, misses = (random.Random(seed).sample(pool, min(_DRAWN, len(pool))) for pool in (facts, missed))
    lines = [f"  {shorten(p.question, _LONGEST_SHOWN, placeholder=' ...')} -> {p.answers[0]}" for p in drawn]
    total = f"of {len(_questions(probes))} questions about {len(facts)} fact{'s' * (len(facts) != 1)}"
    head = f"{counts_text(probes)}; {total}, {len(drawn)} at random, to read before training:"
    if misses:
        lines.append(f"of {len(missed)} questions about what no document holds {len(misses)} at random:")
        lines += [f"  {shorten(p.question, _LONGEST_SHOWN, placeholder=' ...')} -> no {p.absent}" for p in misses]
    return tuple(map(printable, [head, *lines]))


def counts_text(probes: Sequence[Probe]) -> str:
    """Return :func:`counts` in one line."""
    numbers = counts(probes)
    kinds = ", ".join(f"{n} {kind}" for kind, n in numbers["kinds"].items())
    control = f", {numbers['control']} control" if numbers["control"] else ""
    return f"{numbers['probes']} probes ({kinds}{control}), hash {numbers['hash'][:12]}"


def summary(review: Review) -> dict[str, Any]:
    """Return a review as JSON values."""
    return {
        "path": review.path,
        "before": counts(review.before),
        "after": counts(review.after),
        "problems": list(review.problems),
        "probes": [to_record(p) for p in review.shown],
    }


def text(review: Review) -> str:
    """Return a review as text: the shown probes, invalid lines, and counts."""
    lines = [shown(p) + "\n" for p in review.shown] + [f"not used: {problem}" for problem in review.problems]
    if not review.changed:
        return "\n".join([*lines, counts_text(review.after)])
    return "\n".join([*lines, f"before: {counts_text(review.before)}", f"after:  {counts_text(review.after)}"])


def shown(probe: Probe) -> str:
    """Return a probe as text: question, answers, distractors and source passage."""
    lines = [f"{probe.id}  {'control  ' if probe.control else ''}{' '.join(probe.tags)}  {probe.source}".rstrip()]
    parts = {
        "asked": probe.question,
        "answer": " | ".join(probe.answers),
        "wrong": " | ".join(c for c in probe.choices if c not in probe.answers),
        "absent": probe.absent,
        "passage": probe.passage,
    }
    for name, part in parts.items():
        if part:
            lines.append(f"  {name:8} " + part.strip("\n").replace("\n", "\n" + " " * 11))
    return "\n".join(lines)
