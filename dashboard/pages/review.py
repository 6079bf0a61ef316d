"""Review page: blind votes between two checkpoints' responses, labels of lost answers, and their results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from dashboard import formatting, markup
from dashboard.access import Access
from dashboard.formatting import DASH, percent
from dashboard.markup import esc
from dashboard.pages import common
from dashboard.tracker_source import Source
from db import DatabaseError, queries, reviews
from db.records import Checkpoint, Experiment
from db.reviews import (
    FIRST,
    LABELS,
    LONGEST_NOTE,
    SCOPES,
    SECOND,
    SKIP,
    TIE,
    LabelRow,
    Pair,
    PairTexts,
    ReviewRow,
    Tally,
    VoteRow,
)

NAME = "Review"
_SHOWN = "document.querySelector('[data-pair]')?.dataset.pair ?? ''"
# A vote is about the pair on the screen, even if the server has sent another one since.
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
        votes = {side: gr.Button(words, elem_id=f"vote-{side}", min_width=130) for side, words in BUTTONS.items()}
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
        experiment = common.asked_experiment(source, request)
        asked = None if experiment is None else read(source, access, request, experiment)
        if asked is None:
            return [*_show(source, access, request), gr.skip()]
        ids = judge(source, access, asked, token, word, note)
    except DatabaseError as error:
        return [*(gr.skip() for _ in range(6)), markup.notice("Not recorded", str(error), tone="bad"), gr.skip()]
    return [*_show(source, access, request, ids), ""]


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
            none = "no two checkpoints whose responses to the same prompts are recorded."
            commands = ["recover eval", "recover cycle --docs ./my-documents"]
            nothing = markup.notice("Nothing to review yet", f"Experiment {experiment.name} has {none}", commands)
            return [*above, nothing, "", hidden, hidden, ""]
        if asked.view == RESULTS:
            return [*above, *_results(source, access, asked), hidden, hidden, ""]
        summary, body, open_ = _judging(source, access, asked, after)
        shown = [gr.update(visible=open_ and asked.view == view) for view in (COMPARE, STILL_LOST)]
        return [*above, summary, body, *shown, ""]
    except DatabaseError as error:
        return [gr.skip(), gr.skip(), common.trouble(source, error), "", hidden, hidden, ""]


def _judging(source: Source, access: Access, asked: Asked, after: tuple[int, int] | None) -> tuple[str, str, bool]:
    """Return the summary and the body of a queue, and whether the reviewer can judge what it shows."""
    labelling = asked.view == STILL_LOST
    review = None if labelling else review_of(source, access, asked)
    title = "What went wrong here?" if labelling else "Which response is better?"
    if access.read_only and not labelling:
        text = "This dashboard was started with --read-only: it shows the results and takes no votes."
        return top(asked, access, title), markup.notice("Read only", text, tone="warn"), False
    if not asked.reviewer and not access.read_only:
        text = "Give your name above: votes and labels are recorded with it, and reviewers are compared."
        return top(asked, access, title), markup.notice("Who reviews?", text), False
    waiting = queue(source, asked, review, after)
    shown = reviews.texts(source.database(), waiting.pair) if waiting.pair is not None else None
    if shown is None:
        return top(asked, access, title), nothing_left(asked, waiting), False
    if labelling or review is None:
        hint = "" if access.read_only else LABEL_HINT
        return top(asked, access, title, hint), lost(asked, waiting, shown), not access.read_only
    on_left = reviews.shown_left(review.seed, asked.reviewer, shown.pair.item)
    return top(asked, access, title, VOTE_HINT), blind(asked, waiting, shown, on_left), True


def _results(source: Source, access: Access, asked: Asked) -> tuple[str, str]:
    database, ids = source.database(), (asked.first.id, asked.second.id)
    every_vote, every_label = reviews.votes(database, *ids, earlier=True), reviews.labels(database, *ids, earlier=True)
    votes, labels = [one for one in every_vote if one.current], [one for one in every_label if one.current]
    tally = reviews.tally(votes)
    title, hint = "No votes yet", ""
    if tally.scores:
        prompts = common.numbered(len(tally.scores), "prompt", "prompts")
        title = f"{asked.second.name} is preferred in {percent(tally.share)} of {prompts}"
        agreed = "" if tally.alpha is None else f", who agree with an alpha of {tally.alpha:.2f}"
        who = common.numbered(len(tally.reviewers), "reviewer", "reviewers")
        about = f"A tie counts as one half; 95% interval {between(tally)}; {who}{agreed}."
        hint = f'<p class="eyebrow">{esc(about)}</p>'
    hint += earlier(len(every_vote) - len(votes))
    hint += earlier(len(every_label) - len(labels), "label")
    return top(asked, access, title, hint), results(asked, access, votes, labels, reviews.rounds(database, *ids))


# --- the HTML ------------------------------------------------------------------------------------------------

BUTTONS = {"left": "← Left is better", "tie": "Equally good (t)", "right": "Right is better →", "skip": "Skip (s)"}
VOTE_HINT = (
    '<p class="eyebrow">Keys: <kbd>←</kbd> left is better, <kbd>t</kbd> equally good, <kbd>→</kbd> right is better, '
    "<kbd>s</kbd> skip; <kbd>[</kbd> <kbd>]</kbd> to a neighbouring prompt.</p>"
)
LABEL_HINT = (
    f'<p class="eyebrow">Keys: <kbd>1</kbd> to <kbd>{len(LABELS)}</kbd> label the answer and go on, <kbd>n</kbd> '
    "writes a note first, <kbd>[</kbd> <kbd>]</kbd> to a neighbouring answer.</p>"
)
SHOWN_VOTES, SHOWN_LABELS = 200, 200
_SCOPE_CHOICES = {reviews.DIFFERING: "all that differ", reviews.ONE_SIDED: "only one side solved"}


def top(asked: Asked, access: Access, title: str, hint: str = "") -> str:
    """Return the heading of a view, the views as tabs, and the choices as a form, folded for those who have chosen."""
    under = [f"{asked.first.name} and {asked.second.name}"]
    under += [] if asked.view == RESULTS else [asked.suite]
    under += [f"reviewed by {asked.reviewer}"] if asked.reviewer and asked.view != RESULTS else []
    views = ((asked.address(view=view), words, view == asked.view) for view, words in VIEWS.items())
    form = _form(asked, access)
    if asked.reviewer and asked.view != RESULTS:
        form = f'<details class="choices"><summary>Other checkpoints, suite or reviewer</summary>{form}</details>'
    return markup.hero(esc(", ".join(under)), esc(title), below=hint) + markup.tabs("Views", views) + form


def _form(asked: Asked, access: Access) -> str:
    names = {one.name: one.name for one in asked.choices}
    fields = markup.select("second", "Checkpoint", names, asked.second.name)
    fields += markup.select("first", "Against", names, asked.first.name)
    if asked.view != RESULTS:
        fields += markup.select("suite", "Suite", {suite: suite for suite in asked.suites}, asked.suite)
    if asked.view not in (RESULTS, STILL_LOST):
        fields += markup.select("show", "Prompts", _SCOPE_CHOICES, asked.scope)
    may_judge = not access.read_only and asked.view != RESULTS
    if access.users is None and may_judge:
        fields += (
            f'<label>Your name<input name="reviewer" value="{markup.exact(asked.reviewer)}" required '
            f'maxlength="{reviews.LONGEST_NAME}" autocomplete="name"></label>'
        )
    kept = {"experiment": asked.experiment.name, "view": asked.view}
    kept |= {"reviewer": asked.reviewer} if access.users is None and not may_judge else {}
    button = "Begin" if may_judge and not asked.reviewer else "Show"
    return markup.filters("review", fields, kept, button=button)


def blind(asked: Asked, queue: Queue, shown: PairTexts, on_left: str) -> str:
    """Return a pair to vote on; nothing in it says whose response is whose."""
    one, other = (shown.first, shown.second) if on_left == FIRST else (shown.second, shown.first)
    columns = zip(("Left", "Right"), formatting.both(one, other), strict=True)
    words = {on_left: "left is better", TIE: "equally good", SKIP: "skipped"}
    status = f"your vote: {words.get(queue.judged(shown.pair), 'right is better')}"
    return _article(asked, queue, shown, formatting.beside(columns), status)


def lost(asked: Asked, queue: Queue, shown: PairTexts) -> str:
    """Return a lost answer to label, beside the response that passed."""
    sides = ((asked.first.name, shown.first_verdicts), (asked.second.name, shown.second_verdicts))
    responses = formatting.both(shown.first, shown.second)
    columns = ((name, html + markup.verdicts(kept)) for (name, kept), html in zip(sides, responses, strict=True))
    label = queue.judged(shown.pair)
    status = f"your label: {LABELS.get(label, label).lower()}"
    return _article(asked, queue, shown, formatting.beside(columns), status)


def _article(asked: Asked, queue: Queue, shown: PairTexts, answers: str, words: str) -> str:
    """Return the pair that a queue is at, with links to the pairs before and after."""
    status = markup.chip(words, "run") if queue.judged(shown.pair) else ""
    at, pairs = queue.at or 0, queue.pairs
    before, after = (asked.address(pair=token_of(pairs[n])) if 0 <= n < len(pairs) else "" for n in (at - 1, at + 1))
    where = f"{at + 1:,} of {len(pairs):,}, {len(queue.done):,} done"
    return (
        f'<article class="card sample pair" tabindex="0" aria-label="{esc(shown.pair.item)}" '
        f'data-pair="{token_of(shown.pair)}"><p class="eyebrow">{esc(shown.pair.item)} {status}</p>'
        f'<pre class="prompt">{esc(shown.prompt)}</pre>{answers}</article>'
        + markup.neighbours("Neighbouring prompts", where, before, after)
    )


def nothing_left(asked: Asked, queue: Queue) -> str:
    """Return the notice at the end of a queue, or for one without any pair."""
    lost = asked.view == STILL_LOST
    what = "answers that passed before and fail now" if lost else SCOPES[asked.scope]
    if not queue.pairs:
        text = f"There are no {what}. Choose another suite or other checkpoints."
        return markup.notice("No answer is lost" if lost else "Nothing to compare", text)
    text = f"You have judged all {len(queue.pairs):,} {what}. The results are in the tab Results."
    return markup.notice("All done", text)


# --- results -------------------------------------------------------------------------------------------------


def results(
    asked: Asked, access: Access, votes: Sequence[VoteRow], labels: Sequence[LabelRow], rounds: Sequence[ReviewRow]
) -> str:
    """Return the results: shares by suite, agreement, each vote with the side it was shown on, and the labels."""
    cards = [_shares(asked, votes, scope) for scope in SCOPES if any(one.scope == scope for one in votes)]
    cards += [_votes(asked, votes, rounds)] if votes else []
    cards += [_label_counts(labels), _labels(asked, labels)] if labels else []
    if not cards:
        begin = "Give your name in the tab Blind comparison and begin."
        elsewhere = "This dashboard was started with --read-only: votes are taken by one started without."
        return markup.notice("No votes and no labels yet", elsewhere if access.read_only else begin)
    return "".join(cards)


def _shares(asked: Asked, votes: Sequence[VoteRow], scope: str) -> str:
    suites = list(dict.fromkeys(one.suite for one in votes if one.scope == scope))
    rows = [(suite, reviews.tally(votes, scope=scope, suite=suite)) for suite in suites]
    if len(rows) > 1:
        rows.append(("all suites, each prompt once", reviews.tally(votes, scope=scope)))
    columns = (
        "Suite", "Prompts", "Reviewers", f"For {asked.second.name}", "Ties", f"For {asked.first.name}", "Skipped",
        f"Share of {asked.second.name}", "95% interval", "Alpha", "Same vote",
    )  # fmt: skip
    note = (
        f"On {SCOPES[scope]}. The share is the mean over prompts, a tie counting as one half, with Wilson's interval. "
        "Alpha is Krippendorff's: 1 if reviewers always agree, 0 if as often as by chance."
    )
    if scope == reviews.DIFFERING:
        note += " The gate's rule preference(base) >= 0.45 judges the votes on all suites but domain knowledge."
    else:
        note += " These prompts were chosen, so the gate does not count the votes on them."
    title = "Votes" if scope == reviews.DIFFERING else "Votes where only one side solved the prompt"
    cells = [_share_row(*row) for row in rows]
    return markup.table_card(title, note, columns, cells, "Votes by suite", anchor=f"votes-{scope}")


def _share_row(suite: str, tally: Tally) -> list[str]:
    counts = tally.counts
    return [
        esc(suite),
        f"{len(tally.scores):,}",
        esc(", ".join(tally.reviewers)),
        *(f"{counts[choice]:,}" for choice in (SECOND, TIE, FIRST, SKIP)),
        f"<b>{percent(tally.share)}</b>",
        between(tally),
        alpha(tally),
        "{:,} of {:,}".format(*tally.equal_pairs) if tally.equal_pairs[1] else DASH,
    ]


def between(tally: Tally) -> str:
    """Return the interval of a tally's share."""
    return DASH if tally.interval is None else f"{percent(tally.interval[0])} to {percent(tally.interval[1])}"


