"""The README's picture and its lines about the real model, from the records of docs/real (write_real.py)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from db.cycle_evidence import POOLED
from pipelines.experiments.page import SAME_OPERATIONS, gain_cell, share
from pipelines.experiments.records import (
    BEYOND,
    FACTS,
    IFEVAL,
    OPENED,
    OWN,
    OWN_BEYOND,
    Record,
    beside,
    relative,
    shares_by_run,
)

CYCLES = 3
RESULTS = Path(__file__).resolve().parent.parent / "benchmarks/results"
JOB = RESULTS / "job-smollm2.json"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 330, 64, 190, 46, 44
HIGHEST = 1.2  # of the vertical axis, in shares of base
# Arm, kind of checkpoint at the end of a cycle, colour, and the words beside its line.
LINES = (
    ("{main}", "recovered", "#2f6fb7", "the defaults", ""),
    ("replay", "midtrained", "#8a8f98", "documents with", "30% chat replay"),
    ("documents", "midtrained", "#c2571a", "documents alone", ""),
)
STYLE = (
    "text{fill:#333}.grid{stroke:#ddd}.axis{stroke:#999}@media (prefers-color-scheme:dark)"
    "{text{fill:#ddd}.back{fill:#16181d}.grid{stroke:#333}.axis{stroke:#777}}"
)


def lines(records: Sequence[Record], main: str) -> str:
    """Return what the README says of behaviour, knowledge and speed."""
    mine = [record for record in records if record.arm == main]
    scored = [record for record in mine if relative(BEYOND, record, 1, "recovered") is not None]
    last = max(record.cycles for record in scored)
    kept = [share(scored, cycle, "recovered", BEYOND, IFEVAL) for cycle in (1, last)]
    seeds = [_seeds(len(shares_by_run(BEYOND, scored, cycle, "recovered"))) for cycle in (1, last)]
    own = [share(mine, cycle, "recovered", OWN_BEYOND, OWN) for cycle in (1, last)]
    alone = share([record for record in records if record.arm == "documents"], 1, "midtrained", BEYOND, IFEVAL)
    cycles = max(record.cycles for record in mine)
    gap = gain_cell(mine, cycles, "recovered", "gap_closed", POOLED)
    facts, opened = (
        statistics.fmean(v for r in mine if (v := column(r, cycles, kind)) is not None)
        for column, kind in ((FACTS, "recovered"), (OPENED, "base"))
    )
    runs = json.loads(JOB.read_text(encoding="utf-8"))["runs"]
    pairs = [peer["seconds"] / own["seconds"] for own, peer in zip(runs["ours"], runs["TRL"], strict=True)]
    return (
        f"- **Behaviour.** Training on documents and questions alone leaves {alone} of SmolLM2-135M's\n"
        f"  score on IFEval, not counting instructions that a constant reply follows (95% intervals).\n"
        f"  The defaults leave {kept[0]} after one cycle ({seeds[0]}), {kept[1]} after {last} ({seeds[1]});\n"
        f"  on own prompts {own[0]} and {own[1]}.\n"
        f"{_against_replay(records, mine)}"
        f"- **Knowledge.** After {cycles} cycles {gap} of the gap between the clean model's answers without\n"
        f"  and with the page is closed ({_seeds(sum(r.cycles == cycles for r in mine))}).\n"
        f"  Of facts never asked in training it answers {facts:.0%}, the clean model with the page {opened:.0%}.\n"
        f"  [All figures](docs/real.md)\n"
        f"- **Speed.** TRL takes {statistics.median(pairs):.1f} times as long for a whole short job\n"
        f"  ([figures](benchmarks/results/job-smollm2.md))."
    )


def _against_replay(records: Sequence[Record], mine: Sequence[Record]) -> str:
    """Return how far replay at the same operations is below after the last cycle that the first seed of both has.

    Empty if one of the differences is not shown.
    """
    pairs = [(one, r) for r in records if r.arm == SAME_OPERATIONS for one in mine if one.seed == r.seed]
    if not pairs:
        return ""
    own, replayed = pairs[0]
    cycle = min(own.cycles, replayed.cycles)
    found = beside(own, replayed, cycle)
    if len(found) < 2 or any(one.low <= 0 or (one.p_adjusted or 0.0) >= 0.05 for one in found):
        return ""
    less = {
        one.name: (f"{100 * one.difference:.1f}", f"({100 * one.low:.1f} to {100 * one.high:.1f})") for one in found
    }
    return (
        f"  After {cycle} cycles, 30% replay at the same operations is {less['instructions'][0]} points\n"
        f"  {less['instructions'][1]} below on these, {' '.join(less['questions'])} on questions (one seed).\n"
    )


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def picture(records: Sequence[Record], main: str) -> str:
    """Return the picture as SVG: IFEval's instructions beyond constant replies, of base, after each cycle."""
    marks = [
        f'<text x="{LEFT}" y="20" font-weight="600">Instructions still followed, of the clean model\'s</text>',
        f'<text x="{LEFT}" y="37" font-size="12">IFEval, those that no constant reply follows; after each cycle\'s '
        f"last stage; faint: single seeds</text>",
    ]
    for level in (0.0, 0.25, 0.5, 0.75, 1.0):
        kind = "axis" if level in (0.0, 1.0) else "grid"
        marks.append(f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(level)}" y2="{_y(level)}"/>')
        marks.append(f'<text x="{LEFT - 8}" y="{_y(level) + 4}" text-anchor="end" font-size="12">{level:.0%}</text>')
    for cycle in range(CYCLES + 1):
        name = f"cycle {cycle}" if cycle else "clean"
        marks.append(
            f'<text x="{_x(cycle)}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle" font-size="12">{name}</text>'
        )
    for arm, kind, colour, *words in LINES:
        arm = arm.format(main=main)
        seeds = [[relative(BEYOND, r, c, kind) for c in range(1, CYCLES + 1)] for r in records if r.arm == arm]
        means = [_mean(records, arm, cycle, kind) for cycle in range(1, CYCLES + 1)]
        marks += [_line(values, colour, 'stroke-width="1" opacity="0.35"') for values in seeds]
        marks.append(_line(means, colour, 'stroke-width="3"'))
        marks += [
            f'<circle cx="{_x(cycle)}" cy="{_y(value)}" r="4.5" fill="{colour}"/>'
            for cycle, value in enumerate(means, 1)
            if value is not None
        ]
        end = next(value for value in reversed(means) if value is not None)
        for row, word in enumerate(filter(None, words)):
            y = _y(end) + 4 + 16 * row - 8 * (len(words[1]) > 0)
            marks.append(f'<text x="{WIDTH - RIGHT + 14}" y="{y}" style="fill:{colour}" font-size="13">{word}</text>')
    body = "\n".join(marks)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" '
        f'font-size="14"><style>{STYLE}</style>\n<rect class="back" width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n'
        f"{body}\n</svg>\n"
    )


def _mean(records: Sequence[Record], arm: str, cycle: int, kind: str) -> float | None:
    kept = shares_by_run(BEYOND, [record for record in records if record.arm == arm], cycle, kind)
    return statistics.fmean(kept) if kept else None


def _line(values: Sequence[float | None], colour: str, style: str) -> str:
    points = [(0, 1.0), *((cycle, value) for cycle, value in enumerate(values, 1) if value is not None)]
    path = " ".join(f"{_x(cycle)},{_y(value)}" for cycle, value in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" {style}/>'


def _x(cycle: int) -> float:
    return round(LEFT + 20 + cycle * (WIDTH - LEFT - RIGHT - 40) / CYCLES, 1)


def _y(share: float) -> float:
    return round(HEIGHT - BOTTOM - max(share, 0.0) / HIGHEST * (HEIGHT - TOP - BOTTOM), 1)
