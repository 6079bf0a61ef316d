"""Cycle page: scores, cost and evidence of one cycle, and the decision about it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gradio as gr

from dashboard import markup
from dashboard.access import Access
from dashboard.formatting import DASH, ago, duration, interval, percent, points, probability, share, short_path
from dashboard.markup import STAGE_WORDS, Tile, esc
from dashboard.pages import common, review_cards, review_request
from dashboard.pages.stage_selection import flops
from dashboard.tracker_source import Source
from db import DatabaseError, Decided, cycle_evidence, decide, queries, reviews
from db.records import CycleRow, Evaluation, Measured, Overview, Stage

NAME = "Cycle"
WORDS = {"accepted": "accepted", "rejected": "rejected", "rolled_back": "rolled back"}
TONES = {"accepted": "good", "rejected": "bad", "rolled_back": "bad"}
VERDICTS = {"pass": "good", "fail": "bad", "undecided": "warn"}
SUITES = ("instruction_following", "ifeval")
LONGEST_NAME, LONGEST_REASON = 80, 2000
BUTTONS = (("Accept", "accepted", "primary"), ("Reject", "rejected", "stop"), ("Roll back", "rolled_back", "secondary"))
# The cycle that is decided about is the one on the screen, whatever has become the newest since.
_SHOWN_JS = "(_, who, why) => [document.querySelector('[data-cycle]')?.dataset.cycle ?? '', who, why]"
_SHOWN = re.compile("-".join([r"([0-9]{1,9})"] * 4))


class _Shown(NamedTuple):
    """What the page shows: ids of the experiment, the cycle, its last checkpoint and its newest decision; 0 is none."""

    experiment: int
    cycle: int
    end: int
    decision: int


def build(page: gr.Blocks, source: Source, access: Access) -> None:
    """Build the page."""
    header, choice = common.top(NAME, source)
    summary = gr.HTML(elem_id="content", elem_classes="summary")
    shown = gr.Textbox(visible=False)
    with gr.Column(elem_classes="card decide", visible=False) as panel:  # until there is a cycle to decide about
        gr.HTML(
            markup.card_title(
                "Decide",
                "A decision is stored with its reason and the measured scores. Decisions are never deleted; the newest "
                "one applies. Reject and Roll back move the latest checkpoint back to where the cycle started.",
            )
        )
        with gr.Row(elem_classes="reason"):
            name = gr.Textbox(
                label="Your name", visible=access.users is None, max_length=LONGEST_NAME, scale=1, min_width=140
            )
            why = gr.Textbox(label="Reason", max_length=LONGEST_REASON, scale=4, min_width=220)
        with gr.Row(elem_classes="buttons"):
            buttons = [gr.Button(label, variant=variant, min_width=110) for label, _, variant in BUTTONS]
        result = gr.HTML(elem_classes="said")
    evidence = gr.HTML(elem_classes="evidence")
    outputs = [header, choice, summary, panel, evidence]

    def show(request: gr.Request) -> list[Any]:
        return _show(source, access, request)

    page.load(show, outputs=outputs, **common.QUIET)
    for button, (_, word, _) in zip(buttons, BUTTONS, strict=True):

        def enter(token: str, who: str, reason: str, request: gr.Request, word: str = word) -> list[Any]:
            return _enter(source, access, request, word, token, who, reason)

        button.click(enter, [shown, name, why], [result, *outputs], js=_SHOWN_JS, **common.QUIET)


def _enter(
    source: Source, access: Access, request: gr.Request, word: str, token: str, who: str, reason: str
) -> list[Any]:
    """Record a decision about the cycle that the page showed; return a notice and the outputs, of the same cycle.

    If nothing is recorded, the page stays as it is.
    """
    user, reason = (request.username if access.users is not None else who) or "", reason or ""
    refused = _refused(access, user, reason)
    if refused is None:
        try:
            shown = _read(token or "")
            done = _decide(source, shown, word, user.strip(), reason.strip())
            return [_said(done), *_show(source, access, request, shown)]
        except DatabaseError as error:
            refused = markup.notice("Not recorded", str(error), tone="bad")
    return [refused, *(gr.skip() for _ in range(5))]


def _said(done: Decided) -> str:
    also = f" Also rolled back: cycle {', '.join(map(str, done.also))}." if done.also else ""
    latest = f"The latest checkpoint is {done.after}" + ("." if done.moved else ", unchanged.")
    return markup.notice(f"Cycle {done.cycle} {WORDS[done.decision]}", f"{latest}{also}", tone=TONES[done.decision])


def _refused(access: Access, user: str, reason: str) -> str | None:
    """Return a notice if nobody may decide here, or what a decision needs is missing or too long."""
    if access.read_only:
        return markup.notice("Read only", "This dashboard was started with --read-only.", tone="bad")
    if not user.strip() or not reason.strip():
        missing = "your name" if not user.strip() else "a reason"
        return markup.notice("Not recorded", f"Give {missing}: a decision is stored with both.", tone="warn")
    for what, given, longest in (("name", user, LONGEST_NAME), ("reason", reason, LONGEST_REASON)):
        if len(given) > longest:
            problem = f"The {what} has {len(given):,} characters; at most {longest:,} are allowed."
            return markup.notice("Not recorded", problem, tone="warn")
    return None


def _decide(source: Source, shown: _Shown, word: str, who: str, why: str) -> Decided:
    """Record a decision about what was shown. Raises DatabaseError if that has changed since."""
    found = _found(source, shown)
    if found is None or _end_id(found[1]) != shown.end:
        raise DatabaseError("the cycle has changed since it was shown: reload the page")
    row = found[1]
    evidence = cycle_evidence.for_decision(row, cycle_evidence.current(source.database(), row))
    with source.writing() as database:
        return decide(database, row.cycle.id, word, who=who, why=why, evidence=evidence, seen=shown.decision)


def _read(token: str) -> _Shown:
    """Return what a page names as shown. Raises DatabaseError if it names nothing."""
    found = _SHOWN.fullmatch(token)
    if found is None:
        raise DatabaseError("the page does not say which cycle it shows: reload the page")
    return _Shown(*map(int, found.groups()))


def _token(source: Source, overview: Overview, row: CycleRow) -> str:
    """Return an element that names what the page shows."""
    newest = next(iter(queries.decisions(source.database(), row.cycle.id, limit=1)), None)
    shown = _Shown(overview.experiment.id, row.cycle.id, _end_id(row), newest.id if newest is not None else 0)
    return f'<span hidden data-cycle="{"-".join(map(str, shown))}"></span>'


def _end_id(row: CycleRow) -> int:
    return row.end.checkpoint.id if row.end is not None else 0


def _found(source: Source, shown: _Shown) -> tuple[Overview, CycleRow] | None:
    """Return the cycle that was shown, with its experiment."""
    overview = queries.overview(source.database(), shown.experiment)
    rows = overview.cycles if overview is not None else ()
    row = next((row for row in rows if row.cycle.id == shown.cycle), None)
    return (overview, row) if overview is not None and row is not None else None


def _find(source: Source, request: gr.Request) -> tuple[Overview, CycleRow] | None:
    """Return the cycle named in the address, else the newest, with its experiment."""
    experiment = common.asked_experiment(source, request)
    overview = queries.overview(source.database(), experiment.id) if experiment else None
    if overview is None or not overview.cycles:
        return None
    wanted = request.query_params.get("cycle")
    if wanted is None:
        return overview, overview.cycles[-1]
    row = next((row for row in overview.cycles if str(row.cycle.number) == wanted), None)
    return (overview, row) if row is not None else None


def _show(source: Source, access: Access, request: gr.Request, shown: _Shown | None = None) -> list[Any]:
    """Return the outputs for the cycle that the address asks for, or for the one that was shown before."""
    try:
        found = _find(source, request) if shown is None else _found(source, shown)
        if found is None:
            return _nothing(source, request)
        overview, row = found
        return [
            markup.header(NAME, overview.experiment.name, asking=source.asking),
            common.choices(source, overview.experiment),
            _summary(source, overview, row) + _token(source, overview, row),
            gr.update(visible=not access.read_only),
            _evidence(source, overview, row),
        ]
    except DatabaseError as error:
        return [gr.skip(), gr.skip(), common.trouble(source, error), gr.update(visible=False), ""]


def _nothing(source: Source, request: gr.Request) -> list[Any]:
    experiment = common.asked_experiment(source, request)
    if experiment is None:
        message = common.unknown(source, request)
    else:
        wanted = request.query_params.get("cycle")
        message = markup.notice(
            "No such cycle" if wanted else "No cycle yet",
            f"Experiment {experiment.name} has no cycle {wanted or ''}. Start one with a folder of documents:",
            ["recover cycle --docs ./my-documents"],
        )
    return [gr.skip(), gr.skip(), message, gr.update(visible=False), ""]


def _summary(source: Source, overview: Overview, row: CycleRow) -> str:
    """Return the cycle's summary, links to other cycles, and tiles."""
    chip = markup.chip(WORDS.get(row.cycle.decision or "", "undecided"), TONES.get(row.cycle.decision or "", "warn"))
    documents = f"{short_path(row.cycle.documents) or DASH}, started {ago(row.cycle.created_at)}"
    name = overview.experiment.name
    neighbours = ((address(name, one.cycle.number), f"Cycle {one.cycle.number}", one is row) for one in overview.cycles)
    return (
        markup.hero(esc(documents), f"{esc(common.sentence(row.summary))} {chip}", hint=row.cycle.documents)
        + markup.tabs("Cycles", neighbours)
        + _report(source, overview, row)
        + markup.tiles(_tiles(row))
    )


