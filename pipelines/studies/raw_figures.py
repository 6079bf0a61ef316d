"""Every figure of every seed as CSV beside the page of the studies, to which later runs, also elsewhere, are added."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipelines.studies import STUDIES
from pipelines.studies.study import Outcome
from recovery.errors import UsageError

_COLUMNS = ("study", "budget", "items", "minutes a seed", "dates", "seed", "figure", "value")


def to_csv(outcomes: Sequence[Outcome]) -> str:
    """Return every figure of every seed as lines of CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for o in outcomes:
        about = (o.study.name, f"{o.budget:g}", o.items, f"{o.minutes:.2f}", " ".join(o.dates))
        writer.writerows(
            (*about, seed, name, repr(value)) for seed, run in o.runs.items() for name, value in run.items()
        )
    return text.getvalue()


def joined(earlier: Outcome | None, now: Outcome | None) -> Outcome | None:
    """Return two outcomes of a study as one: figures that are in both are the later run's.

    Raise UsageError for outcomes of different budgets or numbers of items, which are different experiments.
    """
    if earlier is None or now is None:
        return now or earlier
    if (earlier.budget, earlier.items) != (now.budget, now.items):
        raise UsageError(
            f"the page has figures of {now.study.name} at budget {earlier.budget:g} with {earlier.items} items a "
            f"suite, these are at {now.budget:g} with {now.items}: write another page, or delete its CSV file first"
        )
    seeds = sorted({*earlier.runs, *now.runs})
    runs = {seed: {**earlier.runs.get(seed, {}), **now.runs.get(seed, {})} for seed in seeds}
    dates = sorted({*earlier.dates, *now.dates})
    return replace(now, runs=runs, dates=tuple(dates), minutes=max(earlier.minutes, now.minutes))


def from_csv(path: Path) -> dict[str, Outcome]:
    """Return the outcomes of a file written by :func:`to_csv`, of the studies that still exist; none if there is no
    file. Raises UsageError if it cannot be read.
    """
    if not path.is_file():
        return {}
    rows: dict[tuple[str, ...], dict[int, dict[str, float]]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for *about, seed, name, value in list(csv.reader(file))[1:]:
                rows.setdefault(tuple(about), {}).setdefault(int(seed), {})[name] = float(value)
        return {
            name: Outcome(STUDIES[name], runs, int(items), float(minutes), float(budget), tuple(dates.split()))
            for (name, budget, items, minutes, dates), runs in rows.items()
            if name in STUDIES
        }
    except ValueError as error:
        raise UsageError(f"{path} cannot be read ({error}): restore it or delete it") from error
