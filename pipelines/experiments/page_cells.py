"""What the tables and sentences of an experiment's page share: means over seeds as text, and the names of runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pipelines.experiments.bounds import MISSING, Bound, Value
from pipelines.experiments.records import Record
from recovery.arms import arms

COUNTS = "questions-about-held-out-facts-corpus-by-corpus"  # the anchor of a section


def arm_names(records: Sequence[Record]) -> list[str]:
    """Return the arms that were run, in the order of their records."""
    return list(dict.fromkeys(record.arm for record in records))


def title(record: Record) -> str:
    """Return what an arm is; of one that is known no more, what its record says."""
    return arms()[record.arm].title if record.arm in arms() else record.title


def bound_values(bound: Bound, records: Sequence[Record], cycles: int) -> list[list[float]]:
    """Return a bound's values after each cycle, one a seed."""
    return [[v for r in records if (v := bound.value(r, cycle)) is not None] for cycle in range(1, cycles + 1)]


def bound_means(bound: Bound, records: Sequence[Record], cycles: int) -> list[float]:
    """Return a bound's value after each cycle that has one, the mean of the seeds."""
    return [statistics.fmean(cell) for cell in bound_values(bound, records, cycles) if cell]


def number(value: float | None, percent: bool) -> str:
    """Format a bound: points that must be gained, or a share that must be kept."""
    if value is None:
        return ""
    return f"{100 * value:+.0f} points" if percent else f"≥ {value:.2f}"


def mean_cell(values: Sequence[float], percent: bool = False) -> str:
    """Format the mean ± spread over seeds; of one seed its value."""
    if not values:
        return MISSING
    scale, form = (100, "+.1f") if percent else (1, ".3f")
    spread = f" ± {scale * statistics.stdev(values):{form.removeprefix('+')}}" if len(values) > 1 else ""
    return f"{scale * statistics.fmean(values):{form}}{spread}"


def percent_cell(values: Sequence[float]) -> str:
    """Format the mean of shares over seeds as a percentage."""
    return f"{100 * statistics.fmean(values):.1f}%" if values else MISSING


def at_each(records: Sequence[Record]) -> list[tuple[int, str]]:
    """Return base and the checkpoints of every cycle, as (cycle, kind)."""
    cycles = range(1, max(record.cycles for record in records) + 1)
    return [(0, "base"), *((cycle, kind) for cycle in cycles for kind in ("midtrained", "recovered"))]


def checkpoint_name(cycle: int, kind: str) -> str:
    """Return the heading of a checkpoint's column."""
    return kind if kind == "base" else f"cycle {cycle}, {kind}"


def row_cells(columns: Sequence[tuple[str, Value]], records: Sequence[Record], cycle: int, kind: str) -> list[str]:
    """Return a checkpoint's cells of some columns over the seeds."""
    return [mean_cell([v for r in records if (v := value(r, cycle, kind)) is not None]) for _, value in columns]


def seed_count(seeds: int) -> str:
    """Format a number of seeds."""
    return f"{seeds} seed{'s' * (seeds > 1)}"


def cycles_done(records: Sequence[Record]) -> str:
    """Return how many cycles are finished: of each seed, if it is not the same number."""
    if len({(record.cycles, record.wanted) for record in records}) == 1:
        return f"{records[0].cycles} of {records[0].wanted} cycles"
    return ", ".join(f"seed {one.seed}: {one.cycles} of {one.wanted} cycles" for one in records)


def machine_name(record: Record) -> str:
    """Return the GPU of a run, or its processor."""
    return record.machine.removeprefix("Machine: ").split(",")[0]
