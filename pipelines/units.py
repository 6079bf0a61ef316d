"""Sizes and times as text."""

from __future__ import annotations

GIB = 1 << 30


def duration(seconds: float) -> str:
    """Format a time span: 45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def size(count: int) -> str:
    """Format a number of bytes: 120 MiB, 3.4 GiB."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.0f} MiB"
