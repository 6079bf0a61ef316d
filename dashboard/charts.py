"""Figures built from records by pure functions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from dashboard import markup
from dashboard.formatting import interval, percent, share
from db.records import Measured, Overview, Point, Score

DASHES = ("solid", "dash", "dot", "dashdot")
SHAPES = {"base": "circle", "midtrained": "triangle-down", "recovered": "square", "external": "diamond"}
COLOURS = {"base": markup.BASE, "midtrained": markup.MIDTRAINED, "recovered": markup.RECOVERED, "external": markup.BASE}
KINDS = {"base": "base", "midtrained": "mid-trained", "recovered": "recovered", "external": "external"}
FEW_CYCLES = 6
"""Up to this number of cycles every point is labelled; beyond it, only those of the first and the last cycle."""

FEW_DECADES, MANY_DECADES = 2.0, 4.0
"""Up to this range a small and a large figure's logarithmic axis has ticks between the powers of ten."""

FEW_POINTS = 24
"""Up to this number of points a curve shows markers."""

_DRAWN = (480, 310)  # width and height in pixels of the region that points are drawn in, at its smallest on a desktop
_MARK, _LETTER, _LINE = 8, 8, 15  # half a marker, the width of a letter, the height of a line

# Shapes over the full width, and the full height.
WIDE: dict[str, Any] = {"xref": "x domain", "x0": 0, "x1": 1, "yref": "y"}
HIGH: dict[str, Any] = {"xref": "x", "yref": "y domain", "y0": 0, "y1": 1}

_FONT = "IBM Plex Sans, system-ui, sans-serif"


@dataclass
class Figure:
    """The plain data that Plotly's JavaScript draws, with the methods of Plotly's own figure that are used here.

    Plotly's class validates and copies every property, at each page load. Here the tests validate every figure with it.
    """

    data: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)

    def add_scatter(self, **trace: Any) -> None:
        """Add points, lines, or both."""
        self.data.append({"type": "scatter"} | trace)

    def add_shape(self, **shape: Any) -> None:
        """Add a line or an area by its corners."""
        self.layout.setdefault("shapes", []).append(shape)

    def update_layout(self, **values: Any) -> None:
        """Set parts of the layout; other parts stay unchanged, as do those that are None."""
        _merge(self.layout, values)

    def update_xaxes(self, **values: Any) -> None:
        """Set parts of the horizontal axis."""
        _merge(self.layout, {"xaxis": values})

    def update_yaxes(self, **values: Any) -> None:
        """Set parts of the vertical axis."""
        _merge(self.layout, {"yaxis": values})

    def to_dict(self) -> dict[str, Any]:
        """Return the figure as Plotly expects it."""
        return {"data": self.data, "layout": self.layout}

    def to_json(self) -> str:
        """Return the figure as JSON, the form Gradio sends."""
        return json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False)


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping):
            _merge(into.setdefault(name, {}), value)
        elif value is not None:
            into[name] = value


def tradeoff(overview: Overview, floor: float | None = None) -> Figure:
    """Draw knowledge against instruction following: one point per checkpoint, joined in chronological order.

    A thin line joins the Pareto frontier. ``floor`` is the gate's bound on instruction following; the area above it
    is shaded if it is a share. All points are about the same questions, if there are any that all were asked: corpora
    of rejected and rolled-back cycles do not count, nor those on which a point has no score.
    """
    steps = [step for step in overview.path if _has_both(overview, step)]
    figure = blank(height=380)
    if overview.base is not None and (base := overview.base.scores.instruction_following) is not None:
        line = {"color": markup.BASE, "width": 1, "dash": "dash"}
        figure.add_shape(type="line", **WIDE, y0=base.value, y1=base.value, line=line)
    for row in overview.cycles:
        path = [step for step in (row.before, row.midtrained, row.recovered) if step and _has_both(overview, step)]
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
        figure.add_shape(**WIDE, y0=floor, y1=1.0, **_area(markup.KNOWLEDGE, 0.07))
    _trade_axes(figure, f"questions answered{over(overview)}", [_place(overview, step) for step in steps])
    return figure


