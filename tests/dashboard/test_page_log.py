"""Log page: entries by date, filters in the address, notices, and text that stays text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dashboard.pages import common, log
from dashboard.tracker_source import Source
from db import Tracker
from tests.dashboard.test_markup import HOSTILE, Reader
from tests.dashboard.test_pages import Request


@pytest.fixture
def tracker(address: Path | str) -> Iterator[Tracker]:
    with Tracker(address) as opened:
        yield opened


def shown(address: Path | str, **asked: str) -> str:
    source = Source(address)
    outputs = common.text_outputs(log.NAME, source, log.renderer(source), Request(asked))  # type: ignore[arg-type]
    return str(outputs[2])


def times(html: str) -> list[str]:
    return re.findall(r"<time[^>]*>([^<]+)</time>", html)


def test_everything_that_happened_is_listed_newest_first(seeding: ModuleType, address: Path | str) -> None:
    seeding.seed(address, cycles=2)
    with Tracker(address) as tracker:
        tracker.event(tracker.experiment("default"), "pruned 2 checkpoints", kind="prune")
    page = shown(address)
    assert times(page) == sorted(times(page), reverse=True) and len(times(page)) > 10
    words = Reader(page).words
    for one in ("Mid-training started", "Recovery ended", "Checkpoint ", "Decision by ", "pruned 2 checkpoints"):
        assert one in words, one
    kinds = {kind: shown(address, kind=kind) for kind in log.KINDS}
    assert sum(len(times(html)) for html in kinds.values()) == len(times(page))
    assert "pruned 2" in kinds["notes"] and "pruned 2" not in kinds["stages"]
    assert times(shown(address, kind="nothing such")) == times(page)
    assert 'href="log?experiment=default&amp;kind=stages" aria-current="true"' in kinds["stages"]


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


def test_hostile_text_stays_text(tracker: Tracker, address: Path | str) -> None:
    experiment = tracker.experiment(HOSTILE, base_model=HOSTILE)
    cycle = tracker.cycle(experiment, documents=HOSTILE)
    tracker.start_stage(experiment, "distill", cycle_id=cycle).fail(HOSTILE)
    tracker.add_checkpoint(experiment, HOSTILE, "base", path=HOSTILE)
    tracker.event(experiment, HOSTILE, kind=HOSTILE, level=HOSTILE)
    read = Reader(shown(address))
    assert not read.tags & {"script", "img"}
    assert not any(name.startswith("on") or name == "src" for name in read.attributes)
    assert read.words.count(HOSTILE) >= 4
