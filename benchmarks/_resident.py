"""Resident memory of this process, as reported by the kernel; on a CUDA device, its memory, as torch counts it.

torch is imported for a CUDA device only: other benchmarks measure processes without it.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def finish(device: str) -> None:
    """Wait until the device has computed everything."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize()


def now(device: str = "cpu") -> float:
    """Return resident MB, and reset the peak if the kernel supports it."""
    if device != "cpu":
        import torch

        finish(device)
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 1e6
    if not _STATUS.exists():
        return peak()
    Path("/proc/self/clear_refs").write_text("5")
    return _entry("VmRSS")


def peak(device: str = "cpu") -> float:
    """Return the peak of resident MB since the last call of :func:`now`, or since the start without kernel support."""
    if device != "cpu":
        import torch

        return torch.cuda.max_memory_allocated() / 1e6
    if _STATUS.exists():
        return _entry("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def _entry(name: str) -> float:
    line = next(entry for entry in _STATUS.read_text().splitlines() if entry.startswith(name))
    return int(line.split()[1]) * 1024 / 1e6
