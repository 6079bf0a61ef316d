"""Compare page: stages of any experiments on equal axes, with differing settings, costs and final scores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from dashboard import markup
from dashboard.access import Access
from dashboard.charts import Curve, curve_keys, curves
from dashboard.formatting import DASH, duration, interval, value
from dashboard.markup import esc
from dashboard.pages import common, live
from dashboard.pages.common import Named
from dashboard.tracker_source import Source
from db import Database, DatabaseError, MissingDatabaseError, queries
from db.records import Scores, Stage, kind_of

NAME = "Compare"
KINDS = ("midtrain", "distill")
CHOSEN = 12
STAGES_AT_FIRST = 4
LISTED = 120
POINTS = 400
LONGEST = 60
METRICS = ("reverse_kl", "loss")
SUITES = (
    ("Instruction following", "instruction_following", "prompts with all instructions followed"),
    ("Domain knowledge", "domain_knowledge", "questions about the newest corpus"),
    ("Stored knowledge", "domain_knowledge_stored", "facts of the newest corpus, by the likelihood of its own text"),
    ("General knowledge", "general", "general-knowledge questions of the model's folder"),
)
OTHERS = 6
_SEED = re.compile(r"/seed-\d+$")


@dataclass(frozen=True)
class Form:
    """State of the form: ``listed`` are the stages of ``group`` that match ``search``, ``chosen`` those shown."""

    group: str
    search: str
    metric: str
    chosen: tuple[Named, ...]
    listed: tuple[Named, ...]


def build(page: gr.Blocks, source: Source, _access: Access) -> None:
    """Build the page. The choice of stages is a form whose state is in the address."""
    header, _ = common.top(NAME, source)
    summary = gr.HTML(elem_id="content", elem_classes="summary")
    with gr.Column(elem_classes="card", visible=False) as card:
        title = gr.HTML()
        plot = gr.Plot(show_label=False, container=False, elem_id="compared")
    tables = gr.HTML(elem_classes="evidence")

    def show(request: gr.Request) -> list[Any]:
        return _show(source, request)

    outputs = [header, summary, card, title, plot, tables]
    common.words_first(page, show, outputs)


def _show(source: Source, request: gr.Request) -> list[Any]:
    try:
        database = source.database()
        group = request.query_params.get("experiment") or _newest_group(database)
        if group is None:
            return _message(_no_stages(source))
        form = _form(database, group, request)
        if not form.chosen:
            return _message(_heading(form) + _choice(database, form, ()) + _no_choice(form))
        names = common.labels(form.chosen)
        metrics = sorted({name for one in form.chosen for name in queries.metric_names(database, one.stage.id)})
        metric = next((name for name in (form.metric, *METRICS, *metrics) if name in metrics), "")
        drawn = _curves(database, form, names, metric)
        title, figure = _figure(metric, drawn, names, _panels(form))
        none = f"None of the {len(form.chosen)} chosen stages has logged a metric yet."
        missing = "" if drawn else markup.notice("No curves", none)
        return [
            markup.header(NAME, form.chosen[0].experiment, asking=source.asking),
            _heading(form) + _choice(database, form, metrics, metric),
            gr.update(visible=bool(drawn)),
            title,
            figure,
            missing + _tables(database, form.chosen, names),
        ]
    except DatabaseError as error:
        return _message(common.trouble(source, error))


def _message(message: str) -> list[Any]:
    """Return a message in place of all other outputs."""
    return [gr.skip(), message, gr.update(visible=False), "", None, ""]


def _newest_group(database: Database) -> str | None:
    """Return the experiment trained last, without the seed: the seeds of a comparison form one group."""
    stages = queries.find_stages(database, kinds=KINDS, limit=1)
    experiment = queries.experiment(database, stages[0].experiment_id) if stages else None
    return _SEED.sub("", experiment.name) if experiment is not None else None


def _no_stages(source: Source) -> str:
    if not queries.experiments(source.database(), limit=1):
        return common.trouble(source, MissingDatabaseError())
    return markup.notice(
        "Nothing to compare yet",
        "No training stage has been recorded. Compare methods over several seeds, or run a cycle:",
        ["recover compare opd sft --docs ./my-documents", "recover cycle --docs ./my-documents"],
    )


def _no_choice(form: Form) -> str:
    if form.listed:
        return markup.notice("No stage is chosen", "Select the stages to compare, then press Compare.")
    match = f" whose name contains {form.search!r}" if form.search else ""
    return markup.notice(
        "No such stage", f"{form.group} has no training stage{match}. Choose another experiment above."
    )


# --- the request --------------------------------------------------------------------------------------------


def _form(database: Database, group: str, request: gr.Request) -> Form:
    search = (request.query_params.get("search") or "").strip()[:100]
    experiments = queries.experiments(database, prefix=group, limit=1000)
    ids = [one.id for one in experiments if one.name == group or _SEED.sub("", one.name) == group]
    listed = queries.find_stages(database, experiment_ids=ids, kinds=KINDS, search=search, limit=LISTED)
    wanted = common.asked_stages(request, CHOSEN)
    # At first the newest distillations; without any, the newest training stages.
    recoveries = [stage for stage in listed if stage.kind == "distill"] or listed
    chosen = common.by_id(database, wanted) if wanted else list(reversed(recoveries[:STAGES_AT_FIRST]))
    known = {one.stage.id: one for one in common.named(database, [*chosen, *listed])}
    return Form(
        group,
        search,
        request.query_params.get("metric") or "",
        tuple(known[stage.id] for stage in chosen),
        tuple(known[stage.id] for stage in reversed(listed)),
    )


def _curves(database: Database, form: Form, names: Sequence[str], metric: str) -> list[Curve]:
    """Return a curve for each stage that has this metric; its style depends on its position among the chosen ones."""
    curves = (queries.series(database, one.stage.id, [metric], max_points=POINTS) for one in form.chosen)
    points, looks = [one.get(metric, []) for one in curves], common.looks(form.chosen)
    return [Curve(name, look, curve) for name, look, curve in zip(names, looks, points, strict=True) if curve]


# --- heading and form ----------------------------------------------------------------------------------------


def _heading(form: Form) -> str:
    words = common.numbered(len(form.chosen), "stage", "stages side by side") if form.chosen else "Compare stages"
    experiments = sorted({one.experiment for one in form.chosen}) or [form.group]
    under = ", ".join(experiments[:4]) + (f" and {len(experiments) - 4} more" if len(experiments) > 4 else "")
    return markup.hero(esc(under), esc(words))


def _choice(database: Database, form: Form, metrics: Sequence[str], metric: str = "") -> str:
    """Return the form: experiment, curve, search and stages."""
    panels = _panels(form)
    groups = dict.fromkeys(_SEED.sub("", name) for name in queries.experiment_names(database))
    fields = (
        markup.select("experiment", "Experiment", {name: name for name in [form.group, *groups]}, form.group)
        + (markup.select("metric", "Curve", {m: _curve_name(m, panels)[0] for m in metrics}, metric) if metrics else "")
        + f'<label>Stages named<input type="search" name="search" value="{markup.exact(form.search)}" '
        'maxlength="100"></label>'
    )
    return (
        f'<form class="filters choosing" method="get" action="compare">{fields}<button type="submit">Compare</button>'
        f"{_boxes(form)}</form>"
    )


def _boxes(form: Form) -> str:
    """Return a checkbox for each listed or chosen stage, grouped by experiment."""
    checked = {one.stage.id for one in form.chosen}
    entries = list({one.stage.id: one for one in [*form.chosen, *form.listed]}.values())
    groups: dict[str, list[Named]] = {}
    for one in sorted(entries, key=lambda one: one.stage.id):
        groups.setdefault(one.experiment, []).append(one)
    fieldsets = ""
    for name, group in sorted(groups.items()):
        fieldsets += f"<fieldset><legend>{esc(name)}</legend>"
        for one in group:
            here = " checked" if one.stage.id in checked else ""
            done = f"<small>{esc(f'{one.method}, {one.stage.steps_done:,} steps')}</small>"
            fieldsets += f'<label class="box"><input type="checkbox" name="stage" value="{one.stage.id}"{here}>'
            fieldsets += f"<span>{esc(one.name)} {done}</span></label>"
        fieldsets += "</fieldset>"
    newest = f" Only the newest {LISTED} are listed: search by name." if len(form.listed) == LISTED else ""
    summary = f"Choose stages ({len(checked)} of {len(entries)} shown, at most {CHOSEN}).{newest}"
    opened = "" if checked else " open"
    return f"<details{opened}><summary>{esc(summary)}</summary>{fieldsets}</details>"


def _panels(form: Form) -> list[live.Panel]:
    """Return the live page's panels, and those that the chosen stages declare."""
    return [*(panel for one in form.chosen for panel in live.declared_panels(one.stage)), *live.PANELS]


