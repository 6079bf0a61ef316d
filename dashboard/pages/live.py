"""Live page: curves and progress of the running stage, or of the stage named in the address."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import gradio as gr

from dashboard import charts, markup
from dashboard.access import Access
from dashboard.formatting import DASH, ago, count, duration, memory, number
from dashboard.markup import STAGE_WORDS, Tile, esc
from dashboard.pages import common
from dashboard.tracker_source import Source
from db import Database, DatabaseError, queries
from db.records import Event, Experiment, Point, Stage, thinned

NAME = "Live"
REFRESH_SECONDS = 2.0
POINTS_KEPT = 800
RECENT = 12
_SHOWN = ("midtrain", "distill")  # kinds of stages that have curves
SILENT_SECONDS = 30.0  # several heartbeats: a stage sends one every 5 s

EXTEND = """async (news) => {
    for (const [place, curves] of Object.entries(news?.panels ?? {})) {
        let figure = null;
        for (let tries = 0; tries < 100 && !figure?.data; tries += 1) {
            figure = document.querySelector(`#${place} .js-plotly-plot`);
            if (!figure?.data) await new Promise((resolve) => setTimeout(resolve, 100));
        }
        for (const [name, [x, y]] of Object.entries(curves)) {
            const index = (figure?.data ?? []).findIndex((trace) => trace.meta === name);
            const last = index < 0 ? Infinity : Math.max(0, ...figure.data[index].x.slice(-1));
            if (x[0] > last) await window.Plotly.extendTraces(figure, {x: [x], y: [y]}, [index]);
        }
    }
}"""
"""Appends new points to the curves in place, so that figures are not rebuilt under the reader's pointer."""

TONES = {"running": "run", "finished": "good", "interrupted": "warn", "failed": "bad"}


@dataclass(frozen=True)
class Panel:
    """Curves that share one figure."""

    title: str
    unit: str
    names: tuple[str, ...]
    log: bool = False


PANELS = (
    Panel("Reverse KL to the teacher", "nats per token", ("reverse_kl", "knowledge_kl", "document_kl"), log=True),
    Panel("Loss", "nats per token", ("loss", "label_loss", "policy_loss", "anchor")),
    Panel("Reward", "mean over responses", ("reward",)),
    Panel("Student's entropy", "nats per token", ("entropy", "knowledge_entropy", "document_entropy", "label_entropy")),
    Panel("Instructions followed, development", "share", ("development/instruction_following",)),
    Panel("Response length", "tokens", ("response_length",)),
    Panel("Completed responses", "share", ("end_rate",)),
    Panel("Importance ratio", "mean over tokens", ("ratio",)),
    Panel("Tokens clipped, capped or dropped", "share", ("clipped", "dropped")),
    Panel("Tokens aligned with the teacher's", "share", ("aligned_one_to_one", "aligned_merged", "aligned_left_out")),
    Panel("Speed", "tokens per second", ("tokens_per_second",)),
    Panel("Time per step", "seconds", ("seconds_generating", "seconds_scoring", "seconds_training")),
    Panel("Router's loss", "experts per token if used evenly", ("router_loss",)),
    Panel("Gradient norm", "before clipping", ("gradient_norm",)),
    Panel("Memory", "GiB", ("memory_gib",)),
    Panel("Learning rate", "", ("lr",)),
    Panel("Tokens", "per step", ("tokens_sampled", "tokens_scored", "tokens_trained")),
)
LABELS = {
    "reverse_kl": "behaviour",
    "knowledge_kl": "knowledge",
    "document_kl": "documents",
    "loss": "all",
    "label_loss": "cross-entropy",
    "policy_loss": "policy gradient",
    "anchor": "KL to base, without its weight",
    "entropy": "behaviour",
    "knowledge_entropy": "knowledge",
    "document_entropy": "documents",
    "label_entropy": "cross-entropy",
    "clipped": "clipped or capped",
    "dropped": "dropped",
    "aligned_one_to_one": "one to one",
    "aligned_merged": "in merged spans",
    "aligned_left_out": "left out",
    "seconds_generating": "generating",
    "seconds_scoring": "scoring",
    "seconds_training": "training",
    "tokens_sampled": "sampled",
    "tokens_scored": "scored",
    "tokens_trained": "trained",
}
PANELS_SHOWN = len(PANELS) + 6  # room for curves without a panel of their own
GEOMETRY_PREFIX = "geometry/"  # the beginning of the curves of another page
HEADLINES = (
    ("reverse_kl", "Reverse KL", "nats per token"),
    ("loss", "Loss", "nats per token"),
    ("entropy", "Entropy", "nats per token"),
    ("response_length", "Response length", "tokens"),
    ("tokens_per_second", "Speed", "tokens per second"),
    ("gradient_norm", "Gradient norm", ""),
)


