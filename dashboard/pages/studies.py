"""Studies page: replications of published claims with their verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from dashboard import markup
from dashboard.access import Access
from dashboard.formatting import DASH
from dashboard.markup import esc
from dashboard.pages import common
from dashboard.tracker_source import STUDIES, Source
from db import DatabaseError, MissingDatabaseError, queries
from db.records import Experiment

NAME = "Studies"
LIMIT = 1000
TONES = {"holds": "good", "does not hold": "bad", "undecided": "warn", "not tested": ""}
SIGNS = {"holds": "✓", "does not hold": "✗", "undecided": "?", "not tested": "–"}
Table = Mapping[str, Any]
"""A study's outcome as printed by ``recover study results --json`` and stored in the tracker."""


def build(page: gr.Blocks, source: Source, _access: Access) -> None:
    """Build the page."""
    header, _ = common.top(NAME, source)
    body = gr.HTML(elem_id="content", elem_classes="summary")

    def show(request: gr.Request) -> list[Any]:
        return _show(source, request)

    page.load(show, outputs=[header, body], **common.QUIET)


def _show(source: Source, request: gr.Request) -> list[Any]:
    try:
        experiments = queries.experiments(source.database(), prefix=STUDIES, limit=LIMIT)
        outcomes = [one.config for one in experiments if "study" in one.config and "verdict" in one.config]
        done = sorted(outcomes, key=lambda table: (str(table["study"]), -float(table.get("budget") or 0)))
        wanted, budget = request.query_params.get("study"), request.query_params.get("budget")
        if wanted:
            body = _study([table for table in done if table["study"] == wanted], wanted, budget, experiments)
        elif done or experiments:
            body = _every_study(done, _unfinished(experiments, done))
        else:
            body = _no_study(source)
        return [gr.skip(), body]
    except DatabaseError as error:
        return [gr.skip(), common.trouble(source, error)]


def _unfinished(experiments: Sequence[Experiment], done: Sequence[Table]) -> list[tuple[str, str, list[str]]]:
    """Return studies with started seeds and no published outcome: (study, budget, names of the seeds)."""
    published = {_name(table) for table in done}
    begun: dict[str, list[str]] = {}
    for one in reversed(experiments):
        group, _, seed = one.name.rpartition("/seed-")
        if group and seed.isdecimal() and group not in published:
            begun.setdefault(group, []).append(one.name)
    parts = ((group.removeprefix(STUDIES).partition("/budget-"), seeds) for group, seeds in sorted(begun.items()))
    return [(study, budget, seeds) for (study, _, budget), seeds in parts]


def _name(table: Table) -> str:
    """Return the name of the experiment that stores a study's outcome."""
    return f"{STUDIES}{table['study']}/budget-{_budget(table)}"


def _budget(table: Table) -> str:
    return f"{float(table.get('budget') or 0):g}"


def _no_study(source: Source) -> str:
    if not queries.experiments(source.database(), limit=1):
        return common.trouble(source, MissingDatabaseError())
    return markup.notice(
        "No study has been run here",
        "A study tests a published claim on the built-in model over several seeds, with a criterion that was fixed "
        "before the run. Run all but the longest, list them, or run one by name:",
        ["recover study all", "recover study", "recover study recovery"],
    )


# --- all of them ---------------------------------------------------------------------------------------------


def _every_study(done: Sequence[Table], unfinished: Sequence[tuple[str, str, list[str]]]) -> str:
    counts = {word: sum(table["verdict"] == word for table in done) for word in TONES}
    verdicts = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
    studies = common.numbered(len({table["study"] for table in done}), "study", "studies")
    # Some may have been run at several budgets.
    studies += "" if len({table["study"] for table in done}) == len(done) else f", {len(done)} outcomes"
    words = f"{studies}: {verdicts}" if done else "No study is finished yet"
    under = (
        "Published claims, tested on a model of two million parameters with synthetic data: the verdicts apply to this "
        "setting only."
    )
    columns = ("Study", "Verdict", "Claim", "Statements", "Seeds", "Maximum n", "Budget", "Dates")
    rows = [_row(table) for table in done]
    for study, budget, seeds in unfinished:
        links, chip = ", ".join(map(_seed_link, seeds)), markup.chip("no verdict yet", "run")
        rows.append([esc(study), chip, DASH, DASH, links, DASH, esc(budget) or DASH, DASH])
    table = markup.table(columns, rows, caption="Studies and their verdicts")
    note = (
        "A statement holds if the whole 95% interval over seeds lies beyond its bound; undecided: it spans the bound."
    )
    body = f'<div class="prose-cells">{table}</div>'
    return markup.hero(esc(under), esc(words)) + markup.card("All studies", note, body, look="studies")


def _row(table: Table) -> list[str]:
    chips = ""  # the number of statements by verdict, which are listed on hover
    for word, sign in SIGNS.items():
        parts = [part for part in table.get("parts") or [] if part.get("verdict") == word]
        if parts:
            words = esc("; ".join(str(part.get("statement", "")) for part in parts))
            chips += f'<span class="chip {TONES[word]}" title="{words}">'
            chips += f'{sign} {len(parts)}<span class="hidden"> {word}</span></span> '
    return [
        f'<a href="{esc(_address(table))}">{esc(table["study"])}</a>',
        verdict(table["verdict"]),
        esc(table.get("claim", "")),
        chips or DASH,
        esc(_listed(table.get("seeds"))),
        esc(_count(table.get("n"))),
        esc(_budget(table)),
        esc(_span(table.get("dates"))),
    ]


