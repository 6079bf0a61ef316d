"""Write the example and the table of docs/planning.md from the command and the benchmark themselves: `make docs`.

The example is what `recover plan` prints for Qwen3-8B's configuration, which lies beside this file. With --check
nothing is written and the exit status says whether the page is true.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from _pages import between

from pipelines.estimates import size
from pipelines.plan import make_plan

HERE = Path(__file__).resolve().parent
PAGE = HERE / "planning.md"
MODEL = "qwen3-8b.json"
RESULTS = HERE.parent / "benchmarks" / "results" / "memory.json"


def example() -> str:
    """What the command prints."""
    os.chdir(HERE)
    said = make_plan(MODEL, "24,48,80").text()
    return f"```\n$ recover plan --model {MODEL} --gpus 24,48,80\n{said}\n```"


def measured() -> str:
    """The benchmark's rows, shortest form."""
    rows = [row for row in json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if row["told"]]
    lines = ["| model | stage | precision | predicted | measured | error |", "|---|---|---|---|---|---|"]
    for row in rows:
        error = row["predicted"] / row["measured"] - 1
        cells = (row["shape"], row["stage"], row["precision"], size(row["predicted"]), size(row["measured"]))
        lines.append(f"| {' | '.join(cells)} | {error:+.1%} |")
    return "\n".join(lines)


def main() -> int:
    """Rewrite the page, or say whether it would change."""
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