@dataclass
class Sent:
    """What was sent to a browser: the curves so far, so that a tick reads and sends only new points."""

    key: str = ""
    stage_id: int = 0
    series: dict[str, list[Point]] = field(default_factory=dict)
    attempts: int = 0
    shown: tuple[str, ...] = ()

    @property
    def steps(self) -> dict[str, int]:
        """The newest sent step of each curve; curves differ, since some are logged later in the same step."""
        return {name: points[-1].step for name, points in self.series.items() if points}


def build(page: gr.Blocks, source: Source, _access: Access) -> None:
    """Build the page."""
    header, choice = common.top(NAME, source)
    state = gr.State(None)
    summary = gr.HTML(elem_id="content", elem_classes="summary")
    panels = common.panels(PANELS_SHOWN, "panel", "panels")
    recent = gr.HTML(elem_classes="recent")
    increments = gr.JSON(visible="hidden", elem_classes="increments")
    increments.change(fn=None, inputs=increments, js=EXTEND)

    def refresh(seen: Sent | None, request: gr.Request) -> list[Any]:
        return _refresh(source, seen, request)

    outputs = [header, choice, summary, *panels, recent, increments]
    common.refreshing(page, refresh, state, outputs, REFRESH_SECONDS)


def _refresh(source: Source, seen: Sent | None, request: gr.Request) -> list[Any]:
    try:
        experiment = common.asked_experiment(source, request)
        if experiment is None:
            return _message(seen, common.unknown(source, request))
        database = source.database()
        stage = _asked_stage(database, experiment, request.query_params.get("stage"))
        if stage is None:
            text = f"Experiment {experiment.name} has no stage with curves. Start one, and its curves appear here "
            commands = ["recover cycle --docs ./my-documents", "recover demo"]
            return _message(seen, markup.notice("Nothing has been trained yet", f"{text}automatically:", commands))
        return _show(source, database, experiment, stage, seen)
    except DatabaseError as error:
        return _message(seen, common.trouble(source, error))


def _asked_stage(database: Database, experiment: Experiment, asked: str | None) -> Stage | None:
    """Return the stage named in the address, else the running one, else the last training stage."""
    if (number := common.parse_number(asked)) is not None:
        stage = queries.stage(database, number)
        if stage is not None and stage.experiment_id == experiment.id:
            return stage
    running = queries.running_stage(database, experiment.id)
    if running is not None:
        return running
    return next(iter(queries.find_stages(database, experiment_ids=[experiment.id], kinds=_SHOWN, limit=1)), None)


