"""Tokens page: divergence of student and teacher per token of a rollout, and the largest ones of a stage."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

import gradio as gr

from dashboard import markup, token_html
from dashboard.access import Access
from dashboard.markup import STAGE_WORDS, esc
from dashboard.pages import common, stage_selection
from dashboard.pages.stage_selection import Named
from dashboard.token_html import nats
from dashboard.tracker_source import Source
from db import Database, queries
from db.records import Experiment, TokenNumbers, TokenScores

NAME = "Tokens"
WORST = 20
STAGES = 60
CONTEXT = 4
"""Number of preceding tokens shown as context."""


@dataclass(frozen=True)
class Place:
    """The state of the page: stage, step, response and token."""

    experiment: str
    stage: int
    step: int
    item: str
    token: int | None = None

    @property
    def address(self) -> str:
        """The address of this state, not escaped."""
        token = f"&token={self.token + 1}" if self.token is not None else ""
        item = f"&item={common.quoted(self.item)}" if self.item else ""
        return f"tokens?experiment={common.quoted(self.experiment)}&stage={self.stage}&step={self.step}{item}{token}"


def build(page: gr.Blocks, source: Source, _access: Access) -> None:
    """Build the page."""
    common.text_page(page, NAME, source, renderer(source))


def renderer(source: Source) -> common.Render:
    """Return the function that renders the page."""
    return lambda experiment, asked: _page(source.database(), experiment, asked)


def _page(database: Database, experiment: Experiment, asked: dict[str, str]) -> str:
    found = queries.find_stages(database, experiment_ids=[experiment.id], tokens=True, limit=STAGES)
    if not found:
        return _nothing(database, experiment)
    choices = stage_selection.named(database, found)
    wanted = asked.get("stage", "")
    chosen = next((one for one in choices if str(one.stage.id) == wanted), None if wanted else choices[0])
    if chosen is None:
        text = f"Stage {wanted} of experiment {experiment.name} has none. Choose one of these:"
        return markup.notice("No token scores", text) + _stages(choices, None)
    rows = queries.token_numbers(database, chosen.stage.id)
    place = _place(experiment, chosen, rows, asked)
    row = next((one for one in rows if (one.step, one.item) == (place.step, place.item)), None)
    return (
        _heading(chosen, rows, queries.token_rollouts(database, chosen.stage.id))
        + _stages(choices, chosen)
        + _steps(rows, place)
        + _items(rows, place)
        + '<div class="beside">'
        + (_missing(place) if row is None else _answer(database, row, place))
        + f"<div>{_worst(rows, place)}</div></div>"
    )


def _place(experiment: Experiment, chosen: Named, rows: Sequence[TokenNumbers], asked: dict[str, str]) -> Place:
    """Return the state named in the address; by default the last step, its first response and its largest token."""
    step = common.whole(asked.get("step"))
    step = max(row.step for row in rows) if step is None else step
    item = asked.get("item") or next((row.item for row in rows if row.step == step), "")
    row = next((one for one in rows if (one.step, one.item) == (step, item)), None)
    token = common.whole(asked.get("token")) or 0
    if row is not None and 0 < token <= len(row.tokens):
        return Place(experiment.name, chosen.stage.id, step, item, token - 1)
    furthest = _furthest([row], 1) if row is not None else []
    return Place(experiment.name, chosen.stage.id, step, item, furthest[0][1] if furthest else None)


def _nothing(database: Database, experiment: Experiment) -> str:
    """Return how to record token scores, and links to stages that have some."""
    elsewhere = stage_selection.named(database, queries.find_stages(database, tokens=True, limit=5))
    message = markup.notice(
        "No token scores",
        f"Experiment {experiment.name} has no distillation with token scores. By default each stores them for a few "
        "responses:",
        ["recover distill --token-views 6"],
    )
    return message + _stages(elsewhere, None)


def _heading(chosen: Named, rows: Sequence[TokenNumbers], stored: int) -> str:
    """Return the heading: the stage's divergence at its first and last recorded step, on ``rows`` of those stored."""
    steps = sorted({row.step for row in rows})
    first, last = (_mean([row for row in rows if row.step == step]) for step in (steps[0], steps[-1]))
    cycle = f", cycle {chosen.stage.cycle}" if chosen.stage.cycle is not None else ""
    words = f"{STAGE_WORDS[chosen.stage.kind]}{cycle}: reverse KL per token {nats(first)}"
    words += f" at step {steps[0]:,}, {nats(last)} at step {steps[-1]:,}" if len(steps) > 1 else ""
    total = sum(len(row.tokens) for row in rows)
    live = common.live_address(chosen.experiment, chosen.stage)
    shown = f"{len(rows):,}" if len(rows) == stored else f"the first {len(rows):,} of {stored:,}"
    under = f"{shown} responses, {total:,} tokens, sampled from the batches of each step"
    link = f'<a href="{esc(live)}">{esc(chosen.name)}, stage {chosen.stage.id}</a>'
    return markup.hero(f"{link} · {esc(chosen.method)} · {esc(under)}", esc(words))


