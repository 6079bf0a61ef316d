"""Copies of the tracker's records in W&B, MLflow, Trackio and SwanLab, read back from what each of them stored."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from db import Tracker, decide
from db.agreement import wilson
from pipelines.forwarding.forwarder import Forwarder, ServiceError, Source
from pipelines.forwarding.services import WRITERS, Row, Run, WandbWriter, check_services
from recovery.errors import UsageError
from recovery.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
# The 95% interval of a score of 0.5 whose standard error of 0.1 is that of 25 independent items.
LOW, HIGH = wilson(0.5, 25)


@dataclass
class Line:
    """A small line of cycles in a tracker: a distillation of steps 1 to 3 that was interrupted, and its evaluation."""

    workspace: Workspace
    tracker: Tracker
    experiment: int
    cycle: int
    distill: int = 0
    evaluate: int = 0

    @property
    def source(self) -> Source:
        """What is sent."""
        return Source(self.workspace, self.tracker.database, self.experiment)

    def train(self, first: int, last: int) -> None:
        """Train from one step to another; the stage is resumed if it was interrupted, and finished after step 5."""
        if self.distill:
            stage = self.tracker.resume_stage(self.distill, from_step=first - 1)
        else:
            stage = self.tracker.start_stage(
                self.experiment, "distill", cycle_id=self.cycle, config={"lr": 0.1, "teacher": "base"}, seed=7
            )
        self.distill = stage.id
        for step in range(first, last + 1):
            stage.log(step, {"reverse_kl": 1 / step, "tokens_trained": 10})
            stage.log(step, {"observed/entropy": step / 2})
        if last < 5:
            stage.interrupt()
            return
        details = {"path": "checkpoints/cycle-1/recovered", "content_hash": "abc", "cycle_id": self.cycle, "by": stage}
        number = self.tracker.add_checkpoint(self.experiment, "cycle-1/recovered", "recovered", **details)
        stage.finish("recovered")
        with self.tracker.start_stage(self.experiment, "evaluate", cycle_id=self.cycle, student_id=number) as stage:
            score = {"value": 0.5, "stderr": 0.1, "n": 25, "by": stage}
            self.tracker.add_evaluation(number, "instruction_following", **score)
            self.tracker.add_evaluation(number, "domain_knowledge", corpus=1, **score)
            self.evaluate = stage.id

    def decide(self) -> None:
        """Accept the cycle and write its report."""
        decide(self.tracker.database, self.cycle, "accepted", who="Ada", why="knows the handbook")
        self.workspace.report(1).parent.mkdir(exist_ok=True)
        self.workspace.report(1).write_text("# Cycle 1\n\nlearnt 20 points\n")


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    workspace = Workspace(tmp_path / "ferry")
    workspace.folder.mkdir()
    workspace.remember("miniature")
    with Tracker(workspace.database) as tracker:
        experiment = tracker.experiment("main", base_model="miniature")
        yield Line(workspace, tracker, experiment, tracker.cycle(experiment, 1, documents="handbook"))


# --- the forwarder, with a service that is a dictionary ---------------------------------------------------------


@dataclass
class Store:
    """A service: what it has of each run. ``broken`` raises."""

    steps: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    metrics: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    facts: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    texts: dict[str, str] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=dict)
    broken: bool = False


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """The service "store", which writes only when a run is closed, as W&B and SwanLab do."""
    kept = Store()

    class ServiceWriter:
        durable = False

        def open(self, run: Run) -> None:
            self.run, self.waiting = run.name, list[Callable[[], None]]()
            self.check()

        def check(self) -> None:
            if kept.broken:
                raise OSError("the service is down\nin many lines")

        def log(self, rows: Sequence[Row]) -> None:
            self.check()
            for row in rows:
                self.waiting.append(lambda row=row: kept.steps[self.run].append(row.step))
                self.waiting.append(lambda row=row: kept.metrics[self.run].update(row.metrics))

        def describe(self, facts: Mapping[str, Any]) -> None:
            self.waiting.append(lambda: kept.facts[self.run].update(facts))

        def text(self, name: str, markdown: str) -> None:
            self.waiting.append(lambda: kept.texts.update({name: markdown}))

        def close(self, status: str) -> None:
            self.check()
            for write in self.waiting:
                write()
            kept.status[self.run] = status

    monkeypatch.setitem(WRITERS, "store", ServiceWriter)
    return kept


STAGE, EVALUATION, CYCLE = "ferry cycle 1 distill (1)", "ferry cycle 1 evaluate (2)", "ferry cycle 1"


def test_everything_is_sent_once(line: Line, store: Store) -> None:
    line.train(1, 5)
    line.decide()
    for _ in range(2):  # the second process sends nothing
        forwarder = Forwarder("store", line.source)
        forwarder.forward()
        forwarder.close()
    assert forwarder.missing() == ""
    assert store.steps == {STAGE: [1, 2, 3, 4, 5], EVALUATION: [0, 0]}
    assert store.metrics[STAGE] == {"reverse_kl": 0.2, "tokens_trained": 10, "observed/entropy": 2.5}
    assert store.metrics[EVALUATION]["instruction_following"] == 0.5
    assert store.metrics[EVALUATION]["instruction_following_low"] == pytest.approx(LOW)
    assert store.metrics[EVALUATION]["instruction_following_high"] == pytest.approx(HIGH)
    assert store.metrics[EVALUATION]["domain_knowledge_by_corpus/1_n"] == 25
    assert store.facts[STAGE]["checkpoint"] == "cycle-1/recovered"
    assert store.facts[STAGE]["checkpoint_hash"] == "abc"
    assert store.facts[STAGE]["stopped"] == "recovered"
    assert store.facts[CYCLE] == {"decision": "accepted", "decided_by": "Ada", "decided_because": "knows the handbook"}
    assert store.texts == {"cycle-1.md": "# Cycle 1\n\nlearnt 20 points\n"}
    assert store.status == {STAGE: "finished", EVALUATION: "finished", CYCLE: "finished"}


def test_a_resumed_stage_is_continued_without_its_repeated_steps(line: Line, store: Store) -> None:
    line.train(1, 3)
    Forwarder("store", line.source).forward()
    assert store.steps == {STAGE: [1, 2, 3]} and store.status == {STAGE: "interrupted"}
    line.train(3, 5)  # its state was saved at step 2
    Forwarder("store", line.source).forward()
    assert store.steps[STAGE] == [1, 2, 3, 4, 5] and store.status[STAGE] == "finished"


def test_the_newest_step_of_a_running_stage_waits_until_it_is_complete(line: Line, store: Store) -> None:
    stage = line.tracker.start_stage(line.experiment, "distill", cycle_id=line.cycle)
    forwarder = Forwarder("store", line.source)
    for step in (1, 2):
        stage.log(step, {"loss": 1.0})
        line.tracker.flush()
        forwarder.forward([stage.id])
    stage.log(2, {"observed/entropy": 3.0})
    stage.finish()
    assert forwarder.missing([stage.id]) == "3 points, 1 outcome"  # step 1 is sent, but not known to have arrived
    forwarder.forward([stage.id])
    assert store.steps[STAGE] == [1, 2] and store.metrics[STAGE]["observed/entropy"] == 3.0


def test_nothing_is_lost_by_a_service_that_fails_and_comes_back(line: Line, store: Store) -> None:
    line.train(1, 5)
    forwarder = Forwarder("store", line.source)
    store.broken = True
    with pytest.raises(ServiceError, match="^the service is down$"):
        forwarder.forward()
    assert forwarder.missing() == "15 points, 1 checkpoint, 2 outcomes, 2 evaluations" and not store.steps
    store.broken = False
    forwarder.forward()
    assert forwarder.missing() == "" and store.steps[STAGE] == [1, 2, 3, 4, 5]


def test_scores_of_an_evaluation_that_goes_on_are_in_the_summary_where_wandb_drops_their_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Continued:
        """A run of W&B that is continued after step 0: it drops what comes at that step."""

        def __init__(self) -> None:
            self.step, self.kept, self.summary = 1, dict[int, dict[str, float]](), dict[str, float]()

        def log(self, metrics: dict[str, float], step: int) -> None:
            if step >= self.step:
                self.step, self.kept[step] = step, metrics

    run, wandb = Continued(), ModuleType("wandb")
    wandb.init, wandb.Settings = lambda **_: run, dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    writer = WandbWriter()
    writer.open(Run("key", "evaluate", "ferry", "evaluate", {}, 0.0))
    writer.log([Row(0, {"ifeval": 0.5}, 9.0), Row(2, {"loss": 1.0}, 9.0)])
    assert run.summary == {"ifeval": 0.5} and run.kept == {2: {"loss": 1.0, "_timestamp": 9.0}}


def test_the_error_of_an_unknown_or_missing_service_names_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="'comet' is not .*: use wandb, mlflow, trackio, swanlab"):
        check_services(["comet"])
    monkeypatch.setitem(WRITERS, "absent_package", WandbWriter)
    with pytest.raises(
        UsageError, match=r"^absent_package is not installed: pip install 'recovery\[absent_package\]'$"
    ):
        check_services(["absent_package"])


# --- the real services ------------------------------------------------------------------------------------------

# Each prints, as JSON by the run's name, the steps of every metric, and the texts of whatever else was stored. They
# run in the folder of the test, with the environment that the service was given.
READERS = {
    "mlflow": """