def _curve_name(metric: str, panels: Sequence[live.Panel]) -> tuple[str, str]:
    """Return a curve's title and unit, as on the live page."""
    for panel in panels:
        if metric in panel.names:
            own = live.LABELS.get(metric, "") if len(panel.names) > 1 else ""
            return (f"{panel.title}, {own}" if own else panel.title), panel.unit
    return metric.replace("_", " "), ""


def _figure(metric: str, drawn: Sequence[Curve], names: Sequence[str], panels: Sequence[live.Panel]) -> tuple[str, Any]:
    if not drawn:
        return "", None
    title, unit = _curve_name(metric, panels)
    missing = len(names) - len(drawn)
    note = f"{len(drawn)} of {len(names)} stages have this curve. " if missing else ""
    note += "Bands: range of averaged neighbouring steps."
    log = any(metric in panel.names and panel.log for panel in panels)
    keys = curve_keys(drawn) + markup.saves("compared")
    return markup.card_title(title, note, keys), curves(drawn, unit=unit, log=log)


# --- tables --------------------------------------------------------------------------------------------------


def _tables(database: Database, chosen: Sequence[Named], names: Sequence[str]) -> str:
    made = [one.checkpoint.id for one in chosen if one.checkpoint is not None]
    scores = queries.scores_of(database, made)
    by_stage = [scores.get(one.checkpoint.id) if one.checkpoint is not None else None for one in chosen]
    tokens = ("Sampled", "Scored", "Trained")
    columns = ("Stage", "Ended", "Steps", *tokens, "FLOPs", "Time", "Peak memory", "Seed", "Points")
    rows = [_cost(one.stage, name, one.experiment) for one, name in zip(chosen, names, strict=True)]
    note = "Tokens sampled, scored by teachers and trained on; FLOPs: 2N per token read, 6N per token trained on."
    return (
        _scores(chosen, names, by_stage)
        + markup.table_card("Cost", note, columns, rows, "Cost by stage")
        + _settings(chosen, names)
    )


