"""The kernel of :mod:`recovery.losses.kernels`. Imported on its first use: Triton is not installed everywhere."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _row_logsumexp(row, scale, ENTRIES: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The logarithm of the sum of exponentials of a row, each lane over its own entries first."""
    lanes = tl.arange(0, BLOCK)
    most = tl.full([BLOCK], -1.0e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, ENTRIES, BLOCK):
        at = start + lanes
        inside = at < ENTRIES
        here = tl.load(row + at, mask=inside, other=0.0).to(tl.float32) * scale
        larger = tl.where(inside, tl.maximum(most, here), most)
        total = total * tl.exp(most - larger) + tl.where(inside, tl.exp(here - larger), 0.0)
        most = larger
    peak = tl.max(most, 0)
    return peak + tl.log(tl.sum(total * tl.exp(most - peak), 0))


@triton.jit
def divergence(  # type: ignore[no-untyped-def]
    student, teacher, gradient, values, entropies, student_stride, teacher_stride, gradient_stride,
    student_scale, teacher_scale, weight,
    ENTRIES: tl.constexpr, REVERSE: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row."""
    number = tl.program_id(0).to(tl.int64)
    x, y, g = student + number * student_stride, teacher + number * teacher_stride, gradient + number * gradient_stride
    lse_p = _row_logsumexp(x, student_scale, ENTRIES, BLOCK)
    lse_q = _row_logsumexp(y, teacher_scale, ENTRIES, BLOCK)
    lanes = tl.arange(0, BLOCK)
    value = tl.zeros([BLOCK], tl.float32)
    entropy = tl.zeros([BLOCK], tl.float32)
    for start in range(0, ENTRIES, BLOCK):
        at = start + lanes
        inside = at < ENTRIES
        log_p = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * student_scale - lse_p
        log_q = tl.load(y + at, mask=inside, other=0.0).to(tl.float32) * teacher_scale - lse_q
        p = tl.exp(log_p)
        entropy -= tl.where(inside, p * log_p, 0.0)
        each = p * (log_p - log_q) if REVERSE else tl.exp(log_q) * (log_q - log_p)
        value += tl.where(inside, each, 0.0)
    centre = tl.sum(value, 0)
    tl.store(values + number, centre)
    tl.store(entropies + number, tl.sum(entropy, 0))
    for start in range(0, ENTRIES, BLOCK):
        at = start + lanes
        inside = at < ENTRIES
        log_p = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * student_scale - lse_p
        log_q = tl.load(y + at, mask=inside, other=0.0).to(tl.float32) * teacher_scale - lse_q
        p = tl.exp(log_p)
        slope = p * (log_p - log_q - centre) if REVERSE else p - tl.exp(log_q)
        slope *= weight
        if ADD:
            slope += tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(g + at, slope.to(gradient.dtype.element_ty), mask=inside)
