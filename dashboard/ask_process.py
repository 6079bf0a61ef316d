"""Prompts to checkpoints: runs `recover ask` in a subprocess, one at a time, with a timeout.

The dashboard loads no model. The prompt is passed over standard input, so that no process list shows it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ERROR = "recover: error: "


@dataclass(frozen=True)
class Reply:
    """The response of a checkpoint with its tokens and seconds; not ``finished`` means cut off."""

    checkpoint: str
    answer: str
    tokens: int
    seconds: float
    finished: bool


class Asking:
    """One running prompt. ``replies`` or ``problem`` is set once :meth:`wait` has returned True."""

    def __init__(
        self,
        command: Sequence[str],
        prompt: str,
        seconds: float,
        done: Callable[[], None],
        environment: Mapping[str, str],
    ) -> None:
        self.command, self.prompt, self.seconds, self.done = command, prompt, seconds, done
        self.environment = environment
        self.last_line = "starting"
        self.replies: list[Reply] = []
        self.problem = ""
        self._began = time.monotonic()
        self._stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds``; return whether the process has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Kill the process, even if it is only being started."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()

    def _run(self) -> None:
        try:
            with tempfile.TemporaryFile() as output:
                status = self._communicate(output)
                output.seek(0)
                self._read_result(status, output.read())
        except (OSError, ValueError, TypeError) as error:  # no such program, no JSON, other fields
            self.problem = f"`recover ask` could not be run: {error}"
        finally:
            self.done()

    def _communicate(self, output: IO[bytes]) -> int:
        """Run the process to its end or its timeout; return its exit status."""
        pipe, environment = subprocess.PIPE, {**os.environ, **self.environment, "PYTHONUTF8": "1"}
        with subprocess.Popen(self.command, stdin=pipe, stdout=output, stderr=pipe, env=environment) as process:
            self._process = process
            if self._stopped:
                process.kill()
            assert process.stdin is not None and process.stderr is not None
            timer = threading.Timer(self.seconds, self.stop)
            timer.start()
            try:
                with contextlib.suppress(BrokenPipeError):  # it ended before reading: its last line tells why
                    process.stdin.write(self.prompt.encode("utf-8", errors="replace"))
                    process.stdin.close()
                for line in process.stderr:
                    self.last_line = line.decode("utf-8", errors="replace").strip() or self.last_line
                return process.wait()
            finally:
                timer.cancel()

    def _read_result(self, status: int, output: bytes) -> None:
        """Set ``replies`` or ``problem`` from the exit status and the output."""
        if status == 0:
            self.replies = [Reply(**one) for one in json.loads(output)]
        elif status < 0 and self.elapsed >= self.seconds:
            self.problem = (
                f"There was no answer within {self.seconds:,.0f} s; the process was stopped while {self.last_line}. "
                "Choose fewer checkpoints or fewer tokens, or raise --ask-timeout."
            )
        elif status < 0:
            self.problem = f"The process was killed (signal {-status}) while {self.last_line}: was there enough memory?"
        else:
            self.problem = self.last_line.removeprefix(ERROR)


class Asker:
    """Sends prompts to the checkpoints of workspaces; ``seconds`` is the timeout of one prompt."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._busy = threading.Lock()
        self._now: Asking | None = None

    def begin(
        self, workspace: Path, names: Sequence[str], prompt: str, tokens: int, environment: Mapping[str, str]
    ) -> Asking | None:
        """Start a prompt; None while another one is running. ``environment`` contains the tracker's address."""
        if not self._busy.acquire(blocking=False):
            return None
        options = [f"--checkpoint={name}" for name in names]
        command = [sys.executable, "-m", "recovery", "ask", "-", f"--workspace={workspace}", *options]
        command += [f"--max-new-tokens={tokens}", "--json"]
        self._now = Asking(command, prompt, self.seconds, self._busy.release, environment)
        return self._now

    def stop(self) -> None:
        """Stop the running prompt when the dashboard closes."""
        if self._now is not None:
            self._now.stop()
