"""CPU time and imports of the commands that run no model, and of mistakes in those that do.

Run: python -m benchmarks.startup [--write]

Prints the CPU time (user and system) of whole processes, the median and the range of several runs, against a limit for
each, and the heavy packages that were imported. Exits with status 1 above a limit, or if `recover --help` imported a
heavy package. With `--write` the table goes to results/startup.md. The workspace is made anew, with one short cycle on
the miniature.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks import _report

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "transformers", "numpy", "sqlalchemy", "gradio", "lm_eval", "peft", "scipy", "rich")
EMPTY = [sys.executable, "-c", "pass"]
RECOVER = [sys.executable, "-m", "recovery"]


@dataclass(frozen=True)
class Command:
    """A command with its limit, in seconds of CPU time, and its exit status."""

    arguments: str
    limit: float
    status: int = 0


HELP = Command("--help", 0.3)
COMMANDS = (
    HELP,
    Command("methods", 0.3),
    Command("status", 1.0),
    Command("checkpoints", 1.0),
    Command("gate 1 --rule domain>=0.05", 2.0, status=-1),
    Command("accept 1 --why measured", 1.5),
    Command("report 1", 3.0),
    Command("prune", 1.5),
    Command("resume", 1.5, status=1),
    Command("plan --model docs/qwen3-8b.json", 3.0),
    Command("doctor", 4.0),
    Command("midtrain --docs nowhere", 1.0, status=1),
    Command("distill --teacher nosuch", 1.5, status=1),
    Command("eval nosuch", 1.5, status=1),
    Command("export nosuch ./out", 1.5, status=1),
    Command("study", 1.5),
    Command("study results", 2.0),
    Command("study nosuch", 1.5, status=1),
)


def cpu_seconds(command: list[str], status: int = 0, folder: Path = ROOT) -> float:
    """Return the CPU time, user and system, of a process that runs ``command``. Raise RuntimeError if it ends with
    another ``status``; -1 stands for any.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, ended, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(ended)
    if status not in (-1, process.returncode):
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def imported(arguments: list[str], folder: Path) -> list[str]:
    """Return the heavy packages that ``recover ARGUMENTS`` imports."""
    code = (
        "import sys, contextlib, io, json\n"
        "from pipelines.cli.main import run\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    run(json.loads(sys.argv[1]))\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    finished = subprocess.run(
        [sys.executable, "-c", code, json.dumps(arguments)],
        cwd=folder, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: list[str] = json.loads(finished.stdout)
    return found


def make_workspace(folder: Path) -> None:
    """Make a workspace with one short cycle in ``folder``."""
    cpu_seconds([*RECOVER, "miniature", "corpora", "corpora", "--count", "1"], folder=folder)
    short = ("--limit", "20", "--epochs", "1", "--distill-steps", "2")
    cpu_seconds([*RECOVER, "cycle", "--docs", "corpora/q1", *short], folder=folder)


def measure(command: Command, runs: int, folder: Path) -> tuple[list[float], list[str]]:
    """Return the CPU seconds of each run, and the heavy packages."""
    arguments = [str(ROOT / part) if part.startswith("docs/") else part for part in command.arguments.split()]
    cpu_seconds([*RECOVER, *arguments], command.status, folder)  # the first run may have to compile byte code
    times = [cpu_seconds([*RECOVER, *arguments], command.status, folder) for _ in range(runs)]
    return times, imported(arguments, folder)


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = _report.parser(__doc__, "startup")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    facts, wrong, rows = _report.machine(), False, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_workspace(folder)
        empty = statistics.median(cpu_seconds(EMPTY) for _ in range(options.runs))
        for command in COMMANDS:
            times, heavy = measure(command, options.runs, folder)
            median = statistics.median(times)
            wrong |= median > command.limit or (command is HELP and bool(heavy))
            spread = f"{min(times):.2f} to {max(times):.2f}"
            verdict = "yes" if median <= command.limit else "**no**"
            rows.append(
                (f"`recover {command.arguments}`", f"{median:.2f}", spread, command.limit, verdict, ", ".join(heavy))
            )
            print(f"recover {command.arguments}: {median:.3f} s of CPU ({spread}); {', '.join(heavy) or 'none'}")
    print(f"Python alone: {empty:.3f} s")
    if options.write:
        header = ("command", "CPU seconds", "range", "limit", "within", "heavy packages imported")
        about = (
            f"CPU time, user and system, of whole processes, the median of {options.runs} runs, in a workspace with "
            f"one cycle on the miniature; Python alone takes {empty:.2f} s. What does not exist (nowhere, nosuch) "
            "is reported before torch is imported."
        )
        body = f"{about}\n\n{_report.table(header, rows)}"
        data = [dict(zip(header, row, strict=True)) for row in rows]
        print(_report.write("startup", "Start of commands", body, facts, {"commands": data}))
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
