"""Leases: two processes never train in one experiment, or in one cycle, on any machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from db import DatabaseError, StageBusyError, StageRecorder, Tracker, decide, liveness, queries
from db.schema import Stage, Work
from tests.db.conftest import alter, require_success, start, wait_until

pytestmark = pytest.mark.differs
HOLD = """
import sys
from db import Tracker
tracker = Tracker(sys.argv[1], heartbeat_seconds=0.1)
with tracker.working(int(sys.argv[2]), "recover cycle"):
    stage = tracker.start_stage(int(sys.argv[2]), "midtrain", cycle_id=int(sys.argv[3]))
    print(stage.id, flush=True)
    sys.stdin.read()
"""


def holder(address: Path | str, *numbers: int) -> tuple[subprocess.Popen[str], int]:
    """Start a process that trains in an experiment's cycle until it is killed; return it and its stage."""
    child = start(HOLD, address, *numbers)
    assert child.stdout is not None
    return child, int(child.stdout.readline())


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()


@pytest.fixture
def silent(address: Path | str) -> Iterator[Tracker]:
    """The tracker of a process that sends no heartbeats, like one that is blocked by its disk."""
    with Tracker(address, flush_seconds=1000, heartbeat_seconds=1000) as opened:
        yield opened


def fall_silent(tracker: Tracker, *tables: Any) -> None:
    with tracker.database.reading() as connection:
        now = liveness.now(connection)
    for table in tables:
        alter(tracker, table, heartbeat_at=now - liveness.STALE_SECONDS - 1)


def test_a_line_is_trained_in_by_one_process(tracker: Tracker, experiment: int, address: Path | str) -> None:
    cycle = tracker.cycle(experiment, 1)
    child, stage = holder(address, experiment, cycle)
    message = rf"recover cycle \(process {child.pid}, alive \d+ s ago\) is training default: wait for it, or stop"
    with pytest.raises(StageBusyError, match=message), tracker.working(experiment, "recover midtrain"):
        pass
    with pytest.raises(StageBusyError, match=rf"stage {stage} \(midtrain, process {child.pid}.*is training this cycle"):
        tracker.start_stage(experiment, "distill", cycle_id=cycle)
    with pytest.raises(StageBusyError, match=f"stage {stage} is run by process {child.pid}"):
        tracker.resume_stage(stage, from_step=0)
    tracker.add_checkpoint(experiment, "a", "recovered", path="a", cycle_id=cycle)
    with pytest.raises(DatabaseError, match="is training and will become the latest"):
        decide(tracker.database, cycle, "accepted", who="Ada")
    tracker.start_stage(experiment, "evaluate", cycle_id=cycle).finish()  # an evaluation does not conflict
    with tracker.working(tracker.experiment("another"), "recover midtrain"):
        pass
    end(child)
    with tracker.working(experiment, "recover resume"):  # dead on this machine: detected at once
        tracker.reap_dead_stages()
        tracker.resume_stage(stage, from_step=0).finish()
    with tracker.database.reading() as connection:
        assert connection.execute(select(Work.__table__)).all() == []


def test_a_holder_elsewhere_is_believed_until_it_was_silent(
    tracker: Tracker, experiment: int, address: Path | str
) -> None:
    cycle = tracker.cycle(experiment, 1)
    child, stage = holder(address, experiment, cycle)
    end(child)
    for table in (Work, Stage):  # as seen from another machine, where the process cannot be checked
        alter(tracker, table, place="elsewhere")
    with pytest.raises(StageBusyError, match="on another machine"), tracker.working(experiment, "recover resume"):
        pass
    with pytest.raises(StageBusyError, match="on another machine"):
        tracker.resume_stage(stage, from_step=0)
    fall_silent(tracker, Work, Stage)
    with tracker.working(experiment, "recover resume"):
        assert tracker.reap_dead_stages() == [stage]
        tracker.resume_stage(stage, from_step=0).finish()


def test_who_was_silent_and_lost_its_line_stops(tracker: Tracker, experiment: int) -> None:
    with tracker.working(experiment, "recover cycle"):
        stage = tracker.start_stage(experiment, "distill")
        alter(tracker, Work, lease="another process")
        with pytest.raises(StageBusyError, match="took default over while this one sent no heartbeat"):
            wait_until(lambda: stage.log(1, {"loss": 1.0}))
    with tracker.database.reading() as connection:
        assert connection.execute(select(Work.lease)).scalars().all() == ["another process"]


def keep(tracker: Tracker, experiment: int, stage: StageRecorder, content: str) -> int:
    """Record a checkpoint as a stage does at its end."""
    made = tracker.add_checkpoint(experiment, "one", "recovered", path="one", content_hash=content, by=stage)
    tracker.set_latest(experiment, made, by=stage)
    return made


def everything(tracker: Tracker, experiment: int, checkpoint: int) -> tuple[Any, ...]:
    return (
        queries.checkpoints(tracker.database, experiment),
        queries.latest(tracker.database, experiment),
        queries.evaluations(tracker.database, checkpoint),
    )


