"""A damaged write-ahead log: what SQLite would drop without an error is reported, and nothing is changed."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from db import DatabaseError, Tracker, open_database, open_readonly, queries, write_ahead_log

HEADER, FRAME = 32, 24 + 4096
REPORT = r"tracker.db-wal is damaged, and SQLite would drop its last \d+ transactions without an error: copy it"
# Another process: opens the tracker, says so, and closes it when its input ends.
HOLDER = """
import sys
from pathlib import Path
from db import Tracker
tracker = Tracker(Path(sys.argv[1]))
tracker.experiment("theirs")
print("open", flush=True)
sys.stdin.read()
tracker.close()
"""
pytestmark = pytest.mark.differs


def killed(folder: Path) -> Path:
    """Return the tracker of a process that was killed after thirty experiments: the log holds them all."""
    live = folder / "live"
    live.mkdir(parents=True)
    tracker = Tracker(live / "tracker.db")
    for number in range(30):
        tracker.experiment(f"name {number}")
    for suffix in ("", "-wal"):
        shutil.copy(live / f"tracker.db{suffix}", folder / f"tracker.db{suffix}")
    tracker.close()
    return folder / "tracker.db"


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    return killed(tmp_path)


def log_of(path: Path) -> Path:
    return Path(f"{path}-wal")


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def commits(log: Path) -> list[int]:
    """Return the places of the frames that end a transaction."""
    data = log.read_bytes()
    return [at for at in range(HEADER, len(data), FRAME) if data[at + 4 : at + 8] != bytes(4)]


def names(path: Path) -> list[str]:
    database = open_readonly(path)
    found = [one.name for one in queries.experiments(database)]
    database.close()
    return found[::-1]


def test_a_log_left_by_a_killed_process_is_sound(crashed: Path) -> None:
    open_database(crashed).close()
    assert len(names(crashed)) == 30


@pytest.mark.parametrize("place", ["page", "size", "salt", "checksum", "first frame", "header", "header's salt"])
def test_a_flipped_bit_is_reported_and_nothing_is_changed(crashed: Path, place: str) -> None:
    log = log_of(crashed)
    at = commits(log)[-10]
    places = {"page": at + 99, "size": at + 6, "salt": at + 9, "checksum": at + 17, "first frame": at - FRAME + 99}
    flip(log, {**places, "header": 9, "header's salt": 17}[place])
    before = (crashed.read_bytes(), log.read_bytes())
    for _ in range(2):
        with pytest.raises(DatabaseError, match=REPORT):
            open_database(crashed)
    with pytest.raises(DatabaseError, match=REPORT):
        open_readonly(crashed)
    assert (crashed.read_bytes(), log.read_bytes()) == before
    with sqlite3.connect(crashed) as database:  # as docs/workspace.md says
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    open_database(crashed).close()
    kept = names(crashed)
    assert kept == [f"name {number}" for number in range(20 if "header" not in place else 0)]


def test_a_log_beside_the_file_that_a_link_leads_to_is_read(crashed: Path, tmp_path: Path) -> None:
    flip(log_of(crashed), commits(log_of(crashed))[-10])
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere/tracker.db"
    link.symlink_to(crashed)
    with pytest.raises(DatabaseError, match=REPORT):
        open_database(link)


def test_a_header_that_was_overwritten_with_the_frame_behind_it_is_reported(crashed: Path) -> None:
    log = log_of(crashed)
    log.write_bytes(random.Random(0).randbytes(4096) + log.read_bytes()[4096:])
    with pytest.raises(DatabaseError, match=REPORT):
        open_database(crashed)


def test_a_last_transaction_that_was_cut_short_is_no_damage(crashed: Path) -> None:
    flip(log_of(crashed), commits(log_of(crashed))[-1] + 99)
    open_database(crashed).close()
    assert len(names(crashed)) == 29


def test_frames_of_an_earlier_log_are_no_damage(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path / "tracker.db")
    for number in range(30):
        tracker.experiment(f"name {number}")
    with tracker.database.reading() as connection:
        connection.connection.cursor().execute("PRAGMA wal_checkpoint(RESTART)")
    tracker.experiment("another")
    assert len(commits(log_of(tmp_path / "tracker.db"))) > 2
    open_database(tmp_path / "tracker.db").close()
    tracker.close()
    assert len(names(tmp_path / "tracker.db")) == 31


def test_a_log_that_is_begun_anew_while_it_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Tracker(tmp_path / "tracker.db")
    for number in range(60):
        tracker.experiment(f"name {number}")
    rounds = iter((40, 20))  # for each look at the log
    checksum = write_ahead_log._checksum

    def meanwhile(order: str, start: tuple[int, int], data: bytes) -> tuple[int, int]:
        if len(data) == 24:  # of the header, before any frame is read
            with contextlib.closing(sqlite3.connect(tmp_path / "tracker.db")) as other:
                assert other.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0] == 0
            for number in range(count := next(rounds)):
                tracker.experiment(f"{count} {number}")
        return checksum(order, start, data)

    monkeypatch.setattr(write_ahead_log, "_checksum", meanwhile)
    assert write_ahead_log.dropped_transactions(log_of(tmp_path / "tracker.db")) == 0
    tracker.close()


def test_another_process_keeps_the_log_that_this_one_uses(tmp_path: Path) -> None:
    """The check must not end this process's locks, or the other one deletes the log when it closes."""
    path = tmp_path / "tracker.db"
    Tracker(path).close()
    words = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "open\n"
        tracker = Tracker(path)
        open_database(path).close()
        other.communicate("")
    assert other.returncode == 0
    tracker.experiment("ours")
    with sqlite3.connect(path) as third:
        assert third.execute("SELECT count(*) FROM experiment WHERE name IN ('ours', 'theirs')").fetchone() == (2,)
    third.close()
    tracker.close()


@pytest.mark.parametrize("tries", [15, pytest.param(60, marks=pytest.mark.slow)])
def test_any_flipped_bit_is_reported_or_loses_at_most_the_last_transaction(
    crashed: Path, tmp_path: Path, tries: int
) -> None:
    draw, log = random.Random(0), log_of(crashed).read_bytes()
    kept: list[int | str] = []
    for number in range(tries):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "tracker.db"
        shutil.copy(crashed, path)
        log_of(path).write_bytes(log)
        flip(log_of(path), draw.randrange(len(log)))
        try:
            open_database(path).close()
        except DatabaseError as error:
            kept.append(str(error))
        else:
            kept.append(len(names(path)))
    reported = [one for one in kept if isinstance(one, str)]
    assert len(reported) > tries / 2
    assert all("transactions without an error" in one for one in reported)
    assert {one for one in kept if isinstance(one, int)} <= {29, 30}
