"""Outcomes of studies as JSON, as text, and as a page of the documentation."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from evals.statistics import spread
from pipelines.planning.machine import machine
from pipelines.reports.document import table_lines
from pipelines.studies.study import CONFIDENCE, Outcome, Part, Word

_COLUMNS = 6  # of a table of figures


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return a study as ``recover study results --json`` prints it."""
    study = outcome.study
    names = list(dict.fromkeys(name for run in outcome.runs.values() for name in run))
    return {
        "study": study.name,
        "claim": study.claim,
        "source": study.source,
        "setting": study.setting,
        "criterion": study.criterion,
        "seeds": list(outcome.runs),
        "n": outcome.items,
        "budget": outcome.budget,
        "dates": list(outcome.dates),
        "figures": {name: _figure(outcome, name) for name in names},
        "parts": [_part(part, word, outcome) for part, word in outcome.parts],
        "verdict": outcome.verdict,
    }


def _part(part: Part, word: Word, outcome: Outcome) -> dict[str, Any]:
    runs = outcome.runs_of(part)
    low, high = part.interval(runs, outcome.items)
    found: dict[str, Any] = {"statement": part.statement, "bound": part.side, "mean": part.mean(runs), "verdict": word}
    found |= {"low": low, "high": high} if len(runs) > 1 else {}
    if part.added:
        found["added"] = part.added
    if part.given is not None:
        found["given"] = {
            "statement": part.given.statement,
            "bound": part.given.side,
            "mean": part.given.mean(runs),
            "met": part.given.met(runs),
        }
    return found


def _figure(outcome: Outcome, name: str) -> dict[str, Any]:
    by_seed = {seed: run[name] for seed, run in outcome.runs.items() if name in run}
    mean, deviation = spread(list(by_seed.values()))
    return {"mean": mean, "spread": deviation, "by_seed": by_seed}


def text(outcome: Outcome) -> str:
    """Return a study's table and verdict as text."""
    lines = [f"{outcome.study.name}: {outcome.study.claim}", f"  source: {outcome.study.source}"]
    figures = as_json(outcome)["figures"]
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
    study = outcome.study
    return [
        f"## {study.name}",
        "",
        f"**Claim.** {study.claim} ({study.source})",
        "",
        f"**Setting.** {study.setting}",
        "",
        f"**Verdict: {outcome.verdict}.**",
        "",
        *([f"![Statements of {study.name} with their intervals]({pictures}/{study.name}.svg)", ""] if pictures else []),
        *statements(outcome),
        "",
        *_all_figures(outcome),
    ]


def _all_figures(outcome: Outcome) -> list[str]:
    """Return every figure as tables; of a study of many cycles, which has a page of its own, the command for that."""
    if outcome.study.arms:
        return [f"Every cycle of every arm: `recover study {outcome.study.name} --write-docs FILE`."]
    tables = matrices(as_json(outcome)["figures"])
    return [
        "Mean ± spread over seeds:",
        *(line for columns, rows in tables for line in ("", *table_lines(columns, rows))),
    ]


def statements(outcome: Outcome) -> list[str]:
    """Return a study's statements with their verdicts as the lines of a table."""
    return table_lines(
        ("statement", "bound", "mean", "95% interval", "verdict"),
        [_row(part) for part in as_json(outcome)["parts"]],
    )


def _row(part: dict[str, Any]) -> tuple[str, ...]:
    """Return a statement as a row of the page; a condition is named if it is not met."""
    given, limits = part.get("given"), f"{part['low']:.3f} to {part['high']:.3f}" if "low" in part else "one seed"
    word = part["verdict"]
    if given is not None and not given["met"]:
        word += f": requires {given['statement']} ({given['bound']}), is {given['mean']:.3f}"
    added = f" (added {part['added']})" if part.get("added") else ""
    return part["statement"] + added, part["bound"], f"{part['mean']:.3f}", limits, word


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
        for block in blocks:
            if len(block) < _COLUMNS and _alike(set(cells[measure]), {row for m in block for row in cells[m]}):
                block.append(measure)
                break
        else:
            blocks.append([measure])
    listed: list[tuple[str, ...]] = [(name, cell(figures[name])) for name in alone]
    first = [(("figure", "value"), listed)] if alone else []
    return [*first, *(_matrix(block, cells) for block in blocks)]


def _alike(first: set[str], second: set[str]) -> bool:
    return 2 * len(first & second) >= len(first | second)


def _matrix(
    measures: Sequence[str], cells: Mapping[str, Mapping[str, str]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = dict.fromkeys(row for measure in measures for row in cells[measure])
    return ("", *measures), [(row, *(cells[measure].get(row, "–") for measure in measures)) for row in rows]