client = __import__("mlflow").MlflowClient()
for experiment in client.search_experiments():
    assert experiment.name in ("recovery", "Default")
    for run in client.search_runs([experiment.experiment_id]):
        name = run.info.run_name
        for metric in run.data.metrics:
            for point in client.get_metric_history(run.info.run_id, metric):
                add(name, metric, point.step, point.value)
        say(name, run.info.status, *run.data.tags.values(), *run.data.params.values())
        for file in client.list_artifacts(run.info.run_id):
            say(name, open(client.download_artifacts(run.info.run_id, file.path)).read())
""",
    "trackio": """
import trackio
from trackio.sqlite_storage import SQLiteStorage
for run in trackio.Api().runs("recovery"):
    name = run.name.rpartition(" ")[0]
    say(name, *run.config.values())
    for row in SQLiteStorage.get_logs("recovery", run.name):
        step = row.pop("step")
        for metric, value in row.items():
            add(name, metric, step, value) if isinstance(value, (int, float)) else say(name, value)
""",
    "wandb": """
import glob
from wandb.proto.wandb_internal_pb2 import Record
names = {}
for path in sorted(glob.glob("wandb/offline-run-*/*.wandb")):
    for data in blocks(path):
        record = Record.FromString(data)
        names[path] = record.run.display_name or names.get(path)
        if not (name := names[path]):
            continue  # the header
        row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for metric in row:
            if not metric.startswith("_"):
                add(name, metric, row["_step"], row[metric])
        for item in (*record.summary.update, *record.run.config.update):
            say(name, item.value_json)
        for entry in record.request.log_artifact.artifact.manifest.contents or record.artifact.manifest.contents:
            say(name, open(entry.local_path).read())
