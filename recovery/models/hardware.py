"""Choices that follow from the device: the device itself, the precision of products, how attention is computed."""

from __future__ import annotations

import contextlib

import torch

from recovery import distributed
from recovery.errors import UsageError

# Longest row for which a CPU forms the full scores in float32 if it computes gradients.
PLAIN_LENGTH = 256
# Up to this many scores (rows x heads x queries x keys): 64 MB.
PLAIN_SCORES = 1 << 24


def pick_device(device: str) -> torch.device:
    """Return the device; "auto" is the GPU if there is one, of several processes each its own.

    Raise UsageError for a name that torch does not know, and for a GPU that it does not see.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        named = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"--device {device} is no device: use auto, cpu, cuda or cuda:N") from error
    if named.type == "cuda" and (named.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"--device {device}: torch sees {torch.cuda.device_count()} CUDA GPUs here; use auto or cpu")
    return distributed.local_device(device)


def gpu_name(device: str) -> str:
    """Return the name of the GPU that a device is; empty for another one. Raise UsageError as :func:`pick_device`."""
    used = pick_device(device)
    return torch.cuda.get_device_name(used) if used.type == "cuda" else ""


def pick_precision(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products; "auto" is bfloat16 if the hardware supports it natively, else float32."""
    if precision == "auto":
        if device.type == "cuda":
            native = torch.cuda.is_bf16_supported(including_emulation=False)  # a T4 emulates it, slower than float32
        else:
            native = torch.cpu._is_avx512_bf16_supported()
        return torch.bfloat16 if native else torch.float32
    if precision not in ("float32", "bfloat16"):
        raise UsageError(f"--precision {precision!r} is not known: use auto, float32 or bfloat16")
    return torch.float32 if precision == "float32" else torch.bfloat16


def formed_whole(rows: int, heads: int, queries: int, keys: int) -> bool:
    """Return whether a CPU that computes gradients in float32 forms the full attention scores of this size."""
    return queries <= PLAIN_LENGTH and rows * heads * queries * keys <= PLAIN_SCORES


def release_gpu_memory(device: torch.device) -> None:
    """Return what torch holds of a GPU's memory and does not use."""
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):  # an interrupted capture: torch believes that its memory is in use
            torch.cuda.empty_cache()
