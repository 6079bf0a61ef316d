"""Trackers for tests; see tests/conftest.py for databases on both backends."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from db import Tracker

ROOT = Path(__file__).resolve().parents[2]


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a program of its own."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, cwd=ROOT, text=True, **pipes)


def require_success(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Wait for the end of programs: none may fail or complain."""
    assert [(one.communicate()[1], one.returncode) for one in processes] == [("", 0)] * len(processes)


def wait_until(holds: Callable[[], object]) -> None:
    """Wait for what must come, as long as a busy machine may need."""
    deadline = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alter(tracker: Tracker, table: Any, **values: Any) -> None:
    """Change columns in every row of a table."""
    with tracker.database.writing() as connection:
        connection.execute(update(table).values(values))


@pytest.fixture
def tracker(address: Path | str, empty_tracker: Path) -> Iterator[Tracker]:
    """An empty tracker."""
    if isinstance(address, Path):
        shutil.copyfile(empty_tracker, address)
    with Tracker(address, flush_seconds=0.05, heartbeat_seconds=0.1) as opened:
        yield opened


@pytest.fixture
def experiment(tracker: Tracker) -> int:
    """An experiment in ``tracker``."""
    return tracker.experiment("default", base_model="miniature")
