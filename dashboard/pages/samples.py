"""Samples page: responses of base, mid-trained and recovered to the same prompts, with their verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from dashboard import formatting, markup
from dashboard.markup import esc
from dashboard.pages import common
from dashboard.pages.cycle import by_suite, comparable, following
from dashboard.tracker_source import Source
from db import queries
from db.records import CycleRow, Evaluation, Experiment, Overview
from db.sample_comparison import FATES, AnswerPage, SideBySide, side_by_side

NAME = "Samples"
PAGE_SIZE = 8
_KEYS_HINT = (
    '<p class="eyebrow">Keys: <kbd>j</kbd> <kbd>k</kbd> next and previous, <kbd>[</kbd> <kbd>]</kbd> pages.</p>'
)
LABELS = {
    "still-lost": "Lost and still lost",
    "back": "Lost and recovered",
    "lost": "Lost by mid-training",
    "new": "New failures",
    "won": "Won",
    "one-sided": "Only one solved",
    "all": "All",
}
MIDDLE = ("back", "lost", "new")  # outcomes that depend on the mid-trained model


def text(source: Source, experiment: Experiment, asked: dict[str, str]) -> str:
    """Return the page's HTML: of the cycle that the address names, else of the newest."""
    overview = queries.overview(source.database(), experiment.id, details=False)
    assert overview is not None  # the experiment exists
    wanted = asked.get("cycle")
    rows = (row for row in reversed(overview.cycles) if row.end is not None)
    row = next((row for row in rows if wanted in (None, str(row.cycle.number))), None)
    return _no_responses(overview) if row is None else _page(source, overview, row, asked)


build = common.text_page(NAME, text)


def _no_responses(overview: Overview) -> str:
    none = f"Experiment {overview.experiment.name} has no such cycle with evaluated checkpoints."
    return markup.notice("No responses yet", *common.nothing_measured(overview, none))


def _page(source: Source, overview: Overview, row: CycleRow, asked: dict[str, str]) -> str:
    sides = {"base": row.base, "mid-trained": row.midtrained, "recovered": row.recovered}
    suites = by_suite(source, sides, answered=True)
    evaluations = following(suites, asked.get("suite", ""))
    base, middle = evaluations.get("base"), evaluations.get("mid-trained")
    end = evaluations.get("recovered", middle)
    if base is None or end is None:
        return _no_responses(overview)
    fate = asked.get("show", "still-lost")
    fate = fate if fate in FATES else "all"
    kind, search = asked.get("type", ""), asked.get("search", "").strip()[:200]
    offset = common.parse_number(asked.get("from")) or 0
    ended = "recovered" in evaluations
    three = ended and middle is not None
    # While the mid-trained model is the last one, what mid-training lost is what is still lost.
    outcome = "still-lost" if fate == "lost" and not ended else fate
    page = side_by_side(
        source.database(), base.id, middle.id if three and middle else None, end.id,
        fate=outcome, kind=kind or None, search=search or None, offset=offset, limit=PAGE_SIZE,
    )  # fmt: skip
    labels = ["Base", "Mid-trained", "Recovered"] if three else ["Base", "Recovered" if ended else "Mid-trained"]
    state: _State = {
        "experiment": overview.experiment.name, "cycle": row.cycle.number, "show": fate,
        "suite": base.suite, "type": kind, "search": search,
    }  # fmt: skip
    return (
        _heading(row, page, state)
        + _filters(overview, state, base, comparable(suites))
        + markup.numbers(f"All responses of {labels[-1].lower()}", f"download/evaluation/{end.id}{{}}")
        + "".join(_sample(one, labels, kind) for one in page.rows)
        + common.steps("samples", page.total, page.offset, PAGE_SIZE, lambda at: _at(state, at))
        + (_no_match(state, known=three or not ended) if not page.total else "")
    )


class _State(TypedDict):
    """The state of the page, by the names of its address's parts; ``show`` is a fate."""

    experiment: str
    cycle: int
    show: str
    suite: str
    type: str
    search: str


def _at(state: _State, offset: int = 0) -> str:
    return common.address("samples", **state, **{"from": offset or None})


def _heading(row: CycleRow, page: AnswerPage, state: _State) -> str:
    kind = f" of {state['type']}" if state["type"] else ""
    prompts = f"{page.total:,} {'prompt' if page.total == 1 else 'prompts'}"
    words = f"{LABELS[state['show']]}{kind}: {prompts} of {state['suite']}"
    to = common.cycle_address(state["experiment"], state["cycle"], state["suite"])
    return markup.hero(f'<a href="{esc(to)}">← {esc(row.summary)}</a>', esc(words), below=_KEYS_HINT)


def _filters(overview: Overview, state: _State, base: Evaluation, suites: Sequence[str]) -> str:
    """Return the fates as tabs, and a form for the suite, the type, the text and the cycle."""
    tabs = "".join(
        f'<a href="{esc(_at(state | {"show": fate}))}" title="{esc(description)}"'
        f"{markup.current(fate == state['show'])}>{esc(LABELS[fate])}</a>"
        for fate, description in FATES.items()
    )
    kinds = sorted(key.removeprefix("id/") for key in base.details if key.startswith("id/"))
    cycles = {str(row.cycle.number): str(row.cycle.number) for row in overview.cycles}
    types = {"": "every type"} | {kind: kind for kind in kinds}
    fields = (
        markup.select("cycle", "Cycle", cycles, str(state["cycle"]))
        + (markup.select("suite", "Suite", {one: one for one in suites}, state["suite"]) if len(suites) > 1 else "")
        + markup.select("type", "Type of instruction", types, state["type"])
    )
    form = markup.filters(
        "samples", fields, {"experiment": state["experiment"], "show": state["show"]}, state["search"]
    )
    return markup.tab_row("Outcome", tabs) + form


def _sample(one: SideBySide, labels: Sequence[str], kind: str) -> str:
    """Return one prompt with its responses side by side; differences from base's are marked."""
    base, columns = one.answers[0], []
    for label, answer in zip(labels, one.answers, strict=True):
        first = base.response if base is not None and answer is not base else None
        shown = formatting.answer(answer.response, first) + markup.verdicts(answer.verdicts, kind) if answer else ""
        columns.append((label, shown or "<p>not evaluated</p>"))
    return (
        f'<article class="card sample" tabindex="0" aria-label="{esc(one.item)}"><p class="eyebrow">{esc(one.item)}</p>'
        f'<pre class="prompt">{esc(one.prompt)}</pre>{formatting.beside(columns)}</article>'
    )


def _no_match(state: _State, *, known: bool) -> str:
    """Return the notice for no match; ``known`` is whether it is known what mid-training did to the prompts."""
    if not known and state["show"] in MIDDLE:
        text = f"The mid-trained model of cycle {state['cycle']} was not evaluated on the prompts shown here."
        return markup.notice("Not measured", f"{text} Choose another tab.")
    return markup.notice(
        "Nothing matches",
        f"No prompt of cycle {state['cycle']} is {FATES[state['show']]}"
        + (f" in {state['type']}" if state["type"] else "")
        + (f" and contains {state['search']!r}" if state["search"] else "")
        + ". Choose another tab, or remove the filters.",
    )