def alpha(tally: Tally) -> str:
    """Return the agreement of a tally."""
    return DASH if tally.alpha is None else f"{tally.alpha:.2f}"


def _votes(asked: Asked, votes: Sequence[VoteRow], rounds: Sequence[ReviewRow]) -> str:
    names = {FIRST: asked.first.name, SECOND: asked.second.name}
    left = sum(one.choice == one.on_left for one in votes)
    right = sum(one.choice in names and one.choice != one.on_left for one in votes)
    wrong = sum(not one.follows_seed for one in votes)
    seeds = ", ".join(f"{one.seed} ({one.suite}, {SCOPES[one.scope]})" for one in rounds)
    shown = [
        [
            f"<code>{esc(one.item)}</code>",
            esc(one.suite),
            esc(one.reviewer),
            esc({**names, TIE: "tie", SKIP: "skipped"}[one.choice]),
            esc(names[one.on_left]),
        ]
        for one in votes[: -SHOWN_VOTES - 1 : -1]
    ]
    sides = "every side is the one that the seed gives" if not wrong else f"{wrong} are not on the side of the seed"
    note = (
        f"The left response was chosen {common.numbered(left, 'time', 'times')}, the right one {right:,}; {sides}. "
        f"Seeds: {seeds}. {_listed(len(shown), len(votes), 'vote')}"
    )
    columns = ("Prompt", "Suite", "Reviewer", "Prefers", "Left was")
    table = markup.table(columns, shown, caption="Votes, newest first")
    return markup.card("Each vote", note, _download(asked, "votes") + table, anchor="votes")


