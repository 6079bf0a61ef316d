"""The fused loss: projects hidden states to logits and compares them with a teacher, chunk by chunk.

Naively, a full-vocabulary divergence holds student logits, teacher logits and their gradients for every
token: several arrays of N x V. Here value *and* gradient are formed in the forward pass, chunk by chunk, in
two buffers that every chunk reuses. What is kept for the backward pass is the gradient with respect to the
hidden states, N x D (and, where the head itself is trained, one V x D array). A token costs three products
with a head (student, teacher, gradient) and a fourth where the head is trained; recomputing in the backward
pass would cost five.

Within a chunk the softmaxes run over blocks of a few rows, small enough to stay in the processor's cache,
always in float32 (float64 for float64 inputs); the products run in the precision of the model, or of autocast
where it is on.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from recovery.errors import ModelError, UsageError
from recovery.objectives.divergences import divergence_, resolve_divergence
from recovery.objectives.heads import Head
from recovery.objectives.products import linear

Divergence = Literal["reverse_kl", "forward_kl", "jsd", "cross_entropy"]

# One buffer of logits: some of the outer cache of a processor where the vocabulary is small, and never fewer tokens
# than matrix products need to be efficient (narrower types need more of them).
_CHUNK_BYTES = 8 << 20
_MIN_CHUNK = 128
# One block of rows on a CPU: with its two companions it fits in the cache of a core or two.
_BLOCK_BYTES = 2 << 20
# Rows of the head whose gradient is formed at once where it is accumulated in a wider type than the
# product's.
_HEAD_TILE = 8192


@dataclass(frozen=True)
class FusedOutput:
    """What the fused loss returns.

    Attributes:
        loss: the sum over tokens of weight times divergence (nats), differentiable.
        per_token_N: the divergence of each token, nats, not weighted; detached, as are the two below.
        entropy_N: entropy of the student at each token, nats, at the temperature of the loss.
        grad_norm_N: norm of the gradient of each token's (not weighted) divergence with respect to its hidden
            state.
    """

    loss: Tensor
    per_token_N: Tensor
    entropy_N: Tensor
    grad_norm_N: Tensor


@dataclass(frozen=True)
class _Side:
    """One model's part of the comparison: hidden states and weights in the working type."""

    hidden_ND: Tensor
    weight_VD: Tensor
    bias_V: Tensor | None
    scale: float
    softcap: float | None

    def project(self, rows: slice, buffer_NV: Tensor) -> Tensor:
        """The head's product for some tokens, before scale and cap, in the buffer where the library can."""
        return linear(self.hidden_ND[rows], self.weight_VD, self.bias_V, buffer_NV)

    def shape_(self, logits_NV: Tensor, temperature: float, keep_slope: bool) -> Tensor | None:
        """Apply scale, soft cap and temperature in place; return the cap's slope 1 - tanh^2 where asked."""
        if self.softcap is None:
            if self.scale != temperature:
                logits_NV.mul_(self.scale / temperature)
            return None
        logits_NV.mul_(self.scale / self.softcap).tanh_()
        slope_NV = torch.square(logits_NV).neg_().add_(1.0) if keep_slope else None
        logits_NV.mul_(self.softcap / temperature)
        return slope_NV


@dataclass(frozen=True)
class _Plan:
    """Everything about one call that is not differentiated."""

    divergence: str
    beta: float
    temperature: float
    scale: float
    softcap: float | None
    teacher: _Side | None
    targets_N: Tensor | None
    weights_N: Tensor
    dtype: torch.dtype
    wide: torch.dtype
    chunk: int


