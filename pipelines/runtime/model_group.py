"""The models of a stage together: which are loaded, and how they train, score and sample in all processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from pipelines.runtime.engines import GENERATE, DistributedEngine, engine_of
from pipelines.runtime.model_loading import (
    FrozenModel,
    interpolation_between,
    load_student,
    self_teacher,
    share_base_weights,
    teacher_of,
)
from pipelines.runtime.session import StageInterrupted, StopSignals
from pipelines.runtime.stage import Stage
from recovery import distributed
from recovery.batching import Row
from recovery.config import DistillConfig, MidtrainConfig, TrainingConfig
from recovery.lazy_import import lazily
from recovery.losses.config import LossConfig
from recovery.losses.objective import DistillationObjective
from recovery.losses.terms import Outcomes
from recovery.losses.token_stats import GradientStats, TokenView, token_logprobs, token_views
from recovery.models.loaded import Loaded
from recovery.rng import RandomStream, derive_seed
from recovery.rollouts import weight_sync
from recovery.rollouts.engine import Engine
from recovery.rollouts.weight_sync import SyncedEngine
from recovery.teachers.teacher import LocalTeacher, Teacher, TeacherEnsemble, check_same_tokens, same_tokens
from recovery.training.interfaces import INTERRUPTED, Hooks, Resumable, StepBatch, TrainResult, TrainSettings
from recovery.training.loop import train
from recovery.training.resume_state import resume_step
from recovery.workspace import Checkpoint

if TYPE_CHECKING:
    from pipelines.runtime import teacher_server
    from recovery.teachers import cross_tokenizer
    from recovery.teachers.cross_tokenizer import CrossTokenizer
else:
    # By name, where a setting chooses them: a server as teacher, a teacher with another tokenizer.
    teacher_server = lazily("pipelines.runtime.teacher_server")
    cross_tokenizer = lazily("recovery.teachers.cross_tokenizer")

# The training loop's settings, from the configuration of a stage.


def train_settings(config: TrainingConfig, steps: int, lr: float) -> TrainSettings:
    """Return the training loop's settings; ``lr`` is the peak rate."""
    return TrainSettings(
        steps=steps,
        lr=lr,
        warmup_steps=round(config.warmup * steps),
        schedule=config.schedule,  # type: ignore[arg-type]  # checked by the configuration
        min_lr_ratio=config.min_lr_ratio,
        optimizer=config.optimizer,  # type: ignore[arg-type]
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        token_budget=config.token_budget,
        seed=config.seed,
        checkpoint_every=config.checkpoint_every,
        gather=config.gather and not config.served,  # a server samples
    )


# Measurements of a training step: the scoring time of teachers, and gradient statistics.


@dataclass
class StepInstrumentation:
    """Measures the teachers' scoring and, at some steps, the gradient's geometry, on each process's share of a step.

    Called by the training loop (:class:`recovery.training.interfaces.Instrumentation`); the attributes hold the results
    of the last step. ``width`` is the student's; ``config`` is None if no geometry is measured.
    """

    objective: DistillationObjective
    teachers: Sequence[Teacher]
    width: int
    config: DistillConfig | None = None
    seconds: float = 0.0
    seconds_before: float = 0.0
    tokens: int = 0
    geometry: GradientStats | None = None

    def start(self, step: int) -> None:
        """Measure the geometry of this step's gradient if the step is one of those selected. The training time begins;
        what was scored before, while the rows were made, is no part of it.
        """
        self.seconds_before = sum(teacher.seconds for teacher in self.teachers)
        every = 0 if self.config is None else self.config.geometry_every
        self.objective.geometry = None
        if self.config is not None and every > 0 and step % every == 1 % every:
            seed = derive_seed(self.config.seed, step, RandomStream.GRADIENT_STATS)
            self.objective.geometry = GradientStats(self.width, seed, share=distributed.rank())

    def account(self, metrics: dict[str, float]) -> None:
        """Add the teachers' time and tokens to a step's metrics, and subtract what was scored in the training time."""
        metrics["seconds_scoring"] = self.seconds
        metrics["tokens_scored"] = float(self.tokens)
        within = max(0.0, self.seconds - self.seconds_before)
        metrics["seconds_training"] = max(0.0, metrics.get("seconds_training", 0.0) - within)

    def reading(self) -> tuple[float, int, GradientStats | None]:
        """Return seconds and tokens since the last reading, and this process's part of the geometry."""
        taken = [teacher.taken() for teacher in self.teachers]
        return sum(seconds for seconds, _ in taken), sum(tokens for _, tokens in taken), self.objective.geometry

    def take(self, readings: list[tuple[float, int, GradientStats | None]]) -> None:
        """Combine the processes' readings: the longest time, and the sum of tokens."""
        self.seconds = max(seconds for seconds, _, _ in readings)
        self.tokens = sum(tokens for _, tokens, _ in readings)
        self.geometry = self.objective.geometry
        if self.geometry is not None:
            self.geometry.add_all(part for _, _, part in readings[1:] if part is not None)


