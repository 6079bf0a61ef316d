"""What is read from one log of another tool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from recovery.types import SuiteResult


@dataclass(frozen=True)
class ImportedLog:
    """One log of one model. ``date`` sorts by time; ``problems`` are what could not be used, in one line each."""

    tool: str
    version: str
    model: str
    date: str
    file: Path
    results: tuple[SuiteResult, ...]
    problems: tuple[str, ...] = ()