def verdict(word: object) -> str:
    """Return a verdict as a chip with a sign, so that it does not depend on colour."""
    return markup.chip(f"{SIGNS.get(str(word), '·')} {word}", TONES.get(str(word), ""))


# --- one of them ---------------------------------------------------------------------------------------------


def _study(tables: Sequence[Table], wanted: str, budget: str | None, experiments: Sequence[Experiment]) -> str:
    table = next((one for one in tables if budget in (None, _budget(one))), None)
    if table is None:
        at = f" at budget {budget}" if budget and tables else ""
        message = markup.notice(
            "No such study",
            f"No outcome of a study {wanted}{at} is recorded here. Choose one from the list, or run it:",
            [f"recover study {wanted}" if wanted.isidentifier() else "recover study"],
        )
        return message + '<nav class="steps" aria-label="All studies"><a href="studies">← All studies</a></nav>'
    claim = str(table.get("claim", ""))
    under = f'<a href="studies">← All studies</a> · {esc(table["study"])}, {esc(table.get("source", ""))}'
    budgets = [(_address(one), f"budget {_budget(one)}", one is table) for one in tables]
    return (
        markup.hero(under, f"{esc(claim[:1].upper() + claim[1:])} {verdict(table['verdict'])}")
        + (markup.tabs("Budgets", budgets) if len(budgets) > 1 else "")
        + _facts(table, experiments)
        + _statements(table)
        + _figures(table)
    )


def _facts(table: Table, experiments: Sequence[Experiment]) -> str:
    """Return how the study was run and its criterion."""
    seeds = sorted((one.name for one in experiments if one.name.startswith(f"{_name(table)}/seed-")), key=_seed)
    links = ", ".join(_seed_link(name) for name in seeds) or esc(_listed(table.get("seeds")))
    runs = common.address("compare", experiment=_name(table))
    facts = [
        ("Setting", esc(table.get("setting", ""))),
        ("Criterion", esc(table.get("criterion", ""))),
        ("Seeds", links + (f' · <a href="{esc(runs)}">compare their runs →</a>' if seeds else "")),
        ("Items", f"{esc(_count(table.get('n')))} at most per suite"),
        ("Budget", f"{esc(_budget(table))} of the steps given under Setting"),
        ("Dates", esc(_span(table.get("dates")))),
    ]
    rows = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    return markup.card("How it was run", "", f'<dl class="facts">{rows}</dl>')


def _statements(table: Table) -> str:
    parts = table.get("parts") or []
    rows = [
        [
            verdict(part.get("verdict", "")),
            esc(part.get("statement", "")) + _unmet_condition(part.get("given")),
            esc(part.get("bound", "")) or DASH,
            _value(part.get("mean")),
            f"{_value(part['low'])} to {_value(part['high'])}" if "low" in part else DASH,
            markup.interval_plot(part) or DASH,
        ]
        for part in parts
    ]
    note = (
        "Fixed before the run. The claim holds if all statements hold, and fails if one does not hold; a statement is "
        "not tested if its runs could not have decided it. In the drawing the bound is in the middle, and the side on "
        "which the statement holds is shaded."
    )
    columns = ("Verdict", "Statement", "Bound", "Mean", "95% interval", "")
    shown = markup.table(columns, rows, caption="Statements with their verdicts")
    return markup.card("Statements", note, f'<div class="prose-cells">{shown}</div>', look="statements")


def _unmet_condition(entry: object) -> str:
    """Return what a statement would need to be tested, if that is not the case."""
    if not isinstance(entry, Mapping) or entry.get("met", True):
        return ""
    needs = f"requires {entry.get('statement', '')} ({entry.get('bound', '')}), is {_value(entry.get('mean'))}"
    return f" <small>{esc(needs)}</small>"


def _figures(table: Table) -> str:
    """Return mean, spread and the value of each seed for every figure."""
    figures = table.get("figures") or {}
    seeds = [str(seed) for seed in table.get("seeds") or []]
    rows = [
        [
            f"<code>{esc(name)}</code>",
            f"<b>{_value(figure.get('mean'))}</b> ± {_value(figure.get('spread'))}",
            *(_value((figure.get("by_seed") or {}).get(seed)) for seed in seeds),
        ]
        for name, figure in figures.items()
    ]
    columns = ("Figure", "Mean ± spread", *(f"seed {seed}" for seed in seeds))
    note = f"Mean and standard deviation over {common.numbered(len(seeds), 'seed', 'seeds')}, then each value."
    return markup.table_card("Figures", note, columns, rows, "Figures over seeds", look="figures")


def _value(value: object) -> str:
    """Format a figure as ``recover study`` prints it."""
    if not isinstance(value, int | float):
        return DASH
    return f"{value:.3g}" if abs(value) >= 1e5 or 0 < abs(value) < 5e-4 else f"{value:.3f}".replace("-", "−")


def _address(table: Table) -> str:
    return common.address("studies", study=table["study"], budget=_budget(table))


def _seed(name: str) -> int:
    number = name.rpartition("/seed-")[2]
    return int(number) if number.isdecimal() else 0


def _seed_link(name: str) -> str:
    return f'<a href="{esc(common.address("./", experiment=name))}">seed {_seed(name)}</a>'


def _span(dates: object) -> str:
    """Return the first and the last of several dates."""
    days = sorted(map(str, dates)) if isinstance(dates, list) else []
    if len(days) > 1:
        return f"{days[0]} to {days[-1]}"
    return days[0] if days else DASH


def _listed(values: object) -> str:
    return ", ".join(map(str, values)) if isinstance(values, list) and values else DASH


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else DASH
