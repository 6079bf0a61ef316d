"""The ledger of facts: what became of each question over three cycles, and what counts as one fact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dashboard.pages import knowledge
from dashboard.tracker_source import Source
from db import Tracker
from db.artifacts import ARTIFACT
from db.decisions import decide
from db.facts import Fact, ledger
from db.knowledge_answers import questions
from pipelines.cli.facts import fates
from tests.dashboard.conftest import newest, words

# The answers to a question about cycle 1: at base, after mid-training, and at the ends of three cycles; x: not asked.
FATES = {
    "0 1 1 1 1": "learnt 1-3",
    "0 0 1 1 0": "learnt 1-2, lost 3",
    "0 1 0 0 1": "lost 1-2, learnt 3",
    "0 0 0 0 0": "never 1-3",
    "0 0 0 1 1": "never 1, learnt 2-3",
    "1 1 1 1 1": "known 1-3",
    "1 0 0 1 0": "lost 1, known 2, lost 3",
    "0 1 1 x 1": "learnt 1-3",
    "0 1 1 0 x": "learnt 1, lost 2",
    "x 1 1 1 0": "right 1-2, lost 3",
    "x x 0 x x": "never 1",
}


def _items(right: Mapping[str, bool], document: str = "page.md", **extra: Any) -> list[dict[str, Any]]:
    return [
        {"id": item, "prompt": f"What is {item}?", "response": "It is 7." if good else "No.", "score": 0.0,
         "verdicts": {"contains": good, "correct": False}, "group": document,
         "extra": {"answers": ["7", "seven"]} | extra}
        for item, good in right.items()
    ]  # fmt: skip


def _ask(tracker: Tracker, checkpoint: int, items: list[dict[str, Any]], corpus: int = 1, suite: str = "") -> None:
    named = suite or "domain_knowledge"
    tracker.add_evaluation(checkpoint, named, value=0.5, stderr=0.1, n=len(items), corpus=corpus, items=items)


@pytest.fixture
def made(tracker: Tracker, experiment: int) -> dict[str, int]:
    """The ids of base and of the checkpoints of three cycles, whose documents have the hashes h1, h2 and h3."""
    found = {"base": tracker.add_checkpoint(experiment, "base", "base", path="base")}
    before = found["base"]
    for number in (1, 2, 3):
        cycle = tracker.cycle(experiment, number, documents="d", corpus_hash=f"h{number}")
        for kind, name in (("midtrained", f"m{number}"), ("recovered", f"r{number}")):
            before = tracker.add_checkpoint(experiment, name, kind, path=name, cycle_id=cycle, parent_id=before)
            found[name] = before
    return found


def _ask_all(tracker: Tracker, made: Mapping[str, int]) -> None:
    for at, name in enumerate(("base", "m1", "r1", "r2", "r3")):
        answers = {case: case.split()[at] for case in FATES}
        _ask(tracker, made[name], _items({case: one == "1" for case, one in answers.items() if one != "x"}))
    _ask(tracker, made["base"], _items(dict.fromkeys(FATES, True)), suite="open_book")
    for name in ("m2", "m3"):  # on the way to an end, and no fate
        _ask(tracker, made[name], _items(dict.fromkeys(FATES, name == "m2")))


def _by_id(found: list[Fact]) -> dict[str, Fact]:
    return {next(iter(one.wordings)): one for one in found}


@pytest.mark.differs
def test_fates_over_three_cycles(tracker: Tracker, experiment: int, made: dict[str, int]) -> None:
    _ask_all(tracker, made)
    found = _by_id(ledger(tracker.database, experiment))
    assert {case: fates(one) for case, one in found.items()} == FATES
    one = found["0 1 1 x 1"]
    assert (one.cycle, one.document, one.corpus_hash, one.expected) == (1, "page.md", "h1", "7")
    assert (one.base, one.open_book, one.midtrained, one.fate) == (False, True, True, "learnt")
    assert [fate.checkpoint for fate in one.fates] == ["r1", "r3"]


def test_the_knowledge_page_says_the_same_of_every_question(
    tracker: Tracker, experiment: int, made: dict[str, int], address: Path | str
) -> None:
    _ask_all(tracker, made)
    facts, cycles = _by_id(ledger(tracker.database, experiment)), newest(tracker.database).cycles
    for number, row in enumerate(cycles, start=1):
        told = {case: fate.fate for case, one in facts.items() for fate in one.fates if fate.cycle == number}
        assert told == {one.item: one.outcome for one in questions(tracker.database, row, 1, cycles)}
        page = words(knowledge, Source(address), cycle=str(number), corpus="1")
        for outcome in ("learnt", "lost", "never", "known"):
            assert f"{outcome.capitalize()} ({list(told.values()).count(outcome)})" in page


def test_wordings_of_a_passage_are_one_fact(tracker: Tracker, experiment: int, made: dict[str, int]) -> None:
    passages = {(1, item): "The answer is 7." for item in ("a", "b", "elsewhere")}
    for name, right in (("base", {"a": False, "b": False}), ("r1", {"a": False, "b": True}), ("r2", {"a": False})):
        _ask(tracker, made[name], [*_items(right | {"c": True}), *_items({"elsewhere": True}, "other.md")])
    _ask(tracker, made["r1"], _items({"d": True}), corpus=2)  # of a later cycle's documents
    found = ledger(tracker.database, experiment, passages)
    assert [list(one.wordings) for one in found] == [["a", "b"], ["c"], ["elsewhere"]]
    assert list(found[0].wordings.values()) == ["What is a?", "What is b?"]
    assert [fates(one) for one in found] == ["learnt 1, lost 2", "known 1-2", "known 1-2"]
    assert [len(ledger(tracker.database, experiment)), found[0].passage] == [4, "The answer is 7."]


def test_what_counts(tracker: Tracker, experiment: int, made: dict[str, int]) -> None:
    """Artifacts count beside their checkpoint, the newest answers count, and nothing of a cycle that was undone."""
    about: dict[str, Any] = {"parent_id": made["r1"], "path": "f", "details": {ARTIFACT: {"file": "f"}}}
    served = tracker.add_checkpoint(experiment, "r1/q4", ARTIFACT, **about)
    _ask(tracker, made["base"], _items({"a": False}))
    _ask(tracker, made["m1"], _items({"a": True}))
    assert fates(ledger(tracker.database, experiment)[0]) == ""
    _ask(tracker, made["r1"], _items({"a": False}))
    _ask(tracker, made["r1"], [*_items({"a": True}), *_items({"control": True}, control=True)])
    for name in ("r2", "r3"):
        _ask(tracker, made[name], _items({"a": name == "r3"}))
    _ask(tracker, served, _items({"a": False}))
    (one,) = ledger(tracker.database, experiment)
    assert (fates(one), one.fate) == ("learnt 1, lost r1/q4, lost 2, learnt 3", "learnt")
    tracker.set_latest(experiment, made["r3"])
    decide(tracker.database, tracker.cycle(experiment, 3), "rolled_back", who="Ada", why="worse")
    assert fates(ledger(tracker.database, experiment)[0]) == "learnt 1, lost r1/q4, lost 2"
    assert ledger(tracker.database, tracker.experiment("empty")) == []
