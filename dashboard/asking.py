"""Asking checkpoints: `recover ask` as a process of its own, one at a time, ended when its time is out.

The dashboard loads no model. The prompt goes over standard input, so that no list of processes shows it.
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
from types import MappingProxyType
from typing import IO

ERROR = "recover: error: "


@dataclass(frozen=True)
class Reply:
    """What a checkpoint answered in how many tokens and seconds; not ``finished`` means cut off."""

    checkpoint: str
    answer: str
    tokens: int
    seconds: float
    finished: bool


class Asking:
    """One prompt being answered. ``replies`` or ``problem`` is there once :meth:`wait` has returned True."""

    def __init__(
        self,
        command: Sequence[str],
        prompt: str,
        seconds: float,
        done: Callable[[], None],
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.command, self.prompt, self.seconds, self.done = command, prompt, seconds, done
        self.environment = environment
        self.heard = "starting"
        self.replies: list[Reply] = []
        self.problem = ""
        self._began = time.monotonic()
        self._ended, self._late, self._stopped = threading.Event(), False, False
        self._process: subprocess.Popen[bytes] | None = None
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def elapsed(self) -> float:
        """Seconds since it was begun."""
        return time.monotonic() - self._began

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, after ``seconds`` at most."""
        return self._ended.wait(seconds)

    def stop(self) -> None:
        """End its process, also where that is only just being started."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()

    def _run(self) -> None:
        try:
            with tempfile.TemporaryFile() as told:
                status = self._talk(told)
                told.seek(0)
                self._take(status, told.read())
        except (OSError, ValueError, TypeError) as error:  # no such program, no JSON, not of this form
            self.problem = f"`recover ask` could not be used: {error}"
        finally:
            self.done()
            self._ended.set()

    def _talk(self, told: IO[bytes]) -> int:
        """Run the process to its end, or to the end of its time; returns its status."""
        pipe, environment = subprocess.PIPE, {**os.environ, **self.environment, "PYTHONUTF8": "1"}
        with subprocess.Popen(self.command, stdin=pipe, stdout=told, stderr=pipe, env=environment) as process:
            self._process = process
            if self._stopped:
                process.kill()
            assert process.stdin is not None and process.stderr is not None
            timer = threading.Timer(self.seconds, self._time_out)
            timer.start()
            try:
                with contextlib.suppress(BrokenPipeError):  # it ended before it read: its last line says why
                    process.stdin.write(self.prompt.encode("utf-8", errors="replace"))
                    process.stdin.close()
                for line in process.stderr:
                    self.heard = line.decode("utf-8", errors="replace").strip() or self.heard
                return process.wait()
            finally:
                timer.cancel()

    def _time_out(self) -> None:
        self._late = True
        self.stop()

    def _take(self, status: int, told: bytes) -> None:
        """What the process has come to."""
        if status == 0:
            self.replies = [Reply(**one) for one in json.loads(told)]
        elif self._late:
            self.problem = (
                f"There was no answer within {self.seconds:,.0f} s, so it was ended while {self.heard}. Ask fewer "
                "checkpoints or for fewer tokens, or give more time with --ask-timeout."
            )
        elif status < 0:
            self.problem = f"It was ended from outside (signal {-status}) while {self.heard}: was there memory enough?"
        else:
            self.problem = self.heard.removeprefix(ERROR)


class Asker:
    """Puts prompts to the checkpoints of workspaces; ``seconds`` is what one prompt may take in all."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._busy = threading.Lock()
        self._now: Asking | None = None

    def begin(
        self, workspace: Path, names: Sequence[str], prompt: str, tokens: int, environment: Mapping[str, str]
    ) -> Asking | None:
        """Begin with a prompt; None while another one is being answered. ``environment`` says where the tracker is."""
        if not self._busy.acquire(blocking=False):
            return None
        options = [f"--checkpoint={name}" for name in names]
        command = [sys.executable, "-m", "recovery", "ask", "-", f"--workspace={workspace}", *options]
        command += [f"--max-new-tokens={tokens}", "--json"]
        self._now = Asking(command, prompt, self.seconds, self._busy.release, environment)
        return self._now

    def stop(self) -> None:
        """End what is being asked: the dashboard closes."""
        if self._now is not None:
            self._now.stop()
