"""The loss towards a teacher with another tokenizer, over spans of text that both sides spell with whole tokens.

A span is the shortest run of the student's tokens that spells the same bytes as a run of the teacher's. With p the
student and q the teacher, both after the same text:

    one to one    D(p', q') over the outcomes of both vocabularies (:mod:`recovery.losses.terms`), with gradient
    merged        r = sum log p(y) - sum log q(z) over the tokens y and z of the span: a single-sample estimate of the
                  reverse KL between the two spellings of the span, with the gradient of the score function,
                  r * grad sum log p(y)
    left out      no loss

r is bounded to 10 nats either way, as a log-ratio of the sampled form is. Its value is divided evenly among the
student's tokens of the span. It estimates the reverse KL whatever the divergence of the other positions is.

What is exact: the divergence at a one-to-one position, for distributions over the tokens that both vocabularies have,
where each token of one side alone counts as the longest shared token that it begins with; with equal tokenizers it is
the ordinary divergence. What is estimated: a merged span, from one sample. What neither corrects: the teacher's
distribution after a token is conditional on its tokenizer having ended that token there (tokenization bias, arXiv
2410.09303), and its probability of a span is that of the one spelling its tokenizer chooses.

Alignment by the shortest common spans and the product of the probabilities within a span: GOLD (Hugging Face,
Unlocking On-Policy Distillation for Any Model Family, 2025) and arXiv 2606.09456. GOLD compares the tokens of one
side alone by their sorted probabilities (ULD, arXiv 2402.12030), which relates tokens that spell different text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recovery.batching import Batch
from recovery.losses.fused import fused_loss
from recovery.losses.terms import Term
from recovery.models.lm_head import Head

# Bound on the log-ratio of a span, or in a token's advantage: otherwise one that is improbable could outweigh a whole
# batch.
LARGEST_LOG_RATIO = 10.0


@dataclass(frozen=True, eq=False)
class SpanScores:
    """What the teacher says about N student tokens in S spans.

    ``hidden_NE`` are its hidden states at one-to-one positions (``single_N``), zero elsewhere, for its ``head``;
    ``logprobs_S`` the natural log-probability of each merged span. ``spans_N`` is the merged span of each token, -1 for
    other tokens.
    """

    hidden_NE: Tensor
    head: Head
    single_N: Tensor
    spans_N: Tensor
    logprobs_S: Tensor

    @torch.no_grad()
    def sampled(
        self, hidden_ND: Tensor, head: Head, batch: Batch, weight: float, temperature: float, cap: float
    ) -> Term | None:
        """Return the term of the merged spans, from the student's current hidden states; None if there is none.

        If the tokens were sampled by another engine or by older weights, a span's gradient has its own importance
        ratio, at most ``cap``; 0: none.
        """
        merged_M = (self.spans_N >= 0).nonzero().squeeze(-1)
        if not len(merged_M):
            return None
        label = Term("cross_entropy", targets_N=batch.targets_N[merged_M])
        log_p_M = -fused_loss(hidden_ND[merged_M], head, [label], temperature=temperature).per_token_N
        spans_M = self.spans_N[merged_M]
        zeros_S = torch.zeros_like(self.logprobs_S)
        log_p_S = zeros_S.index_add(0, spans_M, log_p_M.to(zeros_S.dtype))
        # r = sum log p(y) - sum log q(z) of each span, [S]; that of a one-to-one span is not used
        ratio_S = (log_p_S - self.logprobs_S).clamp_(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
        lengths_S = zeros_S.index_add(0, spans_M, torch.ones_like(zeros_S)[spans_M])
        advantage_S = -ratio_S
        if batch.old_logprobs_N is not None and cap > 0.0:
            old_S = zeros_S.index_add(0, spans_M, batch.old_logprobs_N[merged_M].to(zeros_S.dtype))
            advantage_S = advantage_S * (log_p_S - old_S).exp().clamp_(max=cap)
        # A token's value is its share of r, its advantage all of -r: the gradient is r times the sum of grad log p(y).
        values_N = zeros_S.new_zeros(len(self.spans_N))
        advantages_N = values_N.clone()
        values_N[merged_M] = (ratio_S / lengths_S)[spans_M]
        advantages_N[merged_M] = advantage_S[spans_M]
        return Term("span", weight, targets_N=batch.targets_N, advantages_N=advantages_N, values_N=values_N)


@torch.no_grad()
def span_scores(batch: Batch, hidden_ME: Tensor, head: Head, temperature: float) -> SpanScores:
    """Return a teacher's scores of an aligned batch, from its hidden states at its own M targets and its head."""
    spans, seen = batch.spans, batch.seen_by_teacher
    assert spans is not None and seen is not None  # an aligned batch
    aligned_N = spans.student_N >= 0
    # Which spans are one to one: the tokens that each has on both sides.
    student_S = torch.bincount(spans.student_N[aligned_N], minlength=spans.total)
    teacher_S = torch.bincount(spans.teacher_M, minlength=spans.total)
    single_S = (student_S == 1) & (teacher_S == 1)
    place_N = spans.student_N.clamp(min=0)  # an index for every token; the aligned ones alone count below
    single_N = aligned_N & single_S[place_N] if spans.total else aligned_N
    # The place of each span's target among the teacher's M; of a merged span it is any of its targets, and never read.
    at_S = torch.zeros_like(student_S)
    at_S[spans.teacher_M] = torch.arange(len(hidden_ME), device=at_S.device)
    hidden_NE = hidden_ME.new_zeros(len(place_N), head.width)
    hidden_NE[single_N] = hidden_ME[at_S[spans.student_N[single_N]]]
    # sum log q(z) over the teacher's tokens z of each merged span, [S]
    merged_M = (~single_S[spans.teacher_M]).nonzero().squeeze(-1)
    logprobs_S = torch.zeros(spans.total, dtype=torch.float64, device=hidden_ME.device)
    if len(merged_M):
        label = Term("cross_entropy", targets_N=seen.targets_N[merged_M])
        log_q_M = -fused_loss(hidden_ME[merged_M], head, [label], temperature=temperature).per_token_N
        logprobs_S.index_add_(0, spans.teacher_M[merged_M], log_q_M.double())
    return SpanScores(hidden_NE, head, single_N, spans.student_N.masked_fill(single_N, -1), logprobs_S)
