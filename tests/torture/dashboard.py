"""Campaign: a dashboard that many read while others write, and that is attacked, on SQLite and on PostgreSQL.

No reply may be an error of the server, show a traceback or a path, or hold hostile input unescaped; no point and no
decision may be lost or doubled; the dashboard must stay up, answer the others, and hold at most 1 GiB.
"""

from __future__ import annotations

import contextlib
import csv
import io
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from db import Tracker, decide, open_readonly, queries
from tests import postgres
from tests.torture.attacks import ATTACKS
from tests.torture.outcome import Outcome, numbers
from tests.torture.served import PAGES, Served, Visitor, dashboard

WRITERS, READERS = 3, 20
LASTS = 10.0  # seconds that the writers and readers go on in one try


def run(seed: int, seconds: float, report: Callable[[str], None], only: int | None = None) -> Outcome:
    """Try for ``seconds``; ``only`` repeats one try by its number."""
    outcome = Outcome()
    with _dashboards(report) as running:
        for number in numbers(seconds, only):
            draw = random.Random(f"{seed} dashboard {number}")
            ways = [*ATTACKS, "readers and writers"]
            name = ways[number % len(ways)]
            kind = sorted(running)[number // len(ways) % len(running)]
            faults = [*_tried(ATTACKS.get(name, read_and_write), running[kind], draw), *running[kind].faults()]
            outcome.tried[f"{name}, {kind}"] = outcome.tried.get(f"{name}, {kind}", 0) + 1
            held, most = running[kind].memory()
            sound = "; ".join(faults)[:2000] or "sound"
            report(f"dashboard {number}: {name}, {kind}, {held >> 20} MiB, peak {most >> 20}: {sound}")
            outcome.faults += [f"--seed {seed} dashboard --only {number}: {name}, {kind}: {fault}" for fault in faults]
    return outcome


def _tried(way: Callable[[Served, random.Random], list[str]], served: Served, draw: random.Random) -> list[str]:
    try:
        return way(served, draw)
    except Exception as error:  # no answer in time, no page: the try ends, the campaign goes on
        return [f"{type(error).__name__}: {error!s:.300}"]


def read_and_write(served: Served, draw: random.Random, lasts: float = LASTS) -> list[str]:
    """Let writers record points and decisions while readers look at pages; then every one is there exactly once."""
    until, written = time.monotonic() + lasts, {}
    name = f"try {draw.random()}"
    faults: list[str] = []
    lock = threading.Lock()

    def write(writer: int) -> None:
        with Tracker(served.tracker) as tracker:
            experiment = tracker.experiment(f"{name} {writer}")
            cycle = tracker.cycle(experiment, 1, documents="./q1")
            step = 0
            with tracker.start_stage(experiment, "midtrain", cycle_id=cycle, config={}, seed=0) as stage:
                while time.monotonic() < until:
                    step += 1
                    stage.log(step, {"loss": 1 / step, "gradient_norm": float(writer)})
                    time.sleep(0.005)
            for turn in range(5):
                decide(tracker.database, cycle, ("accepted", "rejected")[turn % 2], who=f"w{writer}", why=f"{turn}")
            with lock:
                written[stage.id] = (cycle, step)

    def read(reader: int) -> None:
        turns = random.Random(f"{name} {reader}")
        with Visitor(served, turns.choice(("ada", "bob"))) as visitor:
            while time.monotonic() < until:
                query = {} if turns.random() < 0.5 else {"experiment": f"{name} {turns.randrange(WRITERS)}"}
                visitor.load(turns.choice(PAGES), query)
        with lock:
            faults.extend(visitor.faults)

    with ThreadPoolExecutor(WRITERS + READERS) as pool:
        readers = draw.randrange(5, READERS + 1)
        work = [pool.submit(write, n) for n in range(WRITERS)] + [pool.submit(read, n) for n in range(readers)]
        for one in work:
            one.result()
    return faults + _lost(served, written)


def _lost(served: Served, written: dict[int, tuple[int, int]]) -> list[str]:
    """Return the points and decisions that are not there exactly once, as the dashboard shows them."""
    faults = []
    database = open_readonly(served.tracker)
    with contextlib.closing(database), Visitor(served) as visitor:
        for stage, (cycle, steps) in written.items():
            sheet = visitor.ask("GET", f"/download/stage/{stage}.csv").text
            found = [int(row["step"]) for row in csv.DictReader(io.StringIO(sheet)) if row["metric"] == "loss"]
            if sorted(found) != list(range(1, steps + 1)):
                faults.append(f"of {steps} points of stage {stage} there are {len(found)}, {len(set(found))} different")
            reasons = [one.why for one in queries.decisions(database, cycle)]
            if sorted(reasons) != list("01234"):
                faults.append(f"of 5 decisions there are {reasons}")
    return faults + visitor.faults


@contextlib.contextmanager
def _dashboards(report: Callable[[str], None]) -> Iterator[dict[str, Served]]:
    """Start a dashboard on each kind of database that is here."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dashboard-"))).resolve()
        running = {"SQLite": stack.enter_context(dashboard(folder / "sqlite"))}
        if (programs := postgres.programs()) is None:
            report("dashboard: PostgreSQL is not installed here")
        else:
            address = stack.enter_context(postgres.running(programs)).create()
            running["PostgreSQL"] = stack.enter_context(dashboard(folder / "postgresql", address))
        yield running
