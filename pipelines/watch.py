"""Looks at every step of a method's stage: has it recovered, has it run its course, is it collapsing?"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from evals.statistics import recovered
from pipelines.answers import development_result
from pipelines.stage import Stage
from recovery import processes
from recovery.alarm import Alarm
from recovery.batches import Batch
from recovery.config import DistillConfig
from recovery.loading import Loaded
from recovery.objectives.estimator import Estimator
from recovery.objectives.geometry import Geometry
from recovery.objectives.heads import Head
from recovery.rollouts import Engine
from recovery.teachers import Scorer, Teacher
from recovery.training import derive_seed
from recovery.types import Prompt, SuiteResult

# Looks at the model itself at some steps: what it returns is recorded as curves and kept with the stage.
Observer = Callable[[int, Loaded, Engine], Mapping[str, float]]

ENOUGH_TO_DECIDE = 1000
RECOVERED, PLATEAU, SPENT = "recovered", "plateau", "token budget spent"
# A window's mean divergence must fall to this share of the window before, or the stage has run its course.
_STILL_FALLING = 0.97


@dataclass
class Clock:
    """The seconds that scoring has taken, and the tokens that were scored, since they were last asked for."""

    seconds: float = field(default=0.0, kw_only=True)
    tokens: int = field(default=0, kw_only=True)

    @contextlib.contextmanager
    def scoring(self, batch: Batch) -> Iterator[None]:
        """The block scores the batch."""
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started
        self.tokens += 0 if batch.idle else batch.tokens

    def taken(self) -> tuple[float, int]:
        """Seconds and tokens since the last call."""
        taken = self.seconds, self.tokens
        self.seconds, self.tokens = 0.0, 0
        return taken


@dataclass
class Timed(Clock):
    """A teacher with a clock."""

    teacher: Teacher

    def hidden(self, batch: Batch) -> torch.Tensor:
        """The teacher's own."""
        with self.scoring(batch):
            return self.teacher.hidden(batch)

    @property
    def head(self) -> Head:
        """The teacher's own."""
        return self.teacher.head


