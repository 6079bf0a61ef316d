"""A damaged write-ahead log: what SQLite drops without an error is reported once, and the log is kept."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from db import DatabaseError, Tracker, open_database, open_readonly, queries
from db.write_ahead_log import damaged_log

HEADER, FRAME = 32, 24 + 4096
pytestmark = pytest.mark.differs


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """The files of a tracker with thirty experiments whose process was killed: the log holds them all."""
    (tmp_path / "live").mkdir()
    tracker = Tracker(tmp_path / "live/tracker.db")
    for number in range(30):
        tracker.experiment(f"name {number}")
    for suffix in ("", "-wal"):
        shutil.copy(tmp_path / f"live/tracker.db{suffix}", tmp_path / f"tracker.db{suffix}")
    tracker.close()
    return tmp_path / "tracker.db"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def log_of(path: Path) -> Path:
    return Path(f"{path}-wal")


def names(path: Path) -> list[str]:
    database = open_readonly(path)
    found = [one.name for one in queries.experiments(database)][::-1]
    database.close()
    return found


def commits(log: bytes) -> list[int]:
    """Return the places of the frames that end a transaction."""
    return [at for at in range(HEADER, len(log), FRAME) if log[at + 4 : at + 8] != bytes(4)]


def test_a_log_left_by_a_killed_process_is_sound(crashed: Path) -> None:
    open_database(crashed).close()
    assert len(names(crashed)) == 30
    assert not list(crashed.parent.glob("*damaged*"))


@pytest.mark.parametrize("place", ["page", "size", "salt", "checksum", "header", "header's salt"])
def test_a_flipped_bit_is_reported_once_and_the_log_is_kept(crashed: Path, place: str) -> None:
    log = log_of(crashed)
    at = commits(log.read_bytes())[-10]
    flip(log, {"page": at + 99, "size": at + 6, "salt": at + 9, "checksum": at + 17, "header": 9}.get(place, 17))
    damaged = log.read_bytes()
    with pytest.raises(DatabaseError, match=r"lost its newest entries.*copied to .*tracker.db-wal.damaged-1; restore"):
        open_database(crashed)
    assert (crashed.parent / "tracker.db-wal.damaged-1").read_bytes() == damaged
    open_database(crashed).close()
    kept = names(crashed)
    assert kept == [f"name {number}" for number in range(len(kept))] and len(kept) < 30
    assert len(list(crashed.parent.glob("*damaged*"))) == 1


def test_a_header_that_was_overwritten_with_the_frame_behind_it_is_reported(crashed: Path) -> None:
    log = log_of(crashed)
    log.write_bytes(random.Random(0).randbytes(4096) + log.read_bytes()[4096:])
    with pytest.raises(DatabaseError, match="lost its newest entries"):
        open_database(crashed)


def test_a_last_transaction_that_was_cut_short_is_no_damage(crashed: Path) -> None:
    flip(log_of(crashed), commits(log_of(crashed).read_bytes())[-1] + 99)
    open_database(crashed).close()
    assert len(names(crashed)) == 29


def test_frames_of_an_earlier_log_are_no_damage(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path / "tracker.db")
    for number in range(30):
        tracker.experiment(f"name {number}")
    with tracker.database.reading() as connection:
        connection.connection.cursor().execute("PRAGMA wal_checkpoint(RESTART)")
    tracker.experiment("another")
    assert len(commits(log_of(tmp_path / "tracker.db").read_bytes())) > 2
    open_database(tmp_path / "tracker.db").close()
    tracker.close()
    assert len(names(tmp_path / "tracker.db")) == 31


def test_frames_that_a_killed_process_did_not_enter_into_the_index_are_no_damage(crashed: Path) -> None:
    """Two transactions at least, since a later one may be cut short."""
    log = log_of(crashed).read_bytes()
    reader = sqlite3.connect(crashed, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM experiment").fetchall()
    index = Path(f"{crashed}-shm").read_bytes()
    at = commits(log)[-3]
    log_of(crashed).write_bytes(log[: at + FRAME])
    reader.close()
    other = sqlite3.connect(crashed, isolation_level=None)
    other.execute("SELECT count(*) FROM experiment").fetchall()
    assert Path(f"{crashed}-shm").read_bytes() != index
    log_of(crashed).write_bytes(log)
    assert damaged_log(crashed) is None
    other.close()


def test_any_flipped_bit_is_reported_or_loses_at_most_the_last_transaction(crashed: Path) -> None:
    draw, log, first = random.Random(0), log_of(crashed).read_bytes(), crashed.read_bytes()
    kept = []
    for _ in range(60):
        for leftover in crashed.parent.glob("tracker.db*"):
            leftover.unlink()
        crashed.write_bytes(first)
        log_of(crashed).write_bytes(log)
        flip(log_of(crashed), draw.randrange(len(log)))
        try:
            open_database(crashed).close()
        except DatabaseError as error:
            kept.append(str(error))
        else:
            kept.append(len(names(crashed)))
    reported = [one for one in kept if isinstance(one, str)]
    assert len(reported) > 30
    assert all("lost its newest entries" in one for one in reported)
    assert {one for one in kept if isinstance(one, int)} <= {29, 30}
