"""Two sides of a comparison, each in a process of its own, which take turns step by step.

A child prints a marked line when it is ready for a step, waits for a line, does the step and prints what it took. What
runs beside the benchmark then disturbs both sides alike, and neither holds the other's memory.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import _resident

MARK = "@"  # begins the lines that the parent reads; libraries print others


@dataclass
class Turn:
    """In the child: waits for the word to go, and reports how long the step took and what it held at most.

    Memory is what is held above that at the making of this object: make it before anything is loaded.
    """

    started: float = 0.0
    worked: float = 0.0
    empty: float = field(default_factory=_resident.now)

    def wait(self) -> None:
        """Say that the next step can begin, and wait until it may; the process ends where it never may."""
        print(f"{MARK}{{}}", flush=True)
        if not sys.stdin.readline():
            sys.exit(0)
        _resident.now()  # the peak is that of the step
        self.started, self.worked = time.perf_counter(), time.process_time()

    def report(self, **facts: float) -> None:
        """The seconds since then and the peak, with what else is to be known of the step."""
        seconds, processor = time.perf_counter() - self.started, time.process_time() - self.worked
        found = {"seconds": seconds, "processor seconds": processor, "megabytes": _resident.peak() - self.empty}
        print(MARK + json.dumps(found | facts), flush=True)


@dataclass
class Side:
    """In the parent: a running side, and what its steps reported."""

    name: str
    process: subprocess.Popen[str]
    errors: Path
    steps: list[dict[str, float]] = field(default_factory=list)

    @classmethod
    def start(cls, module: str, name: str, job: Mapping[str, Any], folder: Path) -> Side:
        """Start ``python -m MODULE --side NAME --job JSON`` and wait until it is ready for its first step.

        ``job`` holds "threads".
        """
        command = [sys.executable, "-m", module, "--side", name, "--job", json.dumps(dict(job))]
        environment = {**os.environ, "OMP_NUM_THREADS": str(job["threads"]), "HF_HUB_OFFLINE": "1"}
        errors = folder / f"{name}.log"
        with errors.open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        side = cls(name, process, errors)
        side._read()
        return side

    def take_turn(self, last: bool) -> None:
        """One step."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.steps.append(self._read())
        if not last:
            self._read()

    def counted(self) -> list[dict[str, float]]:
        """The steps after the warm-up."""
        return self.steps[1:]

    def fastest(self, key: str) -> float:
        """The least of a figure over the steps that count."""
        return min(step[key] for step in self.counted())

    def largest(self, key: str) -> float:
        """The most of it."""
        return max(step[key] for step in self.counted())

    def middle(self, key: str) -> float:
        """Its median."""
        return statistics.median(step[key] for step in self.counted())

    def _read(self) -> dict[str, float]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(MARK):
                found: dict[str, float] = json.loads(line[len(MARK) :])
                return found
        raise SystemExit(f"{self.name} ended early:\n{self.errors.read_text(encoding='utf-8')[-3000:]}")


def take_turns(sides: Sequence[Side], steps: int) -> None:
    """One step of each, in an order that turns round, until all are done."""
    for step in range(steps):
        for side in sides if step % 2 == 0 else reversed(sides):
            side.take_turn(last=step == steps - 1)
    for side in sides:
        side.process.communicate()
