"""Two sides of a comparison in separate processes that alternate step by step.

A child prints a marked line when it is ready for a step, waits for a line, runs the step and prints its measurements.
Other load on the machine then affects both sides equally, and neither side's memory includes the other's.
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

MARK = "@"  # prefix of the lines for the parent; libraries print other lines


@dataclass
class Turn:
    """In the child: wait for the signal to start a step, and report its time and its peak memory.

    Memory is counted above the level at which this object is created: create it before anything is loaded. On a CUDA
    device it is that of the device.
    """

    device: str = "cpu"
    started: float = 0.0
    worked: float = 0.0
    empty: float = field(init=False)

    def __post_init__(self) -> None:
        self.empty = _resident.now(self.device)

    def wait(self) -> None:
        """Signal readiness for the next step, and wait for the start signal; exit the process if there is none."""
        print(f"{MARK}{{}}", flush=True)
        if not sys.stdin.readline():
            sys.exit(0)
        _resident.now(self.device)  # resets the peak to measure this step only
        self.started, self.worked = time.perf_counter(), time.process_time()

    def report(self, **facts: float) -> None:
        """Print the step's seconds and peak memory, together with ``facts``."""
        _resident.finish(self.device)
        seconds, processor = time.perf_counter() - self.started, time.process_time() - self.worked
        found = {
            "seconds": seconds,
            "processor seconds": processor,
            "megabytes": _resident.peak(self.device) - self.empty,
        }
        print(MARK + json.dumps(found | facts), flush=True)


@dataclass
class Side:
    """In the parent: a running side, and the measurements of its steps."""

    name: str
    process: subprocess.Popen[str]
    errors: Path
    steps: list[dict[str, float]] = field(default_factory=list)

    @classmethod
    def start(cls, module: str, name: str, job: Mapping[str, Any], folder: Path) -> Side:
        """Start ``python -m MODULE --side NAME --job JSON`` and wait until it is ready for its first step.

        ``job`` must contain "threads".
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
        """Run one step."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.steps.append(self._read())
        if not last:
            self._read()

    def counted(self) -> list[dict[str, float]]:
        """Return the steps after the warm-up."""
        return self.steps[1:]

    def fastest(self, key: str) -> float:
        """Return the minimum of a figure over the counted steps."""
        return min(step[key] for step in self.counted())

    def largest(self, key: str) -> float:
        """Return its maximum."""
        return max(step[key] for step in self.counted())

    def middle(self, key: str) -> float:
        """Return its median."""
        return statistics.median(step[key] for step in self.counted())

    def _read(self) -> dict[str, float]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(MARK):
                found: dict[str, float] = json.loads(line[len(MARK) :])
                return found
        raise SystemExit(f"{self.name} ended early:\n{self.errors.read_text(encoding='utf-8')[-3000:]}")


def take_turns(module: str, names: Sequence[str], job: Mapping[str, Any], folder: Path, steps: int) -> list[Side]:
    """Start the sides and run their steps alternately, reversing the order in every other round."""
    sides = [Side.start(module, name, job, folder) for name in names]
    for step in range(steps):
        for side in sides if step % 2 == 0 else reversed(sides):
            side.take_turn(last=step == steps - 1)
    for side in sides:
        side.process.communicate()
    return sides
