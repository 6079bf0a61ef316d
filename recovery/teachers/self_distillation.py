"""Self-teachers: the current student, or an exponential moving average of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from recovery.batching import Batch
from recovery.errors import UsageError
from recovery.models.lm_head import Head
from recovery.models.loaded import Loaded
from recovery.teachers.local import FrozenTeacher


@dataclass(frozen=True)
class CurrentStudent:
    """The current student as teacher, without gradient."""

    student: Loaded

    def hidden(self, batch: Batch) -> torch.Tensor:
        """Return the final hidden states [B, T, D], without gradient."""
        with self.student.inference():
            return self.student.hidden(batch)

    @property
    def head(self) -> Head:
        """The student's own head."""
        return self.student.head

    @property
    def separates_documents(self) -> bool:
        """Whether it reads each document of a packed row as if it were alone."""
        return self.student.separates_documents


@dataclass(frozen=True)
class MovingAverage(FrozenTeacher):
    """A copy of the student with averaged weights: w <- decay w + (1 - decay) student (SDFT, arXiv 2601.19897).

    ``loaded`` is loaded like the student and starts equal to it. The training loop calls :meth:`update` after each
    step and saves :attr:`tensors` with its states; nothing else changes it.
    """

    decay: float

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The averaged weights, by the student's parameter names."""
        return self.loaded.trainable()

    def update(self, params: Mapping[str, torch.Tensor]) -> None:
        """Average in the student's weights. Raise UsageError if the copy has other parameters."""
        mine = self.tensors
        if mine.keys() != params.keys():
            raise UsageError("the moving average has other parameters than the student: load both alike")
        with torch.no_grad():
            for name, averaged in mine.items():
                averaged.lerp_(params[name].to(averaged.dtype), 1.0 - self.decay)
