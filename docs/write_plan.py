"""Write the example and the table of docs/planning.md, a table of docs/launching.md and one of the README, from
`recover plan` and the memory benchmark: `make docs`.

The models are configurations in this folder. With --check nothing is written and the exit status is 1 if a page is out
of date.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from _pages import between

from pipelines.plan import make_plan
from pipelines.table import duration, size

HERE = Path(__file__).resolve().parent
PAGE, LAUNCHING, README = HERE / "planning.md", HERE / "launching.md", HERE.parent / "README.md"
MODEL, LARGE = "qwen3-8b.json", "llama-70b.json"
# Sizes of model, and the GPUs of each row of the README.
SIZES = (("1B", "llama-1b.json", "24"), ("8B", MODEL, "24,80"), ("70B", LARGE, "8x80GB"))
RESULTS = HERE.parent / "benchmarks" / "results" / "memory.json"


def example() -> str:
    """Return the command with its output."""
    os.chdir(HERE)
    printed = make_plan(MODEL, "24,48,80").text()
    return f"```\n$ recover plan --model {MODEL} --gpus 24,48,80\n{printed}\n```"


def large() -> str:
    """Return the command for a large model on eight GPUs, with the table of its output."""
    os.chdir(HERE)
    printed = make_plan(LARGE, "8x80GB", flags={"gather": False}).text().partition("\n\ntime: ")[0]
    return f"```\n$ recover plan --model {LARGE} --gpus 8x80GB --no-gather\n{printed}\n```"


def sizes() -> str:
    """Return what a cycle takes for models of three sizes, by the recommended configuration, as a table."""
    os.chdir(HERE)
    lines = ["| model | GPUs | how | memory of one | a cycle |", "|---|---|---|---|---|"]
    for title, model, gpus in SIZES:
        for card in make_plan(model, gpus, flags={"gather": False} if "x" in gpus else {}).cards:
            if card.recommended is not None:
                chosen = card.choices[card.recommended]
                cells = (title, card.card, chosen.title, size(chosen.peak), duration(chosen.total))
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


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
    """Rewrite the pages; with --check, return 1 if one would change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    parts = {
        PAGE: {"example": example(), "measurements": measured()},
        LAUNCHING: {"large": large()},
        README: {"plan": sizes()},
    }
    changed = False
    for page, blocks in parts.items():
        before = after = page.read_text(encoding="utf-8")
        for name, block in blocks.items():
            after = between(after, name, block)
        changed |= before != after
        if not check:
            page.write_text(after, encoding="utf-8")
        elif before != after:
            print(f"{page.name} is out of date: run make docs")
    return int(check and changed)


if __name__ == "__main__":
    sys.exit(main())
