"""Confidence intervals against their bounds, as SVG: a cell of the studies page, and a picture of all of a study."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from dashboard import theme
from dashboard.markup import esc

WIDTH, HEIGHT = 200, 22
COLOURS = {"holds": theme.KNOWLEDGE, "does not hold": theme.MIDTRAINED, "undecided": theme.FOLLOWING}
_LINE, _TEXT, _WORDS = 17, 560, 76  # of the picture: height of a line, width of the text, characters of a line


def plot(part: Mapping[str, Any]) -> str:
    """Return a statement's interval as an SVG element: the dashed line is the bound, the shaded side is where the
    statement holds. Each has a scale of its own. Empty for one seed.
    """
    if "low" not in part:
        return ""
    label = f"{part['mean']:.3f}, 95% interval {part['low']:.3f} to {part['high']:.3f}, bound {part['bound']}"
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg {size} role="img" aria-label="{esc(label)}">{_marks(part)}</svg>'


def picture(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG file with all statements of a study, their intervals and verdicts."""
    rows, y = [], 10
    for part in parts:
        lines = textwrap.wrap(str(part["statement"]), _WORDS)
        height = max(len(lines) * _LINE, HEIGHT) + 12
        middle = y + (height - 12) / 2
        first = middle - (len(lines) - 1) * _LINE / 2 + 5
        rows += [f'<text x="10" y="{first + n * _LINE:.0f}">{esc(line)}</text>' for n, line in enumerate(lines)]
        rows.append(f'<g transform="translate({_TEXT} {middle - HEIGHT / 2:.0f})">{_marks(part)}</g>')
        fill = COLOURS.get(str(part["verdict"]), theme.INK)
        words = f"{part['verdict']} ({part['bound']})"
        rows.append(f'<text x="{_TEXT + WIDTH + 14}" y="{middle + 5:.0f}" fill="{fill}">{esc(words)}</text>')
        y += height
    width = _TEXT + WIDTH + 190
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="#1d2530">'
        f'<rect width="{width}" height="{y}" fill="#ffffff"/>{"".join(rows)}</svg>\n'
    )


def _marks(part: Mapping[str, Any]) -> str:
    """Return the bound, the side on which the statement holds, the interval and the mean."""
    sign, _, number = str(part["bound"]).partition(" ")
    bound, middle = float(number), WIDTH / 2
    shaded = middle if sign == ">" else 0
    marks = [
        f'<rect x="{shaded:g}" width="{middle:g}" height="{HEIGHT}" fill="{theme.KNOWLEDGE}" opacity="0.1"/>',
        f'<path d="M{middle:g} 0V{HEIGHT}" stroke="{theme.INK}" stroke-dasharray="3 2"/>',
    ]
    if "low" in part:
        values = [part[name] - bound for name in ("low", "mean", "high")]
        scale = 0.92 * middle / (max(map(abs, values)) or 1.0)
        low, mean, high = (middle + value * scale for value in values)
        colour = COLOURS.get(str(part["verdict"]), theme.BASE)
        marks.append(f'<path d="M{low:.1f} 11H{high:.1f}" stroke="{colour}" stroke-width="3"/>')
        marks.append(f'<circle cx="{mean:.1f}" cy="11" r="4.5" fill="{colour}"/>')
    return "".join(marks)
