"""Geometry page: per-token gradients of a step, by method, and the norms of weight updates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from dashboard import markup
from dashboard.access import Access
from dashboard.charts import HIGH, Curve, Figure, blank, curve_keys, curves, plain, style
from dashboard.formatting import DASH, number, percent
from dashboard.markup import esc
from dashboard.pages import common
from dashboard.pages.common import Named
from dashboard.tracker_source import Source
from db import Database, DatabaseError, queries
from db.records import Experiment, Point, Stage

NAME = "Geometry"
PLANES = 6
STAGES_AT_FIRST = 3
STAGES = 60
NAMED = 6
"""Number of stages without curves that are named."""
DENSITY = "geometry/density"
LARGEST = "geometry/concentration"
POINTS = 300
DECADES = 4
"""Powers of ten below the largest gradient that a logarithmic plane resolves."""


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
class Measure:
    """A curve over the steps, with its reference under random signs."""

    metric: str
    title: str
    note: str
    null: str | None = None
    log: bool = False


@dataclass(frozen=True)
class StageData:
    """A stage with all data that the page shows."""

    named: Named
    label: str
    look: tuple[int, int]
    sample: Sample
    series: Mapping[str, Sequence[Point]]

    @property
    def title(self) -> str:
        """Its label, with the method if that is not its name."""
        return self.label if self.named.method == self.named.name else f"{self.label} · {self.named.method}"

    @property
    def last_step(self) -> int | None:
        """The last measured step."""
        return max((points[-1].step for points in self.series.values() if points), default=None)


MEASURES = (
    Measure(DENSITY, "Density", "1 if all token gradients are equally long, 1/n if one dominates", log=True),
    Measure("geometry/bias", "Bias", "norm of the mean / mean norm; thin line: random signs", "geometry/bias_null"),
    Measure("geometry/top_1_percent", "Concentration", "share of the top 1 percent of the tokens"),
    Measure("geometry/shared", "Shared within a response", "share explained by one vector per response"),
)
PLANE_KEYS = (
    ("circle", markup.SERIES[0], "token"),
    ("diamond", "currentColor", "mean"),
    ("ring", markup.BASE, "norm of the mean under random signs"),
)
REACH_KEYS = (
    ("circle", markup.KNOWLEDGE, "stayed stable"),
    ("triangle", markup.MIDTRAINED, "collapsed, restored to its last good state"),
)
Reach = tuple[str, float, bool]
"""A stage's label, the relative norm of its weight update, and whether it stayed stable."""


def build(page: gr.Blocks, source: Source, _access: Access) -> None:
    """Build the page: heading, a plane for each stage, the curves, and a table."""
    header, choice = common.top(NAME, source)
    summary = gr.HTML(elem_id="content", elem_classes="summary")
    planes = common.panels(PLANES, "plane", "panels planes")
    curves = common.panels(len(MEASURES), "measure", "panels measures")
    with gr.Column(elem_classes="card", visible=False) as reach:
        reach_title = gr.HTML()
        reach_figure = gr.Plot(show_label=False, container=False, elem_id="reach")
    table = gr.HTML(elem_classes="evidence")

    def show(request: gr.Request) -> list[Any]:
        return _show(source, request)

    outputs = [header, choice, summary, *planes, *curves, reach, reach_title, reach_figure, table]
    common.words_first(page, show, outputs)


def _card_outputs(panels: Sequence[tuple[str, Any]], count: int) -> list[Any]:
    """Return the outputs of ``count`` cards: those of (title, figure), then hidden ones."""
    cards = [*panels, *[("", None)] * (count - len(panels))]
    visible = [gr.update(visible=at < len(panels)) for at in range(count)]
    return [*visible, *(title for title, _ in cards), *(figure for _, figure in cards)]


def _message(message: str, header: Any = None, choice: Any = None) -> list[Any]:
    """Return a message in place of all other outputs."""
    hidden = [*_card_outputs([], PLANES), *_card_outputs([], len(MEASURES)), *_reach([]), ""]
    return [header or gr.skip(), choice or gr.skip(), message, *hidden]