LOGPROBS, TOKEN_VIEWS = "logprobs", "token views"


@dataclass(frozen=True)
class ModelSpecs:
    """The student, how it is trained, and the weighted teachers by the names used in rows.

    A teacher without checkpoints is the student itself or a server. ``trained_tokens``: full fine-tuning changes the
    embeddings of these tokens only. ``origin`` is what the student's weights are blended with before training.
    """

    config: TrainingConfig
    student: Checkpoint
    settings: TrainSettings
    teachers: Mapping[str, Mapping[Checkpoint, float]] = field(default_factory=dict)
    anchor: Checkpoint | None = None
    loss_config: LossConfig = field(default_factory=LossConfig)
    trained_tokens: Collection[int] | None = None
    origin: Checkpoint | None = None

    @property
    def method(self) -> DistillConfig | None:
        """The configuration of a distillation; None of mid-training."""
        return self.config if isinstance(self.config, DistillConfig) else None

    @property
    def frozen(self) -> list[Checkpoint]:
        """The teachers and the anchor, each once."""
        teachers = [teacher for weights in self.teachers.values() for teacher in weights]
        return list(dict.fromkeys([*teachers, *([self.anchor] if self.anchor else [])]))

    def unshared(self) -> list[Checkpoint]:
        """Return the frozen models that do not share the student's base weights in memory."""
        shares = self.config.tuning == "lora" and not self.config.clean_teacher
        return [teacher for teacher in self.frozen if not (shares and share_base_weights(self.student, teacher))]

    def load(
        self, resources: contextlib.ExitStack, held: Mapping[Checkpoint, Loaded] = MappingProxyType({})
    ) -> LoadedModels:
        """Load all models but those ``held`` already; the engine is released when ``resources`` is closed."""
        config, loaded = self.config, self._student()
        if self.trained_tokens is not None and loaded.tuning == "full":
            loaded.train_rows(self.trained_tokens)
        frozen = {one: teacher_of(self.student, loaded, one, config, held.get(one)) for one in self.frozen}
        cross, outcomes, padded = self._compared(loaded, frozen)
        teachers = {name: self._teacher(loaded, frozen, weights) for name, weights in self.teachers.items()}
        anchor = frozen[self.anchor] if self.anchor is not None else None
        engine = resources.enter_context(engine_of(loaded, config)) if self.method is not None else None
        router = 0.0  # trained on labels only: a distillation's target is the teacher's distribution
        if isinstance(config, MidtrainConfig):
            own = loaded.router.weight if loaded.router is not None else 0.0
            router = own if config.router_loss is None else config.router_loss
        objective = DistillationObjective(teachers, self.loss_config, anchor, outcomes, router, padded=padded)
        return LoadedModels(self, loaded, teachers, anchor, objective, engine, cross)

    def _student(self) -> Loaded:
        loaded = load_student(self.student, self.config.tuning, self.config)
        if self.origin is not None and self.method is not None:
            interpolation_between(loaded, self.student, self.origin, self.method).move(self.method.blend)
        return loaded

    def _compared(
        self, loaded: Loaded, frozen: Mapping[Checkpoint, LocalTeacher]
    ) -> tuple[dict[str, CrossTokenizer], dict[str, Outcomes], dict[int, Outcomes]]:
        """Return the teachers with another tokenizer and the outcomes of their vocabularies, by name, and those of
        the student's vocabulary where other heads are padded to another size, by that size.

        Raise UsageError if the anchor, one of several weighted teachers, or a teacher of another stage than a
        distillation has another tokenizer.
        """
        cross: dict[str, CrossTokenizer] = {}
        outcomes: dict[str, Outcomes] = {}
        padded: dict[int, Outcomes] = {}
        used = [(name, one, len(weights) == 1) for name, weights in self.teachers.items() for one in weights]
        if self.anchor is not None:
            used.append(("the anchor", self.anchor, False))
        for name, checkpoint, single in used:
            teacher = frozen[checkpoint].loaded
            sizes = loaded.head.vocabulary, teacher.head.vocabulary
            if same_tokens(loaded.tokenizer, teacher.tokenizer):
                if sizes[0] != sizes[1]:
                    padded[sizes[1]] = Outcomes.padded(len(loaded.tokenizer), *sizes, loaded.device)
                continue
            if not single or self.method is None:
                names = {"student_name": self.student.name, "teacher_name": checkpoint.name}
                check_same_tokens(loaded.tokenizer, teacher.tokenizer, **names)
            cross[name] = cross_tokenizer.CrossTokenizer(loaded.chat, teacher.chat, checkpoint.name, teacher.max_length)
            student, other, count = cross[name].outcomes(*sizes)
            sides = [torch.tensor(side, device=loaded.device) for side in (student, other)]
            outcomes[name] = Outcomes(sides[0], sides[1], count)
        return cross, outcomes, padded

    def _teacher(
        self, loaded: Loaded, frozen: Mapping[Checkpoint, LocalTeacher], weights: Mapping[Checkpoint, float]
    ) -> Teacher:
        if not weights:
            assert self.method is not None  # only a distillation has such teachers
            if self.method.teaching.remote:
                return teacher_server.remote_teacher(loaded, self.method)
            return self_teacher(self.student, loaded, self.method)
        parts = [frozen[teacher] for teacher in weights]
        return parts[0] if len(parts) == 1 else TeacherEnsemble(parts, list(weights.values()))