def _report(source: Source, overview: Overview, row: CycleRow) -> str:
    """Return links to the cycle report; `recover report` covers only the workspace's own cycles."""
    if overview.experiment.name != source.own:
        return ""
    return markup.numbers("Cycle report", f"download/report/{row.cycle.number}{{}}", ("html", "md"))


def address(experiment: str, cycle: int) -> str:
    """Return the address of a cycle's page."""
    return f"cycle?experiment={common.quoted(experiment)}&cycle={cycle}"


def _tiles(row: CycleRow) -> list[Tile]:
    end = row.end
    following = end.scores.instruction_following if end else None
    known = end.scores.domain_knowledge_by_corpus.get(row.cycle.number) if end else None
    general = end.scores.general if end else None
    return [
        Tile("Learnt", points(row.learnt), f"points on its own questions; now {interval(known)}"),
        Tile("Lost by mid-training", points(-row.lost if row.lost is not None else None), "instruction following"),
        Tile("Of the base model", percent(row.back), f"now {share(following)}"),
        Tile("General knowledge", share(general), interval(general)),
    ]


def _evidence(source: Source, overview: Overview, row: CycleRow) -> str:
    """Return everything below the decision, as cards."""
    database = source.database()
    stages = queries.stages(database, overview.experiment.id, cycle_id=row.cycle.id, limit=200)
    recorded = cycle_evidence.current(database, row)
    cards = [
        _types(source, overview, row, recorded),
        _tests(source, overview, row, recorded),
        _gate(source, overview, row),
        _review(source, overview, row),
        _knowledge(overview, row, recorded),
        _drift(source, row),
        _cost(overview, stages),
        _settings(source, overview, row, stages),
        _lineage(overview, row),
        _decisions(source, row),
    ]
    return "".join(card for card in cards if card)


