"""Create a large tracker database: 50 experiments of 20 cycles, 5 million metric points, 500,000 samples.

Run: python -m benchmarks.large_tracker FILE

Every table that a page reads is filled, with rows of realistic size: IFEval's instruction types, responses of some
hundred characters, paired tests of every suite in each cycle, seven snapshots of six rollouts token by token. The
experiment ``main``, which the pages open by default, is the largest: it has samples of IFEval's 541 prompts at every
checkpoint, one stage with curves of 110,000 points, another with 19 curves over 19,000 steps. The same seed creates the
same rows.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert

from benchmarks import _large_text as texts
from db import open_database
from db.schema import (
    Checkpoint,
    Cycle,
    Decision,
    Evaluation,
    Event,
    Experiment,
    Latest,
    MetricPoint,
    MetricSeries,
    Sample,
    Stage,
    TokenScores,
)

DAY, HOUR = 86_400.0, 3_600.0
NOW = 1_790_000_000.0
AT_ONCE = 20_000
PARENTS_FIRST = (
    *(Experiment, Cycle, Stage, Checkpoint, Latest, MetricSeries, MetricPoint),
    *(Evaluation, Sample, TokenScores, Decision, Event),
)
MIDTRAIN = ("loss", "lr", "gradient_norm", "memory_gib", "tokens_per_second")
DISTILL = (
    *("reverse_kl", "knowledge_kl", "loss", "label_loss", "entropy", "response_length", "end_rate", "gradient_norm"),
    *("lr", "tokens_per_second", "seconds_generating", "seconds_scoring", "seconds_training"),
)
GEOMETRY = tuple(
    f"geometry/{name}" for name in ("density", "bias", "bias_null", "concentration", "top_1_percent", "shared")
)
GEOMETRY_EVERY = 10
SNAPSHOTS = 7
VIEWS = 6


@dataclass(frozen=True)
class Size:
    """Target size of the database. The numbers of points and samples are exact."""

    experiments: int = 50
    cycles: int = 20
    points: int = 5_000_000
    samples: int = 500_000
    seed: int = 0

    @property
    def checkpoints(self) -> int:
        """Checkpoints of one experiment: base, and two per cycle."""
        return 1 + 2 * self.cycles

    @property
    def long_distill(self) -> int:
        """Steps of the longest distillation."""
        return max(2, int(0.054 * self.points / (len(DISTILL) + len(GEOMETRY) / GEOMETRY_EVERY)))

    @property
    def steps(self) -> tuple[int, int]:
        """Steps of every other mid-training and distillation: together they have five sixths of the points."""
        each = 0.83 * self.points / (self.experiments * self.cycles)
        return max(2, int(0.22 * each / len(MIDTRAIN))), max(2, int(0.76 * each / len(DISTILL)))

    @property
    def long_midtrain(self) -> int:
        """Points of the longest mid-training: the remainder after all other stages."""
        others = self.experiments * self.cycles - 1
        midtrain, distill = self.steps
        taken = others * (midtrain * len(MIDTRAIN) + _points(distill)) + _points(self.long_distill)
        if taken >= self.points:
            raise ValueError(f"{self.points} points are too few for {others + 1} cycles: increase --points")
        return self.points - taken

    @property
    def prompts(self) -> tuple[int, int]:
        """Instruction-following samples of each checkpoint: of main, and of every other experiment."""
        main = min(texts.PROMPTS, self.samples // self.checkpoints // 2)
        others = max(1, self.experiments - 1)
        return main, min(200, (self.samples // self.checkpoints - main) * 3 // 4 // others)

    @property
    def questions(self) -> int:
        """General-knowledge samples of all checkpoints of main: the remaining samples."""
        main, other = self.prompts
        return self.samples - self.checkpoints * (main + other * (self.experiments - 1))


@dataclass
class Filler:
    """Writes rows in bulk. Assigns the ids itself, so that none has to be read back."""

    connection: Connection
    waiting: dict[Any, list[dict[str, Any]]] = field(default_factory=dict)
    held: int = 0
    ids: dict[Any, Iterator[int]] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)

    def add(self, model: Any, **values: Any) -> int:
        """Add a row to the buffer; return its id."""
        key = next(self.ids.setdefault(model, itertools.count(1)))
        self.rows(model, [{"id": key, **values}])
        return key

    def rows(self, model: Any, rows: Iterable[dict[str, Any]]) -> None:
        """Add rows whose ids are not needed."""
        waiting = self.waiting.setdefault(model, [])
        before = len(waiting)
        waiting.extend(rows)
        self.held += len(waiting) - before
        if self.held >= AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows, parents first."""
        for model in PARENTS_FIRST:
            rows = self.waiting.pop(model, [])
            if rows:
                self.connection.execute(insert(model), rows)
            self.written[model.__tablename__] = self.written.get(model.__tablename__, 0) + len(rows)
        self.held = 0


