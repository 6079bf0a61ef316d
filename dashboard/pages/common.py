"""Parts common to all pages: header, choice of an experiment, notices for empty states and errors, refreshing."""

from __future__ import annotations

import functools
import os.path
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import gradio as gr

from dashboard import charts, markup
from dashboard.formatting import DASH, count, memory
from dashboard.markup import STAGE_WORDS
from dashboard.tracker_source import Source
from db import Database, DatabaseError, MissingDatabaseError, knowledge_answers, queries
from db.cycle_answers import Judged
from db.records import INSTRUCTIONS, Checkpoint, Cycle, Experiment, Overview, Stage, kind_of

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""Settings of every event: no progress indicator, no entry in Gradio's list of functions."""

SWITCH = """(name) => {
    const address = new URL(window.location);
    address.search = name ? '?experiment=' + encodeURIComponent(name) : '';
    window.location = address;
}"""
"""The chosen experiment is part of the address: it can be bookmarked and shared, and the back button works."""

DECISION_WORDS = {"accepted": "accepted", "rejected": "rejected", "rolled_back": "rolled back"}
NO_DECISION = "no decision yet"
"""Of a cycle that nobody decided about; figures and rules are "undecided" where the interval holds both outcomes."""
DECISION_TONES = {"accepted": "good", "rejected": "bad", "rolled_back": "bad"}


def top(page: str, source: Source) -> tuple[gr.HTML, gr.Dropdown]:
    """Return the header of a page and the choice of an experiment (hidden until there are several)."""
    with gr.Row(elem_classes="top"):
        header = gr.HTML(markup.header(page, asking=source.asking), elem_classes="header")
        choice = gr.Dropdown(
            label="Experiment", show_label=False, container=False, visible=False, elem_classes="choice", min_width=150
        )
    choice.input(fn=None, inputs=choice, js=SWITCH)
    return header, choice


def panels(count: int, kind: str, look: str) -> list[Any]:
    """Build hidden cards for figures in a row; return their columns, titles and figures."""
    columns, titles, plots = [], [], []
    with gr.Row(elem_classes=look):
        for index in range(count):
            with gr.Column(elem_classes="card", min_width=300, visible=False) as column:
                titles.append(gr.HTML())
                plots.append(gr.Plot(show_label=False, container=False, elem_id=f"{kind}-{index}"))
            columns.append(column)
    return [*columns, *titles, *plots]


def choices(source: Source, chosen: Experiment) -> Any:
    """Return an update of the dropdown; it is visible only with several experiments."""
    names = queries.experiment_names(source.database())
    if chosen.name not in names:
        names.append(chosen.name)
    return gr.update(choices=names, value=chosen.name, visible=len(names) > 1)


def asked_experiment(source: Source, request: gr.Request) -> Experiment | None:
    """Return the experiment named in the address, else the newest."""
    return source.experiment(request.query_params.get("experiment"))


def trouble(source: Source, error: DatabaseError) -> str:
    """Return the notice for a missing or unreadable database."""
    if isinstance(error, MissingDatabaseError):
        return markup.notice(
            "No experiment here yet",
            f"Nothing has been recorded in {source.shown}. The demo takes a few minutes; this page then fills.",
            ["recover demo", "recover cycle --docs ./my-documents"],
        )
    return markup.notice("The tracker cannot be read", str(error), tone="bad")


def worked(stage: Stage) -> float:
    """Return the seconds a running stage has run over all attempts, without the time it was interrupted."""
    return stage.wall_seconds + stage.silent_seconds


def address(page: str, **parts: object) -> str:
    """Return the address of a page with those ``parts`` that are not None and not empty; of a list with each entry."""
    pairs = ((name, one) for name, value in parts.items() for one in (value if isinstance(value, list) else [value]))
    shown = (f"{name}={quote(str(one), safe='')}" for name, one in pairs if one not in ("", None))
    return f"{page}?" + "&".join(shown)


def live_address(experiment: str, stage: Stage) -> str:
    """Return the address of a stage's curves."""
    return address("live", experiment=experiment, stage=stage.id)


def cycle_address(experiment: str, cycle: int, suite: str = "") -> str:
    """Return the address of a cycle's page."""
    return address("cycle", experiment=experiment, cycle=cycle, suite=suite)


def decision_chip(cycle: Cycle) -> str:
    """Return the newest decision about a cycle as a chip."""
    word = cycle.decision or ""
    return markup.chip(DECISION_WORDS.get(word, NO_DECISION), DECISION_TONES.get(word, ""))


