"""Databases to test with."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from db import Database, Tracker, open_readonly


def _seeding() -> ModuleType:
    if "tracker_seeding" not in sys.modules:
        spec = importlib.util.spec_from_file_location("tracker_seeding", Path(__file__).with_name("seeding.py"))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["tracker_seeding"] = module
        spec.loader.exec_module(module)
    return sys.modules["tracker_seeding"]


def _seed(*arguments: Any, **settings: Any) -> Any:
    return _seeding().seed(*arguments, **settings)


@pytest.fixture(scope="session")
def seeding() -> ModuleType:
    """The module that fills databases."""
    return _seeding()


@pytest.fixture(scope="session")
def seed() -> Callable[..., Any]:
    """``seed(path, cycles=3, ...)`` fills a database; see seeding.py."""
    return _seed


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A database of three finished cycles, to read only."""
    return _seed(tmp_path_factory.mktemp("seeded") / "tracker.db")


@pytest.fixture(scope="session")
def readable(seeded: Any) -> Database:
    """The seeded database, open for reading."""
    return open_readonly(seeded.path)


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[Tracker]:
    """An empty tracker."""
    with Tracker(tmp_path / "tracker.db", flush_seconds=0.05, heartbeat_seconds=0.1) as opened:
        yield opened


@pytest.fixture
def experiment(tracker: Tracker) -> int:
    """An experiment in ``tracker``."""
    return tracker.experiment("default", base_model="miniature")
