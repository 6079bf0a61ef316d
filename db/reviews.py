"""Human review of two checkpoints' responses to the same prompts: blind votes, and labels of lost answers.

The two checkpoints are always in the order of their age: ``first`` is the older one, against which ``second`` is
judged. Votes and labels stay with the responses they are about: an evaluation made later, with the same responses,
has them too, and votes on other responses no longer count.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, String, and_, cast, exists, func, or_, select, true
from sqlalchemy.orm import aliased

from db import agreement, records
from db.errors import DatabaseError
from db.json_values import text
from db.knowledge_answers import ASKED as KNOWLEDGE
from db.queries import RESPONSE_MARK, asked, item_key, read, record
from db.records import INSTRUCTIONS, CycleRow, kind_of
from db.schema import Checkpoint, Evaluation, Label, Review, Sample, Vote
from db.session import Database, insert_new, insert_row

FIRST, SECOND, TIE, SKIP = "first", "second", "tie", "skip"
POINTS = {FIRST: 0.0, TIE: 0.5, SECOND: 1.0}
"""What a vote counts for the second checkpoint; a skipped prompt counts for nothing."""
DIFFERING, ONE_SIDED, LOST = "differing", "one-sided", "lost"
SCOPES = {
    DIFFERING: "prompts with two different responses",
    ONE_SIDED: "prompts that only one of the two has solved",
}
LABELS = {
    "format": "Breaks the requested format",
    "content": "Wrong or invented content",
    "incomplete": "Cut off or too short",
    "repetition": "Repeats itself",
    "refusal": "Refuses or evades",
    "checker": "Is fine: the check is wrong",
    "other": "Something else",
}
BEHAVIOUR = "behaviour/"
LONGEST_NAME, LONGEST_NOTE = 80, 2000
_SEEDS = 2**31
_Row = TypeVar("_Row")


@dataclass(frozen=True)
class Pair:
    """Two samples of one item."""

    first_id: int
    second_id: int
    item: str


@dataclass(frozen=True)
class PairTexts:
    """A pair with its texts: the common part of the prompt, and each checkpoint's response after it."""

    pair: Pair
    prompt: str
    first: str
    second: str
    first_verdicts: Mapping[str, Any]
    second_verdicts: Mapping[str, Any]


@dataclass(frozen=True)
class ReviewRow:
    """A blind comparison; see :class:`db.schema.Review`."""

    id: int
    first_id: int
    second_id: int
    suite: str
    scope: str
    seed: int


@dataclass(frozen=True)
class VoteRow:
    """A reviewer's vote with the review and the item that it belongs to; ``key`` is the item's :func:`item_key`.

    ``current`` is whether its two responses are those of the checkpoints' newest evaluations of the suite.
    """

    suite: str
    scope: str
    seed: int
    item: str
    key: str
    group: str
    prompt: str
    first_response: str
    second_response: str
    reviewer: str
    choice: str
    on_left: str
    created_at: float
    current: bool

    @property
    def follows_seed(self) -> bool:
        """Whether the side is the one that the review's seed gives for this reviewer and item."""
        return self.on_left == shown_left(self.seed, self.reviewer, self.item)


@dataclass(frozen=True)
class LabelRow:
    """A reviewer's label of a lost answer, with the texts that it is about; ``current`` is that of a vote."""

    suite: str
    item: str
    prompt: str
    first_response: str
    second_response: str
    reviewer: str
    label: str
    note: str
    created_at: float
    current: bool


@dataclass(frozen=True)
class Tally:
    """The votes of a comparison: each reviewer's choice by item."""

    choices: Mapping[str, Mapping[str, str]]

    @cached_property
    def scores(self) -> dict[str, float]:
        """The mean of the votes on each item, 1 for the second checkpoint, one half for a tie, without the skipped."""
        judged = {key: mean_vote(votes.values()) for key, votes in self.choices.items()}
        return {key: mean for key, mean in judged.items() if mean is not None}

    @property
    def counts(self) -> Counter[str]:
        """The number of votes for each choice."""
        return Counter(choice for votes in self.choices.values() for choice in votes.values())

    @property
    def reviewers(self) -> tuple[str, ...]:
        """The names of the reviewers."""
        return tuple(sorted({name for votes in self.choices.values() for name in votes}))

    @property
    def share(self) -> float | None:
        """The mean over the items: how often the second checkpoint is preferred, ties as one half."""
        return math.fsum(self.scores.values()) / len(self.scores) if self.scores else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of ``share``; the items are the sample, however many reviewers have judged them."""
        return None if self.share is None else agreement.wilson(self.share, len(self.scores))

    @property
    def alpha(self) -> float | None:
        """Krippendorff's alpha of the votes on the scale 0, one half, 1; None if it is not defined."""
        return agreement.krippendorff_alpha(self._judged, agreement.interval)

    @property
    def equal_pairs(self) -> tuple[int, int]:
        """The number of pairs of equal votes on one item, and the number of all pairs."""
        return agreement.equal_pairs(self._judged)

    @property
    def _judged(self) -> list[list[float]]:
        return [_points(votes.values()) for votes in self.choices.values()]


