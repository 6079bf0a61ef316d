"""The page of the horizon study: its bounds, each measure as a table of arms and cycles, the data of its picture."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from evals.statistics import spread
from pipelines.reports.document import table_lines
from pipelines.studies.horizon import ARMS, BEHAVIOUR, LOWEST, MEASURES, Arm, of
from pipelines.studies.results import statements, written_on
from pipelines.studies.study import Outcome

# {arm: [mean over seeds of cycle 1, 2, ...]}
Curves = Mapping[str, Sequence[float]]
DRAWN = {
    BEHAVIOUR: "Instructions followed, relative to base",
    LOWEST: "Worst corpus, share of what was first learnt",
}
_SETTINGS = ("arm", "settings of mid-training", "earlier documents", "teachers", "steps", "settings of the recovery")
BOUNDS = {DRAWN[BEHAVIOUR]: 0.98, DRAWN[LOWEST]: 0.95}


def page(outcome: Outcome, command: str, picture: str) -> str:
    """Return the page; ``picture`` is the address of its picture."""
    arms = arms_of(outcome)
    runs = [f"{arm}: {_seeds(outcome, arm)}" for arm in arms]
    unrun = [f"`{arm}`" for arm in outcome.study.arms if arm not in arms]
    lines = [
        "# Many cycles",
        "",
        f"Written by `{command}` on {datetime.date.today().isoformat()}, on the miniature. {outcome.study.setting}. "
        f"Suites have at most {outcome.items:,} items.",
        "",
        f"![Behaviour and knowledge over the cycles, by arm]({picture})",
        "",
        *statements(outcome),
        "",
        "Bounds were written down before the first run, except where a statement says otherwise.",
        "",
        f"Cycles by seed: {'; '.join(runs)}. A mean of later cycles is of the seeds that reached them; what ended "
        "early was stopped for another arm ([log](log.md)).",
        "",
        f"Not run: {', '.join(unrun)}." if unrun else "Every arm was run.",
        "",
        "## Arms",
        "",
        *table_lines(_SETTINGS, [_settings(arm, ARMS[arm]) for arm in arms]),
    ]
    for measure, title in MEASURES.items():
        lines += ["", f"## {title[0].upper()}{title[1:]}", "", *_table(outcome, measure)]
    return "\n".join([*lines, "", written_on(outcome.dates), ""])


def arms_of(outcome: Outcome) -> list[str]:
    """Return the arms that were run, in the study's order."""
    return [arm for arm in outcome.study.arms if any(of(BEHAVIOUR, arm, 1) in run for run in outcome.runs.values())]


def curves(outcome: Outcome, measure: str) -> Curves:
    """Return a measure's means over the seeds that have each cycle, by arm."""
    return {
        arm: [
            sum(values) / len(values)
            for n in range(1, _cycles(outcome) + 1)
            if (values := _at(outcome, measure, arm, n))
        ]
        for arm in arms_of(outcome)
    }


def _settings(name: str, arm: Arm) -> list[str]:
    """Return all that an arm sets; what is not named is as the miniature's recipe says."""
    recovery = {**arm.distill, **({"earlier_share": "by root"} if arm.root else {})}
    recovery |= {"prompts_before": "by cycle"} if arm.onward else {}
    cells = [name, _named(arm.midtrain), str(Fraction(arm.earlier).limit_denominator(10))]
    if not arm.recovers:
        return [*cells, "–", "–", "none"]
    return [*cells, str(arm.teachers), str(arm.steps), _named(recovery)]


def _named(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(settings.items())) or "–"


def _table(outcome: Outcome, measure: str) -> list[str]:
    """Return a measure as a table: arms down, cycles across; the mean and the spread over seeds."""
    cycles = range(1, _cycles(outcome) + 1)
    rows = [[arm, *(_cell(_at(outcome, measure, arm, number)) for number in cycles)] for arm in arms_of(outcome)]
    return table_lines(["arm", *map(str, cycles)], rows)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean, deviation = spread(values)
    if mean >= 100:
        return f"{mean:,.0f}"
    return f"{mean:.3f}" if len(values) == 1 else f"{mean:.3f} ± {deviation:.3f}"


def _at(outcome: Outcome, measure: str, arm: str, cycle: int) -> list[float]:
    name = of(measure, arm, cycle)
    return [run[name] for run in outcome.runs.values() if name in run]


def _cycles(outcome: Outcome) -> int:
    """Return the largest number of cycles of any arm and seed."""
    found = [re.search(r", cycle (\d+)$", name) for run in outcome.runs.values() for name in run]
    return max(int(match[1]) for match in found if match)


def _seeds(outcome: Outcome, arm: str) -> str:
    """Return the seeds of an arm, each with its number of cycles."""
    last = {
        seed: max((n for n in range(1, _cycles(outcome) + 1) if of(BEHAVIOUR, arm, n) in run), default=0)
        for seed, run in outcome.runs.items()
    }
    return ", ".join(f"seed {seed}: {number}" for seed, number in last.items() if number)