""",
    "swanlab": """
import glob
from swanlab.proto.swanlab.record.v1.record_pb2 import Record
for path in sorted(glob.glob("swanlog/run-*/*.swanlab")):
    name = ""
    for data in blocks(path):
        record = Record.FromString(data)
        name = record.start.name or name
        if record.HasField("scalar"):
            add(name, record.scalar.key, record.scalar.step, record.scalar.value.number)
        else:
            say(name, record)
    for text in glob.glob(path.rpartition("/")[0] + "/[fm]*/**/*.*", recursive=True):
        say(name, open(text).read())
""",
}
COMMON = """
import json, struct, sys
found, texts = {}, {}
def add(run, metric, step, value):
    found.setdefault(run, {}).setdefault(metric, []).append((step, value))
def say(run, *values):
    texts[run] = texts.get(run, "") + " ".join(map(str, values))
def blocks(path):  # the log format of LevelDB, in which W&B and SwanLab store their records
    data, at, part = open(path, "rb").read(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        part, at = part + data[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):
            yield part
            part = b""
"""


@dataclass
class Service:
    """A real service that stores everything in the folder of the test."""

    name: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """No account, no network."""
        own = {
            "WANDB_MODE": "offline",
            "WANDB_DATA_DIR": str(self.folder / "wandb"),
            "SWANLAB_MODE": "offline",
            "SWANLAB_ROOT": str(self.folder / "swanlab"),
            "TRACKIO_DIR": str(self.folder / "trackio"),
            "MLFLOW_TRACKING_URI": "",
            "HOME": str(self.folder),
        }
        return {**os.environ, "PYTHONPATH": str(ROOT), **own}

    def follow(self, line: Line, *stages: int) -> None:
        """Send stages as a session does, in a process that ends when its input does."""
        command = ["-m", "recovery", "sync", "--follow", "--report-to", self.name, "--workspace", line.workspace.folder]
        ids = "".join(f"{stage}\n" for stage in stages)
        assert self.run(command, ids) == ""  # it would print what went wrong

    def read(self) -> tuple[dict[str, dict[str, list[list[float]]]], dict[str, str]]:
        """Return the points of every metric by run, and everything else that was stored for a run as one text."""
        script = COMMON + READERS[self.name] + "print(json.dumps([found, texts]))"
        points, texts = json.loads(self.run(["-c", script]).splitlines()[-1])
        return points, texts

    def run(self, command: Sequence[str | Path], given: str = "") -> str:
        """Run Python in the folder and return its output."""
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=self.environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(
    params=["wandb", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mlflow", "trackio", "swanlab"))]
)
def service(request: pytest.FixtureRequest, tmp_path: Path, require_component: Callable[[bool, str], None]) -> Service:
    require_component(importlib.util.find_spec(request.param) is not None, request.param)
    return Service(request.param, tmp_path)


@pytest.mark.trackers
def test_a_real_service_holds_every_point_of_a_resumed_stage_once(line: Line, service: Service) -> None:
    line.train(1, 3)
    service.follow(line, line.distill)
    line.train(3, 5)
    line.decide()
    service.follow(line, line.distill, line.evaluate)
    service.follow(line, line.distill, line.evaluate)
    points, texts = service.read()
    # "ferry" is the folder of the workspace; no other run exists.
    assert set(texts) == {STAGE, EVALUATION, CYCLE}
    assert points[STAGE]["reverse_kl"] == [[step, pytest.approx(1 / step)] for step in (1, 2, 3, 4, 5)]
    assert points[STAGE]["observed/entropy"] == [[step, step / 2] for step in (1, 2, 3, 4, 5)]
    assert points[EVALUATION]["instruction_following"] == [[0, 0.5]]
    assert points[EVALUATION]["domain_knowledge_by_corpus/1_low"] == [[0, pytest.approx(LOW)]]
    for text in ("cycle-1/recovered", "abc", str(line.workspace.folder / "checkpoints/cycle-1/recovered"), "base"):
        assert text in texts[STAGE]
    for text in ("accepted", "Ada", "knows the handbook", "learnt 20 points"):
        assert text in texts[CYCLE]
