"""A table of the main figures of a run of cycles over several seeds, with required bounds and goals."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evals.statistics import spread
from pipelines.reports.document import table_lines
from pipelines.runtime.versions import machine

Status = Mapping[str, Any]
BEHAVIOUR, ASKED, STORED = "instruction_following", "domain_knowledge", "domain_knowledge_stored"


@dataclass(frozen=True)
class Run:
    """One finished run: ``status`` as ``recover status --json`` prints it, ``seconds`` of its stages together."""

    seed: int
    status: Status
    seconds: float


@dataclass(frozen=True)
class Figure:
    """One line of the table: a value per cycle (or one for the whole run), and its bounds.

    ``value`` reads it from a status; ``enough`` is how many of the cycles must reach ``must``.
    """

    name: str
    value: Callable[[Status], list[float | None]]
    must: float
    goal: float | None = None
    at_most: bool = False
    enough: int | None = None

    def verdict(self, values: Sequence[float | None]) -> Verdict:
        """Return whether enough values reach the required bound, and all of them the goal."""
        known = [v for v in values if v is not None]

        def reached(bound: float | None, enough: int | None) -> bool | None:
            if bound is None or not known:
                return None
            right = sum(v <= bound if self.at_most else v >= bound for v in known)
            return right >= (len(known) if enough is None else min(enough, len(known)))

        return Verdict(reached(self.must, self.enough), reached(self.goal, None))


@dataclass(frozen=True)
class Verdict:
    """Whether the required bound and the goal are reached; None if there is no bound or no measurement."""

    must: bool | None
    goal: bool | None

    def __str__(self) -> str:
        if not self.must:
            return "" if self.must is None else "no"
        return "goal" if self.goal else "must"


@dataclass(frozen=True)
class Line:
    """A figure over seeds: for every cycle its mean and spread (standard deviation), and the verdicts.

    ``means`` judges the means over the seeds; ``seeds`` judges every seed separately.
    """

    figure: Figure
    cells: tuple[tuple[float, float], ...]
    means: Verdict
    seeds: Verdict


@dataclass
class Variant:
    """A variant of the demo and its runs, one per seed."""

    name: str
    runs: list[Run] = field(default_factory=list)

    def lines(self) -> list[Line]:
        """Return every figure over this variant's seeds."""
        return [_line(figure, [run.status for run in self.runs]) for figure in FIGURES]


def score(scores: Mapping[str, Any] | None, suite: str, corpus: int | None = None) -> float | None:
    """Return one score's value from a SCORES object."""
    if scores is None:
        return None
    entry = scores.get(f"{suite}_by_corpus", {}).get(str(corpus)) if corpus is not None else scores.get(suite)
    return None if entry is None else float(entry["value"])


def relative(part: str) -> Callable[[Status], list[float | None]]:
    """Return a function for the instruction following of each cycle's ``part``, relative to base."""

    def values(status: Status) -> list[float | None]:
        base = score(status["base"], BEHAVIOUR)
        return [_ratio(score(row[part], BEHAVIOUR), base) for row in status["cycles"]]

    return values


def own_corpus(part: str, suite: str, of: str | None = None) -> Callable[[Status], list[float | None]]:
    """Return a function for the knowledge of each cycle's own corpus in ``part``; relative to ``of``, if given."""

    def values(status: Status) -> list[float | None]:
        shares = []
        for row in status["cycles"]:
            value = score(row[part], suite, row["cycle"])
            shares.append(value if of is None else _ratio(value, score(row[of], suite, row["cycle"])))
        return shares

    return values


def base_knowledge(status: Status) -> list[float | None]:
    """Return the clean model's knowledge of each corpus, asked as questions."""
    return [score(status["base"], ASKED, row["cycle"]) for row in status["cycles"]]


def earlier_kept(status: Status) -> list[float | None]:
    """Return the knowledge of every earlier corpus after the last recovery, relative to after its own."""
    rows = status["cycles"]
    return [
        _ratio(score(rows[-1]["recovered"], ASKED, row["cycle"]), score(row["recovered"], ASKED, row["cycle"]))
        for row in rows[:-1]
    ]


