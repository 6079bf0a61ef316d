"""Campaign: three trainers write and twenty readers look, for the whole of its time, on each kind of database at once.

Each trainer is a process that records cycles as a distillation does. Every point, token score, sample and decision must
be there exactly once, no page may fail, and the dashboard must stay up and hold at most 1 GiB.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from db import Database, Tracker, decide, open_readonly, queries
from tests.db import seeding
from tests.torture.outcome import Outcome
from tests.torture.served import MOST_MEMORY, PAGES, PATIENCE, ROOT, USERS, Served, Visitor, dashboards

TRAINERS, READERS = 3, 20
STEPS_A_SECOND = 10  # of a trainer, each with the twelve values of a distillation's step
STAGE_SECONDS = (15.0, 60.0)
SAMPLES, ROLLOUTS = 100, 3
PAGES_A_SESSION = 10
REPORTS = 12  # lines on answer times and memory in the whole time
MOST_FAULTS = 20  # of one database that are shown


def run(seed: int, seconds: float, report: Callable[[str], None], only: int | None = None) -> Outcome:
    """Load the dashboards for ``seconds``; ``only`` takes one kind of database, by its number."""
    outcome = Outcome()
    with dashboards(report) as running:
        chosen = range(len(running)) if only is None else [only % len(running)]
        loads = {
            number: Load(running[kind := sorted(running)[number]], kind, seed, seconds, report) for number in chosen
        }
        with ThreadPoolExecutor(len(loads)) as pool:
            try:
                list(pool.map(Load.run, loads.values()))
            finally:  # also if a person interrupts it
                for load in loads.values():
                    load.stop.set()
        for number, load in loads.items():
            outcome.tried |= {f"{what}, {load.kind}": count for what, count in load.counts.items()}
            found = load.faults[:MOST_FAULTS]
            outcome.faults += [f"--seed {seed} load --only {number}: {load.kind}: {fault}" for fault in found]
    return outcome


@dataclass
class Load:
    """Trainers and readers of one dashboard; ``shown`` holds the seconds that the latest pages took."""

    served: Served
    kind: str
    seed: int
    seconds: float
    report: Callable[[str], None]
    counts: Counter[str] = field(default_factory=Counter)
    shown: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """Train and read for the whole time, then look for every record."""
        trainers = [self._trainer(number) for number in range(TRAINERS)]
        try:
            with ThreadPoolExecutor(READERS) as pool:
                readers = [pool.submit(self._read, number) for number in range(READERS)]
                try:
                    self._watch()
                finally:
                    self.stop.set()
                for reader in readers:
                    reader.result()
            self.faults += self.served.faults()
            if self.served.process.poll() is None:  # it shows what is there
                for number, trainer in enumerate(trainers):
                    self._check(number, trainer)
        except Exception as error:  # the dashboard is gone: the other one's load goes on
            self.faults += self.served.faults() or [f"{type(error).__name__}: {error!s:.300}"]
        finally:
            for trainer in trainers:
                trainer.kill()
                trainer.wait()

    def _trainer(self, number: int) -> subprocess.Popen[bytes]:
        given = [str(self.served.tracker), self._experiment(number), str(self.seconds), str(self.seed + number)]
        command = [sys.executable, "-m", "tests.torture.load", *given]
        with self._told(number).open("wb") as out:
            return subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)

    def _told(self, number: int) -> Path:
        return self.served.log.parent / f"trainer-{number}"

    def _experiment(self, number: int) -> str:
        return f"load {self.seed} {number}"

    def _read(self, reader: int) -> None:
        """Look at pages as one person, in a new session now and then."""
        turns = random.Random(f"{self.seed} load {reader}")
        while not self.stop.is_set():
            with Visitor(self.served, turns.choice(sorted(USERS))) as visitor:
                try:
                    for _ in range(PAGES_A_SESSION):
                        if not self.stop.is_set():
                            self._look(visitor, turns)
                except Exception as error:  # no answer in time, or no page: the session ends, the reader goes on
                    visitor.faults.append(f"{type(error).__name__}: {error!s:.300}")
                    self.stop.wait(1.0)
            with self._lock:
                self.faults += visitor.faults

    def _look(self, visitor: Visitor, turns: random.Random) -> None:
        query = {} if turns.random() < 0.3 else {"experiment": self._experiment(turns.randrange(TRAINERS))}
        began = time.monotonic()
        visitor.load(turns.choice(PAGES), query)
        with self._lock:
            self.counts["pages"] += 1
            self.shown.append(time.monotonic() - began)

    def _watch(self) -> None:
        """Report answer times and memory, evenly over the whole time; end early if the dashboard ends."""
        until = time.monotonic() + self.seconds
        for number in range(1, REPORTS + 1):
            then = until - self.seconds * (1 - number / REPORTS)
            while (left := then - time.monotonic()) > 0:
                if self.stop.wait(min(1.0, left)) or self.served.process.poll() is not None:
                    return
            held, most = self.served.memory()
            with self._lock:
                taken, self.shown = sorted(self.shown), []
                if most > MOST_MEMORY:
                    self.faults.append(f"it holds {held >> 20} MiB, at its peak {most >> 20}")
            if taken:
                times = f"median {statistics.median(taken):.2f} s, slowest {taken[-1]:.2f} s"
                after = f"{self.seconds * number / REPORTS / 60:.1f} min"
                memory = f"{held >> 20} MiB, peak {most >> 20}"
                self.report(f"load, {self.kind}, {after}: {len(taken)} pages, {times}; {memory}")

    def _check(self, number: int, trainer: subprocess.Popen[bytes]) -> None:
        """Look for everything that a trainer says it recorded."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            trainer.wait(PATIENCE)
        lines = self._told(number).read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines if line.startswith("{")]
        if trainer.returncode or not records:
            self.faults.append(f"trainer {number} ended with {trainer.returncode}: {' '.join(lines)[-300:]}")
        database = open_readonly(self.served.tracker)
        with contextlib.closing(database), Visitor(self.served) as visitor:
            for made in records:
                self.counts["stages"] += 1
                self.counts["points"] += made["steps"] * len(_VALUES)
                self.faults += missing(database, visitor, made)
        self.faults += visitor.faults


