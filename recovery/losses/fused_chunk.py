"""One chunk of the fused loss: from hidden states to logits, terms, and the gradient of the hidden states.

:func:`process_chunk` is called for every chunk of :func:`recovery.losses.fused.fused_loss`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from recovery.losses import kernels
from recovery.losses.chunking import slices
from recovery.losses.dense import divergence_, softmaxes_
from recovery.losses.fused_state import Plan, Side, Totals
from recovery.losses.matmul import linear
from recovery.losses.outcomes import grouped_divergence_
from recovery.losses.sparse import Sparse, cross_entropy, importance_ratio, policy_gradient, score_function, top_k
from recovery.losses.terms import BehaviourPolicy, Term

# Rows of the head whose gradient is computed at once if it is accumulated in a wider type than the product's.
_HEAD_TILE = 8192


def process_chunk(student: Side, plan: Plan, totals: Totals, rows: slice) -> None:
    """Process one chunk of tokens: logits of all sides, the terms block by block, gradients."""
    count = rows.stop - rows.start
    logits_NV = student.project(rows, totals.student_NV[:count])
    teachers_NV = {
        at: side.project(rows, totals.teachers_NV[at][:count]) for at, side in enumerate(plan.sides) if side is not None
    }
    if plan.in_one_kernel:
        logits_NV = _kernel(student, plan, totals, logits_NV, teachers_NV, rows)
    else:
        for part in slices(count, totals.block):
            _block(student, plan, totals, logits_NV[part], {at: whole[part] for at, whole in teachers_NV.items()},
                   slice(rows.start + part.start, rows.start + part.stop))  # fmt: skip
    grad_ND = linear(logits_NV, student.weight_VD.t(), None).to(plan.wide).mul_(plan.factor)
    torch.linalg.vector_norm(grad_ND, dim=-1, out=totals.norm_N[rows])
    totals.gradient_ND[rows] = grad_ND
    if totals.bias_V is None and totals.weight_VD is None:
        return
    scales_N = grad_ND.new_ones(count) if totals.weights_N is None else totals.weights_N[rows]
    scales_N = scales_N * plan.factor
    if totals.bias_V is not None:
        totals.bias_V += torch.mv(logits_NV.t(), scales_N.to(plan.dtype))
    if totals.weight_VD is not None:
        scaled_ND = (student.hidden_ND[rows] * scales_N.unsqueeze(-1)).to(plan.dtype)
        _accumulate(totals.weight_VD, logits_NV, scaled_ND)


def _kernel(
    student: Side, plan: Plan, totals: Totals, logits_NV: Tensor, teachers_NV: dict[int, Tensor], rows: slice
) -> Tensor:
    """Return the gradient with respect to the logits of a chunk, without the plan's factor."""
    gradient_NV = logits_NV if totals.kernel_NV is None else totals.kernel_NV[: len(logits_NV)]
    for at, teacher_NV in teachers_NV.items():
        term, side = plan.terms[at], plan.sides[at]
        assert side is not None
        kernels.divergence_(
            term.resolved,
            logits_NV,
            teacher_NV,
            gradient_NV,
            totals.value_TN[at, rows],
            totals.entropy_N[rows],
            scales=(student.scale / plan.temperature, side.scale / plan.temperature),
            beta=term.beta,
            weight=plan.weight(at),
            add=at > 0,
        )
    return gradient_NV


def _block(
    student: Side, plan: Plan, totals: Totals, logits_NV: Tensor, teachers_NV: dict[int, Tensor], rows: slice
) -> None:
    """Process a few rows: raw logits become the gradient with respect to them, without the plan's factor."""
    count = logits_NV.shape[0]
    wide_NV = logits_NV
    if totals.wide_student_NV is not None:
        wide_NV = totals.wide_student_NV[:count].copy_(logits_NV)
    slope_NV = student.shape_(wide_NV, plan.temperature, keep_slope=True)
    log_p_NV, p_NV, totals.entropy_N[rows] = softmaxes_(wide_NV, totals.work_NV[:count])
    _weigh(plan.behaviour, totals, log_p_NV, rows)
    # Sparse terms read the log-probabilities, which the whole divergences overwrite.
    sparse = {at: _sparse(term, totals, p_NV, log_p_NV, rows) for at, term in enumerate(plan.terms) if not term.whole}
    if plan.whole:
        _whole(plan, totals, p_NV, log_p_NV, teachers_NV, rows)
    for at, found in sparse.items():
        totals.value_TN[at, rows] = found.value_N
        if plan.whole or at > 0:
            found.add_to_(wide_NV, p_NV, plan.weight(at))
        else:
            found.write_to_(wide_NV, p_NV, plan.weight(at))
    if slope_NV is not None:
        wide_NV *= slope_NV
    if wide_NV is not logits_NV:
        logits_NV.copy_(wide_NV)


def _weigh(behaviour: BehaviourPolicy | None, totals: Totals, log_p_NV: Tensor, rows: slice) -> None:
    """Compute the importance ratios of a few tokens; multiply each weight by the ratios of earlier tokens of its
    row, of those before its span within one.
    """
    if behaviour is None:
        return
    assert totals.ratio_N is not None and totals.clipped_N is not None and totals.weights_N is not None
    assert totals.summed_N is not None
    log_p_N = log_p_NV.gather(-1, behaviour.targets_N[rows].unsqueeze(-1)).squeeze(-1)
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
    plan: Plan, totals: Totals, p_NV: Tensor, log_p_NV: Tensor, teachers_NV: dict[int, Tensor], rows: slice
) -> None:
    """Evaluate the divergences between distributions; ``log_p_NV`` becomes the weighted sum of their gradients."""
    count = log_p_NV.shape[0]
    sum_NV = None if totals.sum_NV is None else totals.sum_NV[:count].zero_()
    for at in plan.whole:
        term, weight = plan.terms[at], plan.weight(at)
        teacher_NV = _shaped(plan.sides[at], plan, totals, teachers_NV[at])
        last = at == plan.whole[-1]
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


def _shaped(side: Side | None, plan: Plan, totals: Totals, teacher_NV: Tensor) -> Tensor:
    """Return a teacher's logits of a few rows over the temperature, in the wide dtype."""
    assert side is not None  # every whole term has a teacher
    if (wide_NV := totals.wide_teachers.get(teacher_NV.shape[1])) is not None:
        teacher_NV = wide_NV[: teacher_NV.shape[0]].copy_(teacher_NV)
    side.shape_(teacher_NV, plan.temperature, keep_slope=False)
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
