"""What a run takes, as text: sizes and times, and its parts as one table.

`--dry-run` and the start of a run print the table, and the end is compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from db.records import Stage

GIB = 1 << 30
MIDTRAIN, DISTILL, EVALUATE = "midtrain", "distill", "evaluate"  # the stages of the tracker
TITLES = {MIDTRAIN: "mid-training", DISTILL: "recovery", EVALUATE: "evaluation"}
# What a stage's process on a CPU holds beside its tensors, bytes and a share of them: freed blocks that the C library
# keeps, more with every shape, and kernels that oneDNN compiles for each. Whole stages of SmolLM2 (60 to 118 steps of
# 2.2 to 5 GiB) took 21 to 26% more than their tensors, short recoveries of 0.3 to 3.8 GiB 107 to 133 MiB: both are
# estimated within 15%, as is the mid-training of the miniature, which took 240 to 247 MiB.
# Whether a stage fits is decided without them: the reserve in pipelines.planning.memory is for them.
KEPT_CPU, KEPT_SHARE = 120 << 20, 0.1
BEFORE = "memory_before"  # the bytes that the process held when a stage began, among its details


def duration(seconds: float) -> str:
    """Format a time span: 45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def size(count: int) -> str:
    """Format a number of bytes: 120 MiB, 3.4 GiB."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.0f} MiB"


@dataclass(frozen=True)
class PlanRow:
    """A part of a run: ``seconds`` it takes, and ``memory``, the bytes that the process needs for it at its peak.

    ``stage`` is the kind of the stage that it belongs to, as the tracker names it. ``cycle`` is None for a stage that
    runs on its own.
    """

    part: str
    stage: str
    seconds: float
    memory: int
    cycle: int | None = None


def of_process(tensors: int, gpu: bool) -> int:
    """Return the peak of a process, bytes, whose tensors have a peak of so many: what a run is compared with."""
    return tensors if gpu else round(tensors * (1 + KEPT_SHARE)) + KEPT_CPU


def total_of(rows: Sequence[PlanRow]) -> tuple[float, int]:
    """Return the seconds of all rows, one after the other, and the largest of their peaks in bytes."""
    return sum(row.seconds for row in rows), max((row.memory for row in rows), default=0)


def table(rows: Sequence[PlanRow], free: int) -> str:
    """Return the rows as text, under a head and above their total; ``free`` bytes are there now."""
    seconds, memory = total_of(rows)
    several = len({row.cycle for row in rows}) > 1
    cells = [("", "time", "memory")]
    for row in rows:
        name = f"cycle {row.cycle}: {row.part}" if several and row.cycle is not None else row.part
        cells.append((name, duration(row.seconds), size(row.memory)))
    cells.append(("total, at most", duration(seconds), size(memory)))
    lines = aligned(cells)
    lines[-1] += f" at the peak, {size(free)} free"
    if memory > free:
        lines.append("less memory is free now than this needs: close other programs first")
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines: the first column is aligned to the left, the others to the right."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return ["  ".join((row[0].ljust(first), *map(str.rjust, row[1:], others))).rstrip() for row in rows]


def compared(rows: Sequence[PlanRow], stages: Sequence[Stage]) -> str:
    """Return one line that compares plan and stages. Memory counts above what the process held before the stage."""
    planned, peak = total_of(rows)
    memory = max((max(0, one.peak_memory_bytes - one.details.get(BEFORE, 0)) for one in stages), default=0)
    parts = []
    for kind in dict.fromkeys(row.stage for row in rows):
        took = sum(one.wall_seconds for one in stages if one.kind == kind)
        plan = sum(row.seconds for row in rows if row.stage == kind)
        parts.append(f"{TITLES[kind]} {duration(took)} of {duration(plan)}")
    each = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    took = sum(one.wall_seconds for one in stages)
    return f"took {duration(took)} of {duration(planned)} planned{each}; memory {size(memory)} of {size(peak)} planned"
