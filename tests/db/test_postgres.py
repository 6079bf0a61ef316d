"""A tracker on a PostgreSQL server: several machines, restarts, roles, passwords."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from dashboard.pages import live, overview
from dashboard.tracker_source import Source
from db import DatabaseError, StageBusyError, Tracker, decide, open_database, open_readonly, queries
from tests.dashboard.conftest import Request
from tests.db.conftest import require_success, start
from tests.postgres import PASSWORD, Server

STEPS = 700  # of three metrics: 2,100 points a writer
pytestmark = pytest.mark.postgres

TRAIN = f"""
import sys
from db import Tracker
address, name = sys.argv[1], sys.argv[2]
with Tracker(address, flush_seconds=0.02, heartbeat_seconds=0.1) as tracker:
    experiment = tracker.experiment("shared")
    cycle = tracker.cycle(experiment, int(name) + 1)
    with tracker.start_stage(experiment, "distill", cycle_id=cycle, seed=int(name), steps_total={STEPS}) as stage:
        print(stage.id, flush=True)
        for step in range(1, {STEPS} + 1):
            stage.log(step, {{"reverse_kl": step + int(name) / 10, "entropy": 0.5, "lr": 0.1}})
            if step % 50 == 0:
                tracker.flush()
            if step == 300:
                tracker.flush()
                print("halfway", flush=True)
                sys.stdin.readline()
"""
RESUME = f"""
import sys
from db import Tracker
with Tracker(sys.argv[1], flush_seconds=0.02) as tracker:
    tracker.reap_dead_stages()
    with tracker.resume_stage(int(sys.argv[2]), from_step=250) as stage:
        for step in range(251, {STEPS} + 1):
            stage.log(step, {{"reverse_kl": step + 0.7, "entropy": 0.5, "lr": 0.1}})
