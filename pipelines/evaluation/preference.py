"""Blind votes of reviewers as an evaluation, which the gate judges and a bundle proves like any other."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping

from db import Tracker, records, reviews
from evals.acceptance_rules import PREFERENCE
from evals.statistics import score_of
from pipelines.evaluation.stored_results import newest

_FOR_FIRST = {reviews.FIRST: reviews.SECOND, reviews.SECOND: reviews.FIRST}
_POINTS = {"student": 1.0, "tie": 0.5, "rival": 0.0}


def share_of(votes: Mapping[str, str]) -> float | None:
    """Return the score of an item: the mean of its votes for the student, without the skipped; None without a vote."""
    return reviews.mean_vote(votes.values(), _POINTS)


def store_votes(tracker: Tracker, student: records.Checkpoint, rival: records.Checkpoint, name: str) -> None:
    """Record the votes on a checkpoint against another as the suite "preference/NAME", unless they are recorded.

    An item's score is the mean of its votes for the student, a tie as one half. Votes that are no
    preference (:func:`db.reviews.is_preference`) are left out. Without any vote nothing is recorded.
    """
    first, second = sorted((student.id, rival.id))
    found = [one for one in reviews.votes(tracker.database, first, second) if reviews.is_preference(one)]
    about = {one.key: one for one in found}
    votes = {
        key: {who: _named(choice, student.id == second) for who, choice in sorted(choices.items())}
        for key, choices in reviews.tally(found).choices.items()
    }
    scores = {key: share for key in votes if (share := share_of(votes[key])) is not None}
    content = hashlib.sha256(json.dumps({key: votes[key] for key in scores}, sort_keys=True).encode()).hexdigest()
    known = newest(tracker.database, student.id).get(f"{PREFERENCE}/{name}")
    if known.details.get("votes") == content if known is not None else not scores:
        return
    score = score_of(list(scores.values()), [about[key].group for key in scores]) if scores else None
    items = [
        {
            "id": about[key].item,
            "group": about[key].group,
            "prompt": about[key].prompt,
            "response": about[key].second_response if student.id == second else about[key].first_response,
            "score": value,
            "extra": {"votes": votes[key]},
        }
        for key, value in scores.items()
    ]
    tracker.add_evaluation(
        student.id,
        f"{PREFERENCE}/{name}",
        value=score.value if score is not None else math.nan,
        stderr=score.stderr if score is not None else math.nan,
        n=len(items),
        name="share",
        details={"votes": content, "rival": rival.name},
        items=items,
    )


def _named(choice: str, student_second: bool) -> str:
    """Return a choice in the words of the gate: "student", "rival", "tie" or "skip"."""
    choice = choice if student_second else _FOR_FIRST.get(choice, choice)
    return {reviews.SECOND: "student", reviews.FIRST: "rival"}.get(choice, choice)