def _download(asked: Asked, what: str) -> str:
    names = {"experiment": asked.experiment.name, "first": asked.first.name, "second": asked.second.name}
    return markup.numbers(f"All {what}, with prompts and responses", common.address(f"download/{what}{{}}", **names))


def _label_counts(labels: Sequence[LabelRow]) -> str:
    """Return the number of lost answers with each label, by reviewer."""
    who, counts = reviews.label_counts(labels)
    rows = [[esc(LABELS[label]), *map(str, row)] for label, row in counts.items()]
    note = "Answers that passed at the older checkpoint and fail at the newer one, by the label of each reviewer."
    return markup.table_card("Lost answers", note, ("Label", *who), rows, "Lost answers by label", anchor="labels")


def _labels(asked: Asked, labels: Sequence[LabelRow]) -> str:
    rows = [
        [f"<code>{esc(one.item)}</code>", esc(one.suite), esc(one.reviewer), esc(LABELS.get(one.label, one.label)),
         esc(one.note) or DASH]
        for one in labels[: -SHOWN_LABELS - 1 : -1]
    ]  # fmt: skip
    columns = ("Answer", "Suite", "Reviewer", "Label", "Note")
    table = f'<div class="prose-cells">{markup.table(columns, rows, caption="Labels, newest first")}</div>'
    return markup.card(
        "Each label", _listed(len(rows), len(labels), "label"), _download(asked, "labels") + table, anchor="each-label"
    )


