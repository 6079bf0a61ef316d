"""What a service is: one writer, which gets runs, metrics, facts and texts. A service is a file beside this one."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from db import Database
from recovery.errors import UsageError
from recovery.lazy_import import lazily
from recovery.workspace import Workspace

if TYPE_CHECKING:
    from pipelines.forwarding import forwarder
else:
    forwarder = lazily("pipelines.forwarding.forwarder")  # only a session with a service needs it

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


# The services that a session's stages are sent to while they run: one process each, which reads the tracker.
#
# In a process of its own a service cannot stop, slow or change the training, whatever its package does: threads,
# signal handlers, waiting for a network. It outlives a training process that is killed and sends that one's last
# steps.

PATIENCE = 30.0
"""Seconds that the end of a session waits for the services."""


class SessionCopies:
    """Copies of a session's stages in the services of its workspace. A context; its end says what was not sent."""

    def __init__(
        self, workspace: Workspace, database: Database, experiment_id: int, say: Callable[[str], None]
    ) -> None:
        self.workspace, self.database, self.experiment_id = workspace, database, experiment_id
        self._say = say
        self._stages: set[int] = set()
        self._processes: dict[str, tuple[subprocess.Popen[bytes], threading.Thread]] = {}

    def add(self, stage_id: int) -> None:
        """Send a stage, from now to its end."""
        self._stages.add(stage_id)
        for service in self.workspace.report_to:
            if service not in self._processes:
                self._processes[service] = self._started(service)
            commands = self._processes[service][0].stdin
            assert commands is not None  # it is a pipe
            with contextlib.suppress(OSError):  # the process is gone: the end says what is missing
                commands.write(f"{stage_id}\n".encode())
                commands.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for process, _ in self._processes.values():
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
        deadline = time.monotonic() + PATIENCE
        for service, (process, relay) in self._processes.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.wait()
            relay.join()
            source = forwarder.Source(self.workspace, self.database, self.experiment_id)
            if missing := forwarder.Forwarder(service, source).missing(self._stages):
                log = self.workspace.reported / service / "log.txt"
                self._say(f"{service} did not get {missing} ({log}): recover sync --report-to {service}")

    def _started(self, service: str) -> tuple[subprocess.Popen[bytes], threading.Thread]:
        workspace = self.workspace
        folder = workspace.reported / service
        folder.mkdir(parents=True, exist_ok=True)
        # Of several processes of a training only this one sends; the address may contain a password.
        env = {k: v for k, v in os.environ.items() if k not in ("WORLD_SIZE", "RECOVER_DATABASE", "RECOVER_REPORT_TO")}
        env |= {"RECOVER_DATABASE": workspace.tracker} if workspace.tracker else {}
        command = [sys.executable, "-m", "recovery", "sync", "--follow", "--report-to", service]
        with (folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--workspace", str(workspace.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                start_new_session=True,  # Ctrl-C is for the training, which ends this one
            )
        relay = threading.Thread(target=self._relay, args=(process,), daemon=True)
        relay.start()
        return process, relay

    def _relay(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # it is a pipe
        for line in process.stdout:
            self._say(line.decode(errors="replace").rstrip())
