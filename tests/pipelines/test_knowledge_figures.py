"""What is known against the clean model, from a stored tracker alone, and where it is shown."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dashboard.pages import cycle, overview
from db import Tracker, cycle_evidence, queries
from db.records import CycleRow
from evals.acceptance import judge_all
from evals.acceptance_rules import parse_rule
from evals.domain_pmi import BITS, CANDIDATES, KIND, RIGHT, SUITE, blocks_of, gain
from evals.measurement import Evidence
from evals.open_book import Answered, gap_closed
from pipelines.cli.status import _gap_lines, _text
from pipelines.evaluation.knowledge_figures import as_suites, knowledge_figures
from pipelines.evaluation.stored_results import items_of, newest
from pipelines.reports.bundle import measured, to_json
from pipelines.reports.cycle_report import _known
from pipelines.reports.evidence import _items
from recovery.types import Item

TOWNS = ("Oslo", "Bergen", "Moss", "Alta", "Hamar", "Molde", "Bodø", "Narvik")
COUNT = 40


def answered(share: int, control: str = "") -> list[Item]:
    """Responses to 40 questions, two a page, of which so many in ten are right."""
    items = []
    for n in range(COUNT):
        town = TOWNS[n % 8]
        extra: dict[str, Any] = {"answers": [town]}
        reply = town if n % 10 < share else "Tromsø"
        items.append(Item(f"q{n}", f"Which town is {n}?", reply, 0.0, {}, f"page {n // 2}", extra))
    return [*items, Item("control", "Which?", "Oslo", 1.0, {}, "", {"answers": ["Oslo"], "control": True})]


def cells(known: float, seed: int) -> list[Item]:
    """Cells of 40 questions with eight answers."""
    draw = np.random.default_rng(seed)
    items = []
    for n in range(COUNT):
        bits = draw.normal(size=8) - 9
        bits[n % 8] += known
        extra = {KIND: "name", BITS: bits.round(3).tolist(), RIGHT: [n % 8]} | ({} if n else {CANDIDATES: list(TOWNS)})
        items.append(Item(f"q{n}", f"Which town is {n}?", "", 0.0, {}, f"page {n // 2}", extra))
    return items


def record(tracker: Tracker, checkpoint: int, suite: str, items: list[Item], corpus: int = 1) -> None:
    tracker.add_evaluation(checkpoint, suite, corpus=corpus, value=0.5, stderr=0.1, n=COUNT, items=items)


@pytest.fixture
def row(address: Path | str, seeding: ModuleType) -> CycleRow:
    """A cycle of which base, the mid-trained and the recovered checkpoint are measured on one corpus."""
    seeding.seed(address, cycles=1)
    with Tracker(address) as tracker:
        found = queries.overview(tracker.database, queries.experiments(tracker.database)[0].id)
        row = found.cycles[0]
        for step, share, known in ((row.base, 1, 0.0), (row.midtrained, 5, 2.0), (row.recovered, 4, 1.5)):
            record(tracker, step.checkpoint.id, "domain_knowledge", answered(share))
            record(tracker, step.checkpoint.id, SUITE, cells(known, share))
        record(tracker, row.base.checkpoint.id, "open_book", answered(7)[:-1])
    return row


def figures(tracker: Tracker, row: CycleRow) -> dict[str, Any]:
    return {
        one.checkpoint.name: knowledge_figures(tracker.database, row.base.checkpoint.id, one.checkpoint.id)
        for one in (row.midtrained, row.recovered)
    }


def test_figures_follow_from_the_stored_items(address: Path | str, row: CycleRow) -> None:
    with Tracker(address, readonly=True) as tracker:
        found = figures(tracker, row)
    recovered = found[row.recovered.checkpoint.name]
    assert recovered["pooled"]["gap_closed"] == recovered["1"]["gap_closed"]

    def responses(share: int) -> dict[str, Answered]:
        return {one.id: Answered(one.response, tuple(one.extra["answers"]), one.group) for one in answered(share)[:-1]}

    expected = gap_closed([[responses(4)]], [responses(1)], [responses(7)])
    assert expected is not None and recovered["1"]["gap_closed"] == asdict(expected)
    assert expected.value == pytest.approx(0.5) and expected.n == COUNT
    blocks = [blocks_of((one.id, one.group, one.extra) for one in cells(*of)) for of in ((0.0, 1), (1.5, 4))]
    known = gain(*blocks)
    assert recovered["1"]["likelihood"]["bits"] == pytest.approx(known.bits)
    assert recovered["1"]["likelihood"]["p_value"] == known.p_value
    assert recovered["1"]["likelihood"]["first"] == known.first
    suites = as_suites(recovered)
    assert suites["gap_closed/1"]["value"] == expected.value and suites["gap_closed/pooled"]["n"] == COUNT
    assert suites["k/1"]["value"] == known.bits and suites["k/1"]["details"]["p_value"] == known.p_value
    assert as_suites({"1": {"gap_closed": {"undefined": "no"}, "likelihood": {"undefined": "no"}}}) == {}


def test_figures_are_shown_everywhere_as_they_were_computed(address: Path | str, row: CycleRow) -> None:
    with Tracker(address) as tracker:
        found = figures(tracker, row)
        evidence = {"checkpoint": row.recovered.checkpoint.name, cycle_evidence.KNOWLEDGE: found}
        experiment = queries.experiments(tracker.database)[0].id
        tracker.cycle(experiment, 1, details={"evidence": evidence})
        known = cycle_evidence.knowledge_of(tracker.database, [row.cycle.id])
        status = queries.status_json(tracker.database, experiment)
        seen = queries.overview(tracker.database, experiment)
    gap = found[row.recovered.checkpoint.name]["pooled"]["gap_closed"]
    words = f"{gap['value']:.0%} ({gap['low']:.0%} to {gap['high']:.0%})"
    assert words.startswith("50% (")
    assert status["cycles"][0]["knowledge"][row.recovered.checkpoint.name]["pooled"]["gap_closed"] == gap
    assert words in cycle._known(evidence)
    assert any(words in str(block) for block in _known(found))
    assert words in " ".join(_text(seen, [], known).split())
    assert words in overview._cycles(seen, known)
    tile = next(one for one in overview._tiles(seen, known) if one.name == "Knowledge gap closed")
    assert tile.value == "50%"


def test_where_the_page_does_not_help_it_is_not_defined(address: Path | str, row: CycleRow) -> None:
    with Tracker(address) as tracker:
        record(tracker, row.base.checkpoint.id, "open_book", answered(1)[:-1])
        found = figures(tracker, row)
        experiment = queries.experiments(tracker.database)[0].id
        tracker.cycle(experiment, 1, details={"evidence": {cycle_evidence.KNOWLEDGE: found}})
        known = cycle_evidence.knowledge_of(tracker.database, [row.cycle.id])
        seen = queries.overview(tracker.database, experiment)
    name = row.recovered.checkpoint.name
    value, why = cycle_evidence.gap_words(found[name])
    assert value == "not defined" and "above 10 are needed" in why
    shown = " ".join(_text(seen, [], known).split())
    assert "not defined" in shown and "every checkpoint: gap closed not defined: with the passage" in shown
    assert "not defined" in overview._cycles(seen, known) and "above 10 are needed" in overview._cycles(seen, known)
    assert "0%" not in value
    assert _gap_lines({"a": (value, why), "b": (value, why)}) == [f"every checkpoint: gap closed not defined: {why}"]
    assert len(_gap_lines({"a": (value, why), "b": ("0.50", "")})) == 2


def test_what_was_not_measured_says_so(address: Path | str, row: CycleRow) -> None:
    with Tracker(address) as tracker:
        record(tracker, row.recovered.checkpoint.id, "domain_knowledge", answered(3), corpus=2)
        record(tracker, row.base.checkpoint.id, "domain_knowledge", answered(3), corpus=2)
        found = knowledge_figures(tracker.database, row.base.checkpoint.id, row.recovered.checkpoint.id)
    assert set(found) == {"1", "2", "pooled"}
    assert "not measured" in found["2"]["gap_closed"]["undefined"]
    assert found["2"]["likelihood"]["undefined"].startswith("not measured")
    assert found["pooled"]["gap_closed"]["n"] == COUNT, "of the corpora that have both"
    rows = cycle_evidence.knowledge_rows({"cycle-1/recovered": found})
    assert [one[1] for one in rows] == ["1", "2", "pooled"] and rows[1][2] == "not measured"
    told = cycle_evidence.about_knowledge({"cycle-1/recovered": found, "cycle-1/midtrained": found})
    assert told.count("Not measured: the clean model was not asked") == 1


def test_the_gate_and_a_bundle_of_its_evidence_read_the_same_cells(address: Path | str, row: CycleRow) -> None:
    with Tracker(address, readonly=True) as tracker:
        database = tracker.database
        rows = [newest(database, one.checkpoint.id)[f"{SUITE}/1"] for one in (row.base, row.recovered)]
        stored = [items_of(database, one) for one in rows]
        lines = [b"".join(map(to_json, _items(database, one, False))) for one in rows]
    bundled = [measured(one, None) for one in lines]
    verdicts = [
        judge_all([parse_rule("learnt")], Evidence({"base": {f"{SUITE}/1": a}, "student": {f"{SUITE}/1": b}}, 1))
        for a, b in (stored, bundled)
    ]
    assert verdicts[0] == verdicts[1]
    assert verdicts[0].decision == "accept" and verdicts[0].verdicts[0].n == COUNT
