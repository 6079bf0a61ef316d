"""Opening a database: addresses, pragmas and error messages."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from db import (
    Database,
    DatabaseError,
    MissingDatabaseError,
    Tracker,
    database_url,
    open_database,
    open_readonly,
    queries,
)
from db.session import describe
from tests.damaged_tracker import hide_rows

pytestmark = pytest.mark.differs


def test_a_path_is_a_sqlite_file_and_a_url_stays_one(tmp_path: Path) -> None:
    assert database_url(tmp_path / "a b.db").database == str(tmp_path / "a b.db")
    assert database_url("postgresql+psycopg://ada:secret@host/runs").get_backend_name() == "postgresql"


def test_a_url_of_a_sqlite_file_works_as_its_path_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = f"sqlite:///{tmp_path}/a.db"
    for address in ("a.db", "sqlite:///a.db", whole, "sqlite+pysqlite:///a.db", "SQLite:///a.db", "sqlite:///%61.db"):
        open_database(address).close()
        open_readonly(address).close()
        assert describe(database_url(address)) == str(tmp_path / "a.db"), "the address that a workspace stores"
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"a.db"}


@pytest.mark.parametrize("address", ["sqlite://", "sqlite:///:memory:", "sqlite:///a.db?mode=ro", "sqlite://host/a.db"])
def test_a_sqlite_address_that_is_no_file_is_refused(address: str) -> None:
    with pytest.raises(DatabaseError, match=r"must name a file and nothing else: give its path, or sqlite:////"):
        database_url(address)


@pytest.mark.parametrize("address", ["sqlite:a.db", "sqlite:/a.db", "SQLITE+pysqlite:a.db", "postgresql:host"])
def test_an_address_without_its_slashes_is_no_file_of_that_name(address: str) -> None:
    with pytest.raises(DatabaseError, match="address is malformed: give a file, or postgresql://"):
        database_url(address)


def test_a_password_is_never_shown() -> None:
    shown = database_url("POSTGRESQL://Ada:Secret@host/Runs").render_as_string(hide_password=False)
    assert shown == "postgresql+psycopg://Ada:Secret@host/Runs"
    assert "secret" not in describe(database_url("postgresql+psycopg://ada:secret@host/runs"))


def test_the_pragmas_that_concurrency_rests_on(tmp_path: Path) -> None:
    database = open_database(tmp_path / "tracker.db")
    with database.reading() as connection:
        values = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        ]
    assert values == ["wal", 2, 1, 30_000]


def test_a_damaged_index_is_found_when_all_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tracker.db"
    tracker = Tracker(path)
    for number in range(3):
        tracker.experiment(f"name {number}")
    tracker.database.require_sound()
    tracker.close()
    hide_rows(path, "experiment")
    damaged = open_database(path)
    with pytest.raises(DatabaseError, match=r"tracker.db is damaged \(.+ on page \d+\): restore a copy of it"):
        damaged.require_sound()


def test_a_damaged_value_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "tracker.db"
    tracker = Tracker(path)
    experiment = tracker.experiment("here")
    tracker.event(experiment, "words", data={"n": 1})
    tracker.close()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE event SET data = '{`n`: 1}'")
        database.commit()
    with pytest.raises(DatabaseError, match="tracker.db holds a damaged value .*: restore a copy of it"):
        queries.events(open_readonly(path), experiment)


def test_a_reader_cannot_write(tracker: Tracker, experiment: int) -> None:
    database = open_readonly(tracker.url)
    with pytest.raises(DatabaseError, match="reading only"), database.writing():
        pass
    with pytest.raises(DatabaseError, match="read-?only"), database.reading() as connection:
        connection.exec_driver_sql("DELETE FROM experiment")


def test_a_read_of_a_writer_holds_no_other_writer_up_and_sees_one_state(tmp_path: Path) -> None:
    path, count = tmp_path / "tracker.db", "SELECT count(*) FROM experiment"
    with Tracker(path) as tracker, contextlib.closing(sqlite3.connect(path, timeout=0)) as other:
        with tracker.database.reading() as connection:
            assert connection.exec_driver_sql(count).scalar() == 0
            other.execute("INSERT INTO experiment (name, base_model, config, created_at) VALUES ('other', '', '{}', 0)")
            other.commit()
            assert connection.exec_driver_sql(count).scalar() == 0
        with tracker.database.writing(), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        assert other.execute(count).fetchone() == (1,)


def test_a_missing_database_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MissingDatabaseError, match="recover demo"):
        open_readonly(tmp_path / "none.db")
    with pytest.raises(DatabaseError, match="no folder"):
        open_database(tmp_path / "none" / "tracker.db")


def test_an_empty_file_is_no_database_for_a_reader_and_is_filled_by_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "tracker.db"
    path.touch()
    with pytest.raises(MissingDatabaseError):
        open_readonly(path)
    open_database(path).close()
    open_readonly(path).close()


@pytest.mark.parametrize("opener", [open_database, open_readonly])
def test_another_kind_of_file_is_named(tmp_path: Path, opener: type[Database]) -> None:
    path = tmp_path / "tracker.db"
    path.write_text("This is a diary, and a long enough one to have a header. " * 10)
    with pytest.raises(DatabaseError, match="another kind of file") as caught:
        opener(path)
    assert "\n" not in str(caught.value)
    assert path.read_text().startswith("This is a diary")


def test_a_file_system_that_refuses_write_ahead_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("db.session._write_ahead", lambda cursor: "delete")
    with pytest.raises(DatabaseError, match="network drive"):
        open_database(tmp_path / "tracker.db")


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'psycopg'")

    monkeypatch.setattr("db.session.create_engine", missing)
    with pytest.raises(DatabaseError, match="postgres"):
        open_database("postgresql+psycopg://host/runs")


def test_a_failed_write_leaves_nothing(tracker: Tracker, experiment: int) -> None:
    with pytest.raises(DatabaseError, match="no such table|does not exist"), tracker.database.writing() as connection:  # noqa: PT012
        connection.exec_driver_sql("DELETE FROM experiment")
        connection.exec_driver_sql("DELETE FROM nowhere")
    assert len(queries.experiments(tracker.database)) == 1


def test_references_are_kept(tracker: Tracker) -> None:
    with pytest.raises(DatabaseError, match="(?i)foreign key"):
        tracker.add_token_scores(12345, 1, [{"tokens": ["a"]}])


# Root may write everywhere, and another user may not be able to import: so it becomes one after it has read a tracker.
_READ = """
import os, sys
from db import open_readonly, queries
from db.errors import DatabaseError
queries.experiments(open_readonly(sys.argv[1]))
try:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
except OSError:
    sys.exit(9)
