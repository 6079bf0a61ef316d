"""Losses on a few vocabulary entries: the label, the sampled token, or the teacher's most likely tokens.

    cross-entropy     C = -log p(y)                          p - 1_y
    policy gradient   L = -min(r A, clip(r, 1-e, 1+e) A)     -A r (1_y - p), 0 where clipped
                      with r = p(y) / p_old(y) (PPO, arXiv 1707.06347); a token whose r is above d or below 1/d
                      can be dropped: value and gradient 0
    score function    a given value v                        -A (1_y - p)
    top-k, reverse    sum_K p log(p/q) + P log(P/Q)          p * (l - L), with l = log(p/q) of each kept entry and
                      log(P/Q) of every other one
    top-k, forward    sum_K q log(q/p) + Q log(Q/P)          p - q on the kept entries, p * (1 - Q/P) on the others

K are the k entries that the teacher returns; P and Q are the probabilities of the student and the teacher outside them,
combined in one bucket. Without that bucket the student could reduce the sum by moving its mass out of K. With it the
value is a divergence between two distributions over k + 1 outcomes: never negative, and never above the full one.

Outside these entries every gradient is p times one number per token, so no array as wide as the vocabulary is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recovery.errors import UsageError
from recovery.models.lm_head import Head

# A ratio beyond exp(40) overflows when it is squared; such a token is far outside any clip.
_LOG_RATIO_LIMIT = 40.0
_TOKENS_AT_ONCE = 128


@dataclass(frozen=True)
class Sparse:
    """A value per token (nats), and the gradient with respect to the logits in sparse form.

    ``entries_NK`` is the gradient at ``index_NK``, whose entries are distinct; elsewhere it is
    ``slope_N`` times the student's probability.
    """

    value_N: Tensor
    slope_N: Tensor
    index_NK: Tensor
    entries_NK: Tensor

    def add_to_(self, gradient_NV: Tensor, p_NV: Tensor, weight: float = 1.0) -> None:
        """Add ``weight`` times the gradient; ``p_NV`` is modified temporarily and restored."""
        kept_NK = p_NV.gather(-1, self.index_NK)
        p_NV.scatter_(-1, self.index_NK, 0.0)
        gradient_NV.addcmul_(p_NV, self.slope_N.unsqueeze(-1), value=weight)
        p_NV.scatter_(-1, self.index_NK, kept_NK)
        gradient_NV.scatter_add_(-1, self.index_NK, self.entries_NK * weight)

    def write_to_(self, gradient_NV: Tensor, p_NV: Tensor, weight: float = 1.0) -> None:
        """Overwrite the buffer with ``weight`` times the gradient."""
        torch.mul(p_NV, (self.slope_N * weight).unsqueeze(-1), out=gradient_NV)
        gradient_NV.scatter_(-1, self.index_NK, self.entries_NK * weight)


@dataclass(frozen=True)
class Policy:
    """A policy gradient with the ratio r and the tokens that were clipped or dropped."""

    sparse: Sparse
    ratio_N: Tensor
    clipped_N: Tensor
    dropped_N: Tensor


def cross_entropy(p_NV: Tensor, log_p_NV: Tensor, targets_N: Tensor) -> Sparse:
    """Return -log p(y) in nats for the token ids ``targets_N``."""
    index_N1 = targets_N.unsqueeze(-1)
    value_N = -log_p_NV.gather(-1, index_N1).squeeze(-1)
    # dC/dlogits = p - 1_y: p everywhere, p - 1 at the label
    return Sparse(value_N, torch.ones_like(value_N), index_N1, p_NV.gather(-1, index_N1) - 1.0)


def policy_gradient(
    p_NV: Tensor,
    log_p_NV: Tensor,
    targets_N: Tensor,
    advantages_N: Tensor,
    old_logprobs_N: Tensor | None = None,
    clip: float | None = None,
    drop: float | None = None,
) -> Policy:
    """Return -min(r A, clip(r) A) for the sampled tokens ``targets_N``.

    ``old_logprobs_N`` are their log-probabilities when they were sampled; None if the student has not changed since,
    so that r is 1.
    """
    index_N1 = targets_N.unsqueeze(-1)
    log_p_N = log_p_NV.gather(-1, index_N1).squeeze(-1)
    advantages_N = advantages_N.to(log_p_N.dtype)
    ratio_N = importance_ratio(log_p_N, old_logprobs_N)  # r = p(y) / p_old(y), [N]
    gain_N = ratio_N * advantages_N
    dropped_N = clipped_N = torch.zeros_like(ratio_N, dtype=torch.bool)
    value_N = -gain_N
    if drop is not None:
        dropped_N = (ratio_N > drop) | (ratio_N < 1.0 / drop)
        value_N = value_N.masked_fill(dropped_N, 0.0)
    if clip is not None:
        # L = -min(r A, clip(r, 1 - e, 1 + e) A): the smaller gain counts, and a constant has no gradient
        bounded_N = ratio_N.clamp(1.0 - clip, 1.0 + clip) * advantages_N
        clipped_N = (bounded_N < gain_N) & ~dropped_N
        value_N = torch.where(clipped_N, -bounded_N, value_N)
    # dL/dlogits = -A r (1_y - p): A r p everywhere, A r (p - 1) at the sampled token
    slope_N = gain_N.masked_fill(clipped_N | dropped_N, 0.0)
    entries_N1 = (p_NV.gather(-1, index_N1) - 1.0) * slope_N.unsqueeze(-1)
    return Policy(Sparse(value_N, slope_N, index_N1, entries_N1), ratio_N, clipped_N, dropped_N)


def score_function(p_NV: Tensor, targets_N: Tensor, advantages_N: Tensor, values_N: Tensor) -> Sparse:
    """Return ``values_N`` with the gradient -A grad log p(y): the estimate of an expectation from a sample
    (REINFORCE), whose value and gradient are not those of one function.
    """
    index_N1, advantages_N = targets_N.unsqueeze(-1), advantages_N.to(p_NV.dtype)
    entries_N1 = (p_NV.gather(-1, index_N1) - 1.0) * advantages_N.unsqueeze(-1)
    return Sparse(values_N.to(p_NV.dtype), advantages_N, index_N1, entries_N1)


def importance_ratio(log_p_N: Tensor, old_logprobs_N: Tensor | None) -> Tensor:
    """Return r = p(y) / p_old(y) of tokens sampled with ``old_logprobs_N``; 1 if it is None."""
    old_N = log_p_N if old_logprobs_N is None else old_logprobs_N.to(log_p_N.dtype)
    return (log_p_N - old_N).clamp_(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT).exp_()


def top_k(
    p_NV: Tensor, log_p_NV: Tensor, top_ids_NK: Tensor, top_logprobs_NK: Tensor, *, reverse: bool = True
) -> Sparse:
    """Return the KL over the teacher's k entries and one bucket for the rest; ``p_NV`` is modified and restored."""
    p_NK = p_NV.gather(-1, top_ids_NK)
    log_p_NK = log_p_NV.gather(-1, top_ids_NK)
    log_q_NK = top_logprobs_NK.to(p_NV.dtype)
    # The student's rest is summed, not subtracted from 1: it may be smaller than the rounding error of 1.
    p_NV.scatter_(-1, top_ids_NK, 0.0)
    rest_p_N = p_NV.sum(-1)
    p_NV.scatter_(-1, top_ids_NK, p_NK)
    rest_q_N = -torch.expm1(log_q_NK.logsumexp(-1))
    if top_ids_NK.shape[-1] == p_NV.shape[-1]:
        rest_q_N = torch.zeros_like(rest_q_N)
    # A rest below the rounding error is replaced by it, so that its logarithm is finite.
    limits = torch.finfo(p_NV.dtype)
    rest_q_N.clamp_(min=0.0)
    held_p_N = rest_p_N.clamp(min=limits.tiny)
    log_ratio_N = held_p_N.log() - rest_q_N.clamp(min=limits.eps).log()
    if reverse:
        # R = sum_K p log p/q + P log P/Q, [N]; dR/dlogits = p (log p/q - R) in K, p (log P/Q - R) elsewhere
        log_ratio_NK = log_p_NK - log_q_NK
        value_N = torch.linalg.vecdot(p_NK, log_ratio_NK) + rest_p_N * log_ratio_N
        return Sparse(value_N, log_ratio_N - value_N, top_ids_NK, p_NK * (log_ratio_NK - value_N.unsqueeze(-1)))
    # F = sum_K q log q/p + Q log Q/P, [N]; dF/dlogits = p - q in K, p (1 - Q/P) elsewhere
    q_NK = log_q_NK.exp()
    value_N = torch.linalg.vecdot(q_NK, log_q_NK - log_p_NK) - rest_q_N * log_ratio_N
    return Sparse(value_N, 1.0 - rest_q_N / held_p_N, top_ids_NK, p_NK - q_NK)


@torch.no_grad()
def top_entries(hidden_NE: Tensor, head: Head, count: int, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the ``count`` most likely entries per position: ids and natural log-probabilities at ``temperature``, [N,
    K].

    The equivalent of a server's response for a local teacher; some tokens at a time.

    Raises:
        UsageError: the head has fewer entries.
    """
    if not 1 <= count <= head.vocabulary:
        raise UsageError(f"--top-k {count} must lie between 1 and the teacher's {head.vocabulary} entries")
    ids, logprobs = [], []
    for part_NE in hidden_NE.to(head.weight_VD.dtype).split(_TOKENS_AT_ONCE):
        logits_NV = head.logits(part_NE)
        wide = torch.float64 if logits_NV.dtype == torch.float64 else torch.float32
        logits_NV = logits_NV.to(wide).div_(temperature)
        top_NK = logits_NV.topk(count, dim=-1)
        ids.append(top_NK.indices)
        logprobs.append(top_NK.values - logits_NV.logsumexp(-1, keepdim=True))
    return torch.cat(ids), torch.cat(logprobs)
