"""Liveness checks for the processes that hold stages; no host name is stored.

Heartbeats are written and compared by the database's clock, since the clocks of several machines differ.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

RECONNECT_SECONDS = 120.0
"""Seconds that a writer waits for an unreachable server: a restart must not end a stage."""
STALE_SECONDS = RECONNECT_SECONDS + 60.0
"""A running stage without a heartbeat for this long is considered dead.

This is the time a process waits for an unreachable server, plus one minute to detect the broken connection, to make
the last reconnection attempt and to write the next heartbeat.
"""


@functools.cache
def place() -> str:
    """Return an opaque id of this machine and process namespace: equal for processes that can see each other's pids."""
    parts = [_read("/proc/sys/kernel/random/boot_id") or str(uuid.getnode())]
    try:
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        parts.append(sys.platform)
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:32]


def started(pid: int) -> str:
    """Return the start time of a process in kernel ticks; empty if it is unknown or the process is gone."""
    fields = _stat_fields(pid)
    return fields[19] if len(fields) > 19 else ""


def now(connection: Connection) -> float:
    """Return unix seconds by the database's clock; for SQLite this is the clock of this machine."""
    if connection.dialect.name == "postgresql":
        return float(connection.scalar(text("SELECT CAST(extract(epoch FROM clock_timestamp()) AS float8)")) or 0)
    return time.time()


def who() -> dict[str, Any]:
    """Return the columns that mark a row as held by this process."""
    return {"place": place(), "pid": os.getpid(), "pid_started": started(os.getpid())}


def is_ours(row: Any) -> bool:
    """Whether a row is held by this process."""
    return (row.place, row.pid, row.pid_started) == tuple(who().values())


def named(row: Any, moment: float) -> str:
    """Describe the process that holds a row."""
    where = "" if row.place == place() else " on another machine"
    return f"process {row.pid}{where}, alive {max(0.0, moment - row.heartbeat_at):.0f} s ago"


def is_dead(row: Any, moment: float) -> bool:
    """Whether the process of a row is gone: it ended on this machine, or its heartbeat is too old.

    ``moment`` is the result of :func:`now`.
    """
    return moment - row.heartbeat_at > STALE_SECONDS or has_ended(row.place, row.pid, row.pid_started)


def has_ended(where: str, pid: int | None, pid_started: str) -> bool:
    """Whether the process is known to be gone: it ran on this machine and no longer exists."""
    if pid is None or where != place():
        return False
    fields = _stat_fields(pid)
    if fields:
        reused = bool(pid_started and len(fields) > 19 and fields[19] != pid_started)
        return fields[0] in "ZX" or reused
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the process name, which may contain spaces and brackets."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