def make(path: Path, size: Size, *, progress: bool = False) -> dict[str, int]:
    """Create the database in an empty or missing file; return the number of rows of each table."""
    started, database = time.perf_counter(), open_database(path)
    with database.writing() as connection:
        filler = Filler(connection)
        world = World(filler, size, random.Random(size.seed), texts.Texts(size.seed))
        world.studies()
        for number in range(1, size.experiments + 1):
            world.experiment(number)
            if progress:
                line = f"experiment {number} of {size.experiments}, {time.perf_counter() - started:.0f} s"
                print(f"\r{line}", end="", file=sys.stderr, flush=True)
        filler.flush()
    database.close()
    if progress:
        print(file=sys.stderr)
    return filler.written


def make_facts(path: Path, *, cycles: int = 50, questions: int = 600, earlier: int = 5000) -> None:
    """Create a database of one experiment, ``facts``, whose cycles ask ``questions`` questions about their own
    documents and at most ``earlier`` about all earlier ones, evenly from each cycle, as an evaluation does.
    """
    database = open_database(path)
    with database.writing() as connection:
        filler, size, rng = Filler(connection), Size(cycles=cycles), random.Random(0)
        world = World(filler, size, rng, texts.Texts(0))
        line = _ExperimentWriter(world, world._add_experiment("facts", {"model": "miniature"}, NOW), False, NOW)
        base = line.latest = line._checkpoint("base", "base", None, line._stage("evaluate", None, 0, 0), None)
        for number in range(1, cycles + 1):
            named = {"documents": f"./q{number}", "corpus_hash": f"{number:064x}", "details": {}, "created_at": NOW}
            cycle = filler.add(Cycle, experiment_id=line.experiment, number=number, **named)
            stage = line._stage("distill", cycle, number, 60)
            midtrained = line._checkpoint(f"cycle-{number}/midtrained", "midtrained", cycle, stage, line.latest)
            line.latest = line._checkpoint(f"cycle-{number}/recovered", "recovered", cycle, stage, midtrained)
            asked = [(base, "domain_knowledge", number, 0.05, questions), (base, "open_book", number, 0.8, questions)]
            for checkpoint, share in ((midtrained, 0.6), (line.latest, 0.55)):
                few = min(questions, earlier // max(1, number - 1))
                sizes = [*((corpus, few) for corpus in range(1, number)), (number, questions)]
                asked += [(checkpoint, "domain_knowledge", corpus, share, n) for corpus, n in sizes]
            for checkpoint, suite, corpus, share, n in asked:
                line.ask(line._score(checkpoint, stage, suite, share, corpus, {}), suite, corpus, share, n)
        filler.flush()
    database.close()


@dataclass
class World:
    """Generator of all experiments. The rows equal those that the tracker itself would write."""

    filler: Filler
    size: Size
    rng: random.Random
    texts: texts.Texts

    def studies(self) -> None:
        """Write the experiments of the seeds of studies."""
        for name, budget in itertools.product(texts.STUDIES, (0.1, 1.0)):
            for seed in range(3):
                self._add_experiment(f"study/{name}/budget-{budget:g}/seed-{seed}", {}, NOW - 400 * DAY)

    def experiment(self, number: int) -> None:
        """Write one experiment with its cycles; the last one is ``main``."""
        main, began = number == self.size.experiments, NOW - (self.size.experiments - number + 1) * 5 * DAY
        group, seed = divmod(number - 1, 3)
        name = "main" if main else f"compare/methods-{group + 1}/seed-{seed}" if group % 2 else f"run-{number:02d}"
        line = _ExperimentWriter(self, self._add_experiment(name, {"model": "miniature"}, began), main, began)
        line.register()
        for cycle in range(1, self.size.cycles + 1):
            line.cycle(cycle)

    def _add_experiment(self, name: str, config: Any, at: float) -> int:
        return self.filler.add(Experiment, name=name, base_model="miniature", config=config, created_at=at)


class _ExperimentWriter:
    """Generator of one experiment's cycles."""

    def __init__(self, world: World, experiment: int, main: bool, at: float) -> None:
        self.filler, self.size, self.rng, self.texts = world.filler, world.size, world.rng, world.texts
        self.experiment, self.main, self.at = experiment, main, at
        self.latest = 0
        self.asked = self.size.prompts[0 if main else 1]
        self.questions = self.size.questions if main else 0

    def register(self) -> None:
        """Write the base model and its scores."""
        stage = self._stage("evaluate", None, 0, 0)
        self.latest = self._checkpoint("base", "base", None, stage, None)
        self._evaluate(self.latest, None, following=0.95, known=0, left=self.size.checkpoints)

    def cycle(self, number: int) -> None:
        """Write mid-training, recovery, their evaluations, and the decision."""
        hash_ = f"{self.experiment:032x}{number:032x}"
        cycle = self.filler.add(
            Cycle, experiment_id=self.experiment, number=number, documents=f"./corpora/q{number}", corpus_hash=hash_,
            details={"evidence": texts.evidence(number, f"cycle-{number}/recovered", self.rng)}, created_at=self.at,
        )  # fmt: skip
        last = self.main and number == self.size.cycles
        left = self.size.checkpoints - (2 * number - 1)
        midtrained = self._midtrain(cycle, number, last)
        self._evaluate(midtrained, cycle, following=0.6 + 0.1 * self.rng.random(), known=number, left=left)
        recovered = self._distill(cycle, number, midtrained, last)
        self._evaluate(recovered, cycle, following=0.9 + 0.05 * self.rng.random(), known=number, left=left - 1)
        self.latest = recovered
        self._log_events(cycle, number)
        if number == self.size.cycles:
            row = {"experiment_id": self.experiment, "checkpoint_id": recovered, "updated_at": self.at}
            self.filler.rows(Latest, [row])

    def _midtrain(self, cycle: int, number: int, last: bool) -> int:
        steps = -(-self.size.long_midtrain // len(MIDTRAIN)) if last else self.size.steps[0]
        stage = self._stage("midtrain", cycle, number, steps)
        points = self.size.long_midtrain if last else steps * len(MIDTRAIN)
        for at, name in enumerate(MIDTRAIN):  # some curves omit the last step, so that the total is exact
            self._curve(stage, name, range(1, 1 + (points - at + len(MIDTRAIN) - 1) // len(MIDTRAIN)))
        return self._checkpoint(f"cycle-{number}/midtrained", "midtrained", cycle, stage, self.latest)

    def _distill(self, cycle: int, number: int, parent: int, last: bool) -> int:
        steps = self.size.long_distill if last else self.size.steps[1]
        sample = [[self.rng.gauss(0.02, 0.1), self.rng.gauss(0, 0.1), k // 10] for k in range(200)]
        details = {"method": "opd", "parameters": 2_000_000, "geometry": sample}
        stage = self._stage("distill", cycle, number, steps, details)
        for name in DISTILL:
            self._curve(stage, name, range(1, steps + 1))
        for name in GEOMETRY:
            self._curve(stage, name, range(1, steps + 1, GEOMETRY_EVERY))
        if self.main or number == self.size.cycles:
            self._log_rollouts(stage, steps, long=last)
        return self._checkpoint(f"cycle-{number}/recovered", "recovered", cycle, stage, parent)

    def _curve(self, stage: int, name: str, steps: range) -> None:
        """Write a noisy falling curve, and its newest point in the series row."""
        values = [0.02 + 5.0 / (step + 5) * self.rng.random() for step in steps]
        times = [self.at + step for step in steps]
        newest = {"last_step": steps[-1], "last_value": values[-1], "last_time": times[-1]}
        series = self.filler.add(MetricSeries, stage_id=stage, name=name, **newest)
        rows = zip(steps, values, times, strict=True)
        self.filler.rows(
            MetricPoint, ({"series_id": series, "step": step, "value": value, "time": at} for step, value, at in rows)
        )

    def _log_rollouts(self, stage: int, steps: int, *, long: bool) -> None:
        shown = sorted({1, *(max(1, steps * part // SNAPSHOTS) for part in range(2, SNAPSHOTS + 1))})
        for step, view in itertools.product(shown, range(VIEWS)):
            rollout = self.texts.rollout(self.rng, long=long)
            self.filler.add(TokenScores, stage_id=stage, step=step, item=f"{view}, base", **rollout)

    def _stage(self, kind: str, cycle: int | None, number: int, steps: int, details: Any = None) -> int:
        started, self.at = self.at, self.at + 2 * HOUR
        tokens = {"tokens_sampled": 2_000 * steps, "tokens_scored": 2_000 * steps, "tokens_trained": 2_000 * steps}
        return self.filler.add(
            Stage, experiment_id=self.experiment, cycle_id=cycle, kind=kind, status="finished", student_id=None,
            folder=f"stages/{kind}-{number}", config=texts.settings(kind, number, self.rng),
            versions={"torch": "2.13.0", "transformers": "5.19.0"}, details=details or {"parameters": 2_000_000},
            seed=0, attempts=1, lease=None, place="", pid=None, pid_started="", heartbeat_at=self.at,
            started_at=started, finished_at=self.at, wall_seconds=2 * HOUR, seconds_used=2 * HOUR, steps_done=steps,
            steps_total=steps, peak_memory_bytes=10**9, stopped="finished", error="", **tokens,
        )  # fmt: skip

    def _checkpoint(self, name: str, kind: str, cycle: int | None, stage: int, parent: int | None) -> int:
        return self.filler.add(
            Checkpoint, experiment_id=self.experiment, cycle_id=cycle, stage_id=stage, parent_id=parent, name=name,
            kind=kind, path=f"checkpoints/{name}", content_hash=f"{stage:064x}", tuning="full", details={},
            created_at=self.at, superseded_at=None,
        )  # fmt: skip

    def _evaluate(self, checkpoint: int, cycle: int | None, *, following: float, known: int, left: int) -> None:
        """Write all suites of a checkpoint; ``left`` checkpoints, including this one, share the remaining questions."""
        stage = self._stage("evaluate", cycle, known, 0)
        details = {"loose": texts.score(following + 0.01, 541), **texts.by_kind(following, self.rng)}
        self._score(checkpoint, stage, "instruction_following", following, None, details, self.asked)
        for corpus in range(1, (known or self.size.cycles) + 1):
            knows = 0.97 - 0.01 * (known - corpus) if known else 0.03
            self._score(checkpoint, stage, "domain_knowledge", knows, corpus, {})
            self._score(checkpoint, stage, "domain_knowledge_stored", min(0.99, knows + 0.02), corpus, {})
            self._score(checkpoint, stage, "bits_per_byte", 0.9 if known else 2.6, corpus, {})
        asked = self.questions // left
        self.questions -= asked
        self._score(checkpoint, stage, "general", 0.93, None, {}, asked)
        self._score(checkpoint, stage, "drift", 0.2, None, {f"measure {k}": self.rng.random() for k in range(6)})

    def _score(
        self, checkpoint: int, stage: int, suite: str, value: float, corpus: int | None, details: Any, samples: int = 0
    ) -> int:
        found = texts.score(value, 541)
        evaluation = self.filler.add(
            Evaluation, checkpoint_id=checkpoint, stage_id=stage, suite=suite, name="score", corpus=corpus,
            details=details, created_at=self.at, value=value, stderr=found["stderr"], n=541,
        )  # fmt: skip
        for start in range(0, samples, AT_ONCE):
            numbers = range(start, min(samples, start + AT_ONCE))
            rows = (self.texts.sample(k, value, self.rng) | {"evaluation_id": evaluation} for k in numbers)
            self.filler.rows(Sample, rows)
        return evaluation

    def ask(self, evaluation: int, suite: str, corpus: int, share: float, n: int) -> None:
        """Write the questions of an evaluation, with answers of a few words."""
        page = "Read this text:\n" + 12 * "A sentence of the page that holds the answer to the question, and others. "
        for k in range(n):
            right = self.rng.random() < share
            extra = {"answers": [f"{8000 + k}"], "f1": float(right), "tokens": 7, "finished": True, "tags": ["natural"]}
            prompt = f"Which port has service {k} of harbour {corpus}? Answer as briefly as you can."
            row = {
                "evaluation_id": evaluation, "item": f"question-{corpus:04x}{k:08x}",
                "group": f"page-{corpus}-{k // 6}.md",
                "prompt": f"{page}\n\n{prompt}" if suite == "open_book" else prompt, "score": float(right),
                "response": f"The port of service {k} is {8000 + k if right else 9000}.",
                "verdicts": {"correct": right, "contains": right}, "extra": extra,
            }  # fmt: skip
            self.filler.rows(Sample, [row])

    def _log_events(self, cycle: int, number: int) -> None:
        """Write the cycle's events, the gate's result, and a decision except for the last cycle."""
        events = [("cycle", "begun", {}), ("gate", f"cycle {number}: all rules hold", texts.gate(number, self.rng))]
        events += [("note", f"cycle {number} finished", {})]
        for kind, message, data in events:
            self.filler.add(
                Event, experiment_id=self.experiment, cycle_id=cycle, stage_id=None, level="info", kind=kind,
                message=message, data=data, created_at=self.at,
            )  # fmt: skip
        if number < self.size.cycles:
            self.filler.add(
                Decision, cycle_id=cycle, decision="accepted", who="gate", why="all rules hold",
                evidence=texts.gate(number, self.rng), created_at=self.at,
            )  # fmt: skip


def _points(steps: int) -> int:
    """Return the number of points of a distillation with this many steps."""
    return steps * len(DISTILL) + len(range(1, steps + 1, GEOMETRY_EVERY)) * len(GEOMETRY)


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Add an option for each number of :class:`Size`."""
    for size in fields(Size):
        parser.add_argument(f"--{size.name}", type=int, default=size.default)


def main() -> None:
    """Create the database named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    add_sizes(parser)
    options = vars(parser.parse_args())
    path = options.pop("file")
    if path.exists():
        parser.error(f"{path} already exists: delete it first, or give another name")
    for table, rows in make(path, Size(**options), progress=True).items():
        print(f"{rows:>10,} {table}")


if __name__ == "__main__":
    main()