def answers(experiment: str, cycle: int, judged: Judged) -> str:
    """Return the three answers about a cycle, each with a link to its items."""
    shown = []
    for one in judged.answers:
        if kind_of(one.suite) in (knowledge_answers.ASKED, knowledge_answers.UNANSWERABLE):
            corpus = one.suite.split("/")[1]
            words, to = "questions", address("knowledge", experiment=experiment, cycle=cycle, corpus=corpus)
        else:
            to = address("samples", experiment=experiment, cycle=cycle, show="still-lost", suite=one.suite)
            words = "prompts no longer followed whole" if one.suite in INSTRUCTIONS else "lost items"
        link = f'<a href="{markup.esc(to)}">{words} →</a>' if one.suite else ""
        shown.append((one.question, one.tone, one.word, one.says, link))
    return markup.answers(shown)


def parse_number(asked: str | None) -> int | None:
    """Return the number in a parameter of an address; None if it is not a number that a database id can have."""
    return int(asked) if asked and asked.isascii() and asked.isdigit() and len(asked) < 10 else None


def numbered(number: int, one: str, several: str) -> str:
    """Return a number with its noun in the singular or plural."""
    return f"1 {one}" if number == 1 else f"{number} {several}"


def nothing_measured(overview: Overview, none: str) -> tuple[str, list[str]]:
    """Return the notice if nothing is measured yet, and the commands that measure; no commands while a stage runs."""
    if overview.running is None:
        return f"{none} Run a cycle on documents:", ["recover cycle --docs ./my-documents", "recover eval"]
    work = markup.STAGE_WORDS[overview.running.kind].lower()
    return f"{none} A stage is running ({work}): figures come when an evaluation has ended.", []


def spent_tokens(stage: Stage) -> list[str]:
    """Return the tokens a stage sampled, scored and trained on, as cells."""
    return [count(n) if n else DASH for n in (stage.tokens_sampled, stage.tokens_scored, stage.tokens_trained)]


def peak_memory(stage: Stage) -> str:
    """Return a stage's peak memory as a cell."""
    return memory(stage.peak_memory_bytes) if stage.peak_memory_bytes else DASH


def unknown(source: Source, request: gr.Request) -> str:
    """Return the notice for an unknown experiment, or for none at all."""
    name = request.query_params.get("experiment")
    if not name:
        return trouble(source, MissingDatabaseError())
    return markup.notice("No such experiment", f"There is none named {name}. Choose another, or leave the name out.")


def steps(what: str, total: int, offset: int, size: int, at: Callable[[int], str]) -> str:
    """Return links to the neighbouring pages of ``size`` rows; ``at`` returns the address of an offset."""
    if total <= size:
        return ""
    last = min(total, offset + size)
    before, after = at(max(0, offset - size)) if offset else "", at(last) if last < total else ""
    return markup.neighbours(f"Pages of {what}", f"{offset + 1:,} to {last:,} of {total:,}", before, after)


Render = Callable[[Source, Experiment, dict[str, str]], str]
"""Returns the HTML of a page about an experiment, from the parameters of the address."""


def text_page(name: str, render: Render) -> Callable[[gr.Blocks, Source, object], None]:
    """Return what builds a page that consists of one piece of HTML about an experiment, made by ``render``.

    Its filters are links and forms, so that the address holds the whole state.
    """

    def build(page: gr.Blocks, source: Source, _access: object) -> None:
        header, choice = top(name, source)
        body = gr.HTML(elem_id="content", elem_classes="summary")

        def show(request: gr.Request) -> list[Any]:
            return text_outputs(name, source, render, request)

        page.load(show, outputs=[header, choice, body], **QUIET)

    return build


def text_outputs(name: str, source: Source, render: Render, request: gr.Request) -> list[Any]:
    """Return the outputs of such a page: header, choice of an experiment and text, or an error notice."""
    try:
        experiment = asked_experiment(source, request)
        if experiment is None:
            return [gr.skip(), gr.skip(), unknown(source, request)]
        shown = render(source, experiment, dict(request.query_params))
        return [markup.header(name, experiment.name, asking=source.asking), choices(source, experiment), shown]
    except DatabaseError as error:
        return [gr.skip(), gr.skip(), trouble(source, error)]


def words_first(page: gr.Blocks, function: Callable[..., list[Any]], outputs: list[Any], **settings: Any) -> None:
    """Call a function when the page opens, and send its text outputs first, then its figures.

    Loading Plotly and drawing blocks the browser for about a second; text sent with the figures would appear late.
    """
    plots = [output for output in outputs if isinstance(output, gr.Plot)]
    held = gr.State(None)
    without_state = [None] * len(settings.get("inputs", ()))

    def drawn(values: Sequence[Any]) -> list[Any]:
        return [value for value, output in zip(values, outputs, strict=True) if output in plots]

    @functools.wraps(function)
    def words(*arguments: Any) -> list[Any]:
        values = function(*arguments)
        texts = [gr.skip() if output in plots else value for value, output in zip(values, outputs, strict=True)]
        return [*texts, drawn(values)]

    def figures(values: list[Any] | None, request: gr.Request) -> list[Any]:
        if values is None:  # evicted meanwhile, with the page's other state: many pages are open
            values = drawn(function(*without_state, request))
        return [*values, None]

    opened = page.load(words, outputs=[*outputs, held], **settings, **QUIET)
    opened.then(figures, inputs=held, outputs=[*plots, held], **QUIET)


