"""The ledger of facts: every question about the documents, and its fate at each cycle's checkpoint and artifact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import case, exists, func, or_, select, tuple_

from db import queries
from db.artifacts import Artifact, artifacts
from db.knowledge_answers import ASKED, OPEN_BOOK, RIGHT, counts, outcome
from db.records import Cycle, CycleRow
from db.schema import Evaluation, Sample
from db.session import Database

_WRONG = ("lost", "never")
FATES = ("learnt", "known", "right", *_WRONG)  # of :func:`~db.knowledge_answers.outcome`
_SEPARATOR = "\x1f"  # between ids
_Key = tuple[int, str, int | None]  # checkpoint, suite, corpus
# An evaluation's id, the ids of the probes that were asked, and of those with a right answer.
_Answered = tuple[int, list[str], list[str]]
_AnswersByKey = Mapping[_Key, _Answered]


@dataclass(frozen=True)
class Fate:
    """One of :data:`FATES` at a checkpoint, or at an artifact that was made from it."""

    cycle: int
    checkpoint: str
    artifact: bool
    fate: str


@dataclass(eq=False, slots=True)
class Fact:
    """A fact, with its wordings by the ids of the probes, and whether it was answered; None where it was not asked.

    Probes of a document with the same passage and answer are wordings of one fact, answered if one of those that were
    asked is. ``corpus_hash`` is the hash of the cycle's documents; ``passage`` is empty if it is not known. The
    ``fates`` are in the order of the cycles.
    """

    cycle: int
    document: str
    corpus_hash: str
    passage: str
    expected: str
    wordings: dict[str, str] = field(default_factory=dict)
    base: bool | None = None
    open_book: bool | None = None
    midtrained: bool | None = None
    fates: list[Fate] = field(default_factory=list)

    @property
    def fate(self) -> str:
        """The fate at the newest checkpoint that was asked; "not asked" if none was."""
        for one in reversed(self.fates):  # a loop: a ledger asks hundreds of thousands of times
            if not one.artifact:
                return one.fate
        return "not asked"

    @property
    def ever(self) -> bool:
        """Whether a checkpoint answered it, its cycle's mid-trained one included."""
        return bool(self.midtrained) or any(one.fate not in _WRONG for one in self.fates if not one.artifact)


_Facts = Mapping[int, Mapping[str, Fact]]  # by cycle, and by the ids of their probes


def ledger(database: Database, experiment_id: int, passages: Mapping[tuple[int, str], str] | None = None) -> list[Fact]:
    """Return the facts of an experiment, by cycle, in the order in which they were asked; no control questions.

    ``passages`` are those of the probes, by cycle and id. A rejected or rolled-back cycle counts for the facts of its
    own documents alone. Of each checkpoint its newest evaluation with stored responses counts.
    """
    rows = [row for one in queries.paths(database, [experiment_id]) for row in one.cycles]
    served = artifacts(database, experiment_id)[::-1]
    answers = _answers(database, rows, served)
    facts = _facts(database, rows, answers, passages or {})
    for row in rows:
        sides = (("base", row.base, ASKED), ("open_book", row.base, OPEN_BOOK), ("midtrained", row.midtrained, ASKED))
        for name, step, suite in sides:
            key = (step.checkpoint.id if step else 0, suite, row.cycle.number)
            for fact, right in _by_fact(answers, key, facts).items():
                setattr(fact, name, right)
        _add_fates(row, [one for one in served if row.end and one.source.id == row.end.checkpoint.id], answers, facts)
    return [fact for by_probe in facts.values() for fact in dict.fromkeys(by_probe.values())]


def _add_fates(row: CycleRow, served: Iterable[Artifact], answers: _AnswersByKey, facts: _Facts) -> None:
    """Add the fates at a cycle's last checkpoint, and at its artifacts."""
    number, corpora = row.cycle.number, [corpus for corpus in facts if counts(row, corpus)]
    steps = [(row.end.checkpoint, False)] if row.end else []
    for checkpoint, artifact in (*steps, *((one.checkpoint, True) for one in served)):
        fates = {fate: Fate(number, checkpoint.name, artifact, fate) for fate in FATES}
        for corpus in corpora:
            for fact, right in _by_fact(answers, (checkpoint.id, ASKED, corpus), facts).items():
                fact.fates.append(fates[outcome(fact.base, fact.ever, right)])