def _show(source: Source, database: Database, experiment: Experiment, stage: Stage, seen: Sent | None) -> list[Any]:
    """Return the outputs of a tick: the summary is sent every time, figures once; later ticks send new points."""
    same = seen is not None and (seen.stage_id, seen.attempts) == (stage.id, stage.attempts)
    before = seen if same and seen is not None else Sent(stage_id=stage.id, attempts=stage.attempts)
    fresh = queries.series(database, stage.id, since=before.steps, max_points=POINTS_KEPT // 2)
    now = _merged(before, fresh)
    every = _panels(now.series, declared_panels(stage))
    panels, more = every[:PANELS_SHOWN], every[PANELS_SHOWN:]
    now.shown = tuple(panel.title for panel in panels)
    now.key = f"{stage.id}/{stage.status}"
    # Another stage may have no curves yet: those of the one before are hidden.
    rebuilt = now.shown != before.shown or (seen is not None and not same)
    columns, titles, plots = [], [], []
    growing: dict[str, Any] = {}
    for index in range(PANELS_SHOWN):
        panel = panels[index] if index < len(panels) else None
        columns.append(gr.update(visible=panel is not None) if rebuilt else gr.skip())
        title = markup.card_title(panel.title, panel.unit, markup.saves(f"panel-{index}")) if panel else ""
        titles.append(title if rebuilt else gr.skip())
        redraw = panel is not None and (rebuilt or _must_redraw(panel, before, now, fresh))
        if panel is not None and redraw:
            drawn = {name: now.series[name] for name in panel.names if now.series.get(name)}
            plots.append(charts.curve(drawn, LABELS, total=stage.steps_total, log=panel.log))
        else:
            plots.append(gr.skip())
        if panel is not None and not redraw:
            growing |= _growth(f"panel-{index}", panel, fresh)
    listed = before.key != now.key
    return [
        now,
        markup.header(NAME, experiment.name, asking=source.asking) if listed else gr.skip(),
        common.choices(source, experiment) if listed else gr.skip(),
        _summary(stage, now.series, queries.events(database, experiment.id, kind="alarm", stage_id=stage.id), more),
        *columns,
        *titles,
        *plots,
        _recent(queries.stages(database, experiment.id, limit=RECENT), stage, experiment) if listed else gr.skip(),
        {"upto": now.steps, "panels": growing} if growing else gr.skip(),
    ]


def _message(seen: Sent | None, message: str) -> list[Any]:
    """Return a message in place of all other outputs."""
    if seen is not None and seen.key == message:
        return [gr.skip()] * (6 + 3 * PANELS_SHOWN)
    hidden = [gr.update(visible=False)] * PANELS_SHOWN
    untouched = [gr.skip()] * (2 * PANELS_SHOWN)
    return [Sent(key=message), gr.skip(), gr.skip(), message, *hidden, *untouched, "", gr.skip()]


def _merged(seen: Sent, fresh: Mapping[str, list[Point]]) -> Sent:
    """Return the sent points together with the new ones; curves that are too long are thinned in memory."""
    series = {name: seen.series.get(name, []) + points for name, points in fresh.items()}
    for name, points in series.items():
        if len(points) > POINTS_KEPT:
            series[name] = thinned(points, POINTS_KEPT // 2)
    return Sent(seen.key, seen.stage_id, series, seen.attempts, seen.shown)


def _must_redraw(panel: Panel, before: Sent, now: Sent, fresh: Mapping[str, list[Point]]) -> bool:
    """Whether appending is not enough: a curve is new, was thinned, or its new points are ranges."""
    for name in panel.names:
        points = fresh.get(name, [])
        began = bool(points) and not before.series.get(name)
        thinned = len(now.series.get(name, [])) < len(before.series.get(name, []))
        if began or thinned or any(point.low != point.high for point in points):
            return True
    return False


def _growth(place: str, panel: Panel, fresh: Mapping[str, list[Point]]) -> dict[str, Any]:
    """Return the new points of a panel in the form the browser appends."""
    curves = {
        name: [[point.step for point in fresh[name]], [point.value for point in fresh[name]]]
        for name in panel.names
        if fresh.get(name)
    }
    return {place: curves} if curves else {}


def declared_panels(stage: Stage) -> list[Panel]:
    """Return the panels that the stage declares: the loss on its teacher's rows, under the title of its divergence.

    A stage of an earlier version declares none: its divergence is in its settings.
    """
    loss = {str(stage.config.get("divergence")): {"title": "Divergence to the teacher", "unit": "nats per token"}}
    drawn = {name for panel in PANELS for name in panel.names}
    figures = stage.details.get("figures", loss)
    return [
        Panel(str(f["title"]), str(f["unit"]), (name,), log=True) for name, f in figures.items() if name not in drawn
    ]


def _panels(series: Mapping[str, list[Point]], declared: Sequence[Panel] = ()) -> list[Panel]:
    """Return the declared and the known panels that have points, in order, then one for each other curve; those of the
    page Geometry are left out.
    """
    with_points = {name for name, points in series.items() if points and not name.startswith(GEOMETRY_PREFIX)}
    listed = (*declared, *PANELS)
    known = [panel for panel in listed if with_points & set(panel.names)]
    named = {name for panel in listed for name in panel.names}
    others = [Panel(name.replace("_", " "), "", (name,)) for name in sorted(with_points - named)]
    return known + others


def _summary(
    stage: Stage, series: Mapping[str, list[Point]], alarms: Sequence[Event], more: Sequence[Panel] = ()
) -> str:
    """Return the stage's status, progress, remaining time, alarms and newest values; ``more`` are curves not shown."""
    cycle = f", cycle {stage.cycle}" if stage.cycle is not None else ""
    title = f"{STAGE_WORDS[stage.kind]}{cycle}"
    only = f", also of those that are not drawn here ({', '.join(panel.title for panel in more)})" if more else ""
    parts = [f"stage {stage.id}", f"started {ago(stage.started_at)}"]
    if stage.attempts > 1:
        parts.append(f"attempt {stage.attempts}")
    if stage.seed is not None:
        parts.append(f"seed {stage.seed}")
    return (
        markup.hero(esc(", ".join(parts)), f"{esc(title)} {markup.chip(stage.status, TONES[stage.status])}")
        + markup.progress(stage.steps_done, stage.steps_total if stage.done else None, _progress(stage, series))
        + markup.numbers(f"Every point of every curve{only}", f"download/stage/{stage.id}{{}}")
        + _advice(stage)
        + _alarms(stage, alarms)
        + markup.tiles(_tiles(stage, series))
    )


def _progress(stage: Stage, series: Mapping[str, list[Point]]) -> str:
    if stage.status != "running":
        stopped_early = stage.status == "finished" and stage.stopped not in ("", "finished")
        why = f", {stage.stopped}" if stopped_early else ""
        took = duration(stage.wall_seconds)
        return f"{stage.done} in {took}{why}" if stage.done else f"ended after {took}{why}"
    rest = time_left(stage, series)
    return f"{stage.done}, {duration(common.worked(stage))} so far" + (f", {duration(rest)} left" if rest else "")


def time_left(stage: Stage, series: Mapping[str, list[Point]]) -> float | None:
    """Return the seconds until the last step at the recent pace, or None if that is unknown."""
    if not stage.steps_total or stage.steps_done >= stage.steps_total:
        return None
    recent = max(series.values(), key=len, default=[])[-30:]
    if len(recent) < 2 or recent[-1].step == recent[0].step:
        return None
    # The median ignores an interruption between two points.
    pace = median((after.time - before.time) / (after.step - before.step) for before, after in pairwise(recent))
    since = min(max(0.0, time.time() - recent[-1].time), pace)  # the clock of a stage on another machine may differ
    return max(0.0, (stage.steps_total - recent[-1].step) * pace - since)


def _advice(stage: Stage) -> str:
    """Return what to do about an interrupted or failed stage."""
    if stage.status == "interrupted":
        text = "Its process ended. Resume it from its last saved state:"
        return markup.notice("Interrupted", text, ["recover resume"], tone="warn")
    if stage.status == "failed":
        return markup.notice("Failed", stage.error or "No reason was recorded.", ["recover resume"], tone="bad")
    return ""


def _alarms(stage: Stage, alarms: Sequence[Event]) -> str:
    """Return notices of signals out of range and missing heartbeats; ``alarms`` are the stage's, newest first."""
    last = {str(event.data.get("signal")): event for event in reversed(alarms)}
    now = [f"{event.message}, since step {event.data.get('step')}" for event in last.values() if event.level != "info"]
    over = [event for event in last.values() if event.level == "info"]
    parts = []
    if now:
        text = "; ".join(now) + ". A persistent violation stops the stage at its last good state."
        parts.append(markup.notice("Alarm", text, tone="bad" if stage.status == "running" else "warn"))
    elif over:
        text = "; ".join(f"{event.message} (step {event.data.get('step')})" for event in over) + "."
        parts.append(markup.notice("Alarm ended", text))
    silent = stage.silent_seconds
    if stage.status == "running" and silent > SILENT_SECONDS:
        text = (
            f"The last heartbeat was {duration(silent)} ago. If the process is gone, resume from the last saved state:"
        )
        parts.append(markup.notice("No heartbeat", text, ["recover resume"], tone="warn"))
    return "".join(parts)


def _tiles(stage: Stage, series: Mapping[str, list[Point]]) -> list[Tile]:
    """Return tiles with the newest headline values and their first values."""
    entries = []
    for name, title, unit in HEADLINES:
        points = [point for point in series.get(name, []) if point.value is not None]
        if points:
            note = f"{unit}, from {number(points[0].value)}".lstrip(", ")
            entries.append(Tile(title, number(points[-1].value), note))
    if stage.peak_memory_bytes:
        entries.append(Tile("Peak memory", memory(stage.peak_memory_bytes)))
    if stage.tokens_trained or stage.tokens_sampled:
        note = f"{count(stage.tokens_sampled)} sampled, {count(stage.tokens_scored)} scored"
        entries.append(Tile("Tokens trained", count(stage.tokens_trained), note if stage.tokens_sampled else ""))
    return entries[:6]


def _recent(stages: list[Stage], shown: Stage, experiment: Experiment) -> str:
    """Return a table of the last stages with links to their curves."""
    columns = ("Stage", "Cycle", "Status", "Steps", "Time", "Tokens trained", "Peak memory", "Started")
    rows = [
        [
            f'<a href="{esc(common.live_address(experiment.name, stage))}"{markup.current(stage.id == shown.id)}>'
            f"{esc(STAGE_WORDS[stage.kind])}</a>",
            DASH if stage.cycle is None else str(stage.cycle),
            markup.chip(stage.status, TONES[stage.status]),
            f"{stage.steps:,}" if stage.steps else DASH,
            esc(duration(stage.wall_seconds)),
            count(stage.tokens_trained) if stage.tokens_trained else DASH,
            common.peak_memory(stage),
            esc(ago(stage.started_at)),
        ]
        for stage in stages
    ]
    table = markup.table(columns, rows, caption="The last stages, newest first")
    return f'<div class="card">{markup.card_title("Recent stages", "Choose one to see its curves.")}{table}</div>'
