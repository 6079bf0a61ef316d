"""Curves over cycles, one for each arm of an experiment, as an SVG picture with panels side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dashboard import markup
from dashboard.markup import esc

# {arm: [value of cycle 1, 2, ...]}
Curves = Mapping[str, Sequence[float]]
COLOURS = (*markup.SERIES, markup.RECOVERED, "#c9a227", "#8a5a44", "#3d7068", "#d1495b", "#6b4fa0")
_MARKS = ("circle", "square", "diamond")
_WIDTH, _HEIGHT, _LEFT, _TOP, _LEGEND = 400, 260, 52, 40, 18
_TICKS = 5


def picture(panels: Mapping[str, Curves], lines: Mapping[str, float]) -> str:
    """Return an SVG file: a panel for each title, with a dashed line at ``lines[title]``, and one legend.

    All panels have the arms in the same colours. A panel's scale covers its values and its line, at least a tenth.
    """
    arms = list(dict.fromkeys(arm for curves in panels.values() for arm in curves))
    body = [_panel(title, curves, lines.get(title), arms, at) for at, (title, curves) in enumerate(panels.items())]
    width, bottom = len(panels) * (_WIDTH + _LEFT) + 20, _TOP + _HEIGHT + 46
    columns = max(1, width // 300)
    for number, arm in enumerate(arms):
        x, y = 14 + 300 * (number % columns), bottom + _LEGEND * (number // columns)
        body.append(f'<g transform="translate({x} {y - 4})">{_mark(number, 0, 0)}</g>')
        body.append(f'<text x="{x + 12}" y="{y}">{esc(arm)}</text>')
    height = bottom + _LEGEND * math.ceil(len(arms) / columns)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="#1d2530">'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>{"".join(body)}</svg>\n'
    )


def _panel(title: str, curves: Curves, line: float | None, arms: Sequence[str], at: int) -> str:
    """Return one panel: axes, ticks, the dashed line and the curves."""
    values = [value for curve in curves.values() for value in curve] + ([] if line is None else [line])
    low, high = min(values), max(values)
    if high - low < 0.1:
        low, high = high - 0.1, high
    last = max((len(curve) for curve in curves.values()), default=1)

    def place(cycle: int, value: float) -> tuple[float, float]:
        x = _LEFT + (cycle - 1) / max(1, last - 1) * (_WIDTH - 20)
        return x, _TOP + (high - value) / (high - low) * _HEIGHT

    parts = [f'<text x="{_LEFT}" y="22" font-weight="700">{esc(title)}</text>']
    for number in range(_TICKS + 1):
        value = low + (high - low) * number / _TICKS
        y = place(1, value)[1]
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_LEFT + _WIDTH - 20}" stroke="{markup.GRID}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    for cycle in range(1, last + 1, max(1, last // 10)):
        x = place(cycle, low)[0]
        parts.append(f'<text x="{x:.1f}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{cycle}</text>')
    if line is not None:
        y = place(1, line)[1]
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_LEFT + _WIDTH - 20}" stroke="{markup.INK}" stroke-dasharray="5 4"/>')
    for arm, curve in curves.items():
        number = arms.index(arm)
        points = [place(cycle, value) for cycle, value in enumerate(curve, 1)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{_colour(number)}" stroke-width="2"/>')
        parts += [_mark(number, x, y) for x, y in points]
    return f'<g transform="translate({at * (_WIDTH + _LEFT)} 0)">{"".join(parts)}</g>'


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _mark(number: int, x: float, y: float) -> str:
    """Return the mark of an arm, whose shape differs from its neighbours' as its colour does."""
    shape, fill = _MARKS[number % len(_MARKS)], f'fill="{_colour(number)}"'
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" {fill}/>'
    if shape == "square":
        return f'<rect x="{x - 3.2:.1f}" y="{y - 3.2:.1f}" width="6.4" height="6.4" {fill}/>'
    return f'<path d="M{x:.1f} {y - 4.6:.1f}l4.6 4.6l-4.6 4.6l-4.6 -4.6z" {fill}/>'
