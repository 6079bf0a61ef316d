"""Write the example and the table of docs/planning.md from the command and the benchmark: `make docs`.

The example is the output of `recover plan` for Qwen3-8B's configuration, which is in this folder. With --check nothing
is written and the exit status is 1 if the page is out of date.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from _pages import between

from pipelines.plan import make_plan
from pipelines.planning.throughput import size

HERE = Path(__file__).resolve().parent
PAGE = HERE / "planning.md"
MODEL = "qwen3-8b.json"
RESULTS = HERE.parent / "benchmarks" / "results" / "memory.json"


def example() -> str:
    """Return the command with its output."""
    os.chdir(HERE)
    printed = make_plan(MODEL, "24,48,80").text()
    return f"```\n$ recover plan --model {MODEL} --gpus 24,48,80\n{printed}\n```"


def measured() -> str:
    """Return the benchmark's results as a table."""
    rows = [row for row in json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if row["returned"]]
    lines = ["| model | stage | precision | predicted | measured | error |", "|---|---|---|---|---|---|"]
    for row in rows:
        error = row["predicted"] / row["measured"] - 1
        cells = (row["shape"], row["stage"], row["precision"], size(row["predicted"]), size(row["measured"]))
        lines.append(f"| {' | '.join(cells)} | {error:+.1%} |")
    return "\n".join(lines)


def main() -> int:
    """Rewrite the page; with --check, return 1 if it would change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    before = PAGE.read_text(encoding="utf-8")
    after = between(between(before, "example", example()), "measurements", measured())
    if not check:
        PAGE.write_text(after, encoding="utf-8")
    elif before != after:
        print("docs/planning.md is out of date: run make docs")
    return int(check and before != after)


if __name__ == "__main__":
    sys.exit(main())