# --- instruction types ---------------------------------------------------------------------------------------


def _types(source: Source, overview: Overview, row: CycleRow, recorded: Mapping[str, Any]) -> str:
    """Return a table of scores by type of instruction, sorted by remaining loss."""
    steps = {"base": row.base, "mid-trained": row.midtrained, "recovered": row.recovered}
    evaluated = following(source, steps)
    scored = {name: _by_type(evaluation) for name, evaluation in evaluated.items()}
    found = {name: scores for name, scores in scored.items() if scores}  # not those whose evaluation is still to come
    if not found.get("base") or len(found) < 2:
        return ""
    types = f"types of {evaluated['base'].suite}"
    tested = {one["name"]: one for one in _compared(recorded, "base").get(types, [])}
    end = list(found)[-1]
    rows = sorted(found["base"], key=lambda kind: _change(found, kind, "base", end) or 0.0)
    columns = ("Type of instruction", "Base", "Mid-trained", "Recovered", "Still lost", "p (Holm)", "n", "Responses")
    cells = [_type_row(overview, row, kind, found, end, tested.get(kind)) for kind in rows]
    note = (
        "Share of the instructions of each type that were followed, sorted by remaining loss. p-values: exact paired "
        "test against base, Holm-corrected over all types."
    )
    table = markup.table(columns, cells, caption="Instruction types: base, mid-trained, recovered")
    return markup.card("Instruction types", note, table, anchor="types")


def _type_row(
    overview: Overview,
    row: CycleRow,
    kind: str,
    found: Mapping[str, Mapping[str, Any]],
    end: str,
    tested: Mapping[str, Any] | None,
) -> list[str]:
    values = [found.get(name, {}).get(kind) for name in ("base", "mid-trained", "recovered")]
    change = _change(found, kind, "base", end)
    lost = change or 0.0
    tone = "bad" if lost < -0.02 else "warn" if lost < -0.005 else ""
    link = samples_address(overview.experiment.name, row.cycle.number, "still-lost" if lost < 0 else "all", kind)
    return [
        f'<code class="kind">{esc(kind)}</code>',
        *(percent(value["value"]) if value else DASH for value in values),
        f'<b class="{tone}">{points(change)}</b>',
        probability(tested["p_adjusted"]) if tested else DASH,
        f"{values[0]['n']:,}" if values[0] else DASH,
        f'<a href="{esc(link)}">{"lost" if lost < 0 else "all"} →</a>',
    ]


