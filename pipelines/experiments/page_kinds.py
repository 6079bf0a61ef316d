"""The table of arms whose recovery prompts leave out kinds of instruction: what comes back without being asked for."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evals.comparison import Judged, compare
from pipelines.experiments.bounds import IFEVAL, MISSING, OWN
from pipelines.experiments.paired import judged
from pipelines.experiments.records import Record
from pipelines.reports.document import table_lines
from recovery.arms import arms
from recovery.data.prompts import of_kind

_HEAD = (
    *("on", "kinds", "seed", "after cycle", "instructions", "base", "mid-trained", "recovered, left out"),
    *("recovered, asked for", "left out less mid-trained, points (95%)", "left out less asked for, points (95%)"),
)
_AT = ("base", "midtrained", "recovered", "asked")
_SUITES = {IFEVAL: "IFEval", OWN: "own prompts"}


@dataclass(frozen=True)
class _Half:
    """The instructions of the kinds that a run left out, as they are followed by base, by the mid-trained and the
    recovered model, and ("asked") by the recovered model of the run that asked for them; empty if not measured.
    """

    kinds: str
    sides: Mapping[str, Mapping[str, Judged]]

    @property
    def cells(self) -> list[str]:
        """The number of instructions, the share of them that each model follows and that as a share of base's, and the
        two differences.
        """
        without, base = self.sides["recovered"], _mean(self.sides["base"])
        differences = [_difference(self.sides[at], without) for at in ("midtrained", "asked")]
        return [f"{len(without):,}", *(_share(self.sides[at], base) for at in _AT), *differences]


def kinds_table(records: Sequence[Record]) -> list[str]:
    """Return a row for each half of the kinds and one for both: single instructions, strict, by what the recovery's
    prompts asked for. Of two arms of a seed, each leaves out what the other asks for.
    """
    rows = []
    mine = [record for record in records if left_out(record) and record.instructions]
    for seed in sorted({record.seed for record in mine}):
        runs = [record for record in mine if record.seed == seed]
        for cycle in range(1, max(run.cycles for run in runs) + 1):
            there = [run for run in runs if run.at(cycle, "recovered")]
            for suite, name in _SUITES.items():
                halves = [_half(run, there, cycle, suite) for run in there]
                every = [*halves, _both(halves)] if len(halves) > 1 else halves
                rows += [[name, half.kinds, str(seed), str(cycle), *half.cells] for half in every]
    return table_lines(_HEAD, rows) if rows else []


def left_out(record: Record) -> tuple[str, ...]:
    """Return the kinds of instruction that no prompt of a run's recovery asked for."""
    arm = arms().get(record.arm)
    return tuple(arm.settings.get("without_kinds", ())) if arm else ()


def _half(run: Record, runs: Sequence[Record], cycle: int, suite: str) -> _Half:
    kinds = left_out(run)
    other = next((one for one in runs if not set(kinds) & set(left_out(one))), None)
    sides = (
        _of_kinds(run, 0, "base", suite, kinds),
        _of_kinds(run, cycle, "midtrained", suite, kinds),
        _of_kinds(run, cycle, "recovered", suite, kinds),
        _of_kinds(other, cycle, "recovered", suite, kinds) if other else {},
    )
    return _Half(", ".join(kinds), dict(zip(_AT, sides, strict=True)))


def _both(halves: Sequence[_Half]) -> _Half:
    merged = {at: {key: one for half in halves for key, one in half.sides[at].items()} for at in _AT}
    return _Half("all, each left out once", merged)


def _of_kinds(record: Record, cycle: int, kind: str, suite: str, kinds: Sequence[str]) -> dict[str, Judged]:
    measured = record.at(cycle, kind)
    names = record.instructions.get(suite, {})
    wanted = {f"{key}#{at}" for key, ids in names.items() for at, one in enumerate(ids) if of_kind(one, kinds)}
    items = judged(measured, suite, "instructions") if measured else {}
    return {key: found for key, found in items.items() if key in wanted}


def _mean(side: Mapping[str, Judged]) -> float:
    return statistics.fmean(one.score for one in side.values()) if side else 0.0


def _share(side: Mapping[str, Judged], base: float) -> str:
    if not side:
        return MISSING
    return f"{_mean(side):.3f} ({_mean(side) / base:.2f})" if base else f"{_mean(side):.3f}"


def _difference(first: Mapping[str, Judged], second: Mapping[str, Judged]) -> str:
    found = compare("", first, second)
    if found is None:
        return MISSING
    return f"{100 * found.difference:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
