"""What the address of the Review page asks for: two checkpoints, a suite, a view, and who reviews."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.access import Access
from dashboard.pages import common
from dashboard.tracker_source import Source
from db import DatabaseError, queries, reviews
from db.records import Checkpoint, Experiment
from db.reviews import Pair, ReviewRow

COMPARE, STILL_LOST, RESULTS = "compare", "lost", "results"
VIEWS = {COMPARE: "Blind comparison", STILL_LOST: "Still lost", RESULTS: "Results"}
_PAIR = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


@dataclass(frozen=True)
class Asked:
    """Two checkpoints of an experiment, ``first`` the older one, with their evaluations of one suite.

    ``choices`` are all checkpoints with responses, ``suites`` those that both have.
    """

    experiment: Experiment
    choices: tuple[Checkpoint, ...]
    first: Checkpoint
    second: Checkpoint
    suites: tuple[str, ...]
    suite: str
    evaluations: tuple[int, int]
    scope: str
    view: str
    reviewer: str
    pair: tuple[int, int] | None

    def address(self, **changed: str) -> str:
        """Return the address of this state with some parts replaced."""
        parts = {
            "experiment": self.experiment.name, "first": self.first.name, "second": self.second.name,
            "suite": self.suite, "view": self.view, "show": self.scope, "reviewer": self.reviewer,
        }  # fmt: skip
        given = {name: value for name, value in (parts | changed).items() if value}
        return f"review?{common.query(given)}"


def address(experiment: str, first: str, second: str) -> str:
    """Return the address of the review of two checkpoints."""
    return f"review?{common.query({'experiment': experiment, 'first': first, 'second': second})}"


def read(source: Source, access: Access, request: Any, experiment: Experiment) -> Asked | None:
    """Return what an address asks for, with defaults for the rest; None without two checkpoints that share a suite."""
    query: Mapping[str, str] = request.query_params
    database = source.database()
    answered = reviews.answered(database, experiment.id)
    known = [one for one in queries.checkpoints(database, experiment.id) if one.id in answered]
    pair = _checkpoints(known, query.get("first"), query.get("second"))
    if pair is None:
        return None
    first, second = pair
    common_suites = tuple(suite for suite in answered[first.id] if suite in answered[second.id])
    if not common_suites:
        return None
    suite = query.get("suite", "")
    suite = suite if suite in common_suites else common_suites[0]
    scope, view = query.get("show", ""), query.get("view", "")
    name = (request.username if access.users is not None else query.get("reviewer")) or ""
    return Asked(
        experiment,
        tuple(known),
        first,
        second,
        common_suites,
        suite,
        (answered[first.id][suite], answered[second.id][suite]),
        scope if scope in reviews.SCOPES else reviews.DIFFERING,
        view if view in VIEWS else (RESULTS if access.read_only else COMPARE),
        name.strip()[: reviews.LONGEST_NAME],
        pair_of(query.get("pair", "")),
    )


def _checkpoints(
    known: Sequence[Checkpoint], first: str | None, second: str | None
) -> tuple[Checkpoint, Checkpoint] | None:
    """Return two checkpoints by name, the older one first; by default base and the newest recovered one."""
    if len(known) < 2:
        return None
    named = {one.name: one for one in known}
    newest = {one.kind: one for one in known}
    after = named.get(second or "") or newest.get("recovered") or known[-1]
    before = named.get(first or "") or next((one for one in known if one.kind == "base"), known[0])
    if before.id == after.id:
        before = next(one for one in known if one.id != after.id)
    return (before, after) if before.id < after.id else (after, before)


def pair_of(token: str) -> tuple[int, int] | None:
    """Return the ids of the samples that a page names, or None."""
    found = _PAIR.fullmatch(token)
    return (int(found[1]), int(found[2])) if found else None


def token_of(pair: Pair) -> str:
    """Return a pair as the page names it."""
    return f"{pair.first_id}-{pair.second_id}"


def review_of(source: Source, access: Access, asked: Asked) -> ReviewRow | None:
    """Return the blind comparison; a reviewer who may vote begins it."""
    about = (asked.first.id, asked.second.id, asked.suite, asked.scope)
    found = reviews.find_review(source.database(), *about)
    if found is None and asked.reviewer and not access.read_only:
        with source.writing() as database:
            return reviews.open_review(database, *about)
    return found


@dataclass(frozen=True)
class Queue:
    """The pairs of a view in their order, those that the reviewer has done, and the one to show."""

    pairs: tuple[Pair, ...]
    done: Mapping[tuple[int, int], str]
    at: int | None

    @property
    def pair(self) -> Pair | None:
        """The pair to show; None if all are done."""
        return None if self.at is None else self.pairs[self.at]


def queue(source: Source, asked: Asked, review: ReviewRow | None, after: tuple[int, int] | None = None) -> Queue:
    """Return the queue of a view: the pair that the address names, else the next one that is not done.

    ``after`` is the pair that was just judged: the queue goes on behind it.
    """
    database, lost = source.database(), asked.view == STILL_LOST
    found = reviews.pairs(database, *asked.evaluations, reviews.LOST if lost else asked.scope)
    if lost:
        chosen = reviews.labelled(database, *asked.evaluations)
    elif review is not None:
        found, chosen = (
            reviews.in_order(found, review.seed),
            reviews.voted(database, review, *asked.evaluations),
        )
    else:
        found, chosen = [], {}
    ids = [(pair.first_id, pair.second_id) for pair in found]
    within = set(ids)
    done = {key: by[asked.reviewer] for key, by in chosen.items() if asked.reviewer in by and key in within}
    if after is None and asked.pair in within:
        return Queue(tuple(found), done, ids.index(asked.pair))
    start = ids.index(after) + 1 if after in within else 0
    at = next((n for n in [*range(start, len(ids)), *range(start)] if ids[n] not in done), None)
    return Queue(tuple(found), done, at)


def judge(source: Source, access: Access, asked: Asked, token: str, word: str, note: str = "") -> tuple[int, int]:
    """Record a vote ("left", "right", "tie" or "skip") or a label on the pair that the page showed; return its ids.

    Raises DatabaseError if that is not possible.
    """
    ids = pair_of(token)
    shown = reviews.texts(source.database(), Pair(*ids, "")) if ids is not None else None
    if ids is None or shown is None:
        raise DatabaseError("nothing was recorded: reload the page")
    with source.writing() as database:
        if asked.view == STILL_LOST:
            reviews.add_label(database, shown.pair, asked.reviewer, word, note)
            return ids
        review = review_of(source, access, asked)
        if review is None:
            raise DatabaseError("a review needs the reviewer's name")
        left = reviews.shown_left(review.seed, asked.reviewer, shown.pair.item)
        right = reviews.FIRST if left == reviews.SECOND else reviews.SECOND
        reviews.vote(database, review, shown.pair, asked.reviewer, {"left": left, "right": right}.get(word, word))
    return ids
