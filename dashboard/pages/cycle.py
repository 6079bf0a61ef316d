"""Cycle page: scores, cost and evidence of one cycle, and the decision about it."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import gradio as gr

from dashboard import markup
from dashboard.access import Access
from dashboard.formatting import DASH, ago, short_path
from dashboard.markup import esc
from dashboard.pages import common, cycle_cards
from dashboard.pages.common import DECISION_TONES, DECISION_WORDS
from dashboard.tracker_source import Source
from db import DatabaseError, Decided, cycle_answers, cycle_evidence, decide, queries
from db.cycle_answers import Judged
from db.records import CycleRow, Overview

NAME = "Cycle"
LONGEST_NAME, LONGEST_REASON = 80, 2000
BUTTONS = (("Accept", "accepted", "primary"), ("Reject", "rejected", "stop"), ("Roll back", "rolled_back", "secondary"))
# The cycle that is decided about is the one on the screen, whatever has become the newest since.
_SHOWN_JS = "(_, who, why) => [document.querySelector('[data-cycle]')?.dataset.cycle ?? '', who, why]"
_SHOWN = re.compile("-".join([r"([0-9]{1,9})"] * 4))


class _Shown(NamedTuple):
    """What the page shows: ids of the experiment, the cycle, its last checkpoint and its newest decision; 0 is none."""

    experiment: int
    cycle: int
    end: int
    decision: int


def build(page: gr.Blocks, source: Source, access: Access) -> None:
    """Build the page."""
    header, choice = common.top(NAME, source)
    summary = gr.HTML(elem_id="content", elem_classes="summary")
    shown = gr.Textbox(visible=False)
    with gr.Column(elem_classes="card decide", visible=False) as panel:  # until there is a cycle to decide about
        gr.HTML(
            markup.card_title(
                "Decide",
                "Stored with its reason and the scores; the newest decision applies. Reject and Roll back move the "
                "latest checkpoint back to where the cycle started.",
            )
        )
        verdict = gr.HTML()
        with gr.Row(elem_classes="reason"):
            name = gr.Textbox(
                label="Your name", visible=access.users is None, max_length=LONGEST_NAME, scale=1, min_width=140
            )
            why = gr.Textbox(label="Reason", max_length=LONGEST_REASON, scale=4, min_width=220)
        with gr.Row(elem_classes="buttons"):
            buttons = [gr.Button(label, variant=variant, min_width=110) for label, _, variant in BUTTONS]
        result = gr.HTML(elem_classes="said")
    evidence = gr.HTML(elem_classes="evidence")
    outputs = [header, choice, summary, panel, verdict, evidence]

    def show(request: gr.Request) -> list[Any]:
        return _show(source, access, request)

    page.load(show, outputs=outputs, **common.QUIET)
    for button, (_, word, _) in zip(buttons, BUTTONS, strict=True):

        def enter(token: str, who: str, reason: str, request: gr.Request, word: str = word) -> list[Any]:
            return _enter(source, access, request, word, token, who, reason)

        button.click(enter, [shown, name, why], [result, *outputs], js=_SHOWN_JS, **common.QUIET)


def _enter(
    source: Source, access: Access, request: gr.Request, word: str, token: str, who: str, reason: str
) -> list[Any]:
    """Record a decision about the cycle that the page showed; return a notice and the outputs, of the same cycle.

    If nothing is recorded, the page stays as it is.
    """
    user, reason = (request.username if access.users is not None else who) or "", reason or ""
    refused = _refused(access, user, reason)
    if refused is None:
        try:
            shown = _read(token or "")
            done = _decide(source, shown, word, user.strip(), reason.strip())
            return [_said(done), *_show(source, access, request, shown)]
        except DatabaseError as error:
            refused = markup.notice("Not recorded", str(error), tone="bad")
    return [refused, *(gr.skip() for _ in range(6))]


def _said(done: Decided) -> str:
    also = f" Also rolled back: cycle {', '.join(map(str, done.also))}." if done.also else ""
    latest = f"The latest checkpoint is {done.after}" + ("." if done.moved else ", unchanged.")
    return markup.notice(
        f"Cycle {done.cycle} {DECISION_WORDS[done.decision]}", f"{latest}{also}", tone=DECISION_TONES[done.decision]
    )


def _refused(access: Access, user: str, reason: str) -> str | None:
    """Return a notice if nobody may decide here, or what a decision needs is missing or too long."""
    if access.read_only:
        return markup.notice("Read only", "This dashboard was started with --read-only.", tone="bad")
    if not user.strip() or not reason.strip():
        missing = "your name" if not user.strip() else "a reason"
        return markup.notice("Not recorded", f"Give {missing}: a decision is stored with both.", tone="warn")
    for what, given, longest in (("name", user, LONGEST_NAME), ("reason", reason, LONGEST_REASON)):
        if len(given) > longest:
            problem = f"The {what} has {len(given):,} characters; at most {longest:,} are allowed."
            return markup.notice("Not recorded", problem, tone="warn")
    return None


def _decide(source: Source, shown: _Shown, word: str, who: str, why: str) -> Decided:
    """Record a decision about what was shown. Raises DatabaseError if that has changed since."""
    found = _found(source, shown)
    if found is None or _end_id(found[1]) != shown.end:
        raise DatabaseError("the cycle has changed since it was shown: reload the page")
    row = found[1]
    evidence = cycle_evidence.for_decision(row, cycle_evidence.current(source.database(), row))
    with source.writing() as database:
        return decide(database, row.cycle.id, word, who=who, why=why, evidence=evidence, seen=shown.decision)


def _read(token: str) -> _Shown:
    """Return what a page names as shown. Raises DatabaseError if it names nothing."""
    found = _SHOWN.fullmatch(token)
    if found is None:
        raise DatabaseError("the page does not say which cycle it shows: reload the page")
    return _Shown(*map(int, found.groups()))


def _token(source: Source, overview: Overview, row: CycleRow) -> str:
    """Return an element that names what the page shows."""
    newest = next(iter(queries.decisions(source.database(), row.cycle.id, limit=1)), None)
    shown = _Shown(overview.experiment.id, row.cycle.id, _end_id(row), newest.id if newest is not None else 0)
    return f'<span hidden data-cycle="{"-".join(map(str, shown))}"></span>'


def _end_id(row: CycleRow) -> int:
    return row.end.checkpoint.id if row.end is not None else 0


def _found(source: Source, shown: _Shown) -> tuple[Overview, CycleRow] | None:
    """Return the cycle that was shown, with its experiment."""
    overview = queries.overview(source.database(), shown.experiment)
    rows = overview.cycles if overview is not None else ()
    row = next((row for row in rows if row.cycle.id == shown.cycle), None)
    return (overview, row) if overview is not None and row is not None else None


def _find(source: Source, request: gr.Request) -> tuple[Overview, CycleRow] | None:
    """Return the cycle named in the address, else the newest, with its experiment."""
    experiment = common.asked_experiment(source, request)
    overview = queries.overview(source.database(), experiment.id) if experiment else None
    if overview is None or not overview.cycles:
        return None
    wanted = request.query_params.get("cycle")
    if wanted is None:
        return overview, overview.cycles[-1]
    row = next((row for row in overview.cycles if str(row.cycle.number) == wanted), None)
    return (overview, row) if row is not None else None


def _show(source: Source, access: Access, request: gr.Request, shown: _Shown | None = None) -> list[Any]:
    """Return the outputs for the cycle that the address asks for, or for the one that was shown before."""
    try:
        found = _find(source, request) if shown is None else _found(source, shown)
        if found is None:
            return _nothing(source, request)
        overview, row = found
        judged = cycle_answers.judged(source.database(), row)
        return [
            markup.header(NAME, overview.experiment.name, asking=source.asking),
            common.choices(source, overview.experiment),
            _summary(source, access, overview, row, judged) + _token(source, overview, row),
            gr.update(visible=not access.read_only),
            "" if judged is None else _verdict(judged),
            cycle_cards.cards(source, overview, row, request.query_params.get("suite") or ""),
        ]
    except DatabaseError as error:
        return [gr.skip(), gr.skip(), common.trouble(source, error), gr.update(visible=False), "", ""]


def _nothing(source: Source, request: gr.Request) -> list[Any]:
    experiment = common.asked_experiment(source, request)
    if experiment is None:
        message = common.unknown(source, request)
    else:
        wanted = request.query_params.get("cycle")
        message = markup.notice(
            "No such cycle" if wanted else "No cycle yet",
            f"Experiment {experiment.name} has no cycle {wanted or ''}. Start one with a folder of documents:",
            ["recover cycle --docs ./my-documents"],
        )
    return [gr.skip(), gr.skip(), message, gr.update(visible=False), "", ""]


def _verdict(judged: Judged) -> str:
    """Return what the answers and the gate suggest."""
    word = markup.chip(judged.verdict.word, judged.verdict.tone)
    return f'<p class="verdict">The figures say: {word} {esc(judged.verdict.why)}</p>'


def _summary(source: Source, access: Access, overview: Overview, row: CycleRow, judged: Judged | None) -> str:
    """Return what the cycle answers, and links to other cycles."""
    documents = f"{short_path(row.cycle.documents) or DASH}, started {ago(row.cycle.created_at)}"
    name = overview.experiment.name
    words = common.sentence(row.summary) if judged is None else judged.headline
    neighbours = (
        (common.cycle_address(name, one.cycle.number), f"Cycle {one.cycle.number}", one is row)
        for one in overview.cycles
    )
    return (
        markup.hero(esc(documents), f"{esc(words)} {common.decision_chip(row.cycle)}", hint=row.cycle.documents)
        + markup.tabs("Cycles", neighbours)
        + _report(source, access, overview, row)
        + ("" if judged is None else common.answers(name, row.cycle.number, judged))
        + (_verdict(judged) if access.read_only and judged is not None else "")
    )


def _report(source: Source, access: Access, overview: Overview, row: CycleRow) -> str:
    """Return links to the cycle report. `recover report` covers only the workspace's own cycles, and writes."""
    if access.read_only or overview.experiment.name != source.own:
        return ""
    return markup.numbers("Cycle report", f"download/report/{row.cycle.number}{{}}", ("html", "md"))
