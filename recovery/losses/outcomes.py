"""Comparison of two vocabularies: the tokens of each are grouped into outcomes that both sides have.

With p over the student's tokens, q over the teacher's and G outcomes:

    p'_g = sum of p over the student's tokens of outcome g,   q'_g = sum of q over the teacher's
    D(p', q'),   gradient p_v * (g_o(v) - sum_g p'_g g_g)   with g = dD/dp' and o(v) the outcome of token v

Both are distributions over the same G outcomes, so that every divergence of :mod:`recovery.losses.divergences` applies.
By the data-processing inequality D(p', q') is at most the divergence between distributions that are not grouped. If
each outcome holds one token of each side, it is that divergence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recovery.errors import UsageError
from recovery.losses.divergence import Options
from recovery.losses.divergences import DIVERGENCES


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The outcome, from 0 to ``count`` - 1, of each of the student's tokens [V] and of the teacher's [W].

    Raises:
        UsageError: there is no outcome, or a token's outcome is not one of them.
    """

    student_V: Tensor
    teacher_W: Tensor
    count: int

    def __post_init__(self) -> None:
        for side in (self.student_V, self.teacher_W):
            if not side.numel() or int(side.min()) < 0 or int(side.max()) >= self.count:
                raise UsageError(f"the outcomes of a vocabulary must lie between 0 and {self.count - 1}")

    @classmethod
    def padded(cls, tokens: int, student: int, teacher: int, device: torch.device) -> Outcomes:
        """Return those of one vocabulary of ``tokens`` tokens, padded to two sizes: the padding is one outcome."""
        sides = [torch.arange(size, device=device).clamp_(max=tokens) for size in (student, teacher)]
        return cls(sides[0], sides[1], tokens + 1)


def grouped_divergence_(
    name: str, p_NV: Tensor, log_p_NV: Tensor, teacher_NW: Tensor, outcomes: Outcomes, options: Options
) -> Tensor:
    """Return a divergence between the grouped distributions per position, in nats.

    ``log_p_NV`` becomes the gradient with respect to the student's logits over the temperature; ``teacher_NW``, the
    teacher's logits over the temperature, is overwritten; ``p_NV`` is not modified. Grouped probabilities below the
    smallest normal number of their type count as that number.
    """
    q_NW = torch.softmax(teacher_NW, -1, out=teacher_NW)
    p_NG = _grouped(p_NV, outcomes.student_V, outcomes.count)
    log_q_NG = _grouped(q_NW, outcomes.teacher_W, outcomes.count).log_()
    slope_NG = p_NG.log()
    value_N = DIVERGENCES[name].compute_(p_NG, slope_NG, log_q_NG, options)
    slope_NG /= p_NG
    torch.index_select(slope_NG, 1, outcomes.student_V, out=log_p_NV)
    log_p_NV *= p_NV
    return value_N


def _grouped(probabilities_NV: Tensor, outcome_V: Tensor, count: int) -> Tensor:
    grouped_NG = probabilities_NV.new_zeros(probabilities_NV.shape[0], count)
    grouped_NG.index_add_(1, outcome_V, probabilities_NV)
    return grouped_NG.clamp_(min=torch.finfo(grouped_NG.dtype).tiny)
