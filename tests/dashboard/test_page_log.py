"""Log page: entries by date, filters in the address, notices, and text that stays text."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import update

from dashboard.pages import log
from dashboard.tracker_source import Source
from db import Tracker, decide
from db.schema import Checkpoint, Decision, Event, Stage
from tests.dashboard.conftest import words
from tests.dashboard.test_markup import Reader

NEW_YEAR = 1_767_225_600.0  # 2026-01-01 00:00:00 UTC


def shown(address: Path | str, **asked: str) -> str:
    return words(log, Source(address), **asked)


def times(html: str) -> list[str]:
    return re.findall(r"<time[^>]*>([^<]+)</time>", html)


def rows(html: str) -> list[list[str]]:
    """Return the cells of every entry as HTML."""
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in html.partition("<tbody>")[2].split("</tr>")[:-1]]


def place(tracker: Tracker, table: Any, key: int, **values: float) -> None:
    """Set columns that the tracker takes from the clock; a time is given in seconds after the new year."""
    values = {name: value + NEW_YEAR if name.endswith("_at") else value for name, value in values.items()}
    with tracker.database.writing() as connection:
        connection.execute(update(table).where(table.id == key).values(values))


def test_everything_that_happened_is_listed_newest_first(seeding: ModuleType, address: Path | str) -> None:
    seeding.seed(address, cycles=2)
    with Tracker(address) as tracker:
        tracker.event(tracker.experiment("default"), "pruned 2 checkpoints", kind="prune")
    page = shown(address)
    assert times(page) == sorted(times(page), reverse=True) and len(times(page)) > 10
    read = Reader(page).words
    for one in ("Mid-training started", "Recovery ended", "Checkpoint ", "Decision by ", "pruned 2 checkpoints"):
        assert one in read, one
    kinds = {kind: shown(address, kind=kind) for kind in log.KINDS}
    assert sum(len(times(html)) for html in kinds.values()) == len(times(page))
    assert "pruned 2" in kinds["notes"] and "pruned 2" not in kinds["stages"]
    assert times(shown(address, kind="nothing such")) == times(page)
    assert 'href="log?experiment=default&amp;kind=stages" aria-current="true"' in kinds["stages"]


def test_every_entry_has_its_cycle_status_and_note_in_the_order_of_time(tracker: Tracker, address: Path | str) -> None:
    experiment = tracker.experiment("main")
    cycle = tracker.cycle(experiment, 7)
    base = tracker.add_checkpoint(experiment, "base", "base", path="base")
    about: dict[str, Any] = {"parent_id": base, "cycle_id": cycle, "details": {"pruned": "2026-01-02"}}
    made = tracker.add_checkpoint(experiment, "cycle-7/recovered", "recovered", path="made", **about)
    evaluation = tracker.start_stage(experiment, "evaluate")
    evaluation.progress(300, 300)
    evaluation.finish()
    midtraining = tracker.start_stage(experiment, "midtrain", cycle_id=cycle)
    midtraining.progress(20)
    midtraining.finish("plateau")
    first = tracker.start_stage(experiment, "distill", cycle_id=cycle)
    first.interrupt()
    recovery = tracker.resume_stage(first.id, from_step=0)
    recovery.progress(1234)
    recovery.fail("out of memory")
    tracker.set_latest(experiment, made)
    undone = decide(tracker.database, cycle, "rolled_back", who="Bo")
    rejected = decide(tracker.database, cycle, "rejected", who="Ann", why="it forgot too much")
    warning = tracker.event(experiment, "the disk is nearly full", kind="disk_space", level="warning", cycle_id=cycle)
    note = tracker.event(experiment, "read the report")

    # All within one minute, neither by kind nor in the order in which they were recorded.
    place(tracker, Checkpoint, base, created_at=1)
    place(tracker, Stage, evaluation.id, started_at=2, finished_at=4, wall_seconds=95)
    place(tracker, Event, note, created_at=3)
    place(tracker, Stage, midtraining.id, started_at=5, finished_at=7, wall_seconds=40)
    place(tracker, Event, warning, created_at=6)
    place(tracker, Stage, recovery.id, started_at=8, finished_at=20, wall_seconds=12)
    place(tracker, Decision, undone.id, created_at=9)
    place(tracker, Checkpoint, made, created_at=10)
    place(tracker, Decision, rejected.id, created_at=11)

    def link(stage: int, words: str) -> str:
        return f'<a href="live?experiment=main&amp;stage={stage}">{words}</a>'

    def chip(tone: str, words: str) -> str:
        return f'<span class="chip {tone}">{words}</span>'

    page = shown(address)
    assert cycle != 7
    assert times(page) == ["2026-01-01 00:00"] * 12
    assert [cells[1:] for cells in rows(page)] == [
        [f"{link(recovery.id, 'Recovery')} ended", "7", chip("bad", "failed"), "out of memory; 1,234 steps in 12 s"],
        ["Decision by Ann", "7", chip("bad", "rejected"), "it forgot too much"],
        ["Checkpoint cycle-7/recovered", "7", "", "from base; pruned on 2026-01-02"],
        ["Decision by Bo", "7", chip("bad", "rolled back"), ""],
        [f"{link(recovery.id, 'Recovery')} started", "7", "", "attempt 2"],
        [f"{link(midtraining.id, 'Mid-training')} ended", "7", chip("good", "finished"), "plateau; 20 steps in 40 s"],
        ["Disk space", "7", chip("warn", "warning"), "the disk is nearly full"],
        [f"{link(midtraining.id, 'Mid-training')} started", "7", "", ""],
        [f"{link(evaluation.id, 'Evaluation')} ended", "–", chip("good", "finished"), "1 min 35 s"],
        ["Note", "–", "", "read the report"],
        [f"{link(evaluation.id, 'Evaluation')} started", "–", "", ""],
        ["Checkpoint base", "–", "", ""],
    ]


def test_an_empty_log_says_so(tracker: Tracker, address: Path | str) -> None:
    tracker.experiment("main")
    assert "Nothing has happened yet" in shown(address)
    assert "No decisions yet" in shown(address, kind="decisions")
    assert "No such experiment" in shown(address, experiment="missing")


def test_only_the_newest_entries_are_shown(
    tracker: Tracker, address: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SHOWN", 3)
    experiment = tracker.experiment("main")
    tracker.start_stage(experiment, "evaluate").finish()
    for number in range(3):
        tracker.event(experiment, f"note {number}")
    page = shown(address)
    assert "The newest 3 entries" in page and len(times(page)) == 3
    assert "note 2" in page and "Evaluation started" not in page
