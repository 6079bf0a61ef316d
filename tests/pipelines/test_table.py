"""The table of what a run takes, and its comparison with what it took."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pipelines.table import BEFORE, DISTILL, EVALUATE, GIB, MIDTRAIN, PlanRow, compared, table, total_of

ROWS = (
    PlanRow("mid-training", MIDTRAIN, 600, 2 * GIB, 1),
    PlanRow("sampling", DISTILL, 3600, GIB, 1),
    PlanRow("training", DISTILL, 82_200, 6 * GIB, 1),
    PlanRow("evaluations", EVALUATE, 45, 512 << 20, 1),
)


def took(kind: str, seconds: float, peak: int, **details: int) -> Any:
    return SimpleNamespace(kind=kind, wall_seconds=seconds, peak_memory_bytes=peak, details=details)


def test_rows_line_up_above_their_total() -> None:
    lines = table(ROWS, 9 * GIB).splitlines()
    assert lines == [
        "                       time   memory",
        "mid-training         10 min  2.0 GiB",
        "sampling             60 min  1.0 GiB",
        "training        22 h 50 min  6.0 GiB",
        "evaluations            45 s  512 MiB",
        "total, at most  24 h 01 min  6.0 GiB at the peak, 9.0 GiB free",
    ]
    assert total_of(ROWS) == (86_445, 6 * GIB)
    short = "less memory is free now than this needs: close other programs first"
    assert table(ROWS, 6 * GIB - 1).splitlines()[len(lines) :] == [short]
    assert len(table(ROWS, 6 * GIB).splitlines()) == len(lines)


def test_rows_of_several_cycles_say_which() -> None:
    two = (*ROWS[:1], PlanRow("mid-training", MIDTRAIN, 600, GIB, 2))
    assert [line.split("  ")[0] for line in table(two, 0).splitlines()[1:3]] == [
        "cycle 1: mid-training",
        "cycle 2: mid-training",
    ]


def test_what_a_run_took_stands_beside_what_was_planned() -> None:
    stages = [
        took(EVALUATE, 30, 2 * GIB, **{BEFORE: GIB}),
        took(MIDTRAIN, 1200, 4 * GIB, **{BEFORE: GIB}),
        took(DISTILL, 60, GIB),  # of a release that did not know what there was before
        took(EVALUATE, 60, 0, **{BEFORE: GIB}),
    ]
    assert compared(ROWS, stages) == (
        "took 22 min of 24 h 01 min planned (mid-training 20 min of 10 min, recovery 60 s of 23 h 50 min, evaluation "
        "2 min of 45 s); memory 3.0 GiB of 6.0 GiB planned"
    )
    assert compared(ROWS[:1], stages[1:2]) == "took 20 min of 10 min planned; memory 3.0 GiB of 2.0 GiB planned"
    assert compared(ROWS[:1], []) == "took 0 s of 10 min planned; memory 0 MiB of 2.0 GiB planned"