for path in sys.argv[2:]:
    try:
        print(len(queries.experiments(open_readonly(path))))
    except DatabaseError as error:
        print(error)
"""


@pytest.fixture
def guarded() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
        Path(name).chmod(0o755)


@pytest.fixture
def shown(tmp_path: Path) -> Callable[..., list[str]]:
    """What a user who may not write there is shown of trackers, one line each."""
    Tracker(tmp_path / "readable.db").close()

    def read(*paths: Path) -> list[str]:
        command = [sys.executable, "-c", _READ, str(tmp_path / "readable.db"), *map(str, paths)]
        done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
        if done.returncode == 9:
            pytest.skip("root may not become another user here")
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return read


def test_a_tracker_in_a_write_protected_folder_is_read(guarded: Path, shown: Callable[..., list[str]]) -> None:
    path, link = guarded / "tracker.db", guarded / "link.db"
    link.symlink_to(path)
    with Tracker(path) as tracker:
        tracker.experiment("one")
    guarded.chmod(0o555)
    assert shown(path, link) == ["1", "1"]
    assert sorted(file.name for file in guarded.iterdir()) == ["link.db", "tracker.db"]
    guarded.chmod(0o755)
    with Tracker(path) as tracker:
        tracker.experiment("two")
        guarded.chmod(0o555)
        assert shown(path, link) == ["2", "2"], "of a log that its writer has open"
        log = (guarded / "tracker.db-wal").read_bytes()
        guarded.chmod(0o755)
    (guarded / "tracker.db-wal").write_bytes(log)
    guarded.chmod(0o555)
    (line,) = shown(path)
    assert "tracker.db-wal holds its newest records" in line
    assert "copy both files to a folder of your own" in line


def test_a_file_that_is_written_while_it_is_read_without_locks_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tracker.db"
    with Tracker(path) as tracker:
        tracker.experiment("one")
    monkeypatch.setattr("os.access", lambda *_: False)
    database = open_readonly(path)
    assert len(queries.experiments(database)) == 1
    with (
        pytest.raises(DatabaseError, match="tracker.db was written while it was read without locks .*: try again"),
        database.reading(),
        Tracker(path) as tracker,
    ):
        tracker.experiment("two")
    assert len(queries.experiments(database)) == 2, "each view opens the file anew"


def test_a_tracker_whose_folder_has_vanished_is_a_database_error(tmp_path: Path) -> None:
    path = tmp_path / "workspace" / "tracker.db"
    path.parent.mkdir()
    Tracker(path).close()
    database = open_readonly(path)
    shutil.rmtree(path.parent)
    with pytest.raises(DatabaseError, match=r"tracker.db cannot be read: .*unable to open database file"):
        queries.experiments(database)


def test_a_file_that_is_moved_while_it_is_read_with_locks_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "tracker.db"
    Tracker(path).close()
    with open_readonly(path).reading() as connection:
        path.rename(tmp_path / "moved.db")
        assert connection.exec_driver_sql("PRAGMA query_only").scalar() == 1


def test_a_file_that_vanishes_while_it_is_read_without_locks_is_a_database_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tracker.db"
    Tracker(path).close()
    monkeypatch.setattr("os.access", lambda *_: False)
    with (
        pytest.raises(DatabaseError, match="tracker.db cannot be read .No such file or directory.: check that it is"),
        open_readonly(path).reading(),
    ):
        path.unlink()
