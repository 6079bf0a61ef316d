"""The device: choices that follow from it (precision, how attention is computed), and its memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import sys
from pathlib import Path

import torch

from recovery import distributed
from recovery.errors import UsageError
from recovery.limits import machine_memory

# torch and oneDNN each cache up to 1,024 compiled kernels, one for each shape of a matrix product on a CPU. Rows have
# many lengths, so the memory of a long run would keep growing: their memory lies between freed blocks, which are then
# too small to be used again. The variables are read at the first product.
for _cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_cache, "32")

# Longest row for which a CPU forms the full scores in float32 if it computes gradients.
PLAIN_LENGTH = 256
# Up to this many scores (rows x heads x queries x keys): 64 MB.
PLAIN_SCORES = 1 << 24


def pick_device(device: str) -> torch.device:
    """Return the device; "auto" is the GPU if there is one, a different one for each process.

    Raise UsageError for a name that torch does not know, and for a GPU that it does not see.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"--device {device} is no device: use auto, cpu, cuda or cuda:N") from error
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
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
    """Free the GPU memory that torch holds without using it."""
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):  # an interrupted capture: torch believes that its memory is in use
            torch.cuda.empty_cache()


def release_memory() -> None:
    """Return freed memory to the system, that of models too, which have reference cycles."""
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Return the memory that glibc has freed and keeps, some hundred MB, to the system."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def total_memory(device: str) -> int:
    """Return the bytes of the device, whatever uses them now; on a CPU within the container's limit."""
    return torch.cuda.mem_get_info(torch.device(device))[1] if device.startswith("cuda") else machine_memory()


def free_memory(device: str) -> int:
    """Return the free bytes of the device; on a CPU within the container's limits."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text()) - _cached_by_group()
        free = min(free, limit - used)
    except (OSError, ValueError):
        pass  # no such files, or no limit: keep the system's value
    return max(0, free)


def _cached_by_group() -> int:
    """Return the bytes of cached files in this control group that the kernel would free, such as a model just read."""
    for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0


def reset_peak_memory(device: str) -> None:
    """Reset the peak of a GPU's memory, else of this process, if the kernel allows it."""
    if not device.startswith("cuda"):
        with contextlib.suppress(OSError):  # proc(5): 5 resets the peak of resident memory
            Path("/proc/self/clear_refs").write_text("5")
    elif torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats(torch.device(device))


def held_memory(device: str) -> int:
    """Return the bytes that this process holds now (on a GPU: of the GPU's memory); 0 if it is not known."""
    if device.startswith("cuda"):
        return int(torch.cuda.memory_allocated(torch.device(device)))
    return resident()


def resident(pid: int | str = "self") -> int:
    """Return the bytes of memory, not of a GPU, that a process holds now; 0 if it is not known."""
    return _status("VmRSS", pid) or 0


def peak_memory(device: str) -> int:
    """Return the peak memory of this process in bytes (on a GPU: of the GPU's memory), since it was reset."""
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated(torch.device(device)))
    if (peak := _status("VmHWM")) is not None:
        return peak
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(figure: str, pid: int | str = "self") -> int | None:
    """Return a figure of the kernel's about a process's resident memory, bytes; None on another system."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(figure)).split()[1]) * 1024
    return None