def fused_loss(
    hidden_ND: Tensor,
    head: Head,
    *,
    divergence: Divergence = "reverse_kl",
    teacher_hidden_NE: Tensor | None = None,
    teacher_head: Head | None = None,
    targets_N: Tensor | None = None,
    beta: float = 0.5,
    temperature: float = 1.0,
    weights_N: Tensor | None = None,
    chunk_tokens: int | None = None,
) -> FusedOutput:
    """Sum over tokens of weight times the divergence between student and teacher, without ever holding N x V.

    Args:
        hidden_ND: the student's final hidden states at the positions that count.
        head: the student's head; its weight and bias get gradients where they require them.
        divergence: "reverse_kl", "forward_kl", "jsd" or "cross_entropy" (see
            :mod:`recovery.objectives.divergences`).
        teacher_hidden_NE: the teacher's hidden states at the same positions; its width may differ.
        teacher_head: the teacher's head, always frozen; the student's own where it is left out.
        targets_N: token ids, for the cross-entropy, which takes no teacher.
        beta: the mixture of the Jensen-Shannon divergence.
        temperature: divides the logits of both sides; value and gradient are those of the tempered
            distributions.
        weights_N: one weight a token, 1 where left out.
        chunk_tokens: tokens projected at once; chosen from the vocabulary size where left out.

    Raises:
        UsageError: an unknown divergence, a number out of range, or shapes that do not fit together.
        ModelError: the two heads have vocabularies of different sizes.
    """
    resolved = resolve_divergence(divergence, beta)
    if temperature <= 0.0:
        raise UsageError(f"temperature {temperature} must be above 0")
    if chunk_tokens is not None and chunk_tokens < 1:
        raise UsageError(f"chunk_tokens {chunk_tokens} must be at least 1")
    _check_shapes(hidden_ND, head, resolved, teacher_hidden_NE, teacher_head or head, targets_N, weights_N)
    dtype = _working_dtype(hidden_ND, head)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    tokens = hidden_ND.shape[0]
    teacher = None
    if resolved != "cross_entropy" and teacher_hidden_NE is not None:
        teacher = _side(teacher_hidden_NE.detach(), teacher_head or head, dtype)
    weights = hidden_ND.new_ones(tokens, dtype=wide) if weights_N is None else weights_N.detach().to(wide)
    plan = _Plan(
        resolved, beta, temperature, head.scale, head.softcap, teacher, targets_N, weights, dtype, wide,
        chunk_tokens or _chunk_size(head.vocabulary, dtype),
    )  # fmt: skip
    return FusedOutput(*_Fused.apply(hidden_ND, head.weight_VD, head.bias_V, plan))


class _Fused(torch.autograd.Function):
    """Forms the gradients in the forward pass; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, plan: _Plan
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        with torch.autocast(hidden_ND.device.type, enabled=False):
            student = _side(hidden_ND, Head(weight_VD, bias_V, plan.scale, plan.softcap), plan.dtype)
            totals = _Totals(student, plan, weight_VD if needs_weight else None, bias_V if needs_bias else None)
            for rows in _slices(hidden_ND.shape[0], plan.chunk):
                _chunk(student, plan, totals, rows)
        ctx.hidden_grad = totals.hidden_ND.to(hidden_ND.dtype) if needs_hidden else None
        ctx.head_grads = totals.head_gradients(weight_VD, bias_V)
        loss = torch.dot(totals.value_N, plan.weights_N)
        outputs = (totals.value_N, totals.entropy_N, totals.norm_N)
        ctx.mark_non_differentiable(*outputs)
        return loss, *outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_unused: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.head_grads is None:
            raise UsageError("the gradient of a trained head can be taken once: call fused_loss again")
        # The head's gradient may be the largest tensor of the step: it is scaled in place and handed over.
        weight_grad, bias_grad = (None if g is None else g.mul_(grad_loss) for g in ctx.head_grads)
        if weight_grad is not None or bias_grad is not None:
            ctx.head_grads = None
        hidden_grad = None if ctx.hidden_grad is None else ctx.hidden_grad * grad_loss.to(ctx.hidden_grad.dtype)
        return hidden_grad, weight_grad, bias_grad, None


class _Totals:
    """Buffers that chunks share, and the results they fill in."""

    def __init__(self, student: _Side, plan: _Plan, weight: Tensor | None, bias: Tensor | None) -> None:
        tokens, width = student.hidden_ND.shape
        vocabulary = student.weight_VD.shape[0]
        device = student.hidden_ND.device
        chunk = min(plan.chunk, tokens)
        block = _block_rows(chunk, vocabulary, plan.wide, device)
        narrow = functools.partial(torch.empty, dtype=plan.dtype, device=device)
        wide = functools.partial(torch.zeros, dtype=plan.wide, device=device)
        self.student_NV = narrow(chunk, vocabulary)
        self.teacher_NV = None if plan.teacher is None else narrow(chunk, vocabulary)
        self.block = block
        self.work_NV = wide(block, vocabulary)
        # Where the products run in a narrower type, blocks of logits are widened into buffers of their own.
        widened = plan.dtype != plan.wide
        self.wide_student_NV = wide(block, vocabulary) if widened else None
        self.wide_teacher_NV = wide(block, vocabulary) if widened and plan.teacher is not None else None
        self.value_N = wide(tokens)
        self.entropy_N = wide(tokens)
        self.norm_N = wide(tokens)
        self.hidden_ND = wide(tokens, width)
        self.weight_VD = None if weight is None else wide(vocabulary, width)
        self.bias_V = None if bias is None else wide(vocabulary)

    def head_gradients(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The accumulated gradients in the types of the parameters they belong to."""
        weight_grad = None if self.weight_VD is None else self.weight_VD.to(weight.dtype)
        bias_grad = None if self.bias_V is None or bias is None else self.bias_V.to(bias.dtype)
        return weight_grad, bias_grad