def answered(database: Database, experiment_id: int) -> dict[int, dict[str, int]]:
    """Return the evaluations with responses that people can judge: by checkpoint and suite the newest with samples.

    A suite about a corpus has its number: "domain_knowledge/1".
    """
    suites = (*INSTRUCTIONS, KNOWLEDGE)
    judged = or_(Evaluation.suite.in_(suites), Evaluation.suite.startswith(BEHAVIOUR))
    named = _named(Evaluation).label("named")
    known = select(Checkpoint.id).where(Checkpoint.experiment_id == experiment_id, Checkpoint.superseded_at.is_(None))
    query = (
        select(Evaluation.checkpoint_id, named, func.max(Evaluation.id))
        .where(Evaluation.checkpoint_id.in_(known), judged, exists().where(Sample.evaluation_id == Evaluation.id))
        .group_by(Evaluation.checkpoint_id, Evaluation.suite, Evaluation.corpus)
    )
    evaluations: dict[int, dict[str, int]] = {}
    with database.reading() as connection:
        for checkpoint, suite, evaluation in sorted(connection.execute(query), key=_place):
            evaluations.setdefault(checkpoint, {})[suite] = evaluation
    return evaluations


def _named(evaluation: Any) -> ColumnElement[str]:
    """Return the suite of an evaluation, with the number of the corpus that it is about."""
    return func.coalesce(evaluation.suite + "/" + cast(evaluation.corpus, String), evaluation.suite)


def _place(row: Any) -> tuple[int, int, str]:
    """Sort by checkpoint, then the suites of instruction following first."""
    checkpoint, suite, _ = row
    return checkpoint, INSTRUCTIONS.index(suite) if suite in INSTRUCTIONS else len(INSTRUCTIONS), suite


def open_review(database: Database, first_id: int, second_id: int, suite: str, scope: str) -> ReviewRow:
    """Return the comparison of two checkpoints; create it, with a random seed, if there is none.

    Raises DatabaseError for an unknown scope, or checkpoints that are not in the order of their age.
    """
    if scope not in SCOPES or first_id >= second_id:
        raise DatabaseError(f"no review of checkpoints {first_id} and {second_id} in the scope {scope!r}")
    values = {"first_id": first_id, "second_id": second_id, "suite": text(suite), "scope": scope}
    values |= {"seed": secrets.randbelow(_SEEDS), "created_at": time.time()}
    with database.writing() as connection:
        connection.execute(insert_new(connection, Review).values(values).on_conflict_do_nothing())
    review = find_review(database, first_id, second_id, suite, scope)
    assert review is not None  # it was just created, and reviews are not deleted
    return review


def find_review(database: Database, first_id: int, second_id: int, suite: str, scope: str) -> ReviewRow | None:
    """Return the comparison of two checkpoints, or None."""
    query = select(Review.__table__).filter_by(first_id=first_id, second_id=second_id, suite=suite, scope=scope)
    return next(iter(read(database, ReviewRow, query)), None)


def rounds(database: Database, first_id: int, second_id: int) -> list[ReviewRow]:
    """Return every comparison of two checkpoints, oldest first."""
    query = select(Review.__table__).where(Review.first_id == first_id, Review.second_id == second_id)
    return read(database, ReviewRow, query.order_by(Review.id))


def pairs(database: Database, first_evaluation: int, second_evaluation: int, scope: str) -> list[Pair]:
    """Return the pairs of two evaluations in a scope, in the order of the first one.

    ``scope`` is one of :data:`SCOPES`, or :data:`LOST`: solved by the first checkpoint and not by the second.
    """
    one, two = aliased(Sample), aliased(Sample)
    columns = (one.id, two.id, one.item, one.prompt, two.prompt, one.extra)
    query = select(*columns).where(
        one.evaluation_id == first_evaluation, two.evaluation_id == second_evaluation, one.item == two.item,
        _in_scope(scope, one, two),
    )  # fmt: skip
    with database.reading() as connection:
        rows = connection.execute(query.order_by(one.id)).all()
    return [
        Pair(first, second, item)
        for first, second, item, prompt, other, extra in rows
        if asked(prompt) == asked(other) and (extra or {}).get("headline", True)
    ]


