"""What a service is: one writer, which gets runs, metrics, facts and texts. A service is a file beside this one."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from recovery.errors import UsageError

# Services by the name that --report-to takes, which is also that of the extra and of the package to import.
WRITERS = {
    "wandb": "pipelines.forwarding.wandb_writer",
    "mlflow": "pipelines.forwarding.mlflow_writer",
    "trackio": "pipelines.forwarding.trackio_writer",
    "swanlab": "pipelines.forwarding.swanlab_writer",
}
PROJECT = "recovery"


@dataclass(frozen=True)
class Run:
    """A stage or a cycle as one run of a service.

    ``key`` is unique among all trackers and always the same for a stage: a service continues the run that has it.
    ``started`` is in unix seconds.
    """

    key: str
    name: str
    group: str
    kind: str
    config: Mapping[str, Any]
    started: float


@dataclass(frozen=True)
class Row:
    """The metrics of one step, and the time of the step in unix seconds."""

    step: int
    metrics: Mapping[str, float]
    time: float


class Writer(Protocol):
    """A service. Has at most one run open; any method may raise, and is then tried again with a new writer."""

    durable: bool
    """Whether the service has what it was given when a method returns; otherwise only when ``close`` does."""

    def open(self, run: Run) -> None:
        """Start a run, or continue the one with this key."""

    def log(self, rows: Sequence[Row]) -> None:
        """Add metrics, in the order of their steps."""

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Set texts and numbers of the run that are no curves; a new value replaces the old one."""

    def text(self, name: str, markdown: str) -> None:
        """Store a page under the name of a file, such as cycle-1.md."""

    def close(self, status: str) -> None:
        """End the run as "finished", "failed" or "interrupted"; "running" if it will be continued."""


def check_services(names: Iterable[str]) -> None:
    """Raise UsageError for a name that is unknown, or whose package is not installed."""
    for name in names:
        if name not in WRITERS:
            raise UsageError(f"{name!r} is not a tracker that can be written to: use {', '.join(WRITERS)}")
        if importlib.util.find_spec(name) is None:
            raise UsageError(f"{name} is not installed: pip install 'recovery[{name}]'")


def new_writer(service: str) -> Writer:
    """Return a writer of a service, and import its package. Raises what the import raises."""
    made: Writer = importlib.import_module(WRITERS[service]).ServiceWriter()
    return made


def project_of(variable: str) -> str:
    """Return the project that runs belong to: that of the service's own environment variable, or "recovery"."""
    return os.environ.get(variable) or PROJECT
