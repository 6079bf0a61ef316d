"""Questions about a corpus, and what base, base with the page, and a cycle's checkpoints answered to each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import exists, func, select

from db.records import CycleRow
from db.schema import Evaluation, Sample
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
ABOUT_UNANSWERABLE = (
    "Questions of the same forms about what no document holds, made from the documents: a value is confabulated. "
    "Neither: the reply repeats the question, is empty or has no word. Beside them, by the same rules, the questions "
    "that the documents answer. Replies are judged by English phrases."
)
# Outcomes over base, the mid-trained checkpoint and the cycle's last one; right: an accepted answer is in the response.
OUTCOMES = {
    "learnt": "wrong at base, right at the end",
    "lost": "right at base or after mid-training, wrong at the end",
    "never": "wrong at base, after mid-training and at the end",
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
    """A question with its answers, kinds, responses by the names of :data:`SIDES`, and its document."""

    item: str
    text: str
    answers: tuple[str, ...]
    kinds: tuple[str, ...]
    responses: Mapping[str, Response]
    document: str = ""

    def is_of(self, outcome: str) -> bool:
        """Whether the question is of one of :data:`OUTCOMES`."""
        return is_of(outcome, {name: one.right for name, one in self.responses.items()})

    def holds(self, search: str) -> bool:
        """Whether a text occurs in the question, its answers, a response or the document's name, in any case."""
        texts = (self.text, self.document, *self.answers, *(one.response for one in self.responses.values()))
        return any(search.casefold() in text.casefold() for text in texts)


def is_of(outcome: str, right: Mapping[str, bool]) -> bool:
    """Whether a question with these right and wrong answers, by side, is of one of :data:`OUTCOMES`."""
    end = right.get(RECOVERED, right.get(MIDTRAINED))
    before = right.get(BASE, False) or (RECOVERED in right and right.get(MIDTRAINED, False))
    if outcome == "learnt":
        return right.get(BASE) is False and end is True
    if outcome == "lost":
        return before and end is False
    if outcome == "known":
        return right.get(BASE) is True and end is True
    return outcome == "all" or not any(value for name, value in right.items() if name != PAGE)


def corpora(database: Database, row: CycleRow) -> list[int]:
    """Return the corpora of which a cycle's checkpoints or base answered stored questions."""
    query = select(Evaluation.corpus).where(
        Evaluation.checkpoint_id.in_([step.checkpoint.id for step in (row.midtrained, row.recovered) if step]),
        Evaluation.suite == ASKED, Evaluation.corpus.is_not(None),
        exists().where(Sample.evaluation_id == Evaluation.id),
    )  # fmt: skip
    with database.reading() as connection:
        return sorted(set(connection.scalars(query)))


def questions(database: Database, row: CycleRow, corpus: int) -> list[Question]:
    """Return the questions about a corpus that the cycle's last checkpoint was asked, in their order.

    Of each checkpoint its newest evaluation with stored responses counts.
    """
    steps = ((BASE, row.base, ASKED), (PAGE, row.base, OPEN_BOOK), (MIDTRAINED, row.midtrained, ASKED),
             (RECOVERED, row.recovered, ASKED))  # fmt: skip
    ids = {name: _newest(database, step.checkpoint.id, suite, corpus) for name, step, suite in steps if step}
    likelihood = _newest(database, row.base.checkpoint.id, LIKELIHOOD, corpus) if row.base else None
    forms = _forms(database, likelihood)
    rows = {name: _rows(database, number) for name, number in ids.items() if number is not None}
    asked = rows.get(RECOVERED) or rows.get(MIDTRAINED) or {}
    return [
        Question(
            item,
            one.prompt,
            tuple(map(str, (one.extra or {}).get("answers", ()))),
            _kinds(one.extra or {}, forms.get(item)),
            {name: Response(got[item].response, bool(got[item].right)) for name, got in rows.items() if item in got},
            one.group,
        )
        for item, one in asked.items()
    ]


def unanswerable(database: Database, row: CycleRow, corpus: int) -> dict[str, tuple[int, dict[str, float]]]:
    """Return how many questions about what no document holds were asked, and the shares by the names of
    :data:`SHARES`, by the names of :data:`SIDES`, each of the newest evaluation.
    """
    steps = ((BASE, row.base, UNANSWERABLE), (PAGE, row.base, WITH_PAGE), (MIDTRAINED, row.midtrained, UNANSWERABLE),
             (RECOVERED, row.recovered, UNANSWERABLE))  # fmt: skip
    ids = {name: _newest(database, step.checkpoint.id, suite, corpus) for name, step, suite in steps if step}
    query = select(Evaluation.id, Evaluation.n, Evaluation.details).where(Evaluation.id.in_(ids.values()))
    with database.reading() as connection:
        measured = {one.id: (one.n, one.details or {}) for one in connection.execute(query)}
    replies: dict[str, tuple[int, dict[str, float]]] = {}
    for name, (n, details) in ((name, measured[number]) for name, number in ids.items() if number is not None):
        shares = {key: details[key]["value"] for key in SHARES if details.get(key)}
        if {"declined", "confabulated"} <= shares.keys():
            shares[NEITHER] = max(0.0, 1 - shares["declined"] - shares["confabulated"])
        replies[name] = n, shares
    return replies


def kinds(asked: Iterable[Question]) -> list[str]:
    """Return the kinds of questions, in alphabetical order."""
    return sorted({kind for question in asked for kind in question.kinds})


def _newest(database: Database, checkpoint_id: int, suite: str, corpus: int) -> int | None:
    query = select(func.max(Evaluation.id)).where(
        Evaluation.checkpoint_id == checkpoint_id, Evaluation.suite == suite, Evaluation.corpus == corpus,
        exists().where(Sample.evaluation_id == Evaluation.id),
    )  # fmt: skip
    with database.reading() as connection:
        return connection.scalar(query)


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
