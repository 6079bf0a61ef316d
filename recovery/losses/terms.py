"""Terms of the loss: one record per comparison of the student's distribution.

A loss is a weighted sum of terms over the same tokens: a teacher, a reward, an anchor to the clean model. The fused
loss projects the student once and adds up the gradients of the terms.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recovery.errors import ModelError, UsageError
from recovery.losses.config import WHOLE_VOCABULARY, check_limits
from recovery.losses.dense import resolve_divergence
from recovery.losses.divergence import Options
from recovery.losses.divergences import DIVERGENCES
from recovery.models.lm_head import Head

# Comparison of two vocabularies: the tokens of each are grouped into outcomes that both sides have.
#
# With p [V] over the student's tokens, q [W] over the teacher's, and outcomes g = 1..G, of which token v has o(v):
#
#     p'_g = sum of p_v over the student's tokens with o(v) = g          [G]
#     q'_g = sum of q_w over the teacher's tokens with o(w) = g          [G]
#     the value is D(p', q'); with s = dD/dp' its gradient with respect to the student's logits is
#     p_v (s_o(v) - sum_g p'_g s_g)                                      [V]
#
# Both are distributions over the same G outcomes, so that every divergence of :mod:`recovery.losses.divergences`
# applies. By the data-processing inequality D(p', q') is at most the divergence between distributions that are not
# grouped. If each outcome holds one token of each side, it is that divergence.


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
    # The divergence turns log p' into the gradient of logits over the outcomes, p'_g (s_g - sum_h p'_h s_h), [N, G].
    value_N = DIVERGENCES[name].compute_(p_NG, slope_NG, log_q_NG, options)
    # Over p' that is the bracket, which every token v has from its outcome: times p_v its own gradient, [N, V].
    slope_NG /= p_NG
    torch.index_select(slope_NG, 1, outcomes.student_V, out=log_p_NV)
    log_p_NV *= p_NV
    return value_N


def _grouped(probabilities_NV: Tensor, outcome_V: Tensor, count: int) -> Tensor:
    grouped_NG = probabilities_NV.new_zeros(probabilities_NV.shape[0], count)
    grouped_NG.index_add_(1, outcome_V, probabilities_NV)
    return grouped_NG.clamp_(min=torch.finfo(grouped_NG.dtype).tiny)


TERMS = (*WHOLE_VOCABULARY, "cross_entropy", "policy_gradient", "span", "top_k")
_NEEDS = {
    "cross_entropy": ("targets_N",),
    "policy_gradient": ("targets_N", "advantages_N"),
    "span": ("targets_N", "advantages_N", "values_N"),
    "top_k": ("top_ids_NK", "top_logprobs_NK"),
    **dict.fromkeys(WHOLE_VOCABULARY, ("teacher_hidden_NE",)),
}


@dataclass(frozen=True, eq=False)
class Term:
    """One comparison of the student's distribution, over N tokens.

    Attributes:
        divergence: one of :data:`TERMS`; the formulas are in :mod:`recovery.losses.divergences` and
            :mod:`recovery.losses.sparse`.
        weight: factor of the term's value and gradient in the sum; 0 measures without training.
        beta: the mixture of the divergences that have one.
        teacher_hidden_NE: the teacher's hidden states at the same positions, for the divergences over the whole
            vocabulary; its width may differ from the student's.
        teacher_head: the teacher's head, always frozen; None: the student's own.
        outcomes: the outcomes to compare, if the teacher's vocabulary is another one.
        active_N: the tokens that a divergence over the whole vocabulary counts, if not all.
        targets_N: token ids, for "cross_entropy" (the label), "policy_gradient" and "span" (the sampled token).
        advantages_N: how much better than expected each sampled token was, for "policy_gradient" and "span".
        values_N: the token's share of its span's value (nats), for "span".
        old_logprobs_N: natural log-probability of each sampled token when it was sampled, at the temperature of
            the loss; None if the student has not changed since.
        clip: epsilon of the importance ratio's clip.
        drop: tokens whose ratio is above this or below its inverse are ignored.
        top_ids_NK: the entries that the teacher returns, for "top_k"; distinct per token.
        top_logprobs_NK: their natural log-probabilities, at the temperature of the loss.
        reverse: whether "top_k" is KL(student | teacher); otherwise KL(teacher | student).
        entry_clip: maximum contribution of one vocabulary entry, nats.
        floor: lower bound of log-probabilities, in the unbounded divergences.

    Raises:
        UsageError: the divergence is unknown, a number is out of range, a limit does not apply to this divergence, or
            a required field is missing.
    """

    divergence: str
    weight: float = 1.0
    beta: float = 0.5
    teacher_hidden_NE: Tensor | None = None
    teacher_head: Head | None = None
    outcomes: Outcomes | None = None
    active_N: Tensor | None = None
    targets_N: Tensor | None = None
    advantages_N: Tensor | None = None
    old_logprobs_N: Tensor | None = None
    values_N: Tensor | None = None
    clip: float | None = None
    drop: float | None = None
    top_ids_NK: Tensor | None = None
    top_logprobs_NK: Tensor | None = None
    reverse: bool = True
    entry_clip: float | None = None
    floor: float | None = None

    def __post_init__(self) -> None:
        resolve_divergence(self.divergence, self.beta, entry_clip=self.entry_clip, floor=self.floor, known=TERMS)
        if not math.isfinite(self.weight):
            raise UsageError(f"the weight {self.weight} of a {self.divergence} term is not a finite number")
        for name in _NEEDS[self.divergence]:
            if getattr(self, name) is None:
                raise UsageError(f"a {self.divergence} term needs {name}")
        check_limits(self.divergence, clip=self.clip, drop=self.drop)
        for flag, limit in (("clip", self.clip), ("drop", self.drop)):
            if limit is not None and self.old_logprobs_N is None:
                raise UsageError(
                    f"--{flag} {limit} needs the log-probabilities the tokens were sampled with (old_logprobs_N)"
                )

    @functools.cached_property
    def resolved(self) -> str:
        """The divergence to compute: at either end of beta, a mixture is another divergence."""
        return resolve_divergence(self.divergence, self.beta, known=TERMS)

    @functools.cached_property
    def options(self) -> Options:
        """Mixture and limits of the divergence."""
        return Options(self.beta, self.entry_clip, self.floor)

    @property
    def whole(self) -> bool:
        """Whether the term compares whole distributions, and so needs a teacher's logits."""
        return self.divergence in WHOLE_VOCABULARY

    def check(self, tokens: int, head: Head) -> None:
        """Check the shapes, which would otherwise fail or broadcast deep inside the loss.

        Raises:
            UsageError: a tensor does not have one entry for each of ``tokens`` tokens.
            ModelError: the vocabularies of the teacher's head and the student's ``head`` differ.
        """
        for name in ("targets_N", "advantages_N", "old_logprobs_N", "values_N", "active_N"):
            check_per_token(name, getattr(self, name), tokens)
        if self.teacher_hidden_NE is not None:
            teacher = self.teacher_head or head
            if self.teacher_hidden_NE.shape != (tokens, teacher.width):
                raise UsageError(
                    f"teacher hidden states of shape {tuple(self.teacher_hidden_NE.shape)} do not fit {tokens} tokens "
                    f"and a teacher head of width {teacher.width}"
                )
            self._check_vocabularies(head, teacher)
        if self.top_ids_NK is not None and self.top_logprobs_NK is not None:
            self._check_top(self.top_ids_NK, self.top_logprobs_NK, tokens, head.vocabulary)

    def _check_vocabularies(self, student: Head, teacher: Head) -> None:
        if self.outcomes is None:
            check_same_vocabulary(student, teacher)
            return
        given = len(self.outcomes.student_V), len(self.outcomes.teacher_W)
        if given != (student.vocabulary, teacher.vocabulary):
            raise UsageError(
                f"outcomes of {given[0]} and {given[1]} tokens do not fit heads of {student.vocabulary} and "
                f"{teacher.vocabulary} logits"
            )

    @staticmethod
    def _check_top(ids_NK: Tensor, logprobs_NK: Tensor, tokens: int, vocabulary: int) -> None:
        if ids_NK.dim() != 2 or ids_NK.shape != logprobs_NK.shape or ids_NK.shape[0] != tokens:
            raise UsageError(
                f"top_ids_NK and top_logprobs_NK have shapes {tuple(ids_NK.shape)} and {tuple(logprobs_NK.shape)}: "
                f"they need the same k entries for each of {tokens} tokens"
            )
        if not 1 <= ids_NK.shape[1] <= vocabulary:
            raise UsageError(f"--top-k {ids_NK.shape[1]} must lie between 1 and the vocabulary's {vocabulary} entries")
        if bool((ids_NK.sort(-1).values.diff(dim=-1) == 0).any()):
            raise UsageError("top_ids_NK has an entry twice at one position: its mass would be counted twice")


