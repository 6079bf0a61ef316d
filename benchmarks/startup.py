"""CPU time and imports of `recover --help`. Run: python -m benchmarks.startup

Prints the CPU time (user and system) of whole processes, the median and the range of several runs, against the
limit of 0.3 s, and the ratio to starting Python alone. Exits with status 1 above the limit, or if a heavy package
was imported.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 0.3
HEAVY = ("torch", "transformers", "numpy", "sqlalchemy", "gradio", "lm_eval", "peft", "scipy", "rich")
HELP = [sys.executable, "-m", "recovery", "--help"]
EMPTY = [sys.executable, "-c", "pass"]


def cpu_seconds(command: list[str]) -> float:
    """Return the CPU time, user and system, of a process that runs ``command``. Raise RuntimeError if it fails."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def imported(arguments: list[str]) -> list[str]:
    """Return the heavy packages that ``recover ARGUMENTS`` imports."""
    code = (
        "import sys, contextlib, io, json\n"
        "from pipelines.cli.main import run\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    run(json.loads(sys.argv[1]))\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))\n"
    )
    found: list[str] = json.loads(
        subprocess.run(
            [sys.executable, "-c", code, json.dumps(arguments)], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    )
    return found


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=11)
    runs = parser.parse_args().runs
    cpu_seconds(HELP)  # the first run may have to compile byte code
    helps = [cpu_seconds(HELP) for _ in range(runs)]
    empties = [cpu_seconds(EMPTY) for _ in range(runs)]
    median = statistics.median(helps)
    heavy = imported(["--help"])
    print(f"recover --help: {median:.3f} s of CPU (median of {runs}; {min(helps):.3f} to {max(helps):.3f})")
    print(f"ratio to the limit of {LIMIT_SECONDS} s: {median / LIMIT_SECONDS:.2f}")
    print(f"ratio to starting Python alone: {median / statistics.median(empties):.1f}")
    print(f"heavy packages imported: {', '.join(heavy) or 'none'}")
    return int(median > LIMIT_SECONDS or bool(heavy))


if __name__ == "__main__":
    sys.exit(main())