def _by_fact(answers: _AnswersByKey, key: _Key, facts: _Facts) -> dict[Fact, bool]:
    """Return whether each fact was answered in one of the wordings that were asked."""
    _, asked, right = answers.get(key, (0, [], []))
    fact_of = facts.get(key[2] or 0, {}).get
    answered: dict[Any, bool] = dict.fromkeys(map(fact_of, asked), False) | dict.fromkeys(map(fact_of, right), True)
    answered.pop(None, None)  # probes that are no fact: control questions
    return answered


def _answers(database: Database, rows: Sequence[CycleRow], served: Iterable[Artifact]) -> dict[_Key, _Answered]:
    """Return what base, the last checkpoints and the artifacts answered, and the mid-trained ones of their own cycle.

    The database joins the items of an evaluation in one row of ids, which are much faster to read than the items.
    """
    ends = {one.checkpoint.id for row in rows for one in (row.base, row.end) if one} | {o.checkpoint.id for o in served}
    own = [(row.midtrained.checkpoint.id, row.cycle.number) for row in rows if row.midtrained]
    key = (Evaluation.checkpoint_id, Evaluation.suite, Evaluation.corpus)
    newest = select(func.max(Evaluation.id)).where(
        Evaluation.suite.in_((ASKED, OPEN_BOOK)), or_(key[0].in_(ends), tuple_(key[0], key[2]).in_(own)),
        key[2].is_not(None), exists().where(Sample.evaluation_id == Evaluation.id),
    ).group_by(*key)  # fmt: skip
    ids: list[Any] = [func.aggregate_strings(one, _SEPARATOR) for one in (Sample.item, case((RIGHT, Sample.item)))]
    query = select(Evaluation.id, *key).add_columns(*ids).join(Sample, Sample.evaluation_id == Evaluation.id)
    with database.reading() as connection:
        return {
            (checkpoint, suite, corpus): (number, asked.split(_SEPARATOR), right.split(_SEPARATOR) if right else [])
            for number, checkpoint, suite, corpus, asked, right in connection.execute(
                query.where(Evaluation.id.in_(newest)).group_by(Evaluation.id)
            )
        }


def _facts(
    database: Database, rows: Sequence[CycleRow], answers: _AnswersByKey, passages: Mapping[tuple[int, str], str]
) -> dict[int, dict[str, Fact]]:
    """Return the facts of each cycle by the ids of their probes, as its last checkpoint was asked, else an earlier."""
    asked: dict[int, Cycle] = {}
    for row in rows:
        steps = [one.checkpoint.id for one in (row.recovered, row.midtrained, row.base) if one]
        evaluations = [answers[key][0] for one in steps if (key := (one, ASKED, row.cycle.number)) in answers]
        asked |= dict.fromkeys(evaluations[:1], row.cycle)
    expected, control = Sample.extra[("answers", 0)].as_string(), Sample.extra["control"].as_boolean()
    query = select(Sample.evaluation_id, Sample.item, Sample.group, Sample.prompt, expected).where(
        Sample.evaluation_id.in_(asked), control.is_not(True)
    )
    facts: dict[int, dict[str, Fact]] = {cycle.number: {} for cycle in asked.values()}
    by_identity: dict[tuple[object, ...], Fact] = {}
    with database.reading() as connection:
        for number, item, document, prompt, answer in connection.execute(
            query.order_by(Sample.evaluation_id, Sample.id)
        ):
            cycle, passage = asked[number], passages.get((asked[number].number, item), "")
            fact = Fact(cycle.number, document, cycle.corpus_hash, passage, answer or "")
            fact = by_identity.setdefault((cycle.number, document, passage or item, answer), fact)
            fact.wordings[item] = prompt
            facts[cycle.number][item] = fact
    return facts
