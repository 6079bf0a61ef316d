"""Sends the tracker's records to one service; what arrived is noted in the workspace, so nothing is sent twice."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pipelines.forwarding.runs import Part, Source
from pipelines.forwarding.writer import Run, Writer, new_writer
from recovery.workspace import write_atomically

EVERY, LONGEST_WAIT = 2.0, 60.0  # seconds between two rounds; at most, while the service fails


class ServiceError(Exception):
    """A service raised, or its package did; the message is one line."""


class Forwarder:
    """One service, for one line of cycles.

    A writer that raised is dropped with everything that was not noted as sent; the next round starts with a new one.
    """

    def __init__(self, service: str, source: Source) -> None:
        self.service = service
        self._source = source
        self._writer: Writer | None = None
        self._run: Run | None = None
        self._marks: dict[str, Any] = {}  # of the open run

    def forward(self, stage_ids: Collection[int] | None = None) -> None:
        """Send what was not sent yet; see :meth:`Source.runs`. Raises ServiceError; the rest is sent by a later call.

        A stage's run stays open until the stage has ended.
        """
        with self._failing():
            for run, parts in self._source.runs(stage_ids):
                ends = None
                for part in parts(dict(self._marks) if self._is_open(run) else self._noted(run)):
                    self._send(run, part)
                    ends = part.ends or ends
                if ends is not None:
                    self._close(ends)

    def close(self) -> None:
        """Close the open run, whose stage may be continued later. Raises ServiceError."""
        with self._failing():
            self._close("running")

    def missing(self, stage_ids: Collection[int] | None = None) -> str:
        """Return in words what was not sent, "" if everything was."""
        left: Counter[str] = Counter()
        for run, parts in self._source.runs(stage_ids):
            for part in parts(self._noted(run)):
                left[part.kind] += part.count
        return ", ".join(f"{count:,} {kind if count > 1 else kind.removesuffix('s')}" for kind, count in left.items())

    def _send(self, run: Run, part: Part) -> None:
        writer = self._opened(run)
        if part.rows:
            writer.log(part.rows)
        if part.facts:
            writer.describe(part.facts)
        if part.text is not None:
            writer.text(*part.text)
        self._marks[part.kind] = part.mark
        if writer.durable:
            self._note()

    def _opened(self, run: Run) -> Writer:
        if self._writer is None:
            self._writer = new_writer(self.service)
        if not self._is_open(run):
            self._close("running")
            self._writer.open(run)
            self._run, self._marks = run, self._noted(run)
        return self._writer

    def _is_open(self, run: Run) -> bool:
        return self._run is not None and self._run.key == run.key

    def _close(self, status: str) -> None:
        if self._writer is not None and self._run is not None:
            self._writer.close(status)
            self._note()
        self._run = None

    def _note(self) -> None:
        assert self._run is not None  # only an open run has marks
        write_atomically(self._path(self._run), json.dumps(self._marks) + "\n")

    def _noted(self, run: Run) -> dict[str, Any]:
        try:
            return dict(json.loads(self._path(run).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def _path(self, run: Run) -> Path:
        return self._source.workspace.reported / self.service / f"{run.key}.json"

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a service's package raises
            self._writer, self._run, self._marks = None, None, {}
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise ServiceError(" ".join(lines[:1]).strip()[:200] or type(error).__name__) from error


def follow(forwarder: Forwarder, commands: int, say: Callable[[str], None]) -> None:
    """Send what is recorded for stages while they run: their ids are read from the file descriptor, one a line.

    Its end is the end of the session, whose rest is then sent. The first error is said; the service is tried again
    at growing intervals, and once more at the end.
    """
    ids: set[int] = set()
    buffer, open_, wait, said = b"", True, EVERY, False
    while open_:
        if select.select([commands], [], [], wait)[0]:
            read = os.read(commands, 4096)
            open_, buffer = bool(read), buffer + read
            *lines, buffer = buffer.split(b"\n")
            ids |= {int(line) for line in lines}
        try:
            forwarder.forward(ids)
            wait = EVERY
            if not open_:
                forwarder.close()
        except ServiceError as error:
            wait = min(2 * wait, LONGEST_WAIT)
            traceback.print_exc()  # to the log
            if not said:
                say(f"{forwarder.service}: {error}; the tracker has everything, and sends it when it can")
            said = True


# The services that a session's stages are sent to while they run: one process each, which reads the tracker. In a
# process of its own a service cannot stop, slow or change the training, whatever its package does: threads, signal
# handlers, waiting for a network. It outlives a training process that is killed and sends that one's last steps.


PATIENCE = 30.0
"""Seconds that the end of a session waits for the services."""


class SessionCopies:
    """Copies of a session's stages in the services of its workspace. A context; its end says what was not sent."""

    def __init__(self, source: Source, say: Callable[[str], None]) -> None:
        self.source = source
        self._say = say
        self._stages: set[int] = set()
        self._processes: dict[str, tuple[subprocess.Popen[bytes], threading.Thread]] = {}

    def add(self, stage_id: int) -> None:
        """Send a stage, from now to its end."""
        self._stages.add(stage_id)
        for service in self.source.workspace.report_to:
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
            if missing := Forwarder(service, self.source).missing(self._stages):
                log = self.source.workspace.reported / service / "log.txt"
                self._say(f"{service} did not get {missing} ({log}): recover sync --report-to {service}")

    def _started(self, service: str) -> tuple[subprocess.Popen[bytes], threading.Thread]:
        workspace = self.source.workspace
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