FIGURES = (
    Figure("IFEval strict, base", lambda status: [score(status["base"], BEHAVIOUR)], 0.95),
    Figure("after mid-training, relative to base", relative("midtrained"), 0.80, 0.75, at_most=True, enough=2),
    Figure("after recovery, relative to base", relative("recovered"), 0.98, 0.99),
    Figure("knowledge stored after mid-training, the cycle's corpus", own_corpus("midtrained", STORED), 0.85, 0.95),
    Figure("share of it kept by recovery", own_corpus("recovered", STORED, "midtrained"), 0.97, 0.99),
    Figure("knowledge asked as questions, base", base_knowledge, 0.05, at_most=True),
    Figure("knowledge asked as questions, after recovery", own_corpus("recovered", ASKED), 0.85, 0.95),
    Figure("every earlier corpus after the last cycle, share of what was first learnt", earlier_kept, 0.90, 0.95),
)


def markdown(variants: Sequence[Variant], command: str) -> str:
    """Return the table of all variants, with its command and machine, as a page of the documentation."""
    first = variants[0]
    head = ["", "must", "goal", *(variant.name for variant in variants), "reached by the means", "by every seed"]
    rows = []
    columns = [variant.lines() for variant in variants]
    for at, line in enumerate(columns[0]):
        figure = line.figure
        sign = "≤" if figure.at_most else "≥"
        few = f" in {figure.enough} of {len(line.cells)}" if figure.enough else ""
        goal = "" if figure.goal is None else f"{sign} {figure.goal:.2f}"
        shown = ((f"{mean:.3f} ± {spread:.3f}" for mean, spread in column[at].cells) for column in columns)
        cells = [", ".join(cell) or "not measured" for cell in shown]
        rows.append([figure.name, f"{sign} {figure.must:.2f}{few}", goal, *cells, str(line.means), str(line.seeds)])
    seeds = ", ".join(str(run.seed) for run in first.runs)
    seconds = statistics.fmean(run.seconds for variant in variants for run in variant.runs)
    return "\n".join(
        [
            "# Results of the demo",
            "",
            f"Made by `{command}` on {datetime.date.today().isoformat()}.",
            "",
            "Three cycles on the miniature, mid-training on documents alone in the first column. The settings make the "
            "loss visible: a constant rate, all embeddings; those of `recover cycle` lose less in one cycle "
            f"([horizon](horizon.md)). Seeds {seeds}; a cell holds one mean ± standard deviation over the seeds for "
            f"each cycle. {_items(first)} The recovery asks about the facts of its test questions in other wordings "
            "([audit](audit.md#leakage)).",
            "",
            *table_lines(head, rows),
            "",
            "The last two columns judge the first variant: its means over the seeds, and every seed by itself.",
            "",
            machine(),
            f"One run of three cycles took {seconds / 60:.1f} minutes in the stages (mean over all runs).",
            "",
        ]
    )


def _items(variant: Variant) -> str:
    counts: list[int] = []
    for run in variant.runs:
        for row in run.status["cycles"]:
            scores = row["recovered"] or {}
            counts += [entry["n"] for name, entry in scores.items() if name in (BEHAVIOUR, ASKED, STORED) and entry]
    return f"Every score is over at least {min(counts):,} items." if counts else ""


def _line(figure: Figure, statuses: Sequence[Status]) -> Line:
    values = [figure.value(status) for status in statuses]
    columns = [[v for v in column if v is not None] for column in zip(*values, strict=True)]
    cells = [spread(column) for column in columns if column]
    each = [figure.verdict(v) for v in values]
    seeds = Verdict(_all([v.must for v in each]), _all([v.goal for v in each]))
    return Line(figure, tuple(cells), figure.verdict([mean for mean, _ in cells]), seeds)


def _all(verdicts: Sequence[bool | None]) -> bool | None:
    return None if not verdicts or None in verdicts else all(verdicts)


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None
