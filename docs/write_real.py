"""Write docs/real.md, and the README's picture and its lines of results, from the records of docs/real: `make docs`.

docs/real/npm holds runs on two releases of npm's documentation, docs/real/clean what `recover eval base --model FILE
--ifeval FILE --json` printed with other lengths of response (not on the page). docs/real/trivial/1.json holds what
:mod:`evals.beyond_constant` says of the prompts of the older records, which lack it: with --trivial FILE it is written
anew from IFEval's prompts and the composed ones. docs/real/served holds what `recover gate 1 --artifact NAME --json`
printed for files of the untouched command's model (docs/real/untouched), for the table in docs/ship.md.
docs/real.csv has the figures of all records. With --check nothing is written and the exit status is 1 if one of them
is out of date.
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

from db.artifacts import PREFIX, SHIPS
from evals.beyond_constant import DETAIL, ECHO
from evals.instruction_following import judge_responses, read_ifeval
from pipelines.cli.demo import MAIN_ARM
from pipelines.data.question_splits import held_out_ids
from pipelines.experiments.page import figures, page
from pipelines.experiments.records import ASKED, IFEVAL, OWN, Record, read_records, with_beyond
from recovery.data.prompts import behaviour_prompts

HERE = Path(__file__).resolve().parent
QUESTIONS = HERE.parent / "examples/nextjs/questions.jsonl"
DROPPED = (
    HERE / "real/held-out/dropped.json"
)  # ids that the records up to 2026-11-29 were asked, and later runs are not
RELEASES = HERE / "real/npm"
TRIVIAL = HERE / "real/trivial/1.json"
SHIP, SERVED = HERE / "ship.md", HERE / "real/served"
README, PAGE, PICTURE, TABLE = HERE.parent / "README.md", HERE / "real.md", HERE / "images/real.svg", HERE / "real.csv"
COMMAND = "make docs"


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
    """Return what the README, the page, the picture and the table should be."""
    whole = [record for record in records if record.cut == 1 and not record.short]
    held_out = held_out_ids(QUESTIONS) | set(json.loads(DROPPED.read_text(encoding="utf-8")))
    readme = README.read_text(encoding="utf-8")
    return {
        README: between(readme, "real model", lines(whole, MAIN_ARM)),
        SHIP: between(SHIP.read_text(encoding="utf-8"), "served", served()),
        PICTURE: picture(whole, MAIN_ARM),
        PAGE: page(records, MAIN_ARM, COMMAND, held_out, PICTURE.relative_to(HERE).as_posix()),
        TABLE: figures([*records, *records_of(RELEASES)]),
    }


def served() -> str:
    """Return the table of what was served and judged: differences from its source in points, with 95% intervals."""
    shown = {"beyond constant replies": f"{OWN}/{DETAIL}", "whole prompts": OWN, "about the documents": f"{ASKED}/1"}
    rows = ["| served | " + " | ".join(shown) + " | judgement |", "|---" * (len(shown) + 2) + "|"]
    for path in sorted(SERVED.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        by = {one["name"]: one for one in found["compared"]}
        cells = [
            f"{100 * one['difference']:+.1f} ({100 * one['low']:+.1f} to {100 * one['high']:+.1f}, {one['n']})"
            for one in (by[name] for name in shown.values())
        ]
        rows.append(f"| {found['artifact'].removeprefix(PREFIX)} | {' | '.join(cells)} | {SHIPS[found['decision']]} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
