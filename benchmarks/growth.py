"""Growth: fifty cycles in one workspace; what each of them takes, and what it adds. Or one cycle by documents.

Run: python -m benchmarks.growth [--cycles 50 | --documents] [--write]

Each cycle is a process of its own (`recover cycle --docs ...`) with short stages on a corpus of the miniature's world,
as if the next documents arrived a month later. After it, its processor time, its largest resident memory, the time of
its stages and what it added to the workspace are recorded. An evaluation has at most 12 items a suite, and of each kind
at most 120 questions about all earlier corpora. Each figure is fitted with a straight line over the cycles after the
first eleven, from which on that bound holds. Where the slope is within noise (95% interval), a cycle adds as much as
the one before it, so that the total grows linearly. Nothing is pruned meanwhile; what `recover prune` would delete is
listed.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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

SERVICES = 5  # number in the smallest corpus; each has the documents that write_corpora gives it by default
TIMES = (1, 10, 100)  # a hundred times as many services are within the names that the world has
FASTEST = 1.05  # largest exponent that counts as no faster than the documents
DOCUMENTS = "documents"
STEPS, TRAINING, WHOLE = "planned steps, mid-training", "planned hours, mid-training", "planned hours, cycle"
BY_DOCUMENTS = f"""\
One cycle of 1, 10 and 100 times as many documents (--documents), each in a process and a workspace of its own.
The corpora are of the miniature's one world: {SERVICES} services at first, then more services with as many documents
each, all different. Stages have a fixed number of steps and evaluations at most 12 items a suite, as for the fifty
cycles, so that what is measured is the work on the documents around them. Checkpoints do not depend on documents and
are left out. The planned steps and hours are those of `recover cycle --dry-run` with the defaults, whose mid-training
passes over all documents; its hours follow from a speed that is measured anew for each plan.

