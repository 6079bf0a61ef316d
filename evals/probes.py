"""Probes: questions about documents that measure knowledge, written or made before anything is learnt.

Two forms (see recovery.types.Probe): "choice" asks what is stored, in the document's own words; "question" asks
what can be reached, as chat. Both are made from sentences that never become training questions.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recovery.corpus import Corpus
from recovery.corpus.asking import cloze, missing, title_of, wh_question
from recovery.corpus.distractors import distractors
from recovery.corpus.gaps import NUMBER_WORDS, Gap, Vocabulary, pick_gaps
from recovery.corpus.records import read_records
from recovery.corpus.sentences import sentences, side
from recovery.errors import UsageError
from recovery.types import Probe

logger = logging.getLogger(__name__)

PROBES_FILE = "probes.jsonl"
CHOICES = 16
FEWEST_CHOICES = 5
FEWEST_PROBES = 100
_DIGITS = dict(zip(NUMBER_WORDS, map(str, (*range(2, 13), 15, 20, 30, 40, 50)), strict=True))


# --- files ---------------------------------------------------------------------------------------------------


def load_probes(path: Path, *, problems: list[str] | None = None) -> list[Probe]:
    """The probes of a JSONL file. A line that cannot be used is reported by its number, in ``problems`` where a
    list is given, else as a warning; the rest is used. Raises UsageError where none can be."""
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
            logger.warning("%s %s", path.name, problem)
        else:
            problems.append(f"{path.name} {problem}")
    return probes


def from_record(record: Any) -> Probe:
    """One JSON object as a Probe; raises ValueError with the reason where it is none."""
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
    return Probe(
        id=str(record.get("id") or _id(form, question, answers[0])),
        form=form,
        question=question,
        answers=answers,
        choices=choices if form == "choice" else (),
        source=str(record.get("source") or ""),
        control=bool(record.get("control", False)),
        tags=_strings(record.get("tags"), "tags"),
    )


def to_record(probe: Probe) -> dict[str, Any]:
    """The JSON object of a probe; empty fields are left out."""
    record: dict[str, Any] = {"id": probe.id, "form": probe.form, "question": probe.question}
    record["answers"] = list(probe.answers)
    optional = {"choices": list(probe.choices), "source": probe.source, "control": probe.control}
    record.update({k: v for k, v in optional.items() if v})
    if probe.tags:
        record["tags"] = list(probe.tags)
    return record


def write_probes(path: Path, probes: Sequence[Probe]) -> None:
    """Write probes as JSON Lines that load_probes reads back unchanged."""
    Path(path).write_text("".join(_line(p) + "\n" for p in probes), encoding="utf-8")


def probes_hash(probes: Sequence[Probe]) -> str:
    """Hexadecimal SHA-256 of a probe set; the order does not matter."""
    return hashlib.sha256("\n".join(sorted(map(_line, probes))).encode("utf-8", "surrogatepass")).hexdigest()


def _line(probe: Probe) -> str:
    return json.dumps(to_record(probe), ensure_ascii=False)


def _strings(value: Any, name: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return (str(value),)
    if not isinstance(value, list) or not all(isinstance(v, (str, int, float)) for v in value):
        raise ValueError(f"{name} is not a list of strings")
    return tuple(str(v) for v in value)


def _id(form: str, question: str, answer: str) -> str:
    digest = hashlib.sha256(f"{question}\x1f{answer}".encode("utf-8", "surrogatepass"))
    return f"{form}-{digest.hexdigest()[:12]}"


# --- making --------------------------------------------------------------------------------------------------


def build_probes(corpus: Corpus, *, count: int = 400, seed: int = 0) -> list[Probe]:
    """Probes of both forms, about half each, made from the documents to be learnt; no model is needed.

    Fewer than ``count`` where the text does not hold enough names, numbers and terms (see ``too_few``). Every
    probe names its document in ``source`` and its kind of answer in ``tags``.
    """
    everything = sentences(corpus.documents)
    vocabulary = Vocabulary(everything)
    mine = [s for s in everything if side(s) == "probe"]
    gaps = pick_gaps(mine, vocabulary, count, seed)
    choices = [p for gap in gaps if (p := choice_probe(gap, vocabulary, seed))]
    wanted = max(count // 2, count - len(choices))
    # A wh-question reads best and goes first; the order within each sort is the pick's.
    asked = [question_probe(gap) for gap in sorted(gaps, key=lambda g: wh_question(g) is None)][:wanted]
    probes = {p.id: p for p in [*choices[: count - len(asked)], *asked]}
    return list(probes.values())


def too_few(probes: Sequence[Probe]) -> str | None:
    """A remark where there are so few probes that a score says little, else None."""
    n = min((sum(p.form == form for p in probes) for form in ("choice", "question")), default=0)
    if n >= FEWEST_PROBES // 2:
        return None
    return (
        f"only {len(probes)} probes could be made from these documents: scores will be coarse; "
        f"write {PROBES_FILE} beside them to ask what matters"
    )


def choice_probe(gap: Gap, vocabulary: Vocabulary, seed: int) -> Probe | None:
    """The document's text up to the gap, with the answer among distractors; None where too few can be found."""
    wrong = distractors(vocabulary, gap, CHOICES - 1, seed)
    choices = list(dict.fromkeys([gap.answer, *wrong]))
    if len(choices) < FEWEST_CHOICES:
        return None
    random.Random(f"{seed}:{gap.key}").shuffle(choices)
    question = f"{gap.sentence.lead}{gap.before}"
    return Probe(
        id=_id("choice", question, gap.answer),
        form="choice",
        question=question,
        answers=(gap.answer,),
        choices=tuple(choices),
        source=gap.sentence.document,
        tags=(gap.kind, "cloze"),
    )


def question_probe(gap: Gap) -> Probe:
    """The same knowledge asked as chat."""
    turned = wh_question(gap)
    if turned:
        question = f'According to "{title_of(gap)}", {turned} Answer as briefly as you can.'
    else:
        question = f'Fill the gap in this sentence from "{title_of(gap)}": "{cloze(gap)}" '
        question += f"Answer with the missing {missing(gap)} only."
    return Probe(
        id=_id("question", question, gap.answer),
        form="question",
        question=question,
        answers=(gap.answer, *_other_spellings(gap.answer)),
        source=gap.sentence.document,
        tags=(gap.kind, "wh" if turned else "cloze"),
    )


def _other_spellings(answer: str) -> tuple[str, ...]:
    """The same number in another spelling: "24,000" and "24000", "two" and "2"."""
    if "," in answer and answer.replace(",", "").isdigit():
        return (answer.replace(",", ""),)
    return (_DIGITS[answer],) if answer in _DIGITS else ()
