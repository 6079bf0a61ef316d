"""Knowledge page: each question with its expected answer and what base, base with the page, and the cycle answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from dashboard import markup
from dashboard.formatting import DASH
from dashboard.markup import esc
from dashboard.pages import common
from dashboard.tracker_source import Source
from db import knowledge_answers, queries
from db.knowledge_answers import ABOUT_RIGHT, ABOUT_UNANSWERABLE, CONTROL, OUTCOMES, SHARES, SIDES, Question
from db.records import Experiment, Overview

NAME = "Knowledge"
PAGE_SIZE = 25
ABOUT_WORDINGS = "Each wording counts by itself; recover facts takes those of a fact together."
LABELS = {"learnt": "Learnt", "lost": "Lost", "never": "Never", "known": "Known", "all": "All"}


class Asked(TypedDict):
    """What an address asks for, by the names of its parts; ``show`` is an outcome."""

    experiment: str
    cycle: int
    corpus: int
    show: str
    kind: str
    search: str


def _at(asked: Asked, offset: int = 0) -> str:
    return common.address("knowledge", **asked, **{"from": offset or None})


def text(source: Source, experiment: Experiment, asked: dict[str, str]) -> str:
    """Return the page's HTML."""
    database = source.database()
    overview = queries.overview(database, experiment.id, details=False)
    assert overview is not None  # the experiment exists
    rows = [row for row in overview.cycles if row.end is not None]
    wanted = asked.get("cycle")
    row = next((row for row in reversed(rows) if wanted in (None, str(row.cycle.number))), None)
    corpora = knowledge_answers.corpora(database, row) if row is not None else []
    if row is None or not corpora:
        which = f"no cycle {wanted}" if wanted else "no cycle"
        none = f"Experiment {experiment.name} has {which} with stored answers to questions about documents."
        return markup.notice("No answers yet", *common.nothing_measured(overview, none))
    corpus = common.parse_number(asked.get("corpus"))
    if corpus not in corpora:
        corpus = row.cycle.number if row.cycle.number in corpora else corpora[-1]
    every = knowledge_answers.questions(database, row, corpus, overview.cycles)
    # Without a choice the first tab that holds a question, since a cycle that taught nothing has an empty first one.
    counted = [one for one in every if CONTROL not in one.kinds]
    held = next((name for name in OUTCOMES if any(one.is_of(name) for one in counted)), "all")
    outcome = asked.get("show", held)
    outcome = outcome if outcome in OUTCOMES else "all"
    state: Asked = {
        "experiment": experiment.name, "cycle": row.cycle.number, "corpus": corpus, "show": outcome,
        "kind": asked.get("kind", ""), "search": asked.get("search", "").strip()[:200],
    }  # fmt: skip
    shown = _page(overview, corpora, every, state, common.parse_number(asked.get("from")) or 0)
    return shown + _unanswerable(knowledge_answers.unanswerable(database, row, corpus))


build = common.text_page(NAME, text)


def _page(overview: Overview, corpora: Sequence[int], every: Sequence[Question], state: Asked, offset: int) -> str:
    kind, search, chosen = state["kind"], state["search"], state["show"]
    # Control questions count in no score: they are shown only where they are asked for.
    of_kind = [one for one in every if (kind in one.kinds if kind else CONTROL not in one.kinds)]
    matching = [one for one in of_kind if not search or one.holds(search)]
    shown = [one for one in matching if one.is_of(chosen)]
    offset = min(offset, max(0, len(shown) - 1) // PAGE_SIZE * PAGE_SIZE)
    counts = {outcome: sum(one.is_of(outcome) for one in matching) for outcome in OUTCOMES}
    tabs = (
        (_at(state | {"show": outcome}), f"{LABELS[outcome]} ({counts[outcome]:,})", outcome == chosen)
        for outcome in OUTCOMES
    )
    to = common.cycle_address(state["experiment"], state["cycle"])
    back = f'<a href="{esc(to)}">← Cycle {state["cycle"]}</a>'
    title = f"{LABELS[chosen]}: {common.numbered(len(shown), 'question', 'questions')} about corpus {state['corpus']}"
    about = f'<p class="eyebrow">{esc(OUTCOMES[chosen].capitalize())}. {ABOUT_RIGHT} {ABOUT_WORDINGS}</p>'
    body = _table(shown[offset : offset + PAGE_SIZE], state)
    if not shown:
        body = markup.notice("Nothing matches", "Choose another tab, or remove the filters.")
    return (
        markup.hero(back, esc(title), below=about)
        + markup.tabs("Outcome", tabs)
        + _filters(overview, corpora, knowledge_answers.kinds(every), state)
        + body
        + common.steps("questions", len(shown), offset, PAGE_SIZE, lambda at: _at(state, at))
    )


def _unanswerable(replies: Mapping[str, tuple[int, Mapping[str, float]]]) -> str:
    """Return what was replied to questions about what no document holds; nothing if none was asked."""
    rows = [
        (esc(name.capitalize()), str(n), *(f"{shares[key]:.0%}" if key in shares else DASH for key in SHARES))
        for name, (n, shares) in replies.items()
    ]
    columns = ("", "Questions", *(words.capitalize() for words in SHARES.values()))
    table = markup.table(columns, rows, caption="Replies to what no document holds")
    return markup.card(knowledge_answers.KNOWS_NOT, ABOUT_UNANSWERABLE, table) if rows else ""


def _filters(overview: Overview, corpora: Sequence[int], kinds: Sequence[str], state: Asked) -> str:
    cycles = {str(row.cycle.number): str(row.cycle.number) for row in overview.cycles if row.end is not None}
    fields = (
        markup.select("cycle", "Cycle", cycles, str(state["cycle"]))
        + markup.select("corpus", "Corpus", {str(one): str(one) for one in corpora}, str(state["corpus"]))
        + markup.select("kind", "Kind", {"": "every kind"} | {one: one for one in kinds}, state["kind"])
    )
    return markup.filters(
        "knowledge", fields, {"experiment": state["experiment"], "show": state["show"]}, state["search"]
    )


def _table(shown: Sequence[Question], state: Asked) -> str:
    sides = [name for name in SIDES if any(name in one.responses for one in shown)]
    columns = ("Question", "Expected", *(name.capitalize() for name in sides))
    rows = [
        [
            f"{esc(one.text)}<small>{_document(one, state)}{esc(', '.join(one.kinds))}</small>",
            " <small>or</small> ".join(map(esc, one.answers)) or DASH,
            *(_response(one, name) for name in sides),
        ]
        for one in shown
    ]
    table = markup.table(columns, rows, caption="Questions with their answers")
    return f'<section class="card"><div class="prose-cells asked">{table}</div></section>'


def _document(one: Question, state: Asked) -> str:
    """Return a link to all questions about a question's document."""
    to = _at(state | {"show": "all", "kind": "", "search": one.document})
    return f'<a href="{esc(to)}">{esc(one.document)}</a> ' if one.document else ""


def _response(one: Question, name: str) -> str:
    if name not in one.responses:
        return DASH
    response = one.responses[name]
    mark, word, tone = ("✓", "right", "good") if response.right else ("✗", "wrong", "")
    sign = f'<span class="mark {tone}" aria-hidden="true">{mark}</span><span class="hidden">{word}: </span>'
    return f"{sign} {esc(response.response) or DASH}"
