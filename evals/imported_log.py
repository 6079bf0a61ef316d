"""What is read from one log of another tool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from recovery.types import SuiteResult


@dataclass(frozen=True)
class ImportedLog:
    """One log of one model. ``date`` sorts by time; ``problems`` are what could not be used, in one line each.

    ``groups`` are the groups of tasks that were asked for, whose suites have names of their own.
    """

    tool: str
    version: str
    model: str
    date: str
    file: Path
    results: tuple[SuiteResult, ...]
    problems: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
