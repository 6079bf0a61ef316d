"""What one call of the fused loss holds: both sides, the settings of the call, and the buffers of all chunks."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from recovery.losses.chunking import block_rows
from recovery.losses.matmul import linear
from recovery.losses.terms import BehaviourPolicy, Term
from recovery.models.lm_head import Head


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
class Plan:
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
        """Remaining factor of the gradient with respect to raw logits, including the weight of a single term."""
        return self.scale / self.temperature * (self.terms[0].weight if len(self.terms) == 1 else 1.0)

    def weight(self, at: int) -> float:
        """Return the weight of a term's gradient within a block."""
        return 1.0 if len(self.terms) == 1 else self.terms[at].weight

    def per_token(self, values_TN: Tensor) -> Tensor:
        """Return the weighted sum of the terms at each token."""
        return torch.mv(values_TN.t(), values_TN.new_tensor([term.weight for term in self.terms]))


class Totals:
    """Buffers shared by all chunks, and the results."""

    def __init__(
        self, student: Side, plan: Plan, kept: torch.dtype, weight: Tensor | None, bias: Tensor | None
    ) -> None:
        tokens, width = student.hidden_ND.shape
        vocabulary = student.weight_VD.shape[0]
        device = student.hidden_ND.device
        chunk = min(plan.chunk, tokens)
        # The kernel needs no blocks.
        self.block = 0 if plan.in_one_kernel else block_rows(chunk, vocabulary, plan.wide, device)
        narrow = functools.partial(torch.empty, dtype=plan.dtype, device=device)
        wide = functools.partial(torch.zeros, dtype=plan.wide, device=device)
        self.student_NV = narrow(chunk, vocabulary)
        self.teachers_NV = {at: narrow(chunk, plan.entries(at)) for at in plan.whole}
        several = len(plan.whole) > 1
        # The kernel overwrites the student's logits with the gradient of a single divergence; several need them.
        self.kernel_NV = narrow(chunk, vocabulary) if plan.in_one_kernel and several else None
        self.work_NV = wide(self.block, vocabulary)
        # If the products run in a narrower dtype, blocks of logits are widened into separate buffers.
        widened = plan.dtype != plan.wide
        self.wide_student_NV = wide(self.block, vocabulary) if widened else None
        sizes = {plan.entries(at) for at in plan.whole} if widened else ()
        self.wide_teachers = {entries: wide(self.block, entries) for entries in sizes}
        # Each divergence overwrites the student's log-probabilities with its gradient: all but the last need a copy.
        self.copy_NV = wide(self.block, vocabulary) if several else None
        self.sum_NV = wide(self.block, vocabulary) if several else None
        self.value_TN = wide(len(plan.terms), tokens)
        self.entropy_N = wide(tokens)
        self.norm_N = wide(tokens)
        self.gradient_ND = wide(tokens, width, dtype=kept)
        self.weight_VD = None if weight is None else wide(vocabulary, width)
        self.bias_V = None if bias is None else wide(vocabulary)
        policy, weighed = plan.policy, plan.behaviour is not None
        self.ratio_N = wide(tokens) if weighed or policy is not None else None
        clips = weighed or (policy is not None and policy.clip is not None)
        self.clipped_N = wide(tokens, dtype=torch.bool) if clips else None
        # Token weights are multiplied by importance ratios block by block; ``summed_N`` are cumulative log-ratios.
        self.weights_N = plan.weights_N
        self.summed_N = wide(tokens + 1, dtype=torch.float64) if weighed else None
        if weighed:
            self.weights_N = torch.ones_like(self.entropy_N) if plan.weights_N is None else plan.weights_N.clone()
        self.dropped_N = None if policy is None or policy.drop is None else wide(tokens, dtype=torch.bool)

    def outputs(self) -> tuple[Tensor | None, ...]:
        """Return the fields of :class:`recovery.losses.fused.FusedOutput` after ``per_token_N``."""
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
