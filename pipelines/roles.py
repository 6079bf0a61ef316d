"""Who is trained in a stage and who teaches: said by the main process, loaded alike by every process.

With one process this is how a stage loads its models. With several, :func:`cast` has the others load the same ones and
follow the training loop while the main process does the stage's work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.interrupts import Interrupts
from pipelines.models import engine_of, load_student, remote_teacher, self_teacher, teacher_of
from pipelines.stage import Stage
from pipelines.watch import Gauge, Timed, TimedScorer
from recovery import processes
from recovery.batches import Row
from recovery.config import DistillConfig, TrainingConfig
from recovery.loading import Loaded
from recovery.objectives.dials import Dials
from recovery.objectives.estimator import Estimator
from recovery.objectives.token_logprobs import token_logprobs
from recovery.rollouts import GENERATE, Engine, SharedEngine
from recovery.teachers import MovingAverage, Weighted
from recovery.training import StepBatch, TrainSettings, train
from recovery.workspace import Checkpoint

LOGPROBS = "logprobs"


@dataclass(frozen=True)
class Roles:
    """The student, and the teachers by the names that rows carry, with weights; none for the student, or a server.

    All checkpoints were verified by whoever says this.
    """

    config: TrainingConfig
    student: Checkpoint
    tuning: str
    teachers: Mapping[str, Mapping[Checkpoint, float]] = field(default_factory=dict)
    anchor: Checkpoint | None = None
    dials: Dials = field(default_factory=Dials)

    def load(self, held: contextlib.ExitStack) -> Cast:
        """All of them in memory; what they hold beside it, ``held`` gives back."""
        loaded = load_student(self.student, self.tuning, self.config)
        teachers = {name: self._teacher(loaded, weights) for name, weights in self.teachers.items()}
        anchor = self._timed(loaded, self.anchor) if self.anchor is not None else None
        engine = held.enter_context(engine_of(loaded, self.config)) if isinstance(self.config, DistillConfig) else None
        return Cast(self.config, loaded, teachers, anchor, Estimator(teachers, self.dials, anchor), engine)

    def _teacher(self, loaded: Loaded, weights: Mapping[Checkpoint, float]) -> Timed | TimedScorer | Weighted:
        if not weights:
            assert isinstance(self.config, DistillConfig)  # nobody else teaches itself, or asks a server
            if self.config.remote_teacher:
                return TimedScorer(remote_teacher(loaded, self.config))
            return Timed(self_teacher(self.student, loaded, self.config))
        found = [self._timed(loaded, teacher) for teacher in weights]
        return found[0] if len(found) == 1 else Weighted(found, list(weights.values()))

    def _timed(self, loaded: Loaded, teacher: Checkpoint) -> Timed:
        return Timed(teacher_of(self.student, loaded, teacher, self.config))


@dataclass
class Cast:
    """The models of a stage in this process's memory."""

    config: TrainingConfig
    loaded: Loaded
    teachers: Mapping[str, Timed | TimedScorer | Weighted]
    anchor: Timed | None
    estimator: Estimator
    own: Engine | None

    def __post_init__(self) -> None:
        method = self.config if isinstance(self.config, DistillConfig) else None
        self.gauge = Gauge(self.estimator, self.timed, self.loaded.head.width, method)

    @property
    def engine(self) -> Engine:
        """What samples from the student, in all processes."""
        assert self.own is not None  # only asked for where the stage samples
        return self.own if processes.size() == 1 else SharedEngine(self.own)

    @property
    def timed(self) -> list[Timed | TimedScorer]:
        """Every teacher by itself, with its clock."""
        found: list[Timed | TimedScorer] = []
        for teacher in [*self.teachers.values(), *([self.anchor] if self.anchor else [])]:
            parts = [part for part, _ in teacher.parts] if isinstance(teacher, Weighted) else [teacher]
            found += [part for part in parts if isinstance(part, (Timed, TimedScorer))]
        return found

    @property
    def shadow(self) -> MovingAverage | None:
        """The teacher that follows the student's weights, if one does."""
        return next((t.teacher for t in self.timed if isinstance(t.teacher, MovingAverage)), None)

    @property
    def helpers(self) -> processes.Helpers | None:
        """What this process does for the main one between steps; None where nothing is asked of the model then."""
        return None if self.own is None else {GENERATE: self.own.generate, LOGPROBS: self._own_logprobs}

    def logprobs(self, name: str, rows: Sequence[Row]) -> list[list[float]]:
        """Log-probabilities (nats) that a teacher gives the targets of each row, scored by all processes."""
        parts = [(name, part) for part in processes.cut(rows)]
        return [values for part in processes.ask(LOGPROBS, parts, self._own_logprobs) for values in part]

    def _own_logprobs(self, name: str, rows: Sequence[Row]) -> list[list[float]]:
        teacher, loaded = self.teachers[name], self.loaded
        assert isinstance(teacher, (Timed, TimedScorer))  # several with weights are refused by the configuration
        return token_logprobs(teacher, rows, self.config.token_budget, loaded.chat.pad_id, loaded.device)


@contextlib.contextmanager
def cast(stage: Stage, roles: Roles, settings: TrainSettings) -> Iterator[Cast]:
    """The models of a stage, while the block trains them by ``Stage.train`` with these settings."""
    with processes.together(_along, roles, settings, stage.states), contextlib.ExitStack() as held:
        yield roles.load(held)


def _along(roles: Roles, settings: TrainSettings, states: Path) -> None:
    """What every other process does meanwhile."""
    interrupts = Interrupts()
    with interrupts.heeded(), contextlib.ExitStack() as held:
        loaded = roles.load(held)
        train(
            loaded.loaded,
            _told,
            loaded.estimator,
            settings,
            state_dir=states,
            should_stop=lambda: interrupts.requested,
            shadow=loaded.shadow,
            gauge=loaded.gauge,
            helpers=loaded.helpers,
        )


def _told(step: int) -> StepBatch:
    raise AssertionError(f"only the main process makes the rows of step {step}")