The exponent is log(ratio of values) / log(ratio of documents): 1 is proportional, less is less. It must be at most
{FASTEST} between the two largest sizes. A fixed part, as the start of the process, lowers it; the last exponent is
that of the differences between the sizes, in which a fixed part cancels. It is reported only: between the two small
sizes, time and memory differ by little more than noise.
"""

# {measure: value of one cycle}
Row = dict[str, float]


def run(cycles: int, folder: Path) -> list[Row]:
    """Run the cycles one after the other; return a row for each."""
    workspace, rows, before = folder / "workspace", [], Row()
    for number, corpus in enumerate(write_corpora(folder / "corpora", cycles, entities=6, documents=4), 1):
        spent = cycle(workspace, corpus, folder / "log.txt")
        after = sizes(workspace)
        added = {name: value - before.get(name, 0) for name, value in after.items()}
        rows.append(spent | stages(workspace, number) | added)
        before = after
        print(f"cycle {number}: {', '.join(f'{name} {value:,.1f}' for name, value in rows[-1].items())}", flush=True)
    return rows


def cycle(workspace: Path, corpus: Path, log: Path) -> Row:
    """Run a cycle in a process of its own; return its processor time and its peak memory."""
    command = [sys.executable, "-m", "recovery", "cycle", "--workspace", str(workspace), "--docs", str(corpus)]
    with log.open("a", encoding="utf-8") as out:
        process = subprocess.Popen([*command, *FLAGS, *BOUNDED], stdout=out, stderr=out, env=_environment())
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        lines = log.read_text(encoding="utf-8").splitlines()[-20:]
        raise SystemExit(f"the cycle on {corpus} ended with status {process.returncode}:\n" + "\n".join(lines))
    return {PROCESSOR: used.ru_utime + used.ru_stime, MEMORY: used.ru_maxrss / 1024}


def by_documents(folder: Path) -> list[Row]:
    """Run a cycle of each number of documents and plan one with the defaults; return a row for each."""
    rows = []
    for times in TIMES:
        (corpus,) = write_corpora(folder / f"corpora-{times}", 1, entities=SERVICES * times)
        workspace = folder / f"workspace-{times}"
        spent = cycle(workspace, corpus, folder / "log.txt")
        kept = sizes(workspace) | {SAMPLES: stages(workspace, 1)[SAMPLES]}
        del kept[PARTS["checkpoints"]]
        rows.append({DOCUMENTS: float(len(list(corpus.glob("*.md"))))} | spent | kept | planned(folder / "new", corpus))
        print(", ".join(f"{name} {value:,.2f}" for name, value in rows[-1].items()), flush=True)
    return rows


def planned(workspace: Path, corpus: Path) -> Row:
    """Return the steps and hours that a cycle with the defaults would take, in a new workspace."""
    command = [sys.executable, "-m", "recovery", "cycle", "--workspace", str(workspace), "--docs", str(corpus)]
    told = subprocess.run([*command, "--dry-run", "--json"], stdout=subprocess.PIPE, check=True, env=_environment())
    plan = json.loads(told.stdout)
    training = sum(stage["seconds"] for stage in plan["midtrain"])
    steps = sum(stage["steps"] for stage in plan["midtrain"])
    return {STEPS: float(steps), TRAINING: training / 3600, WHOLE: plan["seconds"] / 3600}


def exponents(documents: Sequence[float], values: Sequence[float]) -> list[float | None]:
    """Return the growth exponent from each size to the next one, and that of the differences; None if undefined."""

    def of(more: float, less: float, by: float) -> float | None:
        return math.log(more / less) / math.log(by) if more > 0 and less > 0 else None

    one, ten, hundred = values
    first, second, third = documents
    return [
        of(ten, one, second / first),
        of(hundred, ten, third / second),
        of(hundred - ten, ten - one, (third - second) / (second - first)),
    ]


def documents_body(rows: Sequence[Row]) -> tuple[str, bool]:
    """Return the tables by number of documents, and whether nothing grows faster than the documents."""
    documents = [row[DOCUMENTS] for row in rows]
    shown, each, good = [], [], True
    for measure in [name for name in rows[0] if name != DOCUMENTS]:
        values = [row[measure] for row in rows]
        found = exponents(documents, values)
        met = found[1] is None or found[1] <= FASTEST
        good = good and met
        powers = ("-" if power is None else f"{power:.2f}" for power in found)
        shown.append((measure, *map(_short, values), *powers, "met" if met else "MISSED"))
        each.append((measure, *(_short(value / n) for value, n in zip(values, documents, strict=True))))
    columns = [f"{n:,.0f} documents" for n in documents]
    powers_of = ("exponent, 1x to 10x", f"10x to 100x (at most {FASTEST})", "of the differences", "verdict")
    tables = _report.table(("a cycle", *columns, *powers_of), shown), _report.table(("a document", *columns), each)
    return "\n\n".join(tables), good


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


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
    parser = _report.parser(__doc__, "growth")
    parser.epilog = BY_DOCUMENTS
    parser.add_argument("--cycles", type=int, default=50, help="cycles in one workspace (default: 50)")
    parser.add_argument("--documents", action="store_true", help="instead, one cycle by its number of documents")
    given = parser.parse_args()
    if given.cycles < SETTLED + 3:
        parser.error(
            f"--cycles must be at least {SETTLED + 3}: a line is fitted to the cycles after the first {SETTLED}"
        )
    facts, good = _report.machine(("torch", "transformers")), True
    data: dict[str, Any]
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        if given.documents:
            rows = by_documents(Path(folder))
            (text, good), data = documents_body(rows), {"sizes": rows}
            name, title, about = "growth-documents", "Growth over documents", BY_DOCUMENTS
        else:
            rows = run(given.cycles, Path(folder))
            prunable = _prunable(Path(folder) / "workspace")
            text, data = body(rows, prunable), {"cycles": rows, "prunable": prunable}
            name, title, about = "growth", "Growth over cycles", _report.note(__doc__)
    print(text)
    if given.write:
        page = _report.write(name, title, f"{about}\n\n{text}", facts, data)
        print(f"written to {page}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
