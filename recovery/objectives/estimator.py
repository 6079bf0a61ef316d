"""The estimator: which teacher scores which tokens, by which divergence.

Rows carry the name of their teacher. "label" rows are trained towards their own tokens (cross-entropy: the
forward KL to a point mass); the others towards the named teacher's distribution at every target position, over
the whole vocabulary (the Rao-Blackwellised form: same expectation as the sampled one, far less variance).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from recovery.batches import Batch
from recovery.errors import UsageError
from recovery.loading import Loaded
from recovery.objectives.fused import Divergence, FusedOutput, fused_loss
from recovery.teachers import Teacher

LABEL = "label"


@dataclass(frozen=True)
class LossOutput:
    """The summed loss of a batch, differentiable, and sums over its tokens for the log (detached scalars).

    Each sum in ``sums`` is divided by the tokens of its kind: those whose name it carries after the slash.
    """

    loss: torch.Tensor
    tokens: int
    sums: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Estimator:
    """Scores a student's batch. ``teachers`` maps the names rows carry to who they are."""

    teachers: Mapping[str, Teacher] = field(default_factory=dict)
    divergence: Divergence = "reverse_kl"
    beta: float = 0.5
    temperature: float = 1.0

    def __call__(self, student: Loaded, batch: Batch) -> LossOutput:
        """Sum of the divergence over the batch's N targets (nats).

        Raises UsageError where a row names a teacher that was not given.
        """
        output = self._score(student, batch)
        sums = {
            f"loss/{batch.teacher}": output.per_token_N.sum(),
            f"entropy/{batch.teacher}": output.entropy_N.sum(),
        }
        return LossOutput(output.loss, batch.tokens, sums)

    def _score(self, student: Loaded, batch: Batch) -> FusedOutput:
        hidden_ND = batch.gather(student.hidden(batch))
        if batch.teacher == LABEL:
            return fused_loss(hidden_ND, student.head, divergence="cross_entropy", targets_N=batch.targets_N)
        if batch.teacher not in self.teachers:
            known = ", ".join(sorted(self.teachers)) or "none"
            raise UsageError(f"a row asks for the teacher {batch.teacher!r}, which was not given (given: {known})")
        teacher = self.teachers[batch.teacher]
        return fused_loss(
            hidden_ND,
            student.head,
            divergence=self.divergence,
            teacher_hidden_NE=batch.gather(teacher.hidden(batch)),
            teacher_head=teacher.head,
            beta=self.beta,
            temperature=self.temperature,
        )
