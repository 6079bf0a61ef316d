"""The large database of the benchmarks: its size, its determinism, and that every page renders it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import select
from starlette.datastructures import QueryParams

from benchmarks.large_tracker import Size, make, make_facts
from dashboard.access import Access
from dashboard.pages import common, compare, cycle, geometry, live, log, overview, review, samples, tokens
from dashboard.tracker_source import Source
from db import open_readonly, queries
from db.facts import ledger
from db.schema import MetricSeries

SIZE = Size(experiments=3, cycles=2, points=20_000, samples=2_000)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "tracker.db"
    make(path, SIZE)
    return path


def test_it_is_as_large_as_asked_for(large: Path, tmp_path: Path) -> None:
    assert make(tmp_path / "again.db", SIZE)["metric_point"] == SIZE.points
    tables = ("metric_point", "metric_series", "sample", "evaluation", "token_scores", "decision", "event")
    with sqlite3.connect(large) as one, sqlite3.connect(tmp_path / "again.db") as other:
        assert one.execute("SELECT count(*) FROM metric_point").fetchone() == (SIZE.points,)
        assert one.execute("SELECT count(*) FROM sample").fetchone() == (SIZE.samples,)
        assert one.execute("SELECT count(*) FROM cycle").fetchone() == (SIZE.experiments * SIZE.cycles,)
        assert one.execute("PRAGMA foreign_key_check").fetchall() == []
        for table in tables:
            every = f"SELECT * FROM {table} ORDER BY 1, 2"
            assert one.execute(every).fetchall() == other.execute(every).fetchall(), table
    database = open_readonly(large)
    main = queries.experiment(database, "main")
    assert main is not None
    for stage in queries.stages(database, main.id):  # each series stores its newest point
        with database.reading() as connection:
            rows = connection.execute(select(MetricSeries.name, MetricSeries.last_step).filter_by(stage_id=stage.id))
            ends = dict(tuple(row) for row in rows)
        curves = queries.series(database, stage.id, max_points=None)
        assert {name: points[-1].step for name, points in curves.items()} == ends


def test_its_ledger_has_the_facts_of_every_cycle(tmp_path: Path) -> None:
    make_facts(tmp_path / "facts.db", cycles=3, questions=6, earlier=4)
    found = ledger(open_readonly(tmp_path / "facts.db"), 1)
    assert [one.cycle for one in found] == [1] * 6 + [2] * 6 + [3] * 6
    assert [len(one.fates) for one in found] == [3, 3, 2, 2, 1, 1, 2, 2] + [1] * 10


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        _ = Size(points=300).long_midtrain


def test_every_page_has_something_to_show(large: Path) -> None:
    source = Source(large)
    request = SimpleNamespace(query_params=QueryParams(""))
    shown = {
        "overview": overview._refresh(source, None, request),
        "cycle": cycle._show(source, Access(), request),
        "samples": common.text_outputs(samples.NAME, source, samples.text, request),
        "review": review._show(source, Access(), SimpleNamespace(query_params=QueryParams("reviewer=Ada"))),
        "tokens": common.text_outputs(tokens.NAME, source, tokens.text, request),
        "live": live._refresh(source, None, request),
        "geometry": geometry._show(source, request),
        "compare": compare._show(source, request),
        "log": common.text_outputs(log.NAME, source, log.text, request),
    }
    for page, outputs in shown.items():
        words = "".join(output for output in outputs if isinstance(output, str))
        assert "<h1" in words and "notice" not in words, page
