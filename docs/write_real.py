"""Write docs/real.md, and the README's picture and its lines of results, from the records of docs/real: `make docs`.

docs/real/npm holds runs on two releases of npm's documentation, docs/real/clean what `recover eval base --model FILE
--ifeval FILE --json` printed with other lengths of response.
docs/real/trivial/1.json
holds what :mod:`evals.beyond_constant` says of the prompts of the older records, which lack it: with --trivial FILE it
is written anew from IFEval's prompts and the composed ones.
Uses the records of runs on whole documents if there are any, else of short ones; those of corpora in pieces have a
section of their own. With --check nothing is written and the exit status is 1 if one of the two is out of date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _pages import between
from real_picture import lines, picture

from evals.beyond_constant import ECHO
from evals.grading import judge_responses
from evals.instruction_following import read_ifeval
from pipelines.cli.example_folder import MAIN_ARM
from pipelines.data.question_splits import load_questions
from pipelines.experiments.bounds import IFEVAL, OWN
from pipelines.experiments.page import page
from pipelines.experiments.records import Record, read_clean, read_records, with_beyond
from recovery.data.prompts import behaviour_prompts

HERE = Path(__file__).resolve().parent
QUESTIONS = HERE.parent / "examples/nextjs/questions.jsonl"
RELEASES, THEIR_QUESTIONS = HERE / "real/npm", HERE.parent / "examples/npm/questions.jsonl"
TRIVIAL = HERE / "real/trivial/1.json"
README, PAGE, PICTURE = HERE.parent / "README.md", HERE / "real.md", HERE / "images/real.svg"
COMMAND = "make docs"
# What the records do not say of themselves.
CHOSEN = "The arm of `make real` was chosen when these results were known, IFEval's included: new ones may be worse."
UNRECORDED = "Seed 1 of `blend-recovery` has no record; its first cycle was worse than seed 0's ([log](log.md))."


def main() -> int:
    """Rewrite both; with --check, return 1 if they would change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument(
        "--trivial", metavar="FILE", type=Path, help="IFEval's prompts, from which to write trivial/1.json"
    )
    options = parser.parse_args()
    check = options.check
    if options.trivial:
        TRIVIAL.write_text(json.dumps(trivial(options.trivial), indent=0) + "\n", encoding="utf-8")
    written = pages(records_of(HERE / "real"))
    if check:
        return int(any(path.read_text(encoding="utf-8") != text for path, text in written.items()))
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    return 0


def records_of(folder: Path) -> list[Record]:
    """Return the records of a folder; older ones with what their verdicts say beyond constant replies."""
    known = json.loads(TRIVIAL.read_text(encoding="utf-8"))
    return [with_beyond(record, known) for record in read_records(folder)]


def trivial(path: Path) -> dict[str, Any]:
    """Return the content of trivial/1.json, from the file of IFEval's prompts and the composed test prompts."""
    composed = [prompt for prompt in behaviour_prompts().test if prompt.checks]
    found: dict[str, Any] = {}
    for suite, prompts in ((IFEVAL, read_ifeval(path)), (OWN, composed)):
        result = judge_responses(prompts, [prompt.text for prompt in prompts], suite=suite)
        items = {item.id: "".join(str(int(n in item.extra["trivial"])) for n in item.verdicts) for item in result.items}
        found[suite] = {"echo": result.details[ECHO].value, "trivial": items}
    return found


def pages(records: Sequence[Record]) -> dict[Path, str]:
    """Return what the README, the page and the picture should be."""
    whole = [record for record in records if record.cut == 1]
    short = not any(record.arm == MAIN_ARM and not record.short for record in whole)
    chosen = [record for record in whole if record.short == short]
    pieces = [record for record in records if record.cut > 1 and record.short == short]
    readme = README.read_text(encoding="utf-8")
    questions = load_questions(QUESTIONS)
    notes = [CHOSEN, *([] if any((r.arm, r.seed) == ("blend-recovery", 1) for r in chosen) else [UNRECORDED])]
    releases = records_of(RELEASES), load_questions(THEIR_QUESTIONS)
    return {
        README: between(readme, "real model", lines(chosen, MAIN_ARM)),
        PICTURE: picture(chosen, MAIN_ARM),
        PAGE: page(chosen, MAIN_ARM, COMMAND, questions, read_clean(HERE / "real/clean"), notes, pieces, releases),
    }


if __name__ == "__main__":
    sys.exit(main())
