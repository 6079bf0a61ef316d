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
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recovery.errors import UsageError
from recovery.losses import kernels
from recovery.losses.dense import divergence_, softmaxes_
from recovery.losses.kernels import linear
from recovery.losses.sparse import Sparse, cross_entropy, importance_ratio, policy_gradient, score_function, top_k
from recovery.losses.terms import BehaviourPolicy, Term, check_per_token, check_terms, grouped_divergence_
from recovery.models.lm_head import Head

# Sizes of the chunks and blocks that the fused loss works in: how many tokens are projected to logits at once.

# Size of one buffer of logits. For a small vocabulary it is part of the processor's last-level cache. It never holds
# fewer tokens than matrix products need to be efficient (narrower types need more). With four times as many tokens the
# products of a head's gradient are twice as fast; they are used if the buffer then stays below the larger size.
_CHUNK_BYTES = 8 << 20
_LARGE_CHUNK_BYTES = 128 << 20
_MIN_CHUNK = 128
# One block of rows on a CPU: three such buffers fit in the cache of one or two cores.
_BLOCK_BYTES = 2 << 20


def slices(total: int, size: int) -> Iterator[slice]:
    """Yield slices of ``size`` over ``total`` items."""
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


def chunk_size(vocabulary: int, dtype: torch.dtype) -> int:
    """Return the tokens per chunk: a multiple of the smallest efficient chunk, within the budgets of one buffer."""
    smallest = _MIN_CHUNK * 4 // min(dtype.itemsize, 4)
    cached, large = (
        budget // (vocabulary * dtype.itemsize * smallest) for budget in (_CHUNK_BYTES, _LARGE_CHUNK_BYTES)
    )
    return max(1, cached, min(4, large)) * smallest


