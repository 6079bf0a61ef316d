"""Figures that compare stages: equal axes, preserved directions, complete points."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dashboard import charts, markup
from dashboard.charts import Curve
from dashboard.pages.geometry import Sample, Scale, plane_figure
from db.records import Point
from tests.dashboard.conftest import checked


def points(*values: float | None) -> list[Point]:
    return [Point(step, value, value, value, 0.0) for step, value in enumerate(values, 1)]


def curves(*entries: Any, **look: Any) -> Any:
    return checked(charts.curves(*entries, **look))


def test_curves_differ_by_more_than_colour() -> None:
    figure = curves([Curve(f"stage {k}", (k, k), points(1.0, 0.5)) for k in range(12)])
    looks = {(trace.line.color, trace.line.dash) for trace in figure.data}
    assert len(looks) == 12
    assert [list(trace.y) for trace in figure.data] == [[1.0, 0.5]] * 12


def test_a_stage_without_the_curve_keeps_its_look_for_others() -> None:
    figure = curves([Curve("second", (1, 1), points(1.0))])
    assert (figure.data[0].line.color, figure.data[0].line.dash) == (markup.SERIES[1], "dash")


def test_what_a_curve_is_held_against_is_faint() -> None:
    own, null = curves([Curve("a", (0, 0), points(1.0)), Curve("a, null", (0, 0), points(0.5), faint=True)]).data
    assert null.line.width < own.line.width and null.line.color == own.line.color and null.line.dash != own.line.dash


def test_a_logarithm_is_taken_of_positive_values_only() -> None:
    assert curves([Curve("a", (0, 0), points(1.0, None, 0.1))], log=True).layout.yaxis.type == "log"
    assert curves([Curve("a", (0, 0), points(1.0, 0.0))], log=True).layout.yaxis.type is None


def test_names_cannot_be_templates() -> None:
    trace = curves([Curve("<b>%{x}", (0, 0), points(1.0))]).data[0]
    assert "&lt;b>% {x}" in trace.hovertemplate and "<b>%{x}" not in trace.name


def test_a_sample_has_a_mean_and_what_chance_would_make_of_it() -> None:
    same = Sample(((3.0, 4.0, 0),) * 4)
    assert (same.mean, same.reach) == ((3.0, 4.0), 5.0)
    assert same.chance == pytest.approx(5.0 / 2)  # n equal lengths: with random signs the mean is |g| / sqrt(n)
    against = Sample(((1.0, 0.0, 0), (-1.0, 0.0, 1)))
    assert against.mean == (0.0, 0.0) and against.chance == pytest.approx(1 / math.sqrt(2))


@pytest.mark.parametrize("logarithmic", [True, False])
@pytest.mark.parametrize("reach", [3e-7, 0.1, 0.3, 1.0, 4200.0])
def test_a_scale_keeps_directions_and_order(reach: float, logarithmic: bool) -> None:
    scale = Scale(reach, logarithmic)
    lengths = [0.0, reach / 1e5, reach / 1e3, reach / 7, reach]
    radii = [scale.radius(length) for length in lengths]
    assert radii == sorted(radii) and radii[0] == 0.0
    x, y = scale.place(-0.6 * reach, 0.8 * reach)
    assert math.atan2(y, x) == pytest.approx(math.atan2(0.8, -0.6))
    assert math.hypot(x, y) == pytest.approx(scale.radius(reach))
    assert scale.place(0.0, 0.0) == (0.0, 0.0)
    assert 1 <= len(scale.rings) <= 5
    assert all(0 < ring <= reach * (1 + 1e-9) for ring in scale.rings)


def test_planes_have_equal_axes_and_every_token() -> None:
    small, large = Sample(((0.1, 0.0, 0), (0.0, 0.2, 3))), Sample(((2.0, 0.0, 0),))
    scale = Scale(large.reach)
    first, second = (checked(plane_figure(sample, scale, "#123456")) for sample in (small, large))
    assert first.layout.xaxis.range == second.layout.xaxis.range == first.layout.yaxis.range
    assert first.layout.yaxis.scaleanchor == "x"
    tokens = next(trace for trace in first.data if trace.name == "token")
    assert [list(row) for row in tokens.customdata] == [[1, 0.1], [4, 0.2]]
    mean = next(trace for trace in first.data if trace.name == "mean")
    assert math.hypot(mean.x[0], mean.y[0]) == pytest.approx(scale.radius(math.hypot(0.05, 0.1)))
    assert mean.marker.symbol != tokens.marker.symbol
