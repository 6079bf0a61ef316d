"""Figures built from records by pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from dashboard import markup, theme
from dashboard.formatting import interval, percent, share
from dashboard.plotly_figure import Figure
from db.records import Measured, Overview, Point, Score

DASHES = ("solid", "dash", "dot", "dashdot")
SHAPES = {"base": "circle", "midtrained": "triangle-down", "recovered": "square", "external": "diamond"}
COLOURS = {"base": theme.BASE, "midtrained": theme.MIDTRAINED, "recovered": theme.RECOVERED, "external": theme.BASE}
KINDS = {"base": "base", "midtrained": "mid-trained", "recovered": "recovered", "external": "external"}
FEW_CYCLES = 6
"""Up to this number of cycles every point is labelled; beyond it, only those of the first and the last cycle."""

FEW_DECADES = 2.0
"""Up to this range a small figure's logarithmic axis has ticks between the powers of ten."""

FEW_POINTS = 24
"""Up to this number of points a curve shows markers."""

_DRAWN = (480, 310)  # width and height in pixels of the region that points are drawn in, at its smallest on a desktop
_MARK, _LETTER, _LINE = 8, 8, 15  # half a marker, the width of a letter, the height of a line

_FONT = "IBM Plex Sans, system-ui, sans-serif"


def tradeoff(overview: Overview, floor: float | None = None) -> Figure:
    """Draw knowledge against instruction following: one point per checkpoint, joined in chronological order.

    A thin line joins the Pareto frontier. ``floor`` is the gate's bound on instruction following; the area above it
    is shaded if it is a share. All points are about the same questions, if there are any that all were asked: corpora
    of rejected and rolled-back cycles do not count, nor those on which a point has no score.
    """
    steps = [step for step in overview.path if _both(overview, step)]
    figure = blank(height=380)
    base = overview.base.scores.instruction_following if overview.base else None
    if base is not None:
        figure.add_hline(y=base.value, line={"color": theme.BASE, "width": 1, "dash": "dash"})
    for row in overview.cycles:
        path = [step for step in (row.before, row.midtrained, row.recovered) if step and _both(overview, step)]
        clear = len(overview.cycles) <= FEW_CYCLES or row is overview.cycles[-1]
        for before, after in pairwise(path):
            ends = _place(overview, before), _place(overview, after)
            _arrow(figure, *ends, COLOURS[after.checkpoint.kind], opacity=0.9 if clear else 0.35)
    labels = _labels(overview, steps)
    for kind in ("base", "external", "midtrained", "recovered"):
        if of_kind := [at for at, step in enumerate(steps) if step.checkpoint.kind == kind]:
            _checkpoints(figure, overview, [steps[at] for at in of_kind], kind, [labels[at] for at in of_kind])
    _frontier(figure, overview, steps)
    if floor is not None and 0 <= floor <= 1:
        figure.add_hrect(y0=floor, y1=1.0, line_width=0, fillcolor=theme.KNOWLEDGE, opacity=0.07, layer="below")
    _trade_axes(figure, f"questions answered{over(overview)}", [_place(overview, step) for step in steps])
    return figure


def over(overview: Overview) -> str:
    """Return which corpora the points are about, as the end of a phrase; nothing if there is only one."""
    shared, kept = overview.shared_corpora, overview.kept_corpora
    if kept and not shared:
        return ", the corpora up to each point's cycle"
    if len(shared) < len(kept):
        return f", {len(shared)} of {len(kept)} corpora (asked at every point)"
    return f", all {len(kept)} corpora" if len(kept) > 1 else ""


def beside(overviews: Sequence[Overview]) -> Figure:
    """Draw the paths of several experiments, each with its own colour and shape: hollow first, filled last point."""
    figure = blank(height=340)
    places: list[tuple[float, float]] = []
    for index, one in enumerate(overviews):
        steps = [step for step in one.path if _both(one, step)]
        if not steps:
            continue
        colour, shape = _own(index)
        path = [_place(one, step) for step in steps]
        places += path
        x, y = zip(*path, strict=True)
        sizes = [11, *([7] * (len(path) - 2)), 13][-len(path) :]
        name = plain(one.experiment.name)
        figure.add_scatter(
            x=x,
            y=y,
            name=name,
            mode="lines+markers",
            line={"color": colour, "width": 1.6, "dash": DASHES[index % 4]},
            marker={
                "symbol": [f"{shape}-open", *([shape] * (len(path) - 1))][: len(path)],
                "size": sizes,
                "color": colour,
                "line": {"width": 1.6, "color": colour},
            },
            customdata=[
                [_title(step), percent(place[0]), percent(place[1])] for step, place in zip(steps, path, strict=True)
            ],
            hovertemplate=f"<b>{name}</b>, %{{customdata[0]}}"
            "<br>prompts with all instructions followed %{customdata[2]}"
            "<br>questions answered %{customdata[1]}<extra></extra>",
            cliponaxis=False,
        )
    _trade_axes(figure, "questions answered", places)
    return figure


