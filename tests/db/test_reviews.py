"""Reviews on both databases: votes, their sides, tallies, and labels that stay with the responses."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from db import DatabaseError, Tracker, open_database, reviews
from db.reviews import DIFFERING, LOST, ONE_SIDED, Pair, in_order, open_review, shown_left

SUITE = "instruction_following"
ITEMS = 12
LOST_ITEMS, WON_ITEMS, SAME = {0, 1, 2}, {3}, {4, 5}


def evaluate(
    tracker: Tracker, checkpoint: int, wrong: set[int], says: str, suite: str = SUITE, corpus: int | None = None
) -> int:
    """Record an evaluation; items of SAME have the same response whoever ``says`` it."""
    items = [
        {
            "id": f"p{n}", "prompt": f"Prompt {n}", "score": float(n not in wrong), "group": f"g{n}",
            "response": "same" if n in SAME else f"{says} {n}", "verdicts": {"punctuation:no_comma": n not in wrong},
        }
        for n in range(ITEMS)
    ]  # fmt: skip
    control = items[6] | {"id": "control", "extra": {"headline": False}}
    value = 1 - len(wrong) / ITEMS
    return tracker.add_evaluation(
        checkpoint, suite, corpus=corpus, value=value, stderr=0.1, n=ITEMS, items=[*items, control]
    )


class Compared:
    """Two checkpoints with an evaluation each, and a review of them."""

    def __init__(self, tracker: Tracker, experiment: int) -> None:
        self.tracker, self.database = tracker, tracker.database
        cycle = tracker.cycle(experiment, 1)
        self.first = tracker.add_checkpoint(experiment, "base", "base", path="base")
        self.second = tracker.add_checkpoint(experiment, "end", "recovered", path="end", cycle_id=cycle)
        self.before = evaluate(tracker, self.first, WON_ITEMS, "base")
        self.after = evaluate(tracker, self.second, LOST_ITEMS, "end")
        self.review = open_review(self.database, self.first, self.second, SUITE, DIFFERING)

    def pairs(self, scope: str = DIFFERING) -> list[Pair]:
        return reviews.pairs(self.database, self.before, self.after, scope)

    def vote(self, reviewer: str, choices: Sequence[str]) -> None:
        for pair, choice in zip(self.pairs(), choices, strict=False):
            reviews.vote(self.database, self.review, pair, reviewer, choice)

    def tally(self) -> reviews.Tally:
        return reviews.tally(reviews.votes(self.database, self.first, self.second))


@pytest.fixture
def compared(tracker: Tracker, experiment: int) -> Compared:
    return Compared(tracker, experiment)


@pytest.mark.differs
def test_a_scope_holds_the_pairs_that_it_names(compared: Compared) -> None:
    assert {p.item for p in compared.pairs()} == {f"p{n}" for n in range(ITEMS) if n not in SAME}
    assert {p.item for p in compared.pairs(ONE_SIDED)} == {"p0", "p1", "p2", "p3"}
    assert {p.item for p in compared.pairs(LOST)} == {"p0", "p1", "p2"}


@pytest.mark.differs
def test_votes_of_several_reviewers_are_counted_by_item(compared: Compared) -> None:
    compared.vote("Ada", ["second", "second", "tie", "first", "skip"])
    compared.vote("Bo", ["second", "tie", "tie", "first"])
    tally = compared.tally()
    assert list(tally.scores.values()) == [1.0, 0.75, 0.5, 0.0]
    assert tally.share == pytest.approx(2.25 / 4) and tally.reviewers == ("Ada", "Bo")
    assert tally.counts == {"second": 3, "tie": 3, "first": 2, "skip": 1}
    assert tally.equal_pairs == (3, 4)
    low, high = tally.interval or (0.0, 0.0)
    assert low < 2.25 / 4 < high and high - low > 0.5  # of four items
    assert 0.7 < (tally.alpha or 0) < 1
    assert compared.tally().interval == tally.interval


@pytest.mark.differs
def test_a_later_vote_replaces_an_earlier_one_and_both_are_kept(compared: Compared) -> None:
    pair = compared.pairs()[0]
    for choice in ("first", "first", "second"):
        reviews.vote(compared.database, compared.review, pair, " Ada ", choice)
    (vote,) = reviews.votes(compared.database, compared.first, compared.second)
    assert (vote.choice, vote.reviewer, vote.item) == ("second", "Ada", pair.item)
    with compared.database.reading() as connection:
        rows = connection.exec_driver_sql("SELECT choice FROM vote ORDER BY id").fetchall()
    assert [row[0] for row in rows] == ["first", "second"]  # the same choice again is not a new vote


@pytest.mark.differs
def test_votes_and_labels_are_found_again_in_a_later_evaluation_with_the_same_responses(compared: Compared) -> None:
    lost = compared.pairs(LOST)[0]
    compared.vote("Ada", ["second"])
    reviews.add_label(compared.database, lost, "Ada", "format", "no capitals")
    before, after = compared.before, compared.after
    compared.before = evaluate(compared.tracker, compared.first, WON_ITEMS, "base")
    assert compared.pairs()[0].first_id != lost.first_id
    now = compared.pairs()[0]
    assert reviews.voted(compared.database, compared.review, compared.before, after) == {
        (now.first_id, now.second_id): {"Ada": "second"}
    }
    assert list(reviews.labelled(compared.database, compared.before, after).values()) == [{"Ada": "format"}]
    assert [one.current for one in reviews.labels(compared.database, compared.first, compared.second)] == [True]
    reviews.vote(compared.database, compared.review, now, "Ada", "tie")
    assert list(compared.tally().scores.values()) == [0.5]  # one item, however often it was evaluated
    compared.after = evaluate(compared.tracker, compared.second, LOST_ITEMS, "another")
    assert reviews.voted(compared.database, compared.review, before, compared.after) == {}
    ids = compared.first, compared.second
    assert reviews.votes(compared.database, *ids) == [], "they are about other responses"
    (kept,) = reviews.votes(compared.database, *ids, earlier=True)
    assert (kept.choice, kept.current) == ("tie", False)
    assert reviews.labels(compared.database, *ids) == [], "so are labels"
    (label,) = reviews.labels(compared.database, *ids, earlier=True)
    assert (label.label, label.current) == ("format", False)


@pytest.mark.differs
def test_labels_of_lost_answers_are_kept_by_reviewer(compared: Compared) -> None:
    pair = compared.pairs(LOST)[1]
    reviews.add_label(compared.database, pair, "Ada", "format", "x" * 3000)
    reviews.add_label(compared.database, pair, "Bo", "checker")
    reviews.add_label(compared.database, pair, "Ada", "content", " <b>no</b>\x00 ")
    found = reviews.labels(compared.database, compared.first, compared.second)
    assert [(one.reviewer, one.label, one.note.replace("�", "")) for one in found] == [
        ("Bo", "checker", ""),
        ("Ada", "content", "<b>no</b>"),
    ]
    assert (found[0].item, found[0].prompt, found[0].first_response) == ("p1", "Prompt 1", "base 1")


@pytest.mark.differs
def test_what_is_no_vote_is_refused_and_leaves_nothing(compared: Compared, experiment: int) -> None:
    pair = compared.pairs()[0]
    other = compared.pairs()[1]
    database, review = compared.database, compared.review
    with pytest.raises(DatabaseError, match="'left' is not a vote: use one of first, tie, second, skip"):
        reviews.vote(database, review, pair, "Ada", "left")
    with pytest.raises(DatabaseError, match="needs the reviewer's name"):
        reviews.vote(database, review, pair, "  ", "tie")
    for wrong in (Pair(pair.second_id, pair.first_id, ""), Pair(pair.first_id, other.second_id, ""), Pair(0, 0, "")):
        with pytest.raises(DatabaseError, match="reload the page"):
            reviews.vote(database, review, wrong, "Ada", "tie")
        with pytest.raises(DatabaseError, match="reload the page"):
            reviews.add_label(database, wrong, "Ada", "format")
    with pytest.raises(DatabaseError, match="'ugly' is not a label: use one of format, content"):
        reviews.add_label(database, pair, "Ada", "ugly")
    with pytest.raises(DatabaseError, match="no review"):
        open_review(database, compared.second, compared.first, SUITE, DIFFERING)
    assert reviews.votes(database, compared.first, compared.second) == []


@pytest.mark.differs
def test_reviewers_who_begin_at_once_get_one_review_with_one_seed(address: Path | str, compared: Compared) -> None:
    seeds: list[int] = []

    def begin() -> None:
        database = open_database(address)
        seeds.append(open_review(database, compared.first, compared.second, SUITE, ONE_SIDED).seed)
        database.close()

    threads = [threading.Thread(target=begin) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seeds) == 6 and len(set(seeds)) == 1


def test_sides_are_random_by_item_and_reviewer_and_computable_from_the_seed(compared: Compared) -> None:
    items = [f"p{n}" for n in range(2000)]
    ada, bo = ([shown_left(7, name, item) for item in items] for name in ("Ada", "Bo"))
    assert [shown_left(7, "Ada", item) for item in items] == ada
    for sides in (ada, bo, [shown_left(8, "Ada", item) for item in items]):
        assert 900 < sides.count("first") < 1100
    assert 900 < sum(a == b for a, b in zip(ada, bo, strict=True)) < 1100
    compared.vote("Ada", ["first"] * 10)
    found = reviews.votes(compared.database, compared.first, compared.second)
    assert len(found) == 10 and all(one.follows_seed for one in found)
    turned = replace(found[0], on_left="first" if found[0].on_left == "second" else "second")
    assert not turned.follows_seed


def test_the_order_is_random_and_the_same_for_all(compared: Compared) -> None:
    pairs = compared.pairs()
    once, again = in_order(pairs, 1), in_order(list(reversed(pairs)), 1)
    assert once == again and once != pairs and in_order(pairs, 2) != once
    assert sorted(once, key=pairs.index) == pairs


def test_votes_on_chosen_prompts_are_counted_apart(compared: Compared) -> None:
    compared.vote("Ada", ["second"] * 3)
    chosen = open_review(compared.database, compared.first, compared.second, SUITE, ONE_SIDED)
    for pair in compared.pairs(ONE_SIDED):
        reviews.vote(compared.database, chosen, pair, "Ada", "first")
    found = reviews.votes(compared.database, compared.first, compared.second)
    assert (reviews.tally(found).share, reviews.tally(found, scope=ONE_SIDED).share) == (1.0, 0.0)
    assert reviews.tally(found, suite="other").share is None and reviews.tally(found, suite="other").interval is None


def test_a_prompt_of_two_suites_counts_in_both_and_once_in_all(compared: Compared) -> None:
    compared.vote("Ada", ["second"] * 3)
    other = [
        evaluate(compared.tracker, checkpoint, set(), says, "behaviour/formatting")
        for checkpoint, says in ((compared.first, "base"), (compared.second, "end"))
    ]
    again = open_review(compared.database, compared.first, compared.second, "behaviour/formatting", DIFFERING)
    voted = {pair.item for pair in compared.pairs()[:3]}
    for pair in reviews.pairs(compared.database, other[0], other[1], DIFFERING):
        if pair.item in voted:
            reviews.vote(compared.database, again, pair, "Ada", "first")
    found = reviews.votes(compared.database, compared.first, compared.second)
    shares = [reviews.tally(found, suite=suite).share for suite in (SUITE, "behaviour/formatting", None)]
    assert shares == [1.0, 0.0, 0.0], "over all suites the newest vote on a prompt counts"
    assert [len(reviews.tally(found, suite=suite).scores) for suite in (SUITE, None)] == [3, 3]


def test_a_conversation_is_shown_from_where_it_may_differ(tracker: Tracker, experiment: int) -> None:
    ids = []
    for name in ("base", "end"):
        checkpoint = tracker.add_checkpoint(experiment, name, "external", path=name)
        prompt = f"user: What colour?\n\nassistant: {name} says red\n\nuser: Sure?"
        items = [{"id": "d", "prompt": prompt, "response": "Yes", "score": 1.0}]
        ids.append(tracker.add_evaluation(checkpoint, "behaviour/dialogue", value=1, stderr=0, n=1, items=items))
    (pair,) = reviews.pairs(tracker.database, *ids, DIFFERING)  # the same last response, another first one
    shown = reviews.texts(tracker.database, pair)
    assert shown is not None
    assert shown.prompt == "user: What colour?"
    assert shown.second == "assistant: end says red\n\nuser: Sure?\n\nassistant: Yes"
    assert reviews.texts(tracker.database, Pair(pair.first_id, 999, "")) is None
    same = reviews.texts(tracker.database, Pair(pair.first_id, pair.first_id, ""))
    assert same is None, "one sample is no pair"


def test_a_conversation_that_both_had_is_shown_once(compared: Compared) -> None:
    prompt = "user: What colour?\n\nassistant: red\n\nuser: Sure?"
    for checkpoint, says in ((compared.first, "yes"), (compared.second, "no")):
        items = [{"id": "d", "prompt": prompt, "response": says, "score": 1.0}]
        compared.tracker.add_evaluation(checkpoint, "behaviour/dialogue", value=1, stderr=0, n=1, items=items)
    found = reviews.answered(compared.database, 1)
    evaluations = [found[number]["behaviour/dialogue"] for number in (compared.first, compared.second)]
    (pair,) = reviews.pairs(compared.database, evaluations[0], evaluations[1], DIFFERING)
    shown = reviews.texts(compared.database, pair)
    assert shown is not None and (shown.prompt, shown.first, shown.second) == (prompt, "yes", "no")


def test_answers_about_each_corpus_are_reviewed_apart_and_are_no_preference(compared: Compared) -> None:
    tracker, database = compared.tracker, compared.database
    made = {
        (checkpoint, corpus): evaluate(tracker, checkpoint, wrong, f"{corpus}", "domain_knowledge", corpus)
        for checkpoint, wrong in ((compared.first, set[int]()), (compared.second, {0, 1}))
        for corpus in (1, 2)
    }
    answered = reviews.answered(database, 1)
    assert list(answered[compared.second])[1:] == ["domain_knowledge/1", "domain_knowledge/2"]
    ids = [answered[one]["domain_knowledge/2"] for one in (compared.first, compared.second)]
    assert ids == [made[compared.first, 2], made[compared.second, 2]]
    (pair, _) = reviews.pairs(database, ids[0], ids[1], LOST)
    review = open_review(database, compared.first, compared.second, "domain_knowledge/2", ONE_SIDED)
    reviews.vote(database, review, pair, "Ada", reviews.SECOND)
    differing = open_review(database, compared.first, compared.second, "domain_knowledge/2", DIFFERING)
    reviews.vote(database, differing, pair, "Ada", reviews.FIRST)
    reviews.add_label(database, pair, "Ada", "content")
    compared.vote("Bo", [reviews.SECOND])
    found = reviews.votes(database, compared.first, compared.second)
    assert [(one.suite, one.current, reviews.is_preference(one)) for one in found] == [
        ("domain_knowledge/2", True, False), ("domain_knowledge/2", True, False), (SUITE, True, True),
    ]  # fmt: skip
    (label,) = reviews.labels(database, compared.first, compared.second)
    assert (label.suite, label.current) == ("domain_knowledge/2", True)
    evaluate(tracker, compared.second, {0, 1}, "1", "domain_knowledge", 1)  # another corpus, measured anew
    assert all(one.current for one in reviews.votes(database, compared.first, compared.second))
