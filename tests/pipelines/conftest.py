"""Fixtures of the stages' tests: a small corpus, a workspace on a tiny model, settings that take a second."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from db import queries, records
from pipelines.cycle_plan import resumable
from pipelines.distillation.stage import distill
from pipelines.evaluation.stage import evaluate
from pipelines.midtraining.material import open_cycle
from pipelines.midtraining.stage import midtrain
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session, StageInterrupted
from recovery.batching import Row
from recovery.config import CycleConfig, DistillConfig, EvalConfig, MidtrainConfig
from recovery.training import update
from recovery.types import SuiteResult
from recovery.workspace import Checkpoint, Workspace
from tests.recorded_stages import Recorded

Cycles = Callable[..., CycleConfig]
MakeCorpus = Callable[[str], Path]
MakeTiny = Callable[..., Path]
OpenSession = Callable[..., Session]
Record = Callable[..., Recorded]
StepSizes = Callable[[ModuleType, str], tuple[list[int | None], list[int]]]
TOWNS = ("Lund", "Porto", "Bergen", "Turin", "Ghent", "Cork")
KEEPERS = ("Anna Berg", "Tomas Reed", "Lena Hall", "Otto Finch")


def write_corpus(folder: Path, name: str, documents: int = 4) -> Path:
    """Markdown files about numbered ferries of one line, different for each name."""
    folder.mkdir(parents=True)
    draw = random.Random(name)
    for number in range(documents):
        lines = [
            f"The {name} ferry number {10 * number + k} is kept by {draw.choice(KEEPERS)} in the town of "
            f"{draw.choice(TOWNS)} and carries {draw.randint(10, 900)} passengers on every day of the week. "
            f"The {name} ferry number {10 * number + k} was built in {draw.randint(1900, 2020)}."
            for k in range(4)
        ]
        (folder / f"{name.lower()}-{number}.md").write_text(f"# {name} {number}\n\n" + "\n\n".join(lines) + "\n")
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder of four documents."""
    return write_corpus(tmp_path / "corpus", "Harbour")


@pytest.fixture
def make_corpus(tmp_path: Path) -> MakeCorpus:
    """``make_corpus("Orchid")``: another folder of documents."""
    return lambda name: write_corpus(tmp_path / name, name)


@pytest.fixture(scope="session")
def prompt_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of behaviour prompts, few and short, one of them in two turns."""
    folder = tmp_path_factory.mktemp("prompts")
    for split, count in (("train", 12), ("development", 6), ("test", 6)):
        records = [
            {
                "key": f"{split}-{n}",
                "prompt": f"Name a boat of {split} {n}. Use no comma.",
                "instruction_id_list": ["punctuation:no_comma"],
                "kwargs": [{}],
            }
            for n in range(count)
        ]
        turns = [{"role": "user", "content": f"Say the word {split}."}, {"role": "user", "content": "Say it again."}]
        records.append({"key": f"{split}-two", "messages": turns})  # type: ignore[dict-item]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.fixture
def open_session(tmp_path: Path, tiny_model: Path) -> OpenSession:
    """``open_session()``: the workspace of this test, on the tiny model unless another is named, or None to name none.

    A ``tracker`` is the name of a file that workspaces may share.
    """

    def open_it(
        model: Path | None = tiny_model, name: str = "workspace", tracker: str | None = None, **more: Any
    ) -> Session:
        place = Workspace(tmp_path / name, None if tracker is None else str(tmp_path / tracker))
        return Session.open(place, model=None if model is None else str(model), display=Display(quiet=True), **more)

    return open_it


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, prompt_file: Path) -> Path:
    """A workspace that was mid-trained as `bench` does, once for all tests of a process."""
    folder = tmp_path_factory.mktemp("midtrained")
    config = six_steps(write_corpus(folder / "corpus", "Harbour"), prompt_file)
    with Session.open(folder / "workspace", model=str(tiny_model), display=Display(quiet=True)) as session:
        midtrain(session, config)
    return folder / "workspace"


@pytest.fixture
def session(
    open_session: OpenSession, empty_tracker: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Session]:
    """An open workspace on the tiny model: empty, or with its checkpoint if a test uses the fixture `midtrained`."""
    place = tmp_path / "workspace"
    if "midtrained" in request.fixturenames:
        shutil.copytree(request.getfixturevalue("trained_once"), place)
    else:
        place.mkdir()
        shutil.copyfile(empty_tracker, place / "tracker.db")
    with open_session() as opened:
        yield opened


@pytest.fixture
def midtrained(session: Session) -> Checkpoint:
    """The checkpoint that ``bench.midtrain()`` makes, of this test's workspace."""
    return session.resolve("cycle-1/midtrained")


def stages_of(session: Session, kind: str | None = None) -> list[records.Stage]:
    """Return the stages of a session's workspace, newest first."""
    return queries.stages(session.tracker.database, session.experiment_id, kind=kind)


def curves_of(session: Session) -> dict[str, list[float]]:
    """Return the values of every step of the newest stage, by metric."""
    found = queries.series(session.tracker.database, stages_of(session)[0].id)
    return {name: [point.value for point in points] for name, points in found.items()}