def _trade_axes(figure: Figure, title: str, places: Sequence[tuple[float, float]]) -> None:
    figure.update_xaxes(title_text=title, range=_shares([x for x, _ in places]), tickformat=".0%")
    figure.update_yaxes(
        title_text="prompts with all instructions followed",
        range=_shares([y for _, y in places]),
        tickformat=".0%",
    )


def beside_keys(names: Sequence[str]) -> str:
    """Return the legend of :func:`beside`."""
    looks = [(*_own(index), name) for index, name in enumerate(names)]
    return markup.keys((shape.split("-")[0], colour, name) for colour, shape, name in looks)


def _own(index: int) -> tuple[str, str]:
    return theme.SERIES[index % len(theme.SERIES)], ("circle", "triangle-down", "square", "diamond")[index % 4]


def _frontier(figure: Figure, overview: Overview, steps: Sequence[Measured]) -> None:
    """Draw the Pareto frontier: checkpoints that no other beats on both scores."""
    places = sorted({_place(overview, step) for step in steps}, reverse=True)
    best = [place for at, place in enumerate(places) if all(place[1] > other[1] for other in places[:at])]
    if len(best) > 1:
        line = {"color": theme.INK, "width": 1, "dash": "dot"}
        x, y = zip(*best, strict=True)
        figure.add_scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False, name="frontier")


def trajectory(overview: Overview) -> Figure:
    """Draw both scores over all checkpoints, with the phases of each cycle shaded."""
    steps = overview.path
    figure = blank(height=380)
    for index, step in enumerate(steps[1:], start=1):
        if step.checkpoint.kind in ("midtrained", "recovered"):
            colour = COLOURS[step.checkpoint.kind]
            figure.add_vrect(x0=index - 1, x1=index, fillcolor=colour, opacity=0.12, line_width=0, layer="below")
    following = [step.scores.instruction_following for step in steps]
    knowledge = [overview.shared_knowledge(step) for step in steps]
    names = [_title(step) for step in steps]
    _line(figure, names, following, "instruction following", theme.FOLLOWING, "circle", "solid")
    _line(figure, names, knowledge, "domain knowledge", theme.KNOWLEDGE, "diamond", "dash")
    figure.update_xaxes(
        tickvals=list(range(len(steps))),
        ticktext=_ticks(steps, overview),
        range=[-0.35, max(len(steps) - 1, 1) + 0.35],
        showgrid=False,
    )
    fewer = len(overview.shared_corpora) < len(overview.kept_corpora)
    title = f"share of items correct{over(overview) if fewer else ''}"
    figure.update_yaxes(title_text=title, range=[0.0, 1.02], dtick=0.2, tickformat=".0%")
    figure.update_layout(margin={"b": 30})
    return figure


def curve(
    series: Mapping[str, Sequence[Point]], labels: Mapping[str, str], *, total: int | None = None, log: bool = False
) -> Figure:
    """Draw curves of a stage over its steps; a band shows the range of averaged steps."""
    figure = blank(height=210)
    drawn = [(name, points) for name, points in series.items() if points]
    for index, (name, points) in enumerate(drawn):
        colour = theme.SERIES[index % len(theme.SERIES)]
        band(figure, points, colour)
        figure.add_scatter(
            x=[point.step for point in points],
            y=[point.value for point in points],
            name=plain(labels.get(name, name)),
            meta=name,
            mode="lines" if len(points) > FEW_POINTS else "lines+markers",
            marker={"size": 4, "color": colour},
            line={"color": colour, "width": 2, "dash": DASHES[index % 4]},
            hovertemplate=f"step %{{x:,}} · {plain(labels.get(name, name))} <b>%{{y:.4g}}</b><extra></extra>",
        )
    figure.update_layout(
        showlegend=len(drawn) > 1,
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
        margin={"l": 46, "r": 10, "t": 22 if len(drawn) > 1 else 8, "b": 26},
    )
    figure.update_xaxes(range=[0, total] if total else None, nticks=6)
    figure.update_yaxes(nticks=5, exponentformat="e")
    if log and all(point.value is None or point.value > 0 for _, points in drawn for point in points):
        values = [point.value for _, points in drawn for point in points if point.value]
        figure.update_yaxes(type="log", dtick=log_ticks(values, FEW_DECADES), tickformat="~g")
    return figure


