"""Write docs/real.md and the README's table from the records of docs/real: `make docs`.

docs/real/clean holds what `recover eval base --model FILE --ifeval FILE --json` printed with other lengths of response.
Uses the records of runs on whole corpora if there are any, else of short ones; never those of corpora in pieces. With
--check nothing is written and the exit status is 1 if one of the two is out of date.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from _pages import between

from pipelines.cli.example_folder import MAIN_ARM
from pipelines.data.question_splits import load_questions
from pipelines.experiments.page import page, summary
from pipelines.experiments.records import read_clean, read_records

HERE = Path(__file__).resolve().parent
QUESTIONS = HERE.parent / "examples/nextjs/questions.jsonl"
README, PAGE = HERE.parent / "README.md", HERE / "real.md"
COMMAND = "make docs"
# What the records do not say of themselves.
CHOSEN = "The arm of `make real` was chosen when these results were known, IFEval's included: new ones may be worse."
UNRECORDED = "Seed 1 of `blend-recovery` has no record; its first cycle was worse than seed 0's ([log](log.md))."


def main() -> int:
    """Rewrite both; with --check, return 1 if they would change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    records = read_records(HERE / "real")
    records = [record for record in records if record.cut == 1]  # of corpora in pieces there is no page here
    short = not any(record.arm == MAIN_ARM and not record.short for record in records)
    chosen = [record for record in records if record.short == short]
    readme = README.read_text(encoding="utf-8")
    questions = load_questions(QUESTIONS)
    notes = [CHOSEN, *([] if any((r.arm, r.seed) == ("blend-recovery", 1) for r in chosen) else [UNRECORDED])]
    written = {
        README: between(readme, "real model", summary(chosen, MAIN_ARM, questions)),
        PAGE: page(chosen, MAIN_ARM, COMMAND, questions, read_clean(HERE / "real/clean"), notes),
    }
    if check:
        return int(any(path.read_text(encoding="utf-8") != text for path, text in written.items()))
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
