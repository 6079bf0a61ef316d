"""Damage to files, and what may be said of it."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import tempfile
from pathlib import Path

from tests.torture.process import Ended
from tests.torture.world import WORKSPACE

# What is said of a damaged tracker, in small letters: one of these.
TRACKER = (
    # SQLite's own words, after "cannot be opened", "read" or "written".
    *("database disk image is malformed", "file is not a database", "malformed database schema", "no such table"),
    *("no such column", "unsupported file format", "disk i/o error", "constraint failed", "database corruption"),
    # The cells that hold the schema, or the experiment of the workspace, are damaged, or lost with the newest writes.
    *(
        "is damaged",
        "holds a damaged value",
        "was written by a newer version",
        "contains no tracker yet",
        "no tracker database at",
        "has no record of",
    ),
)


def said(ended: Ended, words: tuple[str, ...], place: Path | str = WORKSPACE) -> list[str]:
    """Return what is wrong with how a command refused: it must be one line that names reason and place."""
    if ended.complaint:
        return [ended.complaint]
    if ended.status != 1:
        return [f"status {ended.status}, not 1"]
    line = ended.error
    if ended.err.count("recover: error: ") != 1:
        return [f"not one error line: {ended.err[-500:]}"]
    if not any(word in line.lower() for word in words) or str(place) not in line:
        return [f"the line does not say what is wrong and where: {line}"]
    return []


def damage(path: Path, draw: random.Random) -> str:
    """Flip one bit, cut the file, or overwrite a part of it; return which."""
    data = bytearray(path.read_bytes())
    way = draw.choice(("one bit", "the end", "a part"))
    at = draw.randrange(len(data))
    if way == "one bit":
        data[at] ^= 1 << draw.randrange(8)
    elif way == "the end":
        del data[at:]
    else:
        data[at : at + 4096] = draw.randbytes(len(data[at : at + 4096]))
    path.write_bytes(data)
    return way


def settle(tracker: Path) -> None:
    """Move all that is written into the tracker's file itself: pages that the log also holds are not read from it."""
    with contextlib.closing(sqlite3.connect(tracker)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def contents(tracker: Path) -> list[str] | None:
    """Return all that a tracker holds, read from a copy; None if SQLite finds that it is damaged."""
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        for file in tracker.parent.glob(f"{tracker.name}*"):
            shutil.copy(file, folder)
        try:
            with contextlib.closing(sqlite3.connect(Path(folder) / tracker.name)) as database:
                sound = database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                return list(database.iterdump()) if sound else None
        except (sqlite3.Error, UnicodeDecodeError):
            return None