"""


@pytest.fixture
def server_address(postgres: Server) -> str:
    return postgres.create()


def test_three_writers_a_dashboard_and_a_kill(server_address: str) -> None:
    writers = [start(TRAIN, server_address, n) for n in range(3)]
    victim, numbers = writers[2], []
    for writer in writers:
        assert writer.stdout is not None
        numbers.append(int(writer.stdout.readline()))
        assert writer.stdout.readline() == "halfway\n"
    source, shown, seen, stage_id = Source(server_address), [], None, numbers[2]
    for writer in writers[:2]:
        assert writer.stdin is not None
        writer.stdin.write("go on\n")
        writer.stdin.flush()
    while not shown or any(writer.poll() is None for writer in writers[:2]):
        outputs = live._refresh(source, seen, Request())
        overview._refresh(source, None, Request())
        seen, _ = outputs[0], shown.append(outputs[3])
    assert any("of 700 steps" in str(text) for text in shown), "the dashboard showed them running"
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    again = start(RESUME, server_address, stage_id)
    require_success([again, *writers[:2]])

    database = open_readonly(server_address)
    experiment = queries.experiment(database, "shared")
    assert experiment is not None and experiment.cycles == 3, "each made its own cycle"
    for stage in queries.stages(database, experiment.id):
        curves = queries.series(database, stage.id, max_points=None)
        assert set(curves) == {"reverse_kl", "entropy", "lr"}
        assert all([point.step for point in points] == list(range(1, STEPS + 1)) for points in curves.values())
        whose = (stage.seed or 0) / 10
        wanted = [step + (0.7 if stage.id == stage_id and step > 250 else whose) for step in range(1, STEPS + 1)]
        assert [point.value for point in curves["reverse_kl"]] == pytest.approx(wanted)
        assert (stage.status, stage.attempts) == ("finished", 2 if stage.id == stage_id else 1)
    database.close()


def test_a_stage_outlives_a_restart_of_the_server(postgres: Server, server_address: str) -> None:
    with Tracker(server_address, flush_seconds=0.02, heartbeat_seconds=0.05) as tracker:
        experiment = tracker.experiment("one")
        reader = open_readonly(server_address)
        with tracker.start_stage(experiment, "distill") as stage:
            for step in range(1, 101):
                stage.log(step, {"loss": float(step)})
                if step == 40:
                    postgres.stop()
                    with pytest.raises(DatabaseError, match="cannot be read"):
                        queries.experiments(reader)  # a page fails at once, without waiting
                if step == 60:  # a write from the stage's own thread waits until the server is back
                    back = threading.Timer(1.0, postgres.start)
                    back.start()
                    tracker.event(experiment, "written while the server was away")
                    back.join()
        curve = queries.series(reader, stage.id, max_points=None)["loss"]
        assert [(point.step, point.value) for point in curve] == [(n, float(n)) for n in range(1, 101)]
        assert [event.message for event in queries.events(reader, experiment)] == ["written while the server was away"]
        found = queries.stage(reader, stage.id)
        assert found is not None and found.status == "finished"
        reader.close()


def test_clocks_that_differ_do_not_make_a_stage_dead(server_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Tracker(server_address, flush_seconds=0.02, heartbeat_seconds=0.05) as tracker:
        experiment = tracker.experiment("one")
        with tracker.start_stage(experiment, "distill") as stage:
            real = time.time
            for shift in (3600, -3600):
                monkeypatch.setattr("time.time", lambda: real() + shift)  # noqa: B023
                found = queries.stage(tracker.database, stage.id)
                assert found is not None and found.status == "running" and found.silent_seconds < 30
                assert tracker.reap_dead_stages() == []
                with pytest.raises(StageBusyError, match=r"alive \d\d? s ago"):
                    tracker.resume_stage(stage.id, from_step=0)
                monkeypatch.undo()


def test_a_page_is_one_moment_and_holds_up_nobody(server_address: str) -> None:
    with Tracker(server_address) as tracker:
        experiment = tracker.experiment("one")
        tracker.event(experiment, "before")
        reader = open_readonly(server_address)
        with reader.reading() as connection:
            count = "SELECT count(*) FROM event"
            assert connection.exec_driver_sql(count).scalar() == 1
            tracker.event(experiment, "meanwhile")
            assert connection.exec_driver_sql(count).scalar() == 1
        assert len(queries.events(reader, experiment)) == 2
        reader.close()


def test_a_role_that_may_only_read_can_show_the_dashboard(postgres: Server, server_address: str) -> None:
    """Uses the statements of docs/tracker.md."""
    name = server_address.rpartition("/")[2]
    with Tracker(server_address) as tracker:
        experiment = tracker.experiment("one")
        cycle = tracker.cycle(experiment, 1)
        with tracker.start_stage(experiment, "distill", cycle_id=cycle) as stage:
            stage.log(1, {"loss": 1.0})
    for statement in (
        "CREATE ROLE viewer LOGIN PASSWORD 'looks-only'",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO viewer",
        "ALTER DEFAULT PRIVILEGES FOR ROLE ada IN SCHEMA public GRANT SELECT ON TABLES TO viewer",
    ):
        postgres.run(statement, name)
    address = postgres.url(name, user="viewer", password="looks-only")
    source = Source(address)
    assert "Recovery, cycle 1" in str(live._refresh(source, None, Request())[3])
    with pytest.raises(DatabaseError, match="permission denied") as refused, source.writing() as database:
        decide(database, cycle, "accepted", who="Ada")
    assert "looks-only" not in str(refused.value) and "\n" not in str(refused.value)
    with closing(open_database(address)) as database, pytest.raises(DatabaseError, match="permission denied"):
        database.require_writable()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda url: url.replace(PASSWORD, "wr0ng"), "check user and password"),
        (lambda url: url.replace("127.0.0.1:", "127.0.0.1:1"), "cannot be opened|malformed"),
        (lambda url: url.replace("/test_", "/none_"), "createdb"),
        (lambda url: url.replace(PASSWORD, PASSWORD + "@"), "write it as %40"),
        (lambda url: url + "?sslmode=perhaps", "sslmode"),
        (lambda url: url.replace("127.0.0.1", "no-such-host.invalid"), "no-such-host"),
        (lambda url: url.replace(f":{PASSWORD}@", "@") + f"?password={PASSWORD}x", "check user and password"),
    ],
)
def test_a_password_is_in_no_message(server_address: str, spoil: Callable[[str], str], message: str) -> None:
    for opener in (Tracker, open_readonly):
        with pytest.raises(DatabaseError, match=message) as caught:
            opener(spoil(server_address))
        chain: Any = caught.value
        while chain is not None:  # nor in the traceback of its causes
            assert PASSWORD not in str(chain) and "wr0ng" not in str(chain)
            chain = chain.__cause__
        assert "\n" not in str(caught.value)
