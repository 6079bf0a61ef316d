"""The student as its own teacher: as it is now, or as a second copy that follows it slowly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from recovery.batches import Batch
from recovery.errors import UsageError
from recovery.loading import Loaded
from recovery.objectives.heads import Head
from recovery.teachers.teachers import Frozen


@dataclass(frozen=True)
class Live:
    """The student itself, as it is at this step; no gradient flows through what it teaches."""

    student: Loaded

    def hidden(self, batch: Batch) -> torch.Tensor:
        """Final hidden states [B, T, D], without gradient."""
        with self.student.inference():
            return self.student.hidden(batch)

    @property
    def head(self) -> Head:
        """The student's own head."""
        return self.student.head


@dataclass(frozen=True)
class MovingAverage(Frozen):
    """A copy of the student whose trained weights follow it: w <- decay w + (1 - decay) student (SDFT, 2601.19897).

    ``loaded`` is loaded like the student and starts equal to it. The training loop calls :meth:`update` after each
    step and keeps :attr:`tensors` with its states; nothing else changes it.
    """

    decay: float

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The weights that follow, by the student's names for them."""
        return self.loaded.trainable()

    def update(self, params: Mapping[str, torch.Tensor]) -> None:
        """Move towards the student's weights. Raises UsageError where the copy is not of the same shape."""
        mine = self.tensors
        if mine.keys() != params.keys():
            raise UsageError("the moving average follows other weights than the student trains: load both alike")
        with torch.no_grad():
            for name, followed in mine.items():
                followed.lerp_(params[name].to(followed.dtype), 1.0 - self.decay)
