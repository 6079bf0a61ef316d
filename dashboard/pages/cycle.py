"""Cycle page: scores, cost and evidence of one cycle, and the decision about it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gradio as gr

from dashboard import markup
from dashboard.access import Access
from dashboard.formatting import (
    DASH,
    ago,
    asked,
    duration,
    interval,
    number,
    percent,
    points,
    probability,
    share,
    short_path,
)
from dashboard.markup import STAGE_WORDS, esc
from dashboard.pages import common, review
from dashboard.pages.common import DECISION_TONES, DECISION_WORDS, flops
from dashboard.tracker_source import Source
from db import DatabaseError, Decided, cycle_answers, cycle_evidence, decide, queries, reviews
from db.artifacts import SHIPS, standing
from db.cycle_answers import ALPHA, Judged
from db.cycle_evidence import is_compared
from db.decisions import refusals
from db.records import INSTRUCTIONS, TRIAL, Checkpoint, CycleRow, Evaluation, Measured, Overview, Score, Stage, kind_of
from db.schema import TRAINING

NAME = "Cycle"
LONGEST_NAME, LONGEST_REASON = 80, 2000
BUTTONS = (("Accept", "accepted", "primary"), ("Reject", "rejected", "stop"), ("Roll back", "rolled_back", "secondary"))
# A decision is about the cycle on the screen, even if a newer one exists by then.
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
                "Stored with its reason and the scores; the newest decision applies. Reject and Roll back move the "
                "latest checkpoint back to where the cycle started.",
            )
        )
        verdict = gr.HTML()
        with gr.Row(elem_classes="reason"):
            name = gr.Textbox(
                label="Your name", visible=access.users is None, max_length=LONGEST_NAME, scale=1, min_width=140
            )
            why = gr.Textbox(label="Reason", max_length=LONGEST_REASON, scale=4, min_width=220)
        result = gr.HTML(elem_classes="said")
        with gr.Row(elem_classes="buttons"):
            buttons = [gr.Button(label, variant=variant, min_width=110) for label, _, variant in BUTTONS]
    evidence = gr.HTML(elem_classes="evidence")
    outputs = [header, choice, summary, panel, verdict, *buttons, evidence]

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
            named = _SHOWN.fullmatch(token or "")
            if named is None:
                raise DatabaseError("the page does not say which cycle it shows: reload the page")
            shown = _Shown(*map(int, named.groups()))
            done = _decide(source, shown, word, user.strip(), reason.strip())
            return [_recorded_notice(done), *_show(source, access, request, shown)]
        except DatabaseError as error:
            refused = markup.notice("Not recorded", str(error), tone="bad")
    return [refused, *(gr.skip() for _ in range(6 + len(BUTTONS)))]


def _recorded_notice(done: Decided) -> str:
    also = f" Also rolled back: cycle {', '.join(map(str, done.also))}." if done.also else ""
    latest = f"The latest checkpoint is {done.after}" + ("." if done.moved else ", unchanged.")
    title, tone = f"Cycle {done.cycle} {DECISION_WORDS[done.decision]}", DECISION_TONES[done.decision]
    return markup.notice(title, f"{latest}{also}", tone=tone)


def _refused(access: Access, user: str, reason: str) -> str | None:
    """Return a notice if decisions are disabled here, or if the name or the reason is missing or too long."""
    if access.read_only:
        return markup.notice("Read only", "This dashboard was started with --read-only.", tone="bad")
    if not user.strip() or not reason.strip():
        missing = "your name" if not user.strip() else "a reason"
        return markup.notice("Not recorded", f"Give {missing}: a decision is stored with both.", tone="warn")
    for what, entered, longest in (("name", user, LONGEST_NAME), ("reason", reason, LONGEST_REASON)):
        if len(entered) > longest:
            problem = f"The {what} has {len(entered):,} characters; at most {longest:,} are allowed."
            return markup.notice("Not recorded", problem, tone="warn")
    return None


def _decide(source: Source, shown: _Shown, word: str, who: str, why: str) -> Decided:
    """Record a decision about what was shown. Raises DatabaseError if that has changed since."""
    current = _shown_cycle(source, shown)
    if current is None or _end_id(current[1]) != shown.end:
        raise DatabaseError("the cycle has changed since it was shown: reload the page")
    row = current[1]
    evidence = cycle_evidence.for_decision(row, cycle_evidence.current(source.database(), row))
    with source.writing() as database:
        return decide(database, row.cycle.id, word, who=who, why=why, evidence=evidence, seen=shown.decision)


def _end_id(row: CycleRow) -> int:
    return row.end.checkpoint.id if row.end is not None else 0


def _shown_cycle(source: Source, shown: _Shown) -> tuple[Overview, CycleRow] | None:
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
        current = _find(source, request) if shown is None else _shown_cycle(source, shown)
        if current is None:
            return _no_cycle(source, request)
        overview, row = current
        judged = cycle_answers.judged(source.database(), row)
        newest = next(iter(queries.decisions(source.database(), row.cycle.id, limit=1)), None)
        refused = refusals(source.database(), row.cycle.id)
        shown = _Shown(overview.experiment.id, row.cycle.id, _end_id(row), newest.id if newest is not None else 0)
        return [
            markup.header(NAME, overview.experiment.name, asking=source.asking),
            common.choices(source, overview.experiment),
            _summary(source, access, overview, row, judged)
            + f'<span hidden data-cycle="{"-".join(map(str, shown))}"></span>',
            gr.update(visible=not access.read_only),
            _verdict(judged) + _refusals(refused),
            *(gr.update(interactive=not refused[word]) for _, word, _ in BUTTONS),
            cards(source, overview, row, request.query_params.get("suite") or ""),
        ]
    except DatabaseError as error:
        return _message(common.trouble(source, error))


def _no_cycle(source: Source, request: gr.Request) -> list[Any]:
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
    return _message(message)


def _message(message: str) -> list[Any]:
    """Return a message in place of all other outputs."""
    return [gr.skip(), gr.skip(), message, gr.update(visible=False), "", *(gr.skip() for _ in BUTTONS), ""]


def _refusals(refused: Mapping[str, str]) -> str:
    """Return why decisions cannot be recorded now, in the words of the command line."""
    whys = {why: [label for label, word, _ in BUTTONS if refused[word] == why] for why in refused.values() if why}
    return "".join(f'<p class="verdict">{esc(", ".join(labels))}: {esc(why)}.</p>' for why, labels in whys.items())


def _verdict(judged: Judged | None) -> str:
    """Return what the answers and the gate suggest."""
    if judged is None:
        return ""
    word = markup.chip(judged.verdict.word, judged.verdict.tone)
    return f'<p class="verdict">The figures say: {word} {markup.prose(judged.verdict.why)}</p>'


def _summary(source: Source, access: Access, overview: Overview, row: CycleRow, judged: Judged | None) -> str:
    """Return what the cycle answers, and links to other cycles."""
    documents = f"{short_path(row.cycle.documents) or DASH}, started {ago(row.cycle.created_at)}"
    name = overview.experiment.name
    words = cycle_answers.sentence(row.summary) if judged is None else judged.headline
    if judged is None and queries.is_trial(source.database(), row.cycle.experiment_id, row.cycle.id):
        words = f"{words} It is {TRIAL}."
    neighbours = (
        (common.cycle_address(name, one.cycle.number), f"Cycle {one.cycle.number}", one is row)
        for one in overview.cycles
    )
    # `recover report` covers only the workspace's own cycles, and writes.
    own = not access.read_only and name == source.own
    report = markup.numbers("Cycle report", f"download/report/{row.cycle.number}{{}}", ("html", "md")) if own else ""
    return (
        markup.hero(esc(documents), f"{esc(words)} {common.decision_chip(row.cycle)}", hint=row.cycle.documents)
        + markup.tabs("Cycles", neighbours)
        + report
        + ("" if judged is None else common.answers(name, row.cycle.number, judged))
        + (_verdict(judged) if access.read_only else "")
    )


# --- cards below the decision --------------------------------------------------------------------------------

VERDICTS = {"pass": "good", "fail": "bad", "undecided": "warn"}
SHIPPED = {word: {"accept": "pass", "reject": "fail"}.get(key, key) for key, word in SHIPS.items()}
CERTIFIED = {"shown": "good", "not shown": "warn"}
LOST = 5  # lost items that are named for each artifact
TYPES = 6  # instruction types that are shown unfolded, those that lost most
_ON_DOCUMENTS = {
    "forward KL": "forward_kl",
    "reverse KL": "reverse_kl",
    "bits per byte": "bits_per_byte",
    "base's bits per byte": "bits_per_byte_before",
}


def cards(source: Source, overview: Overview, row: CycleRow, suite: str = "") -> str:
    """Return everything below the decision, as cards; types of instructions are of ``suite`` if it was evaluated."""
    database = source.database()
    stages = queries.stages(database, overview.experiment.id, cycle_id=row.cycle.id)
    recorded = cycle_evidence.current(database, row)
    shown = (
        _types(source, overview, row, recorded, suite),
        _tests(source, overview, row, recorded),
        _gate(source, row),
        _served(source, overview, row),
        _withdrawn(source, row),
        _review(source, overview, row),
        _known(recorded),
        _knowledge(overview, row, recorded),
        _drift(source, row),
        _cost(overview, stages),
        _settings(source, overview, row, stages),
        _lineage(overview, row),
        _decisions(source, row),
    )
    return "".join(shown)


# --- instruction types ---------------------------------------------------------------------------------------


def _types(source: Source, overview: Overview, row: CycleRow, recorded: Mapping[str, Any], suite: str = "") -> str:
    """Return a table of scores by type of instruction, sorted by remaining loss."""
    suites = by_suite(source, {"base": row.base, "mid-trained": row.midtrained, "recovered": row.recovered})
    evaluated = following(suites, suite)
    scored = {
        name: {key.removeprefix("id/"): score for key, score in one.details.items() if key.startswith("id/")}
        for name, one in evaluated.items()
    }
    scores = {name: by_type for name, by_type in scored.items() if by_type}  # without running evaluations
    if not scores.get("base") or len(scores) < 2:
        return ""
    suite = evaluated["base"].suite
    tested = {one["name"]: one for one in _compared(recorded, "base").get(f"types of {suite}", [])}
    end = list(scores)[-1]
    rows = sorted(scores["base"], key=lambda kind: _change(scores, kind, "base", end) or 0.0)
    columns = ("Type of instruction", "Base", "Mid-trained", "Recovered", "Still lost", "p (Holm)", "n", "Responses")
    cells = [_type_row(overview, row, kind, scores, end, tested.get(kind), suite) for kind in rows]
    note = (
        "Share of the instructions of each type that were followed, sorted by remaining loss. p-values: exact paired "
        "test against base, Holm-corrected over all types."
    )
    if any("/" in cell[-2] for cell in cells):
        note += f" n: of {', '.join(scores)}, which were asked different numbers."
    table = markup.table(columns, cells[:TYPES], caption="Instruction types: base, mid-trained, recovered")
    if cells[TYPES:]:
        hidden = markup.table(columns, cells[TYPES:], caption="More instruction types")
        table += f'<details class="rest"><summary>{len(cells[TYPES:])} more types</summary>{hidden}</details>'
    name, number = overview.experiment.name, row.cycle.number
    links = [(f"{common.cycle_address(name, number, one)}#types", one, one == suite) for one in comparable(suites)]
    tabs = markup.tabs("Suite", links, labelled=True) if len(links) > 1 else ""
    return markup.card(f"Instruction types: {suite}", note, tabs + table, anchor="types")


def _type_row(
    overview: Overview,
    row: CycleRow,
    kind: str,
    by_checkpoint: Mapping[str, Mapping[str, Any]],
    end: str,
    tested: Mapping[str, Any] | None,
    suite: str = "",
) -> list[str]:
    values = [by_checkpoint.get(name, {}).get(kind) for name in ("base", "mid-trained", "recovered")]
    change = _change(by_checkpoint, kind, "base", end)
    word, fate = ("lost", "still-lost") if (change or 0.0) < 0 else ("all", "all")
    name, number = overview.experiment.name, row.cycle.number
    link = common.address("samples", experiment=name, cycle=number, show=fate, suite=suite, type=kind)
    return [
        f'<code class="kind">{esc(kind)}</code>',
        *(percent(value["value"]) if value else DASH for value in values),
        _difference(change, tested),
        probability(tested["p_adjusted"]) if tested else DASH,
        asked([value["n"] for value in values if value]),
        f'<a href="{esc(link)}">{word} →</a>',
    ]


def _difference(change: float | None, tested: Mapping[str, Any] | None) -> str:
    """Return a difference in points: grey unless its test, corrected for all of the table, and its interval show it."""
    corrected = tested["p_adjusted"] if tested else 1.0
    shown = tested is not None and not tested["low"] <= 0 <= tested["high"] and (corrected is None or corrected < ALPHA)
    tone = "noise" if not shown else "bad" if (change or 0.0) < 0 else ""
    return f'<b class="{tone}">{points(change)}</b>'


def _change(by_checkpoint: Mapping[str, Mapping[str, Any]], kind: str, first: str, second: str) -> float | None:
    before, after = by_checkpoint[first].get(kind), by_checkpoint[second].get(kind)
    return float(after["value"]) - float(before["value"]) if before and after else None


def by_suite(
    source: Source, steps: Mapping[str, Measured | None], *, answered: bool = False
) -> dict[str, dict[str, Evaluation]]:
    """Return the newest evaluations of a cycle's checkpoints, by suite and name: of instruction following, or
    (``answered``) of every suite about no corpus whose responses are stored.
    """
    database, suites = source.database(), () if answered else INSTRUCTIONS
    by_name: dict[str, dict[str, Evaluation]] = {suite: {} for suite in INSTRUCTIONS}
    for name, step in steps.items():
        rows = queries.evaluations(database, step.checkpoint.id, suites=suites) if step is not None else []
        if answered:
            stored = queries.answered(database, [one.id for one in rows])
            rows = [one for one in rows if one.id in stored and one.corpus is None and is_compared(one.suite)]
        for row in reversed(rows):  # the newest is first
            by_name.setdefault(row.suite, {})[name] = row
    return {suite: {name: named[name] for name in steps if name in named} for suite, named in by_name.items()}


def comparable(suites: Mapping[str, Mapping[str, Evaluation]]) -> list[str]:
    """Return the suites in which base and another checkpoint were evaluated."""
    return [suite for suite, by_name in suites.items() if "base" in by_name and len(by_name) > 1]


def following(suites: Mapping[str, Mapping[str, Evaluation]], suite: str = "") -> Mapping[str, Evaluation]:
    """Return the evaluations of one suite by name, since two suites have different prompts.

    It is ``suite`` if that can be compared, else one that base and the recovered checkpoint have; of several, the first
    of those that the most checkpoints have.
    """
    if suite in comparable(suites):
        return suites[suite]
    compared = {"base", "recovered"}
    return max(suites.values(), key=lambda by_name: (len(compared & by_name.keys()), len(by_name)))


# --- tests, gate, knowledge ----------------------------------------------------------------------------------


def _compared(recorded: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    comparison: Mapping[str, Any] = recorded.get("compared_with", {}).get(name, {})
    return comparison


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
            table = markup.table(columns, cells, caption=f"{title}, paired")
            folded = f'<details class="rest"><summary>{title}</summary>{table}</details>'
            shown += f"<h3>{title}</h3>{table}" if name == "base" else folded
    if not shown:
        return ""
    note = (
        f"Of {row.end.checkpoint.name}, on the items common to both: {cycle_evidence.PAIRED_TESTS}, interval of the "
        "paired score test, p-values Holm-corrected per table."
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
    return markup.card("Paired tests", f"The recorded tests are {which}{how}.", "", anchor="tests")


def _tested(one: Mapping[str, Any]) -> list[str]:
    return [
        esc(one["name"]),
        percent(one["first"]),
        percent(one["second"]),
        _difference(one["difference"], one),
        f"{points(one['low'])} to {points(one['high'])}",
        DASH if one["lost"] is None else f"{one['lost']:,}",
        DASH if one["won"] is None else f"{one['won']:,}",
        probability(one["p_adjusted"]),
        f"{one['n']:,}",
    ]


def _gate(source: Source, row: CycleRow) -> str:
    judged = queries.newest_event(source.database(), cycle_evidence.GATE, row.cycle.experiment_id, row.cycle.id)
    if judged is None:
        return ""
    if row.end is None or not cycle_evidence.judges(source.database(), judged, row.end.checkpoint.id):
        note = (
            "The last judgement is about an earlier checkpoint of this cycle. To judge the one shown here, run "
            f"`recover gate {row.cycle.number}` with the same rules."
        )
        return markup.card("The gate", note, "", anchor="gate")
    verdicts = judged.data.get("verdicts", [])
    cells = [
        [f"<code>{esc(rule)}</code>", markup.chip(word, VERDICTS.get(word, "")), esc(suite or DASH), esc(by)]
        for rule, word, suite, by in map(cycle_evidence.rule_row, verdicts)
    ]
    table = markup.table(("Rule", "Verdict", "Suite", "By"), cells, caption="The gate's rules")
    lines = "".join(f"<li>{esc(line)}</li>" for line in cycle_evidence.notes(judged))
    table = f'<div class="prose-cells">{table}</div>' + (f'<ul class="reasons">{lines}</ul>' if lines else "")
    note = f"{judged.message[:1].upper()}{judged.message[1:]}; {judged.data.get('method', '')}."
    if cycle_evidence.outdated(source.database(), judged):
        note += f" {cycle_evidence.OUTDATED}: run `recover gate {row.cycle.number}` with the same rules again."
    return markup.card("The gate", note, table, anchor="gate")


def _served(source: Source, overview: Overview, row: CycleRow) -> str:
    """Return what was made of the cycle to be served: whether it ships as accepted, and which is in service."""
    artifacts = standing(source.database(), overview.experiment.id, row.cycle.number)
    if not artifacts:
        return ""
    rows = [
        [
            f"<b>{esc(one.checkpoint.name.partition('/')[2])}</b>",
            esc(one.words),
            markup.chip(one.verdict, VERDICTS.get(SHIPPED.get(one.verdict, ""), "")),
            "<br>".join(esc(line) for line in one.points) or DASH,
            f"{one.lost_count:,}" if one.judgement is not None else DASH,
            markup.chip(state, "good" if state == "in service" else "") if state else DASH,
        ]
        for one, state in artifacts
    ]
    lost = "".join(
        f"<li>{esc(one.checkpoint.name.partition('/')[2])}, {esc(suite)}: {esc(item['prompt'])}</li>"
        for one, _ in artifacts
        for suite, item in one.lost[:LOST]
    )
    columns = ("Artifact", "What it is", "Judgement", "Points against its source (95%)", "Items lost", "State")
    note = (
        "Measured on the items of the checkpoint that they were made from. "
        f"recover gate {row.cycle.number} --artifact NAME judges one, --enter puts it in service."
    )
    table = markup.table(columns, rows, caption="Files and servers")
    if lost:
        table += (
            f'<details class="rest"><summary>Some of what was lost</summary><ul class="reasons">{lost}</ul></details>'
        )
    return markup.card("Files and servers", note, table, anchor="served")


def _withdrawn(source: Source, row: CycleRow) -> str:
    """Return the certificate of what the cycle withdrew, with the report's words."""
    event = queries.newest_event(source.database(), cycle_evidence.CERTIFICATE, row.cycle.experiment_id, row.cycle.id)
    if event is None:
        return ""
    certificate = cycle_evidence.certificate(event)
    rows = [[esc(claim), markup.chip(word, CERTIFIED.get(word, "")), esc(by)] for claim, word, by in certificate.parts]
    table = markup.table(("Claim", "Verdict", "By"), rows, caption="Certificate of withdrawal")
    body = f'<div class="prose-cells">{table}</div><p class="reasons">{esc(certificate.not_proven)}</p>'
    return markup.card(certificate.title, certificate.about, body, anchor="withdrawn")


