"""A gate that is undecided asks more items, as many as it needs and as there are, and its cycle is judged once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from db import Decided, queries
from evals.acceptance import Decision, Verdict
from pipelines import cycle
from pipelines.cycle import start_cycles
from pipelines.cycle_plan import CyclePlan
from pipelines.evaluation.acceptance import GATE, LEFT_TO_A_PERSON
from pipelines.runtime.session import Session
from recovery.config import CycleConfig
from recovery.errors import UsageError


def test_a_cycle_with_more_extensions_than_are_allowed_is_judged(
    session: Session, small: CycleConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a judgement there was no decision to enter, at every resume."""
    decision = Decision("accept", "the gate says so", (), {}, (), 0.05, 1, "a test")
    entered: list[Decision] = []

    def enter(_: Session, number: int, found: Decision) -> Decided:
        entered.append(found)
        return Decided(1, number, "accepted", None, None)

    monkeypatch.setattr(cycle, "_extensions", lambda *_: 2)
    monkeypatch.setattr(cycle, "_judged", lambda *_: decision)
    monkeypatch.setattr(cycle, "_is_settled", lambda *_: False)
    monkeypatch.setattr(cycle, "_entered", enter)
    config = dataclasses.replace(small, gate=("ifeval >= 0.5",), gate_extend=1)
    cycle._settle(session, CyclePlan(1, config), session.base, 1)
    assert entered == [decision]


@pytest.mark.slow
def test_what_cannot_be_measured_is_not_trained_for_and_not_judged_twice(
    session: Session, small: CycleConfig, make_corpus: Callable[[str], Path]
) -> None:
    config = dataclasses.replace(small, docs=(make_corpus("First"), make_corpus("Second")), gate=("stored >= 0.2",))
    start_cycles(session, dataclasses.replace(config, gate_extend=0))
    events = queries.events(session.tracker.database, session.experiment_id, limit=500)
    judged = [e.cycle_id for e in events if e.kind in (GATE, LEFT_TO_A_PERSON)]
    before = len(judged)
    for number in (1, 2):
        assert cycle._is_settled(session, number)
    assert before >= 2
    with pytest.raises(UsageError, match="has no questions of general knowledge"):
        start_cycles(session, dataclasses.replace(config, gate=("general >= 0.5",)))


@pytest.mark.parametrize(("earlier", "n", "expected"), [(4, 2, [(6, 12)]), (0, 2, []), (0, 3, [(6, 0)])])
def test_an_undecided_gate_gives_earlier_documents_as_many_items_as_it_needs(
    session: Session, small: CycleConfig, monkeypatch: pytest.MonkeyPatch, earlier: int, n: int,
    expected: list[tuple[int, int]],
) -> None:  # fmt: skip
    """Two earlier corpora share four items, so two of one are all; without a share of their own three would be."""
    asked: list[tuple[int | None, int]] = []
    monkeypatch.setattr(Session, "learnt_cycles", lambda *_: [1, 2, 3])
    monkeypatch.setattr(cycle, "references", lambda *_: ["base"])
    monkeypatch.setattr(cycle, "evaluate", lambda _, config, **__: asked.append((config.limit, config.earlier_limit)))
    verdict = Verdict("rule", "undecided", "", "domain_knowledge_stored/1", 0.05, n=n, more=20)
    decision = Decision("undecided", "", (verdict,), {}, (), 0.05, 3, "")
    asking = dataclasses.replace(small.eval, limit=3, earlier_limit=earlier)
    config = dataclasses.replace(small, eval=asking, gate_samples=6)
    assert cycle._ask_more(session, config, [], decision, 3) is bool(expected)
    assert asked == expected


@pytest.mark.parametrize(
    ("suite", "n", "limit", "expected"),
    [
        ("instruction_following", 6, 10, 20),  # 6 of 10 prompts have checks: 6 more of them take 10 more
        ("behaviour/refusal", 2, 10, 40),
        ("behaviour/own", 10, 10, 16),
        ("behaviour/own", 9, 10, None),  # it has no more
        ("behaviour/refusal", 2, 11, None),  # nor have the prompts that it is drawn from
    ],
)
def test_an_undecided_gate_counts_the_prompts_that_were_sampled(
    session: Session, small: CycleConfig, monkeypatch: pytest.MonkeyPatch, suite: str, n: int, limit: int,
    expected: int | None,
) -> None:  # fmt: skip
    items = [
        {"id": f"q{at}", "prompt": "Why?", "response": "", "score": 1.0, "extra": {"headline": at < 6}}
        for at in range(10)
    ]
    session.tracker.add_evaluation(
        session.base.id or 0, "instruction_following", value=1.0, stderr=0.0, n=6, items=items
    )
    limits: list[int | None] = []
    monkeypatch.setattr(cycle, "references", lambda *_: ["base"])
    monkeypatch.setattr(cycle, "evaluate", lambda _, config, **__: limits.append(config.limit))
    verdict = Verdict("rule", "undecided", "", suite, 0.05, n=n, more=6)
    decision = Decision("undecided", "", (verdict,), {}, (), 0.05, 1, "")
    config = dataclasses.replace(small, eval=dataclasses.replace(small.eval, limit=limit), gate_samples=100)
    assert cycle._ask_more(session, config, [], decision, 1) is (expected is not None)
    assert limits == ([] if expected is None else [expected])
