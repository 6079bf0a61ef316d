"""Tracker writes: life cycle of stages, points, checkpoints, evaluations, decisions."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from db import DatabaseError, StageBusyError, StageRecorder, Tracker, liveness, queries
from db.schema import Stage
from tests.db.conftest import alter, require_success, start, wait_until


def points(tracker: Tracker, stage_id: int, name: str) -> list[tuple[int, float | None]]:
    found = queries.series(tracker.database, stage_id, [name], max_points=None).get(name, [])
    return [(point.step, point.value) for point in found]


def read(tracker: Tracker, stage_id: int) -> Any:
    stage = queries.stage(tracker.database, stage_id)
    assert stage is not None
    return stage


def test_experiments_and_cycles_are_got_or_made(tracker: Tracker) -> None:
    first = tracker.experiment("default", base_model="miniature")
    assert tracker.experiment("default") == first
    one = tracker.cycle(first, 1, documents="q1")
    two = tracker.cycle(first, 2)
    assert tracker.cycle(first, 1, corpus_hash="abc") == one
    found = queries.cycles(tracker.database, first)
    assert [(c.id, c.number, c.documents, c.corpus_hash) for c in found] == [(one, 1, "q1", "abc"), (two, 2, "", "")]


@pytest.mark.differs
def test_points_arrive_without_a_flush(tracker: Tracker, experiment: int) -> None:
    stage = tracker.start_stage(experiment, "distill", steps_total=3)
    stage.log(1, {"loss": 2.0})
    stage.log(2, {"loss": 1.0})
    wait_until(lambda: len(points(tracker, stage.id, "loss")) == 2)
    assert points(tracker, stage.id, "loss") == [(1, 2.0), (2, 1.0)]
    assert read(tracker, stage.id).steps_done == 2


@pytest.mark.differs
def test_a_step_logged_twice_keeps_its_last_value_and_what_is_not_finite_is_a_gap(
    tracker: Tracker, experiment: int
) -> None:
    stage = tracker.start_stage(experiment, "distill")
    for points_at_once in ([(1, 2.0), (1, 3.0)], [(1, 4.0), (2, math.nan), (3, math.inf)]):
        for step, value in points_at_once:
            stage.log(step, {"loss": value})
        tracker.flush()
    assert points(tracker, stage.id, "loss") == [(1, 4.0), (2, None), (3, None)]


def test_a_stage_ends_as_its_block_does(tracker: Tracker, experiment: int) -> None:
    with tracker.start_stage(experiment, "distill", steps_total=2) as done:
        done.log(2, {"loss": 1.0})
        done.finish("recovered")
    with pytest.raises(KeyboardInterrupt), tracker.start_stage(experiment, "distill") as stopped:
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="broke"), tracker.start_stage(experiment, "distill") as broken:
        raise ValueError("it broke")
    found = [read(tracker, stage.id) for stage in (done, stopped, broken)]
    assert [stage.status for stage in found] == ["finished", "interrupted", "failed"]
    assert [stage.stopped for stage in found] == ["recovered", "interrupted", "failed"]
    assert found[2].error == "it broke"
    assert all(stage.finished_at is not None and stage.wall_seconds > 0 for stage in found)


def test_usage_adds_up_and_memory_keeps_its_peak(tracker: Tracker, experiment: int) -> None:
    stage = tracker.start_stage(experiment, "distill")
    stage.usage(tokens_sampled=10, peak_memory_bytes=700)
    tracker.flush()
    stage.usage(tokens_sampled=5, tokens_trained=3_000_000_000, peak_memory_bytes=400)
    stage.finish()
    found = read(tracker, stage.id)
    assert (found.tokens_sampled, found.tokens_trained, found.peak_memory_bytes) == (15, 3_000_000_000, 700)


def test_points_and_their_tokens_are_written_together(tracker: Tracker, experiment: int) -> None:
    """A kill between the two would let a resumed stage take tokens from its count that were never added."""
    stage = tracker.start_stage(experiment, "distill")
    stage.log(1, {"tokens_trained": 100.0}, {"tokens_trained": 100})
    tracker.flush()
    assert read(tracker, stage.id).tokens_trained == 100
    stage.interrupt()
    tracker.resume_stage(stage.id, from_step=0).finish()
    assert read(tracker, stage.id).tokens_trained == 0


def test_a_resumed_stage_records_a_suite_once(tracker: Tracker, experiment: int) -> None:
    """It was killed after it had recorded one of them."""
    checkpoint = tracker.add_checkpoint(experiment, "base", "base", path="x")
    stage = tracker.start_stage(experiment, "evaluate")
    score = {"value": 0.5, "stderr": 0.1, "n": 1}
    first = tracker.add_evaluation(checkpoint, "ifeval", **score, items=[{"id": "a"}], by=stage)
    stage.interrupt()
    again = tracker.resume_stage(stage.id, from_step=0)
    assert tracker.add_evaluation(checkpoint, "ifeval", **score, items=[{"id": "a"}], by=again) == first
    tracker.add_evaluation(checkpoint, "ifeval", **score, corpus=1, by=again)
    again.finish()
    assert [e.corpus for e in queries.stage_evaluations(tracker.database, stage.id)] == [None, 1]


def test_details_known_later_are_added(tracker: Tracker, experiment: int) -> None:
    stage = tracker.start_stage(experiment, "evaluate", config={"a": 1})
    stage.describe(details={"torch": "2.13"}, steps_total=40, folder=Path("state"))
    stage.progress(7)
    tracker.flush()
    found = read(tracker, stage.id)
    assert (found.config, found.details, found.folder) == ({"a": 1}, {"torch": "2.13"}, "state")
    assert (found.steps_done, found.steps_total) == (7, 40)


@pytest.mark.differs
def test_resuming_forgets_what_came_after(tracker: Tracker, experiment: int) -> None:
    stage = tracker.start_stage(experiment, "distill", steps_total=20)
    for step in range(1, 11):
        stage.log(step, {"loss": float(step), "tokens_trained": 100.0, **({"late": 1.0} if step > 8 else {})})
        stage.usage(tokens_trained=100, tokens_sampled=10)
    stage.interrupt()
    before = read(tracker, stage.id).wall_seconds
    tracker.add_token_scores(stage.id, 9, [{"tokens": ["a"], "values": {"reverse_kl": [0.1]}}])
    again = tracker.resume_stage(stage.id, from_step=6)
    assert queries.series(tracker.database, stage.id, max_points=None)["loss"][-1].step == 6
    again.log(7, {"loss": 70.0, "tokens_trained": 100.0})
    again.usage(tokens_trained=100)
    again.finish()
    assert points(tracker, stage.id, "loss") == [(n, float(n)) for n in range(1, 7)] + [(7, 70.0)]
    assert queries.metric_names(tracker.database, stage.id) == ["loss", "tokens_trained"]
    assert queries.token_numbers(tracker.database, stage.id) == []
    found = read(tracker, stage.id)
    assert (found.attempts, found.steps_done, found.status) == (2, 7, "finished")
    assert (found.tokens_trained, found.tokens_sampled) == (700, 100), "repeated steps count once, other tokens stay"
    assert found.wall_seconds > before


def test_what_cannot_be_resumed(tracker: Tracker, experiment: int) -> None:
    stage = tracker.start_stage(experiment, "distill")
    with pytest.raises(StageBusyError, match=f"process {os.getpid()}"):
        tracker.resume_stage(stage.id, from_step=0)
    stage.finish()
    with pytest.raises(DatabaseError, match="finished"):
        tracker.resume_stage(stage.id, from_step=0)
    with pytest.raises(DatabaseError, match="no stage 999"):
        tracker.resume_stage(999, from_step=0)


@pytest.mark.differs
def test_a_silent_stage_is_shown_as_interrupted_then_reaped(tracker: Tracker, experiment: int) -> None:
    stage = tracker.start_stage(experiment, "distill")
    stage.interrupt()
    alter(tracker, Stage, status="running", heartbeat_at=time.time() - liveness.STALE_SECONDS - 1)
    assert read(tracker, stage.id).status == "interrupted"
    assert queries.running_stage(tracker.database) is None
    assert tracker.reap_dead_stages() == [stage.id]
    assert tracker.reap_dead_stages() == []


def test_a_killed_process_is_noticed_at_once(tracker: Tracker, experiment: int, address: Path | str) -> None:
    code = (
        "import sys; from db import Tracker\n"
        "stage = Tracker(sys.argv[1]).start_stage(int(sys.argv[2]), 'distill')\n"
        "print(stage.id, flush=True); sys.stdin.read()"
    )
    child = start(code, address, experiment)
    assert child.stdout is not None
    stage_id = int(child.stdout.readline())
    assert read(tracker, stage_id).status == "running"
    child.kill()  # it stays a zombie until it is waited for
    wait_until(lambda: read(tracker, stage_id).status != "running")
    assert read(tracker, stage_id).status == "interrupted"
    child.communicate()
    with tracker.resume_stage(stage_id, from_step=0):
        assert read(tracker, stage_id).status == "running"


def test_a_process_id_given_to_another_process_does_not_keep_a_stage_alive() -> None:
    here = liveness.place()
    assert not liveness.has_ended(here, os.getpid(), liveness.started(os.getpid()))
    assert liveness.has_ended(here, os.getpid(), "1")
    assert not liveness.has_ended("elsewhere", os.getpid(), "1")


@pytest.mark.differs
def test_who_lost_a_stage_writes_no_more(tracker: Tracker, experiment: int) -> None:
    stage = tracker.start_stage(experiment, "distill")
    alter(tracker, Stage, lease="another process", steps_done=50)
    stage.log(1, {"loss": 1.0})
    tracker.flush()
    with pytest.raises(StageBusyError, match="taken over"):
        stage.log(2, {"loss": 1.0})
    with pytest.raises(StageBusyError):
        stage.finish()
    found = read(tracker, stage.id)
    assert (found.status, found.steps_done) == ("running", 50)
    assert points(tracker, stage.id, "loss") == []


def test_a_stage_taken_for_dead_comes_back(tracker: Tracker, experiment: int) -> None:
    stage = tracker.start_stage(experiment, "distill")
    alter(tracker, Stage, status="interrupted", finished_at=1.0)
    stage.log(1, {"loss": 1.0})
    tracker.flush()
    found = read(tracker, stage.id)
    assert (found.status, found.finished_at) == ("running", None)


def test_the_heartbeat_goes_on_while_nothing_is_logged(tracker: Tracker, experiment: int) -> None:
    stage = tracker.start_stage(experiment, "distill")
    alter(tracker, Stage, heartbeat_at=1.0)
    wait_until(lambda: read(tracker, stage.id).silent_seconds < liveness.STALE_SECONDS)


def test_points_wait_while_the_database_cannot_be_written(
    tracker: Tracker, experiment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = tracker.start_stage(experiment, "distill")
    working = tracker._writer._write

    def full(*_: object) -> None:
        raise DatabaseError("tracker.db cannot be written: disk is full")

    monkeypatch.setattr(tracker._writer, "_write", full)
    stage.log(1, {"loss": 1.0})
    stage.usage(tokens_sampled=4)
    with pytest.raises(DatabaseError, match="disk is full"):
        wait_until(lambda: stage.log(2, {"loss": 2.0}))  # it shows after a few tries
    with pytest.raises(DatabaseError, match="disk is full"):
        tracker.flush()
    monkeypatch.setattr(tracker._writer, "_write", working)
    stage.finish()
    assert points(tracker, stage.id, "loss") == [(1, 1.0), (2, 2.0)]
    assert read(tracker, stage.id).tokens_sampled == 4


def test_what_waits_is_written_at_exit(address: Path | str) -> None:
    code = (
        "import sys; from db import Tracker\n"
        "tracker = Tracker(sys.argv[1], flush_seconds=100)\n"
        "stage = tracker.start_stage(tracker.experiment('x'), 'distill')\n"
        "stage.log(1, {'loss': 1.0})"
    )
    require_success([start(code, address)])
    with Tracker(address) as tracker:
        assert points(tracker, 1, "loss") == [(1, 1.0)]


@pytest.mark.differs
def test_the_same_weights_keep_their_row(tracker: Tracker, experiment: int) -> None:
    first = tracker.add_checkpoint(experiment, "base", "base", path="a", content_hash="1")
    tracker.add_evaluation(first, "general", value=1.0, stderr=0.0, n=3)
    assert tracker.add_checkpoint(experiment, "base", "base", path="b", content_hash="1") == first
    assert [c.path for c in queries.checkpoints(tracker.database, experiment)] == ["b"]


def test_other_weights_under_a_name_do_not_inherit_its_scores(tracker: Tracker, experiment: int) -> None:
    name = "cycle-1/recovered"
    first = tracker.add_checkpoint(experiment, name, "recovered", path="a", content_hash="1")
    replaced = tracker.add_checkpoint(experiment, name, "recovered", path="a", content_hash="2")
    assert replaced == first  # the first ones were not evaluated
    tracker.add_evaluation(first, "general", value=1.0, stderr=0.0, n=3)
    second = tracker.add_checkpoint(experiment, name, "recovered", path="a", content_hash="3")
    found = queries.checkpoint(tracker.database, experiment, name)
    assert found is not None
    assert found.id == second != first
    assert queries.scores(tracker.database, second).general is None
    assert queries.checkpoints(tracker.database, experiment)[0].name == f"{name}@2-{first}"


def test_latest_is_one_row_that_moves(tracker: Tracker, experiment: int) -> None:
    assert queries.latest(tracker.database, experiment) is None
    ids = [tracker.add_checkpoint(experiment, name, "external", path=name) for name in ("a", "b")]
    for checkpoint in ids:
        tracker.set_latest(experiment, checkpoint)
    found = queries.checkpoint(tracker.database, experiment, "latest")
    assert found is not None and found.name == "b"


@pytest.mark.differs
def test_an_evaluation_is_kept_whole(tracker: Tracker, experiment: int) -> None:
    checkpoint = tracker.add_checkpoint(experiment, "base", "base", path="a")
    items = [{"id": n, "prompt": "p\x00\ud800", "response": "r", "score": n % 2} for n in range(1203)]
    number = tracker.add_evaluation(checkpoint, "general", value=0.5, stderr=0.01, n=1203, items=items)
    page = queries.samples(tracker.database, number, limit=2000)
    assert (page.total, len(page.samples), page.samples[1200].prompt) == (1203, 1203, "p\N{REPLACEMENT CHARACTER}?")
    broken = [*items[:700], {"id": "x", "score": "not a number"}]
    with pytest.raises(ValueError):
        tracker.add_evaluation(checkpoint, "general", value=0.1, stderr=0.0, n=1, items=broken)
    assert len(queries.evaluations(tracker.database, checkpoint)) == 1


@pytest.mark.parametrize(
    "write",
    [
        lambda tracker, experiment: tracker.start_stage(experiment, "dream"),
        lambda tracker, experiment: tracker.add_checkpoint(experiment, "x", "good", path="x"),
    ],
)
def test_unknown_words_are_refused(
    tracker: Tracker, experiment: int, write: Callable[[Tracker, int], StageRecorder | int]
) -> None:
    with pytest.raises(DatabaseError, match="use one of"):
        write(tracker, experiment)