def _area(colour: str, opacity: float) -> dict[str, Any]:
    return {"type": "rect", "fillcolor": colour, "opacity": opacity, "line": {"width": 0}, "layer": "below"}


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
        steps = [step for step in one.path if _has_both(one, step)]
        if not steps:
            continue
        colour, shape = _look(index)
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
    above = "prompts with all instructions followed"
    figure.update_xaxes(title={"text": title}, range=_shares([x for x, _ in places]), tickformat=".0%")
    figure.update_yaxes(title={"text": above}, range=_shares([y for _, y in places]), tickformat=".0%")


def beside_keys(names: Sequence[str]) -> str:
    """Return the legend of :func:`beside`."""
    looks = [(*_look(index), name) for index, name in enumerate(names)]
    return markup.keys((shape.split("-")[0], colour, name) for colour, shape, name in looks)


def _look(index: int) -> tuple[str, str]:
    return markup.SERIES[index % len(markup.SERIES)], ("circle", "triangle-down", "square", "diamond")[index % 4]


def _frontier(figure: Figure, overview: Overview, steps: Sequence[Measured]) -> None:
    """Draw the Pareto frontier: checkpoints that no other beats on both scores."""
    places = sorted({_place(overview, step) for step in steps}, reverse=True)
    best = [place for at, place in enumerate(places) if all(place[1] > other[1] for other in places[:at])]
    if len(best) > 1:
        line = {"color": markup.INK, "width": 1, "dash": "dot"}
        x, y = zip(*best, strict=True)
        figure.add_scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False, name="frontier")


def trajectory(overview: Overview) -> Figure:
    """Draw both scores over all checkpoints, with the phases of each cycle shaded."""
    steps = overview.path
    figure = blank(height=380)
    for index, step in enumerate(steps[1:], start=1):
        if step.checkpoint.kind in ("midtrained", "recovered"):
            area = _area(COLOURS[step.checkpoint.kind], 0.12)
            figure.add_shape(**HIGH, x0=index - 1, x1=index, **area)
    following = [step.scores.instruction_following for step in steps]
    knowledge = [overview.shared_knowledge(step) for step in steps]
    names = [_title(step) for step in steps]
    _line(figure, names, following, "instruction following", markup.FOLLOWING, "circle", "solid")
    _line(figure, names, knowledge, "domain knowledge", markup.KNOWLEDGE, "diamond", "dash")
    figure.update_xaxes(
        tickvals=list(range(len(steps))),
        ticktext=_ticks(steps, overview),
        range=[-0.35, max(len(steps) - 1, 1) + 0.35],
        showgrid=False,
    )
    fewer = len(overview.shared_corpora) < len(overview.kept_corpora)
    title = f"share of items correct{over(overview) if fewer else ''}"
    figure.update_yaxes(title={"text": title}, range=[0.0, 1.02], dtick=0.2, tickformat=".0%")
    figure.update_layout(margin={"b": 30})
    return figure


# --- curves over steps ---------------------------------------------------------------------------------------


def curve(
    series: Mapping[str, Sequence[Point]], labels: Mapping[str, str], *, total: int | None = None, log: bool = False
) -> Figure:
    """Draw curves of a stage over its steps; a band shows the range of averaged steps."""
    figure = blank(height=210)
    drawn = [(name, points) for name, points in series.items() if points]
    for index, (name, points) in enumerate(drawn):
        one = Curve(labels.get(name, name), (index, index), points)
        _band(figure, one)
        _over_steps(figure, one, size=4, width=2, hover=f"step %{{x:,}} · {plain(one.label)}", meta=name)
    figure.update_layout(
        showlegend=len(drawn) > 1,
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
        margin={"l": 46, "r": 10, "t": 22 if len(drawn) > 1 else 8, "b": 26},
    )
    figure.update_xaxes(range=[0, total] if total else None, nticks=6)
    figure.update_yaxes(nticks=5, exponentformat="e")
    if log:
        _logarithmic(figure, [points for _, points in drawn], FEW_DECADES)
    return figure


