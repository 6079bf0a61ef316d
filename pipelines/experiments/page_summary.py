"""What an experiment found, in short: the lines at the top of its page, and the table of the README."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.experiments.bounds import (
    BOUNDS,
    CONTROLS,
    IFEVAL,
    IFEVAL_KEPT,
    INSTRUCTIONS,
    MISSED,
    OWN,
    OWN_PROMPTS,
    PROMPTS,
    reached,
    suite,
)
from pipelines.experiments.page_cells import (
    COUNTS,
    arm_names,
    bound_means,
    cycles_done,
    machine_name,
    mean_cell,
    number,
    seed_count,
    title,
)
from pipelines.experiments.paired import Share, share_of_base
from pipelines.experiments.records import Record

_ALONE = (
    " They are about the choice of prompts alone, given these seeds; how far seeds differ is [in the table]"
    "(#against-the-bounds), and comes on top."
)


def in_short(records: Sequence[Record], main: str, notes: Sequence[str] = ()) -> list[str]:
    """Return what the page says, in a few lines: the main arm, what it misses, its cost, and where the rest is."""
    mine = [record for record in records if record.arm == main]
    if not mine or any(record.short or record.cut > 1 for record in records):
        return []
    cycles, wanted = max(record.cycles for record in mine), mine[0].wanted
    seeds = len({record.seed for record in mine})
    count = "One seed" if seeds == 1 else f"{seeds} seeds"
    means_of = " Each figure is the mean of the seeds that have the cycle." if seeds > 1 else ""
    lines = [f"`make real` runs the arm `{main}`: {title(mine[0])}. {count}, {cycles_done(mine)}.{means_of}"]
    for bound in BOUNDS:
        means = bound_means(bound, mine, cycles)
        if bound.must is not None and means:
            word = "Below its bound" if reached(bound, means) == MISSED else "At or above its bound"
            shown = ", ".join(mean_cell([mean], bound.percent) for mean in means)
            lines.append(f"{word}: {bound.name} {shown} (must: {number(bound.must, bound.percent)}).")
    lines += [*_undecided(mine), *notes]
    lines.append(f"A share of fewer than ten answered questions decides nothing: [counts](#{COUNTS}).")
    for bound in PROMPTS:
        if means := bound_means(bound, mine, cycles):
            lines.append(f"Shown beside them: {bound.name} {', '.join(mean_cell([mean]) for mean in means)}.")
    if controls := bound_means(CONTROLS, mine, cycles):
        shown = ", ".join(mean_cell([mean], percent=True) for mean in controls)
        lines.append(f"Control questions, whose answers are on no page, gained {shown} points: so much may be guessed.")
    hours = sum(one.cost.get("seconds", 0.0) for one in mine[0].checkpoints if one.kind != "base") / 3600
    whose = f"seed {mine[0].seed}, {machine_name(mine[0])}"
    lines.append(f"Its training took {hours:.1f} hours for {mine[0].cycles} cycles ({whose}); evaluations are extra.")
    whole = _reach_ifeval(records, wanted)
    lines.append(f"Arms with all {wanted} cycles whose IFEval is at or above its bound in each: {whole}.")
    lines.append("What was tried against what is missed: the [log](log.md).")
    return ["## In short", "", *(f"- {line}" for line in lines), ""]


def _undecided(records: Sequence[Record]) -> list[str]:
    """Return the line that says how well the runs of an arm know its shares of base; nothing without items to pair.

    The intervals are of the means over seeds, about the prompts alone; the spread over seeds is in the table of bounds.
    """
    shown: dict[str, list[str]] = {}  # by the seeds, should a run lack a suite
    for name, on, level, score in (
        ("IFEval, instructions", IFEVAL, "instructions", INSTRUCTIONS),
        ("own prompts, instructions", OWN, "instructions", OWN_PROMPTS),
        ("IFEval, prompts", IFEVAL, "prompts", suite(IFEVAL)),
        ("own prompts, prompts", OWN, "prompts", suite(OWN)),
    ):
        cycles = range(1, max(record.cycles for record in records) + 1)
        found = [share_of_base(records, cycle, score, on, level) for cycle in cycles]
        shares = [share for share in found if share is not None]
        if shares:
            ranges = ", ".join(f"{share.low:.2f} to {share.high:.2f}" for share in shares)
            shown.setdefault(_seeds(shares), []).append(f"{name} {ranges}")
    lines = [
        f"Paired 95% intervals of the shares of base, {seeds}: {'; '.join(those)}." for seeds, those in shown.items()
    ]
    return [f"{line} One that contains its bound does not decide it.{_ALONE * (len(records) > 1)}" for line in lines]


def _seeds(shares: Sequence[Share]) -> str:
    """Return whose shares they are: the seed if there is one, else how many there are in each cycle."""
    if len(seeds := {seed for share in shares for seed in share.seeds}) == 1:
        return f"seed {min(seeds)}"
    return f"mean over seeds ({', '.join(f'{len(share.seeds)} in cycle {share.cycle}' for share in shares)})"


def _reach_ifeval(records: Sequence[Record], wanted: int) -> str:
    """Return the arms with all cycles, and over how many seeds: those that reach the bound on IFEval, those that miss
    it, and those that were not measured by it.
    """
    reaching: list[str] = []
    others: list[str] = []
    unknown: list[str] = []
    for name in arm_names(records):
        full = [record for record in records if record.arm == name and record.cycles >= wanted]
        means, shown = bound_means(IFEVAL_KEPT, full, wanted), f"`{name}` ({seed_count(len(full))})"
        if means and reached(IFEVAL_KEPT, means) == MISSED:
            others.append(shown)
        elif full:
            (reaching if len(means) == wanted else unknown).append(shown)
    return (
        (", ".join(reaching) or "none")
        + (f"; below it in one or more: {', '.join(others)}" if others else "")
        + (f"; not measured: {', '.join(unknown)}" if unknown else "")
    )