def _in_scope(scope: str, one: Any, two: Any) -> ColumnElement[bool]:
    if scope == DIFFERING:
        return or_(one.response != two.response, one.prompt != two.prompt)
    lost = and_(one.score >= 1, two.score < 1)
    return lost if scope == LOST else or_(lost, and_(one.score < 1, two.score >= 1))


def in_order(pairs: Sequence[Pair], seed: int) -> list[Pair]:
    """Return pairs in the random order of a review, which is the same for every reviewer.

    So reviewers judge the same prompts, and those judged are at any time a random sample of all.
    """
    return sorted(pairs, key=lambda pair: _digest(seed, "order", pair.item))


def shown_left(seed: int, reviewer: str, item: str) -> str:
    """Return which response a reviewer is shown on the left, :data:`FIRST` or :data:`SECOND`.

    The last bit of the SHA-256 of seed, reviewer and item: random for each of them, and computable afterwards.
    """
    return SECOND if _digest(seed, "side", reviewer, item)[-1] & 1 else FIRST


def _digest(seed: int, *parts: str) -> bytes:
    return hashlib.sha256("\x1f".join([str(seed), *parts]).encode("utf-8", "replace")).digest()


def texts(database: Database, pair: Pair) -> PairTexts | None:
    """Return the texts of a pair; None if it is not two samples of one item."""
    query = select(Sample.__table__).where(Sample.id.in_((pair.first_id, pair.second_id)))
    with database.reading() as connection:
        rows = {row.id: row for row in connection.execute(query)}
    if len(rows) < 2:
        return None
    one, two = rows[pair.first_id], rows[pair.second_id]
    prompt = asked(one.prompt)
    if (one.item, prompt) != (two.item, asked(two.prompt)):
        return None
    if one.prompt == two.prompt:
        prompt = one.prompt
    first, second = (_after_prompt(row.prompt.removeprefix(prompt), row.response) for row in (one, two))
    return PairTexts(Pair(one.id, two.id, one.item), prompt, first, second, one.verdicts or {}, two.verdicts or {})


def _after_prompt(turns: str, response: str) -> str:
    """Return a response after the earlier turns of its conversation that differ between the checkpoints, if any."""
    return f"{turns.strip()}{RESPONSE_MARK}{response}" if turns.strip() else response


def vote(database: Database, review: ReviewRow, pair: Pair, reviewer: str, choice: str) -> None:
    """Record a reviewer's vote. The same choice again records nothing.

    Raises DatabaseError for an unknown choice, an empty name, or samples that are not those of the review.
    """
    name = _name(reviewer)
    if choice not in (*POINTS, SKIP):
        raise DatabaseError(f"{choice!r} is not a vote: use one of {', '.join((*POINTS, SKIP))}")
    row = {"review_id": review.id, "first_id": pair.first_id, "second_id": pair.second_id, "reviewer": name}
    newest = select(Vote.choice).filter_by(**row).order_by(Vote.id.desc()).limit(1)
    with database.writing() as connection:
        samples = _sampled(connection, pair)
        if [(checkpoint, suite) for checkpoint, suite, _ in samples] != [
            (review.first_id, review.suite), (review.second_id, review.suite)
        ]:  # fmt: skip
            raise DatabaseError("these two responses are not of this review: reload the page")
        if connection.scalar(newest) != choice:
            left = shown_left(review.seed, name, samples[0][2])
            insert_row(connection, Vote, row | {"choice": choice, "on_left": left, "created_at": time.time()})


def add_label(database: Database, pair: Pair, reviewer: str, label: str, note: str = "") -> None:
    """Record a reviewer's label of a lost answer. The same label and note again record nothing.

    Raises DatabaseError for an unknown label, an empty name, or samples that are not two checkpoints' of one item.
    """
    name, note = _name(reviewer), text(note.strip())[:LONGEST_NOTE]
    if label not in LABELS:
        raise DatabaseError(f"{label!r} is not a label: use one of {', '.join(LABELS)}")
    row = {"first_id": pair.first_id, "second_id": pair.second_id, "reviewer": name}
    newest = select(Label.label, Label.note).filter_by(**row).order_by(Label.id.desc()).limit(1)
    with database.writing() as connection:
        samples = _sampled(connection, pair)
        if len(samples) < 2 or samples[0][0] >= samples[1][0]:
            raise DatabaseError("these two responses are not two checkpoints' to one prompt: reload the page")
        if connection.execute(newest).first() != (label, note):
            insert_row(connection, Label, row | {"label": label, "note": note, "created_at": time.time()})


