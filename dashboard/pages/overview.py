"""Overview page: knowledge against instruction following over cycles."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import gradio as gr

from dashboard import charts, markup
from dashboard.access import Access
from dashboard.formatting import DASH, ago, duration, interval, percent, points, share, short_path
from dashboard.markup import Tile, esc
from dashboard.pages import common
from dashboard.pages.common import DECISION_WORDS
from dashboard.tracker_source import STUDIES, Source
from db import DatabaseError, cycle_answers, cycle_evidence, queries
from db.records import ECHO, CycleRow, Experiment, OfBase, Overview, Score, Scores, are_disjoint
from db.schema import DISCARDED

NAME = "Overview"
REFRESH_SECONDS = 4.0

TRADEOFF_NOTE = (
    "Mid-training should move a cycle right, recovery back up. Bars: 95% intervals; dotted: Pareto frontier; shaded: "
    "above the gate's bound on instruction following, if one is set."
)
TRADEOFF_KEYS = (
    ("circle", markup.BASE, "base"),
    ("triangle", markup.MIDTRAINED, "mid-trained"),
    ("square", markup.RECOVERED, "recovered"),
    ("line-dash", markup.BASE, "base's instruction following"),
)
TRAJECTORY_KEYS = (
    ("solid", markup.FOLLOWING, "instruction following"),
    ("dashed", markup.KNOWLEDGE, "domain knowledge"),
    ("phase", markup.MIDTRAINED, "mid-training"),
    ("phase", markup.RECOVERED, "recovery"),
)


def build(page: gr.Blocks, source: Source, _access: Access) -> None:
    """Build the page."""
    header, choice = common.top(NAME, source)
    state = gr.State(None)
    summary = gr.HTML(elem_id="content", elem_classes="summary")
    with gr.Row(elem_classes="cards", visible=False) as cards:
        with gr.Column(elem_classes="card", min_width=340):
            gr.HTML(
                markup.card_title(
                    "Knowledge against instruction following",
                    TRADEOFF_NOTE,
                    markup.keys(TRADEOFF_KEYS) + markup.saves("tradeoff"),
                )
            )
            tradeoff = gr.Plot(show_label=False, container=False, elem_id="tradeoff")
        with gr.Column(elem_classes="card", min_width=340):
            gr.HTML(
                markup.card_title(
                    "Both over time",
                    "Recovery should restore what mid-training costs in instruction following, and keep knowledge.",
                    markup.keys(TRAJECTORY_KEYS) + markup.saves("trajectory"),
                )
            )
            trajectory = gr.Plot(show_label=False, container=False, elem_id="trajectory")
    cycles = gr.HTML(elem_classes="cycles")
    with gr.Column(elem_classes="card", visible=False) as beside:
        beside_title = gr.HTML()
        beside_figure = gr.Plot(show_label=False, container=False, elem_id="beside")
        beside_table = gr.HTML()
    others = [beside, beside_title, beside_figure, beside_table]

    def refresh(seen: str | None, request: gr.Request) -> list[Any]:
        return _refresh(source, seen, request)

    outputs = [header, choice, summary, cards, tradeoff, trajectory, cycles, *others]
    common.refreshing(page, refresh, state, outputs, REFRESH_SECONDS)


def _refresh(source: Source, seen: str | None, request: gr.Request) -> list[Any]:
    """Return the state, then every output; unchanged outputs are skipped."""
    try:
        experiment = common.asked_experiment(source, request)
        overview = queries.overview(source.database(), experiment.id, details=False) if experiment else None
        if experiment is None or overview is None:
            return _message(seen, common.unknown(source, request))
        floor = _floor(source, overview)
        known = cycle_evidence.knowledge_of(source.database(), [row.cycle.id for row in overview.cycles])
        banner = _summary(source, overview, known)
        shown = repr((overview.path, [row.cycle for row in overview.cycles], floor, known))
        drawn = hashlib.sha256(shown.encode()).hexdigest()  # is kept per open page
        if drawn == seen:
            return [seen, gr.skip(), gr.skip(), banner, *[gr.skip()] * 8]
        figures = [charts.tradeoff(overview, floor), charts.trajectory(overview)]
        return [
            drawn,
            markup.header(NAME, experiment.name, asking=source.asking),
            common.choices(source, experiment),
            banner,
            gr.update(visible=len(overview.path) > 0),
            *figures,
            _cycles(overview, known),
            *_beside(source, overview, request),
        ]
    except DatabaseError as error:
        return _message(seen, common.trouble(source, error))


def _floor(source: Source, overview: Overview) -> float | None:
    """Return the gate's bound on the drawn suite at its last judgement of it, or None.

    The rule ``ifeval`` may be judged on IFEval's own prompts; such a bound is on another scale and does not count.
    """
    for event in queries.events(source.database(), overview.experiment.id, kind="gate", limit=20):
        for verdict in event.data.get("verdicts", []):
            drawn = (
                str(verdict.get("rule", "")).startswith(("ifeval", queries.TRADEOFF_SUITES[0]))
                and verdict.get("suite") == queries.TRADEOFF_SUITES[0]
            )
            if drawn and verdict.get("bound") is not None:
                return float(verdict["bound"])
    return None


def _message(seen: str | None, message: str) -> list[Any]:
    """Return a message in place of all other outputs."""
    if seen == message:
        return [gr.skip()] * 12
    card = [gr.update(visible=False), None, None, ""]
    return [message, gr.skip(), gr.skip(), message, *card, *_no_comparison()]


def _summary(source: Source, overview: Overview, known: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the answers about the newest cycle that was not discarded, the running stage, and tiles."""
    measured = [row for row in overview.cycles if row.midtrained or row.recovered]
    kept = [row for row in measured if row.cycle.decision not in DISCARDED]
    answers = ""
    if kept:
        judged = cycle_answers.judged(source.database(), kept[-1])
        assert judged is not None  # it has a measured checkpoint
        name, number = overview.experiment.name, kept[-1].cycle.number
        chip, why, link = markup.chip(judged.verdict.word, judged.verdict.tone), judged.verdict.why, "decide"
        if decided := queries.decisions(source.database(), kept[-1].cycle.id, limit=1):
            chip, why, link = common.decision_chip(kept[-1].cycle), decided[0].words, "the decision"
        link = f'<a href="{esc(common.cycle_address(name, number))}">{link} →</a>'
        verdict = f'<p class="verdict">{chip} {markup.prose(why)} {link}</p>'
        title, answers = esc(judged.headline), verdict + common.answers(name, number, judged)
    elif overview.base is not None and overview.base.scores != Scores():
        none = "No cycle was kept." if measured else "No cycle has made a checkpoint yet."
        title = f"The base model is measured. {none}"
    elif measured:
        title = esc(cycle_answers.sentence(measured[-1].summary))
    else:
        none = f"Experiment {overview.experiment.name} has no evaluated checkpoint."
        return _banner(overview) + markup.notice("Nothing measured yet", *common.nothing_measured(overview, none))
    model = f" from {overview.experiment.base_model}" if overview.experiment.base_model else ""
    cycles = common.numbered(len(overview.cycles), "cycle", "cycles")
    under = f"Experiment {overview.experiment.name}{model}, {cycles}{_discarded(measured)}"
    return markup.hero(esc(under), title) + answers + _banner(overview) + markup.tiles(_tiles(overview, known))