def _listed(shown: int, total: int, noun: str) -> str:
    """Return how much of a list is shown."""
    return f"{common.numbered(total, noun, noun + 's')}." if shown == total else f"The newest {shown:,} of {total:,}."


def earlier(count: int, what: str = "vote") -> str:
    """Return how many votes or labels do not count; nothing if all do."""
    words = common.numbered(count, f"{what} is", f"{what}s are")
    text = f"{words} about responses of earlier evaluations, which the newest ones no longer have: not counted here."
    return f'<p class="eyebrow">{text}</p>' if count else ""


# --- what the address asks for -------------------------------------------------------------------------------

COMPARE, STILL_LOST, RESULTS = "compare", "lost", "results"
VIEWS = {COMPARE: "Blind comparison", STILL_LOST: "Still lost", RESULTS: "Results"}
_PAIR = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


@dataclass(frozen=True)
class Asked:
    """Two checkpoints of an experiment, ``first`` the older one, with their evaluations of one suite.

    ``choices`` are all checkpoints with responses, ``suites`` those that both have.
    """

    experiment: Experiment
    choices: tuple[Checkpoint, ...]
    first: Checkpoint
    second: Checkpoint
    suites: tuple[str, ...]
    suite: str
    evaluations: tuple[int, int]
    scope: str
    view: str
    reviewer: str
    pair: tuple[int, int] | None

    def address(self, **changed: str) -> str:
        """Return the address of this state with some parts replaced."""
        parts = {
            "experiment": self.experiment.name, "first": self.first.name, "second": self.second.name,
            "suite": self.suite, "view": self.view, "show": self.scope, "reviewer": self.reviewer,
        }  # fmt: skip
        return common.address("review", **(parts | changed))


