"""Teacher protocols and local teachers: a frozen checkpoint, the student without its adapter, a weighted set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from recovery.batching import Batch
from recovery.errors import UsageError
from recovery.models.lm_head import Head
from recovery.models.loaded import Loaded


class Teacher(Protocol):
    """A teacher with logits: hidden states and an output head."""

    def hidden(self, batch: Batch) -> torch.Tensor:
        """Return the final hidden states [B, T, E], without gradient."""
        ...

    @property
    def head(self) -> Head:
        """The head that maps them to logits."""
        ...

    @property
    def separates_documents(self) -> bool:
        """Whether it reads each document of a packed row as if it were alone."""
        ...


@runtime_checkable
class TopKTeacher(Protocol):
    """A teacher without logits: it returns log-probabilities of a few tokens at each target."""

    def top(self, batch: Batch, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and natural log-probabilities of ``count`` entries at each of the N targets, [N, count]; the
        entries include the target.
        """
        ...

    def logprobs(self, batch: Batch) -> torch.Tensor:
        """Return the natural log-probability of each of the N targets, [N]."""
        ...


@dataclass(frozen=True)
class FrozenTeacher:
    """A frozen checkpoint, loaded in addition to the student."""

    loaded: Loaded

    def hidden(self, batch: Batch) -> torch.Tensor:
        """Return the final hidden states [B, T, E], without gradient."""
        with self.loaded.inference():
            return self.loaded.hidden(batch)

    @property
    def head(self) -> Head:
        """The checkpoint's own head."""
        return self.loaded.head

    @property
    def separates_documents(self) -> bool:
        """Whether it reads each document of a packed row as if it were alone."""
        return self.loaded.separates_documents


@dataclass(frozen=True)
class AdapterOff:
    """The student's base weights: the same module with its adapter disabled, without a second copy."""

    student: Loaded

    def hidden(self, batch: Batch) -> torch.Tensor:
        """Return the final hidden states [B, T, D] of the clean base, without gradient."""
        with self.student.inference(), self.student.adapter_off():
            return self.student.hidden(batch)

    @property
    def head(self) -> Head:
        """The head of the base, which has no adapter."""
        return self.student.head

    @property
    def separates_documents(self) -> bool:
        """Whether it reads each document of a packed row as if it were alone."""
        return self.student.separates_documents


@dataclass(frozen=True)
class WeightedTeachers:
    """Several teachers of the same rows: a weighted sum of the divergences to each, with weights that sum to 1.

    Not a teacher itself: each keeps its own hidden states and head, and is a term of the loss.

    Raises:
        UsageError: there is no teacher, the numbers of teachers and weights differ, a weight is not above 0, or the
            weights do not sum to 1.
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


def same_tokens(student: Any, teacher: Any) -> bool:
    """Whether two tokenizers have the same vocabulary."""
    return bool(student.get_vocab() == teacher.get_vocab())


def check_same_tokens(student: Any, teacher: Any, *, student_name: str, teacher_name: str) -> None:
    """Raise UsageError if two tokenizers have different vocabularies: scores would belong to other tokens.

    The error names the first token that differs.
    """
    if same_tokens(student, teacher):
        return
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    token = next(t for t in sorted(set(ours) | set(theirs)) if ours.get(t) != theirs.get(t))
    raise UsageError(
        f"the tokenizers differ: {token!r} is {ours.get(token)} in {student_name} and {theirs.get(token)} in "
        f"{teacher_name}; use a teacher of the student's model family"
    )
