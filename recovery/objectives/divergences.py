"""Divergences between a student and a teacher, each with its closed-form gradient, in one place.

At one position, p is the student's distribution over the vocabulary and q the teacher's. For any loss L(p)
the gradient with respect to the student's logits is p * (g - sum_v p_v g_v) with g = dL/dp. Value and
gradient therefore come out of the same pass, and nothing has to be kept for a backward pass:

    reverse KL       R = sum p (log p - log q)              p * (log p - log q - R)
    forward KL       F = sum q (log q - log p)              p - q
    JSD_beta         beta KL(q|m) + (1-beta) KL(p|m)        (1-beta) p * (log(p/m) - sum p log(p/m))
                     with m = beta q + (1-beta) p (arXiv 2306.13649); divided by beta and by 1-beta, its
                     limits are the forward KL (beta -> 0) and the reverse KL (beta -> 1)
    cross-entropy    C = -log p(y)                          p - 1_y

The functions that end in an underscore overwrite the buffers they are given: the fused loss calls them on
blocks of rows small enough to stay in the processor's cache. :func:`divergence` is the pure form of the same
code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recovery.errors import UsageError

DIVERGENCES = ("reverse_kl", "forward_kl", "jsd", "cross_entropy")

# Beyond a log-ratio of 60 the smaller probability is under 1e-26 of the larger: it no longer moves the value
# or the gradient of a Jensen-Shannon divergence, while its exponential would soon overflow.
_LOG_RATIO_LIMIT = 60.0


def resolve_divergence(name: str, beta: float = 0.5) -> str:
    """The divergence that is meant: a Jensen-Shannon divergence at either end of beta is one of the two KLs.

    Raises:
        UsageError: the name is unknown, or beta lies outside [0, 1].
    """
    if name not in DIVERGENCES:
        raise UsageError(f"unknown divergence {name!r}: choose one of {', '.join(DIVERGENCES)}")
    if name != "jsd":
        return name
    if not 0.0 <= beta <= 1.0:
        raise UsageError(f"beta of the Jensen-Shannon divergence is {beta}: it must lie between 0 and 1")
    return {0.0: "forward_kl", 1.0: "reverse_kl"}.get(float(beta), "jsd")


def reverse_kl_(p_NV: Tensor, log_p_NV: Tensor, log_q_NV: Tensor) -> Tensor:
    """KL(p | q) in nats, a number a position; ``log_p_NV`` becomes the gradient of it."""
    log_p_NV -= log_q_NV
    value_N = torch.linalg.vecdot(p_NV, log_p_NV)
    log_p_NV -= value_N.unsqueeze(-1)
    log_p_NV *= p_NV
    return value_N


def forward_kl_(p_NV: Tensor, log_p_NV: Tensor, log_q_NV: Tensor) -> Tensor:
    """KL(q | p) in nats; ``log_p_NV`` becomes the gradient, ``log_q_NV`` the teacher's probabilities."""
    torch.sub(log_q_NV, log_p_NV, out=log_p_NV)
    q_NV = torch.softmax(log_q_NV, -1, out=log_q_NV)
    value_N = torch.linalg.vecdot(q_NV, log_p_NV)
    torch.sub(p_NV, q_NV, out=log_p_NV)
    return value_N


