"""Outcomes of studies as text, as a page of the documentation, and as CSV with every figure of every seed.

The CSV file stands beside the page. Later runs, also on other machines, are added to what it holds.
"""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from examples.studies.interval_picture import interval_picture
from examples.studies.study import CONFIDENCE, Outcome, Study
from pipelines.reports.document import table_lines
from pipelines.runtime.versions import machine
from recovery.errors import UsageError

TABLE_COLUMNS = 6  # of a table of figures
CSV_COLUMNS = ("study", "budget", "items", "minutes a seed", "dates", "seed", "figure", "value")


def written(
    studies: Mapping[str, Study], made: Sequence[Outcome], command: str, page: Path
) -> tuple[list[Outcome], dict[Path, str]]:
    """Return the outcomes of a page and its files by path: the page, its raw figures, and a picture of each study.

    The outcomes are those ``made`` now, joined with the ones of the raw figures. A study may have a page of its own.
    """
    earlier, now = from_csv(page.with_suffix(".csv"), studies), {outcome.study.name: outcome for outcome in made}
    outcomes = [joined(earlier.get(name), now.get(name)) for name in studies if name in {*earlier, *now}]
    pictures = f"images/{page.stem}"
    if len(outcomes) == 1 and outcomes[0].study.page is not None:
        text = outcomes[0].study.page(outcomes[0], command, f"{pictures}/{outcomes[0].study.name}.svg")
    else:
        text = markdown(outcomes, command, pictures=pictures)
    files = {page: text, page.with_suffix(".csv"): to_csv(outcomes)}
    for outcome in outcomes:
        draw = outcome.study.picture or (lambda shown: interval_picture(shown.as_json()["parts"]))
        files[page.parent / pictures / f"{outcome.study.name}.svg"] = draw(outcome)
    return outcomes, files


# --- text and Markdown -------------------------------------------------------------------------------------


def text(outcome: Outcome) -> str:
    """Return a study's table and verdict as text."""
    lines = [f"{outcome.study.name}: {outcome.study.claim}", f"  source: {outcome.study.source}"]
    figures = outcome.figures
    width = max(len(name) for name in figures)
    lines += [f"  {name:<{width}}  {cell(found)}" for name, found in figures.items()]
    lines += [f"  {word:<14} {part.statement}" for part, word in outcome.parts]
    lines.append(
        f"  verdict: {outcome.verdict} ({len(outcome.runs)} seeds, n at most {outcome.items} a suite, "
        f"budget {outcome.budget:g})"
    )
    return "\n".join(lines)


def cell(figure: dict[str, Any]) -> str:
    """Format the mean ± standard deviation over seeds."""
    if abs(figure["mean"]) >= 1e5:
        return f"{figure['mean']:.3g} ± {figure['spread']:.2g}"
    return f"{figure['mean']:.3f} ± {figure['spread']:.3f}"


def markdown(outcomes: Sequence[Outcome], command: str, *, pictures: str | None = None) -> str:
    """Return all studies as a page of the documentation; ``pictures`` is the folder of one picture a study."""
    rows = [
        (
            *(f"[{o.study.name}](#{o.study.name})", o.study.claim, f"**{o.verdict}**"),
            *(", ".join(map(str, o.runs)), str(o.items), f"{o.budget:g}", ", ".join(o.dates)),
        )
        for o in outcomes
    ]
    lines = [
        "# The studies: published claims, run on the miniature",
        "",
        f"Written by `{command}` on {datetime.date.today().isoformat()}. Bounds were fixed before the "
        "first runs, except where a statement says otherwise; the conditions under which one counts as tested were "
        "added after them, and so was the task of `efficiency`. A "
        f"statement holds where the whole {CONFIDENCE:.0%} interval over seeds (Student's t) lies beyond its bound, "
        "does not hold where none of it does, and is undecided at this scale between. A claim holds if all of its "
        "statements do; it does not hold if one fails at a level shared by all that were tested. A statement is not "
        "tested where its runs could not have decided it, for the reason given ([audit](audit.md)). Steps told in a "
        "setting are those of budget 1. Every figure of every seed is in the CSV file beside this page. A model of two "
        "million parameters in a world of its own contradicts nobody: the verdict is about what happens here.",
        "",
        *table_lines(("study", "claim", "verdict", "seeds", "n at most", "budget", "run on"), rows),
    ]
    for outcome in outcomes:
        lines += ["", *_section(outcome, pictures)]
    return "\n".join([*lines, "", written_on({date for o in outcomes for date in o.dates}), ""])


def written_on(dates: Collection[str]) -> str:
    """Return on which machine a page was written; runs of other ``dates`` may have been on another."""
    others = any(date != datetime.date.today().isoformat() for date in dates)
    return machine() + (" The page was written on it; runs of other days may be of other machines." if others else "")


