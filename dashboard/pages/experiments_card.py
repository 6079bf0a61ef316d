"""Card of the overview page that compares several experiments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from dashboard import charts, markup
from dashboard.formatting import DASH, ago, interval, percent, points, share
from dashboard.markup import esc
from dashboard.pages import common
from dashboard.tracker_source import STUDIES, Source
from db import queries
from db.records import Experiment, Overview

READ = 12
"""Number of experiments, the newest, in the table; the dropdown of the page lists all."""
DRAWN = 5


def build() -> tuple[gr.Column, gr.HTML, gr.Plot, gr.HTML]:
    """Build the hidden card; return it with its title, figure and table."""
    with gr.Column(elem_classes="card", visible=False) as card:
        title = gr.HTML()
        figure = gr.Plot(show_label=False, container=False, elem_id="beside")
        table = gr.HTML()
    return card, title, figure, table


def outputs(source: Source, overview: Overview, request: gr.Request) -> list[Any]:
    """Return the card's visibility, title, figure and table; it is hidden if there is nothing to compare."""
    seen = [overview, *_others(source, overview.experiment)]
    if len(seen) < 2:
        return nothing()
    asked = request.query_params.getlist("beside")
    known = {one.experiment.name for one in seen[1:]}
    chosen = [name for name in dict.fromkeys(asked) if name in known]
    if not asked:
        chosen = [one.experiment.name for one in seen[1:]]
    drawn = [one for one in seen if one is overview or one.experiment.name in chosen][:DRAWN]
    names = [one.experiment.name for one in drawn]
    note = "Path of each experiment from its first (hollow) to its newest (filled) evaluated checkpoint."
    title = markup.card_title("Experiments side by side", note, charts.beside_keys(names) + markup.saves("beside"))
    return [gr.update(visible=True), title, charts.beside(drawn), _table(seen, names)]


def nothing() -> list[Any]:
    """Return the outputs of the hidden card."""
    return [gr.update(visible=False), "", None, ""]


def _others(source: Source, experiment: Experiment) -> list[Overview]:
    """Return other experiments with evaluated checkpoints, newest first; studies have their own page."""
    database = source.database()
    listed = [
        one
        for one in queries.experiments(database)
        if one.id != experiment.id and one.cycles and not one.name.startswith(STUDIES)
    ]
    return [one for one in queries.paths(database, [one.id for one in listed[:READ]]) if one.path]


def _table(seen: Sequence[Overview], drawn: Sequence[str]) -> str:
    scores = ("Instruction following", "Of base", "Domain knowledge")
    columns = ("Experiment", "Model", "Cycles", *scores, "Started", "Drawn")
    rows = [_row(one, seen[0], drawn) for one in seen]
    return markup.table(columns, rows, caption="Experiments side by side")


def _row(one: Overview, here: Overview, drawn: Sequence[str]) -> list[str]:
    name, now = one.experiment.name, one.kept[-1] if one.kept else None
    following = now.scores.instruction_following if now else None
    beyond = one.beyond_of_base(now)
    known, before = one.knowledge(now), one.known_before(now.checkpoint) if now else None
    gain = f"{points(known.value - before.value)} points" if known and before else ""
    link = f'<a href="./?experiment={common.quoted(name)}">{esc(name)}</a>'
    return [
        f"<b>{esc(name)}</b>" if one is here else link,
        f'<span class="path">{esc(one.experiment.base_model or DASH)}</span>',
        str(len(one.cycles)),
        f"<b>{share(following)}</b> <small>{esc(interval(following))}</small>",
        percent(one.of_base(now)) + ("" if beyond is None else f" <small>{percent(beyond)} beyond constant</small>"),
        f"{share(known)} <small>{esc(gain)}</small>",
        esc(ago(one.experiment.created_at)),
        "here" if one is here else _toggle(here.experiment.name, name, drawn),
    ]


def _toggle(here: str, name: str, drawn: Sequence[str]) -> str:
    """Return a link that draws an experiment or hides it."""
    there = name in drawn
    kept = [one for one in drawn if one not in (here, name)] + ([] if there else [name])
    beside = "".join(f"&beside={common.quoted(one)}" for one in kept[-(DRAWN - 1) :]) or "&beside="
    word = f"hide {name}" if there else f"draw {name}"
    return (
        f'<a href="./?experiment={common.quoted(here)}{esc(beside)}"{markup.current(there)} aria-label="{esc(word)}">'
        f"{'✓ drawn' if there else '+ draw'}</a>"
    )
