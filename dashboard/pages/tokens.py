"""Tokens page: divergence of student and teacher per token of a rollout, and the largest ones of a stage."""

from __future__ import annotations

import heapq
import math
import re
import unicodedata
from collections.abc import Sequence
from typing import TypedDict

from dashboard import markup
from dashboard.formatting import DASH, percent
from dashboard.markup import STAGE_WORDS, esc
from dashboard.pages import common
from dashboard.pages.common import Named
from dashboard.tracker_source import Source
from db import Database, queries
from db.records import Experiment, TokenNumbers, TokenScores

NAME = "Tokens"
WORST = 20
STAGES = 60
CONTEXT = 4
"""Number of preceding tokens shown as context."""


class State(TypedDict):
    """The state of the page, by the names of its address's parts: ``item`` is a response, tokens count from 1."""

    experiment: str
    stage: int
    step: int
    item: str | None
    token: int | None


def _at(place: State) -> str:
    return common.address("tokens", **place)


def text(source: Source, experiment: Experiment, asked: dict[str, str]) -> str:
    """Return the page's HTML."""
    database = source.database()
    stages = queries.find_stages(database, experiment_ids=[experiment.id], tokens=True, limit=STAGES)
    if not stages:
        return _no_scores(database, experiment)
    choices = common.named(database, stages)
    wanted = asked.get("stage", "")
    chosen = next((one for one in choices if str(one.stage.id) == wanted), None if wanted else choices[0])
    if chosen is None:
        none = f"Stage {wanted} of experiment {experiment.name} has none. Choose one of these:"
        return markup.notice("No token scores", none) + _stages(choices, None)
    rows = queries.token_numbers(database, chosen.stage.id)
    place = _place(experiment, chosen, rows, asked)
    row = next((one for one in rows if (one.step, one.item) == (place["step"], place["item"])), None)
    return (
        _heading(chosen, rows, queries.token_rollouts(database, chosen.stage.id))
        + _stages(choices, chosen)
        + _steps(rows, place)
        + _items(rows, place)
        + '<div class="beside">'
        + (_missing_response(place) if row is None else _answer(database, row, place))
        + f"<div>{_largest(rows, place)}</div></div>"
    )


build = common.text_page(NAME, text)


def _place(experiment: Experiment, chosen: Named, rows: Sequence[TokenNumbers], asked: dict[str, str]) -> State:
    """Return the state named in the address; by default the last step, its first response and its largest token."""
    step = common.parse_number(asked.get("step"))
    step = max(row.step for row in rows) if step is None else step
    item = asked.get("item") or next((row.item for row in rows if row.step == step), "")
    row = next((one for one in rows if (one.step, one.item) == (step, item)), None)
    token = common.parse_number(asked.get("token")) or None
    if token is None or row is None or token > len(row.tokens):
        furthest = _top_tokens([row], 1) if row is not None else []
        token = furthest[0][1] + 1 if furthest else None
    return {"experiment": experiment.name, "stage": chosen.stage.id, "step": step, "item": item, "token": token}


def _no_scores(database: Database, experiment: Experiment) -> str:
    """Return how to record token scores, and links to stages that have some."""
    elsewhere = common.named(database, queries.find_stages(database, tokens=True, limit=5))
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
    names = common.labels(choices)
    links = [
        (common.address("tokens", experiment=one.experiment, stage=one.stage.id), name, one is chosen)
        for one, name in zip(choices, names, strict=True)
    ]
    return markup.tabs("Stages", reversed(links), labelled=True)


def _steps(rows: Sequence[TokenNumbers], place: State) -> str:
    """Return the steps with token scores, as tabs with their mean divergence."""
    steps = sorted({row.step for row in rows})
    ends = {steps[0]: "first", steps[-1]: "last"} if len(steps) > 1 else {}
    links = []
    for step in steps:
        mean = nats(_mean([row for row in rows if row.step == step]))
        word = f"{ends[step]}, step {step:,}" if step in ends else f"step {step:,}"
        to = _at(place | {"step": step, "item": None, "token": None})
        links.append((to, f"{word} · {mean}", step == place["step"]))
    return markup.tabs("Steps", links, labelled=True)


def _items(rows: Sequence[TokenNumbers], place: State) -> str:
    """Return the responses of a step, as tabs with their mean divergence."""
    links = []
    for row in rows:
        if row.step == place["step"]:
            to = _at(place | {"item": row.item, "token": None})
            links.append((to, f"{row.item} · {nats(_mean([row]))}", row.item == place["item"]))
    return markup.tabs("Responses", links, labelled=True)


def _missing_response(place: State) -> str:
    return markup.notice(
        "No such response",
        f"Stage {place['stage']} stored no response {place['item']} at step {place['step']}. Choose another above.",
    )


