"""Loading students, teachers and engines for a stage; the choice of tuning by available memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from pipelines.planning.memory import TeacherFootprint
from pipelines.runtime.engines import engine_of, server_at
from pipelines.runtime.instrumentation import StepInstrumentation, TimedScorer, TimedTeacher
from pipelines.runtime.signals import StopSignals
from pipelines.runtime.stage import Stage
from recovery import distributed
from recovery.batching import Row
from recovery.config import DistillConfig, ModelConfig, TrainingConfig
from recovery.errors import UsageError
from recovery.losses.config import LossConfig
from recovery.losses.logprobs import token_logprobs
from recovery.losses.objective import DistillationObjective
from recovery.models.loading import Loaded, LoraSettings, load_model, only_lora
from recovery.rng import RandomStream, derive_seed
from recovery.rollouts import GENERATE, DistributedEngine, Engine
from recovery.teachers import (
    AdapterOff,
    CurrentStudent,
    Frozen,
    MovingAverage,
    RemoteTeacher,
    Teacher,
    Weighted,
    check_same_tokens,
    remote,
)
from recovery.training.loop import Hooks, StepBatch, TrainResult, TrainSettings, train
from recovery.vllm_client import served_model
from recovery.workspace import Checkpoint


def load_student(student: Checkpoint, tuning: str, config: TrainingConfig, sharing: Loaded | None = None) -> Loaded:
    """Load the student for training. A new adapter is initialised from the seed, so that runs are reproducible.

    An adapter can share the base weights of ``sharing``, a model that is already loaded.
    """
    torch.manual_seed(derive_seed(config.seed, 0, RandomStream.ADAPTER))
    return load_model(
        student.weights,
        tuning=tuning,  # type: ignore[arg-type]  # resolved by choose_tuning
        adapter=student.adapter,
        lora=LoraSettings(config.lora_rank, config.lora_alpha),
        gradient_checkpointing=config.gradient_checkpointing,
        shard=config.shard == "full",
        offload=config.offload,
        compiled=config.compile,
        beside=sharing,
        **_place(config),
    )


def load_frozen(checkpoint: Checkpoint, config: ModelConfig, sharing: Loaded | None = None) -> Loaded:
    """Load a checkpoint that is not trained. An adapter can share the base weights of the loaded model ``sharing``."""
    return load_model(checkpoint.weights, tuning="frozen", adapter=checkpoint.adapter, beside=sharing, **_place(config))


def reach_teacher(config: DistillConfig) -> None:
    """Raise ServerError if the teacher is a server that does not respond or rejects the key."""
    if not config.teaching.remote:
        return
    with contextlib.closing(server_at(config.teaching.address, remote.KEYS, config)) as server:
        served_model(server)


def remote_teacher(loaded: Loaded, config: DistillConfig) -> RemoteTeacher:
    """Return the teacher on a server, after a check that it uses the student's tokens and returns enough scores."""
    server = server_at(config.teaching.address, remote.KEYS, config)
    teacher = RemoteTeacher(server, loaded.tokenizer, loaded.chat, loaded.head.vocabulary, config.top_k)
    teacher.check()
    return teacher


def share_base_weights(one: Checkpoint, other: Checkpoint) -> bool:
    """Whether both can share their base weights in memory while one is trained by LoRA."""
    return one.weights.resolve() == other.weights.resolve() and only_lora(one.adapter) and only_lora(other.adapter)


def teacher_footprint(student: Checkpoint, teachers: Sequence[Checkpoint], *, copied: bool = False) -> TeacherFootprint:
    """Return the models that teachers add in memory; ``copied`` adds a copy of the student."""
    sharing = [teacher for teacher in teachers if share_base_weights(student, teacher)]
    bases = sum(teacher.adapter is None for teacher in sharing)
    alone = copied and not share_base_weights(student, student)
    return TeacherFootprint(
        bases, len(sharing) - bases, len(teachers) - len(sharing) + alone, int(copied and not alone)
    )


