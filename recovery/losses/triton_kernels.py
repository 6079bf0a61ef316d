"""The kernel of :mod:`recovery.losses.kernels`. Imported on its first use: Triton is not installed everywhere."""

from __future__ import annotations

import triton
import triton.language as tl

from recovery.losses.divergence import LOG_RATIO_LIMIT

LIMIT: tl.constexpr = tl.constexpr(LOG_RATIO_LIMIT)


@triton.jit
def _logits(row, at, inside, scale):  # type: ignore[no-untyped-def]
    """The scaled logits of a row's entries ``at``; 0 beyond its end."""
    return tl.load(row + at, mask=inside, other=0.0).to(tl.float32) * scale


@triton.jit
def _row_logsumexp(row, scale, ENTRIES: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The logarithm of the sum of exponentials of a row, each lane over its own entries first."""
    lanes = tl.arange(0, BLOCK)
    most = tl.full([BLOCK], -1.0e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, ENTRIES, BLOCK):
        at = start + lanes
        inside = at < ENTRIES
        here = _logits(row, at, inside, scale)
        larger = tl.where(inside, tl.maximum(most, here), most)
        total = total * tl.exp(most - larger) + tl.where(inside, tl.exp(here - larger), 0.0)
        most = larger
    peak = tl.max(most, 0)
    return peak + tl.log(tl.sum(total * tl.exp(most - peak), 0))


@triton.jit
def _log_m_over_p(log_p, log_q, beta):  # type: ignore[no-untyped-def]
    """log(m/p) = log1p(beta expm1(u)) of the mixture m, with u = log(q/p); also u, within its limits.

    Triton has neither function everywhere: series where the difference of two larger numbers would lose digits.
    """
    u = tl.minimum(tl.maximum(log_q - log_p, -LIMIT), LIMIT)
    series = u * (1.0 + u / 2 * (1.0 + u / 3 * (1.0 + u / 4 * (1.0 + u / 5 * (1.0 + u / 6 * (1.0 + u / 7))))))
    x = beta * tl.where(tl.abs(u) < 0.35, series, tl.exp(u) - 1.0)
    z = x / (2.0 + x)  # log1p(x) = 2 atanh(z)
    w = z * z
    series = 2.0 * z * (1.0 + w * (1.0 / 3 + w * (1.0 / 5 + w * (1.0 / 7 + w * (1.0 / 9 + w / 11)))))
    return tl.where(tl.abs(x) < 0.35, series, tl.log(1.0 + x)), u


@triton.jit
def divergence(  # type: ignore[no-untyped-def]
    student, teacher, gradient, values, entropies, student_stride, teacher_stride, gradient_stride,
    student_scale, teacher_scale, beta, weight,
    ENTRIES: tl.constexpr, KIND: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row. The formulas are those of recovery/losses/divergences."""
    number = tl.program_id(0).to(tl.int64)
    x, y, g = student + number * student_stride, teacher + number * teacher_stride, gradient + number * gradient_stride
    lse_p = _row_logsumexp(x, student_scale, ENTRIES, BLOCK)
    lse_q = _row_logsumexp(y, teacher_scale, ENTRIES, BLOCK)
    lanes = tl.arange(0, BLOCK)
    value = tl.zeros([BLOCK], tl.float32)
    centre = tl.zeros([BLOCK], tl.float32)  # the mean over p that the gradient subtracts
    entropy = tl.zeros([BLOCK], tl.float32)
    for start in range(0, ENTRIES, BLOCK):
        at = start + lanes
        inside = at < ENTRIES
        log_p = _logits(x, at, inside, student_scale) - lse_p
        log_q = _logits(y, at, inside, teacher_scale) - lse_q
        p = tl.exp(log_p)
        entropy -= tl.where(inside, p * log_p, 0.0)
        if KIND == "reverse_kl":
            value += tl.where(inside, p * (log_p - log_q), 0.0)
        elif KIND == "forward_kl":
            value += tl.where(inside, tl.exp(log_q) * (log_q - log_p), 0.0)
        else:
            mixed, u = _log_m_over_p(log_p, log_q, beta)
            value += tl.where(inside, beta * tl.exp(log_q) * (u - mixed), 0.0)
            centre += tl.where(inside, p * mixed, 0.0)
    found, mean = tl.sum(value, 0), tl.sum(centre, 0)
    tl.store(values + number, found - (1.0 - beta) * mean if KIND == "jsd" else found)
    tl.store(entropies + number, tl.sum(entropy, 0))
    for start in range(0, ENTRIES, BLOCK):
        at = start + lanes
        inside = at < ENTRIES
        log_p = _logits(x, at, inside, student_scale) - lse_p
        log_q = _logits(y, at, inside, teacher_scale) - lse_q
        p = tl.exp(log_p)
        if KIND == "reverse_kl":
            slope = p * (log_p - log_q - found)
        elif KIND == "forward_kl":
            slope = p - tl.exp(log_q)
        else:
            mixed, u = _log_m_over_p(log_p, log_q, beta)
            slope = (beta - 1.0) * p * (mixed - mean)
        slope *= weight
        if ADD:
            slope += tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(g + at, slope.to(gradient.dtype.element_ty), mask=inside)