@dataclass(frozen=True, eq=False)
class BehaviourPolicy:
    """The sampling distribution of the tokens, if it differs from the student's: another engine, or older weights.

    A divergence between whole distributions sums over the token at its position and needs no ratio for it; only the
    probability of the preceding text differs. Each token is therefore weighted by the product of the ratios
    p(y) / p_old(y) of its row's earlier tokens, at most ``cap`` (truncated importance sampling). ``targets_N`` are the
    tokens, ``logprobs_N`` the natural log-probabilities they were sampled with, ``rows_N`` the row each belongs to:
    the tokens of a row are contiguous and in order. ``before_N`` is the sum of the log-ratios of a row's tokens before
    these, which are not part of the loss.

    ``spans_N`` is the merged span of each token (:class:`recovery.losses.spans.SpanScores`), -1 for other tokens. A
    span's term holds the ratio of the whole span, so each of its tokens is weighted by the tokens before the span.
    """

    targets_N: Tensor
    logprobs_N: Tensor
    rows_N: Tensor
    cap: float
    before_N: Tensor | None = None
    spans_N: Tensor | None = None

    @functools.cached_property
    def begins(self) -> Tensor:
        """Index of the first token of each token's row, [N]."""
        return _firsts(self.rows_N)

    @functools.cached_property
    def ends(self) -> Tensor:
        """Index up to which, exclusively, the tokens of its row count for each token: its own, or its span's, [N]."""
        at_N = torch.arange(len(self.rows_N), device=self.rows_N.device)
        return at_N if self.spans_N is None else _firsts(self.spans_N).where(self.spans_N >= 0, at_N)

    def check(self, tokens: int) -> None:
        """Raise UsageError if a tensor does not have one entry for each of ``tokens`` tokens, or the cap is not
        positive.
        """
        for name in ("targets_N", "logprobs_N", "rows_N", "before_N", "spans_N"):
            check_per_token(name, getattr(self, name), tokens)
        if not self.cap > 0.0:
            raise UsageError(f"--ratio-cap {self.cap} must be above 0")


