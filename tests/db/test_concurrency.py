"""Concurrent training, evaluation and dashboard processes: no lock errors, no lost data."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from db import Tracker, open_readonly, queries
from tests.db.conftest import require_success, start

pytestmark = pytest.mark.differs
STEPS = 400
TRAIN = f"""
import sys
from db import Tracker
with Tracker(sys.argv[1], flush_seconds=0.01, heartbeat_seconds=0.02) as tracker:
    with tracker.start_stage(tracker.experiment("shared"), "distill", steps_total={STEPS}) as stage:
        for step in range(1, {STEPS} + 1):
            stage.log(step, {{"loss": float(step), "entropy": 0.5, "lr": 0.1}})
            if step % 10 == 0:
                tracker.flush()
"""
EVALUATE = """
import sys
from db import Tracker
with Tracker(sys.argv[1], flush_seconds=0.01, heartbeat_seconds=0.02) as tracker:
    experiment = tracker.experiment("shared")
    with tracker.start_stage(experiment, "evaluate") as stage:
        for number in range(20):
            checkpoint = tracker.add_checkpoint(experiment, f"c{number}", "external", path="x", stage_id=stage.id)
            items = [{"id": n, "prompt": "p" * 200, "response": "r" * 200, "score": 1.0} for n in range(200)]
            tracker.add_evaluation(checkpoint, "general", value=1.0, stderr=0.0, n=200, items=items)
            tracker.set_latest(experiment, checkpoint)
            tracker.event(experiment, "evaluated")
"""


def test_two_writers_and_a_reader(address: Path | str) -> None:
    Tracker(address).close()
    writers = [start(code, address) for code in (TRAIN, EVALUATE)]
    database = open_readonly(address)
    reads = 0
    while any(writer.poll() is None for writer in writers):
        for experiment in queries.experiments(database):
            queries.overview(database, experiment.id)
            for stage in queries.stages(database, experiment.id):
                queries.series(database, stage.id)
            reads += 1
    require_success(writers)
    assert reads > 0
    (experiment,) = queries.experiments(database)
    stages = {stage.kind: stage for stage in queries.stages(database, experiment.id)}
    curves = queries.series(database, stages["distill"].id, max_points=None)
    assert {name: len(points) for name, points in curves.items()} == dict.fromkeys(("loss", "entropy", "lr"), STEPS)
    assert [stage.status for stage in stages.values()] == ["finished", "finished"]
    found = queries.checkpoints(database, experiment.id)
    assert [queries.samples(database, queries.evaluations(database, c.id)[0].id).total for c in found] == [200] * 20


def test_several_processes_make_the_same_new_database(address: Path | str) -> None:
    code = "import sys; from db import Tracker; Tracker(sys.argv[1]).experiment('one')"
    require_success([start(code, address) for _ in range(4)])
    assert len(queries.experiments(open_readonly(address))) == 1


def test_threads_may_log_to_one_stage(address: Path | str) -> None:
    with Tracker(address, flush_seconds=0.01) as tracker:
        stage = tracker.start_stage(tracker.experiment("x"), "distill")
        threads = [
            threading.Thread(target=lambda n=n: [stage.log(step, {f"m{n}": 1.0}) for step in range(200)])
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stage.finish()
        curves = queries.series(tracker.database, stage.id, max_points=None)
    assert [len(points) for points in curves.values()] == [200] * 4
