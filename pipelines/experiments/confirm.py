"""The claim on a model of one's own: the defaults compared with mid-training alone and with plain replay, and a
verdict.

What is checked, and what would refute it, is printed before anything is trained (pipelines.experiments.records.BOUNDS).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.cycle_estimate import estimate
from pipelines.cycle_plan import new_plan
from pipelines.experiments.demo import Scenario, demo_config
from pipelines.experiments.page import COLUMNS, page
from pipelines.experiments.records import BOUNDS, Record
from pipelines.experiments.run import run
from pipelines.midtraining.material import check_questions
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from pipelines.table import EVALUATE, MIDTRAIN, PlanRow, duration, size, table, total_of
from recovery.arms import arm_named
from recovery.errors import UsageError
from recovery.workspace import Workspace, write_atomically

# The defaults, the same without the recovery, and the replay that others use.
ARMS = ("kl-replay-recovery", "kl-replay", "replay")
PAGE, RESULT = "confirm.md", "confirm.json"


def claims() -> str:
    """Return what is checked, and what would refute it."""
    lines = [f"  {bound.name} (after: {', '.join(bound.kinds)})" for bound in BOUNDS]
    return "\n".join(["What the defaults must reach, in every cycle; a line that is missed refutes the claim:", *lines])


def planned(
    session: Session, scenario: Scenario, folders: Sequence[Path], flags: Mapping[str, Any], seeds: int
) -> tuple[list[PlanRow], int]:
    """Return what all arms take with every seed, and the free bytes of the device: the defaults' cycles, and for each
    other arm their mid-trainings and evaluations.

    Raises UsageError if a stage does not fit in memory.
    """
    config = demo_config(session, list(folders), 0, dict(flags), scenario)
    estimated = estimate(session, new_plan(session, config))
    for plan in estimated.midtrain:
        check_questions(session, False, plan.few_questions)
        if not plan.memory.fits_now:
            needs = plan.memory
            todo = "close other programs" if needs.fits else "take a smaller model, or a larger machine"
            raise UsageError(
                f"{scenario.model}: mid-training does not fit in memory ({needs}; {size(needs.free)} are free now): "
                f"{todo}"
            )
    rows, shared = list(estimated.rows), arm_named(ARMS[0]).midtrain
    for name in ARMS[1:]:
        others = [row for row in estimated.rows if row.stage in (MIDTRAIN, EVALUATE)]
        if arm_named(name).midtrain == shared:  # the first cycle's mid-training is the same stage, evaluated already
            others = [row for row in others if row.cycle != 1]
        if not others:
            continue
        # Of a cycle's three evaluations base's is there already, and a cycle without a recovery has one.
        seconds = sum(row.seconds / (1 if row.stage == MIDTRAIN else 3) for row in others)
        rows.append(PlanRow(f"arm {name}", MIDTRAIN, seconds, total_of(others)[1]))
    if seeds > 1:
        seconds, peak = total_of(rows)
        rows.append(PlanRow(f"{seeds - 1} more seed{'s' * (seeds > 2)}", MIDTRAIN, (seeds - 1) * seconds, peak))
    return rows, estimated.free


def plan_text(rows: Sequence[PlanRow], free: int, price: float | None) -> str:
    """Return the estimate as text, with what it costs at a ``price`` per hour."""
    seconds, _ = total_of(rows)
    cost = f"\nat {price:g} per hour: {price * seconds / 3600:,.2f}" if price is not None else ""
    return table(rows, free) + cost


def confirm(
    place: Workspace,
    scenario: Scenario,
    *,
    seeds: Sequence[int],
    flags: Mapping[str, Any],
    rows: Sequence[PlanRow],
    price: float | None,
    held_out: Collection[str],
    display: Display,
) -> str:
    """Run or resume all arms, write the page and the JSON file into the workspace, and return the result in words."""
    kept, cycles, records = place.folder / "records", scenario.cycles, []
    for seed in seeds:
        for arm in map(arm_named, ARMS):
            records.append(run(place, arm, scenario, seed=seed, cycles=cycles, flags=flags, kept=kept, display=display))
    verdicts = judged([record for record in records if record.arm == ARMS[0]])
    seconds = sum(one.cost.get("seconds", 0.0) for record in records for one in record.checkpoints)
    text = page(records, ARMS[0], "make confirm", held_out)
    write_atomically(place.folder / PAGE, text)
    result = {
        "model": records[0].model,
        "documents": records[0].documents,
        "machine": records[0].machine,
        "date": records[0].date,
        "short": scenario.short,
        "training_seconds": seconds,
        "planned_seconds": total_of(rows)[0],
        "price_per_hour": price,
        "bounds": verdicts,
        "arms": [_summary(record) for record in records],
    }
    write_atomically(place.folder / RESULT, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    words = {None: "not measured", True: "kept", False: "missed"}
    lines = [f"{name}: {', '.join(words[one] for one in cycles)}" for name, cycles in verdicts.items()]
    if scenario.short:
        lines.insert(0, "a short run: too few items to decide anything, whatever the lines below say")
    took = f"training took {duration(seconds)}; all was planned to take {duration(total_of(rows)[0])}"
    return "\n".join([*lines, took, f"page: {place.folder / PAGE}", f"for a pull request: {place.folder / RESULT}"])


def judged(records: Sequence[Record]) -> dict[str, list[bool | None]]:
    """Return for each bound whether it is kept after each cycle and stage; None where it is not measured."""
    cycles = range(1, max(record.cycles for record in records) + 1)
    return {b.name: [b.kept(records, cycle, kind) for cycle in cycles for kind in b.kinds] for b in BOUNDS}


def _summary(record: Record) -> dict[str, Any]:
    """Return a record's figures without its items and responses."""
    figures = [
        {"checkpoint": one.kind, "cycle": one.cycle, "cost": dict(one.cost)}
        | {name: value(record, max(one.cycle, 1), one.kind) for name, value in COLUMNS.items()}
        for one in record.checkpoints
    ]
    return {"arm": record.arm, "seed": record.seed, "wanted": record.wanted, "figures": figures}