def _firsts(group_N: Tensor) -> Tensor:
    """Return the index of the first token of each token's group; groups are contiguous."""
    at_N = torch.arange(len(group_N), device=group_N.device)
    new_N = torch.ones_like(group_N, dtype=torch.bool)
    new_N[1:] = group_N[1:] != group_N[:-1]
    return at_N.where(new_N, 0).cummax(0).values


def check_terms(terms: Sequence[Term], tokens: int, head: Head) -> None:
    """Raise an error if terms do not fit these tokens, this head or each other; see :meth:`Term.check`."""
    if not terms:
        raise UsageError("the loss has no term: give at least one")
    for term in terms:
        term.check(tokens, head)
    if sum(term.divergence == "policy_gradient" for term in terms) > 1:
        raise UsageError("the loss has two policy gradients: add up their advantages and give one")


def check_per_token(name: str, per_token: Tensor | None, tokens: int) -> None:
    """Raise UsageError if a tensor does not have one entry per token."""
    if per_token is not None and per_token.shape != (tokens,):
        raise UsageError(f"{name} has shape {tuple(per_token.shape)}: it needs one entry for each of {tokens} tokens")


def check_same_vocabulary(student: Head, teacher: Head) -> None:
    """Raise ModelError if two heads have different numbers of logits."""
    if teacher.vocabulary != student.vocabulary:
        raise ModelError(
            f"student and teacher heads have {student.vocabulary} and {teacher.vocabulary} logits: truncate the "
            "larger with Head.first if its extra entries are padding, or use a teacher with the same tokenizer"
        )
