"""`recover status`: the cycles as a table."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli import common
from recovery.workspace import PLAN, Workspace

if TYPE_CHECKING:
    from db import Database
    from db.cycle_answers import Judged
    from db.records import Decision, Overview


@click.command()
@common.workspace
@common.as_json
def command(workspace: Workspace, as_json: bool) -> None:
    """Show the cycles with the gains and losses of each.

    First in words, as the dashboard's overview: did it learn, did it keep its manners, did anything else break?
    """
    show(workspace, as_json)


def show(workspace: Workspace, as_json: bool) -> Overview | None:
    """Print the status of a workspace and return its cycles. Raises UsageError if there is no workspace."""
    from db import cycle_answers, queries
    from db.cycle_evidence import knowledge_of
    from pipelines.runtime.registry import reading

    with reading(workspace) as registry:
        status = queries.status_json(registry.database, registry.experiment_id)
        overview = queries.overview(registry.database, registry.experiment_id)
        lines = [] if as_json else [*_stage_lines(registry), *_service_lines(registry)]
        rows = [] if overview is None else overview.cycles
        known = knowledge_of(registry.database, [row.cycle.id for row in rows])
        answers = [] if as_json else [(row, cycle_answers.judged(registry.database, row)) for row in rows]
        judged = [(row, one) for row, one in answers if one is not None]
        decided = queries.decisions(registry.database, judged[-1][0].cycle.id, limit=1) if judged else []
    words = _words([one for _, one in judged], decided[0] if decided else None)
    common.emit(status, as_json, lambda: "\n\n".join(filter(None, (words, _text(overview, lines, known)))))
    return overview


def _words(judged: list[Judged], decided: Decision | None) -> str:
    """Return what the cycles' figures answer, as the dashboard's overview does: each in a line, the newest in full,
    with its decision or, before one, what the figures say.
    """
    if not judged:
        return ""
    lines = [one.headline for one in judged]
    lines += [f"  {answer.question} {answer.word}. {' '.join(answer.says)}" for answer in judged[-1].answers]
    said = f"The figures say: {judged[-1].verdict.word}. {judged[-1].verdict.why}"
    last = said if decided is None else decided.words
    return "\n".join([*lines, last])


def show_end(workspace: Workspace, as_json: bool) -> None:
    """Print the status after whole cycles, and what to do next."""
    show(workspace, as_json)
    common.note(
        f"next: ask base, the mid-trained and the recovered model a question: {ask_command(workspace)}; "
        f"then review the cycle, and accept it or roll it back: recover dashboard{common.place_of(workspace)}"
    )


def ask_command(workspace: Workspace) -> str:
    """Return the command that asks all models a question which a cycle has learnt to answer; else one of the user's."""
    from db import queries
    from pipelines.runtime.registry import reading

    with reading(workspace) as registry:
        overview = queries.overview(registry.database, registry.experiment_id)
        learnt = None if overview is None else _learnt_question(registry.database, overview)
    question = "'QUESTION'" if learnt is None else shlex.quote(learnt)
    return f"recover ask {question}{common.place_of(workspace)}"


def _learnt_question(database: Database, overview: Overview) -> str | None:
    """Return a question that the newest possible cycle answers and base does not."""
    from db import knowledge_answers

    rows = [row for row in reversed(overview.cycles) if row.end is not None]
    learnt = (
        one.text
        for row in rows
        for corpus in knowledge_answers.corpora(database, row)
        for one in knowledge_answers.questions(database, row, corpus)
        if one.is_of("learnt")
    )
    return next(learnt, None)


def _text(overview: Any, lines: list[str], figures: Mapping[int, Any]) -> str:
    from rich.console import Console

    from db.records import ECHO

    if overview is None:
        return "nothing has been run here yet: start with `recover midtrain --docs FOLDER`"
    console = Console(width=150, markup=False, emoji=False)  # a name is shown as it is
    with console.capture() as capture:
        console.print(_table(overview, figures))
        for line in (*(row.summary for row in overview.cycles), *_gap_lines(_gaps(figures))):
            console.print(line)
        for line in lines:
            console.print(line, soft_wrap=True)  # a command in it can be copied
        console.print("in brackets: 95% intervals; asked: the response equals an accepted answer")
        if overview.base is not None and (known := overview.base.scores.beyond_constant):
            echo = overview.base.scores.others[f"instruction_following/{ECHO}"]
            console.print(
                f"beyond constant: the same share of base on the {known.n:,} instructions that no constant reply "
                f"follows: base {_cell(known)}, an echo of the prompt {echo.value:.3f}"
            )
    return capture.get().rstrip()


