"""Two processes never train in one line of cycles, or in one cycle, wherever they are."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from db import DatabaseError, StageBusyError, Tracker, decide, process, queries
from db.schema import Stage, Work

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys, time
from db import Tracker
tracker = Tracker(sys.argv[1], heartbeat_seconds=0.1)
with tracker.working(int(sys.argv[2]), "recover cycle"):
    stage = tracker.start_stage(int(sys.argv[2]), "midtrain", cycle_id=int(sys.argv[3]))
    print(stage.id, flush=True)
    time.sleep(100)
"""


def holder(address: Path | str, *numbers: int) -> tuple[subprocess.Popen[str], int]:
    """A process that trains in an experiment's cycle until it is killed, and its stage."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(address), *map(str, numbers)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    return child, int(child.stdout.readline())


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


def alter(tracker: Tracker, table: Any, **values: Any) -> None:
    with tracker.database.writing() as connection:
        connection.execute(update(table).values(values))


def test_a_line_is_trained_in_by_one_process(tracker: Tracker, experiment: int, address: Path | str) -> None:
    cycle = tracker.cycle(experiment, 1)
    child, stage = holder(address, experiment, cycle)
    told = rf"recover cycle \(process {child.pid}, alive \d+ s ago\) is at work on default: wait for it, or stop"
    with pytest.raises(StageBusyError, match=told), tracker.working(experiment, "recover midtrain"):
        pass
    with pytest.raises(StageBusyError, match=rf"worked on by stage {stage} \(midtrain, process {child.pid}"):
        tracker.start_stage(experiment, "distill", cycle_id=cycle)
    with pytest.raises(StageBusyError, match=f"stage {stage} is run by process {child.pid}"):
        tracker.resume_stage(stage, from_step=0)
    tracker.add_checkpoint(experiment, "a", "recovered", path="a", cycle_id=cycle)
    with pytest.raises(DatabaseError, match="is training, and ends as the latest"):
        decide(tracker.database, cycle, "accepted", who="Ada")
    tracker.start_stage(experiment, "evaluate", cycle_id=cycle).finish()  # who only measures is not in the way
    with tracker.working(tracker.experiment("another"), "recover midtrain"):
        pass
    end(child)
    with tracker.working(experiment, "recover resume"):  # dead on this machine: known at once
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
    for table in (Work, Stage):  # as it looks from another machine: nobody can see whether the process is there
        alter(tracker, table, place="elsewhere")
    with pytest.raises(StageBusyError, match="on another machine"), tracker.working(experiment, "recover resume"):
        pass
    with pytest.raises(StageBusyError, match="on another machine"):
        tracker.resume_stage(stage, from_step=0)
    with tracker.database.reading() as connection:
        now = process.now(connection)
    for table in (Work, Stage):
        alter(tracker, table, heartbeat_at=now - process.STALE_SECONDS - 1)
    with tracker.working(experiment, "recover resume"):
        assert tracker.reap_dead_stages() == [stage]
        tracker.resume_stage(stage, from_step=0).finish()


def test_who_was_silent_and_lost_its_line_stops(tracker: Tracker, experiment: int) -> None:
    with tracker.working(experiment, "recover cycle"):
        stage = tracker.start_stage(experiment, "distill")
        alter(tracker, Work, lease="another process")
        deadline = time.monotonic() + 10
        with pytest.raises(StageBusyError, match="took default over while this one was silent"):  # noqa: PT012
            while time.monotonic() < deadline:
                stage.log(1, {"loss": 1.0})
                time.sleep(0.02)
    with tracker.database.reading() as connection:
        assert connection.execute(select(Work.lease)).scalars().all() == ["another process"]


def test_cycles_begun_at_once_get_numbers_of_their_own(address: Path | str) -> None:
    code = (
        "import sys; from db import Tracker\n"
        "tracker = Tracker(sys.argv[1]); experiment = tracker.experiment('shared')\n"
        "for _ in range(15): tracker.cycle(experiment)\n"
        "tracker.set_latest(experiment, tracker.add_checkpoint(experiment, 'base', 'base', path='x'))"
    )
    makers = [
        subprocess.Popen([sys.executable, "-c", code, str(address)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [maker.communicate()[1] for maker in makers] == [""] * 3
    with Tracker(address) as tracker:
        (experiment,) = queries.experiments(tracker.database)
        assert [cycle.number for cycle in queries.cycles(tracker.database, experiment.id)] == list(range(1, 46))
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
    people = [
        subprocess.Popen([sys.executable, "-c", code, str(address), name], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for name in ("Ada", "Bob", "Eve")
    ]
    assert [person.communicate()[1] for person in people] == [""] * 3
    with Tracker(address) as tracker:
        said = queries.decisions(tracker.database, cycle)
        latest = queries.latest(tracker.database, experiment)
    assert len(said) == 60
    assert latest is not None and latest.name == ("one" if said[0].decision == "accepted" else "base")
