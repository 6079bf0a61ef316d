"""The HTML of the Review page: choices, the pair to judge, and the results."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard import answer_diff, markup
from dashboard.access import Access
from dashboard.formatting import DASH, percent
from dashboard.markup import esc
from dashboard.pages import common
from dashboard.pages.review_request import RESULTS, STILL_LOST, VIEWS, Asked, Queue, token_of
from db import reviews
from db.reviews import FIRST, LABELS, SCOPES, SECOND, SKIP, TIE, LabelRow, PairTexts, ReviewRow, Tally, VoteRow

SIDES = {"left": "Left is better", "tie": "Equally good", "right": "Right is better", "skip": "Skip"}
VOTE_KEYS = {"left": "←", "tie": "t", "right": "→", "skip": "s"}
BUTTONS = {"left": "← Left is better", "tie": "Equally good (t)", "right": "Right is better →", "skip": "Skip (s)"}
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
    hidden = "".join(
        f'<input type="hidden" name="{name}" value="{markup.exact(value)}">' for name, value in kept.items()
    )
    button = "Begin" if may_judge and not asked.reviewer else "Show"
    return (
        f'<form class="filters" method="get" action="review">{hidden}{fields}<button type="submit">{button}</button>'
        "</form>"
    )


def vote_hint() -> str:
    """Return the explanation of the keys for votes."""
    keys = ", ".join(f"<kbd>{VOTE_KEYS[side]}</kbd> {words.lower()}" for side, words in SIDES.items())
    return f'<p class="eyebrow">Keys: {keys}; <kbd>[</kbd> <kbd>]</kbd> to a neighbouring prompt.</p>'


def label_hint() -> str:
    """Return the explanation of the keys for labels."""
    return (
        f'<p class="eyebrow">Keys: <kbd>1</kbd> to <kbd>{len(LABELS)}</kbd> label the answer and go on, <kbd>n</kbd> '
        "writes a note first, <kbd>[</kbd> <kbd>]</kbd> to a neighbouring answer.</p>"
    )


def blind(asked: Asked, queue: Queue, shown: PairTexts, left: str) -> str:
    """Return a pair to vote on; nothing in it says whose response is whose."""
    one, other = (shown.first, shown.second) if left == FIRST else (shown.second, shown.first)
    columns = zip(("Left", "Right"), answer_diff.both(one, other), strict=True)
    chosen = queue.done.get((shown.pair.first_id, shown.pair.second_id))
    words = {left: "left is better", TIE: "equally good", SKIP: "skipped"}.get(chosen or "", "right is better")
    return _article(asked, queue, shown, answer_diff.beside(columns), f"your vote: {words}" if chosen else "")


def lost(asked: Asked, queue: Queue, shown: PairTexts) -> str:
    """Return a lost answer to label, beside the response that passed."""
    sides = ((asked.first.name, shown.first_verdicts), (asked.second.name, shown.second_verdicts))
    responses = answer_diff.both(shown.first, shown.second)
    columns = ((name, html + markup.verdicts(kept)) for (name, kept), html in zip(sides, responses, strict=True))
    chosen = queue.done.get((shown.pair.first_id, shown.pair.second_id))
    label = LABELS.get(chosen or "", chosen or "").lower()
    return _article(asked, queue, shown, answer_diff.beside(columns), f"your label: {label}" if chosen else "")


def _article(asked: Asked, queue: Queue, shown: PairTexts, answers: str, chosen: str) -> str:
    status = markup.chip(chosen, "run") if chosen else ""
    return (
        f'<article class="card sample pair" tabindex="0" aria-label="{esc(shown.pair.item)}" '
        f'data-pair="{token_of(shown.pair)}"><p class="eyebrow">{esc(shown.pair.item)} {status}</p>'
        f'<pre class="prompt">{esc(shown.prompt)}</pre>{answers}</article>' + _neighbours(asked, queue)
    )


def _neighbours(asked: Asked, queue: Queue) -> str:
    """Return links to the pairs before and after; the keys [ and ] follow them."""
    at, pairs = queue.at, queue.pairs
    if at is None:
        return ""
    parts = [f"<span>{at + 1:,} of {len(pairs):,}, {len(queue.done):,} done</span>"]
    if at:
        parts.insert(0, f'<a rel="prev" href="{esc(asked.address(pair=token_of(pairs[at - 1])))}">← Previous</a>')
    if at + 1 < len(pairs):
        parts.append(f'<a rel="next" href="{esc(asked.address(pair=token_of(pairs[at + 1])))}">Next →</a>')
    return f'<nav class="steps" aria-label="Neighbouring prompts">{"".join(parts)}</nav>'


def nothing_left(asked: Asked, queue: Queue) -> str:
    """Return the notice at the end of a queue, or for one without any pair."""
    if not queue.pairs:
        what = "No answer is lost" if asked.view == STILL_LOST else "Nothing to compare"
        text = f"There are no {_what(asked)}. Choose another suite or other checkpoints."
        return markup.notice(what, text)
    text = f"You have judged all {len(queue.pairs):,} {_what(asked)}. The results are in the tab Results."
    return markup.notice("All done", text)


def _what(asked: Asked) -> str:
    return "answers that passed before and fail now" if asked.view == STILL_LOST else SCOPES[asked.scope]


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
    table = markup.table(columns, [_share_row(*row) for row in rows], caption="Votes by suite")
    note = (
        f"On {SCOPES[scope]}. The share is the mean over prompts, a tie counting as one half, with Wilson's interval. "
        "Alpha is Krippendorff's: 1 if reviewers always agree, 0 if as often as by chance."
    )
    if scope == reviews.DIFFERING:
        note += " The gate's rule preference(base) >= 0.45 judges the votes on all suites but domain knowledge."
    else:
        note += " These prompts were chosen, so the gate does not count the votes on them."
    title = "Votes" if scope == reviews.DIFFERING else "Votes where only one side solved the prompt"
    return markup.card(title, note, table, anchor=f"votes-{scope}")


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
    return markup.numbers(f"All {what}, with prompts and responses", f"download/{what}{{}}?{common.query(names)}")


def _label_counts(labels: Sequence[LabelRow]) -> str:
    """Return the number of lost answers with each label, by reviewer."""
    who, counts = reviews.label_counts(labels)
    rows = [[esc(LABELS[label]), *map(str, row)] for label, row in counts.items()]
    note = "Answers that passed at the older checkpoint and fail at the newer one, by the label of each reviewer."
    table = markup.table(("Label", *who), rows, caption="Lost answers by label")
    return markup.card("Lost answers", note, table, anchor="labels")


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


def share_words(newer: str, tally: Tally) -> str:
    """Return a tally's share in words."""
    prompts = common.numbered(len(tally.scores), "prompt", "prompts")
    return f"{newer} is preferred in {percent(tally.share)} of {prompts}"


def share_details(tally: Tally) -> str:
    """Return what belongs to a tally's share: its interval, its reviewers and their agreement."""
    agreed = "" if tally.alpha is None else f", who agree with an alpha of {tally.alpha:.2f}"
    who = common.numbered(len(tally.reviewers), "reviewer", "reviewers")
    return f"A tie counts as one half; 95% interval {between(tally)}; {who}{agreed}."