def samples_address(experiment: str, cycle: int, fate: str, kind: str = "") -> str:
    """Return the address of a cycle's filtered samples."""
    kept = f"&type={common.quoted(kind)}" if kind else ""
    return f"samples?experiment={common.quoted(experiment)}&cycle={cycle}&show={fate}{kept}"


def _change(found: Mapping[str, Mapping[str, Any]], kind: str, first: str, second: str) -> float | None:
    before, after = found[first].get(kind), found[second].get(kind)
    return float(after["value"]) - float(before["value"]) if before and after else None


def _by_type(evaluation: Evaluation) -> dict[str, Any]:
    """Return scores by instruction type of an evaluation."""
    return {key.removeprefix("id/"): score for key, score in evaluation.details.items() if key.startswith("id/")}


def following(source: Source, steps: Mapping[str, Measured | None]) -> dict[str, Evaluation]:
    """Return the newest evaluations of instruction following of a cycle's checkpoints, by name, all on one suite: the
    prompts of two are different. It is one that base and the recovered checkpoint have; of two, one that the most have.
    """
    found: dict[str, dict[str, Evaluation]] = {suite: {} for suite in SUITES}
    for name, step in steps.items():
        rows = queries.evaluations(source.database(), step.checkpoint.id, suites=SUITES) if step is not None else []
        for row in reversed(rows):  # the newest is first
            found[row.suite][name] = row
    compared = {"base", "recovered"}
    chosen = max(found.values(), key=lambda of: (len(compared & of.keys()), len(of)))  # the first of equals
    return {name: chosen[name] for name in steps if name in chosen}


# --- tests, gate, knowledge ----------------------------------------------------------------------------------