def jsd_(p_NV: Tensor, log_p_NV: Tensor, log_q_NV: Tensor, beta: float) -> Tensor:
    """JSD_beta in nats for 0 < beta < 1; ``log_p_NV`` becomes the gradient, ``log_q_NV`` scratch.

    With u = log(q/p) the mixture is m = p (1 + beta (e^u - 1)), so that log(m/p) = log1p(beta expm1(u)) is
    exactly zero where student and teacher agree, and never the logarithm of a sum that has underflowed.
    """
    q_NV = log_q_NV.softmax(-1)
    u_NV = log_q_NV.sub_(log_p_NV).clamp_(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    log_m_over_p_NV = torch.expm1(u_NV, out=log_p_NV).mul_(beta).log1p_()
    u_NV -= log_m_over_p_NV
    teacher_side_N = torch.linalg.vecdot(q_NV, u_NV)
    student_side_N = -torch.linalg.vecdot(p_NV, log_m_over_p_NV)
    log_m_over_p_NV += student_side_N.unsqueeze(-1)
    log_m_over_p_NV *= p_NV
    log_m_over_p_NV *= beta - 1.0
    return beta * teacher_side_N + (1.0 - beta) * student_side_N


def cross_entropy_(p_NV: Tensor, log_p_NV: Tensor, targets_N: Tensor) -> Tensor:
    """-log p(y) in nats for the token ids ``targets_N``; ``log_p_NV`` becomes the gradient."""
    index_N1 = targets_N.unsqueeze(-1)
    value_N = -log_p_NV.gather(-1, index_N1).squeeze(-1)
    log_p_NV.copy_(p_NV)
    log_p_NV.scatter_add_(-1, index_N1, torch.full_like(index_N1, -1, dtype=p_NV.dtype))
    return value_N


def divergence_(
    name: str,
    student_NV: Tensor,
    other: Tensor,
    work_NV: Tensor,
    beta: float = 0.5,
) -> tuple[Tensor, Tensor]:
    """Value and student entropy (nats, a number a position) of a block of logits; overwrites its buffers.

    Args:
        name: as :func:`resolve_divergence` returned it.
        student_NV: the student's logits over the temperature; becomes the gradient with respect to itself.
        other: the teacher's logits over the temperature (overwritten), or the target ids of the cross-
            entropy.
        work_NV: a buffer of the student's shape; becomes the student's probabilities.
        beta: the mixture of the Jensen-Shannon divergence.
    """
    log_p_NV = torch.log_softmax(student_NV, -1, out=student_NV)
    # The library's softmax is faster than its exponential. Both sides take the same steps, so that equal logits give
    # exactly equal distributions.
    p_NV = torch.softmax(log_p_NV, -1, out=work_NV)
    entropy_N = -torch.linalg.vecdot(p_NV, log_p_NV)
    if name == "cross_entropy":
        return cross_entropy_(p_NV, log_p_NV, other), entropy_N
    log_q_NV = torch.log_softmax(other, -1, out=other)
    if name == "reverse_kl":
        return reverse_kl_(p_NV, log_p_NV, log_q_NV), entropy_N
    if name == "forward_kl":
        return forward_kl_(p_NV, log_p_NV, log_q_NV), entropy_N
    return jsd_(p_NV, log_p_NV, log_q_NV, beta), entropy_N


def divergence(
    name: str,
    student_NV: Tensor,
    teacher_NV: Tensor | None = None,
    *,
    targets_N: Tensor | None = None,
    beta: float = 0.5,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Value (nats, shape N) and gradient with respect to ``student_NV`` (shape NV), leaving the inputs alone.

    Args:
        name: one of :data:`DIVERGENCES`.
        student_NV: the student's logits, or its log-probabilities (the same thing to a softmax).
        teacher_NV: the teacher's, for the three divergences between distributions.
        targets_N: token ids, for the cross-entropy.
        beta: for "jsd" only; 0 is the forward KL and 1 the reverse KL.
        temperature: divides both sides' logits; the gradient carries the factor 1/temperature.

    Raises:
        UsageError: an unknown name, a beta or temperature out of range, or the argument it compares with is
            missing.
    """
    resolved = resolve_divergence(name, beta)
    if temperature <= 0.0:
        raise UsageError(f"temperature {temperature} must be above 0")
    other = targets_N if resolved == "cross_entropy" else teacher_NV
    if other is None:
        needed = "targets_N" if resolved == "cross_entropy" else "teacher_NV"
        raise UsageError(f"divergence {name!r} needs {needed}")
    with torch.no_grad():
        gradient_NV = student_NV / temperature
        if resolved != "cross_entropy":
            other = other / temperature
        value_N, _ = divergence_(resolved, gradient_NV, other, torch.empty_like(gradient_NV), beta)
        return value_N, gradient_NV.div_(temperature)