def six_steps(docs: Path, prompts: Path | None) -> MidtrainConfig:
    """Six small steps on a folder of documents."""
    return MidtrainConfig(
        docs=docs,
        steps=6,
        batch_tokens=128,
        row_length=64,
        lr=3e-3,
        precision="float32",
        tuning="full",
        checkpoint_every=2,
        prompts=prompts,
        max_new_tokens=8,
        fewest_questions=0,
    )


@pytest.fixture
def midtrain_config(corpus: Path, prompt_file: Path) -> MidtrainConfig:
    """Six small steps."""
    return six_steps(corpus, prompt_file)


@pytest.fixture
def distill_config(prompt_file: Path) -> DistillConfig:
    """Four steps of four short answers."""
    return DistillConfig(
        steps=4,
        prompts_per_step=2,
        samples_per_prompt=2,
        max_new_tokens=8,
        lr=1e-3,
        precision="float32",
        tuning="full",
        checkpoint_every=1,
        prompts=prompt_file,
        until=0,
        plateau=0,
    )


@pytest.fixture
def eval_config(prompt_file: Path) -> EvalConfig:
    """A few items per suite."""
    return EvalConfig(limit=4, max_new_tokens=8, question_tokens=4, precision="float32", prompts=prompt_file)


@dataclasses.dataclass
class Bench:
    """A session, and small settings of each stage: a test says what it changes of them."""

    session: Session
    mid: MidtrainConfig
    end: DistillConfig
    items: EvalConfig

    @property
    def docs(self) -> Path:
        return self.mid.docs  # type: ignore[return-value]

    def midtraining(self, **changes: Any) -> MidtrainConfig:
        return dataclasses.replace(self.mid, **changes)

    def distilling(self, **changes: Any) -> DistillConfig:
        return dataclasses.replace(self.end, **changes)

    def evaluating(self, **changes: Any) -> EvalConfig:
        return dataclasses.replace(self.items, **changes)

    def midtrain(self, **changes: Any) -> Checkpoint:
        return midtrain(self.session, self.midtraining(**changes))

    def distill(self, **changes: Any) -> Checkpoint:
        return distill(self.session, self.distilling(**changes))

    def evaluate(self, **changes: Any) -> list[SuiteResult]:
        return evaluate(self.session, self.evaluating(**changes))


@pytest.fixture
def bench(
    session: Session, midtrain_config: MidtrainConfig, distill_config: DistillConfig, eval_config: EvalConfig
) -> Bench:
    return Bench(session, midtrain_config, distill_config, eval_config)


@pytest.fixture
def small(midtrain_config: MidtrainConfig, distill_config: DistillConfig, eval_config: EvalConfig) -> CycleConfig:
    """A cycle that takes a few seconds."""
    return CycleConfig(
        docs=(),
        knowledge_teacher=None,
        midtrain=dataclasses.replace(midtrain_config, docs=None, steps=2),
        distill=dataclasses.replace(distill_config, steps=1),
        eval=eval_config,
    )


@pytest.fixture
def cycles(small: CycleConfig, make_corpus: MakeCorpus) -> Cycles:
    """``cycles("First", "Second")``: two small cycles on new documents, without evaluations."""
    return lambda *names, **changes: dataclasses.replace(
        small, docs=tuple(map(make_corpus, names)), **({"evaluate": False} | changes)
    )


@pytest.fixture
def record(session: Session, monkeypatch: pytest.MonkeyPatch) -> Record:
    """``record("distill 1")``: cycles record their stages and train nothing, and stop once there."""
    return lambda stop="": Recorded(session, monkeypatch, stop)


@pytest.fixture
def stopped_recovery(bench: Bench, record: Record) -> records.Stage:
    """A recovery of the first cycle that was recorded and stopped, after its mid-training."""
    recorded, session = record("distill 1"), bench.session
    recorded.midtrain(session, bench.midtraining(), open_cycle(session, bench.midtraining()))
    with pytest.raises(StageInterrupted):
        recorded.distill(session, bench.distilling(student="midtrained"))
    stage = resumable(session)
    assert stage is not None
    return stage


@pytest.fixture
def step_sizes(monkeypatch: pytest.MonkeyPatch) -> StepSizes:
    """``step_sizes(module, "midtraining")``: two lists that fill as stages are planned and trained: the tokens of the
    largest step by the function of that name in a plan's module, and those of each step, padded to its widest row.
    """

    def record(module: ModuleType, name: str) -> tuple[list[int | None], list[int]]:
        planned: list[int | None] = []
        trained: list[int] = []
        plan_of, batches_of = getattr(module, name), update.micro_batches

        def planning(*given: Any, **named: Any) -> Any:
            planned.append(named["step"])
            return plan_of(*given, **named)

        def batching(rows: list[Row], *given: Any, **named: Any) -> Any:
            trained.append(len(rows) * max(row.width for row in rows))
            return batches_of(rows, *given, **named)

        monkeypatch.setattr(module, name, planning)
        monkeypatch.setattr(update, "micro_batches", batching)
        return planned, trained

    return record