def refreshing(
    page: gr.Blocks, function: Callable[..., Any], state: gr.State, outputs: list[Any], every: float
) -> None:
    """Call a function when the page opens and then every ``every`` seconds, without a progress indicator.

    The function takes (state, request) and returns a value for the state and for each output.
    """
    settings: dict[str, Any] = {"inputs": [state], "concurrency_limit": 8}
    words_first(page, function, [state, *outputs], **settings)
    gr.Timer(every).tick(function, outputs=[state, *outputs], trigger_mode="once", **settings, **QUIET)


# Selection of stages on the pages that compare several: names, styles, address parameters, FLOPs, settings.

COLOURS = len(markup.SERIES)
DASHES = len(charts.DASHES)


@dataclass(frozen=True)
class Named:
    """A stage with the name of its experiment and the checkpoint it made, if any."""

    stage: Stage
    experiment: str
    checkpoint: Checkpoint | None

    @property
    def name(self) -> str:
        """The name of its checkpoint, else its kind, cycle and id."""
        if self.checkpoint is not None:
            return self.checkpoint.name
        cycle = f", cycle {self.stage.cycle}" if self.stage.cycle is not None else ""
        return f"{STAGE_WORDS[self.stage.kind]}{cycle} (stage {self.stage.id})"

    @property
    def method(self) -> str:
        """The training method."""
        if self.stage.kind != "distill":
            return STAGE_WORDS[self.stage.kind].lower()
        return str(self.stage.details.get("method") or self.stage.config.get("method") or "distillation")


def named(database: Database, stages: Sequence[Stage]) -> list[Named]:
    """Return stages with their names, in the same order."""
    made = queries.made_by(database, [stage.id for stage in stages])
    by_id = {number: queries.experiment(database, number) for number in {stage.experiment_id for stage in stages}}
    experiments = {number: one.name if one is not None else "" for number, one in by_id.items()}
    return [Named(stage, experiments[stage.experiment_id], made.get(stage.id)) for stage in stages]


def by_id(database: Database, numbers: Sequence[int]) -> list[Stage]:
    """Return the existing stages of these ids, in the given order."""
    stages = {stage.id: stage for stage in queries.find_stages(database, ids=numbers)}
    return [stages[number] for number in numbers if number in stages]


def labels(entries: Sequence[Named]) -> list[str]:
    """Return a distinct label for each stage; with the experiment only if there are several."""
    experiments = {entry.experiment for entry in entries}
    prefix = os.path.commonprefix(list(experiments))  # noqa: RUF071 (up to a slash, below)
    shared = prefix[: prefix.rfind("/") + 1]
    names = [
        f"{entry.experiment.removeprefix(shared)}: {entry.name}" if len(experiments) > 1 else entry.name
        for entry in entries
    ]
    return [
        f"{name} (stage {entry.stage.id})" if names.count(name) > 1 else name
        for name, entry in zip(names, entries, strict=True)
    ]


def looks(entries: Sequence[Named]) -> list[tuple[int, int]]:
    """Return for each stage the indices of its colour and dash style. If experiments share stage names, as the seeds
    of a comparison do, the name selects the colour and the experiment the dash style."""
    names = list(dict.fromkeys(entry.name for entry in entries))
    experiments = list(dict.fromkeys(entry.experiment for entry in entries))
    pairs = [(names.index(entry.name), experiments.index(entry.experiment)) for entry in entries]
    distinct = len(set(pairs)) == len(pairs) and len(names) <= COLOURS and 1 < len(experiments) <= DASHES
    return pairs if distinct and len(names) < len(entries) else [(at, at) for at in range(len(entries))]


def asked_stages(request: gr.Request, limit: int) -> list[int]:
    """Return the stage ids in the address: ``stage=4&stage=9``, or ``stage=4,9``."""
    words = (word.strip() for value in request.query_params.getlist("stage") for word in value.split(","))
    numbers = [int(word) for word in words if word.isdecimal() and len(word) < 10]
    return list(dict.fromkeys(numbers))[:limit]


def flops(stage: Stage) -> float | None:
    """Return estimated FLOPs: 2N per token read and 6N per token trained on; None if the size N is unknown."""
    size = stage.details.get("parameters")
    if not isinstance(size, int | float) or not size:
        return None
    return float(size) * (2 * (stage.tokens_sampled + stage.tokens_scored) + 6 * stage.tokens_trained)
