"""Growth: fifty cycles in one workspace; what each of them takes, and what it adds.

Run: python -m benchmarks.growth [--cycles 50] [--write]

Each cycle is a process of its own (`recover cycle --docs ...`) with short stages on a corpus of the miniature's world,
as if the next documents arrived a month later. After it, its processor time, its largest resident memory, the time of
its stages and what it added to the workspace are recorded. An evaluation has at most 12 items a suite, and of each kind
at most 120 questions about all earlier corpora. Each figure is fitted with a straight line over the cycles after the
first eleven, from which on that bound holds. Where the slope is within noise (95% interval), a cycle adds as much as
the one before it, so that the total grows linearly. Nothing is pruned meanwhile; what `recover prune` would delete is
listed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from scipy import stats

from benchmarks import _report
from benchmarks.soak import FLAGS
from db import open_readonly, queries
from recovery.miniature.corpora import write_corpora

SETTLED = 11  # cycles left out of the fits
SHOWN = 10  # every tenth cycle is in the table
STAGES = {"midtrain": "mid-training, s", "distill": "recovery, s", "evaluate": "evaluation, s"}
PROCESSOR, MEMORY = "processor time, s", "peak memory, MiB"
PARTS = {"checkpoints": "checkpoints, MiB", "tracker.db": "tracker, MiB", "corpora": "documents, MiB"}
OTHER, FILES, SAMPLES = "other files, MiB", "files", "responses recorded"

BOUNDED = ("--earlier-limit", "120")

# {measure: value of one cycle}
Row = dict[str, float]


def run(cycles: int, folder: Path) -> list[Row]:
    """Run the cycles one after the other; return a row for each."""
    workspace, rows, before = folder / "workspace", [], Row()
    for number, corpus in enumerate(write_corpora(folder / "corpora", cycles, entities=6, documents=4), 1):
        command = [sys.executable, "-m", "recovery", "cycle", "--workspace", str(workspace), "--docs", str(corpus)]
        with (folder / "log.txt").open("a", encoding="utf-8") as log:
            process = subprocess.Popen([*command, *FLAGS, *BOUNDED], stdout=log, stderr=log, env=_environment())
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            lines = (folder / "log.txt").read_text(encoding="utf-8").splitlines()[-20:]
            raise SystemExit(f"cycle {number} ended with status {process.returncode}:\n" + "\n".join(lines))
        after = sizes(workspace)
        added = {name: value - before.get(name, 0) for name, value in after.items()}
        spent = {PROCESSOR: used.ru_utime + used.ru_stime, MEMORY: used.ru_maxrss / 1024}
        rows.append(spent | stages(workspace, number) | added)
        before = after
        print(f"cycle {number}: {', '.join(f'{name} {value:,.1f}' for name, value in rows[-1].items())}", flush=True)
    return rows


def sizes(workspace: Path) -> Row:
    """Return the size of the workspace by part, and its number of files."""
    found = dict.fromkeys((*PARTS.values(), OTHER, FILES), 0.0)
    for path in workspace.rglob("*"):
        if path.is_file():
            name = path.relative_to(workspace).parts[0]
            part = next((shown for start, shown in PARTS.items() if name.startswith(start)), OTHER)
            found[part] += path.stat().st_size / 2**20
            found[FILES] += 1
    return found


def stages(workspace: Path, cycle: int) -> Row:
    """Return the seconds of a cycle's stages by kind, and how many responses its evaluations recorded."""
    database = open_readonly(workspace / "tracker.db")
    try:
        (experiment,) = queries.experiments(database)
        mine = [s for s in queries.stages(database, experiment.id, limit=10_000) if s.cycle == cycle]
        recorded = sum(
            evaluation.n
            for checkpoint in queries.checkpoints(database, experiment.id)
            for evaluation in queries.evaluations(database, checkpoint.id, limit=100_000)
            if evaluation.stage_id in {stage.id for stage in mine}
        )
    finally:
        database.close()
    seconds = {shown: sum(s.wall_seconds for s in mine if s.kind == kind) for kind, shown in STAGES.items()}
    return seconds | {SAMPLES: float(recorded)}


def fit(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of a measure after the first cycles, its slope a cycle, and half the slope's 95% interval."""
    settled = values[SETTLED:]
    line = stats.linregress(range(len(settled)), settled)
    return sum(settled) / len(settled), float(line.slope), float(stats.t.ppf(0.975, len(settled) - 2) * line.stderr)


def body(rows: Sequence[Row], prunable: str) -> str:
    """Return the tables: some cycles, and the straight lines."""
    numbers = sorted({1, *range(SHOWN, len(rows) + 1, SHOWN), len(rows)})
    some = [(measure, *(_shown(rows[n - 1][measure]) for n in numbers)) for measure in rows[0]]
    lines = []
    for measure in rows[0]:
        mean, slope, sure = fit([row[measure] for row in rows])
        share = f"{100 * slope / mean:+.2f} ± {100 * sure / abs(mean):.2f}%" if mean else "0"
        constant = (
            max(row[measure] for row in rows[SETTLED:]) - min(row[measure] for row in rows[SETTLED:]) <= 1e-3 * mean
        )
        verdict = "constant" if constant else "grows" if slope - sure > 0 else "no growth seen"
        lines.append((measure, _shown(mean), "0" if constant else share, verdict))
    return "\n\n".join(
        (
            _report.table(("one cycle", *(f"cycle {n}" for n in numbers)), some),
            _report.table(("one cycle", "mean", "slope a cycle (95% interval)", "verdict"), lines),
            f"`recover prune` at the end: {prunable}.",
        )
    )


def _shown(value: float) -> str:
    return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def _environment() -> Mapping[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def _prunable(workspace: Path) -> str:
    command = [sys.executable, "-m", "recovery", "prune", "--workspace", str(workspace)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment()).stdout
    return told.strip().splitlines()[-1]


def main() -> int:
    """Run and print; write with --write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    if given.cycles < SETTLED + 3:
        parser.error(
            f"--cycles must be at least {SETTLED + 3}: a line is fitted to the cycles after the first {SETTLED}"
        )
    facts = _report.machine(("torch", "transformers"))
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        rows = run(given.cycles, Path(folder))
        prunable = _prunable(Path(folder) / "workspace")
    text = body(rows, prunable)
    print(text)
    if given.write:
        about = (__doc__ or "").split("\n\n", 2)[2]
        data = {"cycles": rows, "prunable": prunable}
        page = _report.write("growth", "Growth over cycles", f"{about}\n\n{text}", facts, data)
        print(f"written to {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
