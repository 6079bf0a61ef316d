"""`recover gate`: judge a cycle by rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli import common, stage_options
from pipelines.cli.stage_options import option_of
from recovery.config import CycleConfig
from recovery.errors import UsageError
from recovery.workspace import Workspace, write_atomically

if TYPE_CHECKING:
    from evals.acceptance import Decision
    from pipelines.runtime.session import Session

# Exit statuses for scripts; 1 and 2 are errors.
STATUS = {"accept": 0, "reject": 3, "undecided": 4}


@click.command()
@click.argument("cycle", required=False)
@common.workspace
@click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="RULE",
    help="A rule such as 'ifeval >= 0.98*base'; may be repeated.  [default: standard; of an artifact 3 points]",
)
@click.option(
    "--artifact",
    metavar="NAME",
    help="Judge what is served, a name or a file, against the checkpoint that it was made from.",
)
@option_of(CycleConfig, "gate_alpha", "--alpha", default=CycleConfig.gate_alpha, help="Error probability of a verdict.")
@click.option("--enter", is_flag=True, help="Record the outcome as the gate's decision.")
@click.option(
    "--junit",
    type=common.NamedPath(dir_okay=False),
    metavar="FILE",
    help="Write JUnit XML with a test case per rule: a rule that fails is a failure, an undecided one an error.",
)
@click.option(
    "--markdown",
    type=common.NamedPath(dir_okay=False),
    metavar="FILE",
    help="Append a summary in Markdown to a file, e.g. to $GITHUB_STEP_SUMMARY.",
)
@common.as_json
@click.pass_context
def command(
    context: click.Context,
    cycle: str | None,
    workspace: Workspace,
    rules: tuple[str, ...],
    artifact: str | None,
    alpha: float,
    enter: bool,
    junit: Path | None,
    markdown: Path | None,
    as_json: bool,
) -> None:
    """Judge a cycle by rules: accept, reject or undecided.

    CYCLE defaults to the newest; it is judged by its recorded evaluations.

    A rule has the form NAME >= TARGET. Names: ifeval (IFEval's own prompts where they were evaluated, else
    instruction_following), instructions (of the same, the single ones beyond constant replies),
    instruction_following, domain, domain(K), stored, stored(K), learnt (alone, or >= 0.67*midtrained), unanswerable,
    general, retention(TASK), behaviour(SUITE), refusal, and preference(base), the share of blind votes on the
    dashboard's page Review. Targets:
    0.85, 0.98*base, midtrained, previous, first, source (of an artifact), and points added to one of them. The exit
    status is 0 if all rules pass (accept), 3 if one fails (reject), 4 if undecided; 1 and 2 are errors.

    With --artifact, what is served ships as accepted, or what it lost is listed; --enter puts it in service if it
    ships.
    """
    from db import queries
    from db.cycle_evidence import notes
    from pipelines.evaluation import acceptance
    from pipelines.runtime.registry import existing

    existing(workspace)
    if workspace.write_protected:
        raise UsageError(
            f"{workspace.folder} is write-protected, and a judgement is recorded there: judge a copy of the folder, or "
            f"let a user who may write there run this"
        )
    write = partial(_write, junit, markdown)
    with stage_options.at_work(workspace, "recover gate", exclusive=False) as session:
        number = acceptance.cycle_number(session, cycle) if cycle is not None else max(session.cycles(), default=0)
        if artifact is not None:
            given = number if cycle is not None else None
            context.exit(STATUS[_ship(session, artifact, rules, given, alpha, enter, write, as_json)])
        if not number:
            raise UsageError("there is no cycle to judge yet: run `recover cycle --docs FOLDER`")
        seen = acceptance.newest_decision(session, number)
        asked = acceptance.rules_of(rules or ("standard",), session)
        decision = acceptance.judge_cycle(session, asked, number, alpha=alpha)
        about = acceptance.references(session, asked, number)[0]
        running = queries.running_stage(session.tracker.database, session.experiment_id)
        so_far = "" if running is None else f", by what is recorded so far: {running.kind} is running"
        judged = acceptance.last_judgement(session, session.cycles()[number].id)
        lines = notes(judged) if judged is not None else ()
        write(decision, number, lines)
        decided = acceptance.enter(session, number, decision, seen=seen) if enter else None
        common.emit(
            decision.to_json() | {"cycle": number, "checkpoint": about, "entered": decided, "notes": list(lines)},
            as_json,
            lambda: "\n".join((f"judged: {about}{so_far}", *_lines(decision, number, decided, lines))),
        )
    context.exit(STATUS[decision.decision])


def _ship(
    session: Session,
    name: str,
    rules: tuple[str, ...],
    number: int | None,
    alpha: float,
    enter: bool,
    write: Callable[[Decision, int, Sequence[str]], None],
    as_json: bool,
) -> str:
    """Judge an artifact; return the decision."""
    from pipelines.evaluation.shipping import cycle_to_serve, find_artifact, judge_artifact, put_in_service
    from pipelines.reports.gate_report import shipping_lines

    artifact = find_artifact(session, name)
    if enter:
        cycle_to_serve(session, artifact)  # refused before anything is judged
    shipping = judge_artifact(session, artifact, rules, number, alpha=alpha)
    lines, made = shipping_lines(shipping), artifact.source.cycle or 0
    write(shipping.decision, made, lines)
    ships = shipping.decision.decision == "accept"
    if enter and ships:
        before = put_in_service(session, artifact, who="gate", why=shipping.decision.reason)
        lines.append(f"in service: {artifact.file}" + (f"; before it {before.file}" if before is not None else ""))
    value = shipping.to_json() | {"cycle": made, "entered": enter and ships}
    common.emit(value, as_json, lambda: "\n".join(lines))
    return shipping.decision.decision


def _write(junit: Path | None, markdown: Path | None, decision: Decision, number: int, lines: Sequence[str]) -> None:
    """Write the files that are wanted; before a decision, so that nothing is decided if one cannot be written."""
    from pipelines.reports.gate_report import to_junit, to_summary

    if junit is not None:
        write_atomically(junit, to_junit(decision, number))
    if markdown is not None:
        try:
            with markdown.open("a", encoding="utf-8") as stream:  # a pipeline's summary may hold other parts
                stream.write(to_summary(decision, number, lines))
        except OSError as error:
            raise UsageError(f"--markdown: {markdown} cannot be written ({error.strerror})") from error


def _lines(decision: Decision, number: int, decided: Any, more: Sequence[str]) -> list[str]:
    from pipelines.reports.gate_report import rule_lines

    outcome = f"cycle {number}: {decision.decision}: {decision.reason.removeprefix('undecided: ')}"
    lines = [*rule_lines(decision), *more, outcome, f"({decision.method})"]
    if decided is not None:
        lines.append(f"entered: {decided.decision}" + (f"; latest is {decided.after}" if decided.moved else ""))
    return lines
