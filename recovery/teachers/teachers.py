"""Who teaches: a frozen checkpoint, the student with its adapter off, several; or one that only tells scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from recovery.batches import Batch
from recovery.errors import UsageError
from recovery.loading import Loaded
from recovery.objectives.heads import Head


class Teacher(Protocol):
    """Scores every token of a batch through its hidden states and its own head."""

    def hidden(self, batch: Batch) -> torch.Tensor:
        """Final hidden states [B, T, E], without gradient."""
        ...

    @property
    def head(self) -> Head:
        """The head that turns them into logits."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """A teacher whose logits are not at hand: it tells log-probabilities of a few tokens at each target."""

    def top(self, batch: Batch, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """``count`` entries at each of the batch's N targets, the target itself among them: ids and natural
        log-probabilities, [N, count].
        """
        ...

    def logprobs(self, batch: Batch) -> torch.Tensor:
        """The natural log-probability of each of the N targets, [N]."""
        ...


@dataclass(frozen=True)
class Frozen:
    """A checkpoint loaded beside the student and never changed."""

    loaded: Loaded

    def hidden(self, batch: Batch) -> torch.Tensor:
        """Final hidden states [B, T, E], without gradient."""
        with self.loaded.inference():
            return self.loaded.hidden(batch)

    @property
    def head(self) -> Head:
        """The checkpoint's own head."""
        return self.loaded.head


@dataclass(frozen=True)
class AdapterOff:
    """The student's own base weights: the same module with its adapter disabled, no second copy."""

    student: Loaded

    def hidden(self, batch: Batch) -> torch.Tensor:
        """Final hidden states [B, T, D] of the clean base, without gradient."""
        with self.student.inference(), self.student.adapter_off():
            return self.student.hidden(batch)

    @property
    def head(self) -> Head:
        """The base's head, which no adapter touches."""
        return self.student.head


@dataclass(frozen=True)
class Weighted:
    """Several teachers of the same rows: the divergences to each, added up by weights that sum to 1.

    Not a teacher itself: each keeps its own hidden states and head, and is a term of the loss.

    Raises:
        UsageError: no teacher, not one weight for each, a weight that is not above 0, or another sum than 1.
    """

    teachers: Sequence[Teacher]
    weights: Sequence[float]

    def __post_init__(self) -> None:
        given = ", ".join(f"{weight:g}" for weight in self.weights) or "none"
        if not self.teachers or len(self.teachers) != len(self.weights):
            raise UsageError(f"{len(self.teachers)} teachers have the weights {given}: give each teacher one weight")
        if not all(weight > 0.0 for weight in self.weights) or abs(sum(self.weights) - 1.0) > 1e-6:
            raise UsageError(f"the teachers' weights {given} must all be above 0 and sum to 1")

    @property
    def parts(self) -> list[tuple[Teacher, float]]:
        """Each teacher with its weight."""
        return list(zip(self.teachers, self.weights, strict=True))


def check_same_tokens(student: Any, teacher: Any, *, student_name: str, teacher_name: str) -> None:
    """Refuse two tokenizers that write text as different ids: a token's scores would be another token's.

    Raises UsageError naming the first token that differs.
    """
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    if ours == theirs:
        return
    token = next(t for t in sorted(set(ours) | set(theirs)) if ours.get(t) != theirs.get(t))
    raise UsageError(
        f"the tokenizers differ: {token!r} is {ours.get(token)} in {student_name} and {theirs.get(token)} in "
        f"{teacher_name}; use a teacher of the student's own family"
    )
