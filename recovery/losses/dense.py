"""Losses over the whole vocabulary: a divergence between student and teacher with its closed-form gradient.

The formulas are in :mod:`recovery.losses.divergences`, one file each; the loss on a label, the cross-entropy
-log p(y) with the gradient p - 1_y, and the other losses on a few entries only in :mod:`recovery.losses.sparse`.

Functions with a trailing underscore overwrite their buffers: the fused loss calls them on blocks of rows small enough
to stay in the processor's cache. :func:`divergence` is the pure form of the same code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recovery.errors import UsageError
from recovery.losses.config import WHOLE_VOCABULARY, check_limits
from recovery.losses.divergence import Options
from recovery.losses.divergences import DIVERGENCES
from recovery.losses.sparse import cross_entropy

LOSSES = (*WHOLE_VOCABULARY, "cross_entropy")


def resolve_divergence(
    name: str,
    beta: float = 0.5,
    *,
    entry_clip: float | None = None,
    floor: float | None = None,
    known: tuple[str, ...] = LOSSES,
) -> str:
    """Return the divergence to compute: at either end of beta, a mixture is another divergence.

    Raises:
        UsageError: the name is not in ``known``, beta is out of range, or a limit is out of range or does not apply to
            this divergence.
    """
    if name not in known:
        raise UsageError(f"unknown divergence {name!r}: choose one of {', '.join(known)}")
    resolved = DIVERGENCES[name].at(beta) if name in DIVERGENCES else name
    check_limits(name, beta, entry_clip=entry_clip, floor=floor)
    return resolved


def softmaxes_(student_NV: Tensor, work_NV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities (in place of the logits), probabilities (in ``work_NV``) and entropy per position
    (nats).
    """
    log_p_NV = torch.log_softmax(student_NV, -1, out=student_NV)
    # The library's softmax is faster than its exponential. Both sides use the same operations, so that equal logits
    # give exactly equal distributions.
    p_NV = torch.softmax(log_p_NV, -1, out=work_NV)
    return log_p_NV, p_NV, -torch.linalg.vecdot(p_NV, log_p_NV)


def divergence_(
    name: str,
    p_NV: Tensor,
    log_p_NV: Tensor,
    teacher_NV: Tensor,
    options: Options = Options(),  # noqa: B008  # frozen
) -> Tensor:
    """Return a divergence between distributions per position, in nats; overwrites two of its buffers.

    Args:
        name: as returned by :func:`resolve_divergence`, except the cross-entropy.
        p_NV: the student's probabilities, not modified.
        log_p_NV: their logarithms; becomes the gradient with respect to the logits over the temperature.
        teacher_NV: the teacher's logits over the temperature (overwritten).
        options: mixture and limits.
    """
    log_q_NV = torch.log_softmax(teacher_NV, -1, out=teacher_NV)
    return DIVERGENCES[name].compute_(p_NV, log_p_NV, log_q_NV, options)


def divergence(
    name: str,
    student_NV: Tensor,
    teacher_NV: Tensor | None = None,
    *,
    targets_N: Tensor | None = None,
    beta: float = 0.5,
    temperature: float = 1.0,
    entry_clip: float | None = None,
    floor: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return value (nats, shape N) and gradient with respect to ``student_NV`` (shape NV); inputs are not modified.

    Both are computed and returned in float32, or in float64 for float64 logits of the student: a mixture in bfloat16
    would be wrong by as much as its value.

    Args:
        name: one of :data:`LOSSES`.
        student_NV: the student's logits or log-probabilities.
        teacher_NV: the teacher's, for the divergences between distributions.
        targets_N: token ids, for the cross-entropy.
        beta: the mixture of the divergences that have one.
        temperature: divides both sides' logits; the gradient carries the factor 1/temperature.
        entry_clip: maximum contribution of one vocabulary entry (nats), between distributions.
        floor: lower bound of log-probabilities, for unbounded divergences.

    Raises:
        UsageError: the name is unknown, a number is out of range, a limit does not apply to this divergence, or a
            required argument is missing.
    """
    resolved = resolve_divergence(name, beta, entry_clip=entry_clip, floor=floor)
    if temperature <= 0.0:
        raise UsageError(f"temperature {temperature} must be above 0")
    other = targets_N if resolved == "cross_entropy" else teacher_NV
    if other is None:
        needed = "targets_N" if resolved == "cross_entropy" else "teacher_NV"
        raise UsageError(f"divergence {name!r} needs {needed}")
    wide = torch.float64 if student_NV.dtype == torch.float64 else torch.float32
    with torch.no_grad():
        gradient_NV = student_NV.to(wide) / temperature
        log_p_NV, p_NV, _ = softmaxes_(gradient_NV, torch.empty_like(gradient_NV))
        if resolved == "cross_entropy":
            found = cross_entropy(p_NV, log_p_NV, other)
            value_N = found.value_N
            found.write_to_(gradient_NV, p_NV)
        else:
            options = Options(beta, entry_clip, floor)
            value_N = divergence_(resolved, p_NV, log_p_NV, other.to(wide) / temperature, options)
        return value_N, gradient_NV.div_(temperature)