def teacher_of(student: Checkpoint, loaded: Loaded, teacher: Checkpoint, config: ModelConfig) -> Teacher:
    """Load a teacher: the student's weights with the adapter off if they are the same model, else a frozen copy.

    If the teacher is an adapter on the student's base, only the adapter is loaded. The tokenizers must be the same.
    """
    shared = loaded.tuning == "lora" and share_base_weights(student, teacher)
    if shared and teacher.adapter is None:
        return AdapterOff(loaded)
    frozen = load_frozen(teacher, config, sharing=loaded if shared and not loaded.sharded else None)
    check_same_tokens(loaded.tokenizer, frozen.tokenizer, student_name=student.name, teacher_name=teacher.name)
    return Frozen(frozen)


def self_teacher(student: Checkpoint, loaded: Loaded, config: DistillConfig) -> Teacher:
    """Return the student as its own teacher: its current weights, or a copy that stays fixed or is a moving average."""
    if config.teaching.kind == "self":
        return CurrentStudent(loaded)
    alone = replace(config, shard="none", offload=False)
    shares = loaded.tuning == "lora" and not loaded.sharded and share_base_weights(student, student)
    copy = load_student(student, loaded.tuning, alone, sharing=loaded if shares else None)
    if loaded.sharded and config.teaching.kind == "ema":
        raise UsageError("--teacher ema averages unsharded weights: use --shard none")
    return MovingAverage(copy, config.ema_decay) if config.teaching.kind == "ema" else Frozen(copy)


def _place(config: ModelConfig) -> dict[str, Any]:
    return {"precision": config.precision, "device": config.device, "template_args": config.template_args}


LOGPROBS = "logprobs"


@dataclass(frozen=True)
class ModelSpecs:
    """The student, and the weighted teachers by the names used in rows.

    A teacher without checkpoints is the student itself or a server. The caller has verified all checkpoints.
    """

    config: TrainingConfig
    student: Checkpoint
    tuning: str
    teachers: Mapping[str, Mapping[Checkpoint, float]] = field(default_factory=dict)
    anchor: Checkpoint | None = None
    loss_config: LossConfig = field(default_factory=LossConfig)

    def load(self, resources: contextlib.ExitStack) -> LoadedModels:
        """Load all models; the engine is released when ``resources`` is closed."""
        loaded = load_student(self.student, self.tuning, self.config)
        teachers = {name: self._teacher(loaded, weights) for name, weights in self.teachers.items()}
        anchor = self._timed(loaded, self.anchor) if self.anchor is not None else None
        engine = (
            resources.enter_context(engine_of(loaded, self.config)) if isinstance(self.config, DistillConfig) else None
        )
        return LoadedModels(
            self.config, loaded, teachers, anchor, DistillationObjective(teachers, self.loss_config, anchor), engine
        )

    def _teacher(self, loaded: Loaded, weights: Mapping[Checkpoint, float]) -> TimedTeacher | TimedScorer | Weighted:
        if not weights:
            assert isinstance(self.config, DistillConfig)  # only a distillation has such teachers
            if self.config.teaching.remote:
                return TimedScorer(remote_teacher(loaded, self.config))
            return TimedTeacher(self_teacher(self.student, loaded, self.config))
        found = [self._timed(loaded, teacher) for teacher in weights]
        return found[0] if len(found) == 1 else Weighted(found, list(weights.values()))

    def _timed(self, loaded: Loaded, teacher: Checkpoint) -> TimedTeacher:
        return TimedTeacher(teacher_of(self.student, loaded, teacher, self.config))


