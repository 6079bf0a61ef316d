"""Questions about a corpus, and what base, base with the page, and a cycle's checkpoints answered to each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, exists, func, select

from db.records import CycleRow
from db.schema import DISCARDED, Evaluation, Sample
from db.session import Database

ASKED, OPEN_BOOK, LIKELIHOOD = "domain_knowledge", "open_book", "domain_knowledge_likelihood"
BASE, PAGE, MIDTRAINED, RECOVERED = SIDES = ("base", "open book", "mid-trained", "recovered")
CONTROL = "control"
# Whether a stored response is right: it holds an accepted answer.
RIGHT = func.coalesce(Sample.verdicts["contains"].as_boolean(), Sample.score >= 1)
ABOUT_RIGHT = "Right: an accepted answer is in the response. Scores of questions count only responses that equal one."
# Suites of questions that no document answers, and their details in the order in which they are shown: about those
# questions, and about the questions that the documents answer.
UNANSWERABLE, WITH_PAGE = "unanswerable", "unanswerable_open_book"
NEITHER = "neither"  # not stored: the remainder of the two others
SHARES = {
    "declined": "declined",
    NEITHER: NEITHER,
    "confabulated": "answered with a value",
    "of_another_subject": "with that of another subject",
    "known/declined": "known questions declined",
    "known/answered": "known questions answered with a value",
}
KNOWS_NOT = "Questions that no document answers"
ABOUT_UNANSWERABLE = (
    "Questions of the same forms, made from the documents, about something that no document holds: a reply that gives "
    "a value is confabulated. Neither: the reply repeats the question, is empty or has no word. Known questions, which "
    "the documents answer, are judged by the same rules for comparison. Replies are judged by English phrases."
)
# What became of a question by the end of a cycle, as :func:`outcome` says.
OUTCOMES = {
    "learnt": "wrong at base, right at the end",
    "lost": "right at base, after the mid-training on its document or at an earlier end, wrong at the end",
    "never": "wrong at base, after the mid-training on its document and at every end",
    "known": "right at base and at the end",
    "all": "every question that was asked",
}


@dataclass(frozen=True)
class Response:
    """A response, and whether it holds an accepted answer."""

    response: str
    right: bool


@dataclass(frozen=True)
class Question:
    """A question with its answers, kinds, responses by the names of :data:`SIDES`, outcome, and document."""

    item: str
    text: str
    answers: tuple[str, ...]
    kinds: tuple[str, ...]
    responses: Mapping[str, Response]
    outcome: str
    document: str = ""

    def is_of(self, outcome: str) -> bool:
        """Whether the question is of one of :data:`OUTCOMES`."""
        return outcome in ("all", self.outcome)

    def holds(self, search: str) -> bool:
        """Whether a text occurs in the question, its answers, a response or the document's name, in any case."""
        texts = (self.text, self.document, *self.answers, *(one.response for one in self.responses.values()))
        return any(search.casefold() in text.casefold() for text in texts)


def outcome(base: bool | None, earlier: bool, end: bool) -> str:
    """Return one of :data:`OUTCOMES`, or "right" where base was not asked, by whether the answers are right.

    ``earlier``: after the mid-training on its document, or at the end of a cycle since that :func:`counts`.
    """
    if not end:
        return "lost" if base or earlier else "never"
    return "right" if base is None else "known" if base else "learnt"


def counts(row: CycleRow, corpus: int) -> bool:
    """Whether a cycle's end counts for questions about a corpus: earlier ones only after a recovery that stands."""
    stands = row.recovered is not None and row.cycle.decision not in DISCARDED
    return corpus == row.cycle.number or (corpus < row.cycle.number and stands)


def corpora(database: Database, row: CycleRow) -> list[int]:
    """Return the corpora about which a cycle's own checkpoints answered questions, with stored responses."""
    query = select(Evaluation.corpus).where(
        Evaluation.checkpoint_id.in_([step.checkpoint.id for step in (row.midtrained, row.recovered) if step]),
        Evaluation.suite == ASKED, Evaluation.corpus.is_not(None),
        exists().where(Sample.evaluation_id == Evaluation.id),
    )  # fmt: skip
    with database.reading() as connection:
        return sorted(set(connection.scalars(query)))


def questions(database: Database, row: CycleRow, corpus: int, cycles: Iterable[CycleRow] = ()) -> list[Question]:
    """Return the questions about a corpus that the cycle's last checkpoint was asked, in their order.

    Of each checkpoint its newest evaluation with stored responses counts. The other ``cycles`` tell what was right
    before, if the corpus is an earlier cycle's.
    """
    ids = _evaluations(database, row, corpus, ASKED, OPEN_BOOK)
    likelihood = _newest(database, row.base.checkpoint.id, LIKELIHOOD, corpus) if row.base else None
    forms = _forms(database, likelihood)
    rows = {name: _rows(database, number) for name, number in ids.items()}
    asked = rows.get(RECOVERED) or rows.get(MIDTRAINED) or {}
    base, earlier = rows.get(BASE, {}), _right_before(database, row, corpus, cycles)
    return [
        Question(
            item,
            one.prompt,
            tuple(map(str, (one.extra or {}).get("answers", ()))),
            _kinds(one.extra or {}, forms.get(item)),
            {name: Response(got[item].response, bool(got[item].right)) for name, got in rows.items() if item in got},
            outcome(bool(base[item].right) if item in base else None, item in earlier, bool(one.right)),
            one.group,
        )
        for item, one in asked.items()
    ]


