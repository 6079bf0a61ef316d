"""The share of base beyond constant replies, first wherever a share of base stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dashboard.pages import overview
from db import Tracker, queries, records
from pipelines.cli.status import _text

BASE = {"value": 0.25, "stderr": 0.02, "n": 544}
ECHO = {"value": 0.4, "stderr": 0.02, "n": 544}


@pytest.fixture
def seen(tmp_path: Path) -> records.Overview:
    """A cycle whose model reaches 95% of base, but 20% beyond constant replies; its base was measured twice."""
    with Tracker(tmp_path / "tracker.db") as tracker:
        experiment = tracker.experiment("default", base_model="a model")
        number = tracker.cycle(experiment, 1, documents="docs", corpus_hash="x")
        base = tracker.add_checkpoint(experiment, "base", "base", path="a", content_hash="a")
        made = [
            tracker.add_checkpoint(
                experiment, f"cycle-1/{kind}", kind, path=kind, content_hash=kind, parent_id=base, cycle_id=number
            )
            for kind in ("midtrained", "recovered")
        ]
        for checkpoint, value, details in (
            (base, 0.9, {}),
            (base, 0.5, {"beyond_constant": BASE, "beyond_constant_echo": ECHO}),
            (made[0], 0.3, {}),
            (made[1], 0.475, {"beyond_constant": {**BASE, "value": 0.05}, "beyond_constant_echo": ECHO}),
        ):
            tracker.add_evaluation(
                checkpoint, "instruction_following", value=value, stderr=0.01, n=800, details=details
            )
        found = queries.overview(tracker.database, experiment)
        paths = queries.paths(tracker.database, [experiment])
    assert found is not None and paths[0].of_base(paths[0].path[-1]).share == pytest.approx(0.2)
    return found


def test_it_is_the_first_share_of_base_everywhere(seen: records.Overview) -> None:
    (row,) = seen.cycles
    assert (row.of_base.whole, row.of_base.share) == (pytest.approx(0.95), pytest.approx(0.2))
    assert "ends at 20% of base beyond constant replies (95% of its whole prompts)" in row.summary
    assert row.recovered is not None
    assert row.recovered.scores.to_json()["instruction_following/beyond_constant"]["n"] == 544
    tile = next(one for one in overview._tiles(seen, {}) if one.name == "Of base, beyond constant replies")
    assert (tile.value, tile.tone) == ("20.0%", "bad")
    assert tile.note.startswith("base 25.0%, an echo 40.0%; whole prompts 95.0% (base ")
    assert "<b>20.0%</b> <small>beyond constant replies; whole prompts 95.0%</small>" in overview._cycles(seen, {})
    assert "20.0% <small>beyond constant; whole prompts 95.0%</small>" in "".join(overview._beside_row(seen, seen, ()))
    status = _text(seen, [], {})
    assert "95.0%" in status and "20.0%" in status
    assert "544 instructions" in " ".join(status.split()) and "an echo of the prompt 0.400" in " ".join(status.split())


def test_without_it_the_pages_are_as_before(seen: records.Overview) -> None:
    row = seen.cycles[0]
    assert seen.base is not None
    old = replace(seen, base=replace(seen.base, scores=replace(seen.base.scores, others={})))
    assert replace(row, base=old.base).summary.endswith("ends at 95% of base")
    assert old.of_base(row.recovered).whole is None and old.of_base(row.recovered).share == pytest.approx(0.95)
    assert "beyond constant" not in " ".join(tile.name + tile.note for tile in overview._tiles(old, {}))
    assert "an echo" not in _text(old, [], {})
