"""Campaign: a cycle is killed, stopped or suspended at random moments, and continued.

In the end it must have left what an undisturbed one leaves: the same weights bit for bit, every point and every sample
once, no temporary file. All weights are tuned with an even seed, a LoRA adapter with an odd one.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.torture.outcome import NOT_DISTURBED, Outcome, numbers
from tests.torture.process import start
from tests.torture.traps import Trap, die, set_clock_back
from tests.torture.world import BEGIN, RESUME, WORKSPACE, World, faults_of, go_on, recover, world

GRACE = 10.0
"""Seconds from SIGTERM to SIGKILL, as schedulers give them."""
LONGEST_STOP = 120.0
"""Seconds: less than those after which a stage without a sign of life is taken over."""
TUNINGS = ("full", "lora")


@dataclass(frozen=True)
class Tried:
    """How a try went: whether the disturbance happened, what was wrong afterwards, and what else is to be told."""

    disturbed: bool
    faults: list[str]
    more: str = ""


def run(
    seed: int, seconds: float, report: Callable[[str], None], only: int | None = None, model: Path | None = None
) -> Outcome:
    """Try for ``seconds``; ``only`` repeats one try by its number; ``model`` is the folder of a model to cycle."""
    outcome = Outcome()
    with world(model, TUNINGS[seed % len(TUNINGS)]) as made:
        report(f"kill: a cycle of {made.seconds:.1f} s, tuning {made.tuning}")
        for number in numbers(seconds, only):
            one_try(made, seed, number, outcome, report, seconds)
    return outcome


def one_try(
    made: World, seed: int, number: int, outcome: Outcome, report: Callable[[str], None], seconds: float
) -> None:
    """Disturb one cycle in a way drawn from the seed and the number of the try; count it, and note its faults.

    ``seconds`` is what the campaign is given: no stop takes more than a tenth of it.
    """
    draw = random.Random(f"{seed} kill {number}")
    way = draw.choices(list(_WAYS), weights=[weight for weight, _ in _WAYS.values()])[0]
    folder = made.place("try")
    kind = draw.choice(sorted(made.counts))
    trap = Trap(folder / WORKSPACE, kind, draw.randint(1, made.counts[kind]))
    tried = _WAYS[way][1](made, trap, draw, seconds / 10)
    what = f"{way}{tried.more} before {trap.kind} {trap.at}, tuning {made.tuning}"
    outcome.count(f"{way}, {trap.kind}" if tried.disturbed else NOT_DISTURBED)
    sound = "sound" if tried.disturbed else NOT_DISTURBED
    report(f"kill {number}: {what}: {'; '.join(tried.faults) or sound}")
    outcome.faults += [f"--seed {seed} kill --only {number}: {what}: {fault}" for fault in tried.faults]


def _killed(made: World, trap: Trap, draw: random.Random, _longest: float) -> Tried:
    """Kill, perhaps once more while it is continued, and continue."""
    folder = trap.folder.parent
    trap.act = die
    ended = recover(BEGIN, folder, trap)
    again = None
    if draw.random() < 0.4:
        kind = draw.choice(sorted(made.counts))
        again = Trap(trap.folder, kind, draw.randint(1, made.counts[kind]), die)
    done = [*([ended] if ended.complaint else []), *go_on(folder, again)]
    return Tried(bool(ended.sprung), faults_of(made, folder, done))


def _killed_at_a_time(made: World, trap: Trap, draw: random.Random, _longest: float) -> Tried:
    """Kill after a random time: between any two instructions."""
    folder = trap.folder.parent
    child = start(BEGIN, folder)
    child.wait(draw.uniform(0.05, made.seconds))
    if child.status is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
    killed = child.ended().status == -signal.SIGKILL
    return Tried(killed, faults_of(made, folder, go_on(folder)))


def _signalled(made: World, trap: Trap, *signals: signal.Signals) -> Tried:
    """Send signals, after ten seconds SIGKILL."""
    folder = trap.folder.parent

    def send(_kind: str, _thing: str) -> None:
        for one in signals:
            os.kill(os.getpid(), one)

    trap.act = send
    child = start(BEGIN, folder, trap)
    began = None
    while not child.wait(0):
        if began is None and (folder / "trap.json").exists():
            began = time.monotonic()
        if began is not None and time.monotonic() - began > GRACE:
            os.kill(child.pid, signal.SIGKILL)
            break
        time.sleep(0.02)
    ended = child.ended()
    return Tried(bool(ended.sprung), faults_of(made, folder, [ended, *go_on(folder)]))


def stop_for(draw: random.Random, longest: float) -> float:
    """Return for how many seconds a process is stopped: mostly a moment, sometimes minutes, at most ``longest``."""
    short, long = draw.uniform(0, 2), draw.uniform(2, LONGEST_STOP)
    return min(short if draw.random() < 0.8 else long, longest)


def _suspended(made: World, trap: Trap, draw: random.Random, longest: float) -> Tried:
    """SIGSTOP; another process must not take the work over; SIGCONT."""
    folder = trap.folder.parent
    trap.act = lambda _kind, _thing: os.kill(os.getpid(), signal.SIGSTOP)
    lasts = stop_for(draw, longest)
    tried_after = draw.uniform(0, lasts)
    child = start(BEGIN, folder, trap)
    child.wait()
    stopped, faults = child.status is None, []
    if stopped:
        began = time.monotonic()
        other = recover(RESUME, made.place("other").parent / "other", None)  # nothing there: must not hang
        time.sleep(max(0.0, began + tried_after - time.monotonic()))
        held = start((*RESUME[:-1], str(trap.folder)), folder / "second").ended()
        if held.status == 0 or held.complaint or other.complaint:
            faults.append(f"a second process while the first is suspended: {held.status} {held.err[-300:]}")
        time.sleep(max(0.0, began + lasts - time.monotonic()))
        os.kill(child.pid, signal.SIGCONT)
    done = [child.ended()]
    return Tried(stopped, faults + faults_of(made, folder, done), f" after {lasts:.1f} s")


def _clock_set_back(made: World, trap: Trap, draw: random.Random, _longest: float) -> Tried:
    """The clock jumps back, or forward, while the cycle runs."""
    trap.act = set_clock_back(draw.choice([-90_000, 30, 3600, 90_000]))
    ended = recover(BEGIN, trap.folder.parent, trap)
    return Tried(bool(ended.sprung), faults_of(made, trap.folder.parent, [ended]))


_WAYS: dict[str, tuple[float, Callable[[World, Trap, random.Random, float], Tried]]] = {
    "kill -9": (10, _killed),
    "kill -9 at a random time": (3, _killed_at_a_time),
    "SIGTERM": (3, lambda made, trap, *_: _signalled(made, trap, signal.SIGTERM)),
    "SIGINT twice": (2, lambda made, trap, *_: _signalled(made, trap, signal.SIGINT, signal.SIGINT)),
    "SIGSTOP and SIGCONT": (1, _suspended),
    "clock set": (1, _clock_set_back),
}