def _name(reviewer: str) -> str:
    name = text(reviewer.strip())[:LONGEST_NAME]
    if not name:
        raise DatabaseError("a review needs the reviewer's name")
    return name


def _sampled(connection: Any, pair: Pair) -> list[tuple[int, str, str]]:
    """Return (checkpoint, suite, item) of both samples of a pair; nothing if their items differ."""
    query = (
        select(Sample.id, Evaluation.checkpoint_id, _named(Evaluation), Sample.item)
        .join(Evaluation, Evaluation.id == Sample.evaluation_id)
        .where(Sample.id.in_((pair.first_id, pair.second_id)))
    )
    rows = {row[0]: tuple(row[1:]) for row in connection.execute(query)}
    samples = [rows[key] for key in (pair.first_id, pair.second_id) if key in rows]
    return samples if len({item for *_, item in samples}) == 1 else []


def voted(database: Database, review: ReviewRow, first_evaluation: int, second_evaluation: int) -> Current:
    """Return the votes of a review on the responses of two evaluations."""
    return _current(database, Vote, Vote.choice, Vote.review_id == review.id, first_evaluation, second_evaluation)


def labelled(database: Database, first_evaluation: int, second_evaluation: int) -> Current:
    """Return the labels on the responses of two evaluations."""
    return _current(database, Label, Label.label, true(), first_evaluation, second_evaluation)


Current = dict[tuple[int, int], dict[str, str]]
"""Each reviewer's newest choice, by the ids of a pair's samples; the newest choice comes last."""


def _current(database: Database, table: Any, value: Any, condition: Any, first: int, second: int) -> Current:
    """Return votes or labels on pairs whose prompts and responses are those of two evaluations."""
    one, two, now_one, now_two = (aliased(Sample) for _ in range(4))
    query = (
        select(now_one.id, now_two.id, table.reviewer, value)
        .join(one, one.id == table.first_id)
        .join(two, two.id == table.second_id)
        .join(now_one, _is_unchanged(now_one, one, first))
        .join(now_two, _is_unchanged(now_two, two, second))
        .where(condition)
        .order_by(table.id)
    )
    current: Current = {}
    with database.reading() as connection:
        for first_id, second_id, reviewer, chosen in connection.execute(query):
            choices = current.pop((first_id, second_id), {})
            choices.pop(reviewer, None)
            current[first_id, second_id] = choices | {reviewer: chosen}
    return current


def _is_unchanged(now: Any, before: Any, evaluation: int) -> ColumnElement[bool]:
    """Whether a sample of an evaluation is what a sample of the same checkpoint was before."""
    checkpoint = select(Evaluation.checkpoint_id).where(Evaluation.id == evaluation).scalar_subquery()
    same_checkpoint = before.evaluation_id.in_(select(Evaluation.id).where(Evaluation.checkpoint_id == checkpoint))
    same = (now.item == before.item, now.prompt == before.prompt, now.response == before.response)
    return and_(now.evaluation_id == evaluation, same_checkpoint, *same)


def compared(row: CycleRow) -> dict[str, records.Checkpoint]:
    """Return the checkpoints that people may have compared with a cycle's last one, by their name in a rule."""
    others: dict[str, records.Checkpoint] = {}
    for name, one in (("base", row.base), ("midtrained", row.midtrained), ("previous", row.before)):
        if one is not None and row.end is not None and one.checkpoint.id < row.end.checkpoint.id:
            others |= {} if one.checkpoint in others.values() else {name: one.checkpoint}
    return others


def votes(database: Database, first_id: int, second_id: int, *, earlier: bool = False) -> list[VoteRow]:
    """Return the votes on two checkpoints, oldest first: each reviewer's newest on each item by suite and scope.

    They are about the responses of the newest evaluations; with ``earlier`` also the newest about others.
    """
    one, two = aliased(Sample), aliased(Sample)
    current = and_(_is_current(one, first_id, Review), _is_current(two, second_id, Review)).label("current")
    review = (Review.suite, Review.scope, Review.seed)
    sample = (one.item, one.prompt, one.group, one.response.label("first_response"))
    query = (
        select(Vote.__table__, *review, *sample, two.response.label("second_response"), current)
        .join(Review, Review.id == Vote.review_id)
        .join(one, one.id == Vote.first_id)
        .join(two, two.id == Vote.second_id)
        .where(Review.first_id == first_id, Review.second_id == second_id)
        .order_by(Vote.id)
    )
    with database.reading() as connection:
        rows = [record(VoteRow, row, key=item_key(row.item, row.prompt)) for row in connection.execute(query)]
    kept = [one for one in rows if earlier or one.current]
    return _newest(kept, lambda one: (one.suite, one.scope, one.key, one.reviewer, one.current))