def _chunk(student: _Side, plan: _Plan, totals: _Totals, rows: slice) -> None:
    """One chunk of tokens: logits of both sides, divergence block by block, gradients."""
    count = rows.stop - rows.start
    logits_NV = student.project(rows, totals.student_NV[:count])
    teacher_NV = None
    if plan.teacher is not None and totals.teacher_NV is not None:
        teacher_NV = plan.teacher.project(rows, totals.teacher_NV[:count])
    for part in _slices(count, totals.block):
        _block(student, plan, totals, logits_NV[part], None if teacher_NV is None else teacher_NV[part],
               slice(rows.start + part.start, rows.start + part.stop))  # fmt: skip
    factor = plan.scale / plan.temperature
    grad_ND = linear(logits_NV, student.weight_VD.t(), None).to(plan.wide).mul_(factor)
    torch.linalg.vector_norm(grad_ND, dim=-1, out=totals.norm_N[rows])
    weights_N1 = plan.weights_N[rows].unsqueeze(-1)
    torch.mul(grad_ND, weights_N1, out=totals.hidden_ND[rows])
    if totals.bias_V is not None:
        totals.bias_V += torch.mv(logits_NV.t(), plan.weights_N[rows].mul(factor).to(plan.dtype))
    if totals.weight_VD is not None:
        scaled_ND = (student.hidden_ND[rows] * weights_N1.mul(factor)).to(plan.dtype)
        _accumulate(totals.weight_VD, logits_NV, scaled_ND)


def _block(
    student: _Side, plan: _Plan, totals: _Totals, logits_NV: Tensor, teacher_NV: Tensor | None, rows: slice
) -> None:
    """A few rows: raw logits become the gradient with respect to them, but for scale/temperature."""
    count = logits_NV.shape[0]
    wide_NV = logits_NV
    if totals.wide_student_NV is not None:
        wide_NV = totals.wide_student_NV[:count].copy_(logits_NV)
    slope_NV = student.shape_(wide_NV, plan.temperature, keep_slope=True)
    other = None if plan.targets_N is None else plan.targets_N[rows]
    if teacher_NV is not None and plan.teacher is not None:
        other = teacher_NV
        if totals.wide_teacher_NV is not None:
            other = totals.wide_teacher_NV[:count].copy_(teacher_NV)
        plan.teacher.shape_(other, plan.temperature, keep_slope=False)
    assert other is not None  # _check_shapes saw to it
    value_N, entropy_N = divergence_(plan.divergence, wide_NV, other, totals.work_NV[:count], plan.beta)
    totals.value_N[rows] = value_N
    totals.entropy_N[rows] = entropy_N
    if slope_NV is not None:
        wide_NV *= slope_NV
    if wide_NV is not logits_NV:
        logits_NV.copy_(wide_NV)