def _right_before(database: Database, row: CycleRow, corpus: int, cycles: Iterable[CycleRow]) -> set[str]:
    """Return the ids of the questions about a corpus that were right after its mid-training, or at the end of a cycle
    between it and this one.
    """
    every = {one.cycle.number: one for one in (*cycles, row) if one.cycle.number <= row.cycle.number}
    steps = [one.end for number, one in every.items() if number != row.cycle.number and counts(one, corpus)]
    steps += [every[corpus].midtrained] if corpus in every else []
    newest = _newest_of([one.checkpoint.id for one in steps if one], ASKED, corpus).group_by(Evaluation.checkpoint_id)
    query = select(Sample.item).where(Sample.evaluation_id.in_(newest), RIGHT)
    with database.reading() as connection:
        return set(connection.scalars(query))


def unanswerable(database: Database, row: CycleRow, corpus: int) -> dict[str, tuple[int, dict[str, float]]]:
    """Return how many questions about what no document holds were asked, and the shares by the names of
    :data:`SHARES`, by the names of :data:`SIDES`, each of the newest evaluation.
    """
    ids = _evaluations(database, row, corpus, UNANSWERABLE, WITH_PAGE)
    query = select(Evaluation.id, Evaluation.n, Evaluation.details).where(Evaluation.id.in_(ids.values()))
    with database.reading() as connection:
        measured = {one.id: (one.n, one.details or {}) for one in connection.execute(query)}
    replies: dict[str, tuple[int, dict[str, float]]] = {}
    for name, number in ids.items():
        n, details = measured[number]
        shares = {key: details[key]["value"] for key in SHARES if details.get(key)}
        if {"declined", "confabulated"} <= shares.keys():
            shares[NEITHER] = max(0.0, 1 - shares["declined"] - shares["confabulated"])
        replies[name] = n, shares
    return replies


def kinds(asked: Iterable[Question]) -> list[str]:
    """Return the kinds of questions, in alphabetical order."""
    return sorted({kind for question in asked for kind in question.kinds})


def _evaluations(database: Database, row: CycleRow, corpus: int, asked: str, with_page: str) -> dict[str, int]:
    """Return the newest evaluations by the names of :data:`SIDES`: in ``asked``, and of base also in ``with_page``."""
    steps = ((BASE, row.base, asked), (PAGE, row.base, with_page), (MIDTRAINED, row.midtrained, asked),
             (RECOVERED, row.recovered, asked))  # fmt: skip
    ids = {name: _newest(database, step.checkpoint.id, suite, corpus) for name, step, suite in steps if step}
    return {name: number for name, number in ids.items() if number is not None}


def _newest_of(checkpoint_ids: Iterable[int], suite: str, corpus: int) -> Select[Any]:
    return select(func.max(Evaluation.id)).where(
        Evaluation.checkpoint_id.in_(checkpoint_ids), Evaluation.suite == suite, Evaluation.corpus == corpus,
        exists().where(Sample.evaluation_id == Evaluation.id),
    )  # fmt: skip


def _newest(database: Database, checkpoint_id: int, suite: str, corpus: int) -> int | None:
    with database.reading() as connection:
        return connection.scalar(_newest_of([checkpoint_id], suite, corpus))


def _rows(database: Database, evaluation: int) -> dict[str, Any]:
    columns = (Sample.item, Sample.prompt, Sample.response, RIGHT.label("right"), Sample.extra, Sample.group)
    query = select(*columns).where(Sample.evaluation_id == evaluation).order_by(Sample.id)
    with database.reading() as connection:
        return {one.item: one for one in connection.execute(query)}


def _forms(database: Database, evaluation: int | None) -> dict[str, str]:
    """Return the form of each question's answer (version, path, ...), as its likelihood was measured by."""
    query = select(Sample.item, Sample.extra["kind"].as_string()).where(Sample.evaluation_id == evaluation)
    with database.reading() as connection:
        return {item: form for item, form in connection.execute(query) if form}


def _kinds(extra: Mapping[str, object], form: str | None) -> tuple[str, ...]:
    tags = extra.get("tags")
    named = [str(tag) for tag in tags] if isinstance(tags, Sequence) and not isinstance(tags, str) else []
    return tuple(dict.fromkeys([*([form] if form else []), *named, *([CONTROL] if extra.get("control") else [])]))