def read(source: Source, access: Access, request: Any, experiment: Experiment) -> Asked | None:
    """Return what an address asks for, with defaults for the rest; None without two checkpoints that share a suite."""
    query: Mapping[str, str] = request.query_params
    database = source.database()
    answered = reviews.answered(database, experiment.id)
    known = [one for one in queries.checkpoints(database, experiment.id) if one.id in answered]
    pair = _checkpoints(known, query.get("first"), query.get("second"))
    if pair is None:
        return None
    first, second = pair
    common_suites = tuple(suite for suite in answered[first.id] if suite in answered[second.id])
    if not common_suites:
        return None
    suite = query.get("suite", "")
    suite = suite if suite in common_suites else common_suites[0]
    evaluations = (answered[first.id][suite], answered[second.id][suite])
    scope, view = query.get("show", ""), query.get("view", "")
    scope = scope if scope in reviews.SCOPES else reviews.DIFFERING
    view = view if view in VIEWS else (RESULTS if access.read_only else COMPARE)
    name = ((request.username if access.users is not None else query.get("reviewer")) or "").strip()
    name, pair_shown = name[: reviews.LONGEST_NAME], pair_of(query.get("pair", ""))
    return Asked(
        experiment, tuple(known), first, second, common_suites, suite, evaluations, scope, view, name, pair_shown
    )


