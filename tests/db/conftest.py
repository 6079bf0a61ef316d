"""Trackers for tests; see tests/conftest.py for databases on both backends."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from db import Tracker


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
