"""Campaign: the tracker is on a PostgreSQL server, which is restarted, crashes, is away or loses connections.

The moments are before any statement, commit, write of a file or update of the weights. The cycle waits for the server
or ends in one line, which must not show the password, and is continued; in the end it must have left what an
undisturbed one leaves.
"""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests import postgres
from tests.torture.outcome import Outcome, numbers
from tests.torture.process import Ended, recover, start
from tests.torture.traps import Trap, die
from tests.torture.world import BEGIN, WORKSPACE, World, faults_of, furnish, go_on, left_by, on, world

LONGEST_AWAY = 3.0  # seconds
Continue = Callable[[], None]


def run(seed: int, seconds: float, report: Callable[[str], None], only: int | None = None) -> Outcome:
    """Try for ``seconds``; ``only`` repeats one try by its number."""
    outcome = Outcome()
    if (programs := postgres.programs()) is None:
        raise RuntimeError("PostgreSQL is not installed here: make postgresql")
    with postgres.running(programs) as server, world() as local:
        made = _on_a_server(local, server)
        for number in numbers(seconds, only):
            one_try(made, server, seed, number, outcome, report)
    return outcome


def _on_a_server(made: World, server: postgres.Server) -> World:
    """Return the world as an undisturbed cycle on a server leaves it."""
    folder, address = furnish(made.folder / "on a server"), server.create()
    ended = recover((*BEGIN, *on(address)), folder, Trap(folder / WORKSPACE))
    if ended.status:
        raise RuntimeError(f"the undisturbed cycle ended with {ended.status}: {ended.err[-1000:]}")
    whole = left_by(folder / WORKSPACE, address)
    server.drop(address)
    return dataclasses.replace(made, whole=whole, counts=dict(ended.counts))


def one_try(
    made: World, server: postgres.Server, seed: int, number: int, outcome: Outcome, report: Callable[[str], None]
) -> None:
    """Disturb one cycle in a way drawn from the seed and the number of the try; count it, and note its faults."""
    draw = random.Random(f"{seed} postgresql {number}")
    way = draw.choice(list(_WAYS))
    folder, address = made.place("try"), server.create()
    kind = draw.choice(sorted(made.counts))
    trap = Trap(folder / WORKSPACE, kind, draw.randint(1, made.counts[kind]))
    done = _disturbed(server, address, trap, _WAYS[way], draw)
    faults = faults_of(made, folder, done, address) + _passwords(folder, done)
    server.drop(address)
    what = f"{way} before {trap.kind} {trap.at}"
    outcome.tried[f"{way}, {trap.kind}"] = outcome.tried.get(f"{way}, {trap.kind}", 0) + 1
    report(f"postgresql {number}: {what}: {'; '.join(faults) or f'sound ({_ending(done)})'}")
    outcome.faults += [f"--seed {seed} postgresql --only {number}: {what}: {fault}" for fault in faults]


Way = Callable[[postgres.Server, str, Continue, random.Random], None]


def _disturbed(server: postgres.Server, address: str, trap: Trap, way: Way | None, draw: random.Random) -> list[Ended]:
    """Suspend the cycle when the trap is met, disturb and let it go on, or kill it; continue it if it ended."""
    folder = trap.folder.parent
    trap.act = die if way is None else (lambda _kind, _thing: os.kill(os.getpid(), signal.SIGSTOP))
    child = start((*BEGIN, *on(address)), folder, trap)
    child.wait()
    if way is not None and child.status is None:
        way(server, address, lambda: os.kill(child.pid, signal.SIGCONT), draw)
    ended = child.ended()
    return [ended] if ended.status == 0 else [ended, *go_on(folder, database=address)]


def _restarted(server: postgres.Server, _address: str, go: Continue, _draw: random.Random) -> None:
    server.stop()
    server.start()
    go()


def _crashed(server: postgres.Server, _address: str, go: Continue, _draw: random.Random) -> None:
    server.stop(signal.SIGQUIT)
    server.start()
    go()


def _away(server: postgres.Server, _address: str, go: Continue, draw: random.Random) -> None:
    server.stop()
    go()
    time.sleep(draw.uniform(0, LONGEST_AWAY))
    server.start()


def _cut(server: postgres.Server, address: str, go: Continue, _draw: random.Random) -> None:
    server.cut(address)
    go()


def _cut_again(server: postgres.Server, address: str, go: Continue, draw: random.Random) -> None:
    """Cut the connections some times more while the cycle runs."""
    server.cut(address)
    go()
    for _ in range(draw.randint(1, 5)):
        time.sleep(draw.uniform(0, 0.5))
        server.cut(address)


def _passwords(folder: Path, done: list[Ended]) -> list[str]:
    """Return the places that show the password."""
    told = [f"the output of command {n}" for n, one in enumerate(done, 1) if postgres.PASSWORD in one.out + one.err]
    secret = postgres.PASSWORD.encode()
    files = [path for path in (folder / WORKSPACE).rglob("*") if path.is_file() and secret in path.read_bytes()]
    return [f"the password is in {place}" for place in [*told, *files]]


def _ending(done: list[Ended]) -> str:
    """Say how the disturbed command ended."""
    first = done[0]
    return "it went on" if first.status == 0 else first.error.partition("error: ")[2][:100] or f"status {first.status}"


_WAYS: dict[str, Way | None] = {
    "the server is restarted": _restarted,
    "the server crashes": _crashed,
    "the server is away for a while": _away,
    "connections are cut": _cut,
    "connections are cut again and again": _cut_again,
    "kill -9": None,
}
