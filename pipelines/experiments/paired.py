"""Paired tests of recorded checkpoints on the same items, as rows of tables."""

from __future__ import annotations

from collections.abc import Sequence

from evals.comparison import Comparison, Judged, compare
from pipelines.experiments.bounds import ASKED, IFEVAL, MISSING, OWN
from pipelines.experiments.records import Measured, Record
from pipelines.reports.document import table_lines


def rivals(mine: Sequence[Record], others: Sequence[Record]) -> list[str]:
    """Compare the main arm with each other arm at the end of each cycle that both have, on the same items and seed."""
    rows = []
    for other in others:
        for record in (record for record in mine if record.seed == other.seed):
            for cycle in range(1, min(record.cycles, other.cycles) + 1):
                rows += _against(record, other, cycle)
    head = ["against", "seed", "after cycle", "on", "items", "points (95%)", "lost/won", "p"]
    return table_lines(head, rows) if rows else []


def _against(record: Record, other: Record, cycle: int) -> list[list[str]]:
    """Return the rows of one cycle: instructions, and all questions on the corpora so far."""
    ours, theirs = record.at(cycle, "last"), other.at(cycle, "last")
    if ours is None or theirs is None:
        return []
    on = [(IFEVAL, "instructions"), (OWN, "instructions")]
    on += [(f"{ASKED}/{corpus}", "questions") for corpus in range(1, cycle + 1)]
    found = [compared(theirs, ours, name, level) for name, level in on]
    return [[f"`{other.arm}`", str(record.seed), str(cycle), *_outcome(one)] for one in found if one is not None]


def _outcome(found: Comparison) -> list[str]:
    """Return the cells of a paired comparison: what was compared, items, difference, items lost and won, p."""
    p_value = MISSING if found.p_value is None else f"{found.p_value:.2g}" if found.p_value else "< 1e-15"
    change = f"{100 * found.difference:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
    return [found.name, str(found.n), change, f"{found.lost}/{found.won}", p_value]


def against_base(record: Record) -> list[str]:
    """Compare each checkpoint with base on the same items of the first seed, one row per suite and level."""
    base = record.at(0, "base")
    rows = []
    for measured in record.checkpoints:
        for name, level in ((IFEVAL, "instructions"), (IFEVAL, "prompts"), (OWN, "instructions"), (OWN, "prompts")):
            found = None if base is None or measured is base else compared(base, measured, name, level)
            if found is not None:
                rows.append([measured.name, *_outcome(found)])
    return table_lines(["checkpoint", "on", "items", "points against base (95%)", "lost/won", "p"], rows)


def compared(base: Measured, other: Measured, name: str, level: str) -> Comparison | None:
    """Paired comparison of prompts (all instructions followed), of questions (the response contains an accepted
    answer), or of instructions, clustered by prompt.
    """
    sides = []
    for measured in (base, other):
        items: dict[str, Judged] = {}
        for key, verdicts in measured.items.get(name, {}).items():
            if level == "prompts":
                items[key] = Judged(float("0" not in verdicts))
            elif level == "questions":
                items[key] = Judged(float("1" in verdicts))
            else:
                items |= {f"{key}#{at}": Judged(float(word), key) for at, word in enumerate(verdicts)}
        sides.append(items)
    return compare(f"{name}, {level}", *sides)