def _show(source: Source, request: gr.Request) -> list[Any]:
    try:
        experiment = common.asked_experiment(source, request)
        if experiment is None:
            return _message(common.unknown(source, request))
        header, choice = markup.header(NAME, experiment.name, asking=source.asking), common.choices(source, experiment)
        database = source.database()
        listed = queries.find_stages(database, experiment_ids=[experiment.id], metric=DENSITY, limit=STAGES)
        wanted = common.asked_stages(request, PLANES)
        chosen = common.by_id(database, wanted) if wanted else list(reversed(listed[:STAGES_AT_FIRST]))
        if not chosen:
            return _message(_no_stages(experiment, wanted), header, choice)
        linear = request.query_params.get("scale") == "linear"
        return [header, choice, *_page(database, experiment, listed, chosen, linear)]
    except DatabaseError as error:
        return _message(common.trouble(source, error))


def _no_stages(experiment: Experiment, wanted: Sequence[int]) -> str:
    if wanted:
        text = f"There is no stage {', '.join(map(str, wanted))}. Remove the stages from the address to see the newest."
        return markup.notice("No such stage", text)
    return markup.notice(
        "No geometry measured",
        f"Experiment {experiment.name} has no distillation with measured gradients. By default they are measured "
        "at every tenth step:",
        ["recover distill --geometry-every 10"],
    )


def _page(
    database: Database, experiment: Experiment, listed: Sequence[Stage], chosen: Sequence[Stage], linear: bool
) -> list[Any]:
    """Return all outputs below the header."""
    shown = _read_stages(database, common.named(database, chosen))
    others = [stage for stage in listed if stage.id not in {one.id for one in chosen}]
    unmeasured = queries.find_stages(
        database, experiment_ids=[experiment.id], kinds=("distill",), without=DENSITY, limit=STAGES
    )
    scale = Scale(max(one.sample.reach for one in shown), logarithmic=not linear)
    named = [one.named for one in shown]
    moved = {one.id: one for one in [*listed, *unmeasured, *chosen] if _moved(one)}
    return [
        _heading(named, common.named(database, unmeasured))
        + _choice(experiment, named, common.named(database, others), linear),
        *_card_outputs(_planes(shown, scale), PLANES),
        *_card_outputs(_curves(shown), len(MEASURES)),
        *_reach(common.named(database, [moved[number] for number in sorted(moved)])),
        _table(shown),
    ]


def _read_stages(database: Database, named: Sequence[Named]) -> list[StageData]:
    wanted = [name for measure in MEASURES for name in (measure.metric, measure.null) if name] + [LARGEST]
    return [
        StageData(one, label, look, _sample(one), queries.series(database, one.stage.id, wanted, max_points=POINTS))
        for one, label, look in zip(named, common.labels(named), common.looks(named), strict=True)
    ]


def _sample(one: Named) -> Sample:
    """Return the sample that a stage stored; invalid points are dropped."""
    kept = one.stage.details.get("geometry") or []
    points = [tuple(point) for point in kept if isinstance(point, list) and len(point) == 3]
    return Sample(tuple((x, y, row) for x, y, row in points if _finite(x) and _finite(y) and isinstance(row, int)))


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _heading(shown: Sequence[Named], unmeasured: Sequence[Named]) -> str:
    """Return the heading; below it, which stages have no curves, and the setting that records them."""
    methods = list(dict.fromkeys(one.method for one in shown))
    words = f"Token gradients: {' against '.join(methods)}" if len(methods) > 1 else "Token gradients of a step"
    under = (
        "Each token of a step contributes a gradient. Methods differ in how evenly the norms are distributed, and in "
        "how well the directions agree."
    )
    why = (
        "Only distillations record these curves: at their first step, then every --geometry-every steps, with 0 never."
    )
    names = [
        f"{name} (--geometry-every 0)" if one.stage.config.get("geometry_every") == 0 else name
        for one, name in zip(unmeasured, common.labels(unmeasured), strict=True)
    ]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    why += f" Without any: {', '.join(names[:NAMED])}{more}." if names else ""
    return markup.hero(esc(under), esc(words), below=f'<p class="eyebrow">{esc(why)}</p>')