def _discarded(measured: Sequence[CycleRow]) -> str:
    """Return the cycles discarded since the last kept one, whose scores the page shows."""
    since = list(takewhile(lambda row: row.cycle.decision in DISCARDED, reversed(measured)))
    words = (f"cycle {row.cycle.number} {DECISION_WORDS[row.cycle.decision or '']}" for row in reversed(since))
    return "".join(f", {one}" for one in words)


def _banner(overview: Overview) -> str:
    """Return the running stage as a link to the live page."""
    running = overview.running
    if running is None:
        return ""
    cycle = f", cycle {running.cycle}" if running.cycle is not None else ""
    done = running.done if running.steps_total else "running"
    share = 100 * running.steps_done / running.steps_total if running.steps_total else 0
    address = common.live_address(overview.experiment.name, running)
    return (
        f'<a class="banner" href="{esc(address)}"><span class="pulse" aria-hidden="true"></span>'
        f"<strong>{esc(markup.STAGE_WORDS[running.kind])}{esc(cycle)}</strong><span>{esc(done)}, "
        f"{esc(duration(common.worked(running)))}</span>"
        f'<span class="mini" aria-hidden="true"><i style="width:{min(100.0, share):.1f}%"></i></span>'
        '<span class="go">Watch live →</span></a>'
    )