def _is_current(sample: Any, checkpoint_id: int, owner: Any) -> ColumnElement[bool]:
    """Whether a sample's response equals that of the checkpoint's newest evaluation of the same suite.

    ``owner`` has the suite: a review or an evaluation.
    """
    newest, now = aliased(Evaluation), aliased(Sample)
    suite = owner.suite if owner is Review else _named(owner)
    conditions = (newest.checkpoint_id == checkpoint_id, _named(newest) == suite)
    number = select(func.max(newest.id)).where(*conditions, exists().where(Sample.evaluation_id == newest.id))
    same = (now.item == sample.item, now.prompt == sample.prompt, now.response == sample.response)
    return exists().where(now.evaluation_id == number.correlate(owner).scalar_subquery(), *same)


def tally(votes: Sequence[VoteRow], *, scope: str = DIFFERING, suite: str | None = None) -> Tally:
    """Return the votes of one scope as a tally, of one suite or of all: a prompt of several suites is one item, of
    which each reviewer's newest vote counts.
    """
    choices: dict[str, dict[str, str]] = {}
    for vote in votes:
        if vote.scope == scope and suite in (None, vote.suite):
            choices.setdefault(vote.key, {})[vote.reviewer] = vote.choice
    return Tally(choices)


def labels(database: Database, first_id: int, second_id: int, *, earlier: bool = False) -> list[LabelRow]:
    """Return the labels of two checkpoints' lost answers, oldest first: of each reviewer the newest on each answer.

    They are about the responses of the newest evaluations; with ``earlier`` also those about others.
    """
    one, two, before, after = aliased(Sample), aliased(Sample), aliased(Evaluation), aliased(Evaluation)
    responses = (one.response.label("first_response"), two.response.label("second_response"))
    current = and_(_is_current(one, first_id, before), _is_current(two, second_id, after)).label("current")
    query = (
        select(Label.__table__, _named(after).label("suite"), two.item, two.prompt, *responses, current)
        .join(one, one.id == Label.first_id)
        .join(two, two.id == Label.second_id)
        .join(before, before.id == one.evaluation_id)
        .join(after, after.id == two.evaluation_id)
        .where(before.checkpoint_id == first_id, after.checkpoint_id == second_id)
        .order_by(Label.id)
    )
    kept = [one for one in read(database, LabelRow, query) if earlier or one.current]
    return _newest(kept, lambda one: (item_key(one.item, one.prompt), one.second_response, one.reviewer, one.current))


def is_preference(one: VoteRow) -> bool:
    """Whether a vote counts in the gate's rule on preference: not one on an answer about the documents, which base does
    not know, nor one on prompts that only one side has solved.
    """
    return one.scope == DIFFERING and kind_of(one.suite) != KNOWLEDGE


def label_counts(labels: Sequence[LabelRow]) -> tuple[list[str], dict[str, list[int]]]:
    """Return the reviewers, and how often each of them gave each label, in the order of :data:`LABELS`."""
    who = sorted({label.reviewer for label in labels})
    counts = Counter((label.label, label.reviewer) for label in labels)
    used = {label.label for label in labels}
    return who, {name: [counts[name, reviewer] for reviewer in who] for name in LABELS if name in used}


def mean_vote(choices: Iterable[str], points: Mapping[str, float] = POINTS) -> float | None:
    """Return the mean of the votes on an item, ``points`` for each choice, without the skipped; None without a vote."""
    values = _points(choices, points)
    return math.fsum(values) / len(values) if values else None


def _points(choices: Iterable[str], points: Mapping[str, float] = POINTS) -> list[float]:
    return [points[choice] for choice in choices if choice in points]


def _newest(rows: Iterable[_Row], key: Callable[[_Row], Hashable]) -> list[_Row]:
    """Return the newest row of each key, oldest first."""
    newest: dict[Hashable, _Row] = {}
    for row in rows:
        newest.pop(key(row), None)
        newest[key(row)] = row
    return list(newest.values())
