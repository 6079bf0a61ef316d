"""Generalised Jensen-Shannon divergence (arXiv 2306.13649).

    JSD_beta = beta KL(q | m) + (1 - beta) KL(p | m), m = beta q + (1 - beta) p
    gradient (1 - beta) p * (log(p/m) - sum p log(p/m))

Divided by beta and by 1 - beta, its limits are the forward KL (beta -> 0) and the reverse KL (beta -> 1). With an entry
clip, g_v = 0 for clipped entries and (1 - beta) log(p_v/m_v) elsewhere.
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


def jsd_(p_NV: Tensor, log_p_NV: Tensor, log_q_NV: Tensor, options: Options) -> Tensor:
    """Return JSD_beta in nats for 0 < beta < 1; ``log_p_NV`` becomes the gradient, ``log_q_NV`` scratch.

    With u = log(q/p) the mixture is m = p (1 + beta (e^u - 1)), so that log(m/p) = log1p(beta expm1(u)) is
    exactly zero where student and teacher agree, and never the logarithm of a sum that has underflowed.
    """
    beta = options.beta
    q_NV = log_q_NV.softmax(-1)
    u_NV = log_q_NV.sub_(log_p_NV).clamp_(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    log_m_over_p_NV = torch.expm1(u_NV, out=log_p_NV).mul_(beta).log1p_()
    u_NV -= log_m_over_p_NV
    # With u' = log q/m and log p/m = -log m/p: JSD = beta sum_v q u' - (1 - beta) sum_v p log m/p, [N]
    if options.entry_clip is None:
        teacher_side_N = torch.linalg.vecdot(q_NV, u_NV)
        centre_N = torch.linalg.vecdot(p_NV, log_m_over_p_NV)
        value_N = beta * teacher_side_N - (1.0 - beta) * centre_N
    else:
        entries_NV = u_NV.mul_(q_NV).mul_(beta).addcmul_(p_NV, log_m_over_p_NV, value=beta - 1.0)
        log_m_over_p_NV.masked_fill_(entries_NV >= options.entry_clip, 0.0)
        value_N = entries_NV.clamp_(max=options.entry_clip).sum(-1)
        centre_N = torch.linalg.vecdot(p_NV, log_m_over_p_NV)
    # dJSD/dlogits = (beta - 1) p (log m/p - sum_v p log m/p), [N, V]
    log_m_over_p_NV -= centre_N.unsqueeze(-1)
    log_m_over_p_NV *= p_NV
    log_m_over_p_NV *= beta - 1.0
    return value_N


DECLARED = (
    Divergence(
        "jsd",
        "Jensen-Shannon divergence to the teacher",
        "beta KL(q || m) + (1 - beta) KL(p || m), m = beta q + (1 - beta) p",
        "arXiv 2306.13649",
        jsd_,
        ends=("forward_kl", "reverse_kl"),
        bounded=True,
    ),
)
