"""docs/reliability.md: what the runs of ``make torture`` tried and found, kept as JSON beside it, a run a seed."""

from __future__ import annotations

import contextlib
import fcntl
import html
import importlib
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recovery.workspace import write_atomically
from tests.torture.outcome import Outcome

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "reliability.md"


def write(found: Mapping[str, Outcome], seed: int, minutes: float, page: Path = PAGE) -> None:
    """Add a run to the record, in place of an earlier one of its campaigns and seed, and write the page again.

    Runs of other seeds may end at the same time: each reads the record and writes both files under the lock.
    """
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "minutes": round(minutes / max(1, len(found)), 1),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
    }
    record = page.with_suffix(".json")
    with _locked(page.parent):
        runs = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
        for name, outcome in found.items():
            run = about | {"tried": dict(sorted(outcome.tried.items())), "faults": outcome.faults}
            runs.setdefault(name, {})[str(seed)] = run
        text = json.dumps(runs, indent=1, sort_keys=True) + "\n"
        write_atomically(record, text)
        write_atomically(page, "\n".join(_lines(json.loads(text))))  # in the order of the record


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder. It is on the folder itself: a file for it would lie beside the page afterwards."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _lines(runs: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    lines = [
        "# Reliability",
        "",
        "Written by `python -m tests.torture --write` (`make torture`): campaigns that disturb a small cycle, or give",
        "the program hostile input, and compare what is left with what an undisturbed run leaves. "
        "[Contributing](../CONTRIBUTING.md) says how to run them.",
        "",
        "A run replaces an earlier one of its campaign and seed: one repeated after a repair shows no fault, and",
        "its faults are among those [found](#found-and-mended). Faults listed with a campaign were repaired after it.",
    ]
    for name, by_seed in runs.items():
        seeds = dict(sorted(by_seed.items(), key=lambda run: int(run[0])))
        campaign = importlib.import_module(f"tests.torture.{name.partition(',')[0]}")  # "kill, MODEL" is of kill
        about = (campaign.__doc__ or "").strip().removeprefix("Campaign: ")
        lines += ["", f"## {name}", "", *(about[:1].upper() + about[1:]).splitlines(), ""]
        lines += [f"| tries | {' | '.join(f'seed {seed}' for seed in seeds)} |", "|---" + "|---:" * len(seeds) + "|"]
        for what in sorted({what for run in seeds.values() for what in run["tried"]}):
            counts = (str(run["tried"].get(what, 0)) for run in seeds.values())
            lines.append(f"| {what} | {' | '.join(counts)} |")
        faults = [f"- Seed {seed}: {_shown(fault)}" for seed, run in seeds.items() for fault in run["faults"]]
        lines += ["", *(faults or ["No fault."]), ""]
        told = (
            f"seed {seed}, {run['date']}, {run['minutes']:g} minutes ({run['machine']})" for seed, run in seeds.items()
        )
        lines.append(f"Runs: {'; '.join(told)}.")
    return [*lines, "", (HERE / "found.md").read_text(encoding="utf-8")]


def _shown(fault: str) -> str:
    """Return a fault as Markdown: on one line, and not as the markup that was fed to the program."""
    return html.escape(" ".join(fault.split()), quote=False)
