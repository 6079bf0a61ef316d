"""A rollout as HTML: per token the divergence of student and teacher, and the likeliest tokens of both."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Any

from dashboard.formatting import DASH, percent
from dashboard.markup import esc
from db.records import TokenScores

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
    there = range(start, min(len(rollout.tokens), start + WINDOW))
    return f'<div class="rollout">{"".join(_token(rollout, at, at == chosen) for at in there)}</div>'


def key() -> str:
    """Return the legend of the shades."""
    steps = "".join(f'<span class="token kl level-{level(one)}">{one:g}</span>' for one in SCALE)
    return f'<p class="scale">Reverse KL in nats, as shade and underline: {steps}</p>'


def details(rollout: TokenScores, at: int) -> str:
    """Return all values of one token."""
    return (
        f'<span class="about"><b class="spoken">{shown(rollout.tokens[at])}</b>'
        f"<span>token {at + 1:,} of {len(rollout.tokens):,}</span></span>"
        f'<span class="about">KL(student ‖ teacher) <b>{nats(figure(rollout, "reverse_kl", at))} nats</b></span>'
        + _pairs(rollout, at)
        + f'<span class="tops">{_top(rollout, "top", "Student", at)}'
        + f"{_top(rollout, 'teacher_top', 'Teacher', at)}</span>"
    )


def figure(rollout: TokenScores, name: str, at: int) -> float | None:
    """Return one value of one token, or None."""
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
    """Return probability, log-probability and entropy of student and teacher at a sampled token."""
    rows = [
        ("probability", [_probability(figure(rollout, name, at)) for name in ("logprob", "teacher_logprob")]),
        ("log-prob", [_signed(figure(rollout, name, at)) for name in ("logprob", "teacher_logprob")]),
        ("entropy", [nats(figure(rollout, name, at)) for name in ("entropy", "teacher_entropy")]),
    ]
    cells = "".join(f"<span>{name}</span><b>{mine}</b><b>{theirs}</b>" for name, (mine, theirs) in rows)
    advantage = figure(rollout, "advantage", at)
    more = f"<span>advantage</span><b>{_signed(advantage)}</b><b></b>" if advantage is not None else ""
    return f'<span class="pairs"><span></span><span>student</span><span>teacher</span>{cells}{more}</span>'


def _top(rollout: TokenScores, name: str, title: str, at: int) -> str:
    """Return the likeliest tokens with their probabilities; the sampled one is marked."""
    values = rollout.values.get(name)
    found = values[at] if isinstance(values, list) and at < len(values) else []
    rows = "".join(_alternative(token, share, rollout.tokens[at]) for token, share in found)
    return f'<span class="top-five"><span>{title}</span>{rows or DASH}</span>'


def _alternative(token: object, share: Any, sampled: object) -> str:
    value = float(share) if isinstance(share, int | float) else 0.0
    chosen = ' class="spoken"' if token == sampled else ""
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


def _probability(logprob: float | None) -> str:
    return DASH if logprob is None else _share(math.exp(min(0.0, logprob)))


def _share(value: float) -> str:
    return "< 0.1%" if value < 0.001 else percent(value)


def _signed(value: float | None) -> str:
    return DASH if value is None else f"{'−' if value <= -5e-5 else ''}{nats(abs(value))}"