@dataclass
class LoadedModels:
    """The models of a stage in this process's memory; ``local_engine`` samples in this process only."""

    config: TrainingConfig
    loaded: Loaded
    teachers: Mapping[str, TimedTeacher | TimedScorer | Weighted]
    anchor: TimedTeacher | None
    objective: DistillationObjective
    local_engine: Engine | None

    def __post_init__(self) -> None:
        method = self.config if isinstance(self.config, DistillConfig) else None
        self.instrumentation = StepInstrumentation(self.objective, self.timed, self.loaded.head.width, method)

    @property
    def engine(self) -> Engine:
        """The engine that samples from the student in all processes."""
        assert self.local_engine is not None  # used only by stages that sample
        return self.local_engine if distributed.size() == 1 else DistributedEngine(self.local_engine)

    @property
    def timed(self) -> list[TimedTeacher | TimedScorer]:
        """All teachers and the anchor, those with weights one by one."""
        found: list[TimedTeacher | TimedScorer] = []
        for teacher in [*self.teachers.values(), *([self.anchor] if self.anchor else [])]:
            parts = [part for part, _ in teacher.parts] if isinstance(teacher, Weighted) else [teacher]
            found += [part for part in parts if isinstance(part, (TimedTeacher, TimedScorer))]
        return found

    @property
    def shadow(self) -> MovingAverage | None:
        """The teacher that is a moving average of the student's weights, if any."""
        return next((t.teacher for t in self.timed if isinstance(t.teacher, MovingAverage)), None)

    @property
    def helpers(self) -> distributed.Helpers | None:
        """Functions that the main process can call in this one between steps; None if the stage does not sample."""
        if self.local_engine is None:
            return None
        return {GENERATE: self.local_engine.generate, LOGPROBS: self._local_logprobs}

    def train(
        self,
        stage: Stage,
        source: Callable[[int], StepBatch],
        settings: TrainSettings,
        *,
        hooks: Hooks,
        figure: str = "loss",
        memory: dict[str, Any] | None = None,
    ) -> TrainResult:
        """Train the student as ``stage`` on the rows of ``source``; see :meth:`pipelines.runtime.stage.Stage.train`."""
        return stage.train(
            self.loaded,
            source,
            self.objective,
            settings,
            hooks=hooks,
            figure=figure,
            memory=memory,
            shadow=self.shadow,
            instrumentation=self.instrumentation,
            helpers=self.helpers,
        )

    def logprobs(self, name: str, rows: Sequence[Row]) -> list[list[float]]:
        """Return a teacher's log-probabilities (nats) of the targets of each row, scored by all processes."""
        parts = [(name, part) for part in distributed.cut(rows)]
        return [values for part in distributed.ask(LOGPROBS, parts, self._local_logprobs) for values in part]

    def _local_logprobs(self, name: str, rows: Sequence[Row]) -> list[list[float]]:
        teacher, loaded = self.teachers[name], self.loaded
        assert isinstance(teacher, (TimedTeacher, TimedScorer))  # the configuration excludes weighted ones
        return token_logprobs(teacher, rows, self.config.token_budget, loaded.chat.pad_id, loaded.device)


@contextlib.contextmanager
def load_models(stage: Stage, specs: ModelSpecs, settings: TrainSettings) -> Iterator[LoadedModels]:
    """Load the models of a stage; the block trains them by ``Stage.train`` with these settings."""
    with distributed.together(_follow, specs, settings, stage.states), contextlib.ExitStack() as resources:
        yield specs.load(resources)


def _follow(specs: ModelSpecs, settings: TrainSettings, states: Path) -> None:
    """Load the models and run the training loop in a process that is not the main one."""
    interrupts = StopSignals()
    with interrupts.deferred(), contextlib.ExitStack() as resources:
        models = specs.load(resources)
        train(
            models.loaded,
            _no_rows,
            models.objective,
            settings,
            state_dir=states,
            should_stop=lambda: interrupts.requested,
            shadow=models.shadow,
            instrumentation=models.instrumentation,
            helpers=models.helpers,
        )


def _no_rows(step: int) -> StepBatch:
    raise AssertionError(f"only the main process creates the rows of step {step}")