def _gap_lines(gaps: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return a line for each gap closed, or why it is not defined; a line that all checkpoints share is given once."""
    owners: dict[tuple[str, str], list[str]] = {}
    for name, gap in gaps.items():
        owners.setdefault(gap, []).append(name)
    who = {gap: ", ".join(names) for gap, names in owners.items()}
    if len(owners) == 1 < len(gaps):
        who = dict.fromkeys(owners, "every checkpoint")
    return [f"{names}: gap closed {': '.join(filter(None, gap))}" for gap, names in who.items() if gap[0]]


def _gaps(known: Mapping[int, Any]) -> dict[str, tuple[str, str]]:
    """Return the gap that each checkpoint closed, and why it is not defined, by the checkpoint's name."""
    from db.cycle_evidence import gap_words

    return {name: gap_words(figures) for by_checkpoint in known.values() for name, figures in by_checkpoint.items()}


def _table(overview: Any, known: Mapping[int, Any]) -> Any:
    from rich import box
    from rich.table import Table

    from db.cycle_evidence import NOT_MEASURED

    latest = overview.latest.name if overview.latest else "none"
    title = f"base model: {overview.experiment.base_model}; latest: {latest}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    steps = [overview.base, *(step for row in overview.cycles for step in (row.midtrained, row.recovered))]
    # Users copy names of checkpoints into commands, so these are never cut; figures are folded where there is no room.
    longest = max((len(step.checkpoint.name) for step in steps if step is not None), default=0)
    base, gaps = overview.base.scores if overview.base else None, _gaps(known)
    measured = any(words not in ("", NOT_MEASURED) for words, _ in gaps.values())
    rows = [] if overview.base is None else [_cells(overview.base, base, None, "", "")]
    for row in overview.cycles:
        for step in (row.midtrained, row.recovered):
            if step is not None:
                decision = (row.cycle.decision or "") if step is row.end else ""
                # Its interval, or why none is defined, stands below.
                gap = gaps.get(step.checkpoint.name, ("", ""))[0].partition(" (")[0] if measured else ""
                rows.append(_cells(step, base, row.cycle.number, gap, decision))
    # What no checkpoint has is no column.
    filled = [at for at, cells in enumerate(zip(*rows, strict=True)) if at == 0 or any(cells)]
    for name in (_COLUMNS[at] for at in filled):
        if name == "checkpoint":
            table.add_column(name, no_wrap=True, min_width=longest)
        else:
            table.add_column(name, justify="left" if name == "decision" else "right", overflow="fold")
    for cells in rows:
        table.add_row(*(cells[at] for at in filled))
    return table


_COLUMNS = (
    "checkpoint",
    "instructions",
    "of base",
    "beyond constant",
    "gap closed",
    "asked",
    "stored",
    "earlier, asked",
    "general",
    "decision",
)


def _cells(step: Any, base: Any, cycle: int | None, gap: str, decision: str) -> list[str]:
    from db.records import share_of

    scores = step.scores
    following = scores.instruction_following
    share = share_of(following, base and base.instruction_following)
    beyond = share_of(scores.beyond_constant, base and base.beyond_constant)
    asked, stored = scores.domain_knowledge_by_corpus, scores.domain_knowledge_stored_by_corpus
    own, own_stored = scores.domain_knowledge, scores.domain_knowledge_stored
    earlier: list[Any] = []
    if cycle is not None:
        own, own_stored = asked.get(cycle, own), stored.get(cycle, own_stored)
        earlier = [asked[k] for k in sorted(asked) if k < cycle]
    shares = ["" if one is None else f"{one:.1%}" for one in (share, beyond)]
    cells = [_cell(following), *shares, gap, _cell(own), _cell(own_stored)]
    return [step.checkpoint.name, *cells, _several(earlier), _cell(scores.general), decision]


def _cell(score: Any) -> str:
    if score is None:
        return ""
    interval = score.interval
    return f"{score.value:.3f}" if interval is None else f"{score.value:.3f} ({interval[0]:.3f}-{interval[1]:.3f})"


def _several(scores: list[Any]) -> str:
    """Return each score, or of more than three the lowest and the highest."""
    values = [score.value for score in scores]
    if len(values) <= 3:
        return " ".join(f"{value:.2f}" for value in values)
    return f"{min(values):.2f} to {max(values):.2f}"


def _stage_lines(registry: Any) -> list[str]:
    """Return a line on the newest stage, and one on what `recover resume` would continue: cycles, else a stage."""
    from db import queries

    stages = queries.stages(registry.database, registry.experiment_id, limit=10_000)
    resume = f"recover resume{common.place_of(registry.workspace)}"
    if (registry.workspace.folder / PLAN).is_file():
        stopped = not stages or stages[0].status != "running"
        planned = [f"cycles are unfinished; to continue: {resume}"] if stopped else []
        return [*(_stage_line(stage) for stage in stages[:1]), *planned]
    waiting = None
    if any(stage.status in ("interrupted", "failed") for stage in stages):
        from pipelines.cycle_plan import unfinished  # takes as long to import as all else here

        waiting = next(unfinished(registry), None)
    shown = {stage.id: stage for stage in (*stages[:1], *([waiting] if waiting else []))}
    return [_stage_line(stage, resume if stage == waiting else "") for stage in shown.values()]


def _service_lines(registry: Any) -> list[str]:
    """Return the artifact in service, if one is."""
    from db.artifacts import in_service

    now, _ = in_service(registry.database, registry.experiment_id)
    return [] if now is None else [f"in service: {now.file} ({now.checkpoint.name})"]


def _stage_line(stage: Any, resume: str = "") -> str:
    """Return what a stage did or does, and the command that can ``resume`` it, if any."""
    total = f" of {stage.steps_total}" if stage.steps_total else ""
    done = stage.done if stage.steps is None else f"step {stage.steps}{total}"
    where = f"{stage.kind} (stage {stage.id})" + (f", {done}" if done else "")
    if stage.status == "running":
        return f"running: {where}"
    if stage.status == "interrupted":
        return f"interrupted: {where}" + (f"; to continue: {resume}" if resume else "")
    if stage.status == "failed":
        return f"failed: {where}: {stage.error}" + (f"; `{resume}` retries it" if resume else "")
    return f"last: {where}, {stage.stopped}, {stage.wall_seconds:.0f} s"