def _section(outcome: Outcome, pictures: str | None) -> list[str]:
    """Return one study's claim, verdict, picture, statements, and every figure as tables."""
    study = outcome.study
    lines = [f"## {study.name}", "", f"**Claim.** {study.claim} ({study.source})", ""]
    lines += [f"**Setting.** {study.setting}", "", f"**Verdict: {outcome.verdict}.**", ""]
    if pictures:
        lines += [f"![Statements of {study.name} with their intervals]({pictures}/{study.name}.svg)", ""]
    lines += [*statements(outcome), ""]
    if study.page is not None:  # many figures, which have a page of their own
        return [*lines, f"Every cycle of every arm: `recover study {study.name} --write-docs FILE`."]
    lines.append("Mean ± spread over seeds:")
    for columns, rows in matrices(outcome.figures):
        lines += ["", *table_lines(columns, rows)]
    return lines


def statements(outcome: Outcome) -> list[str]:
    """Return the statements with their verdicts as the lines of a table; a condition is named if it is not met."""
    rows = []
    for part in outcome.as_json()["parts"]:
        limits = f"{part['low']:.3f} to {part['high']:.3f}" if "low" in part else "one seed"
        word, given = part["verdict"], part.get("given")
        if given is not None and not given["met"]:
            word += f": requires {given['statement']} ({given['bound']}), is {given['mean']:.3f}"
        added = f" (added {part['added']})" if part.get("added") else ""
        rows.append((part["statement"] + added, part["bound"], f"{part['mean']:.3f}", limits, word))
    return table_lines(("statement", "bound", "mean", "95% interval", "verdict"), rows)


def matrices(figures: Mapping[str, dict[str, Any]]) -> list[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """Return figures called "MEASURE, RUN" as tables (columns, rows): measures of much the same runs side by side.

    Figures with another name, or whose measure has one run only, are listed in a table of their own.
    """
    cells: dict[str, dict[str, str]] = {}
    for name, found in figures.items():
        measure, _, row = name.partition(", ")
        cells.setdefault(measure, {})[row] = cell(found)
    alone = [", ".join(filter(None, (m, row))) for m, rows in cells.items() if len(rows) == 1 for row in rows]
    blocks: list[list[str]] = []
    for measure in (m for m, rows in cells.items() if len(rows) > 1):
        own = set(cells[measure])
        for block in blocks:
            theirs = {row for m in block for row in cells[m]}
            if len(block) < TABLE_COLUMNS and 2 * len(own & theirs) >= len(own | theirs):
                block.append(measure)
                break
        else:
            blocks.append([measure])
    listed: list[tuple[str, ...]] = [(name, cell(figures[name])) for name in alone]
    tables: list[tuple[tuple[str, ...], list[tuple[str, ...]]]] = [(("figure", "value"), listed)] if alone else []
    for block in blocks:
        runs = dict.fromkeys(row for measure in block for row in cells[measure])
        tables.append((("", *block), [(run, *(cells[measure].get(run, "–") for measure in block)) for run in runs]))
    return tables


# --- raw figures -------------------------------------------------------------------------------------------


def to_csv(outcomes: Sequence[Outcome]) -> str:
    """Return every figure of every seed as lines of CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for o in outcomes:
        about = (o.study.name, f"{o.budget:g}", o.items, f"{o.minutes:.2f}", " ".join(o.dates))
        writer.writerows(
            (*about, seed, name, repr(value)) for seed, run in o.runs.items() for name, value in run.items()
        )
    return text.getvalue()


def from_csv(path: Path, studies: Mapping[str, Study]) -> dict[str, Outcome]:
    """Return the outcomes of a file written by :func:`to_csv`, of the ``studies`` that still exist; none if there is no
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
            name: Outcome(studies[name], runs, int(items), float(minutes), float(budget), tuple(dates.split()))
            for (name, budget, items, minutes, dates), runs in rows.items()
            if name in studies
        }
    except ValueError as error:
        raise UsageError(f"{path} cannot be read ({error}): restore it or delete it") from error


def joined(earlier: Outcome | None, now: Outcome | None) -> Outcome:
    """Return two outcomes of a study, of which there is at least one, as one: figures that are in both are the later
    run's.

    Raise UsageError for outcomes of different budgets or numbers of items, which are different experiments.
    """
    if earlier is None or now is None:
        found = now or earlier
        assert found is not None
        return found
    if (earlier.budget, earlier.items) != (now.budget, now.items):
        raise UsageError(
            f"the page has figures of {now.study.name} at budget {earlier.budget:g} with {earlier.items} items a "
            f"suite, these are at {now.budget:g} with {now.items}: write another page, or delete its CSV file first"
        )
    seeds = sorted({*earlier.runs, *now.runs})
    runs = {seed: {**earlier.runs.get(seed, {}), **now.runs.get(seed, {})} for seed in seeds}
    dates = sorted({*earlier.dates, *now.dates})
    return replace(now, runs=runs, dates=tuple(dates), minutes=max(earlier.minutes, now.minutes))
