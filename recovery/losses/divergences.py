"""Divergences between a student and a teacher over the whole vocabulary, with closed-form gradients.

At one position, p is the student's distribution over the vocabulary and q the teacher's. For any loss L(p)
the gradient with respect to the student's logits is p * (g - sum_v p_v g_v) with g = dL/dp. Value and
gradient are therefore computed in one pass, and nothing has to be stored for a backward pass:

    reverse KL       R = sum p (log p - log q)              p * (log p - log q - R)
    forward KL       F = sum q (log q - log p)              p - q
    JSD_beta         beta KL(q|m) + (1-beta) KL(p|m)        (1-beta) p * (log(p/m) - sum p log(p/m))
                     with m = beta q + (1-beta) p (arXiv 2306.13649); divided by beta and by 1-beta, its
                     limits are the forward KL (beta -> 0) and the reverse KL (beta -> 1)
    cross-entropy    C = -log p(y)                          p - 1_y

Each divergence is a sum of d_v over the vocabulary, and two limits act on its entries. An entry clip c makes it
sum min(d_v, c), as on-policy self-distillation does: g_v = 0 where d_v >= c, and elsewhere log(p_v/q_v) + 1 for
the reverse KL (the +1 no longer cancels), -q_v/p_v for the forward KL, (1-beta) log(p_v/m_v) for JSD. A floor f
replaces log q by max(log q, f) in the reverse KL, and log p by max(log p, f) in the forward KL, with g_v = 0 below
it. A floored side sums to more than 1, so that the value at p = q differs from 0 by the mass below the floor.

Functions with a trailing underscore overwrite their buffers: the fused loss calls them on blocks of rows small enough
to stay in the processor's cache. :func:`divergence` is the pure form of the same code. Losses on a few entries only
are in :mod:`recovery.losses.sparse`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recovery.errors import UsageError
from recovery.losses.config import WHOLE_VOCABULARY, check_limits
from recovery.losses.sparse import cross_entropy

DIVERGENCES = (*WHOLE_VOCABULARY, "cross_entropy")

# Beyond a log-ratio of 60 the smaller probability is below 1e-26 of the larger: it no longer affects the value or the
# gradient of a Jensen-Shannon divergence, while its exponential would soon overflow.
_LOG_RATIO_LIMIT = 60.0


def resolve_divergence(
    name: str,
    beta: float = 0.5,
    *,
    entry_clip: float | None = None,
    floor: float | None = None,
    known: tuple[str, ...] = DIVERGENCES,
) -> str:
    """Return the divergence to compute: a Jensen-Shannon divergence at either end of beta is one of the two KLs.

    Raises:
        UsageError: the name is not in ``known``, beta is outside [0, 1], or a limit is out of range or does not
            apply to this divergence.
    """
    if name not in known:
        raise UsageError(f"unknown divergence {name!r}: choose one of {', '.join(known)}")
    if name == "jsd" and not 0.0 <= beta <= 1.0:
        raise UsageError(f"beta of the Jensen-Shannon divergence is {beta}: it must lie between 0 and 1")
    resolved = {0.0: "forward_kl", 1.0: "reverse_kl"}.get(float(beta), "jsd") if name == "jsd" else name
    check_limits(entry_clip=entry_clip, floor=floor)
    if entry_clip is not None and resolved not in WHOLE_VOCABULARY:
        raise UsageError(f"--entry-clip {entry_clip} acts on reverse_kl, forward_kl and jsd, not on {name}")
    if floor is not None and resolved not in ("reverse_kl", "forward_kl"):
        raise UsageError(f"--floor {floor} acts on reverse_kl and forward_kl, not on {name}")
    return resolved


def reverse_kl_(
    p_NV: Tensor, log_p_NV: Tensor, log_q_NV: Tensor, entry_clip: float | None = None, floor: float | None = None
) -> Tensor:
    """Return KL(p | q) per position in nats; ``log_p_NV`` becomes its gradient, ``log_q_NV`` scratch."""
    if floor is not None:
        log_q_NV.clamp_(min=floor)
    log_p_NV -= log_q_NV
    if entry_clip is None:
        value_N = centre_N = torch.linalg.vecdot(p_NV, log_p_NV)
    else:
        entries_NV = torch.mul(p_NV, log_p_NV, out=log_q_NV)
        # g without the 1 of every entry, which does not change the gradient: it is then exactly zero at p = q.
        log_p_NV.masked_fill_(entries_NV >= entry_clip, -1.0)
        value_N = entries_NV.clamp_(max=entry_clip).sum(-1)
        centre_N = torch.linalg.vecdot(p_NV, log_p_NV)
    log_p_NV -= centre_N.unsqueeze(-1)
    log_p_NV *= p_NV
    return value_N


def forward_kl_(
    p_NV: Tensor, log_p_NV: Tensor, log_q_NV: Tensor, entry_clip: float | None = None, floor: float | None = None
) -> Tensor:
    """Return KL(q | p) in nats; ``log_p_NV`` becomes the gradient, ``log_q_NV`` the teacher's probabilities."""
    stopped_NV = None
    if floor is not None:
        stopped_NV = log_p_NV < floor
        log_p_NV.clamp_(min=floor)
    torch.sub(log_q_NV, log_p_NV, out=log_p_NV)
    q_NV = torch.softmax(log_q_NV, -1, out=log_q_NV)
    if entry_clip is None:
        value_N = torch.linalg.vecdot(q_NV, log_p_NV)
    else:
        entries_NV = log_p_NV.mul_(q_NV)
        clipped_NV = entries_NV >= entry_clip
        stopped_NV = clipped_NV if stopped_NV is None else stopped_NV.logical_or_(clipped_NV)
        value_N = entries_NV.clamp_(max=entry_clip).sum(-1)
    if stopped_NV is None:
        torch.sub(p_NV, q_NV, out=log_p_NV)
        return value_N
    # g = -q/p except for the stopped entries: the gradient is p - q plus the stopped part of q, minus p times its sum.
    lost_NV = torch.mul(q_NV, stopped_NV, out=log_p_NV)
    share_N1 = lost_NV.sum(-1, keepdim=True)
    log_p_NV += p_NV
    log_p_NV -= q_NV
    log_p_NV.addcmul_(p_NV, share_N1, value=-1.0)
    return value_N


