"""The command line in forked processes: a parent that has imported everything starts one in milliseconds."""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.cli.main import run
from tests.torture.traps import Trap, lay

_IDLE = 2000  # times that a process was seen asleep, one after the other


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit status (negative: the signal), its output, what the trap counted and met."""

    status: int
    out: str
    err: str
    counts: Counter[str] = field(default_factory=Counter)
    sprung: str = ""
    seconds: float = 0.0

    @property
    def complaint(self) -> str:
        """What is wrong with how it ended: "" if it did what it should, or said in one line why not."""
        if "Traceback" in self.err:
            return f"a traceback: {self.err.strip().splitlines()[-1][:300]}"
        if self.status == 1 and "recover: error: " not in self.err:
            return f"status 1 without an error line: {self.err[-300:]}"
        if self.status not in (0, 1, 130, -signal.SIGKILL, -signal.SIGTERM):  # the last, before the work begins
            return f"status {self.status}: {self.err[-300:]}"
        return ""

    @property
    def error(self) -> str:
        """Its error line."""
        lines = [line for line in self.err.splitlines() if line.startswith("recover: error: ")]
        return lines[-1] if lines else ""


@dataclass
class Child:
    """A command that runs."""

    pid: int
    folder: Path
    began: float = field(default_factory=time.monotonic)
    status: int | None = None

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end, or for it to be stopped by SIGSTOP; False if ``seconds`` pass first."""
        while True:
            flags = os.WUNTRACED | (0 if seconds is None else os.WNOHANG)
            pid, status = os.waitpid(self.pid, flags)
            if pid:
                self.status = None if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
                return True
            if seconds is not None and time.monotonic() - self.began > seconds:
                return False
            time.sleep(0.02)

    def ended(self) -> Ended:
        """Wait for its end and return it."""
        while self.status is None:
            self.wait()
        known = self.folder / "trap.json"
        trap = json.loads(known.read_text()) if known.is_file() else {"counts": {}, "sprung": ""}
        out, err = ((self.folder / name).read_text(errors="replace") for name in ("out", "err"))
        seconds = time.monotonic() - self.began
        return Ended(self.status or 0, out, err, Counter(trap["counts"]), trap["sprung"], seconds)


def start(
    arguments: Sequence[str | Path],
    folder: Path,
    trap: Trap | None = None,
    before: Callable[[], None] = lambda: None,
) -> Child:
    """Start ``recover ARGUMENTS`` in a folder, which also takes its output; ``before`` is called in its process."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trap.json").unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            before()
            _become([str(argument) for argument in arguments], folder, trap)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)  # nothing of the parent's may run here
    return Child(pid, folder)


def waited_out(pid: int, ended: Callable[[], bool]) -> bool:
    """Wait until a process has ``ended``; False if it waits for something that never comes: it is killed then."""
    idle, used = 0, 0
    while not ended():
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks = int(fields[11]) + int(fields[12])
        idle, used = (idle + 1 if fields[0] == "S" and ticks == used else 0), ticks
        if idle > _IDLE:
            os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.005)
    return True


def limit(memory: int, seconds: int) -> None:
    """Bound what this process, which is a forked one, may add to its memory, and use of processor time."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    used = int(time.process_time()) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, used + seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def recover(arguments: Sequence[str | Path], folder: Path, trap: Trap | None = None) -> Ended:
    """Run ``recover ARGUMENTS`` to its end."""
    return start(arguments, folder, trap).ended()


def _become(arguments: list[str], folder: Path, trap: Trap | None) -> None:
    """Turn this forked process into the command; never returns."""
    atexit._clear()  # what the parent does at its end is not this process's
    os.chdir(folder)
    for handle, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), handle)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    note = folder / "trap.json"
    if trap is not None:
        _note_when_sprung(trap, note)
        lay(trap)
    status = _finished(lambda: run(arguments))
    if trap is not None:
        os.write(os.open(note, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), _noted(trap))
    os._exit(status)


def _finished(work: Callable[[], int]) -> int:
    """Do the work, then what Python does at the end of a process; return the exit status."""
    status = 1
    try:
        status = work()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:
        status = 130
        traceback.print_exc()
    except BaseException:
        traceback.print_exc()
    try:
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _noted(trap: Trap) -> bytes:
    return json.dumps({"counts": trap.counts, "sprung": trap.sprung}).encode()


def _note_when_sprung(trap: Trap, note: Path) -> None:
    """Write down what the trap met before it acts: it may end the process."""
    act = trap.act
    if act is None:
        return

    def noting(kind: str, thing: str) -> None:
        handle = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(handle, _noted(trap))
        os.close(handle)
        act(kind, thing)

    trap.act = noting
