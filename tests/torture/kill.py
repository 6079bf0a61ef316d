"""Campaign: a cycle is killed, stopped or suspended at random moments, and continued.

In the end it must have left what an undisturbed one leaves: the same weights bit for bit, every point and every sample
once, no temporary file.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.torture.outcome import Outcome, numbers
from tests.torture.process import start
from tests.torture.traps import Trap, die, set_clock_back
from tests.torture.world import BEGIN, RESUME, WORKSPACE, World, faults_of, go_on, recover, world

GRACE = 10.0
"""Seconds from SIGTERM to SIGKILL, as schedulers give them."""


def run(
    seed: int, seconds: float, report: Callable[[str], None], only: int | None = None, model: Path | None = None
) -> Outcome:
    """Try for ``seconds``; ``only`` repeats one try by its number; ``model`` is the folder of a model to cycle."""
    outcome = Outcome()
    with world(model) as made:
        for number in numbers(seconds, only):
            one_try(made, seed, number, outcome, report)
    return outcome


def one_try(made: World, seed: int, number: int, outcome: Outcome, report: Callable[[str], None]) -> None:
    """Disturb one cycle in a way drawn from the seed and the number of the try; count it, and note its faults."""
    draw = random.Random(f"{seed} kill {number}")
    way = draw.choices(list(_WAYS), weights=[weight for weight, _ in _WAYS.values()])[0]
    folder = made.place("try")
    kind = draw.choice(sorted(made.counts))
    trap = Trap(folder / WORKSPACE, kind, draw.randint(1, made.counts[kind]))
    faults = _WAYS[way][1](made, trap, draw)
    what = f"{way} before {trap.kind} {trap.at}"
    outcome.tried[f"{way}, {trap.kind}"] = outcome.tried.get(f"{way}, {trap.kind}", 0) + 1
    report(f"kill {number}: {what}: {'; '.join(faults) or 'sound'}")
    outcome.faults += [f"--seed {seed} kill --only {number}: {what}: {fault}" for fault in faults]


def _killed(made: World, trap: Trap, draw: random.Random) -> list[str]:
    """Kill, perhaps once more while it is continued, and continue."""
    folder = trap.folder.parent
    trap.act = die
    ended = recover(BEGIN, folder, trap)
    again = None
    if draw.random() < 0.4:
        kind = draw.choice(sorted(made.counts))
        again = Trap(trap.folder, kind, draw.randint(1, made.counts[kind]), die)
    return faults_of(made, folder, [*([ended] if ended.complaint else []), *go_on(folder, again)])


def _killed_at_a_time(made: World, trap: Trap, draw: random.Random) -> list[str]:
    """Kill after a random time: between any two instructions."""
    folder = trap.folder.parent
    child = start(BEGIN, folder)
    child.wait(draw.uniform(0.05, made.seconds))
    if child.status is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
    child.ended()
    return faults_of(made, folder, go_on(folder))


def _terminated(made: World, trap: Trap, _draw: random.Random) -> list[str]:
    """SIGTERM, ten seconds, SIGKILL."""
    return _signalled(made, trap, lambda: os.kill(os.getpid(), signal.SIGTERM))


def _interrupted_twice(made: World, trap: Trap, _draw: random.Random) -> list[str]:
    """Ctrl-C twice."""

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    return _signalled(made, trap, twice)


def _signalled(made: World, trap: Trap, send: Callable[[], None]) -> list[str]:
    folder = trap.folder.parent
    trap.act = lambda _kind, _thing: send()
    child = start(BEGIN, folder, trap)
    began = None
    while not child.wait(0):
        if began is None and (folder / "trap.json").exists():
            began = time.monotonic()
        if began is not None and time.monotonic() - began > GRACE:
            os.kill(child.pid, signal.SIGKILL)
            break
        time.sleep(0.02)
    return faults_of(made, folder, [child.ended(), *go_on(folder)])


def _suspended(made: World, trap: Trap, _draw: random.Random) -> list[str]:
    """SIGSTOP; another process must not take the work over; SIGCONT."""
    folder = trap.folder.parent
    trap.act = lambda _kind, _thing: os.kill(os.getpid(), signal.SIGSTOP)
    child = start(BEGIN, folder, trap)
    faults = []
    child.wait()
    if child.status is None:
        other = recover(RESUME, made.place("other").parent / "other", None)  # nothing there: must not hang
        held = start((*RESUME[:-1], str(trap.folder)), folder / "second").ended()
        if held.status == 0 or held.complaint or other.complaint:
            faults.append(f"a second process while the first is suspended: {held.status} {held.err[-300:]}")
        os.kill(child.pid, signal.SIGCONT)
    done = [child.ended()]
    return faults + faults_of(made, folder, done)


def _clock_set_back(made: World, trap: Trap, draw: random.Random) -> list[str]:
    """The clock jumps back, or forward, while the cycle runs."""
    trap.act = set_clock_back(draw.choice([-90_000, 30, 3600, 90_000]))
    return faults_of(made, trap.folder.parent, [recover(BEGIN, trap.folder.parent, trap)])


_WAYS: dict[str, tuple[float, Callable[[World, Trap, random.Random], list[str]]]] = {
    "kill -9": (10, _killed),
    "kill -9 at a random time": (3, _killed_at_a_time),
    "SIGTERM": (3, _terminated),
    "SIGINT twice": (2, _interrupted_twice),
    "SIGSTOP and SIGCONT": (1, _suspended),
    "clock set": (1, _clock_set_back),
}