AGAINST = {"midtrained": "its mid-trained model", "previous": "the model before"}


def _review(source: Source, overview: Overview, row: CycleRow) -> str:
    """Return a table of the votes and labels of reviewers, with links to the Review page."""
    if row.end is None:
        return ""
    rows = [
        _reviewed(source, overview, AGAINST.get(name, name), one, row.end.checkpoint)
        for name, one in reviews.compared(row).items()
    ]
    columns = ("Against", "Preferred", "95% interval", "Prompts", "Reviewers", "Alpha", "Answers labelled", "")
    note = "Blind votes between the cycle's last checkpoint and others, a tie as one half, and labels of lost answers."
    words = "Votes and labels of reviewers"
    return markup.table_card("Review", note, columns, rows, words, anchor="review", folded=True) if rows else ""


def _reviewed(source: Source, overview: Overview, name: str, one: Checkpoint, end: Checkpoint) -> list[str]:
    names, ids = (one.name, end.name), (one.id, end.id)
    tally = reviews.tally(reviews.votes(source.database(), *ids))
    labelled = {(label.item, label.suite) for label in reviews.labels(source.database(), *ids)}
    link = common.address("review", experiment=overview.experiment.name, first=names[0], second=names[1])
    return [
        name,
        f"<b>{percent(tally.share)}</b>",
        review.between(tally),
        f"{len(tally.scores):,}",
        esc(", ".join(tally.reviewers)) or DASH,
        review.alpha(tally),
        f"{len(labelled):,}",
        f'<a href="{esc(link)}">review →</a>',
    ]


