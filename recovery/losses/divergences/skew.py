"""Skewed Kullback-Leibler divergences of DistiLLM (Ko et al. 2024, arXiv 2402.03898).

Each compares a distribution with a mixture that holds a share beta of itself (their alpha, 0.1 in the paper), so that
no log-ratio exceeds -log beta, however unlikely the other side makes a token:

    skew KL            S = KL(q | m), m = beta q + (1 - beta) p    g = -(1 - beta) q/m
    skew reverse KL    R = KL(p | m), m = beta p + (1 - beta) q    g = log(p/m) + 1 - beta p/m

At beta = 0 they are the forward and the reverse KL; at beta = 1 they vanish. A constant added to every g_v leaves the
gradient p * (g - sum p g) unchanged: it is chosen so that g is exactly zero where student and teacher agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recovery.lazy_import import lazily
from recovery.losses.divergence import LOG_RATIO_LIMIT, Divergence, Options

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazily("torch")


def skew_kl_(p_NV: Tensor, log_p_NV: Tensor, log_q_NV: Tensor, options: Options) -> Tensor:
    """Return KL(q | beta q + (1 - beta) p) in nats; ``log_p_NV`` becomes its gradient, ``log_q_NV`` scratch."""
    beta = options.beta
    q_NV = log_q_NV.softmax(-1)
    u_NV = log_q_NV.sub_(log_p_NV).clamp_(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    log_m_over_p_NV = torch.expm1(u_NV, out=log_p_NV).mul_(beta).log1p_()
    log_q_over_m_NV = u_NV.sub_(log_m_over_p_NV)
    g_NV = torch.expm1(log_q_over_m_NV, out=log_p_NV).mul_(beta - 1.0)
    return _centred(p_NV, g_NV, q_NV.mul_(log_q_over_m_NV), options.entry_clip, stopped=1.0 - beta)


def skew_reverse_kl_(p_NV: Tensor, log_p_NV: Tensor, log_q_NV: Tensor, options: Options) -> Tensor:
    """Return KL(p | beta p + (1 - beta) q) in nats; ``log_p_NV`` becomes its gradient, ``log_q_NV`` scratch."""
    beta = options.beta
    u_NV = log_q_NV.sub_(log_p_NV).clamp_(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    log_p_over_m_NV = torch.expm1(u_NV, out=u_NV).mul_(1.0 - beta).log1p_().neg_()
    g_NV = torch.expm1(log_p_over_m_NV, out=log_p_NV).mul_(-beta).add_(log_p_over_m_NV)
    return _centred(p_NV, g_NV, log_p_over_m_NV.mul_(p_NV), options.entry_clip, stopped=beta - 1.0)


def _centred(p_NV: Tensor, g_NV: Tensor, entries_NV: Tensor, clip: float | None, stopped: float) -> Tensor:
    """Return the sum of the entries; ``g_NV`` becomes p * (g - sum p g). ``stopped`` is g of an entry at the clip."""
    if clip is not None:
        g_NV.masked_fill_(entries_NV >= clip, stopped)
        entries_NV.clamp_(max=clip)
    g_NV -= torch.linalg.vecdot(p_NV, g_NV).unsqueeze(-1)
    g_NV *= p_NV
    return entries_NV.sum(-1)


DECLARED = (
    Divergence(
        "skew_kl",
        "Skewed KL to the teacher",
        "KL(q || beta q + (1 - beta) p)",
        "DistiLLM, Ko et al., arXiv 2402.03898",
        skew_kl_,
        ends=("forward_kl", None),
        bounded=True,
    ),
    Divergence(
        "skew_reverse_kl",
        "Skewed reverse KL to the teacher",
        "KL(p || beta p + (1 - beta) q)",
        "DistiLLM, Ko et al., arXiv 2402.03898",
        skew_reverse_kl_,
        ends=("reverse_kl", None),
        bounded=True,
    ),
)