def assert_writes_nothing(tracker: Tracker, experiment: int, stage: StageRecorder, made: int, message: str) -> None:
    before = everything(tracker, experiment, made)
    for write in (
        lambda: keep(tracker, experiment, stage, "old"),
        lambda: tracker.set_latest(experiment, made, by=stage),
        lambda: tracker.add_evaluation(made, "general", value=0.0, stderr=0.0, n=1, by=stage),
        lambda: stage.describe(folder="elsewhere"),
    ):
        with pytest.raises(StageBusyError, match=message):
            write()
    assert everything(tracker, experiment, made) == before


def test_who_lost_its_stage_while_it_saved_keeps_nothing(tracker: Tracker, experiment: int, silent: Tracker) -> None:
    stage = silent.start_stage(experiment, "distill")
    fall_silent(tracker, Stage)
    again = tracker.resume_stage(stage.id, from_step=0)
    message = f"stage {stage.id} was taken over by another process: this one must stop"
    made = keep(tracker, experiment, again, "new")
    again.finish()
    later = tracker.add_checkpoint(experiment, "two", "midtrained", path="two", parent_id=made)
    tracker.set_latest(experiment, later)
    assert_writes_nothing(silent, experiment, stage, made, message)
    latest = queries.latest(tracker.database, experiment)
    assert latest is not None and latest.name == "two"


def test_who_lost_its_line_while_it_saved_keeps_nothing(tracker: Tracker, experiment: int, silent: Tracker) -> None:
    with silent.working(experiment, "recover distill"):
        stage = silent.start_stage(experiment, "distill")  # not resumed by another process: it keeps its lease
        fall_silent(tracker, Stage, Work)
        with tracker.working(experiment, "recover midtrain"), tracker.start_stage(experiment, "midtrain") as other:
            made = keep(tracker, experiment, other, "new")
        assert_writes_nothing(silent, experiment, stage, made, "another process took default over")


def test_a_stage_outlives_the_wait_for_a_server() -> None:
    noticed, last_attempt, sign_of_life = 30, 10, 5
    assert liveness.RECONNECT_SECONDS + noticed + last_attempt + sign_of_life < liveness.STALE_SECONDS


def test_nobody_else_rejects_a_cycle_between_two_of_its_stages(tracker: Tracker, experiment: int) -> None:
    base = tracker.add_checkpoint(experiment, "base", "base", path="base")
    first, second = tracker.cycle(experiment, 1), tracker.cycle(experiment, 2)
    made = tracker.add_checkpoint(experiment, "one", "midtrained", path="one", parent_id=base, cycle_id=first)
    tracker.set_latest(experiment, made)

    def latest_after(cycle: int, decision: str) -> str | None:
        return decide(tracker.database, cycle, decision, who="Ada").after

    with tracker.working(experiment, "recover cycle"):
        assert latest_after(first, "rejected") == "base"  # by the gate of the process that trains
        assert latest_after(first, "accepted") == "one"
        alter(tracker, Work, place="elsewhere")
        message = r"^recover cycle \(process \d+ on another machine, alive \d+ s ago\) is training this experiment and"
        for cycle, decision in ((first, "rejected"), (first, "rolled_back"), (second, "rejected")):
            with pytest.raises(DatabaseError, match=message):
                latest_after(cycle, decision)
        assert latest_after(first, "accepted") == "one"
    assert [one.decision for one in queries.decisions(tracker.database, first)] == ["accepted", "accepted", "rejected"]
    assert latest_after(first, "rejected") == "base"


def test_a_cycle_that_several_begin_at_once_is_made_once(address: Path | str) -> None:
    code = (
        "import sys; from db import Tracker\n"
        "tracker = Tracker(sys.argv[1]); experiment = tracker.experiment('shared')\n"
        "for number in range(1, 16): tracker.cycle(experiment, number)\n"
        "tracker.set_latest(experiment, tracker.add_checkpoint(experiment, 'base', 'base', path='x'))"
    )
    require_success([start(code, address) for _ in range(3)])
    with Tracker(address) as tracker:
        (experiment,) = queries.experiments(tracker.database)
        assert [cycle.number for cycle in queries.cycles(tracker.database, experiment.id)] == list(range(1, 16))
        assert [one.name for one in queries.checkpoints(tracker.database, experiment.id)] == ["base"]


def test_decisions_made_at_once_leave_one_latest(address: Path | str) -> None:
    with Tracker(address) as tracker:
        experiment = tracker.experiment("shared")
        base = tracker.add_checkpoint(experiment, "base", "base", path="base")
        cycle = tracker.cycle(experiment, 1)
        end = tracker.add_checkpoint(experiment, "one", "recovered", path="one", parent_id=base, cycle_id=cycle)
        tracker.set_latest(experiment, end)
    code = (
        "import sys; from db import open_database, decide\n"
        "database = open_database(sys.argv[1])\n"
        f"for word in ['rejected', 'accepted'] * 10: decide(database, {cycle}, word, who=sys.argv[2])"
    )
    require_success([start(code, address, name) for name in ("Ada", "Bob", "Eve")])
    with Tracker(address) as tracker:
        decisions = queries.decisions(tracker.database, cycle)
        latest = queries.latest(tracker.database, experiment)
    assert len(decisions) == 60
    assert latest is not None and latest.name == ("one" if decisions[0].decision == "accepted" else "base")
