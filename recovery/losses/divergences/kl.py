"""Forward and reverse Kullback-Leibler divergence.

    reverse KL   R = sum p (log p - log q)    gradient p * (log p - log q - R)
    forward KL   F = sum q (log q - log p)    gradient p - q

With an entry clip, g_v = 0 for clipped entries, and elsewhere log(p_v/q_v) + 1 for the reverse KL (the +1 no longer
cancels), -q_v/p_v for the forward KL. A floor f replaces log q by max(log q, f) in the reverse KL, and log p by
max(log p, f) in the forward KL, with g_v = 0 below it. A floored side sums to more than 1, so that the value at p = q
differs from 0 by the mass below the floor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recovery.lazy_import import lazily
from recovery.losses.divergence import Divergence, Options

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazily("torch")


def reverse_kl_(p_NV: Tensor, log_p_NV: Tensor, log_q_NV: Tensor, options: Options) -> Tensor:
    """Return KL(p | q) per position in nats; ``log_p_NV`` becomes its gradient, ``log_q_NV`` scratch."""
    if options.floor is not None:
        log_q_NV.clamp_(min=options.floor)
    log_p_NV -= log_q_NV  # log p/q, [N, V]
    if options.entry_clip is None:
        # R = sum_v p log p/q, [N]
        value_N = centre_N = torch.linalg.vecdot(p_NV, log_p_NV)
    else:
        entries_NV = torch.mul(p_NV, log_p_NV, out=log_q_NV)
        # A constant added to every g_v drops out of p (g - sum p g): 1 is subtracted, so that an entry within the clip
        # has g = log p/q + 1 - 1, exactly zero at p = q, and a clipped one 0 - 1.
        log_p_NV.masked_fill_(entries_NV >= options.entry_clip, -1.0)
        value_N = entries_NV.clamp_(max=options.entry_clip).sum(-1)
        centre_N = torch.linalg.vecdot(p_NV, log_p_NV)
    # dR/dlogits = p (log p/q - R), [N, V]
    log_p_NV -= centre_N.unsqueeze(-1)
    log_p_NV *= p_NV
    return value_N


def forward_kl_(p_NV: Tensor, log_p_NV: Tensor, log_q_NV: Tensor, options: Options) -> Tensor:
    """Return KL(q | p) in nats; ``log_p_NV`` becomes the gradient, ``log_q_NV`` the teacher's probabilities."""
    stopped_NV = None
    if options.floor is not None:
        stopped_NV = log_p_NV < options.floor
        log_p_NV.clamp_(min=options.floor)
    torch.sub(log_q_NV, log_p_NV, out=log_p_NV)  # log q/p, [N, V]
    q_NV = torch.softmax(log_q_NV, -1, out=log_q_NV)
    if options.entry_clip is None:
        value_N = torch.linalg.vecdot(q_NV, log_p_NV)  # F = sum_v q log q/p, [N]
    else:
        entries_NV = log_p_NV.mul_(q_NV)
        clipped_NV = entries_NV >= options.entry_clip
        stopped_NV = clipped_NV if stopped_NV is None else stopped_NV.logical_or_(clipped_NV)
        value_N = entries_NV.clamp_(max=options.entry_clip).sum(-1)
    if stopped_NV is None:
        torch.sub(p_NV, q_NV, out=log_p_NV)  # dF/dlogits = p - q, [N, V]
        return value_N
    # g = -q/p except for the stopped entries: the gradient is p - q plus the stopped part of q, minus p times its sum.
    lost_NV = torch.mul(q_NV, stopped_NV, out=log_p_NV)
    share_N1 = lost_NV.sum(-1, keepdim=True)
    log_p_NV += p_NV
    log_p_NV -= q_NV
    log_p_NV.addcmul_(p_NV, share_N1, value=-1.0)
    return value_N


DECLARED = (
    Divergence("reverse_kl", "Reverse KL to the teacher", "KL(p || q)", "arXiv 2306.13649", reverse_kl_),
    Divergence("forward_kl", "Forward KL to the teacher", "KL(q || p)", "Hinton et al., arXiv 1503.02531", forward_kl_),
)
