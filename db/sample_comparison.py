"""Responses of several checkpoints to the same items, filtered by outcome."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Text, and_, cast, false, func, or_, select, true
from sqlalchemy.orm import aliased

from db.queries import RESPONSE_MARK
from db.records import Checkpoint
from db.schema import Sample
from db.session import Database

# Outcome of an item over the base model, the mid-trained one and the last checkpoint of the cycle.
FATES: dict[str, str] = {
    "still-lost": "right at base, wrong at the end",
    "back": "lost by mid-training, right again at the end",
    "lost": "right at base, wrong after mid-training",
    "new": "right at base and after mid-training, wrong at the end",
    "won": "wrong at base, right at the end",
    "one-sided": "right at only one of base and the end",
    "all": "every item that the score counts",
}
_REPEATS = 4  # a repeated instruction of a prompt is numbered: "TYPE (2)"


@dataclass(frozen=True)
class Answer:
    """The response of one checkpoint, and the verdict on each instruction."""

    response: str
    verdicts: Mapping[str, Any]


@dataclass(frozen=True)
class SideBySide:
    """An item and its responses in the order of the evaluations; None for an evaluation without the item."""

    item: str
    prompt: str
    answers: tuple[Answer | None, ...]


@dataclass(frozen=True)
class AnswerPage:
    """A page of items, the total number of matches, and the page's offset."""

    rows: tuple[SideBySide, ...]
    total: int
    offset: int


def asked_first(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the default choice of ``recover ask``, from ``checkpoints`` oldest first: base, the newest mid-trained and
    the newest recovered one of those that still have weights."""
    newest = {one.kind: one for one in checkpoints if one.has_weights}
    return [newest[kind] for kind in ("base", "midtrained", "recovered") if kind in newest]


def side_by_side(
    database: Database,
    base: int,
    midtrained: int | None,
    end: int,
    *,
    fate: str = "all",
    kind: str | None = None,
    search: str | None = None,
    offset: int = 0,
    limit: int = 10,
) -> AnswerPage:
    """Return items of the evaluation ``base`` together with those of ``midtrained`` and ``end`` (ids of evaluations).

    Items that the suite's score leaves out are left out. An ``offset`` behind the last item is that of the last page.
    ``fate`` is one of FATES. ``kind`` selects items with an instruction of this type, and right or wrong is then its
    verdict. ``search`` is a text in prompts or responses. Without a mid-trained evaluation, fates that need one match
    nothing.
    """
    first, middle, last = aliased(Sample), aliased(Sample), aliased(Sample)
    sides = [first, *([middle] if midtrained is not None else []), last]
    query = select(*(column for side in sides for column in _columns(side)))
    if midtrained is not None:
        query = query.outerjoin(middle, _is_same_item(first, middle, midtrained))
    query = query.outerjoin(last, _is_same_item(first, last, end))
    query = query.where(first.evaluation_id == base, _is_scored(first))
    query = query.where(_has_fate(fate, kind, first, middle if midtrained else None, last))
    if kind:
        query = query.where(_has_verdict(first, kind))
    if search:
        texts = [first.prompt, *(side.response for side in sides)]
        query = query.where(or_(*(text.icontains(search, autoescape=True) for text in texts)))
    with database.reading() as connection:
        total = connection.scalar(select(func.count()).select_from(query.order_by(None).subquery())) or 0
        offset = min(offset, max(0, total - 1) // limit * limit)
        rows = connection.execute(query.order_by(first.id).offset(offset).limit(limit)).all()
    return AnswerPage(tuple(_row(tuple(row), len(sides)) for row in rows), total, offset)


def _is_same_item(first: Any, other: Any, evaluation: int) -> ColumnElement[bool]:
    """Whether ``other``, a sample of ``evaluation``, answers the prompt of ``first``.

    Files of prompts may number their items alike. Of a conversation, whose stored prompt holds earlier responses, the
    id decides alone.
    """
    prompt = or_(other.prompt == first.prompt, first.prompt.contains(RESPONSE_MARK, autoescape=True))
    return and_(other.evaluation_id == evaluation, other.item == first.item, prompt)


def _is_scored(side: Any) -> ColumnElement[bool]:
    """Whether the suite's score counts an item: not one that is judged by a simple rule beside others with checks."""
    return side.extra["headline"].as_boolean().is_not(false())


def _columns(side: Any) -> tuple[Any, ...]:
    return side.item, side.prompt, side.response, side.verdicts


def _row(values: Sequence[Any], sides: int) -> SideBySide:
    parts = [values[4 * at : 4 * at + 4] for at in range(sides)]
    item, prompt = parts[0][:2]
    return SideBySide(item, prompt, tuple(None if p[0] is None else Answer(p[2], p[3] or {}) for p in parts))


def _has_fate(fate: str, kind: str | None, first: Any, middle: Any, last: Any) -> ColumnElement[bool]:
    right, wrong = _is_right(first, kind), _is_wrong(last, kind)
    if fate == "all":
        return true()
    if fate == "still-lost":
        return and_(right, wrong)
    won = and_(_is_wrong(first, kind), _is_right(last, kind))
    if fate in ("won", "one-sided"):
        return won if fate == "won" else or_(won, and_(right, wrong))
    if middle is None:
        return false()
    if fate == "lost":
        return and_(right, _is_wrong(middle, kind))
    if fate == "back":
        return and_(right, _is_wrong(middle, kind), _is_right(last, kind))
    return and_(right, _is_right(middle, kind), wrong)


def _is_right(side: Any, kind: str | None) -> ColumnElement[bool]:
    return and_(_has_verdict(side, kind), ~_has_failed(side, kind)) if kind else side.score >= 1


def _is_wrong(side: Any, kind: str | None) -> ColumnElement[bool]:
    return _has_failed(side, kind) if kind else side.score < 1


def _has_verdict(side: Any, kind: str) -> ColumnElement[bool]:
    """Whether an item has a verdict on an instruction of this type."""
    return _verdicts_text(side).contains(f"{json.dumps(kind)}: ", autoescape=True)


def _has_failed(side: Any, kind: str) -> ColumnElement[bool]:
    names = [kind, *(f"{kind} ({number})" for number in range(2, _REPEATS + 1))]
    return or_(*(_verdicts_text(side).contains(f"{json.dumps(name)}: false", autoescape=True) for name in names))


def _verdicts_text(side: Any) -> Any:
    """Return the verdicts as their stored JSON text."""
    return cast(side.verdicts, Text)
