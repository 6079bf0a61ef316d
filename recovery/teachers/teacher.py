"""Teachers: what scores the student's rows. Models in memory are here, a server in :mod:`recovery.teachers.remote`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from recovery.batching import Batch
from recovery.errors import UsageError
from recovery.inference_server import InferenceServer
from recovery.models.lm_head import Head
from recovery.models.loaded import Loaded


@dataclass(frozen=True)
class Identity:
    """A served model: its name, and its log-probabilities of a few tokens of a fixed text."""

    model: str
    scores: list[float]


class Teacher:
    """What every teacher has; each kind overrides what is different.

    Attributes:
        loaded: the model in memory that it reads with; None of a server, and of several teachers.
        server: the server that it asks, and ``model`` the name of what it serves; None of a model in memory.
        own_weights: whether that model has weights of its own, beside the student's.
        has_logits: whether :meth:`hidden` and :attr:`head` give its whole distribution; a server gives :meth:`top` and
            :meth:`logprobs`.
        is_student: whether it is the student as it is.
        window: tokens of the longest row that it scores; None if it does not say.
        separates_documents: whether it reads each document of a packed row as if it were alone.
        parts: the teachers whose divergences are summed, with weights that sum to 1: itself, unless it is several.
        seconds: spent on scoring since the last :meth:`taken`.
        tokens: scored in that time.
    """

    loaded: Loaded | None = None
    server: InferenceServer | None = None
    model = ""
    own_weights = False
    is_student = False
    has_logits = False

    def __init__(self) -> None:
        self.seconds, self.tokens = 0.0, 0

    @property
    def window(self) -> int | None:
        return None

    @property
    def runs_collectively(self) -> bool:
        """Whether every process must run its layers at the same time."""
        return self.loaded is not None and self.loaded.runs_collectively

    @property
    def separates_documents(self) -> bool:
        return False

    @property
    def parts(self) -> Sequence[tuple[Teacher, float]]:
        return [(self, 1.0)]

    @property
    def average(self) -> LocalTeacher | None:
        """Itself, if it is a moving average of the student."""
        return None

    @property
    def identity(self) -> Identity | None:
        """What identifies the model of a server; None of a model in memory."""
        return None

    def check_same(self, former: Identity) -> None:
        """Raise ServerError if a server's model is not the ``former`` one."""
        raise NotImplementedError(f"{type(self).__name__} is no server")

    def reading(self) -> contextlib.AbstractContextManager[Loaded]:
        """Return a block in which a model in memory has the weights that teach, and that model."""
        raise NotImplementedError(f"{type(self).__name__} has no model in memory")

    def hidden(self, batch: Batch) -> torch.Tensor:
        """Return the final hidden states [B, T, E], without gradient."""
        raise NotImplementedError(f"{type(self).__name__} has no hidden states")

    @property
    def head(self) -> Head:
        """The head that maps them to logits [B, T, W]."""
        raise NotImplementedError(f"{type(self).__name__} has no head")

    def top(self, batch: Batch, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and natural log-probabilities of ``count`` entries at each of the N targets, [N, count]; the
        entries include the target.
        """
        raise NotImplementedError(f"{type(self).__name__} has logits: take its hidden states")

    def logprobs(self, batch: Batch) -> torch.Tensor:
        """Return the natural log-probability of each of the N targets, [N]."""
        raise NotImplementedError(f"{type(self).__name__} has logits: take its hidden states")

    @contextlib.contextmanager
    def scoring(self, batch: Batch) -> Iterator[None]:
        """Time the block, which scores the batch."""
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started
        self.tokens += 0 if batch.idle else batch.tokens

    @contextlib.contextmanager
    def untimed(self) -> Iterator[None]:
        """Exclude the scoring in the block from ``seconds`` and ``tokens``, since it is not training."""
        counted = self.seconds, self.tokens
        yield
        self.seconds, self.tokens = counted

    def taken(self) -> tuple[float, int]:
        """Return seconds and tokens since the last call."""
        taken = self.seconds, self.tokens
        self.seconds, self.tokens = 0.0, 0
        return taken


class LocalTeacher(Teacher):
    """A model in memory: ``weights`` says which of its weights teach.

    "own" are those of a checkpoint that is loaded in addition to the student; "base" the student's without its adapter,
    the same module without a second copy; "student" the student's as they are.

    With a ``decay`` above 0 the weights of ``loaded``, which starts equal to the student and is loaded like it, are a
    moving average of the student's: w <- decay w + (1 - decay) student (SDFT, arXiv 2601.19897). The training loop
    calls :meth:`update` after each step and saves :attr:`tensors` with its states; nothing else changes them.
    """

    has_logits = True
    loaded: Loaded

    def __init__(
        self, loaded: Loaded, weights: Literal["own", "base", "student"] = "own", *, decay: float = 0.0
    ) -> None:
        super().__init__()
        self.loaded, self.weights, self.decay = loaded, weights, decay
        self.own_weights, self.is_student = weights == "own", weights == "student"

    @property
    def window(self) -> int:
        """Tokens of the longest row that the model reads."""
        return self.loaded.max_length

    @property
    def separates_documents(self) -> bool:
        """Whether it reads each document of a packed row as if it were alone."""
        return self.loaded.separates_documents

    @contextlib.contextmanager
    def reading(self) -> Iterator[Loaded]:
        """Yield the model with the weights that teach."""
        with self.loaded.adapter_off() if self.weights == "base" else contextlib.nullcontext():
            yield self.loaded

    def hidden(self, batch: Batch) -> torch.Tensor:
        """Return the final hidden states [B, T, E], without gradient."""
        with self.scoring(batch), self.loaded.inference(), self.reading():
            return self.loaded.hidden(batch)

    @property
    def head(self) -> Head:
        """The model's head, which no adapter changes."""
        return self.loaded.head

    @property
    def average(self) -> LocalTeacher | None:
        """Itself, if it is a moving average of the student."""
        return self if self.decay > 0.0 else None

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


class TeacherEnsemble(Teacher):
    """Several teachers of the same rows: a weighted sum of the divergences to each, with weights that sum to 1.

    Each keeps its own hidden states and head, and is a term of the loss.

    Raises:
        UsageError: there is no teacher, the numbers of teachers and weights differ, a weight is not above 0, or the
            weights do not sum to 1.
    """

    def __init__(self, teachers: Sequence[Teacher], weights: Sequence[float]) -> None:
        super().__init__()
        given = ", ".join(f"{weight:g}" for weight in weights) or "none"
        if not teachers or len(teachers) != len(weights):
            raise UsageError(f"{len(teachers)} teachers have the weights {given}: give each teacher one weight")
        if not all(weight > 0.0 for weight in weights) or abs(sum(weights) - 1.0) > 1e-6:
            raise UsageError(f"the teachers' weights {given} must all be above 0 and sum to 1")
        self._parts = list(zip(teachers, weights, strict=True))

    @property
    def parts(self) -> Sequence[tuple[Teacher, float]]:
        """Each teacher with its weight."""
        return self._parts


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