@dataclass
class TimedScorer(Clock):
    """A teacher that only tells scores, with a clock."""

    teacher: Scorer

    def top(self, batch: Batch, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The teacher's own."""
        with self.scoring(batch):
            return self.teacher.top(batch, count)

    def logprobs(self, batch: Batch) -> torch.Tensor:
        """The teacher's own."""
        with self.scoring(batch):
            return self.teacher.logprobs(batch)


@dataclass
class Gauge:
    """Measures the teachers' work and, at some steps, the gradient's geometry: each process its share of a step.

    The loop calls it (:class:`recovery.training.Gauge`); what came of a step stands in the attributes afterwards.
    ``width`` is the student's; ``config`` is None where no geometry is measured.
    """

    estimator: Estimator
    teachers: Sequence[Clock]
    width: int
    config: DistillConfig | None = None
    seconds: float = 0.0
    tokens: int = 0
    geometry: Geometry | None = None

    def start(self, step: int) -> None:
        """Have the geometry of this step's gradient measured, or not."""
        every = 0 if self.config is None else self.config.geometry_every
        self.estimator.geometry = None
        if self.config is not None and every > 0 and step % every == 1 % every:
            seed = derive_seed(self.config.seed, step, 30)
            self.estimator.geometry = Geometry(self.width, seed, share=processes.rank())

    def account(self, metrics: dict[str, float]) -> None:
        """Enter the teachers' work of the step, and take its time out of that of training."""
        metrics["seconds_scoring"] = self.seconds
        metrics["tokens_scored"] = float(self.tokens)
        metrics["seconds_training"] = max(0.0, metrics.get("seconds_training", 0.0) - self.seconds)

    def reading(self) -> tuple[float, int, Geometry | None]:
        """Seconds and tokens since the last reading, and this process's part of the geometry."""
        taken = [teacher.taken() for teacher in self.teachers]
        return sum(seconds for seconds, _ in taken), sum(tokens for _, tokens in taken), self.estimator.geometry

    def take(self, readings: list[tuple[float, int, Geometry | None]]) -> None:
        """Put the processes' readings together: they worked at the same time, on tokens of their own."""
        self.seconds = max(seconds for seconds, _, _ in readings)
        self.tokens = sum(tokens for _, tokens, _ in readings)
        self.geometry = self.estimator.geometry
        if self.geometry is not None:
            self.geometry.add_all(part for _, _, part in readings[1:] if part is not None)


@dataclass
class Watch:
    """Looks at every step and says when the stage has done its work. ``memory`` outlives a resume."""

    stage: Stage
    config: DistillConfig
    loaded: Loaded
    engine: Engine
    development: Sequence[Prompt]
    reference: SuiteResult | None
    gauge: Gauge
    memory: dict[str, Any] = field(default_factory=dict)
    observe: Observer | None = None
    teachers_manner: Callable[[], Mapping[str, float]] | None = None

    def __post_init__(self) -> None:
        config = self.config
        settling = config.lam == 1.0 and config.teacher != "self"
        self.alarm = Alarm(self.memory, settling=settling, teacher=self.teachers_manner if settling else None)
        self.falls = config.lam == 1.0 and not config.self_taught and config.divergence != "sampled"
        self.collapse: str | None = None
        self.told = dict(self.alarm.breaches)

    def measured(self, metrics: dict[str, float]) -> None:
        """Take the divergence down, set scoring apart from training, and look for signs of a collapse."""
        self.gauge.account(metrics)
        if self.gauge.geometry is not None:
            metrics |= {f"geometry/{name}": value for name, value in self.gauge.geometry.summary().items()}
            self.memory["geometry"] = self.gauge.geometry.sample()
        history = self.memory.setdefault("divergence", [])
        history.append(metrics.get(self.config.divergence, metrics["loss"]))
        del history[: -2 * max(1, self.config.plateau)]
        self.collapse = self.alarm.look(metrics) if self.config.alarm else None
        spent = sum(metrics.get(f"tokens_{part}", 0.0) for part in ("sampled", "scored", "trained"))
        self.memory["spent"] = self.memory.get("spent", 0.0) + spent

    def after_step(self, step: int) -> str | None:
        """Why to stop, if so."""
        self._tell(step)
        if self.collapse is not None:
            return self.collapse
        if self.observe is not None and (step % self.config.check_every == 0 or step == self.config.steps):
            seen = dict(self.observe(step, self.loaded, self.engine))
            self.stage.recorder.log(step, {f"observed/{name}": value for name, value in seen.items()})
            self.memory.setdefault("observed", []).append({"step": step, **seen})
        if self.reference is not None and step % self.config.check_every == 0 and self._recovered(step):
            return RECOVERED
        if self.config.max_tokens is not None and self.memory["spent"] >= self.config.max_tokens:
            return SPENT
        window = self.config.plateau if self.falls else 0
        return PLATEAU if on_plateau(self.memory.get("divergence", []), window) else None

    def _tell(self, step: int) -> None:
        """Record the signals that went into breach, and those that came back, since the last step."""
        now = dict(self.alarm.breaches)
        session, stage_id = self.stage.session, self.stage.recorder.id
        for signal in sorted(now.keys() ^ self.told.keys()):
            words = now.get(signal, f"{signal} is back in its range")
            session.tracker.event(
                session.experiment_id,
                words,
                kind="alarm",
                level="warning" if signal in now else "info",
                stage_id=stage_id,
                data={"signal": signal, "step": step},
            )
        self.told = now

    def sound(self) -> bool:
        """Whether the weights as they are now are worth keeping."""
        return not self.config.alarm or self.alarm.sound

    def _recovered(self, step: int) -> bool:
        assert self.reference is not None
        config = self.config
        tokens, seed = config.max_new_tokens, config.seed
        # Not heard by a stop: the step is done, and what is decided about it belongs to its state.
        with self.stage.session.display.bar("development prompts", len(self.development)) as bar:
            result = development_result(
                self.loaded, self.engine, self.development, max_new_tokens=tokens, seed=seed, progress=bar.heard
            )
        test = recovered(self.reference, result, until=config.until, margin=config.margin, minimum=ENOUGH_TO_DECIDE)
        self.stage.recorder.log(step, {"development/instruction_following": result.score.value})
        self.memory.setdefault("checks", []).append({"step": step, "value": result.score.value, "ratio": test.ratio})
        self.stage.session.display.say(f"step {step}: {test.reason}")
        return test.recovered


def on_plateau(history: Sequence[float], window: int) -> bool:
    """Whether the mean of the last ``window`` values hardly differs from that of the window before."""
    if not window or len(history) < 2 * window:
        return False
    before, now = sum(history[-2 * window : -window]), sum(history[-window:])
    return now > _STILL_FALLING * before