def block_rows(chunk: int, vocabulary: int, dtype: torch.dtype, device: torch.device) -> int:
    """Return the rows per block: what fits in the cache on a CPU; the whole chunk elsewhere, to save kernel
    launches.
    """
    if device.type != "cpu":
        return chunk
    return max(1, min(chunk, _BLOCK_BYTES // (vocabulary * dtype.itemsize)))


@dataclass(frozen=True)
class Side:
    """Student or teacher: hidden states and head weights in the working dtype."""

    hidden_ND: Tensor
    weight_VD: Tensor
    bias_V: Tensor | None
    scale: float
    softcap: float | None

    def project(self, rows: slice, buffer_NV: Tensor) -> Tensor:
        """Return the head's product for some tokens, before scale and cap, in the buffer if the library supports it."""
        return linear(self.hidden_ND[rows], self.weight_VD, self.bias_V, buffer_NV)

    def shape_(self, logits_NV: Tensor, temperature: float, keep_slope: bool) -> Tensor | None:
        """Apply scale, soft cap and temperature in place; return the cap's slope 1 - tanh^2 if ``keep_slope``."""
        if self.softcap is None:
            if self.scale != temperature:
                logits_NV.mul_(self.scale / temperature)
            return None
        logits_NV.mul_(self.scale / self.softcap).tanh_()
        slope_NV = torch.square(logits_NV).neg_().add_(1.0) if keep_slope else None
        logits_NV.mul_(self.softcap / temperature)
        return slope_NV


@dataclass(frozen=True)
class CallSettings:
    """The arguments of one call that are not differentiated. ``sides`` holds the teacher of each whole term."""

    terms: tuple[Term, ...]
    sides: tuple[Side | None, ...]
    temperature: float
    scale: float
    softcap: float | None
    weights_N: Tensor | None
    behaviour: BehaviourPolicy | None
    dtype: torch.dtype
    wide: torch.dtype
    chunk: int
    in_one_kernel: bool

    @functools.cached_property
    def whole(self) -> tuple[int, ...]:
        """The terms that compare whole distributions."""
        return tuple(at for at, term in enumerate(self.terms) if term.whole)

    @functools.cached_property
    def policy(self) -> Term | None:
        """The policy gradient, where there is one."""
        return next((term for term in self.terms if term.divergence == "policy_gradient"), None)

    def entries(self, at: int) -> int:
        """Return the size of a term's teacher's vocabulary."""
        side = self.sides[at]
        assert side is not None  # every whole term has a teacher
        return side.weight_VD.shape[0]

    @property
    def factor(self) -> float:
        """Factor that the gradient with respect to raw logits still lacks.

        The weight of a single term is in it: it then scales the gradient [N, D], not the V / D times larger [N, V].
        """
        return self.scale / self.temperature * (self.terms[0].weight if len(self.terms) == 1 else 1.0)

    def weight(self, at: int) -> float:
        """Return the weight of a term's gradient within a block: 1 for a single one, whose weight is in ``factor``."""
        return 1.0 if len(self.terms) == 1 else self.terms[at].weight

    def per_token(self, values_TN: Tensor) -> Tensor:
        """Return the weighted sum of the terms at each token."""
        return torch.mv(values_TN.t(), values_TN.new_tensor([term.weight for term in self.terms]))


class Totals:
    """Buffers shared by all chunks, and the results."""

    def __init__(
        self, student: Side, call: CallSettings, kept: torch.dtype, weight: Tensor | None, bias: Tensor | None
    ) -> None:
        tokens, width = student.hidden_ND.shape
        vocabulary = student.weight_VD.shape[0]
        device = student.hidden_ND.device
        chunk = min(call.chunk, tokens)
        # The kernel needs no blocks.
        self.block = 0 if call.in_one_kernel else block_rows(chunk, vocabulary, call.wide, device)
        # Scratch in the dtype of the products; results and sums in the wider one, zero before the first chunk.
        narrow = functools.partial(torch.empty, dtype=call.dtype, device=device)
        wide = functools.partial(torch.zeros, dtype=call.wide, device=device)
        self.student_NV = narrow(chunk, vocabulary)
        self.teachers_NV = {at: narrow(chunk, call.entries(at)) for at in call.whole}
        several = len(call.whole) > 1
        # The kernel overwrites the student's logits with the gradient of a single divergence; several need them.
        self.kernel_NV = narrow(chunk, vocabulary) if call.in_one_kernel and several else None
        self.work_NV = wide(self.block, vocabulary)
        # If the products run in a narrower dtype, blocks of logits are widened into separate buffers.
        widened = call.dtype != call.wide
        self.wide_student_NV = wide(self.block, vocabulary) if widened else None
        sizes = {call.entries(at) for at in call.whole} if widened else ()
        self.wide_teachers = {entries: wide(self.block, entries) for entries in sizes}
        # Each divergence overwrites the student's log-probabilities with its gradient: all but the last need a copy.
        self.copy_NV = wide(self.block, vocabulary) if several else None
        self.sum_NV = wide(self.block, vocabulary) if several else None
        self.value_TN = wide(len(call.terms), tokens)
        self.entropy_N = wide(tokens)
        self.norm_N = wide(tokens)
        self.gradient_ND = wide(tokens, width, dtype=kept)
        self.weight_VD = None if weight is None else wide(vocabulary, width)
        self.bias_V = None if bias is None else wide(vocabulary)
        policy, weighed = call.policy, call.behaviour is not None
        self.ratio_N = wide(tokens) if weighed or policy is not None else None
        clips = weighed or (policy is not None and policy.clip is not None)
        self.clipped_N = wide(tokens, dtype=torch.bool) if clips else None
        # Token weights are multiplied by importance ratios block by block; ``summed_N`` are cumulative log-ratios.
        self.weights_N = call.weights_N
        self.summed_N = wide(tokens + 1, dtype=torch.float64) if weighed else None
        if weighed:
            self.weights_N = torch.ones_like(self.entropy_N) if call.weights_N is None else call.weights_N.clone()
        self.dropped_N = None if policy is None or policy.drop is None else wide(tokens, dtype=torch.bool)

    def outputs(self) -> tuple[Tensor | None, ...]:
        """Return the fields of :class:`FusedOutput` after ``per_token_N``."""
        policy = (self.ratio_N, self.clipped_N, self.dropped_N)
        return self.value_TN, self.entropy_N, self.norm_N, self.gradient_ND, *policy

    def head_gradients(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Return the accumulated gradients in the dtypes of their parameters."""
        weight_grad = None if self.weight_VD is None else self.weight_VD.to(weight.dtype)
        bias_grad = None if self.bias_V is None or bias is None else self.bias_V.to(bias.dtype)
        return weight_grad, bias_grad


def side_of(hidden_ND: Tensor, head: Head, dtype: torch.dtype) -> Side:
    """Return hidden states and their head, both without gradient, in the working dtype."""
    bias_V = None if head.bias_V is None else head.bias_V.detach().to(dtype)
    weight_VD = head.weight_VD.detach().to(dtype)
    return Side(hidden_ND.detach().to(dtype).contiguous(), weight_VD, bias_V, head.scale, head.softcap)


# One chunk of the fused loss: from hidden states to logits, terms, and the gradient of the hidden states.
# :func:`process_chunk` is called for every chunk of :func:`fused_loss`.

# Rows of the head whose gradient is computed at once if it is accumulated in a wider type than the product's.
_HEAD_TILE = 8192


def process_chunk(student: Side, call: CallSettings, totals: Totals, rows: slice) -> None:
    """Process one chunk of tokens: logits of all sides, the terms block by block, gradients."""
    count = rows.stop - rows.start
    logits_NV = student.project(rows, totals.student_NV[:count])
    teachers_NV = {
        at: side.project(rows, totals.teachers_NV[at][:count]) for at, side in enumerate(call.sides) if side is not None
    }
    if call.in_one_kernel:
        logits_NV = _kernel(student, call, totals, logits_NV, teachers_NV, rows)
    else:
        for part in slices(count, totals.block):
            _block(student, call, totals, logits_NV[part], {at: whole[part] for at, whole in teachers_NV.items()},
                   slice(rows.start + part.start, rows.start + part.stop))  # fmt: skip
    grad_ND = linear(logits_NV, student.weight_VD.t(), None).to(call.wide).mul_(call.factor)
    torch.linalg.vector_norm(grad_ND, dim=-1, out=totals.norm_N[rows])
    totals.gradient_ND[rows] = grad_ND
    if totals.bias_V is None and totals.weight_VD is None:
        return
    scales_N = grad_ND.new_ones(count) if totals.weights_N is None else totals.weights_N[rows]
    scales_N = scales_N * call.factor
    if totals.bias_V is not None:
        totals.bias_V += torch.mv(logits_NV.t(), scales_N.to(call.dtype))
    if totals.weight_VD is not None:
        scaled_ND = (student.hidden_ND[rows] * scales_N.unsqueeze(-1)).to(call.dtype)
        _accumulate(totals.weight_VD, logits_NV, scaled_ND)


def _kernel(
    student: Side, call: CallSettings, totals: Totals, logits_NV: Tensor, teachers_NV: dict[int, Tensor], rows: slice
) -> Tensor:
    """Return the gradient with respect to the logits of a chunk, without the call's factor."""
    gradient_NV = logits_NV if totals.kernel_NV is None else totals.kernel_NV[: len(logits_NV)]
    for at, teacher_NV in teachers_NV.items():
        term, side = call.terms[at], call.sides[at]
        assert side is not None
        kernels.divergence_(
            term.resolved,
            logits_NV,
            teacher_NV,
            gradient_NV,
            totals.value_TN[at, rows],
            totals.entropy_N[rows],
            scales=(student.scale / call.temperature, side.scale / call.temperature),
            beta=term.beta,
            weight=call.weight(at),
            add=at > 0,
        )
    return gradient_NV


def _block(
    student: Side, call: CallSettings, totals: Totals, logits_NV: Tensor, teachers_NV: dict[int, Tensor], rows: slice
) -> None:
    """Process a few rows: raw logits become the gradient with respect to them, without the call's factor."""
    count = logits_NV.shape[0]
    wide_NV = logits_NV
    if totals.wide_student_NV is not None:
        wide_NV = totals.wide_student_NV[:count].copy_(logits_NV)
    slope_NV = student.shape_(wide_NV, call.temperature, keep_slope=True)
    # log_p_NV is wide_NV, and from here on becomes the gradient: the first term overwrites it, the others add.
    log_p_NV, p_NV, totals.entropy_N[rows] = softmaxes_(wide_NV, totals.work_NV[:count])
    _weigh(call.behaviour, totals, log_p_NV, rows)
    # Sparse terms read the log-probabilities, which the whole divergences overwrite.
    sparse = {at: _sparse(term, totals, p_NV, log_p_NV, rows) for at, term in enumerate(call.terms) if not term.whole}
    if call.whole:
        _whole(call, totals, p_NV, log_p_NV, teachers_NV, rows)
    for at, found in sparse.items():
        totals.value_TN[at, rows] = found.value_N
        if call.whole or at > 0:
            found.add_to_(wide_NV, p_NV, call.weight(at))
        else:
            found.write_to_(wide_NV, p_NV, call.weight(at))
    if slope_NV is not None:
        wide_NV *= slope_NV
    if wide_NV is not logits_NV:
        logits_NV.copy_(wide_NV)


def _weigh(behaviour: BehaviourPolicy | None, totals: Totals, log_p_NV: Tensor, rows: slice) -> None:
    """Compute the importance ratios of a few tokens, and multiply each token's weight by those of the earlier tokens of
    its row; for a token of a merged span, by those of the tokens before the span.
    """
    if behaviour is None:
        return
    assert totals.ratio_N is not None and totals.clipped_N is not None and totals.weights_N is not None
    assert totals.summed_N is not None
    log_p_N = log_p_NV.gather(-1, behaviour.targets_N[rows].unsqueeze(-1)).squeeze(-1)
    # w_t = min(cap, prod_{s < t} r_s) with r_s = p(y_s) / p_old(y_s), over the earlier tokens of a row
    ratio_N = importance_ratio(log_p_N, behaviour.logprobs_N[rows])
    totals.ratio_N[rows] = ratio_N
    begin, end = rows.start, rows.stop
    totals.summed_N[begin + 1 : end + 1] = totals.summed_N[begin] + ratio_N.double().log_().cumsum(0)
    before_N = totals.summed_N[behaviour.ends[rows]] - totals.summed_N[behaviour.begins[rows]]
    if behaviour.before_N is not None:
        before_N = before_N + behaviour.before_N[rows]
    totals.clipped_N[rows] = before_N > math.log(behaviour.cap)
    totals.weights_N[rows] *= before_N.exp_().clamp_(max=behaviour.cap)


def _whole(
    call: CallSettings, totals: Totals, p_NV: Tensor, log_p_NV: Tensor, teachers_NV: dict[int, Tensor], rows: slice
) -> None:
    """Evaluate the divergences between distributions; ``log_p_NV`` becomes the weighted sum of their gradients.

    sum_t w_t dD_t/dlogits, [N, V]: computing D_t turns the log p that it is given into its gradient, so every term but
    the last gets a copy.
    """
    count = log_p_NV.shape[0]
    sum_NV = None if totals.sum_NV is None else totals.sum_NV[:count].zero_()
    for at in call.whole:
        term, weight = call.terms[at], call.weight(at)
        teacher_NV = _shaped(call.sides[at], call, totals, teachers_NV[at])
        last = at == call.whole[-1]
        work_NV = log_p_NV if last or totals.copy_NV is None else totals.copy_NV[:count].copy_(log_p_NV)
        totals.value_TN[at, rows] = _compared(term, p_NV, work_NV, teacher_NV, rows)
        if not last and sum_NV is not None:
            sum_NV.add_(work_NV, alpha=weight)
        elif sum_NV is not None:
            torch.add(sum_NV, work_NV, alpha=weight, out=log_p_NV)
        elif weight != 1.0:
            work_NV *= weight


def _compared(term: Term, p_NV: Tensor, log_p_NV: Tensor, teacher_NV: Tensor, rows: slice) -> Tensor:
    """Return a term's divergence per position, 0 where it is not active; ``log_p_NV`` becomes the gradient."""
    if term.outcomes is None:
        value_N = divergence_(term.resolved, p_NV, log_p_NV, teacher_NV, term.options)
    else:
        value_N = grouped_divergence_(term.resolved, p_NV, log_p_NV, teacher_NV, term.outcomes, term.options)
    if term.active_N is not None:
        log_p_NV *= term.active_N[rows].unsqueeze(-1)
        value_N = value_N.masked_fill(~term.active_N[rows], 0.0)
    return value_N


def _shaped(side: Side | None, call: CallSettings, totals: Totals, teacher_NV: Tensor) -> Tensor:
    """Return a teacher's logits of a few rows over the temperature, in the wide dtype."""
    assert side is not None  # every whole term has a teacher
    if (wide_NV := totals.wide_teachers.get(teacher_NV.shape[1])) is not None:
        teacher_NV = wide_NV[: teacher_NV.shape[0]].copy_(teacher_NV)
    side.shape_(teacher_NV, call.temperature, keep_slope=False)
    return teacher_NV


def _sparse(term: Term, totals: Totals, p_NV: Tensor, log_p_NV: Tensor, rows: slice) -> Sparse:
    """Evaluate a term on a few vocabulary entries, for a few rows of tokens."""
    if term.divergence == "top_k":
        assert term.top_ids_NK is not None and term.top_logprobs_NK is not None  # checked by Term
        return top_k(p_NV, log_p_NV, term.top_ids_NK[rows], term.top_logprobs_NK[rows], reverse=term.reverse)
    assert term.targets_N is not None
    if term.divergence == "cross_entropy":
        return cross_entropy(p_NV, log_p_NV, term.targets_N[rows])
    assert term.advantages_N is not None
    if term.divergence == "span":
        assert term.values_N is not None
        return score_function(p_NV, term.targets_N[rows], term.advantages_N[rows], term.values_N[rows])
    assert totals.ratio_N is not None
    old_N = None if term.old_logprobs_N is None else term.old_logprobs_N[rows]
    found = policy_gradient(p_NV, log_p_NV, term.targets_N[rows], term.advantages_N[rows], old_N, term.clip, term.drop)
    totals.ratio_N[rows] = found.ratio_N
    if totals.clipped_N is not None:
        totals.clipped_N[rows] = found.clipped_N
    if totals.dropped_N is not None:
        totals.dropped_N[rows] = found.dropped_N
    return found.sparse


def _accumulate(total_VD: Tensor, grad_NV: Tensor, hidden_ND: Tensor) -> None:
    """Add grad^T hidden to a head's gradient, some rows at a time, so that the full product is never held."""
    for rows in slices(total_VD.shape[0], _HEAD_TILE):
        total_VD[rows] += linear(grad_NV[:, rows].t(), hidden_ND.t(), None)


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
    call = CallSettings(
        tuple(terms), tuple(_teacher(term, head, dtype) for term in terms), temperature, head.scale, head.softcap,
        None if weights_N is None else weights_N.detach().to(wide), behaviour, dtype, wide,
        chunk_tokens or chunk_size(largest, dtype), in_one_kernel,
    )  # fmt: skip
    loss, values_TN, *others = _Fused.apply(hidden_ND, head.weight_VD, head.bias_V, call)
    return FusedOutput(loss, call.per_token(values_TN), values_TN, *others)


class _Fused(torch.autograd.Function):
    """Computes the gradients in the forward pass; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, call: CallSettings
    ) -> tuple[Tensor | None, ...]:
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        with torch.autocast(hidden_ND.device.type, enabled=False):
            student = side_of(hidden_ND, Head(weight_VD, bias_V, call.scale, call.softcap), call.dtype)
            totals = Totals(student, call, hidden_ND.dtype, weight_VD if needs_weight else None,
                            bias_V if needs_bias else None)  # fmt: skip
            for rows in slices(hidden_ND.shape[0], call.chunk):
                process_chunk(student, call, totals, rows)
            per_token_N = call.per_token(totals.value_TN)
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
