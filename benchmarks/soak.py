"""Long run: cycle after cycle in one process, with its memory, open files and child processes monitored.

Run: python -m benchmarks.soak [--minutes 20] [--engine transformers] [--write]

`recover cycle` processes more of the miniature's corpora than the time allows, with short stages, and is stopped by
one SIGINT when the time is over, as a user would. Meanwhile its resident memory, open files and threads are read from
the kernel. Memory is compared by the maximum of each cycle, after the first quarter of the cycles, in which caches
fill. The slope is that of a straight line through these values, with a 95% interval. Later cycles are evaluated on all
corpora so far, a few items each, so some growth is expected; it is included in the slope.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scipy import stats

from benchmarks import _report
from db import open_readonly, queries
from recovery.miniature.corpora import write_corpora

CORPORA = 120
EVERY = 1.0  # seconds between two readings
PATIENCE = 180.0  # seconds allowed for stopping
FLAGS = (
    *("--midtrain-steps", "6", "--distill-steps", "4", "--until", "0", "--limit", "12"),
    *("--max-new-tokens", "32", "--replay-documents", "0.2"),
)


@dataclass(frozen=True)
class Look:
    """One reading of the process from the kernel: seconds since the start, bytes, counts."""

    at: float
    resident: int
    files: int
    threads: int
    children: int


@dataclass
class Watched:
    """A whole run: readings, end times of the cycles, leftover processes and files."""

    looks: list[Look] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    status: int = 0
    left_processes: int = 0
    left_files: int = 0

    def peaks(self) -> list[tuple[float, float]]:
        """Return (time, largest resident memory in MiB) of each complete cycle after the first quarter of them."""
        found = []
        for begin, end in zip(self.ends, self.ends[1:], strict=False):
            inside = [look.resident for look in self.looks if begin < look.at <= end]
            if inside:
                found.append((end, max(inside) / 2**20))
        return found[len(found) // 4 :]


def run(minutes: float, flags: Sequence[str], folder: Path) -> Watched:
    """Start the process, monitor it, stop it."""
    corpora = write_corpora(folder / "corpora", CORPORA, entities=6, documents=4)
    temporary = folder / "tmp"
    temporary.mkdir()
    documents = [part for corpus in corpora for part in ("--docs", str(corpus))]
    command = [sys.executable, "-m", "recovery", "cycle", "--workspace", str(folder / "work"), *documents]
    # torch keeps its compile cache on purpose, for later processes: it does not count as leftover.
    compiled = str(folder / "compiled")
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary), "TORCHINDUCTOR_CACHE_DIR": compiled,
        "PYTHONFAULTHANDLER": "1",
    }  # fmt: skip
    seen, log = Watched(), folder / "log.txt"
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, *FLAGS, *flags], stdout=out, stderr=subprocess.STDOUT, env=environment, process_group=0
        )
        started, wall = time.monotonic(), time.time()
        while process.poll() is None and time.monotonic() - started < 60 * minutes:
            time.sleep(EVERY)
            look = _look(process.pid, time.monotonic() - started)
            if look is not None:
                seen.looks.append(look)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            seen.status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # faulthandler prints its stack
            process.wait()
            stack = "\n".join(log.read_text(encoding="utf-8").splitlines()[-80:])
            raise SystemExit(
                f"the run did not stop within {PATIENCE:g} seconds of a SIGINT; its stack:\n{stack}"
            ) from None
    time.sleep(2)
    seen.left_processes = _group(process.pid)
    files = [path for path in temporary.rglob("*") if path.is_file()]
    seen.left_files = sum("torchinductor_" not in str(path) for path in files)  # torch's headers, as above
    seen.ends = [end - wall for end in _cycle_ends(folder / "work" / "tracker.db")]
    if len(seen.ends) < 6:
        lines = "\n".join(log.read_text(encoding="utf-8").splitlines()[-20:])
        raise SystemExit(f"only {len(seen.ends)} cycles in {minutes:g} minutes (status {seen.status}):\n{lines}")
    return seen


def _look(pid: int, at: float) -> Look | None:
    """Return a reading; None if the process has just ended."""
    try:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        )
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except (OSError, ValueError):
        return None
    if "VmRSS" not in status:
        return None
    return Look(at, int(status["VmRSS"].split()[0]) * 1024, files, int(status["Threads"]), _group(pid) - 1)


def _group(pid: int) -> int:
    """Return the number of processes in the group."""
    found = 0
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                fields = (path / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            found += int(fields[2]) == pid
    return found


def _cycle_ends(tracker: Path) -> list[float]:
    """Return the end times of the last evaluation of each cycle."""
    database = open_readonly(tracker)
    try:
        (experiment,) = queries.experiments(database)
        stages = queries.stages(database, experiment.id, limit=10_000)
    finally:
        database.close()
    ends: dict[int, list[float]] = {}
    for stage in stages:
        if stage.kind == "evaluate" and stage.cycle is not None and stage.finished_at is not None:
            ends.setdefault(stage.cycle, []).append(stage.finished_at)
    return sorted(max(times) for times in ends.values() if len(times) > 1)


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the slope in MiB per hour, and half the width of its 95% interval."""
    hours, values = [at / 3600 for at, _ in points], [value for _, value in points]
    line = stats.linregress(hours, values)
    return float(line.slope), float(stats.t.ppf(0.975, len(points) - 2) * line.stderr)


def main() -> int:
    """Run and print; write with --write. Return 1 if memory or files grew, or something was left behind."""
    parser = _report.parser(__doc__, "soak-ENGINE")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--engine", default="transformers", help="engine, as for recover cycle")
    given = parser.parse_args()
    facts = _report.machine(("torch", "transformers", "vllm"))
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        flags = () if given.engine == "transformers" else ("--engine", given.engine)
        seen = run(given.minutes, flags, Path(folder))
    peaks = seen.peaks()
    grown, sure = slope(peaks)
    first, last = seen.looks[len(seen.looks) // 4], seen.looks[-1]
    body = _report.table(
        ("over the run", "value"),
        [
            ("engine", given.engine),
            ("minutes, whole cycles", f"{seen.looks[-1].at / 60:.1f}, {len(seen.ends)}"),
            ("peak memory of a cycle, mean", f"{math.fsum(v for _, v in peaks) / len(peaks):,.0f} MiB"),
            ("its slope (95% interval)", f"{grown:+.0f} ± {sure:.0f} MiB per hour"),
            ("open files, after a quarter and at the end", f"{first.files}, {last.files}"),
            ("threads, after a quarter and at the end", f"{first.threads}, {last.threads}"),
            ("processes left behind", seen.left_processes),
            ("temporary files left behind", seen.left_files),
        ],
    )
    noise = grown - sure <= 0
    good = noise and not seen.left_processes and not seen.left_files and last.files <= first.files + 4
    verdict = f"Memory's slope is {'within noise' if noise else 'above noise'}; {'met' if good else 'missed'}."
    print(f"{body}\n\n{', '.join(f'{value:.0f}' for _, value in peaks)} MiB\n\n{verdict}")
    if given.write:
        text = f"{_report.note(__doc__)}\n\n{body}\n\n{verdict}"
        data = {"peaks": peaks, "slope": grown, "sure": sure, "cycles": len(seen.ends)}
        print(f"written to {_report.write(f'soak-{given.engine}', 'A long run', text, facts, data)}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
