"""Comparison of methods: the same start, the same tokens, several seeds, one table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.statistics import spread
from pipelines.data.corpus_snapshot import gather
from pipelines.experiment_runner import INSTRUCTIONS, KNOWLEDGE, RETAINED, STORED, ExperimentRunner
from pipelines.reports.cost import Cost
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.config import DistillConfig, build
from recovery.data.prompt_records import prompts_hash
from recovery.methods import METHODS, method_named
from recovery.workspace import Workspace

SUITES = {"instructions": INSTRUCTIONS, "asked": f"{KNOWLEDGE}/1", "stored": f"{STORED}/1", "general": RETAINED}
START = "midtrained"
# More than any method needs for its tokens: the token budget ends each run.
STEPS = 1000


@dataclass(frozen=True)
class Row:
    """One method over the seeds: its scores by name, the cost of each seed, and why its runs stopped."""

    method: str
    scores: Mapping[str, tuple[float, ...]]
    spent: tuple[Cost, ...]
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
    """Mid-train on ``docs``, then train with each method from there, for each seed.

    Finished runs from the same documents are not repeated.

    Every method gets the same ``settings`` and stops when it has sampled, scored and trained ``max_tokens``; the
    learning rate is constant from the first step on: the last one is not known in advance, and a warm-up of some steps
    would be most of one method's run and little of another's. The first rows are the clean model and the mid-trained
    one. Raises UsageError, before anything is trained, for an unknown method or one that the model's prompts do not
    suit.
    """
    settings = {"steps": STEPS, "schedule": "constant", "warmup": 0.0} | dict(settings)
    methods = tuple(dict.fromkeys(methods))  # one that is named twice has no more seeds
    for method in methods:
        build(DistillConfig, _own(method) | settings | {"method": method, "max_tokens": max_tokens})
    model = model or workspace.settings().get("model")
    group = _group(docs, max_tokens, settings)
    found: dict[str, list[tuple[dict[str, float], Cost | None, str]]] = {}
    for seed in seeds:
        home = workspace.folder / "comparisons" / group / f"seed-{seed}"
        with Session.open(
            Workspace(home, str(workspace.database), workspace.report_to),
            model=model,
            display=display,
            experiment=f"compare/{group}/seed-{seed}",
            purpose="recover compare",
        ) as session:
            runner = ExperimentRunner(session, seed)
            own = {method: _own(method) | settings | {"max_tokens": max_tokens} for method in methods}
            for method in methods:  # what one lacks would otherwise be found after hours of the others
                runner.check(method, **own[method])
            runner.midtrained(START, docs)
            found.setdefault("base", []).append((_scores(runner, "base"), None, ""))
            found.setdefault(START, []).append((_scores(runner, START), runner.cost_of(START), ""))
            for method in methods:
                runner.trained(method, START, method, **own[method])
                stopped = str(runner.details(method)["stopped"])
                found.setdefault(method, []).append((_scores(runner, method), runner.cost_of(method), stopped))
    return [_row(name, runs) for name, runs in found.items()]


def _group(docs: Path, max_tokens: int, settings: Mapping[str, Any]) -> str:
    """Return the name of the folder of a comparison. Other documents, or files that come with them, and other settings
    get another one, so that results are never mixed.
    """
    own = gather(docs, 1, held_out=0.0, seed=0)
    texts = [(text.text, text.question) for text in own.texts]
    asked = [own.hash, own.probes_hash, prompts_hash(own.questions), texts, max_tokens, sorted(settings.items())]
    return hashlib.sha256(json.dumps(asked, default=str).encode()).hexdigest()[:8]


def _own(method: str) -> dict[str, Any]:
    """Return a method's own settings: imitation uses base's completions of the prompts that the others get."""
    return {"answers": "teacher"} if METHODS[method_named(method).name].settings.get("answers") == "given" else {}


def _scores(runner: ExperimentRunner, name: str) -> dict[str, float]:
    found = runner.scores(name, *runner.available(SUITES.values()))
    return {short: found[suite].value for short, suite in SUITES.items() if suite in found}


def _row(name: str, runs: Sequence[tuple[dict[str, float], Cost | None, str]]) -> Row:
    scores = {suite: tuple(run[0][suite] for run in runs) for suite in runs[0][0]}
    return Row(name, scores, tuple(run[1] for run in runs if run[1] is not None), tuple(run[2] for run in runs))


def text(rows: Sequence[Row], seeds: Sequence[int]) -> str:
    """Return the comparison as a table: mean ± standard deviation over the seeds."""
    names = list(rows[0].scores)
    lines = [f"{'':<20}" + "".join(f"{name:>16}" for name in names) + f"{'tokens':>12}{'FLOPs':>10}{'seconds':>9}"]
    for row in rows:
        shown = ("{:.3f} ± {:.3f}".format(*spread(row.scores[name])) for name in names)
        cells = "".join(f"{cell:>16}" for cell in shown)
        lines.append(f"{row.method:<20}{cells}{_cost(row.spent)}")
    lines.append(f"seeds {', '.join(map(str, seeds))}; mean ± standard deviation; tokens sampled, scored and trained")
    return "\n".join(lines)


def as_json(rows: Sequence[Row], seeds: Sequence[int]) -> dict[str, Any]:
    """Return the comparison as JSON types."""
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


def _cost(spent: Sequence[Cost]) -> str:
    if not spent:
        return ""
    tokens = sum(s.sampled + s.scored + s.trained for s in spent) / len(spent)
    operations = sum(s.flops for s in spent) / len(spent)
    return f"{tokens:>12,.0f}{operations:>10.2g}{sum(s.seconds for s in spent) / len(spent):>9.0f}"
