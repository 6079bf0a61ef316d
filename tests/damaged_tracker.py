"""Damage to a tracker's file that SQLite does not notice by itself."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path


def hide_rows(path: Path, table: str) -> None:
    """Let an index of ``table`` in a SQLite file hold no row, as a wrong byte can."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = database.execute("PRAGMA page_size").fetchone()
        query = "SELECT rootpage FROM sqlite_master WHERE type = 'index' AND tbl_name = ?"
        (page,) = database.execute(query, (table,)).fetchone()
    data = bytearray(path.read_bytes())
    data[(page - 1) * size + 3 : (page - 1) * size + 5] = b"\0\0"  # how many rows the page holds
    path.write_bytes(data)
