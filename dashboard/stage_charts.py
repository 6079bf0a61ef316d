"""Figures that compare stages: curves on equal axes, token gradients in a plane, and update norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dashboard import charts, theme
from dashboard.plotly_figure import Figure
from db.records import Point

DECADES = 4
"""Powers of ten below the largest gradient that a logarithmic plane resolves."""


@dataclass(frozen=True)
class Curve:
    """A curve of one stage; ``look`` holds the indices of its colour and dash style.

    A ``faint`` curve is the reference for the stage's own curve.
    """

    label: str
    look: tuple[int, int]
    points: Sequence[Point]
    faint: bool = False


@dataclass(frozen=True)
class Sample:
    """Gradients of sampled tokens of a step in a plane: (x, y, index of the response)."""

    points: tuple[tuple[float, float, int], ...]

    @property
    def reach(self) -> float:
        """The largest length."""
        return max((math.hypot(x, y) for x, y, _ in self.points), default=0.0)

    @property
    def mean(self) -> tuple[float, float]:
        """The mean gradient."""
        n = max(1, len(self.points))
        return sum(x for x, _, _ in self.points) / n, sum(y for _, y, _ in self.points) / n

    @property
    def chance(self) -> float:
        """The root mean square length of the mean if each gradient had a random sign."""
        return math.sqrt(sum(x * x + y * y for x, y, _ in self.points)) / max(1, len(self.points))


@dataclass(frozen=True)
class Scale:
    """Radial scale of a plane; shared by all planes that are compared."""

    reach: float
    logarithmic: bool = True

    @property
    def least(self) -> float:
        """The length below which the logarithmic scale becomes linear."""
        return 10.0 ** (math.ceil(math.log10(self.reach)) - DECADES)

    def radius(self, length: float) -> float:
        """Return the distance from the centre at which a length is drawn."""
        return math.log10(1 + length / self.least) if self.logarithmic else length

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return a vector's position in the plane; its direction is kept."""
        length = math.hypot(x, y)
        factor = self.radius(length) / length if length else 0.0
        return x * factor, y * factor

    @property
    def rings(self) -> list[float]:
        """Round lengths to draw circles at."""
        if self.logarithmic:
            return [self.least * 10**power for power in range(DECADES + 1) if self.least * 10**power <= self.reach]
        power = 10.0 ** math.floor(math.log10(self.reach))
        step = next(power * part for part in (0.2, 0.5, 1.0, 2.0, 5.0) if self.reach / (power * part) < 5)
        return [step * count for count in range(1, math.floor(self.reach / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Reach:
    """Relative norm of a stage's weight update, and whether the stage stayed stable."""

    label: str
    length: float
    stable: bool


def safe_radius(reaches: Sequence[Reach]) -> float | None:
    """Return the largest update among stages that stayed stable; None if none did."""
    return max((one.length for one in reaches if one.stable), default=None)


def style(look: tuple[int, int]) -> tuple[str, str]:
    """Return colour and dash style by their indices."""
    return theme.SERIES[look[0] % len(theme.SERIES)], charts.DASHES[look[1] % len(charts.DASHES)]


def curves(entries: Sequence[Curve], *, height: int = 380, unit: str = "", log: bool = False) -> Figure:
    """Draw curves on equal axes; a band shows the range of averaged steps."""
    figure = charts.blank(height)
    for entry in entries:
        colour, dash = style(entry.look)
        if not entry.faint:
            charts.band(figure, entry.points, colour)
        figure.add_scatter(
            x=[point.step for point in entry.points],
            y=[point.value for point in entry.points],
            name=charts.plain(entry.label),
            mode="lines+markers" if len(entry.points) <= charts.FEW_POINTS and not entry.faint else "lines",
            marker={"size": 5, "color": colour},
            line={"color": colour, "width": 1 if entry.faint else 2.2, "dash": "dot" if entry.faint else dash},
            opacity=0.75 if entry.faint else 1.0,
            hovertemplate=f"{charts.plain(entry.label)}<br>step %{{x:,}} <b>%{{y:.4g}}</b><extra></extra>",
        )
    figure.update_xaxes(title_text="step", rangemode="tozero", nticks=8)
    figure.update_yaxes(title_text=unit or None, exponentformat="e", nticks=6)
    values = [point.value for entry in entries for point in entry.points if point.value is not None]
    if log and values and min(values) > 0:
        figure.update_yaxes(type="log", dtick=charts.log_ticks(values, 4.0), tickformat="~g")
    return figure


def plane(sample: Sample, scale: Scale, colour: str) -> Figure:
    """Draw each token's gradient as a point, their mean, and a circle at the mean's length for random signs."""
    figure = charts.blank(340)
    _rings(figure, scale)
    places = [scale.place(x, y) for x, y, _ in sample.points]
    figure.add_scatter(
        x=[x for x, _ in places],
        y=[y for _, y in places],
        name="token",
        mode="markers",
        marker={"symbol": "circle", "size": 7, "color": colour, "opacity": 0.55, "line": {"width": 0}},
        customdata=[[row + 1, math.hypot(x, y)] for x, y, row in sample.points],
        hovertemplate="token of response %{customdata[0]}<br>length <b>%{customdata[1]:.3g}</b><extra></extra>",
    )
    _mean(figure, sample, scale)
    edge = 1.06 * scale.radius(scale.reach)
    hidden = {"visible": False, "range": [-edge, edge], "constrain": "domain"}
    figure.update_xaxes(**hidden)
    figure.update_yaxes(**hidden, scaleanchor="x")
    return figure


def _mean(figure: Figure, sample: Sample, scale: Scale) -> None:
    chance, (x, y) = scale.radius(sample.chance), scale.place(*sample.mean)
    turns = [2 * math.pi * step / 72 for step in range(73)]
    figure.add_scatter(
        x=[chance * math.cos(turn) for turn in turns],
        y=[chance * math.sin(turn) for turn in turns],
        name="chance",
        mode="lines",
        line={"color": theme.BASE, "width": 1.8, "dash": "dash"},
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=[x],
        y=[y],
        name="mean",
        mode="markers",
        marker={"symbol": "diamond", "size": 14, "color": theme.INK, "line": {"width": 1.2, "color": "#ffffff"}},
        customdata=[[math.hypot(*sample.mean), sample.chance]],
        hovertemplate="mean <b>%{customdata[0]:.3g}</b><br>random signs %{customdata[1]:.3g}<extra></extra>",
    )


def _rings(figure: Figure, scale: Scale) -> None:
    """Draw circles at round lengths, each labelled with its length at the top."""
    rings = [(ring, scale.radius(ring)) for ring in scale.rings]
    line = {"color": theme.GRID, "width": 1}
    font = {"size": 11, "color": theme.INK}
    label = {"showarrow": False, "bgcolor": "#ffffff", "borderpad": 1, "font": font}
    figure.update_layout(
        shapes=[
            {"type": "circle", "x0": -at, "x1": at, "y0": -at, "y1": at, "line": line, "layer": "below"}
            for _, at in rings
        ],
        annotations=[{"x": 0, "y": at, "text": f"{ring:g}"} | label for ring, at in rings],
        margin={"l": 4, "r": 4, "t": 4, "b": 4},
    )


def reach(reaches: Sequence[Reach]) -> Figure:
    """Draw each stage's update norm on its own row, in the given order, with the safe radius."""
    figure = charts.blank(max(140, 60 + 24 * len(reaches)))
    names = [charts.plain(one.label) for one in reaches]
    for stable, colour, symbol, word in (
        (True, theme.KNOWLEDGE, "circle", "stayed stable"),
        (False, theme.MIDTRAINED, "triangle-down", "collapsed"),
    ):
        drawn = [(name, one.length) for name, one in zip(names, reaches, strict=True) if one.stable == stable]
        if drawn:
            figure.add_scatter(
                x=[length for _, length in drawn],
                y=[name for name, _ in drawn],
                name=word,
                mode="markers",
                marker={"symbol": symbol, "size": 12, "color": colour},
                hovertemplate=f"%{{y}}<br>{word}, update norm / weight norm <b>%{{x:.3g}}</b><extra></extra>",
                cliponaxis=False,
            )
    radius = safe_radius(reaches)
    if radius is not None:
        figure.add_vline(x=radius, line={"color": theme.INK, "width": 1.4, "dash": "dot"})
    figure.update_xaxes(title_text="update norm / weight norm", rangemode="tozero", nticks=8)
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=names[::-1])
    return figure