@dataclass
class LoadedModels:
    """The models of a stage in this process's memory; ``local_engine`` samples in this process only.

    ``cross`` are the teachers with another tokenizer, by name.
    """

    specs: ModelSpecs
    loaded: Loaded
    teachers: Mapping[str, Teacher]
    anchor: LocalTeacher | None
    objective: DistillationObjective
    local_engine: Engine | None
    cross: Mapping[str, CrossTokenizer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        width = self.loaded.head.width
        self.instrumentation = StepInstrumentation(self.objective, self.scorers, width, self.specs.method)

    @property
    def engine(self) -> Engine:
        """The engine that samples from the student: in all processes, or on a server that the main one asks."""
        assert self.local_engine is not None  # used only by stages that sample
        local_suffices = distributed.size() == 1 or isinstance(self.local_engine, SyncedEngine)
        return self.local_engine if local_suffices else DistributedEngine(self.local_engine)

    @property
    def scorers(self) -> list[Teacher]:
        """All teachers and the anchor, those with weights one by one, each once."""
        parts = [part for teacher in self.teachers.values() for part, _ in teacher.parts]
        return list(dict.fromkeys([*parts, *([self.anchor] if self.anchor else [])]))

    @property
    def averaged(self) -> LocalTeacher | None:
        """The teacher that is a moving average of the student's weights, if any."""
        return next((teacher.average for teacher in self.scorers if teacher.average is not None), None)

    @property
    def helpers(self) -> distributed.Helpers | None:
        """Functions that the main process can call in this one between steps; None if the stage does not sample."""
        if self.local_engine is None:
            return None
        return {
            GENERATE: self.local_engine.generate,
            LOGPROBS: self._local_logprobs,
            TOKEN_VIEWS: self._local_token_views,
            **weight_sync.helpers(self.loaded),
        }

    def train(
        self,
        stage: Stage,
        source: Callable[[int], StepBatch],
        *,
        hooks: Hooks,
        figure: str = "loss",
        resumables: Sequence[Resumable] = (),
    ) -> TrainResult:
        """Train the student as ``stage`` on the rows of ``source``, with its log, states and stop signal.

        ``figure`` is the metric shown on the progress bar. Raise StageInterrupted if a stop was requested.
        """
        settings, kind = self.specs.settings, stage.recorder.kind
        stage.recorder.describe(steps_total=settings.steps)
        with stage.session.display.bar(kind, settings.steps, resume_step(stage.states)) as stage.bar:
            recorded = stage.recording(hooks, stage.bar, figure, str(self.loaded.device))
            with self._checking_gradients(stage.interrupts):
                result = self.run(source, stage.states, stage.interrupts, recorded, resumables)
        if result.stopped == INTERRUPTED:
            raise StageInterrupted(
                f"{kind} interrupted at step {result.step} of {settings.steps}; to continue: recover resume"
            )
        stage.stopped = result.stopped
        return result

    @contextlib.contextmanager
    def _checking_gradients(self, interrupts: StopSignals) -> Iterator[None]:
        """Check for a stop request at each weight of a backward pass, which takes half a minute on a CPU."""
        is_watched = self.loaded.device.type == "cpu" and distributed.size() == 1
        trained = self.loaded.trainable().values() if is_watched else ()
        hooks = [one.register_post_accumulate_grad_hook(lambda _weight: interrupts.check()) for one in trained]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def run(
        self,
        source: Callable[[int], StepBatch],
        states: Path,
        interrupts: StopSignals,
        hooks: Hooks = Hooks(),  # noqa: B008  # frozen
        resumables: Sequence[Resumable] = (),
    ) -> TrainResult:
        """Run the training loop in this process."""
        return train(
            self.loaded,
            source,
            self.objective,
            self.specs.settings,
            hooks=hooks,
            state_dir=states,
            should_stop=lambda: interrupts.requested,
            resumables=resumables,
            averaged=self.averaged,
            instrumentation=self.instrumentation,
            helpers=self.helpers,
        )

    def logprobs(self, name: str, rows: Sequence[Row]) -> list[list[float]]:
        """Return a teacher's log-probabilities (nats) of the targets of each row, scored by all processes."""
        parts = [(name, part) for part in distributed.cut(rows)]
        return [values for part in distributed.ask(LOGPROBS, parts, self._local_logprobs) for values in part]

    def _local_logprobs(self, name: str, rows: Sequence[Row]) -> list[list[float]]:
        teacher, loaded = self.teachers[name], self.loaded
        budget, even = self.specs.config.token_budget, teacher.runs_collectively
        with distributed.in_step() if even else contextlib.nullcontext():
            return token_logprobs(teacher, rows, budget, loaded.chat.pad_id, loaded.device, even=even)

    def token_views(self, row: Row) -> list[TokenView]:
        """Return the token scores of a row that one teacher with logits scores; this scoring does not count as training
        time. All processes take part if one of both models is split over processes.
        """
        if not (self.loaded.runs_collectively or self.teachers[row.teacher].runs_collectively):
            return self._local_token_views(row)
        return distributed.ask(TOKEN_VIEWS, [(row,)] * distributed.size(), self._local_token_views)[0]

    def _local_token_views(self, row: Row) -> list[TokenView]:
        teacher, loaded = self.teachers[row.teacher], self.loaded
        collective = loaded.runs_collectively or teacher.runs_collectively
        step = distributed.in_step() if collective else contextlib.nullcontext()
        with step, loaded.inference(), loaded.autocast(), teacher.untimed():
            return token_views(loaded, teacher, [row], loaded.chat.pad_id)


@contextlib.contextmanager
def load_models(stage: Stage, specs: ModelSpecs, frozen: FrozenModel) -> Iterator[LoadedModels]:
    """Load the models of a stage, which the block trains; the model held before is released unless it teaches.

    The files of every teacher are verified.
    """
    held = frozen.release(specs.unshared())
    with stage.session.at_once("checking the files of teachers"):
        for teacher in specs.frozen:
            if teacher not in held:
                stage.session.verified(teacher)
    with distributed.others_run(_follow, specs, stage.states), contextlib.ExitStack() as resources:
        names = " and ".join(dict.fromkeys([specs.student.name, *(one.name for one in specs.frozen)]))
        with stage.session.at_once(f"loading {names}"):
            models = specs.load(resources, held)
        yield models


def _follow(specs: ModelSpecs, states: Path) -> None:
    """Load the models and run the training loop in a process that is not the main one."""
    interrupts = StopSignals()
    with interrupts.deferred(), contextlib.ExitStack() as resources:
        specs.load(resources).run(_no_batch, states, interrupts)


def _no_batch(step: int) -> StepBatch:
    raise AssertionError(f"only the main process creates the rows of step {step}")