def _scores(chosen: Sequence[Named], names: Sequence[str], scores: Sequence[Scores | None]) -> str:
    asked = [suite for suite in SUITES if any(getattr(one, suite[1], None) for one in scores)]
    others = sorted({name for one in scores if one is not None for name in one.others})[:OTHERS]
    if not asked and not others:
        return markup.card("Final scores", "None of the checkpoints that these stages made has been evaluated.", "")
    rows = []
    for named, name, one in zip(chosen, names, scores, strict=True):
        values = [(suite, getattr(one, suite, None)) for _, suite, _ in asked]
        values += [(other, one.others.get(other) if one else None) for other in others]
        rows.append([esc(name), esc(named.method), *(_score(suite, score) for suite, score in values)])
    columns = ("Stage", "Method", *(title for title, _, _ in asked), *others)
    what = "".join(f" {title}: {about}." for title, _, about in asked)
    if any(kind_of(name) == "stale_answers" for name in others):
        what += " stale_answers: outdated questions about a corpus that are answered as before, where less is better."
    note = f"Scores of each stage's checkpoint: mean, 95% interval, and number of items.{what}"
    table = markup.table(columns, rows, caption="Final scores by stage")
    return markup.card("Final scores", note, f'<div class="stacked">{table}</div>')


def _score(suite: str, score: Any) -> str:
    if score is None:
        return DASH
    return f"<b>{value(score, suite)}</b> <small>{interval(score, suite)}</small>"


def _cost(stage: Stage, name: str, experiment: str) -> list[str]:
    spent = common.flops(stage)
    return [
        f'<a href="{esc(common.live_address(experiment, stage))}">{esc(name)}</a>',
        markup.chip(
            (stage.stopped if stage.status == "finished" and stage.stopped else stage.status),
            live.TONES.get(stage.status, ""),
        ),
        f"{stage.steps_done:,}",
        *common.spent_tokens(stage),
        f"{spent:.1e}" if spent else DASH,
        esc(duration(stage.wall_seconds)),
        common.peak_memory(stage),
        DASH if stage.seed is None else str(stage.seed),
        f'<a href="download/stage/{stage.id}.csv" download>CSV</a>',
    ]


def _settings(chosen: Sequence[Named], names: Sequence[str]) -> str:
    """Return the settings that differ, with a column for each stage."""
    if len(chosen) < 2:
        return ""
    configs = [one.stage.config for one in chosen]
    settings = {name: [config.get(name) for config in configs] for name in {key for one in configs for key in one}}
    differing = {name: row for name, row in sorted(settings.items()) if any(value != row[0] for value in row)}
    if not differing:
        return markup.card("Settings that differ", "None: all these stages used the same settings.", "")
    rows = [[f"<code>{esc(name)}</code>", *map(_value, values)] for name, values in differing.items()]
    table = markup.table(("Setting", *names), rows, caption="Settings that differ")
    note = f"{len(differing)} differ, {len(settings) - len(differing)} are the same."
    return markup.card("Settings that differ", note, f'<div class="prose-cells">{table}</div>')


def _value(value: Any) -> str:
    if value is None or value == "":
        return DASH
    if isinstance(value, float):
        return esc(f"{value:.6g}")
    text = str(value)
    if len(text) <= LONGEST:
        return esc(text)
    return f'<span title="{esc(text)}">{esc(text[: LONGEST - 1])}…</span>'