def _known(recorded: Mapping[str, Any]) -> str:
    """Return what the cycle's checkpoints know against the clean model."""
    figures = recorded.get(cycle_evidence.KNOWLEDGE, {})
    rows = cycle_evidence.knowledge_rows(figures)
    if not rows:
        return ""
    columns, title = cycle_evidence.KNOWLEDGE_COLUMNS, cycle_evidence.ABOUT_CLEAN
    cells = [[esc(cell or DASH) for cell in one] for one in rows]
    return markup.table_card(title, cycle_evidence.about_knowledge(figures), columns, cells, title, anchor="known")


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
    note = "Accuracy on all questions about each corpus that the last checkpoint of each cycle was asked."
    measured: Mapping[str, Any] = recorded.get("knowledge", {})
    transfer = measured.get("backward_transfer")
    # Recorded after the cycle was rejected or rolled back, it is that of the cycle before.
    if transfer is not None and row.end is not None and measured.get("cycles", [])[-1:] == [row.cycle.number]:
        note += (
            f" Backward transfer of {row.end.checkpoint.name}: {points(transfer)} points on the corpora of earlier "
            "cycles, on questions that all were asked."
        )
    note += _stale(row)
    table = markup.table(("", *(f"Corpus {k}" for k in corpora)), rows, caption="Knowledge of each corpus over cycles")
    return markup.card("Knowledge over time", note, f'<div class="heat">{table}</div>', anchor="knowledge")