def _answer(database: Database, row: TokenNumbers, place: State) -> str:
    """Return the prompt, the response token by token, and the details of the selected token."""
    rollout = queries.rollout(database, row.id)
    if rollout is None or not rollout.tokens:
        return _missing_response(place)
    chosen = (place["token"] or 1) - 1
    start = chosen // WINDOW * WINDOW
    note = (
        f"Step {row.step:,}, {len(row.tokens):,} tokens, mean reverse KL {nats(_mean([row]))} nats. Hover over a "
        "token, or focus it with the Tab key, to see its values."
    )
    body = (
        f'{key()}<pre class="prompt" tabindex="0" aria-label="Prompt">{esc(rollout.prompt)}</pre>'
        f"{tokens(rollout, start, chosen)}{_windows(rollout, start, place)}"
        f'<div class="chosen-token"><h3>Selected token</h3>{details(rollout, chosen)}</div>'
    )
    return markup.card(f"Response {row.item}", note, body, look="answer-tokens")


def _windows(rollout: TokenScores, start: int, place: State) -> str:
    """Return links to the other parts of a long response."""
    total = len(rollout.tokens)
    if total <= WINDOW:
        return ""
    end = min(total, start + WINDOW)
    before = _at(place | {"token": start - WINDOW + 1}) if start else ""
    after = _at(place | {"token": end + 1}) if end < total else ""
    where = f"tokens {start + 1:,} to {end:,} of {total:,}"
    return markup.neighbours("Parts of the response", where, before, after, ("← Earlier", "Later →"))


def _largest(rows: Sequence[TokenNumbers], place: State) -> str:
    """Return a table of the tokens with the largest divergence in the whole stage."""
    top = _top_tokens(rows, WORST)
    if not top:
        return ""
    cells = []
    for row, at in top:
        target = place | {"step": row.step, "item": row.item, "token": at + 1}
        before = "".join(map(str, row.tokens[max(0, at - CONTEXT) : at]))
        before = shown(f"…{before}" if at > CONTEXT else before.lstrip(" ")) if before.strip(" ") else ""
        word = f'<mark class="kl level-{level(row.numbers[at])}">{shown(row.tokens[at])}</mark>'
        link = f'<a class="context" href="{esc(_at(target))}"{markup.current(target == place)}>{before}{word}</a>'
        cells.append([link, f"<b>{nats(row.numbers[at])}</b>", f"{row.step:,}", esc(row.item)])
    note = f"The {len(top)} largest of {sum(len(row.tokens) for row in rows):,} tokens, in nats, with preceding tokens."
    table = markup.table(("Token", "KL", "Step", "Response"), cells, caption="Tokens with the largest divergence")
    body = f'<div class="prose-cells">{table}</div>'
    return markup.card("Largest divergences in this stage", note, body, look="furthest")


def _top_tokens(rows: Sequence[TokenNumbers], count: int) -> list[tuple[TokenNumbers, int]]:
    """Return the tokens with the largest values, as (rollout, position)."""
    ranked = (
        (value, -index, -at)
        for index, row in enumerate(rows)
        for at, value in enumerate(row.numbers[: len(row.tokens)])
        if value is not None
    )
    return [(rows[-index], -at) for _, index, at in heapq.nlargest(count, ranked)]


def _mean(rows: Sequence[TokenNumbers]) -> float | None:
    """Return the mean over all tokens of the rollouts that have a value."""
    values = [value for row in rows for value in row.numbers if value is not None]
    return sum(values) / len(values) if values else None


# --- a rollout as HTML ---------------------------------------------------------------------------------------

WINDOW = 300
"""Number of tokens shown at once: each carries two lists of alternatives."""

SCALE = (0.001, 0.01, 0.1, 1.0, 10.0)
"""Divergences, in nats, shown in the legend."""

_SPECIAL = re.compile(r"<\|[^|\s]*\|>|</?s>|<(bos|eos|pad|unk|start_of_turn|end_of_turn)>|\[(CLS|SEP|PAD|UNK)\]")
_SIGNS = {"\n": "⏎", "\r": "␍", "\t": "⇥", "\u00a0": "⍽"}
_UNSEEN = ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")


def level(divergence: float | None) -> int:
    """Return the shade of a token, 0 to 10, on a logarithmic scale: 0 up to 0.001 nats, 10 from 10 nats on."""
    if divergence is None or divergence <= SCALE[0]:
        return 0
    return min(10, max(0, round(2.5 * (math.log10(divergence) + 3))))


