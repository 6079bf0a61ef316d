"""How much memory this process holds, as the kernel counts it."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def now() -> float:
    """Resident MB; where the kernel can, the peak is counted from here on."""
    if not _STATUS.exists():
        return peak()
    Path("/proc/self/clear_refs").write_text("5")
    return _entry("VmRSS")


def peak() -> float:
    """The most MB that were resident since the last call of :func:`now`, or since the start where that is unknown."""
    if _STATUS.exists():
        return _entry("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def _entry(name: str) -> float:
    line = next(entry for entry in _STATUS.read_text().splitlines() if entry.startswith(name))
    return int(line.split()[1]) * 1024 / 1e6
