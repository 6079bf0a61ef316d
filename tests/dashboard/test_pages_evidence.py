"""Cycle and Samples pages: what scores, tests and judgements are of, and what the pages say about it."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dashboard import downloads
from dashboard.pages import cycle, overview, samples
from dashboard.tracker_source import Source
from db import Tracker, cycle_evidence, queries, reviews
from db.records import CycleRow, Overview
from tests.dashboard.conftest import newest, words


def newest_row(source: Source) -> tuple[Overview, CycleRow]:
    """Return the newest experiment and its last cycle."""
    found = newest(source.database())
    return found, found.cycles[-1]


def test_samples_are_those_that_the_score_counts(one_cycle: Any, seeding: ModuleType, source: Source) -> None:
    _, row = newest_row(source)
    made = 0
    with Tracker(one_cycle.address) as tracker:
        for step, passed in ((row.base, True), (row.midtrained, False), (row.recovered, False)):
            assert step is not None
            items = [seeding.sample(at, passed=passed) for at in range(5)]
            items[4]["extra"] = {"rule": "refusal", "headline": False}
            made = tracker.add_evaluation(
                step.checkpoint.id, "instruction_following", value=float(passed), stderr=0.1, n=4, items=items
            )
    for fate in ("still-lost", "all", "lost"):
        assert "4 prompts" in words(samples, source, show=fate), fate
    rows = list(downloads._samples(source, made))
    assert [one["headline"] for one in rows] == [True] * 4 + [False]


def test_downloaded_scores_of_one_suite_can_be_told_apart(one_cycle: Any, source: Source) -> None:
    _, row = newest_row(source)
    assert row.recovered is not None
    with Tracker(one_cycle.address) as tracker:
        again = tracker.add_evaluation(row.recovered.checkpoint.id, "general", value=0.5, stderr=0.1, n=9)
    found = [one for one in downloads._scores(source, None) if one["suite"] == "general" and one["kind"] == "recovered"]
    assert [one["newest"] for one in found] == [False, True]
    assert found[1]["evaluation"] == again and found[0]["created_at"] < found[1]["created_at"]
    assert set(found[0]) == set(downloads._SCORED)
    corpora = [one for one in downloads._scores(source, None) if one["suite"].startswith("domain_knowledge/")]
    assert corpora and all(one["newest"] for one in corpora), "each corpus is a suite of its own"


def judge(tracker: Tracker, row: CycleRow, **verdict: Any) -> None:
    """Record a judgement of the gate on the newest evaluations of instruction following."""
    used = {}
    for name, step in (("student", row.end), ("base", row.base)):
        assert step is not None
        found = queries.evaluations(tracker.database, step.checkpoint.id, suites=("instruction_following",))
        used[name] = {"instruction_following": [found[0].id]}
    verdict = {
        "rule": "ifeval >= 0.9*base", "verdict": "pass", "suite": "instruction_following", "reason": "it holds",
        "student": 0.9, "reference": 0.95, "bound": 0.85, "estimate": 0.05, "low": 0.01, "high": 0.09, "n": 1000,
        "paired": True,
    } | verdict  # fmt: skip
    data = {"verdicts": [verdict], "evaluations": used, "method": "one-sided bounds", "decision": "accept"}
    experiment = queries.experiments(tracker.database)[0].id
    tracker.event(experiment, "judged", kind="gate", cycle_id=row.cycle.id, data=data)


@pytest.mark.parametrize("side", ["base", "recovered"])
def test_a_judgement_older_than_the_newest_evaluation_says_so(one_cycle: Any, source: Source, side: str) -> None:
    _, row = newest_row(source)
    step = getattr(row, side)
    with Tracker(one_cycle.address) as tracker:
        judge(tracker, row)
        tracker.add_evaluation(step.checkpoint.id, "general", value=0.5, stderr=0.1, n=9)
        assert cycle_evidence.OUTDATED not in cycle._gate(source, row), "another suite"
        tracker.add_evaluation(step.checkpoint.id, "instruction_following", value=0.6, stderr=0.1, n=9)
        card = cycle._gate(source, row)
        assert cycle_evidence.OUTDATED in card and "recover gate 1" in card and "ifeval" in card
        judge(tracker, row)
        assert cycle_evidence.OUTDATED not in cycle._gate(source, row)


def test_the_gate_says_what_each_verdict_rests_on(one_cycle: Any, source: Source) -> None:
    _, row = newest_row(source)
    nothing = dict.fromkeys(("student", "reference", "bound", "estimate", "low", "high")) | {"n": 0, "paired": False}
    with Tracker(one_cycle.address) as tracker:
        judge(tracker, row)
        card = cycle._gate(source, row)
        assert ">it holds<" in card and "instruction_following" in card
        for reason in ("<b>: not measured", "no votes yet"):
            judge(tracker, row, verdict="undecided", reason=f"ifeval >= 0.9*base: undecided: {reason}", **nothing)
            card = cycle._gate(source, row)
            assert f">{escape(reason)}<" in card and ">undecided<" in card


def test_scores_of_different_numbers_of_prompts_have_no_ratio(
    one_cycle: Any, seeding: ModuleType, source: Source
) -> None:
    found, row = newest_row(source)
    assert row.recovered is not None
    assert "/" not in types_column(source, "n")[0]
    assert not row.of_base.mismatch and "beyond" not in row.summary and "% of base" in row.summary
    details = {f"id/{check}": {"value": 0.9, "stderr": 0.1, "n": 50} for check in seeding.CHECKS}
    with Tracker(one_cycle.address) as tracker:
        tracker.add_evaluation(
            row.recovered.checkpoint.id, "instruction_following", value=0.9, stderr=0.1, n=50, details=details
        )
    found, row = newest_row(source)
    assert types_column(source, "n") == ["1,000 / 1,000 / 50"] * len(seeding.CHECKS)
    asked = "base was asked 1,000 prompts, this one 50"
    assert row.of_base.share is None and f"not compared with base: {asked}" in row.summary
    assert asked in overview._cycles(found, {})
    assert any("no share" in tile.note for tile in overview._tiles(found, {}))


def types_column(source: Source, name: str) -> list[str]:
    """Return the cells of a column of the card Instruction types."""
    card = cycle._types(source, *newest_row(source), {})
    return re.findall(f'data-name="{re.escape(name)}">([^<]*)<', card)


def test_the_certificate_is_on_the_page_of_its_cycle_alone(address: Path | str, seeding: ModuleType) -> None:
    seeded = seeding.seed(address, cycles=2, items=2, steps=2)
    source, parts = Source(seeded.address), [
        {"what": "its facts are back", "verdict": "shown", "says": "0.1 bits <b>left</b>"},
        {"what": "its text is gone", "verdict": "not shown", "says": "of 3 beginnings"},
    ]  # fmt: skip
    data = {"names": ["notes/*"], "documents": [f"notes/{n}.md" for n in range(30)], "before": "b", "after": "a",
            "verdict": "not shown", "parts": parts, "not_proven": "Not proven: copies."}  # fmt: skip
    with Tracker(seeded.address) as tracker:
        kind = cycle_evidence.CERTIFICATE
        tracker.event(seeded.experiment, "withdrawn", kind=kind, cycle_id=seeded.cycles[1], data=data)
    found, last = newest_row(source)
    assert "withdrawal" not in cycle.cards(source, found, found.cycles[0])
    card = cycle._withdrawn(source, last)
    assert card in cycle.cards(source, found, last)
    told = cycle_evidence.certificate(queries.events(source.database(), seeded.experiment, kind=kind)[0])
    assert "notes/24.md and 5 more. Measured on a on " in told.about
    cells = [word for part in told.parts for word in part]
    for said in (told.title, told.about, told.not_proven, *cells):
        assert f">{escape(said)}<" in card, said
    assert card.count('class="chip good"') == card.count('class="chip warn"') == 1


def test_the_card_of_tests_names_the_test_of_clustered_items(one_cycle: Any, source: Source) -> None:
    one = {"name": "domain_knowledge/1", "first": 0.5, "second": 0.6, "difference": 0.1, "low": 0.0, "high": 0.2,
           "lost": 9, "won": 2, "p_value": 0.2, "p_adjusted": 0.2, "n": 1000}  # fmt: skip
    card = cycle._tests(source, *newest_row(source), {"compared_with": {"base": {"suites": [one]}}})
    assert "exact McNemar test (the clustered score test where items share a group)" in card


def test_the_reader_chooses_the_suite_of_types_and_samples(one_cycle: Any, seeding: ModuleType) -> None:
    """With prompts of both suites the pages showed the model's own, without a word of IFEval's."""
    source = Source(one_cycle.address)
    found, row = newest_row(source)
    alone = cycle._types(source, found, row, {})
    assert "Instruction types: instruction_following" in alone and "suite=ifeval" not in alone
    assert 'name="suite"' not in words(samples, source) and "of instruction_following" in words(samples, source)
    details = {"id/two words": {"value": 0.9, "stderr": 0.1, "n": 3}}
    with Tracker(one_cycle.address) as tracker:
        for step, passed in ((row.base, True), (row.recovered, False)):
            assert step is not None
            items = [seeding.sample(at, passed=passed) for at in range(3)]
            tracker.add_evaluation(
                step.checkpoint.id, "ifeval", value=0.9, stderr=0.1, n=3, items=items, details=details
            )
    both = cycle.cards(source, found, row)
    assert "Instruction types: instruction_following" in both and "&amp;suite=ifeval#types" in both
    chosen = cycle.cards(source, found, row, "ifeval")
    assert "Instruction types: ifeval" in chosen and "show=all&amp;suite=ifeval&amp;type=two%20words" in chosen
    assert "6 prompts of instruction_following" in words(samples, source, show="all")
    shown = words(samples, source, show="still-lost", suite="ifeval")
    assert "3 prompts of ifeval" in shown and '<option value="ifeval" selected>' in shown
    assert "show=all&amp;suite=ifeval" in shown and "cycle=1&amp;suite=ifeval" in shown
    assert "instruction_following" in words(samples, source, suite="nonsense")


def test_a_stage_that_only_one_cycle_has_is_named_beside_the_settings(one_cycle: Any) -> None:
    """While the recovery had not begun, both cycles were said to have used the same settings."""
    source = Source(one_cycle.address)
    settings = {"docs": "./corpora/q1", "lr": 1e-3, "replay": 0.0, "steps": 2}

    def card() -> str:
        found, row = newest_row(source)
        stages = queries.stages(source.database(), found.experiment.id, cycle_id=row.cycle.id)
        return cycle._settings(source, found, row, stages)

    with Tracker(one_cycle.address) as tracker:
        cycle_id = tracker.cycle(one_cycle.experiment, 2)
        assert "Only cycle 1 has: mid-training. Only cycle 1 has: recovery." in card() and "same" not in card()
        with tracker.start_stage(one_cycle.experiment, "midtrain", cycle_id=cycle_id, config=settings):
            pass
        assert "None in mid-training: both cycles used the same settings. Only cycle 1 has: recovery." in card()
        recovery = {"teacher": "base", "knowledge_teacher": "midtrained", "lr": 3e-4}
        with tracker.start_stage(one_cycle.experiment, "distill", cycle_id=cycle_id, config=recovery):
            pass
        assert "Only" not in card() and '<code>steps</code></td><td data-name="Before">2<' in card()


def test_votes_against_the_model_before_are_on_the_page(address: Path | str, seeding: ModuleType) -> None:
    seeding.seed(address, cycles=2, items=6, steps=2)
    source = Source(address)
    found, row = newest_row(source)
    assert row.before is not None and row.recovered is not None
    pair = (row.before.checkpoint.id, row.recovered.checkpoint.id)
    suite = "instruction_following"
    with Tracker(address) as tracker:
        for at, number in enumerate(pair):
            items = [seeding.sample(0, passed=bool(at))]
            tracker.add_evaluation(number, suite, value=float(at), stderr=0.1, n=1, items=items)
        newest = reviews.answered(tracker.database, found.experiment.id)
        review = reviews.open_review(tracker.database, *pair, suite, reviews.DIFFERING)
        (asked,) = reviews.pairs(tracker.database, *(newest[one][suite] for one in pair), reviews.DIFFERING)
        reviews.vote(tracker.database, review, asked, "Ada", reviews.SECOND)
    card = cycle._review(source, found, row)
    assert "the model before" in card and "100.0%" in card and card.count("<tr>") == 1 + 3
    assert "the model before" not in cycle._review(source, found, found.cycles[0]), "it is base"
