"""`recover withdraw`: what a document taught, and the cycles again without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pipelines.cli import common, stage_options
from recovery.workspace import Workspace

if TYPE_CHECKING:
    from db.facts import Fact
    from pipelines.withdrawal import Withdrawal

_NAMED = 5  # documents; all are in the JSON


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="DOCUMENT...")
@click.option("--rebuild", is_flag=True, help="Train the cycles again without it, and write its certificate.")
@common.workspace
@common.as_json
def command(names: tuple[str, ...], rebuild: bool, workspace: Workspace, as_json: bool) -> None:
    """Show what a document taught, and train without it again.

    DOCUMENT is the path below its folder, a folder, or a pattern such as 'notes/*'. The cycles that read it, and those
    that build on them, are trained again from the last checkpoint without it, on what they had then and with the
    settings of the first; report and dashboard have the certificate. Without --rebuild nothing is changed.
    """
    from pipelines.runtime.registry import existing
    from pipelines.table import total_of
    from pipelines.withdrawal import find_withdrawal, rebuild_plan, taught

    existing(workspace)
    with stage_options.at_work(workspace, "recover withdraw", alone=rebuild) as session:
        found = find_withdrawal(session, names)
        facts, outcomes = taught(session, found)
        plan = rebuild_plan(session, found)
        from pipelines.cycle_estimate import estimate  # torch, after what is refused without it

        with session.display.phase("reading the documents and planning"):
            planned = estimate(session, plan)
        common.note(_text(found, facts, outcomes))
        told = plan.told("is", "are").rpartition(" ")[0]
        if not rebuild:
            value: dict[str, Any] = {
                "documents": found.documents,
                "facts": facts,
                "outcomes": outcomes,
                "rows": planned.rows,
            }
            value |= {"start": plan.start, "rows": planned.rows}
            value |= dict(zip(("seconds", "memory"), total_of(planned.rows), strict=True))
            rest = f"a rebuild goes back to {plan.start} and trains {told} on what is left; --rebuild does it"
            common.emit(value, as_json, f"{planned.table()}\n\n{rest}")
            return
        from pipelines.cycle import start_plan

        start_plan(session, plan)
        common.note(f"the certificate is on the dashboard's page Cycle, and in recover report {plan.last}")
    from pipelines.cli.status import show_end

    show_end(workspace, as_json)


def _text(found: Withdrawal, facts: list[Fact], outcomes: list[tuple[str, list[int]]]) -> str:
    """Return what the documents taught, in lines."""
    ids, cycles = found.ids, ", ".join(map(str, found.documents))
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    one = len(ids) == 1
    lines = [
        f"{', '.join(ids[:_NAMED])}{more}: {len(ids)} document{'s' * (not one)}, read in cycle {cycles}; "
        f"{len(facts)} facts in the ledger (recover facts --cycle {next(iter(found.documents))})"
    ]
    for name, (answered, asked, recognised, sentences) in outcomes:
        lines.append(f"  {name}: answers {answered} of {asked} questions, recognises {recognised} of {sentences}")
    return "\n".join(lines)
