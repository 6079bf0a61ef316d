"""Matrix products of the fused loss, by the faster of the libraries in torch.

In float32 on a CPU torch calls MKL, which does not use the wide registers of AMD processors. oneDNN, in the same
build, does and is faster there; on Intel processors it is slower than MKL and not used.
torch exposes it for float32 only as an internal operator of its compiler, so it is looked up once, compared with the
ordinary product, and not used if it is missing or differs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

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
