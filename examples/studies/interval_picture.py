"""Confidence intervals of a study's statements against their bounds, as an SVG picture."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.markup import BASE, FOLLOWING, INK, KNOWLEDGE, MIDTRAINED, esc

_WIDTH, _HEIGHT = 200, 22
_COLOURS = {"holds": KNOWLEDGE, "does not hold": MIDTRAINED, "undecided": FOLLOWING}
_LINE_HEIGHT, _TEXT, _WORDS = 17, 560, 76  # height of a line, width of the text, characters of a line


def interval_picture(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG file with all statements of a study, their intervals and verdicts."""
    rows, y = [], 10
    for part in parts:
        lines = textwrap.wrap(str(part["statement"]), _WORDS)
        height = max(len(lines) * _LINE_HEIGHT, _HEIGHT) + 12
        middle = y + (height - 12) / 2
        first = middle - (len(lines) - 1) * _LINE_HEIGHT / 2 + 5
        rows += [f'<text x="10" y="{first + n * _LINE_HEIGHT:.0f}">{esc(line)}</text>' for n, line in enumerate(lines)]
        rows.append(f'<g transform="translate({_TEXT} {middle - _HEIGHT / 2:.0f})">{_marks(part)}</g>')
        fill = _COLOURS.get(str(part["verdict"]), INK)
        words = f"{part['verdict']} ({part['bound']})"
        rows.append(f'<text x="{_TEXT + _WIDTH + 14}" y="{middle + 5:.0f}" fill="{fill}">{esc(words)}</text>')
        y += height
    width = _TEXT + _WIDTH + 190
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="#1d2530">'
        f'<rect width="{width}" height="{y}" fill="#ffffff"/>{"".join(rows)}</svg>\n'
    )


def _marks(part: Mapping[str, Any]) -> str:
    """Return the bound, the side on which the statement holds, the interval and the mean."""
    sign, _, number = str(part["bound"]).partition(" ")
    bound, middle = float(number), _WIDTH / 2
    shaded = middle if sign == ">" else 0
    marks = [
        f'<rect x="{shaded:g}" width="{middle:g}" height="{_HEIGHT}" fill="{KNOWLEDGE}" opacity="0.1"/>',
        f'<path d="M{middle:g} 0V{_HEIGHT}" stroke="{INK}" stroke-dasharray="3 2"/>',
    ]
    if "low" in part:
        values = [part[name] - bound for name in ("low", "mean", "high")]
        scale = 0.92 * middle / (max(map(abs, values)) or 1.0)
        low, mean, high = (middle + value * scale for value in values)
        colour = _COLOURS.get(str(part["verdict"]), BASE)
        marks.append(f'<path d="M{low:.1f} 11H{high:.1f}" stroke="{colour}" stroke-width="3"/>')
        marks.append(f'<circle cx="{mean:.1f}" cy="11" r="4.5" fill="{colour}"/>')
    return "".join(marks)