def _stale(row: CycleRow) -> str:
    """Return a sentence about outdated questions that a cycle's last checkpoint answers as before, if any was asked."""
    others = row.end.scores.others if row.end is not None else {}
    by_corpus = {name.partition("/")[2]: score for name, score in others.items() if kind_of(name) == "stale_answers"}
    shares = [f"{share(score)} of {score.n:,} about corpus {corpus}" for corpus, score in by_corpus.items()]
    return f" Outdated questions that are answered as before: {', '.join(shares)}." if shares else ""


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
    columns = ("Measure", "Value", "By chance", "95% interval")
    cells, words = _drift_rows(rows[0].details), "Drift of responses from base"
    note = (
        "Distance of its responses from base's on the same prompts, and by chance: that between two sets of base's own "
        "responses. KL divergences in nats per token, on documents in bits."
    )
    return markup.table_card("Drift", note, columns, cells, words, anchor="drift", folded=True)


def _drift_rows(details: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of a drift report, of which ``details`` are the JSON."""
    chance = details.get("null", {})
    rows = [
        [esc(name.replace("_", " ")), number(value), number(chance.get(name)), DASH]
        for name, value in details.get("measures", {}).items()
    ]
    scores = {"forward KL": details.get("forward_kl"), "reverse KL": details.get("reverse_kl")}
    scores |= {f"reverse KL, tokens {a} to {b}": score for a, b, score in details.get("reverse_kl_by_position", ())}
    if (documents := details.get("documents")) is not None:
        where = f"on {documents['texts']} documents of corpus {documents['corpus']}"
        scores |= {f"{name} {where}": documents[key] for name, key in _ON_DOCUMENTS.items()}
    measured = {name: Score(one["value"], one["stderr"], one["n"]) for name, one in scores.items() if one}
    return rows + [[esc(name), number(one.value), DASH, interval(one, "drift")] for name, one in measured.items()]


# --- cost, settings, lineage, decisions ----------------------------------------------------------------------


def _cost(overview: Overview, stages: Sequence[Stage]) -> str:
    name = overview.experiment.name
    columns = ("Stage", "Status", "Steps", "Sampled", "Scored", "Trained", "FLOPs", "Time", "Peak memory")
    rows = [
        [
            f'<a href="{esc(common.live_address(name, stage))}">{esc(STAGE_WORDS[stage.kind])}</a>',
            esc(stage.stopped or stage.status),
            f"{stage.steps:,}" if stage.steps else DASH,
            *common.spent_tokens(stage),
            f"{taken:.1e}" if (taken := flops(stage)) else DASH,
            esc(duration(stage.wall_seconds)),
            common.peak_memory(stage),
        ]
        for stage in reversed(stages)
    ]
    if not rows:
        return ""
    note, words = "Tokens sampled, scored by teachers, and trained on.", "Cost of each stage of the cycle"
    return markup.table_card("Cost", note, columns, rows, words, anchor="cost", folded=True)


def _settings(source: Source, overview: Overview, row: CycleRow, stages: Sequence[Stage]) -> str:
    """Return the settings that differ from the previous cycle, and a folded card of all settings."""
    earlier: Sequence[Stage] = ()
    former = next((r for r in reversed(overview.cycles) if r.cycle.number < row.cycle.number), None)
    if former:
        earlier = queries.stages(source.database(), overview.experiment.id, cycle_id=former.cycle.id)
    now, before = ({one.kind: one for one in reversed(part)} for part in (stages, earlier))  # the newest of each kind
    every = [
        [stage, key, value] for kind in TRAINING if kind in now for stage, key, _, value in _changed(kind, now[kind])
    ]
    columns, name = ("Stage", "Setting", "Value"), "All settings"
    every_setting = markup.table_card(name, "", columns, every, name, anchor="settings", folded=True) if every else ""
    rows = [cells for kind in TRAINING if kind in now for cells in _changed(kind, now[kind], before.get(kind))]
    if former is None:
        return every_setting
    title = f"Settings that differ from cycle {former.cycle.number}"
    shared = [STAGE_WORDS[kind].lower() for kind in TRAINING if kind in now and kind in before]
    same = f"None in {' and '.join(shared)}: both cycles used the same settings. " if shared and not rows else ""
    only = [f"Only cycle {row.cycle.number if kind in now else former.cycle.number} has: {STAGE_WORDS[kind].lower()}."
            for kind in TRAINING if (kind in now) != (kind in before)]  # fmt: skip
    note = same + " ".join(only)
    if not rows and not note:
        return every_setting
    table = markup.table(("Stage", "Setting", "Before", "Now"), rows, caption=title) if rows else ""
    return markup.card(title, note, table, anchor="changed") + every_setting


def _changed(kind: str, now: Stage, last: Stage | None = None) -> list[list[str]]:
    """Return a row for each setting of a stage that differs from the same stage of the cycle before, if it had one."""
    rows = []
    before = last.config if last is not None else {}
    for key in sorted({*now.config, *before}):
        value, old = now.config.get(key), before.get(key)
        if value != old and (last is not None or value not in (None, [], {}, "")):
            rows.append([esc(STAGE_WORDS[kind]), f"<code>{esc(key)}</code>", esc(old if last else DASH), esc(value)])
    return rows


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
    return markup.table_card("Lineage", "", columns, rows, "Checkpoints of the cycle", anchor="lineage", folded=True)


def _decisions(source: Source, row: CycleRow) -> str:
    decisions = queries.decisions(source.database(), row.cycle.id)
    if not decisions:
        return ""
    rows = [
        [
            markup.chip(DECISION_WORDS[one.decision], DECISION_TONES[one.decision]),
            esc(one.who),
            esc(one.why),
            esc(ago(one.created_at)),
        ]
        for one in decisions
    ]
    table = markup.table(("Decision", "By", "Why", "When"), rows, caption="Decisions about the cycle, newest first")
    return markup.card("Decisions", "", f'<div class="prose-cells">{table}</div>', anchor="decisions")
