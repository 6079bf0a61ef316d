"""A rollout token by token as HTML: how far student and teacher lie apart at each, and what both would have said."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Any

from dashboard.markup import esc
from dashboard.words import DASH, percent
from db.records import TokenScores

WINDOW = 300
"""So many tokens are shown at once: each carries two lists of alternatives."""

SCALE = (0.001, 0.01, 0.1, 1.0, 10.0)
"""Divergences, in nats, that the key beside the tokens shows."""

_SPECIAL = re.compile(r"<\|[^|\s]*\|>|</?s>|<(bos|eos|pad|unk|start_of_turn|end_of_turn)>|\[(CLS|SEP|PAD|UNK)\]")
_SIGNS = {"\n": "⏎", "\r": "␍", "\t": "⇥", "\u00a0": "⍽"}
_UNSEEN = ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")


def level(divergence: float | None) -> int:
    """How strongly a token is marked, 0 to 10: by the logarithm, 0 up to 0.001 nats and 10 from 10 nats on."""
    if divergence is None or divergence <= SCALE[0]:
        return 0
    return min(10, max(0, round(2.5 * (math.log10(divergence) + 3))))


def shown(token: object, *, breaks: bool = False) -> str:
    """A token as HTML in which nothing is invisible; with ``breaks`` a line also ends where it ends one."""
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
    """A divergence, an entropy or a log-probability: four digits are what is kept of them."""
    return DASH if value is None else f"{value:.4f}" if value < 1 else f"{value:.2f}"


def tokens(rollout: TokenScores, start: int, chosen: int) -> str:
    """The tokens from ``start`` on, each with its figures on hover and on focus."""
    there = range(start, min(len(rollout.tokens), start + WINDOW))
    return f'<div class="rollout">{"".join(_token(rollout, at, at == chosen) for at in there)}</div>'


def key() -> str:
    """What the marks of tokens mean."""
    steps = "".join(f'<span class="token kl level-{level(one)}">{one:g}</span>' for one in SCALE)
    return f'<p class="scale">Reverse KL in nats, by shade and by underline: {steps}</p>'


def details(rollout: TokenScores, at: int) -> str:
    """Everything known about one token."""
    return (
        f'<span class="about"><b class="spoken">{shown(rollout.tokens[at])}</b>'
        f"<span>token {at + 1:,} of {len(rollout.tokens):,}</span></span>"
        f'<span class="about">KL(student ‖ teacher) <b>{nats(figure(rollout, "reverse_kl", at))} nats</b></span>'
        + _pairs(rollout, at)
        + f'<span class="tops">{_top(rollout, "top", "Student", at)}'
        + f"{_top(rollout, 'teacher_top', 'Teacher', at)}</span>"
    )


def figure(rollout: TokenScores, name: str, at: int) -> float | None:
    """One number of one token, where there is one."""
    values = rollout.values.get(name)
    value = values[at] if isinstance(values, list) and at < len(values) else None
    return float(value) if isinstance(value, int | float) else None


def _token(rollout: TokenScores, at: int, chosen: bool) -> str:
    divergence = figure(rollout, "reverse_kl", at)
    special = " special" if _SPECIAL.fullmatch(str(rollout.tokens[at])) else ""
    marked = ' aria-current="true"' if chosen else ""
    return (
        f'<span class="token kl level-{level(divergence)}{special}" tabindex="0" aria-describedby="token-{at}"{marked}>'
        f"{shown(rollout.tokens[at], breaks=True)}"
        f'<span class="about-token" role="tooltip" id="token-{at}">{details(rollout, at)}</span></span>'
    )


def _pairs(rollout: TokenScores, at: int) -> str:
    """What student and teacher made of the token that was said."""
    rows = [
        ("gave it", [_given(figure(rollout, name, at)) for name in ("logprob", "teacher_logprob")]),
        ("log-prob", [_signed(figure(rollout, name, at)) for name in ("logprob", "teacher_logprob")]),
        ("entropy", [nats(figure(rollout, name, at)) for name in ("entropy", "teacher_entropy")]),
    ]
    cells = "".join(f"<span>{name}</span><b>{mine}</b><b>{theirs}</b>" for name, (mine, theirs) in rows)
    advantage = figure(rollout, "advantage", at)
    more = f"<span>advantage</span><b>{_signed(advantage)}</b><b></b>" if advantage is not None else ""
    return f'<span class="pairs"><span></span><span>student</span><span>teacher</span>{cells}{more}</span>'


def _top(rollout: TokenScores, name: str, title: str, at: int) -> str:
    """The likeliest tokens with their probabilities, the one that was said marked."""
    values = rollout.values.get(name)
    found = values[at] if isinstance(values, list) and at < len(values) else []
    rows = "".join(_alternative(token, share, rollout.tokens[at]) for token, share in found)
    return f'<span class="top-five"><span>{title}</span>{rows or DASH}</span>'


def _alternative(token: object, share: Any, said: object) -> str:
    value = float(share) if isinstance(share, int | float) else 0.0
    chosen = ' class="spoken"' if token == said else ""
    return (
        f'<span{chosen} style="--share:{100 * min(1.0, max(0.0, value)):.1f}%">'
        f"<i>{shown(token)}</i><b>{_share(value)}</b></span>"
    )


def _character(one: str, breaks: bool) -> str:
    if one in _SIGNS:
        return _sign(_SIGNS[one]) + ("\n" if breaks and one == "\n" else "")
    if unicodedata.category(one) in _UNSEEN:
        return _sign(f"⟨U+{ord(one):04X}⟩")
    return esc(one)


def _sign(text: str) -> str:
    return f'<span class="sign">{esc(text)}</span>' if text else ""


def _given(logprob: float | None) -> str:
    return DASH if logprob is None else _share(math.exp(min(0.0, logprob)))


def _share(value: float) -> str:
    return "< 0.1%" if value < 0.001 else percent(value)


def _signed(value: float | None) -> str:
    return DASH if value is None else f"{'−' if value <= -5e-5 else ''}{nats(abs(value))}"
