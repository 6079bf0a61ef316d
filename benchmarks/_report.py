"""What every benchmark's command line and result files have in common.

A result file holds the figures with the machine and the versions that they were measured on.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
_INTEGERS = {"seed": 0, "threads": 1}  # options that several benchmarks have, with their defaults


def parser(doc: str | None, page: str, *integers: str, named: bool = False) -> argparse.ArgumentParser:
    """Return a parser whose help is the docstring of the benchmark's module, with the option --write.

    ``page`` is the file name of the results, which the user can change if it is ``named``. ``integers`` are the names
    of options that several benchmarks have.
    """
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    shown = "NAME" if named else page
    made.add_argument("--write", action="store_true", help=f"write benchmarks/results/{shown}.md and .json")
    if named:
        made.add_argument("--name", default=page, help="file name of the page written by --write")
    for name in integers:
        made.add_argument(f"--{name}", type=int, default=_INTEGERS[name])
    return made


def note(doc: str | None) -> str:
    """Return the docstring of the benchmark's module without its title and its command line."""
    return (doc or "").split("\n\n", 2)[2]


def machine(
    packages: Iterable[str] = ("torch", "transformers", "trl"), *, gpu: str = "", **settings: object
) -> dict[str, str]:
    """Return processor, cores, memory, load, GPU and versions, then the settings; no host or user names."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": f"{pages * size / 2**30:.0f} GiB",
        "load before": f"{os.getloadavg()[0]:.1f}",
        **({"GPU": gpu} if gpu else {}),
        "python": platform.python_version(),
        **{name: version for name in packages if (version := _version(name))},
        **{name: str(value) for name, value in settings.items()},
    }


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table with padded columns."""
    cells = [list(header), *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def write(name: str, title: str, body: str, facts: dict[str, str], data: dict[str, Any]) -> Path:
    """Write results/NAME.md and results/NAME.json; return the path of the first."""
    RESULTS.mkdir(exist_ok=True)
    where = "\n".join(f"- {key}: {value}" for key, value in facts.items())
    page = RESULTS / f"{name}.md"
    page.write_text(f"# {title}\n\n{body.strip()}\n\n## Measured on\n\n{where}\n", encoding="utf-8")
    text = json.dumps({"machine": facts, **data}, indent=1, ensure_ascii=False)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    return page


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    entries = dict(part.split(":", 1) for part in lines if ":" in part)
    named = {key.strip(): value.strip() for key, value in entries.items()}
    family = f" (family {named['cpu family']}, model {named['model']})" if "cpu family" in named else ""
    return named.get("model name", platform.machine()) + family