@dataclass(frozen=True)
class Curve:
    """A curve of one stage; ``look`` holds the indices of its colour and dash style.

    A ``faint`` curve is the reference for the stage's own curve.
    """

    label: str
    look: tuple[int, int]
    points: Sequence[Point]
    faint: bool = False


def style(look: tuple[int, int]) -> tuple[str, str]:
    """Return colour and dash style by their indices."""
    return markup.SERIES[look[0] % len(markup.SERIES)], DASHES[look[1] % len(DASHES)]


def curves(entries: Sequence[Curve], *, height: int = 380, unit: str = "", log: bool = False) -> Figure:
    """Draw curves of several stages on equal axes; a band shows the range of averaged steps."""
    figure = blank(height)
    for entry in entries:
        if not entry.faint:
            _band(figure, entry)
        width, opacity = (1, 0.75) if entry.faint else (2.2, 1.0)
        hover = f"{plain(entry.label)}<br>step %{{x:,}}"
        _over_steps(figure, entry, size=5, width=width, hover=hover, opacity=opacity)
    figure.update_xaxes(title={"text": "step"}, rangemode="tozero", nticks=8)
    figure.update_yaxes(title={"text": unit or None}, exponentformat="e", nticks=6)
    if log and any(point.value is not None for entry in entries for point in entry.points):
        _logarithmic(figure, [entry.points for entry in entries], MANY_DECADES)
    return figure


def curve_keys(drawn: Sequence[Curve]) -> str:
    """Return the legend of curves of stages."""
    styles = [(style(curve.look), curve.label) for curve in drawn if not curve.faint]
    return markup.keys((f"line-{dash}", colour, label) for (colour, dash), label in styles)


def _over_steps(figure: Figure, one: Curve, *, size: float, width: float, hover: str, **more: Any) -> None:
    """Draw a curve over steps; with few points each has a marker."""
    colour, dash = style(one.look)
    figure.add_scatter(
        x=[point.step for point in one.points],
        y=[point.value for point in one.points],
        name=plain(one.label),
        mode="lines+markers" if len(one.points) <= FEW_POINTS and not one.faint else "lines",
        marker={"size": size, "color": colour},
        line={"color": colour, "width": width, "dash": "dot" if one.faint else dash},
        hovertemplate=f"{hover} <b>%{{y:.4g}}</b><extra></extra>",
        **more,
    )


def _band(figure: Figure, curve: Curve) -> None:
    """Draw the range of the steps that each point averages."""
    if all(point.low == point.high for point in curve.points):
        return
    points = [point for point in curve.points if point.low is not None]
    figure.add_scatter(
        x=[point.step for point in points] + [point.step for point in reversed(points)],
        y=[point.high for point in points] + [point.low for point in reversed(points)],
        fill="toself",
        fillcolor=style(curve.look)[0],
        opacity=0.16,
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
    )


def _logarithmic(figure: Figure, curves: Sequence[Sequence[Point]], decades: float) -> None:
    """Make the vertical axis logarithmic if all values are above 0. Up to ``decades`` powers of ten it has ticks at
    1, 2 and 5 of each, else at the powers alone.
    """
    values = [point.value for points in curves for point in points if point.value is not None]
    if min(values, default=1.0) > 0:
        few = not values or math.log10(max(values) / min(values)) <= decades
        figure.update_yaxes(type="log", dtick="D2" if few else 1, tickformat="~g")


# --- shared --------------------------------------------------------------------------------------------------


