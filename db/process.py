"""Is the process that runs a stage still alive? Asked without storing which machine it is on.

Signs of life are written and judged by the database's clock: those of several machines differ.
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

from db.session import RECONNECT_SECONDS

STALE_SECONDS = RECONNECT_SECONDS + 60.0
"""A running stage that gave no sign of life for this long is taken for dead.

Longer than its process waits for a server that went away, with a minute for what comes before and after that wait: a
broken connection to be noticed, the last attempt at a new one, the next sign of life.
"""


@functools.cache
def place() -> str:
    """An opaque word for "here": the same for processes that can see each other's process ids."""
    parts = [_read("/proc/sys/kernel/random/boot_id") or str(uuid.getnode())]
    try:
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        parts.append(sys.platform)
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:32]


def started(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty where the system does not tell or it is gone."""
    fields = _stat_fields(pid)
    return fields[19] if len(fields) > 19 else ""


def now(connection: Connection) -> float:
    """Unix seconds by the database's clock; a SQLite file's is the clock of this machine."""
    if connection.dialect.name == "postgresql":
        return float(connection.scalar(text("SELECT CAST(extract(epoch FROM clock_timestamp()) AS float8)")) or 0)
    return time.time()


def who() -> dict[str, Any]:
    """The columns that say that this process holds something."""
    return {"place": place(), "pid": os.getpid(), "pid_started": started(os.getpid())}


def is_ours(row: Any) -> bool:
    """Whether a row is held by this very process."""
    return (row.place, row.pid, row.pid_started) == tuple(who().values())


def named(row: Any, moment: float) -> str:
    """The process that holds a row, in words."""
    where = "" if row.place == place() else " on another machine"
    return f"process {row.pid}{where}, alive {max(0.0, moment - row.heartbeat_at):.0f} s ago"


def is_dead(row: Any, moment: float) -> bool:
    """Whether the process of a stage's row is gone: known to have ended here, or silent for too long.

    ``moment`` is :func:`now`.
    """
    return moment - row.heartbeat_at > STALE_SECONDS or has_ended(row.place, row.pid, row.pid_started)


def has_ended(where: str, pid: int | None, pid_started: str) -> bool:
    """True only if the process is known to be gone: it lived here, and no such process lives here now."""
    if pid is None or where != place() or sys.platform == "win32":
        return False
    fields = _stat_fields(pid)
    if fields:
        ended = fields[0] in "ZX"
        return ended or bool(pid_started and len(fields) > 19 and fields[19] != pid_started)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the process name, which may itself hold spaces and brackets."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