def _choice(experiment: Experiment, shown: Sequence[Named], others: Sequence[Named], linear: bool) -> str:
    """Return links that add or remove stages, and change the scale."""
    numbers = [one.stage.id for one in shown]
    names = common.labels([*shown, *others])
    links = []
    for one, name in zip([*shown, *others], names, strict=True):
        here = one.stage.id in numbers
        kept = [n for n in numbers if n != one.stage.id] if here else [*numbers, one.stage.id]
        if not kept or len(kept) > PLANES:
            continue
        word = "Remove" if here else "Add"
        links.append(
            f'<a href="{esc(_address(experiment, kept, linear))}"{markup.current(here)} title="{word} {esc(name)}">'
            f'<span aria-hidden="true">{"✓" if here else "+"}</span><span class="hidden">{word}</span> {esc(name)}'
            f"{'' if one.name == one.method else f' · {esc(one.method)}'}</a>"
        )
    scales = [
        (_address(experiment, numbers, one), word, one == linear)
        for one, word in ((False, "logarithmic"), (True, "linear"))
    ]
    stages = markup.tab_row("Stages", "".join(links), labelled=True)
    return stages + markup.tabs("Distance", scales, labelled=True)


def _address(experiment: Experiment, numbers: Sequence[int], linear: bool) -> str:
    scale = "linear" if linear else ""
    return common.address("geometry", experiment=experiment.name, stage=list(numbers), scale=scale)


def _planes(shown: Sequence[StageData], scale: Scale) -> list[tuple[str, Any]]:
    """Return a card for each stage that stored a sample."""
    panels: list[tuple[str, Any]] = []
    for one in shown:
        if not one.sample.reach:
            continue
        colour, _ = style(one.look)
        where = f", step {one.last_step:,}" if one.last_step is not None else ""
        title = markup.card_title(one.title, f"{len(one.sample.points):,} tokens{where}")
        keys = markup.keys((shape, colour if shape == "circle" else other, word) for shape, other, word in PLANE_KEYS)
        saves = markup.saves(f"plane-{len(panels)}")
        panels.append((title + keys + saves, plane_figure(one.sample, scale, colour)))
    return panels


def _curves(shown: Sequence[StageData]) -> list[tuple[str, Any]]:
    """Return a card for each measure that any stage has."""
    panels: list[tuple[str, Any]] = []
    for measure in MEASURES:
        drawn: list[Curve] = []
        for one in shown:
            points, null = one.series.get(measure.metric, ()), one.series.get(measure.null or "", ())
            if points:
                drawn.append(Curve(one.label, one.look, points))
            if null:
                drawn.append(Curve(f"{one.label}, random signs", one.look, null, faint=True))
        if drawn:
            figure = curves(drawn, height=250, log=measure.log)
            keys = curve_keys(drawn) + markup.saves(f"measure-{len(panels)}")
            panels.append((markup.card_title(measure.title, measure.note, keys), figure))
    return panels


def _moved(stage: Stage) -> float | None:
    """Return the norm of a stage's weight update relative to the norm of the weights, or None."""
    moved = stage.details.get("moved")
    value = moved.get("relative") if isinstance(moved, Mapping) else None
    return float(value) if isinstance(value, int | float) and _finite(value) else None


def _reach(named: Sequence[Named]) -> list[Any]:
    """Return the card about weight updates: visibility, title, figure."""
    reaches = [
        (label, _moved(one.stage) or 0.0, not one.stage.stopped.startswith("collapse"))
        for label, one in zip(common.labels(named), named, strict=True)
    ]
    if not reaches:
        return [gr.update(visible=False), "", None]
    radius = max((length for _, length, stable in reaches if stable), default=None)
    known = (
        f"The safe radius (dotted) is the largest update among those that stayed stable: {number(radius)}."
        if radius is not None
        else "None of them stayed stable, so there is no safe radius yet."
    )
    note = f"Norm of each stage's total update, relative to the norm of the weights. {known}"
    keys = markup.keys(REACH_KEYS) + markup.saves("reach")
    title = markup.card_title("Weight updates and the safe radius", note, keys)
    return [gr.update(visible=True), title, reach_figure(reaches, radius)]


def _table(shown: Sequence[StageData]) -> str:
    """Return a table of the last measured step of each stage."""
    measured = ("Density", "Bias (random signs)", "Top 1 percent", "Largest over median", "Shared")
    columns = ("Stage", "Method", "Last measured", *measured, "Mean of the sample (random signs)")
    note = (
        "Over all tokens of the step. The last column describes the sample in the planes, which a stage stores when it "
        "ends: the gradient of the loss with respect to the hidden state, projected onto two random directions and "
        "scaled to preserve lengths on average. Random signs: the same figure if each gradient had a random sign."
    )
    rows = [_row(one) for one in shown]
    return markup.table_card("The last measured step", note, columns, rows, "Geometry by stage")


