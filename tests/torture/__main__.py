"""Torture: campaigns that look for faults for as long as they are given; ``make torture``.

    python -m tests.torture --seed 0 --minutes 10 kill disks

Each campaign is a module of this package with ``run(seed, seconds, report, only)``. A fault is printed with the
arguments that bring it back; the exit status is then 1. ``--write`` writes docs/reliability.md.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

for _name, _value in {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
}.items():
    os.environ[_name] = _value  # before torch is imported

from tests.torture.outcome import ORDER, Outcome, summary  # noqa: E402
from tests.torture.page import write  # noqa: E402

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Run the campaigns and print what was tried and found."""
    known = [name for name in ORDER if (HERE / f"{name}.py").is_file()]
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description="Look for faults.")
    parser.add_argument("campaigns", nargs="*", default=known, help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    parser.add_argument("--minutes", type=float, default=10, help="for all campaigns together, without their start")
    parser.add_argument("--only", type=int, help="one try of a campaign, by its number")
    parser.add_argument("--model", type=Path, help="for kill: the folder of a model to cycle, instead of a tiny one")
    parser.add_argument("--write", action="store_true", help="add the run to docs/reliability.md")
    given = parser.parse_args()
    if unknown := [name for name in given.campaigns if name not in known]:
        parser.error(f"there is no campaign {unknown[0]}: use {', '.join(known)}")
    if given.only is not None and given.write:
        parser.error("--write is for whole campaigns: omit --only")
    if given.model is not None and given.campaigns != ["kill"]:
        parser.error("--model is for the campaign kill alone")
    if given.model is not None and not (given.model / "config.json").is_file():
        parser.error(f"--model {given.model} is not a folder with a model")
    found: dict[str, Outcome] = {}
    for name in given.campaigns:
        print(f"{name}: --seed {given.seed}", flush=True)
        campaign = importlib.import_module(f"tests.torture.{name}")
        more: dict[str, Any] = {} if given.only is None else {"only": given.only}
        if given.model is not None:
            more["model"] = given.model
        seconds = 60 * given.minutes / len(given.campaigns)
        title = name if given.model is None else f"{name}, {given.model.name}"
        found[title] = campaign.run(given.seed, seconds, lambda line: print(line, flush=True), **more)
    print("\n".join(summary(found)))
    if given.write:
        write(found, given.seed, given.minutes)
    return 1 if any(outcome.faults for outcome in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