def shown(token: object, *, breaks: bool = False) -> str:
    """Return a token as HTML with visible whitespace and control characters; ``breaks`` keeps line breaks."""
    text = str(token)
    if not text:
        return _sign("∅")
    bare = text.strip(" ")
    if not bare:
        return _sign("␣" * len(text))
    before, after = text[: len(text) - len(text.lstrip(" "))], text[len(text.rstrip(" ")) :]
    start = before if breaks else _sign("␣" * len(before))
    middle = esc(bare) if bare.isprintable() else "".join(_character(one, breaks) for one in bare)
    return start + middle + _sign("␣" * len(after))


def nats(value: float | None) -> str:
    """Format a divergence, entropy or log-probability; at most four decimals are stored."""
    return DASH if value is None else f"{value:.4f}" if value < 1 else f"{value:.2f}"


def tokens(rollout: TokenScores, start: int, chosen: int) -> str:
    """Return the tokens from ``start`` on, each with its values on hover and on focus."""
    shades = ""
    for at in range(start, min(len(rollout.tokens), start + WINDOW)):
        special = " special" if _SPECIAL.fullmatch(str(rollout.tokens[at])) else ""
        marked = ' aria-current="true"' if at == chosen else ""
        look = f"token kl level-{level(figure(rollout, 'reverse_kl', at))}{special}"
        shades += (
            f'<span class="{look}" tabindex="0" aria-describedby="token-{at}"{marked}>'
            f"{shown(rollout.tokens[at], breaks=True)}"
            f'<span class="about-token" role="tooltip" id="token-{at}">{details(rollout, at)}</span></span>'
        )
    return f'<div class="rollout">{shades}</div>'


def key() -> str:
    """Return the legend of the shades."""
    steps = "".join(f'<span class="token kl level-{level(one)}">{one:g}</span>' for one in SCALE)
    return f'<p class="scale">Reverse KL in nats, as shade and underline: {steps}</p>'


def details(rollout: TokenScores, at: int) -> str:
    """Return all values of one token."""
    logprobs = [figure(rollout, name, at) for name in ("logprob", "teacher_logprob")]
    rows = [
        ("probability", [DASH if value is None else _share(math.exp(min(0.0, value))) for value in logprobs]),
        ("log-prob", map(_signed, logprobs)),
        ("entropy", [nats(figure(rollout, name, at)) for name in ("entropy", "teacher_entropy")]),
    ]
    cells = "".join(f"<span>{name}</span><b>{student}</b><b>{teacher}</b>" for name, (student, teacher) in rows)
    advantage = figure(rollout, "advantage", at)
    more = f"<span>advantage</span><b>{_signed(advantage)}</b><b></b>" if advantage is not None else ""
    return (
        f'<span class="about"><b class="spoken">{shown(rollout.tokens[at])}</b>'
        f"<span>token {at + 1:,} of {len(rollout.tokens):,}</span></span>"
        f'<span class="about">KL(student ‖ teacher) <b>{nats(figure(rollout, "reverse_kl", at))} nats</b></span>'
        + f'<span class="pairs"><span></span><span>student</span><span>teacher</span>{cells}{more}</span>'
        + f'<span class="tops">{_top(rollout, "top", "Student", at)}'
        + f"{_top(rollout, 'teacher_top', 'Teacher', at)}</span>"
    )


def figure(rollout: TokenScores, name: str, at: int) -> float | None:
    """Return one value of one token, or None."""
    values = rollout.values.get(name)
    value = values[at] if isinstance(values, list) and at < len(values) else None
    return float(value) if isinstance(value, int | float) else None


def _top(rollout: TokenScores, name: str, title: str, at: int) -> str:
    """Return the likeliest tokens with their probabilities; the sampled one is marked."""
    values = rollout.values.get(name)
    likeliest = values[at] if isinstance(values, list) and at < len(values) else []
    rows = ""
    for token, share in likeliest:
        value = float(share) if isinstance(share, int | float) else 0.0
        chosen = ' class="spoken"' if token == rollout.tokens[at] else ""
        rows += f'<span{chosen} style="--share:{100 * min(1.0, max(0.0, value)):.1f}%">'
        rows += f"<i>{shown(token)}</i><b>{_share(value)}</b></span>"
    return f'<span class="top-five"><span>{title}</span>{rows or DASH}</span>'


def _character(one: str, breaks: bool) -> str:
    if one in _SIGNS:
        return _sign(_SIGNS[one]) + ("\n" if breaks and one == "\n" else "")
    if unicodedata.category(one) in _UNSEEN:
        return _sign(f"⟨U+{ord(one):04X}⟩")
    return esc(one)


def _sign(text: str) -> str:
    return f'<span class="sign">{esc(text)}</span>' if text else ""


def _share(value: float) -> str:
    return "< 0.1%" if value < 0.001 else percent(value)


def _signed(value: float | None) -> str:
    return DASH if value is None else f"{'−' if value <= -5e-5 else ''}{nats(abs(value))}"