def _checkpoints(
    known: Sequence[Checkpoint], first: str | None, second: str | None
) -> tuple[Checkpoint, Checkpoint] | None:
    """Return two checkpoints by name, the older one first; by default base and the newest recovered one."""
    if len(known) < 2:
        return None
    named = {one.name: one for one in known}
    newest = {one.kind: one for one in known}
    after = named.get(second or "") or newest.get("recovered") or known[-1]
    before = named.get(first or "") or next((one for one in known if one.kind == "base"), known[0])
    if before.id == after.id:
        before = next(one for one in known if one.id != after.id)
    return (before, after) if before.id < after.id else (after, before)


def pair_of(token: str) -> tuple[int, int] | None:
    """Return the ids of the samples that a page names, or None."""
    match = _PAIR.fullmatch(token)
    return (int(match[1]), int(match[2])) if match else None


def token_of(pair: Pair) -> str:
    """Return a pair as the page names it."""
    return f"{pair.first_id}-{pair.second_id}"


def review_of(source: Source, access: Access, asked: Asked) -> ReviewRow | None:
    """Return the blind comparison; a reviewer who may vote begins it."""
    about = (asked.first.id, asked.second.id, asked.suite, asked.scope)
    review = reviews.find_review(source.database(), *about)
    if review is None and asked.reviewer and not access.read_only:
        with source.writing() as database:
            return reviews.open_review(database, *about)
    return review


@dataclass(frozen=True)
class Queue:
    """The pairs of a view in their order, those that the reviewer has done, and the one to show."""

    pairs: tuple[Pair, ...]
    done: Mapping[tuple[int, int], str]
    at: int | None

    @property
    def pair(self) -> Pair | None:
        """The pair to show; None if all are done."""
        return None if self.at is None else self.pairs[self.at]

    def judged(self, pair: Pair) -> str:
        """Return the reviewer's vote or label on a pair; empty if there is none."""
        return self.done.get((pair.first_id, pair.second_id), "")


def queue(source: Source, asked: Asked, review: ReviewRow | None, after: tuple[int, int] | None = None) -> Queue:
    """Return the queue of a view: the pair that the address names, else the next one that is not done.

    ``after`` is the pair that was just judged: the queue goes on behind it.
    """
    database, lost = source.database(), asked.view == STILL_LOST
    pairs = reviews.pairs(database, *asked.evaluations, reviews.LOST if lost else asked.scope)
    if lost:
        chosen = reviews.labelled(database, *asked.evaluations)
    elif review is not None:
        pairs, chosen = reviews.in_order(pairs, review.seed), reviews.voted(database, review, *asked.evaluations)
    else:
        pairs, chosen = [], {}
    ids = [(pair.first_id, pair.second_id) for pair in pairs]
    selected = set(ids)
    done = {key: by[asked.reviewer] for key, by in chosen.items() if asked.reviewer in by and key in selected}
    if after is None and asked.pair in selected:
        return Queue(tuple(pairs), done, ids.index(asked.pair))
    start = ids.index(after) + 1 if after in selected else 0
    at = next((n for n in [*range(start, len(ids)), *range(start)] if ids[n] not in done), None)
    return Queue(tuple(pairs), done, at)


def judge(source: Source, access: Access, asked: Asked, token: str, word: str, note: str = "") -> tuple[int, int]:
    """Record a vote ("left", "right", "tie" or "skip") or a label on the pair that the page showed; return its ids.

    Raises DatabaseError if that is not possible.
    """
    ids = pair_of(token)
    shown = reviews.texts(source.database(), Pair(*ids, "")) if ids is not None else None
    if ids is None or shown is None:
        raise DatabaseError("nothing was recorded: reload the page")
    with source.writing() as database:
        if asked.view == STILL_LOST:
            reviews.add_label(database, shown.pair, asked.reviewer, word, note)
            return ids
        review = review_of(source, access, asked)
        if review is None:
            raise DatabaseError("a review needs the reviewer's name")
        on_left = reviews.shown_left(review.seed, asked.reviewer, shown.pair.item)
        on_right = reviews.FIRST if on_left == reviews.SECOND else reviews.SECOND
        reviews.vote(database, review, shown.pair, asked.reviewer, {"left": on_left, "right": on_right}.get(word, word))
    return ids
