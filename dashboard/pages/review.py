"""Review page: blind votes between two checkpoints' responses, labels of lost answers, and their results."""

from __future__ import annotations

from typing import Any

import gradio as gr

from dashboard import markup
from dashboard.access import Access
from dashboard.pages import common, review_cards
from dashboard.pages.review_request import (
    COMPARE,
    RESULTS,
    STILL_LOST,
    Asked,
    judge,
    pair_of,
    queue,
    read,
    review_of,
)
from dashboard.tracker_source import Source
from db import DatabaseError, reviews
from db.reviews import LABELS, LONGEST_NOTE

NAME = "Review"
_SHOWN = "document.querySelector('[data-pair]')?.dataset.pair ?? ''"
# The pair that is judged is the one on the screen, whatever the server sent last.
_PAIR_AND_NOTE_JS = f"(_, note) => [{_SHOWN}, note]"
_NEXT_JS = "() => window.recoveryNextPair()"


def build(page: gr.Blocks, source: Source, access: Access) -> None:
    """Build the page."""
    header, choice = common.top(NAME, source)
    summary = gr.HTML(elem_id="content", elem_classes="summary")
    result = gr.HTML(elem_classes="said")
    body = gr.HTML(elem_classes="evidence")
    pair = gr.Textbox(visible=False)
    with gr.Row(elem_classes="judging", visible=False) as voting:
        votes = {
            side: gr.Button(words, elem_id=f"vote-{side}", min_width=130)
            for side, words in review_cards.BUTTONS.items()
        }
    with gr.Column(elem_classes="judging card decide", visible=False) as labelling:
        note = gr.Textbox(label="Note, optional", max_length=LONGEST_NOTE, elem_id="label-note")
        with gr.Row(elem_classes="buttons"):
            labels = {
                label: gr.Button(f"{number}  {words}", elem_id=f"label-{number}", min_width=130, size="sm")
                for number, (label, words) in enumerate(LABELS.items(), 1)
            }
    outputs = [header, choice, summary, body, voting, labelling, result]

    def show(request: gr.Request) -> list[Any]:
        return _show(source, access, request)

    page.load(show, outputs=outputs, **common.QUIET)
    for word, button in {**votes, **labels}.items():

        def enter(token: str, words: str, request: gr.Request, word: str = word) -> list[Any]:
            return _enter(source, access, request, token, word, words)

        inputs, js = [pair, note], _PAIR_AND_NOTE_JS
        done = button.click(enter, inputs, [*outputs, note], js=js, **common.QUIET)
        done.then(fn=None, js=_NEXT_JS)


def _enter(source: Source, access: Access, request: gr.Request, token: str, word: str, note: str) -> list[Any]:
    """Record a vote or a label, and show the next pair; after an error show the same one again, with the error.

    Return the outputs of the page and the note, which is kept if it was not recorded.
    """
    if access.read_only:
        refused = markup.notice("Read only", "This dashboard was started with --read-only.", tone="bad")
        return [*_show(source, access, request, pair_of(token))[:-1], refused, gr.skip()]
    try:
        asked = _asked(source, access, request)
        if asked is None:
            return [*_show(source, access, request), gr.skip()]
        ids = judge(source, access, asked, token, word, note)
    except DatabaseError as error:
        return [*(gr.skip() for _ in range(6)), markup.notice("Not recorded", str(error), tone="bad"), gr.skip()]
    return [*_show(source, access, request, ids), ""]


def _asked(source: Source, access: Access, request: gr.Request) -> Asked | None:
    experiment = common.asked_experiment(source, request)
    return None if experiment is None else read(source, access, request, experiment)


def _show(source: Source, access: Access, request: gr.Request, after: tuple[int, int] | None = None) -> list[Any]:
    """Return the outputs of the page; ``after`` is the pair that was just judged."""
    hidden = gr.update(visible=False)
    try:
        experiment = common.asked_experiment(source, request)
        if experiment is None:
            return [gr.skip(), gr.skip(), common.unknown(source, request), "", hidden, hidden, ""]
        asked = read(source, access, request, experiment)
        above = [markup.header(NAME, experiment.name, asking=source.asking), common.choices(source, experiment)]
        if asked is None:
            return [*above, _nothing(experiment.name), "", hidden, hidden, ""]
        if asked.view == RESULTS:
            return [*above, *_results(source, access, asked), hidden, hidden, ""]
        summary, body, open_ = _judging(source, access, asked, after)
        shown = [gr.update(visible=open_ and asked.view == view) for view in (COMPARE, STILL_LOST)]
        return [*above, summary, body, *shown, ""]
    except DatabaseError as error:
        return [gr.skip(), gr.skip(), common.trouble(source, error), "", hidden, hidden, ""]


def _nothing(experiment: str) -> str:
    return markup.notice(
        "Nothing to review yet",
        f"Experiment {experiment} has no two checkpoints whose responses to the same prompts are recorded.",
        ["recover eval", "recover cycle --docs ./my-documents"],
    )


def _judging(source: Source, access: Access, asked: Asked, after: tuple[int, int] | None) -> tuple[str, str, bool]:
    """Return the summary and the body of a queue, and whether the reviewer can judge what it shows."""
    lost = asked.view == STILL_LOST
    review = None if lost else review_of(source, access, asked)
    title = "What went wrong here?" if lost else "Which response is better?"
    if access.read_only and not lost:
        text = "This dashboard was started with --read-only: it shows the results and takes no votes."
        return review_cards.top(asked, access, title), markup.notice("Read only", text, tone="warn"), False
    if not asked.reviewer and not access.read_only:
        text = "Give your name above: votes and labels are recorded with it, and reviewers are compared."
        return review_cards.top(asked, access, title), markup.notice("Who reviews?", text), False
    waiting = queue(source, asked, review, after)
    shown = reviews.texts(source.database(), waiting.pair) if waiting.pair is not None else None
    if shown is None:
        return review_cards.top(asked, access, title), review_cards.nothing_left(asked, waiting), False
    if lost or review is None:
        hint = "" if access.read_only else review_cards.label_hint()
        summary = review_cards.top(asked, access, title, hint)
        return summary, review_cards.lost(asked, waiting, shown), not access.read_only
    left = reviews.shown_left(review.seed, asked.reviewer, shown.pair.item)
    summary = review_cards.top(asked, access, title, review_cards.vote_hint())
    return summary, review_cards.blind(asked, waiting, shown, left), True


def _results(source: Source, access: Access, asked: Asked) -> tuple[str, str]:
    database, ids = source.database(), (asked.first.id, asked.second.id)
    found, labelled = reviews.votes(database, *ids, earlier=True), reviews.labels(database, *ids, earlier=True)
    votes, labels = [one for one in found if one.current], [one for one in labelled if one.current]
    tally = reviews.tally(votes)
    title, hint = "No votes yet", ""
    if tally.scores:
        title = review_cards.share_words(asked.second.name, tally)
        hint = f'<p class="eyebrow">{markup.esc(review_cards.share_details(tally))}</p>'
    hint += review_cards.earlier(len(found) - len(votes))
    hint += review_cards.earlier(len(labelled) - len(labels), "label")
    top = review_cards.top(asked, access, title, hint)
    return top, review_cards.results(asked, access, votes, labels, reviews.rounds(database, *ids))