def _row(one: StageData) -> list[str]:
    last = {metric: points[-1].value for metric, points in one.series.items() if points}
    length, chance = number(math.hypot(*one.sample.mean)), number(one.sample.chance)
    mean = f"{length} ({chance}) <small>n = {len(one.sample.points):,}</small>"
    return [
        f'<a href="{esc(common.live_address(one.named.experiment, one.named.stage))}">{esc(one.label)}</a>',
        esc(one.named.method),
        f"step {one.last_step:,}" if one.last_step is not None else DASH,
        number(last.get(DENSITY)),
        f"<b>{number(last.get('geometry/bias'))}</b> ({number(last.get('geometry/bias_null'))})",
        percent(last.get("geometry/top_1_percent")),
        number(last.get(LARGEST)),
        percent(last.get("geometry/shared")),
        mean if one.sample.points else "none stored",
    ]


# --- figures of the page -------------------------------------------------------------------------------------


def plane_figure(sample: Sample, scale: Scale, colour: str) -> Figure:
    """Draw each token's gradient as a point, their mean, and a circle at the mean's length for random signs."""
    figure = blank(340)
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
    _draw_mean(figure, sample, scale)
    edge = 1.06 * scale.radius(scale.reach)
    hidden = {"visible": False, "range": [-edge, edge], "constrain": "domain"}
    figure.update_xaxes(**hidden)
    figure.update_yaxes(**hidden, scaleanchor="x")
    return figure


def _draw_mean(figure: Figure, sample: Sample, scale: Scale) -> None:
    chance, (x, y) = scale.radius(sample.chance), scale.place(*sample.mean)
    turns = [2 * math.pi * step / 72 for step in range(73)]
    figure.add_scatter(
        x=[chance * math.cos(turn) for turn in turns],
        y=[chance * math.sin(turn) for turn in turns],
        name="chance",
        mode="lines",
        line={"color": markup.BASE, "width": 1.8, "dash": "dash"},
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=[x],
        y=[y],
        name="mean",
        mode="markers",
        marker={"symbol": "diamond", "size": 14, "color": markup.INK, "line": {"width": 1.2, "color": "#ffffff"}},
        customdata=[[math.hypot(*sample.mean), sample.chance]],
        hovertemplate="mean <b>%{customdata[0]:.3g}</b><br>random signs %{customdata[1]:.3g}<extra></extra>",
    )


def _rings(figure: Figure, scale: Scale) -> None:
    """Draw circles at round lengths, each labelled with its length at the top."""
    rings = [(ring, scale.radius(ring)) for ring in scale.rings]
    line = {"color": markup.GRID, "width": 1}
    font = {"size": 11, "color": markup.INK}
    label = {"showarrow": False, "bgcolor": "#ffffff", "borderpad": 1, "font": font}
    figure.update_layout(
        shapes=[
            {"type": "circle", "x0": -at, "x1": at, "y0": -at, "y1": at, "line": line, "layer": "below"}
            for _, at in rings
        ],
        annotations=[{"x": 0, "y": at, "text": f"{ring:g}"} | label for ring, at in rings],
        margin={"l": 4, "r": 4, "t": 4, "b": 4},
    )


def reach_figure(reaches: Sequence[Reach], radius: float | None) -> Figure:
    """Draw each stage's update norm on its own row, in the given order, with the safe radius."""
    figure = blank(max(140, 60 + 24 * len(reaches)))
    names = [plain(label) for label, _, _ in reaches]
    for stable, colour, symbol, word in (
        (True, markup.KNOWLEDGE, "circle", "stayed stable"),
        (False, markup.MIDTRAINED, "triangle-down", "collapsed"),
    ):
        drawn = [(name, length) for name, (_, length, kept) in zip(names, reaches, strict=True) if kept == stable]
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
    if radius is not None:
        line = {"color": markup.INK, "width": 1.4, "dash": "dot"}
        figure.add_shape(type="line", **HIGH, x0=radius, x1=radius, line=line)
    figure.update_xaxes(title={"text": "update norm / weight norm"}, rangemode="tozero", nticks=8)
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=names[::-1])
    return figure