def _stages(choices: Sequence[Named], chosen: Named | None) -> str:
    """Return the stages that have token scores, as tabs."""
    if len(choices) < 2 and chosen is not None:
        return ""
    names = stage_selection.labels(choices)
    links = [
        (f"tokens?experiment={common.quoted(one.experiment)}&stage={one.stage.id}", name, one is chosen)
        for one, name in zip(choices, names, strict=True)
    ]
    return markup.tabs("Stages", reversed(links), labelled=True)


def _steps(rows: Sequence[TokenNumbers], place: Place) -> str:
    """Return the steps with token scores, as tabs with their mean divergence."""
    steps = sorted({row.step for row in rows})
    ends = {steps[0]: "first", steps[-1]: "last"} if len(steps) > 1 else {}
    links = []
    for step in steps:
        mean = nats(_mean([row for row in rows if row.step == step]))
        word = f"{ends[step]}, step {step:,}" if step in ends else f"step {step:,}"
        links.append((replace(place, step=step, item="", token=None).address, f"{word} · {mean}", step == place.step))
    return markup.tabs("Steps", links, labelled=True)


def _items(rows: Sequence[TokenNumbers], place: Place) -> str:
    """Return the responses of a step, as tabs with their mean divergence."""
    links = [
        (replace(place, item=row.item, token=None).address, f"{row.item} · {nats(row.mean)}", row.item == place.item)
        for row in rows
        if row.step == place.step
    ]
    return markup.tabs("Responses", links, labelled=True)


def _missing(place: Place) -> str:
    return markup.notice(
        "No such response",
        f"Stage {place.stage} stored no response {place.item} at step {place.step}. Choose another above.",
    )


def _answer(database: Database, row: TokenNumbers, place: Place) -> str:
    """Return the prompt, the response token by token, and the details of the selected token."""
    rollout = queries.rollout(database, row.id)
    if rollout is None or not rollout.tokens:
        return _missing(place)
    chosen = place.token or 0
    start = chosen // token_html.WINDOW * token_html.WINDOW
    note = (
        f"Step {row.step:,}, {len(row.tokens):,} tokens, mean reverse KL {nats(row.mean)} nats. Hover over a token, "
        "or focus it with the Tab key, to see its values."
    )
    body = (
        f'{token_html.key()}<pre class="prompt" tabindex="0" aria-label="Prompt">{esc(rollout.prompt)}</pre>'
        f"{token_html.tokens(rollout, start, chosen)}{_windows(rollout, start, place)}"
        f'<div class="chosen-token"><h3>Selected token</h3>{token_html.details(rollout, chosen)}</div>'
    )
    return markup.card(f"Response {row.item}", note, body, look="answer-tokens")


def _windows(rollout: TokenScores, start: int, place: Place) -> str:
    """Return links to the other parts of a long response."""
    total, window = len(rollout.tokens), token_html.WINDOW
    if total <= window:
        return ""
    parts = [f"<span>tokens {start + 1:,} to {min(total, start + window):,} of {total:,}</span>"]
    if start:
        parts.insert(0, f'<a rel="prev" href="{esc(replace(place, token=start - window).address)}">← Earlier</a>')
    if start + window < total:
        parts.append(f'<a rel="next" href="{esc(replace(place, token=start + window).address)}">Later →</a>')
    return f'<nav class="steps" aria-label="Parts of the response">{"".join(parts)}</nav>'


def _worst(rows: Sequence[TokenNumbers], place: Place) -> str:
    """Return a table of the tokens with the largest divergence in the whole stage."""
    found = _furthest(rows, WORST)
    if not found:
        return ""
    cells = [_worst_row(row, at, place) for row, at in found]
    note = (
        f"The {len(found)} largest of {sum(len(row.tokens) for row in rows):,} tokens, in nats, with preceding tokens."
    )
    table = markup.table(("Token", "KL", "Step", "Response"), cells, caption="Tokens with the largest divergence")
    body = f'<div class="prose-cells">{table}</div>'
    return markup.card("Largest divergences in this stage", note, body, look="furthest")


def _worst_row(row: TokenNumbers, at: int, place: Place) -> list[str]:
    there = replace(place, step=row.step, item=row.item, token=at)
    before = "".join(map(str, row.tokens[max(0, at - CONTEXT) : at]))
    before = token_html.shown(f"…{before}" if at > CONTEXT else before.lstrip(" ")) if before.strip(" ") else ""
    word = f'<mark class="kl level-{token_html.level(row.numbers[at])}">{token_html.shown(row.tokens[at])}</mark>'
    return [
        f'<a class="context" href="{esc(there.address)}"{markup.current(there == place)}>{before}{word}</a>',
        f"<b>{nats(row.numbers[at])}</b>",
        f"{row.step:,}",
        esc(row.item),
    ]


def _furthest(rows: Sequence[TokenNumbers], count: int) -> list[tuple[TokenNumbers, int]]:
    """Return the tokens with the largest values, as (rollout, position)."""
    ranked = (
        (value, -index, -at)
        for index, row in enumerate(rows)
        for at, value in enumerate(row.numbers[: len(row.tokens)])
        if value is not None
    )
    return [(rows[-index], -at) for _, index, at in heapq.nlargest(count, ranked)]


def _mean(rows: Sequence[TokenNumbers]) -> float | None:
    """Return the mean over all tokens of several rollouts."""
    values = [value for row in rows for value in row.numbers if value is not None]
    return sum(values) / len(values) if values else None
