"""Traps in a forked process: they count its writes by kind, and act on it just before the n-th of a kind.

A kind is the first word of what is about to happen in the watched folder: "open" (for writing), "write", "sync",
"rename", "remove", "folder", "tensors" (a safetensors file), "statement" and "commit" (of the tracker), "update" (of
the weights). What the tracker's background thread does has kinds of its own ("thread-commit"): its timing varies.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import safetensors.torch
from safetensors import SafetensorError
from torch.optim.optimizer import register_optimizer_step_pre_hook

# Kinds that need room on the disk.
GROWING = ("open", "write", "sync", "folder", "tensors", "statement", "commit")
READING = ("SELECT", "PRAGMA", "BEGIN", "ROLLBACK")


@dataclass
class Trap:
    """Counts what happens under ``folder``; ``act`` is called with the kind and its object before number ``at`` of
    ``kind``, and, with ``lasting``, before everything of the ``GROWING`` kinds after it.
    """

    folder: Path
    kind: str = ""
    at: int = 0
    act: Callable[[str, str], None] | None = None
    lasting: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    sprung: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def meets(self, kind: str, thing: object) -> bool:
        """Count one event; return whether ``act`` is due."""
        if threading.current_thread() is not threading.main_thread():
            kind = f"thread-{kind}"
        with self._lock:
            self.counts[kind] += 1
            due = kind == self.kind and self.counts[kind] == self.at
            if due:
                self.sprung = f"{kind} {self.at}: {' '.join(str(thing).split())[:160]}"
            return due or (self.lasting and bool(self.sprung) and kind.removeprefix("thread-") in GROWING)

    def before(self, kind: str, thing: object) -> None:
        """Count one event, and act if it is due."""
        if self.meets(kind, thing) and self.act is not None:
            self.act(kind, str(thing))

    def watches(self, path: object) -> bool:
        """Whether a path is in the watched folder."""
        if isinstance(path, int):
            return False
        name = os.fsdecode(path)  # type: ignore[arg-type]
        return Path(os.path.abspath(name)).is_relative_to(self.folder)  # noqa: PTH100  (no links are followed)


def die(_kind: str, _thing: str) -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def fails_with(number: int) -> Callable[[str, str], None]:
    """Return an action that raises what the failing call would raise on a full or broken disk."""
    words = {28: "database or disk is full"}.get(number, "disk I/O error")

    def fail(kind: str, thing: str) -> None:
        kind = kind.removeprefix("thread-")
        if kind in ("statement", "commit"):
            raise sqlite3.OperationalError(words)
        if kind == "tensors":
            reason = f"{os.strerror(number)} (os error {number})"
            raise SafetensorError(f"Error while serializing: I/O error: {reason}")
        raise OSError(number, os.strerror(number), thing)

    return fail


def lay(trap: Trap) -> None:
    """Watch this process, which is a forked one, to its end."""
    _watch_os(trap)
    _watch_files(trap)
    _watch_sqlite(trap)
    _watch_postgresql(trap)
    _watch_tensors(trap)
    register_optimizer_step_pre_hook(lambda *_: trap.before("update", "weights"))


def set_clock_back(seconds: float) -> Callable[[str, str], None]:
    """Return an action after which the clock of this process shows an earlier time."""
    real = time.time

    def act(_kind: str, _thing: str) -> None:
        time.time = lambda: real() - seconds  # type: ignore[assignment]

    return act


def _watch_os(trap: Trap) -> None:
    def watched(kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **options: Any) -> Any:
            # shutil.rmtree gives names relative to an open folder.
            if options.get("dir_fd") is not None or trap.watches(path):
                trap.before(kind, path)
            return real(path, *args, **options)

        return call

    for kind, names in {"rename": ("rename", "replace"), "remove": ("unlink", "rmdir"), "folder": ("mkdir",)}.items():
        for name in names:
            setattr(os, name, watched(kind, getattr(os, name)))
    synced = os.fsync

    def sync(handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")  # noqa: PTH115
        if trap.watches(path):
            trap.before("sync", path)
        synced(handle)

    os.fsync = sync


class _File:
    """A file opened for writing, of which every write is watched. An act leaves half of the data in the file."""

    def __init__(self, trap: Trap, file: Any, name: str) -> None:
        self._trap, self._file, self._name = trap, file, name

    def write(self, data: Any) -> Any:
        if self._trap.meets("write", self._name) and self._trap.act is not None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()
            self._trap.act("write", self._name)
            return len(data) // 2 + self._file.write(data[len(data) // 2 :])
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __iter__(self) -> Any:
        return iter(self._file)

    def __enter__(self) -> _File:
        self._file.__enter__()
        return self

    def __exit__(self, *ended: Any) -> Any:
        return self._file.__exit__(*ended)


def _watch_files(trap: Trap) -> None:
    opened = io.open

    def opening(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if not set(mode) & set("wax+") or isinstance(file, int) or not trap.watches(file):
            return opened(file, mode, *args, **options)
        trap.before("open", file)
        return _File(trap, opened(file, mode, *args, **options), str(file))

    io.open = builtins.open = opening  # type: ignore[assignment]


def _watch_sqlite(trap: Trap) -> None:
    connected = sqlite3.connect

    class Cursor(sqlite3.Cursor):
        def execute(self, statement: str, *args: Any) -> Any:
            _before_statement(trap, statement)
            return super().execute(statement, *args)

        def executemany(self, statement: str, *args: Any) -> Any:
            _before_statement(trap, statement)
            return super().executemany(statement, *args)

    class Connection(sqlite3.Connection):
        def cursor(self, *_: Any) -> Any:
            return super().cursor(Cursor)

        def execute(self, statement: str, *args: Any) -> Any:
            return self.cursor().execute(statement, *args)

        def executemany(self, statement: str, *args: Any) -> Any:
            return self.cursor().executemany(statement, *args)

        def commit(self) -> None:
            if self.in_transaction:
                trap.before("commit", "COMMIT")
            super().commit()

    def connect(database: Any, *args: Any, **options: Any) -> sqlite3.Connection:
        options["factory"] = Connection
        return connected(database, *args, **options)

    sqlite3.connect = sqlite3.dbapi2.connect = connect  # type: ignore[assignment, attr-defined]


def _watch_postgresql(trap: Trap) -> None:
    execute, many, committed = psycopg.Cursor.execute, psycopg.Cursor.executemany, psycopg.Connection.commit

    def executing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(cursor: Any, statement: Any, *args: Any, **options: Any) -> Any:
            _before_statement(trap, str(statement))
            return real(cursor, statement, *args, **options)

        return call

    def commit(connection: Any) -> None:
        trap.before("commit", "COMMIT")
        committed(connection)

    psycopg.Cursor.execute = executing(execute)  # type: ignore[method-assign]
    psycopg.Cursor.executemany = executing(many)  # type: ignore[method-assign]
    psycopg.Connection.commit = commit  # type: ignore[method-assign]


def _before_statement(trap: Trap, statement: str) -> None:
    if not statement.lstrip().upper().startswith(READING):
        trap.before("statement", statement)


def _watch_tensors(trap: Trap) -> None:
    real = safetensors.torch.serialize_file

    def serialize(tensors: Any, name: Any, *args: Any, **options: Any) -> None:
        if trap.watches(name) and trap.meets("tensors", name) and trap.act is not None:
            real(tensors, name, *args, **options)
            os.truncate(name, Path(name).stat().st_size // 2)
            trap.act("tensors", str(name))
        real(tensors, name, *args, **options)

    safetensors.torch.serialize_file = serialize