def _tiles(overview: Overview, figures: Mapping[int, Mapping[str, Any]]) -> list[Tile]:
    """Return tiles with the measured scores of the newest checkpoint that was kept, compared with the base."""
    now, base = overview.kept[-1], overview.base
    following, general = now.scores.instruction_following, now.scores.general
    start = base.scores.instruction_following if base else None
    of_base, name = overview.of_base(now), "Of the base model"
    note, prompts = f"base {share(start)}, n = {start.n:,}" if start else "base not measured", ""
    if base is not None and of_base.whole is not None:
        name, prompts = "Of base, beyond constant replies", f"; whole prompts {percent(of_base.whole)} ({note})"
        echo = base.scores.others.get(f"instruction_following/{ECHO}")
        note = f"base {share(of_base.then)}, an echo {share(echo)}"
    note = f"{of_base.mismatch}: no share" if of_base.mismatch else note
    tone = _tone(of_base.now, of_base.then)  # of two intervals; the paired difference stands above
    known, before = overview.knowledge(now), overview.known_before(now.checkpoint)
    gained = f"from {share(before)}, " if known and before else ""
    closed = {name: one for cycle in figures.values() for name, one in cycle.items()}.get(now.checkpoint.name, {})
    tiles = [
        Tile("Instruction following", share(following), interval(following)),
        Tile(name, percent(of_base.share), note + prompts, tone),
    ]
    gap, why = cycle_evidence.gap_words(closed)
    if gap not in ("", cycle_evidence.NOT_MEASURED):
        value, _, between = (gap, "", "") if why else gap.partition(" (")
        tiles.append(Tile("Knowledge gap closed", value, why or between.removesuffix(")")))
    if known is not None:
        tiles.append(Tile("Domain knowledge", share(known), gained + interval(known)))
    if general is not None:
        tiles.append(Tile("General knowledge", share(general), interval(general)))
    return tiles


def _tone(score: Score | None, base: Score | None) -> str:
    """Return the colour of a score compared with base's: none if the intervals overlap, or if it is higher."""
    if score is None or base is None or not are_disjoint(score, base) or score.value >= base.value:
        return ""
    return "warn" if score.value >= 0.9 * base.value else "bad"