def blank(height: int) -> Figure:
    """Return an empty figure in the dashboard's style."""
    figure = Figure()
    figure.update_layout(
        height=height,
        margin={"l": 54, "r": 16, "t": 14, "b": 48},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": _FONT, "size": 12.5, "color": markup.INK},
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
    axis = {"gridcolor": markup.GRID, "zeroline": False, "linecolor": markup.GRID, "automargin": True}
    figure.update_xaxes(**axis, title={"standoff": 10, "font": {"size": 13}})
    figure.update_yaxes(**axis, title={"standoff": 8, "font": {"size": 13}})
    return figure


def _has_both(overview: Overview, step: Measured) -> bool:
    return step.scores.instruction_following is not None and overview.shared_knowledge(step) is not None


def _place(overview: Overview, step: Measured) -> tuple[float, float]:
    knowledge, following = overview.shared_knowledge(step), step.scores.instruction_following
    assert knowledge is not None and following is not None  # callers check _has_both() first
    return knowledge.value, following.value


def _shares(values: Sequence[float]) -> list[float]:
    """Return the range of an axis of shares, which does not exaggerate small differences."""
    if not values:
        return [0.0, 1.0]
    low, high = min(values), max(values)
    room = max(0.1, 0.14 * (high - low))
    return [max(low - room, 0.0), min(high + room, 1.0)]


def _labels(overview: Overview, steps: Sequence[Measured]) -> list[tuple[str, str]]:
    """Return the text and place of each point's label: a place that overlaps no point and no earlier label.

    A label without such a place is only shown on hover.
    """
    places = [_place(overview, step) for step in steps]
    (left, right), (low, high) = (_shares([place[axis] for place in places]) for axis in (0, 1))
    wide, tall = _DRAWN[0] / (right - left), _DRAWN[1] / (high - low)
    centres = [(wide * (x - left), tall * (y - low)) for x, y in places]
    taken = [(x - _MARK, x + _MARK, y - _MARK, y + _MARK) for x, y in centres]
    labels = []
    for (x, y), step in zip(centres, steps, strict=True):
        text, position = _point_label(step, overview), ""
        size = _LETTER * len(text)
        sides = {"right": (x + _MARK, x + _MARK + size), "left": (x - _MARK - size, x - _MARK)}
        sides["center"] = (x - size / 2, x + size / 2)
        heights = {"top": (y + _MARK, y + _MARK + _LINE), "bottom": (y - _MARK - _LINE, y - _MARK)}
        order = ("bottom", "top") if step.checkpoint.kind == "midtrained" else ("top", "bottom")
        for place in (f"{height} {side}" for side in sides for height in order):
            height, side = place.split()
            box = (*sides[side], *heights[height])
            inside = box[0] >= 0 and box[1] <= _DRAWN[0] and box[2] >= -_LINE and box[3] <= _DRAWN[1] + _LINE
            if text and inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                position = place
                break
        labels.append((text, position) if position else ("", "top right"))
    return labels


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
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
    intervals = [(score.value, *(score.interval or (score.value, score.value))) for score in scores if score]
    above, below = [high - value for value, _, high in intervals], [value - low for value, low, _ in intervals]
    sides = {"array": above, "arrayminus": below, "symmetric": False}
    return {"type": "data", **sides, "color": colour, "thickness": 1.2, "width": 3}


def _arrow(figure: Figure, start: tuple[float, float], end: tuple[float, float], colour: str, opacity: float) -> None:
    places = {"x": end[0], "y": end[1], "ax": start[0], "ay": start[1]}
    axes = {"xref": "x", "yref": "y", "axref": "x", "ayref": "y"}
    head = {"arrowhead": 2, "arrowsize": 1.1, "arrowwidth": 1.8, "arrowcolor": colour}
    gaps = {"standoff": 9, "startstandoff": 8}
    arrow = {**places, **axes, "showarrow": True, **head, **gaps, "opacity": opacity, "text": ""}
    figure.layout.setdefault("annotations", []).append(arrow)


def _line(
    figure: Figure, names: Sequence[str], scores: Sequence[Score | None], name: str, colour: str, symbol: str, dash: str
) -> None:
    points = [(index, score) for index, score in enumerate(scores) if score]
    figure.add_scatter(
        x=[index for index, _ in points],
        y=[score.value for _, score in points],
        error_y=_errors([score for _, score in points], colour),
        mode="lines+markers",
        name=name,
        line={"color": colour, "width": 2.4, "dash": dash},
        marker={"symbol": symbol, "size": 9, "color": colour},
        customdata=[[plain(names[index]), percent(score.value), interval(score)] for index, score in points],
        hovertemplate=f"<b>%{{customdata[0]}}</b><br>{name} %{{customdata[1]}} (%{{customdata[2]}})<extra></extra>",
        cliponaxis=False,
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


def _point_label(step: Measured, overview: Overview) -> str:
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