def log_ticks(values: Sequence[float], decades: float) -> str | int:
    """Return Plotly's tick spacing: 1, 2 and 5 of each power of ten; beyond ``decades``, the powers alone."""
    return "D2" if not values or math.log10(max(values) / min(values)) <= decades else 1


def blank(height: int) -> Figure:
    """Return an empty figure in the dashboard's style."""
    figure = Figure()
    figure.update_layout(
        height=height,
        margin={"l": 54, "r": 16, "t": 14, "b": 48},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": _FONT, "size": 12.5, "color": theme.INK},
        hoverlabel={
            "bgcolor": "#1c2430",
            "bordercolor": "#1c2430",
            "font": {"color": "#ffffff", "family": _FONT},
            "align": "left",
        },
        hovermode="closest",
        showlegend=False,
        dragmode=False,
    )
    axis = {"gridcolor": theme.GRID, "zeroline": False, "linecolor": theme.GRID, "automargin": True}
    figure.update_xaxes(**axis, title={"standoff": 10, "font": {"size": 13}})
    figure.update_yaxes(**axis, title={"standoff": 8, "font": {"size": 13}})
    return figure


def _both(overview: Overview, step: Measured) -> bool:
    return step.scores.instruction_following is not None and overview.shared_knowledge(step) is not None


def _place(overview: Overview, step: Measured) -> tuple[float, float]:
    knowledge, following = overview.shared_knowledge(step), step.scores.instruction_following
    assert knowledge is not None and following is not None  # callers check _both() first
    return knowledge.value, following.value


def _shares(values: Sequence[float]) -> list[float]:
    """Return the range of an axis of shares, which does not exaggerate small differences."""
    if not values:
        return [0.0, 1.0]
    low, high = min(values), max(values)
    room = max(0.1, 0.14 * (high - low))
    return [max(low - room, 0.0), min(high + room, 1.0)]


def _labels(overview: Overview, steps: Sequence[Measured]) -> list[tuple[str, str]]:
    """Return the text and place of each point's label: a place where it meets no point and no label before it; without
    one it is left out, and shown on hover.
    """
    places = [_place(overview, step) for step in steps]
    (left, right), (low, high) = (_shares([place[axis] for place in places]) for axis in (0, 1))
    wide, tall = _DRAWN[0] / (right - left), _DRAWN[1] / (high - low)
    at = [(wide * (x - left), tall * (y - low)) for x, y in places]
    taken = [(x - _MARK, x + _MARK, y - _MARK, y + _MARK) for x, y in at]
    labels = []
    for (x, y), step in zip(at, steps, strict=True):
        text, found = _short(step, overview), ""
        size = _LETTER * len(text)
        sides = {"right": (x + _MARK, x + _MARK + size), "left": (x - _MARK - size, x - _MARK)}
        sides["center"] = (x - size / 2, x + size / 2)
        heights = {"top": (y + _MARK, y + _MARK + _LINE), "bottom": (y - _MARK - _LINE, y - _MARK)}
        order = ("bottom", "top") if step.checkpoint.kind == "midtrained" else ("top", "bottom")
        for place in (f"{height} {side}" for side in sides for height in order):
            height, side = place.split()
            box = (*sides[side], *heights[height])
            inside = box[0] >= 0 and box[1] <= _DRAWN[0] and box[2] >= -_LINE and box[3] <= _DRAWN[1] + _LINE
            if text and inside and not any(_meet(box, other) for other in taken):
                taken.append(box)
                found = place
                break
        labels.append((text, found) if found else ("", "top right"))
    return labels


def _meet(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]


