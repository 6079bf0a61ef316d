"""Methods side by side: the same start, the same tokens, several seeds, one table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.lab import INSTRUCTIONS, KNOWLEDGE, RETAINED, STORED, Lab
from pipelines.progress import Display
from pipelines.session import Session
from pipelines.spending import Spent
from pipelines.studies.study import spread
from recovery.config import DistillConfig, build
from recovery.methods import METHODS, method_named
from recovery.workspace import Workspace

SUITES = {
    "instructions": INSTRUCTIONS,
    "asked": f"{KNOWLEDGE}/1",
    "stored": f"{STORED}/1",
    "general": RETAINED,
}
START = "midtrained"
# More than any method needs for its tokens: the token budget ends each run.
STEPS = 1000


@dataclass(frozen=True)
class Row:
    """One method over the seeds: its scores by name, what a seed took on average, and how its runs ended."""

    method: str
    scores: Mapping[str, tuple[float, ...]]
    spent: tuple[Spent, ...]
    stopped: tuple[str, ...]


def compare(
    workspace: Workspace,
    methods: Sequence[str],
    docs: Path,
    seeds: Sequence[int],
    *,
    max_tokens: int,
    settings: Mapping[str, Any],
    model: str | None,
    display: Display,
) -> list[Row]:
    """Mid-train on ``docs``, then train by each method from there, for each seed; what is done is not done again.

    ``settings`` are given to every method alike; each stops when it has sampled, scored and trained ``max_tokens``;
    the rate is held constant after its warm-up, since no method knows at which step that will be.
    The first rows are the clean model and the mid-trained one. Raises UsageError for a method that is unknown.
    """
    settings = {"steps": STEPS, "schedule": "constant"} | dict(settings)
    for method in methods:
        build(DistillConfig, _own(method) | settings | {"method": method, "max_tokens": max_tokens})
    model = model or workspace.settings().get("model")
    # Another question is another folder: what is kept there answers this one only.
    asked = json.dumps([str(docs.resolve()), max_tokens, sorted(settings.items())], default=str)
    group = hashlib.sha256(asked.encode()).hexdigest()[:8]
    found: dict[str, list[tuple[dict[str, float], Spent | None, str]]] = {}
    for seed in seeds:
        home = workspace.folder / "comparisons" / group / f"seed-{seed}"
        with Session.open(
            Workspace(home, str(workspace.database)),
            model=model,
            display=display,
            experiment=f"compare/{group}/seed-{seed}",
            purpose="recover compare",
        ) as session:
            lab = Lab(session, seed)
            lab.midtrained(START, docs)
            found.setdefault("base", []).append((_scores(lab, "base"), None, ""))
            found.setdefault(START, []).append((_scores(lab, START), lab.spent(START), ""))
            for method in methods:
                lab.trained(method, START, method, **(_own(method) | settings | {"max_tokens": max_tokens}))
                stopped = str(lab.details(method)["stopped"])
                found.setdefault(method, []).append((_scores(lab, method), lab.spent(method), stopped))
    return [_row(name, runs) for name, runs in found.items()]


def _own(method: str) -> dict[str, Any]:
    """What a method needs to be compared: imitation is of base's answers to the same prompts the others get."""
    return {"answers": "teacher"} if METHODS[method_named(method).name].settings.get("answers") == "given" else {}


def _scores(lab: Lab, name: str) -> dict[str, float]:
    found = lab.scores(name, *lab.available(SUITES.values()))
    return {short: found[suite].value for short, suite in SUITES.items() if suite in found}


def _row(name: str, runs: Sequence[tuple[dict[str, float], Spent | None, str]]) -> Row:
    scores = {suite: tuple(run[0][suite] for run in runs) for suite in runs[0][0]}
    return Row(name, scores, tuple(run[1] for run in runs if run[1] is not None), tuple(run[2] for run in runs))


def text(rows: Sequence[Row], seeds: Sequence[int]) -> str:
    """The comparison as a table: mean ± standard deviation over the seeds."""
    names = list(rows[0].scores)
    lines = [f"{'':<20}" + "".join(f"{name:>16}" for name in names) + f"{'tokens':>12}{'FLOPs':>10}{'seconds':>9}"]
    for row in rows:
        cells = "".join(f"{_cell(row.scores[name]):>16}" for name in names)
        lines.append(f"{row.method:<20}{cells}{_cost(row.spent)}")
    lines.append(f"seeds {', '.join(map(str, seeds))}; mean ± standard deviation; tokens sampled, scored and trained")
    return "\n".join(lines)


def as_json(rows: Sequence[Row], seeds: Sequence[int]) -> dict[str, Any]:
    """The comparison as JSON's own types."""
    return {
        "seeds": list(seeds),
        "rows": [
            {
                "method": row.method,
                "scores": {
                    name: dict(zip(("mean", "spread"), spread(values), strict=True)) | {"by_seed": list(values)}
                    for name, values in row.scores.items()
                },
                "spent": [vars(spent) for spent in row.spent],
                "stopped": list(row.stopped),
            }
            for row in rows
        ],
    }


def _cell(values: Sequence[float]) -> str:
    mean, deviation = spread(values)
    return f"{mean:.3f} ± {deviation:.3f}"


def _cost(spent: Sequence[Spent]) -> str:
    if not spent:
        return ""
    tokens = sum(s.sampled + s.scored + s.trained for s in spent) / len(spent)
    operations = sum(s.flops for s in spent) / len(spent)
    return f"{tokens:>12,.0f}{operations:>10.2g}{sum(s.seconds for s in spent) / len(spent):>9.0f}"
