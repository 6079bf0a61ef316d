"""The fused loss: projects hidden states to logits and evaluates the loss terms, chunk by chunk.

A plain full-vocabulary divergence holds student logits, teacher logits and their gradients for every token: several
arrays of N x V. Here value *and* gradient are computed in the forward pass, chunk by chunk, in two buffers that all
chunks share (and one more for each further teacher). Only the gradient with respect to the hidden states, N x D, is
kept for the backward pass (and, if the head itself is trained, one V x D array). A token costs three products with a
head (student, teacher, gradient), and a fourth if the head is trained; recomputing in the backward pass would cost
five. The student is projected and normalised once for all terms: each adds to one gradient with respect to the logits.

Within a chunk the softmaxes run over blocks of a few rows, small enough to stay in the processor's cache, always in
float32 (float64 for float64 inputs); the products run in the precision of the model, or of autocast if enabled.
On a GPU one kernel takes the place of the operations on the blocks, see :mod:`recovery.losses.kernels`.

The steps of one chunk are in :mod:`recovery.losses.fused_chunk`, the buffers in :mod:`recovery.losses.fused_state`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recovery.errors import UsageError
from recovery.losses import kernels
from recovery.losses.chunking import chunk_size, slices
from recovery.losses.fused_chunk import process_chunk
from recovery.losses.fused_state import Plan, Side, Totals, side_of
from recovery.losses.terms import BehaviourPolicy, Term, check_per_token, check_terms
from recovery.models.lm_head import Head


@dataclass(frozen=True)
class FusedOutput:
    """Output of the fused loss; all fields except ``loss`` are detached.

    Attributes:
        loss: the sum over tokens of the token's weight times the weighted sum of the terms (nats),
            differentiable.
        per_token_N: the weighted sum of the terms at each token, nats, before the token's weight.
        values_TN: each term's own value, in the given order and without its weight; here T counts terms.
        entropy_N: entropy of the student at each token, nats, at the temperature of the loss.
        grad_norm_N: norm of each row of ``gradient_ND``.
        gradient_ND: gradient of ``per_token_N`` with respect to the token's hidden state. The backward pass reads this
            buffer: do not modify it.
        ratio_N: the importance ratio of the policy gradient or of ``behaviour``, None without either.
        clipped_N: tokens whose gradient was clipped, or whose weight was capped; None without either.
        dropped_N: tokens dropped because of their ratio, None without a limit.
    """

    loss: Tensor
    per_token_N: Tensor
    values_TN: Tensor
    entropy_N: Tensor
    grad_norm_N: Tensor
    gradient_ND: Tensor
    ratio_N: Tensor | None = None
    clipped_N: Tensor | None = None
    dropped_N: Tensor | None = None


def fused_loss(
    hidden_ND: Tensor,
    head: Head,
    terms: Sequence[Term],
    *,
    temperature: float = 1.0,
    weights_N: Tensor | None = None,
    behaviour: BehaviourPolicy | None = None,
    chunk_tokens: int | None = None,
) -> FusedOutput:
    """Return the weighted sum of the terms over all tokens, without holding an N x V array.

    Args:
        hidden_ND: the student's final hidden states at the positions that count.
        head: the student's head; its weight and bias get gradients if they require them.
        terms: what the student is compared with; see :class:`recovery.losses.terms.Term`.
        temperature: divides the logits of all sides; value and gradient are those of the tempered
            distributions.
        weights_N: one weight per token, by default 1.
        behaviour: the sampling distribution, for importance weights; no gradient flows through them.
        chunk_tokens: tokens projected at once; by default chosen from the vocabulary size.

    Raises:
        UsageError: no term, a number out of range, or shapes that do not fit together.
        ModelError: two heads have vocabularies of different sizes.
    """
    if not temperature > 0.0:
        raise UsageError(f"temperature {temperature} must be above 0")
    if chunk_tokens is not None and chunk_tokens < 1:
        raise UsageError(f"chunk_tokens {chunk_tokens} must be at least 1")
    if hidden_ND.dim() != 2 or hidden_ND.shape[1] != head.width:
        raise UsageError(f"hidden states of shape {tuple(hidden_ND.shape)} do not fit a head of width {head.width}")
    check_per_token("weights_N", weights_N, hidden_ND.shape[0])
    check_terms(terms, hidden_ND.shape[0], head)
    if behaviour is not None:
        behaviour.check(hidden_ND.shape[0])
        if any(term.divergence == "policy_gradient" for term in terms):
            raise UsageError("a policy gradient has its own importance ratio: omit behaviour")
    dtype = _working_dtype(hidden_ND, head)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    in_one_kernel = behaviour is None and kernels.compute(terms, head, dtype, hidden_ND.device)
    largest = max(_vocabularies(terms, head))
    if chunk_tokens is None and in_one_kernel:
        chunk_tokens = kernels.chunk_size(largest, dtype, head.weight_VD.requires_grad)
    plan = Plan(
        tuple(terms), tuple(_teacher(term, head, dtype) for term in terms), temperature, head.scale, head.softcap,
        None if weights_N is None else weights_N.detach().to(wide), behaviour, dtype, wide,
        chunk_tokens or chunk_size(largest, dtype), in_one_kernel,
    )  # fmt: skip
    loss, values_TN, *others = _Fused.apply(hidden_ND, head.weight_VD, head.bias_V, plan)
    return FusedOutput(loss, plan.per_token(values_TN), values_TN, *others)


class _Fused(torch.autograd.Function):
    """Computes the gradients in the forward pass; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, plan: Plan
    ) -> tuple[Tensor | None, ...]:
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        with torch.autocast(hidden_ND.device.type, enabled=False):
            student = side_of(hidden_ND, Head(weight_VD, bias_V, plan.scale, plan.softcap), plan.dtype)
            totals = Totals(student, plan, hidden_ND.dtype, weight_VD if needs_weight else None,
                            bias_V if needs_bias else None)  # fmt: skip
            for rows in slices(hidden_ND.shape[0], plan.chunk):
                process_chunk(student, plan, totals, rows)
            per_token_N = plan.per_token(totals.value_TN)
            weights_N = totals.weights_N
            loss = per_token_N.sum() if weights_N is None else torch.dot(per_token_N, weights_N)
        ctx.hidden_grad = totals.gradient_ND if needs_hidden else None
        ctx.weights_N = weights_N
        ctx.head_grads = totals.head_gradients(weight_VD, bias_V)
        outputs = totals.outputs()
        ctx.mark_non_differentiable(*(output for output in outputs if output is not None))
        return loss, *outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_unused: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.head_grads is None:
            raise UsageError("the gradient of a trained head can be computed once: call fused_loss again")
        # The head's gradient may be the largest tensor of the step: it is scaled in place and passed on.
        weight_grad, bias_grad = (None if g is None else g.mul_(grad_loss) for g in ctx.head_grads)
        if weight_grad is not None or bias_grad is not None:
            ctx.head_grads = None
        hidden_grad = None
        if ctx.hidden_grad is not None:
            scale = grad_loss if ctx.weights_N is None else (ctx.weights_N * grad_loss).unsqueeze(-1)
            hidden_grad = ctx.hidden_grad * scale.to(ctx.hidden_grad.dtype)
        return hidden_grad, weight_grad, bias_grad, None


def _teacher(term: Term, head: Head, dtype: torch.dtype) -> Side | None:
    """Return the teacher of a term that compares whole distributions."""
    if not term.whole or term.teacher_hidden_NE is None:
        return None
    return side_of(term.teacher_hidden_NE, term.teacher_head or head, dtype)


def _vocabularies(terms: Sequence[Term], head: Head) -> Iterator[int]:
    """Yield the sizes of the vocabularies that are projected to: the student's and the teachers'."""
    yield head.vocabulary
    yield from (term.teacher_head.vocabulary for term in terms if term.whole and term.teacher_head is not None)


def _working_dtype(hidden_ND: Tensor, head: Head) -> torch.dtype:
    """Return the dtype of the products: autocast's if enabled, else the narrower of hidden states and head."""
    device = hidden_ND.device.type
    dtype = min(hidden_ND.dtype, head.weight_VD.dtype, key=lambda kind: kind.itemsize)
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    if dtype not in (torch.float64, torch.float32, torch.bfloat16):
        raise UsageError(f"the fused loss runs in float32 or bfloat16, not {dtype}: load the model in one of them")
    return dtype