def _checkpoints(
    figure: Figure, overview: Overview, steps: Sequence[Measured], kind: str, labels: Sequence[tuple[str, str]]
) -> None:
    knowledge = [overview.shared_knowledge(step) for step in steps]
    following = [step.scores.instruction_following for step in steps]
    colour = COLOURS[kind]
    figure.add_scatter(
        x=[score.value for score in knowledge if score],
        y=[score.value for score in following if score],
        error_x=_errors(knowledge, colour),
        error_y=_errors(following, colour),
        mode="markers+text",
        name=KINDS[kind],
        text=[text for text, _ in labels],
        textposition=[place for _, place in labels],
        marker={
            "symbol": SHAPES[kind],
            "size": 14 if len(overview.cycles) <= FEW_CYCLES else 10,
            "color": colour,
            "line": {"width": 1, "color": "#ffffff"},
        },
        customdata=[
            [_title(step), share(k), interval(k), share(f), interval(f)]
            for step, k, f in zip(steps, knowledge, following, strict=True)
        ],
        hovertemplate="<b>%{customdata[0]}</b>"
        "<br>prompts with all instructions followed %{customdata[3]} (%{customdata[4]})"
        "<br>questions answered %{customdata[1]} (%{customdata[2]})<extra></extra>",
        cliponaxis=False,
    )


def _errors(scores: Sequence[Score | None], colour: str) -> dict[str, Any]:
    """Return 95% intervals of shares as error bars."""
    found = [(score.value, *(score.interval or (score.value, score.value))) for score in scores if score]
    above, below = [high - value for value, _, high in found], [value - low for value, low, _ in found]
    sides = {"array": above, "arrayminus": below, "symmetric": False}
    return {"type": "data", **sides, "color": colour, "thickness": 1.2, "width": 3}


def _arrow(figure: Figure, start: tuple[float, float], end: tuple[float, float], colour: str, opacity: float) -> None:
    places = {"x": end[0], "y": end[1], "ax": start[0], "ay": start[1]}
    axes = {"xref": "x", "yref": "y", "axref": "x", "ayref": "y"}
    head = {"arrowhead": 2, "arrowsize": 1.1, "arrowwidth": 1.8, "arrowcolor": colour}
    gaps = {"standoff": 9, "startstandoff": 8}
    figure.add_annotation(**places, **axes, showarrow=True, **head, **gaps, opacity=opacity, text="")


def _line(
    figure: Figure, names: Sequence[str], scores: Sequence[Score | None], name: str, colour: str, symbol: str, dash: str
) -> None:
    found = [(index, score) for index, score in enumerate(scores) if score]
    figure.add_scatter(
        x=[index for index, _ in found],
        y=[score.value for _, score in found],
        error_y=_errors([score for _, score in found], colour),
        mode="lines+markers",
        name=name,
        line={"color": colour, "width": 2.4, "dash": dash},
        marker={"symbol": symbol, "size": 9, "color": colour},
        customdata=[[plain(names[index]), percent(score.value), interval(score)] for index, score in found],
        hovertemplate=f"<b>%{{customdata[0]}}</b><br>{name} %{{customdata[1]}} (%{{customdata[2]}})<extra></extra>",
        cliponaxis=False,
    )


def band(figure: Figure, points: Sequence[Point], colour: str) -> None:
    """Draw the range of the steps that each point averages."""
    if all(point.low == point.high for point in points):
        return
    there = [point for point in points if point.low is not None]
    figure.add_scatter(
        x=[point.step for point in there] + [point.step for point in reversed(there)],
        y=[point.high for point in there] + [point.low for point in reversed(there)],
        fill="toself",
        fillcolor=colour,
        opacity=0.16,
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
    )


def _ticks(steps: Sequence[Measured], overview: Overview) -> list[str]:
    """Return tick labels: the number at each cycle's last checkpoint, "base" at the base, nothing in between."""
    every = max(1, math.ceil(len(overview.cycles) / 12))
    words = []
    for step in steps:
        number = step.checkpoint.cycle
        ends = step.checkpoint.kind == "recovered" or step is steps[-1]
        if step.checkpoint.kind == "base":
            words.append("base")
        elif ends and number is not None and (number - 1) % every == 0:
            words.append(f"cycle {number}" if len(overview.cycles) <= FEW_CYCLES else str(number))
        else:
            words.append("")
    return words


def _short(step: Measured, overview: Overview) -> str:
    """Return the label of a point: its cycle's number; with many cycles only for the first and the last."""
    number = step.checkpoint.cycle
    if step.checkpoint.kind == "base":
        return " base"
    ends = (1, overview.cycles[-1].cycle.number)
    return f" {number}" if len(overview.cycles) <= FEW_CYCLES or number in ends else ""


def _title(step: Measured) -> str:
    kind = KINDS[step.checkpoint.kind]
    return kind if step.checkpoint.cycle is None else f"cycle {step.checkpoint.cycle}, {kind}"


def plain(text: str) -> str:
    """Return text with Plotly's markup and templates escaped."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("%{", "% {") + markup.closing(text)