def jsd_(p_NV: Tensor, log_p_NV: Tensor, log_q_NV: Tensor, beta: float, entry_clip: float | None = None) -> Tensor:
    """Return JSD_beta in nats for 0 < beta < 1; ``log_p_NV`` becomes the gradient, ``log_q_NV`` scratch.

    With u = log(q/p) the mixture is m = p (1 + beta (e^u - 1)), so that log(m/p) = log1p(beta expm1(u)) is
    exactly zero where student and teacher agree, and never the logarithm of a sum that has underflowed.
    """
    q_NV = log_q_NV.softmax(-1)
    u_NV = log_q_NV.sub_(log_p_NV).clamp_(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    log_m_over_p_NV = torch.expm1(u_NV, out=log_p_NV).mul_(beta).log1p_()
    u_NV -= log_m_over_p_NV
    if entry_clip is None:
        teacher_side_N = torch.linalg.vecdot(q_NV, u_NV)
        centre_N = torch.linalg.vecdot(p_NV, log_m_over_p_NV)
        value_N = beta * teacher_side_N - (1.0 - beta) * centre_N
    else:
        entries_NV = u_NV.mul_(q_NV).mul_(beta).addcmul_(p_NV, log_m_over_p_NV, value=beta - 1.0)
        log_m_over_p_NV.masked_fill_(entries_NV >= entry_clip, 0.0)
        value_N = entries_NV.clamp_(max=entry_clip).sum(-1)
        centre_N = torch.linalg.vecdot(p_NV, log_m_over_p_NV)
    log_m_over_p_NV -= centre_N.unsqueeze(-1)
    log_m_over_p_NV *= p_NV
    log_m_over_p_NV *= beta - 1.0
    return value_N


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
    *,
    beta: float = 0.5,
    entry_clip: float | None = None,
    floor: float | None = None,
) -> Tensor:
    """Return a divergence between distributions per position, in nats; overwrites two of its buffers.

    Args:
        name: as returned by :func:`resolve_divergence`, except the cross-entropy.
        p_NV: the student's probabilities, not modified.
        log_p_NV: their logarithms; becomes the gradient with respect to the logits over the temperature.
        teacher_NV: the teacher's logits over the temperature (overwritten).
        beta: the mixture of the Jensen-Shannon divergence.
        entry_clip: maximum contribution of one entry, nats.
        floor: lower bound of log-probabilities.
    """
    log_q_NV = torch.log_softmax(teacher_NV, -1, out=teacher_NV)
    if name == "reverse_kl":
        return reverse_kl_(p_NV, log_p_NV, log_q_NV, entry_clip, floor)
    if name == "forward_kl":
        return forward_kl_(p_NV, log_p_NV, log_q_NV, entry_clip, floor)
    if name == "jsd":
        return jsd_(p_NV, log_p_NV, log_q_NV, beta, entry_clip)
    raise ValueError(f"the divergence {name!r} has no formula here")


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

    Args:
        name: one of :data:`DIVERGENCES`.
        student_NV: the student's logits or log-probabilities.
        teacher_NV: the teacher's, for the three divergences between distributions.
        targets_N: token ids, for the cross-entropy.
        beta: for "jsd" only; 0 is the forward KL and 1 the reverse KL.
        temperature: divides both sides' logits; the gradient carries the factor 1/temperature.
        entry_clip: maximum contribution of one vocabulary entry (nats), for the three between distributions.
        floor: lower bound of log-probabilities, for the two KLs.

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
    with torch.no_grad():
        gradient_NV = student_NV / temperature
        log_p_NV, p_NV, _ = softmaxes_(gradient_NV, torch.empty_like(gradient_NV))
        if resolved == "cross_entropy":
            found = cross_entropy(p_NV, log_p_NV, other)
            value_N = found.value_N
            found.write_to_(gradient_NV, p_NV)
        else:
            value_N = divergence_(
                resolved, p_NV, log_p_NV, other / temperature, beta=beta, entry_clip=entry_clip, floor=floor
            )
        return value_N, gradient_NV.div_(temperature)
