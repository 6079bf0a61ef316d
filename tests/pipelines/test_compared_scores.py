"""A cycle is compared on the same items of its last checkpoint, and a decision is stored with those scores."""

from __future__ import annotations

from typing import Any

import pytest

from db import queries
from db.cycle_evidence import current
from pipelines.evaluation.acceptance import conclude, judge_cycle, rules_of
from pipelines.runtime.session import Session
from recovery.errors import UsageError
from tests.recorded_stages import accept, made


def test_the_same_id_over_other_words_is_another_item(session: Session) -> None:
    def item(prompt: str) -> dict[str, Any]:
        return {"id": "test-0", "prompt": prompt, "response": "x", "score": 1.0}

    base = session.base.id or 0
    numbers = [
        session.tracker.add_evaluation(base, "s", value=1, stderr=0, n=1, items=[item(prompt)])
        for prompt in ("Name a boat.", "Name a fox.", "user: Name a boat.\n\nassistant: one\n\nuser: Again.")
    ]
    keys = [queries.judged_items(session.tracker.database, number)[0][0] for number in numbers]
    assert len(set(keys)) == 3
    assert queries.asked("user: A\n\nassistant: one") == queries.asked("user: A\n\nassistant: two")


def test_knowledge_is_compared_on_the_questions_that_every_cycle_was_asked(session: Session) -> None:
    def evaluated(checkpoint: int, right: dict[int, bool]) -> None:
        items = [{"id": f"q{n}", "prompt": "Who?", "response": "", "score": float(won)} for n, won in right.items()]
        control = {"id": "control", "prompt": "Who?", "response": "", "score": 1.0, "extra": {"headline": False}}
        session.tracker.add_evaluation(
            checkpoint, "domain_knowledge", corpus=1, value=sum(right.values()) / len(right), stderr=0.1, n=len(right),
            items=[*items, control],
        )  # fmt: skip

    base = session.base.id or 0
    evaluated(base, {0: True, 1: False, 2: False, 3: False})
    # The second cycle asks half of the questions.
    for number, right in ((1, {0: True, 1: True, 2: False, 3: False}), (2, {1: True, 2: False})):
        checkpoint = made(session, number)
        evaluated(checkpoint, right)
    first, second = (conclude(session, number)["knowledge"] for number in (1, 2))
    assert (first["rows"], first["chance"]) == ([{"1": 0.5}], {"1": 0.25})
    assert (second["rows"], second["chance"]) == ([{"1": 0.5}, {"1": 0.5}], {"1": 0.0})
    assert (second["kept"], second["forgetting"]) == ({"1": 1.0}, {"1": 0.0})
    evaluated(checkpoint, {7: True})
    for number in range(520):  # another tool's logs
        session.tracker.add_evaluation(base, f"mmlu_{number}", value=1.0, stderr=0.0, n=1)
    third = conclude(session, 2)["knowledge"]
    assert third["rows"] == [{"1": 0.5}, {"1": 1.0}], "no question was asked of all: the scores as they are"


def test_what_is_no_score_of_items_is_neither_compared_nor_makes_comparisons_old(session: Session) -> None:
    """Bits per byte rise as a model gets worse; a drift is a distance from one of several checkpoints."""
    tracker, base, end = session.tracker, session.base.id or 0, made(session, 1)
    for checkpoint, value in ((base, 0.9), (end, 1.1)):
        for suite in ("general", "unrelated_text"):
            items = [{"id": n, "prompt": f"p{n}", "response": "", "score": value} for n in range(3)]
            tracker.add_evaluation(checkpoint, suite, value=value, stderr=0.1, n=3, items=items)
    compared = conclude(session, 1)["compared_with"]["base"]["suites"]
    assert [one["name"] for one in compared] == ["general"]
    tracker.add_evaluation(end, "drift from cycle-1/midtrained", value=0.1, stderr=0.01, n=9)
    row = queries.overview(tracker.database, session.experiment_id).cycles[0]  # type: ignore[union-attr]
    assert current(tracker.database, row)["checkpoint"] == "cycle-1/recovered"


def test_a_cycle_without_a_checkpoint_is_not_judged(session: Session) -> None:
    """It is mid-training: a gate would compare base with itself."""
    session.tracker.cycle(session.experiment_id, 1)
    rules = rules_of(["general >= 0.5"], session)
    with pytest.raises(UsageError, match="cycle 1 has no checkpoint yet: there is nothing to judge"):
        judge_cycle(session, rules, 1)
    made(session, 1)
    assert judge_cycle(session, rules, 1).decision == "undecided"


def test_a_cycle_is_judged_again_at_the_level_of_its_gate(session: Session) -> None:
    end = made(session, 1)
    items = [{"id": n, "prompt": f"p{n}", "response": "", "score": 1.0} for n in range(9)]
    session.tracker.add_evaluation(end, "general", value=1.0, stderr=0.0, n=9, items=items)
    rules = rules_of(["general >= 0.5"], session)
    assert judge_cycle(session, rules, 1).looks == 1
    assert judge_cycle(session, rules, 1, looks=4).looks == 4
    assert judge_cycle(session, rules, 1).looks == 4


def test_a_decision_is_stored_with_the_comparisons_and_scores_of_the_last_checkpoint(session: Session) -> None:
    tracker, base = session.tracker, session.base.id or 0
    for suffix in ("", "-2"):
        end = made(session, 1, more=suffix)
        for checkpoint, value in ((base, 1.0), (end, 0.5 if suffix else 1.0)):
            items = [{"id": n, "prompt": "p", "response": "", "score": float(n < 4 * value)} for n in range(4)]
            tracker.add_evaluation(checkpoint, "general", value=value, stderr=0.1, n=4, items=items)
        if not suffix:
            assert conclude(session, 1)["checkpoint"] == "cycle-1/recovered"
    accept(session, 1)
    stored = queries.decisions(tracker.database, session.cycle_id(1))[0].evidence
    assert stored["checkpoint"] == "cycle-1/recovered-2"
    assert stored["compared_with"]["base"]["suites"][0]["second"] == 0.5
    assert {name: scores["general"]["value"] for name, scores in stored["scores"].items()} == {
        "base": 1.0, "cycle-1/recovered-2": 0.5,
    }  # fmt: skip