def _cycles(overview: Overview, known: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the table of cycles, newest first."""
    if not overview.cycles:
        return ""
    changes = ("Gap closed", "Learnt", "By mid-training", "Of base, recovered")
    scores = ("Knowledge so far", "Stored knowledge", "General knowledge")
    columns = ("Cycle", "Documents", *changes, *scores, "Decision")
    rows = [_cycle(overview, row, known.get(row.cycle.id, {})) for row in reversed(overview.cycles)]
    note = (
        f"{cycle_evidence.ABOUT_GAP} Pooled over the corpora of the last checkpoint. "
        "Learnt: points on questions about the cycle's own documents. By mid-training: change of instruction "
        "following in points. Grey: the intervals overlap. "
        "Knowledge: accuracy on questions about the corpora up to the cycle's, mid-trained → recovered; base's of a "
        "corpus that a checkpoint was not asked about. Stored: the last checkpoint's on the newest corpus, by the "
        "likelihood of its own text."
    )
    if any(row.cycle.decision in DISCARDED for row in overview.cycles):
        note += " The charts draw a rejected or rolled-back cycle, too, but its corpus counts in its row only."
    download = common.address("download/overview{}", experiment=overview.experiment.name)
    every_score = markup.numbers("All scores", download)
    return (
        f'<div class="card">{markup.card_title("Cycles", note, every_score)}'
        f"{markup.table(columns, rows, caption='What each cycle learnt, lost and recovered')}</div>"
    )


def _cycle(overview: Overview, row: CycleRow, known: Mapping[str, Any]) -> list[str]:
    end = row.end.scores if row.end else None
    before, after = (one.scores.instruction_following if one else None for one in (row.before, row.midtrained))
    asked = [
        one.scores.domain_knowledge_by_corpus.get(row.cycle.number) if one else None for one in (row.base, row.end)
    ]
    prompts = row.of_base.whole
    gap, why = cycle_evidence.gap_words(known.get(row.end.checkpoint.name, {})) if row.end else ("", "")
    return [
        f'<a href="{esc(common.cycle_address(overview.experiment.name, row.cycle.number))}" '
        f'title="{esc(ago(row.cycle.created_at))}"><b>Cycle {row.cycle.number}</b></a>',
        f'<span class="path" title="{esc(row.cycle.documents)}">{esc(short_path(row.cycle.documents) or DASH)}</span>',
        f'<span title="{esc(why)}">{esc(gap or DASH)}</span>',
        _points(row.learnt, are_disjoint(*asked), "good" if (row.learnt or 0) > 0 else "bad"),
        _points(
            None if row.lost is None else -row.lost, are_disjoint(before, after), "warn" if (row.lost or 0) > 0 else ""
        ),
        _meter(row.of_base)
        + ("" if prompts is None else f" <small>beyond constant replies; whole prompts {percent(prompts)}</small>")
        + (f" <small>{esc(row.of_base.mismatch)}</small>" if row.of_base.mismatch else ""),
        " → ".join(share(overview.knowledge(step), 0) for step in (row.midtrained, row.recovered)),
        share(end.domain_knowledge_stored if end else None),
        share(end.general if end else None),
        common.decision_chip(row.cycle),
    ]


def _points(change: float | None, shown: bool, tone: str) -> str:
    """Return a difference in points, grey where it may be noise."""
    return f'<b class="{tone if shown else "noise"}">{points(change)}</b>'


def _meter(of_base: OfBase) -> str:
    """Return instruction following as a share of base's, as a bar and a number."""
    if of_base.share is None:
        return DASH
    width = f"width:{min(100.0, 100 * of_base.share):.1f}%"
    bar = f'<i class="{_tone(of_base.now, of_base.then)}" style="{width}"></i>'
    return f'<span class="meter">{bar}</span> <b>{percent(of_base.share)}</b>'


# --- experiments side by side --------------------------------------------------------------------------------

READ = 12
"""Number of experiments, the newest, in the table; the dropdown of the page lists all."""
MOST_DRAWN = 5


def _beside(source: Source, overview: Overview, request: gr.Request) -> list[Any]:
    """Return the card's visibility, title, figure and table; it is hidden if there is nothing to compare."""
    seen = [overview, *_others(source, overview.experiment)]
    if len(seen) < 2:
        return _no_comparison()
    asked = request.query_params.getlist("beside")
    known = {one.experiment.name for one in seen[1:]}
    chosen = known & set(asked) if asked else known
    drawn = [one for one in seen if one is overview or one.experiment.name in chosen][:MOST_DRAWN]
    names = [one.experiment.name for one in drawn]
    note = "Path of each experiment from its first (hollow) to its newest (filled) evaluated checkpoint."
    title = markup.card_title("Experiments side by side", note, charts.beside_keys(names) + markup.saves("beside"))
    scores = ("Instruction following", "Of base", "Domain knowledge")
    columns = ("Experiment", "Model", "Cycles", *scores, "Started", "Drawn")
    rows = [_beside_row(one, seen[0], names) for one in seen]
    table = markup.table(columns, rows, caption="Experiments side by side")
    return [gr.update(visible=True), title, charts.beside(drawn), table]


def _others(source: Source, experiment: Experiment) -> list[Overview]:
    """Return other experiments with evaluated checkpoints, newest first, but for those of studies."""
    database = source.database()
    others = (one for one in queries.experiments(database) if one.id != experiment.id and one.cycles)
    ids = [one.id for one in others if not one.name.startswith(STUDIES)]
    return [overview for overview in queries.paths(database, ids[:READ]) if overview.path]


def _no_comparison() -> list[Any]:
    """Return the outputs of the hidden card."""
    return [gr.update(visible=False), "", None, ""]


def _beside_row(one: Overview, here: Overview, drawn: Sequence[str]) -> list[str]:
    name, now = one.experiment.name, one.kept[-1] if one.kept else None
    following = now.scores.instruction_following if now else None
    of_base = one.of_base(now)
    whole = "" if of_base.whole is None else f" <small>beyond constant; whole prompts {percent(of_base.whole)}</small>"
    known, before = one.knowledge(now), one.known_before(now.checkpoint) if now else None
    gain = f"{points(known.value - before.value)} points" if known and before else ""
    link = f'<a href="{esc(common.address("./", experiment=name))}">{esc(name)}</a>'
    return [
        f"<b>{esc(name)}</b>" if one is here else link,
        f'<span class="path">{esc(one.experiment.base_model or DASH)}</span>',
        str(len(one.cycles)),
        f"<b>{share(following)}</b> <small>{esc(interval(following))}</small>",
        percent(of_base.share) + whole,
        f"{share(known)} <small>{esc(gain)}</small>",
        esc(ago(one.experiment.created_at)),
        "here" if one is here else _toggle(here.experiment.name, name, drawn),
    ]


def _toggle(here: str, name: str, drawn: Sequence[str]) -> str:
    """Return a link that draws an experiment or hides it."""
    is_drawn = name in drawn
    kept = [one for one in drawn if one not in (here, name)] + ([] if is_drawn else [name])
    to = common.address("./", experiment=here, beside=kept[-(MOST_DRAWN - 1) :]) + ("" if kept else "&beside=")
    word, shown = (f"hide {name}", "✓ drawn") if is_drawn else (f"draw {name}", "+ draw")
    return f'<a href="{esc(to)}"{markup.current(is_drawn)} aria-label="{esc(word)}">{shown}</a>'
