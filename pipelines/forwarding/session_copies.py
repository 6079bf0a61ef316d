"""The services that a session's stages are sent to while they run: one process each, which reads the tracker.

In a process of its own a service cannot stop, slow or change the training, whatever its package does: threads, signal
handlers, waiting for a network. It outlives a training process that is killed and sends that one's last steps.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from db import Database
from recovery.lazy_import import lazily
from recovery.workspace import Workspace

if TYPE_CHECKING:
    from pipelines.forwarding import forwarder
else:
    forwarder = lazily("pipelines.forwarding.forwarder")  # only a session with a service needs it

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
