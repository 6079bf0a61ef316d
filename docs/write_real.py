"""Write docs/real.md and the README's table from the records of docs/real: `make docs`.

Records of whole runs where there are any, else of short ones. With --check nothing is written and the exit status says
whether the README's table is what the records say.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from pipelines.experiment import read_records
from pipelines.experiment_page import page, summary
from recovery.cli.examples import MAIN_ARM

HERE = Path(__file__).resolve().parent
README, PAGE = HERE.parent / "README.md", HERE / "real.md"
COMMAND = "recover demo --example examples/nextjs{short} --arms none --records docs/real"
MARKS = re.compile(r"(<!-- measured on a real model -->\n)(?:.*\n)*?(<!-- end -->)")


def main() -> int:
    """Rewrite both, or say whether the README would change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    records = read_records(HERE / "real")
    whole = [record for record in records if not record.short]
    kept = whole if any(record.arm == MAIN_ARM for record in whole) else [r for r in records if r.short]
    before = README.read_text(encoding="utf-8")
    if not MARKS.search(before):
        raise SystemExit("README.md has no place for the table")
    after = MARKS.sub(lambda found: f"{found[1]}\n{summary(kept, MAIN_ARM)}\n\n{found[2]}", before)
    if check:
        return int(before != after)
    README.write_text(after, encoding="utf-8")
    command = COMMAND.format(short=" --short" if kept is not whole else "")
    PAGE.write_text(page(kept, MAIN_ARM, command), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
