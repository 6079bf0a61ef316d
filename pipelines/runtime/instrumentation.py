"""Measurements of a training step: the scoring time of teachers, and gradient statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recovery import distributed
from recovery.config import DistillConfig
from recovery.losses.gradient_stats import GradientStats
from recovery.losses.objective import DistillationObjective
from recovery.rng import RandomStream, derive_seed
from recovery.teachers import Teacher


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