_VALUES = frozenset(seeding.distill_metrics(1, 2, random.Random(0)))


def missing(database: Database, visitor: Visitor, made: dict[str, Any]) -> list[str]:
    """Return what is not exactly once there of a stage's points, as the dashboard shows them, and of its records."""
    stage, faults = made["stage"], []
    sheet = visitor.ask("GET", f"/download/stage/{stage}.csv").text
    points = Counter((row["metric"], int(row["step"])) for row in csv.DictReader(io.StringIO(sheet)))
    wanted = {(name, step) for name in _VALUES for step in range(1, made["steps"] + 1)}
    if lost := len(wanted - points.keys()):
        faults.append(f"of {len(wanted)} points of stage {stage} {lost} are lost")
    if doubled := sum(1 for count in points.values() if count > 1):
        faults.append(f"{doubled} points of stage {stage} are doubled")
    found = {
        "samples": len(queries.judged_items(database, made["evaluation"])),
        "rollouts": len(queries.token_numbers(database, stage)),
        "decisions": [one.why for one in queries.decisions(database, made["cycle"])],
    }
    expected = {"samples": SAMPLES, "rollouts": ROLLOUTS, "decisions": [made["why"]]}
    return faults + [
        f"{what} of stage {stage}: {found[what]} in place of {expected[what]}"
        for what in expected
        if found[what] != expected[what]
    ]


def train(address: str, name: str, seconds: float, seed: int) -> None:
    """Record cycles of one stage each for ``seconds``, and print what each recorded as a line of JSON."""
    dice, until, number = random.Random(seed), time.monotonic() + seconds, 0
    with Tracker(Path(address) if "://" not in address else address) as tracker:
        experiment = tracker.experiment(name, base_model="miniature")
        while time.monotonic() < until:
            number += 1
            ends = min(until, time.monotonic() + dice.uniform(*STAGE_SECONDS))
            print(json.dumps(_cycle(tracker, experiment, number, ends, dice)), flush=True)


def _cycle(tracker: Tracker, experiment: int, number: int, ends: float, dice: random.Random) -> dict[str, Any]:
    cycle, step = tracker.cycle(experiment, number, documents=f"./q{number}"), 0
    config = {"teacher": "base", "steps": 1000}
    with tracker.start_stage(experiment, "distill", cycle_id=cycle, config=config, seed=0, steps_total=1000) as stage:
        while step == 0 or time.monotonic() < ends:
            step += 1
            stage.log(step, seeding.distill_metrics(min(step, 1000), 1000, dice))
            time.sleep(1 / STEPS_A_SECOND)
        rows = [seeding.token_row(f"{row}, base", 24, dice, 1.0) for row in range(ROLLOUTS)]
        tracker.add_token_scores(stage.id, step, rows)
        stage.usage(tokens_sampled=400 * step, tokens_scored=400 * step, tokens_trained=380 * step)
        stage.finish("recovered")
        made = tracker.add_checkpoint(
            experiment, f"cycle-{number}/recovered", "recovered", path=f"{number}", cycle_id=cycle, stage_id=stage.id
        )
    items = [seeding.sample(index, passed=dice.random() < 0.9) for index in range(SAMPLES)]
    evaluation = tracker.add_evaluation(made, "instruction_following", value=0.9, stderr=0.01, n=SAMPLES, items=items)
    tracker.set_latest(experiment, made)
    why = f"load {dice.random()}"
    decide(tracker.database, cycle, dice.choice(("accepted", "rejected")), who="trainer", why=why)
    return {"stage": stage.id, "steps": step, "evaluation": evaluation, "cycle": cycle, "why": why}


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