def _compared(recorded: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = recorded.get("compared_with", {}).get(name, {})
    return found


def _tests(source: Source, overview: Overview, row: CycleRow, recorded: Mapping[str, Any]) -> str:
    """Return paired tests of every suite against base and against the mid-trained model."""
    if row.end is None:
        return ""
    if not recorded:
        return _other_tests(source, overview, row, row.end.checkpoint.name)
    columns = ("Suite", "Before", "After", "Difference", "95% interval", "Lost", "Won", "p (Holm)", "n")
    shown = ""
    for name, title in (("base", "Against base"), ("midtrained", "Against its mid-trained model")):
        suites = _compared(recorded, name).get("suites", [])
        if suites:
            cells = [_tested(one) for one in suites]
            shown += f"<h3>{title}</h3>" + markup.table(columns, cells, caption=f"{title}, paired")
    if not shown:
        return ""
    note = (
        f"Of {row.end.checkpoint.name}, on the items common to both: exact McNemar test, interval of the paired score "
        "test, p-values Holm-corrected per table."
    )
    return markup.card("Paired tests", note, shown, anchor="tests")


def _other_tests(source: Source, overview: Overview, row: CycleRow, end: str) -> str:
    """Say which checkpoint the recorded tests are of, if they are not of the last one as it is now."""
    tested = row.cycle.details.get("evidence", {}).get("checkpoint")
    if tested is None:
        return ""
    which = f"of {tested}, not of {end}" if tested != end else f"not known to cover the newest evaluation of {end}"
    # The command is about the workspace's own cycles.
    how = f": run `recover report {row.cycle.number}`" if overview.experiment.name == source.own else ""
    return markup.card("Paired tests", f"Those recorded are {which}{how}.", "", anchor="tests")


def _tested(one: Mapping[str, Any]) -> list[str]:
    return [
        esc(one["name"]),
        percent(one["first"]),
        percent(one["second"]),
        f"<b>{points(one['difference'])}</b>",
        f"{points(one['low'])} to {points(one['high'])}",
        DASH if one["lost"] is None else f"{one['lost']:,}",
        DASH if one["won"] is None else f"{one['won']:,}",
        probability(one["p_adjusted"]),
        f"{one['n']:,}",
    ]


def _gate(source: Source, overview: Overview, row: CycleRow) -> str:
    events = queries.events(source.database(), overview.experiment.id, kind="gate", limit=1000)
    judged = next((e for e in events if e.cycle_id == row.cycle.id), None)
    if judged is None:
        return ""
    if row.end is None or not cycle_evidence.judges(source.database(), judged, row.end.checkpoint.id):
        note = (
            f"It judged an earlier checkpoint of this cycle than the one shown here: `recover gate {row.cycle.number}` "
            "with its rules judges this one."
        )
        return markup.card("The gate", note, "", anchor="gate")
    columns = ("Rule", "Verdict", "Student", "Required", "Margin", "Bounds", "n")
    rows = [
        [
            f"<code>{esc(one['rule'])}</code>",
            markup.chip(one["verdict"], VERDICTS.get(one["verdict"], "")),
            percent(one["student"]),
            percent(one["bound"]),
            f"<b>{points(one['estimate'])}</b>",
            f"{points(one['low'])} to {points(one['high'])}",
            f"{one['n']:,}",
        ]
        for one in judged.data.get("verdicts", [])
    ]
    note = f"{judged.message[:1].upper()}{judged.message[1:]}; {judged.data.get('method', '')}."
    return markup.card("The gate", note, markup.table(columns, rows, caption="The gate's rules"), anchor="gate")


def _review(source: Source, overview: Overview, row: CycleRow) -> str:
    """Return a table of the votes and labels of reviewers, with links to the Review page."""
    if row.end is None:
        return ""
    against = {"base": row.base, "its mid-trained model": row.midtrained if row.recovered else None}
    rows = [
        _reviewed(source, overview, name, one, row.end)
        for name, one in against.items()
        if one is not None and one.checkpoint.id != row.end.checkpoint.id
    ]
    columns = ("Against", "Preferred", "95% interval", "Prompts", "Reviewers", "Alpha", "Answers labelled", "")
    note = "Blind votes between the cycle's last checkpoint and others, a tie as one half, and labels of lost answers."
    table = markup.table(columns, rows, caption="Votes and labels of reviewers")
    return markup.card("Review", note, table, anchor="review") if rows else ""


def _reviewed(source: Source, overview: Overview, name: str, one: Measured, end: Measured) -> list[str]:
    names, ids = (one.checkpoint.name, end.checkpoint.name), (one.checkpoint.id, end.checkpoint.id)
    tally = reviews.tally(reviews.votes(source.database(), *ids))
    labelled = {(label.item, label.suite) for label in reviews.labels(source.database(), *ids)}
    link = review_request.address(overview.experiment.name, *names)
    return [
        name,
        f"<b>{percent(tally.share)}</b>",
        review_cards.between(tally),
        f"{len(tally.scores):,}",
        esc(", ".join(tally.reviewers)) or DASH,
        review_cards.alpha(tally),
        f"{len(labelled):,}",
        f'<a href="{esc(link)}">review →</a>',
    ]


def _knowledge(overview: Overview, row: CycleRow, recorded: Mapping[str, Any]) -> str:
    """Return the matrix of accuracy on each corpus after each cycle."""
    corpora = overview.corpora
    steps = [("base", overview.base)] + [
        (f"after cycle {one.cycle.number}", one.end) for one in overview.cycles if one.cycle.number <= row.cycle.number
    ]
    if not corpora:
        return ""
    rows = [
        [f"<b>{esc(label)}</b>", *(_heat(step.scores.domain_knowledge_by_corpus.get(k)) for k in corpora)]
        for label, step in steps
        if step is not None
    ]
    note = "Accuracy on questions about each corpus, for the last checkpoint of each cycle."
    measured: Mapping[str, Any] = recorded.get("knowledge", {})
    transfer = measured.get("backward_transfer")
    # Recorded after the cycle was rejected or rolled back, it is that of the cycle before.
    if transfer is not None and row.end is not None and measured.get("cycles", [])[-1:] == [row.cycle.number]:
        note += (
            f" Backward transfer of {row.end.checkpoint.name}: {points(transfer)} points on the corpora of earlier "
            "cycles, on questions that all were asked."
        )
    table = markup.table(("", *(f"Corpus {k}" for k in corpora)), rows, caption="Knowledge of each corpus over cycles")
    return markup.card("Knowledge over time", note, f'<div class="heat">{table}</div>', anchor="knowledge")


def _heat(score: Any) -> str:
    if score is None:
        return '<span class="cell none">–</span>'
    level = min(10, max(0, round(10 * score.value)))
    return f'<span class="cell level-{level}" title="{esc(interval(score))}">{share(score)}</span>'


def _drift(source: Source, row: CycleRow) -> str:
    """Return the drift of responses from base's, if it was measured."""
    end = row.end
    rows = queries.evaluations(source.database(), end.checkpoint.id, suites=("drift",), limit=1) if end else []
    if not rows:
        return ""
    found = rows[0]
    cells = [[esc(name), esc(_figure(value))] for name, value in sorted(found.details.items())]
    table = markup.table(("Measure", "Value"), cells, caption="Drift of responses from base")
    return markup.card("Drift", "Distance of its responses from base's on the same prompts.", table, anchor="drift")


def _figure(value: Any) -> str:
    if isinstance(value, Mapping):
        value = value.get("value")
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)