def _accumulate(total_VD: Tensor, grad_NV: Tensor, hidden_ND: Tensor) -> None:
    """Add grad^T hidden to a head's gradient, some rows at a time: the product is never held whole."""
    for rows in _slices(total_VD.shape[0], _HEAD_TILE):
        total_VD[rows] += linear(grad_NV[:, rows].t(), hidden_ND.t(), None)


def _side(hidden_ND: Tensor, head: Head, dtype: torch.dtype) -> _Side:
    bias_V = None if head.bias_V is None else head.bias_V.detach().to(dtype)
    weight_VD = head.weight_VD.detach().to(dtype)
    return _Side(hidden_ND.detach().to(dtype).contiguous(), weight_VD, bias_V, head.scale, head.softcap)


def _slices(total: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


def _working_dtype(hidden_ND: Tensor, head: Head) -> torch.dtype:
    """The type the products run in: autocast's where on, else the narrower of hidden states and head."""
    device = hidden_ND.device.type
    dtype = min(hidden_ND.dtype, head.weight_VD.dtype, key=lambda kind: kind.itemsize)
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    if dtype not in (torch.float64, torch.float32, torch.bfloat16):
        raise UsageError(f"the fused loss runs in float32 or bfloat16, not {dtype}: load the model in one of those")
    return dtype


def _chunk_size(vocabulary: int, dtype: torch.dtype) -> int:
    """Tokens a chunk: multiples of the smallest efficient chunk, one buffer of logits within its budget."""
    smallest = _MIN_CHUNK * 4 // min(dtype.itemsize, 4)
    return max(1, _CHUNK_BYTES // (vocabulary * dtype.itemsize * smallest)) * smallest


def _block_rows(chunk: int, vocabulary: int, dtype: torch.dtype, device: torch.device) -> int:
    """Rows a block: what fits in cache on a CPU; the whole chunk elsewhere, where launches cost."""
    if device.type != "cpu":
        return chunk
    return max(1, min(chunk, _BLOCK_BYTES // (vocabulary * dtype.itemsize)))


def _check_shapes(
    hidden_ND: Tensor,
    head: Head,
    divergence: str,
    teacher_hidden_NE: Tensor | None,
    teacher_head: Head,
    targets_N: Tensor | None,
    weights_N: Tensor | None,
) -> None:
    """Refuse in one line what would otherwise fail, or broadcast, deep inside."""
    if hidden_ND.dim() != 2 or hidden_ND.shape[1] != head.width:
        raise UsageError(f"hidden states of shape {tuple(hidden_ND.shape)} do not fit a head of width {head.width}")
    tokens = hidden_ND.shape[0]
    for name, per_token in (("targets_N", targets_N), ("weights_N", weights_N)):
        if per_token is not None and per_token.shape != (tokens,):
            raise UsageError(
                f"{name} has shape {tuple(per_token.shape)}: it needs one entry for each of {tokens} tokens"
            )
    if divergence == "cross_entropy":
        if targets_N is None:
            raise UsageError("the cross-entropy needs targets_N, a token id for each hidden state")
        return
    if teacher_hidden_NE is None:
        raise UsageError(f"divergence {divergence!r} needs teacher_hidden_NE")
    if teacher_hidden_NE.shape != (tokens, teacher_head.width):
        raise UsageError(
            f"teacher hidden states of shape {tuple(teacher_hidden_NE.shape)} do not fit {tokens} tokens and "
            f"a teacher head of width {teacher_head.width}"
        )
    if teacher_head.vocabulary != head.vocabulary:
        raise ModelError(
            f"student and teacher heads give {head.vocabulary} and {teacher_head.vocabulary} logits: cut the "
            "larger with Head.first where its extra entries are padding, or take a teacher of its tokenizer"
        )
