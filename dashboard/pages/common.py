"""What every page has: its header, the choice of an experiment, and words for when there is nothing to show."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import gradio as gr

from dashboard import markup
from dashboard.source import Source
from db import DatabaseError, MissingDatabaseError, queries
from db.records import Experiment, Stage

SWITCH = """(name) => {
    const address = new URL(window.location);
    address.search = name ? '?experiment=' + encodeURIComponent(name) : '';
    window.location = address;
}"""
"""The choice of an experiment is a part of the address: it can be kept, sent, and gone back from."""


def top(page: str, source: Source) -> tuple[gr.HTML, gr.Dropdown]:
    """The header of a page and, for workspaces with several experiments, the choice of one."""
    with gr.Row(elem_classes="top"):
        header = gr.HTML(markup.header(page, asking=source.asking), elem_classes="header")
        choice = gr.Dropdown(
            label="Experiment", show_label=False, container=False, visible=False, elem_classes="choice", min_width=150
        )
    choice.input(fn=None, inputs=choice, js=SWITCH)
    return header, choice


def choices(source: Source, chosen: Experiment) -> Any:
    """The dropdown's state: shown only where there is a choice."""
    names = queries.experiment_names(source.database())
    if chosen.name not in names:
        names.append(chosen.name)
    return gr.update(choices=names, value=chosen.name, visible=len(names) > 1)


def asked_experiment(source: Source, request: gr.Request) -> Experiment | None:
    """The experiment that the address asks for, else the newest."""
    return source.experiment(request.query_params.get("experiment"))


def trouble(source: Source, error: DatabaseError) -> str:
    """What to say when the database cannot be read."""
    if isinstance(error, MissingDatabaseError):
        return markup.notice(
            "No experiment here yet",
            f"Nothing has been recorded in {source.shown}. The demo takes a few minutes; this page fills by itself.",
            ["recover demo", "recover cycle --docs ./my-documents"],
        )
    return markup.notice("The tracker cannot be read", str(error), tone="bad")


def worked(stage: Stage) -> float:
    """Seconds a running stage has worked, over all its attempts: not the time it lay interrupted."""
    return stage.wall_seconds + stage.silent_seconds


def quoted(name: str) -> str:
    """A name as a part of an address."""
    return quote(name, safe="")


def unknown(source: Source, request: gr.Request) -> str:
    """What to say when there is no such experiment, or none at all."""
    name = request.query_params.get("experiment")
    if not name:
        return trouble(source, MissingDatabaseError())
    return markup.notice("No such experiment", f"There is none named {name}. Choose another, or leave the name out.")


Told = Callable[[Experiment, dict[str, str]], str]


def text_page(page: gr.Blocks, name: str, source: Source, told: Told) -> None:
    """A page that is one piece of HTML about an experiment; ``told`` makes it, from what the address asks.

    Filters are links and forms there: where one is, is in the address.
    """
    header, choice = top(name, source)
    body = gr.HTML(elem_id="content", elem_classes="summary")

    def show(request: gr.Request) -> list[Any]:
        return text_outputs(name, source, told, request)

    page.load(show, outputs=[header, choice, body], show_progress="hidden", api_visibility="private")


def text_outputs(name: str, source: Source, told: Told, request: gr.Request) -> list[Any]:
    """The header, the choice of an experiment and the text of such a page, or what went wrong."""
    try:
        experiment = asked_experiment(source, request)
        if experiment is None:
            return [gr.skip(), gr.skip(), unknown(source, request)]
        shown = told(experiment, dict(request.query_params))
        return [markup.header(name, experiment.name, asking=source.asking), choices(source, experiment), shown]
    except DatabaseError as error:
        return [gr.skip(), gr.skip(), trouble(source, error)]


def words_first(page: gr.Blocks, function: Callable[..., list[Any]], outputs: list[Any], **settings: Any) -> None:
    """Call a function when the page opens, and show what it returns in two parts: words, then figures.

    To load Plotly and draw keeps a browser busy for a second, in which it shows nothing that came with the figures.
    """
    plots = [output for output in outputs if isinstance(output, gr.Plot)]
    held = gr.State(None)

    @functools.wraps(function)
    def words(*arguments: Any) -> list[Any]:
        values = function(*arguments)
        figures = [value for value, output in zip(values, outputs, strict=True) if output in plots]
        told = [gr.skip() if output in plots else value for value, output in zip(values, outputs, strict=True)]
        return [*told, figures]

    def figures(values: list[Any]) -> list[Any]:
        return [*values, None]

    settings |= {"show_progress": "hidden", "api_visibility": "private"}
    opened = page.load(words, outputs=[*outputs, held], **settings)
    opened.then(figures, inputs=held, outputs=[*plots, held], show_progress="hidden", api_visibility="private")


def refreshing(
    page: gr.Blocks, function: Callable[..., Any], state: gr.State, outputs: list[Any], every: float
) -> None:
    """Call a function when the page opens and then every so often, without a flicker or a waiting sign.

    The function takes (state, request) and returns a value for the state and for each output.
    """
    settings: dict[str, Any] = {"inputs": [state], "concurrency_limit": 8}
    words_first(page, function, [state, *outputs], **settings)
    hidden: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "trigger_mode": "once"}
    gr.Timer(every).tick(function, outputs=[state, *outputs], **settings, **hidden)