# --- cost, settings, lineage, decisions ----------------------------------------------------------------------


def _cost(overview: Overview, stages: Sequence[Stage]) -> str:
    name = overview.experiment.name
    columns = ("Stage", "Status", "Steps", "Sampled", "Scored", "Trained", "FLOPs", "Time", "Peak memory")
    rows = [
        [
            f'<a href="{esc(common.live_address(name, stage))}">{esc(STAGE_WORDS[stage.kind])}</a>',
            esc(stage.stopped or stage.status),
            f"{stage.steps_done:,}" if stage.steps_done else DASH,
            *common.spent_tokens(stage),
            DASH if (taken := flops(stage)) is None else f"{taken:.1e}",
            esc(duration(stage.wall_seconds)),
            common.peak_memory(stage),
        ]
        for stage in reversed(stages)
    ]
    if not rows:
        return ""
    table = markup.table(columns, rows, caption="Cost of each stage of the cycle")
    return markup.card("Cost", "Tokens sampled, scored by teachers, and trained on.", table, anchor="cost")


def _settings(source: Source, overview: Overview, row: CycleRow, stages: Sequence[Stage]) -> str:
    """Return the settings that differ from the previous cycle; all settings for the first cycle."""
    before = next((r for r in reversed(overview.cycles) if r.cycle.number < row.cycle.number), None)
    earlier = (
        queries.stages(source.database(), overview.experiment.id, cycle_id=before.cycle.id, limit=200) if before else []
    )
    rows = []
    for kind in ("midtrain", "distill", "interpolate"):
        now = next((s for s in stages if s.kind == kind), None)
        then = next((s for s in earlier if s.kind == kind), None)
        if now is None:
            continue
        for key, value in sorted(now.config.items()):
            old = then.config.get(key) if then is not None else None
            if value != old and (then is not None or value not in (None, [], {}, "")):
                rows.append(
                    [esc(STAGE_WORDS[kind]), f"<code>{esc(key)}</code>", esc(old if then else DASH), esc(value)]
                )
    title = f"Settings that differ from cycle {before.cycle.number}" if before else "Settings"
    if not rows:
        return markup.card(title, "None: both cycles used the same settings.", "", anchor="settings") if before else ""
    table = markup.table(("Stage", "Setting", "Before", "Now"), rows, caption=title)
    return markup.card(title, "", table, anchor="settings")


def _lineage(overview: Overview, row: CycleRow) -> str:
    known = {step.checkpoint.id: step for step in (row.base, row.before, row.midtrained, row.recovered) if step}
    latest = overview.latest.id if overview.latest else None
    rows = [
        [
            f"<b>{esc(step.checkpoint.name)}</b>" + (" " + markup.chip("latest", "run") if key == latest else ""),
            esc(step.checkpoint.kind),
            esc(step.checkpoint.parent or DASH),
            f"<code>{esc(step.checkpoint.content_hash[:12])}</code>",
            esc(ago(step.checkpoint.created_at)),
        ]
        for key, step in known.items()
    ]
    columns = ("Checkpoint", "Kind", "Parent", "Hash", "Created")
    return markup.card("Lineage", "", markup.table(columns, rows, caption="Checkpoints of the cycle"), anchor="lineage")


def _decisions(source: Source, row: CycleRow) -> str:
    decisions = queries.decisions(source.database(), row.cycle.id)
    if not decisions:
        return ""
    rows = [
        [markup.chip(WORDS[one.decision], TONES[one.decision]), esc(one.who), esc(one.why), esc(ago(one.created_at))]
        for one in decisions
    ]
    table = markup.table(("Decision", "By", "Why", "When"), rows, caption="Decisions about the cycle, newest first")
    return markup.card("Decisions", "", f'<div class="prose-cells">{table}</div>', anchor="decisions")
