"""The Kullback-Leibler and Jensen-Shannon divergences as one Triton kernel, for a GPU.

Read row by row, logits need neither copies in float32 nor a launch for every operation: on a GPU most of the time of
the plain operations is reading and writing them. Value, gradient and entropy are those of
:mod:`recovery.losses.divergences`, in float32, in three passes over a row.

Triton comes with torch's CUDA builds. With TRITON_INTERPRET=1 the kernel also runs on a CPU, for tests.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from recovery.losses.terms import Term
from recovery.models.lm_head import Head

KINDS = ("reverse_kl", "forward_kl", "jsd")
# Entries of a row that are read at once.
_BLOCK = 4096
_WARPS = 8
# Size of one buffer of logits, which is doubled if the head's gradient is computed too. With twice this size an H200 is
# a tenth faster (docs/log.md). The number of tokens in a chunk is a multiple of the second value.
_CHUNK_BYTES, _CHUNK_TOKENS = 160 << 20, 128


def available(device: torch.device) -> bool:
    """Return whether the kernel runs on this device."""
    if device.type == "cuda" and device.index is None:  # tried once, also under its full name
        device = torch.device("cuda", torch.cuda.current_device())
    return (device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1") and _runs(str(device))


def compute(terms: Sequence[Term], head: Head, dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether the kernel computes all these terms, of a student with this head, in products of this dtype."""
    return (
        dtype != torch.float64 and head.softcap is None and all(_computes(term) for term in terms) and available(device)
    )


def _computes(term: Term) -> bool:
    limits = (term.options.entry_clip, term.options.floor, term.outcomes, term.active_N)
    capped = term.teacher_head is not None and term.teacher_head.softcap is not None
    return term.resolved in KINDS and all(limit is None for limit in limits) and not capped


def chunk_size(vocabulary: int, dtype: torch.dtype, trained: bool) -> int:
    """Return the tokens per chunk of the fused loss with the kernel, which needs no other buffers.

    The gradient of a ``trained`` head is accumulated once per chunk, so that fewer and larger ones pay.
    """
    budget = _CHUNK_BYTES * (2 if trained else 1)
    return max(1, budget // (vocabulary * dtype.itemsize * _CHUNK_TOKENS)) * _CHUNK_TOKENS


def divergence_(
    kind: str,
    student_NV: Tensor,
    teacher_NV: Tensor,
    gradient_NV: Tensor,
    value_N: Tensor,
    entropy_N: Tensor,
    *,
    scales: tuple[float, float],
    beta: float = 0.5,
    weight: float = 1.0,
    add: bool = False,
) -> None:
    """Compute one of :data:`KINDS` for the rows of ``student_NV``, raw logits whose rows are contiguous.

    Args:
        kind: the divergence.
        student_NV: the student's logits; may be ``gradient_NV`` itself.
        teacher_NV: the teacher's.
        gradient_NV: becomes the gradient with respect to the scaled logits times ``weight``.
        value_N: becomes the value per row, in nats and without the weight.
        entropy_N: becomes the student's entropy, in nats.
        scales: factors of the student's and the teacher's logits.
        beta: the mixture of "jsd".
        weight: factor of the gradient.
        add: add to ``gradient_NV`` instead of overwriting it.
    """
    from recovery.losses import triton_kernels

    rows, entries = student_NV.shape
    device = student_NV.device  # Triton starts kernels on the current one
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        triton_kernels.divergence[(rows,)](
            student_NV,
            teacher_NV,
            gradient_NV,
            value_N,
            entropy_N,
            student_NV.stride(0),
            teacher_NV.stride(0),
            gradient_NV.stride(0),
            *scales,
            beta,
            weight,
            ENTRIES=entries,
            KIND=kind,
            ADD=add,
            BLOCK=_BLOCK,
            num_warps=_WARPS,
        )


@functools.cache
def _runs(device: str) -> bool:
    """Return whether a row can be computed: Triton compiles with the machine's C compiler, which may be missing."""
    if importlib.util.find_spec("triton") is None:
        return False
    row_NV, found_N = torch.zeros(1, 8, device=device), torch.ones(2, 1, device=device)
    try:
        divergence_("reverse_kl", row_NV, row_NV, torch.empty_like(row_NV), *found_N, scales=(1.0, 1.0))
    except Exception:  # of compiler, driver or linker: the plain operations are used instead
        return False
    return bool(found_N[0] == 0.0)


# Matrix products of the fused loss, by the faster of the libraries in torch.
#
# In float32 on a CPU torch calls MKL, which does not use the wide registers of AMD processors. oneDNN, in the same
# build, does and is faster there; on Intel processors it is slower than MKL and not used. torch exposes it for float32
# only as an internal operator of its compiler, so it is looked up once, compared with the ordinary product, and not
# used if it is missing or differs.

_Linear = Callable[[Tensor, Tensor, Tensor | None, str, list[float], str], Tensor]


def linear(input_NK: Tensor, weight_MK: Tensor, bias_M: Tensor | None, out_NM: Tensor | None = None) -> Tensor:
    """Return input weight^T + bias, in ``out_NM`` or, with oneDNN, in a new tensor."""
    on_cpu = input_NK.device.type == "cpu" and input_NK.dtype == torch.float32
    onednn = _onednn() if on_cpu and not _prefers_mkl() else None
    if onednn is not None:
        return onednn(input_NK, weight_MK, bias_M, "none", [], "")
    if bias_M is None:
        return torch.mm(input_NK, weight_MK.t(), out=out_NM)
    return torch.addmm(bias_M, input_NK, weight_MK.t(), out=out_NM)


@functools.cache
def _prefers_mkl() -> bool:
    """Return whether this is an Intel processor. A choice by timing would change the last bits from run to run."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


@functools.cache
def _onednn() -> _Linear | None:
    """Return oneDNN's linear product, or None if this build of torch has none that agrees with its own."""
    try:
        found: _Linear = torch.ops.mkldnn._linear_pointwise
        # Small integers: every order of summation gives the same, exact result.
        input_NK = torch.arange(-32.0, 32.0).remainder(7).reshape(4, 16)
        weight_MK = torch.arange(-40.0, 40.0).remainder(5).reshape(5, 16)
        agrees = torch.equal(found(input_NK, weight_MK, None, "none", [], ""), input_NK @ weight_MK.t())
    except (AttributeError, RuntimeError, TypeError):
        return None
    return found if agrees else None
