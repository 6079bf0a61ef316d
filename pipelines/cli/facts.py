"""`recover facts`: every question about the documents with its fate over the cycles.

`recover withdraw`: the cycles again without a document.
"""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli import common, stage_options
from recovery.errors import UsageError, printable
from recovery.workspace import Workspace

if TYPE_CHECKING:
    from db.facts import Fact
    from pipelines.withdrawal import Withdrawal

_ONLY = click.Choice(["learnt", "lost", "never", "known"])
_SHOWN = 20  # facts, where nothing was asked for
_FORMATS = click.Choice(["table", "json", "csv"])


@click.command()
@click.option("--cycle", type=common.WholeRange(min=1), help="Only facts in the documents of this cycle.")
@click.option("--document", metavar="NAME", help="Only facts in this document.")
@click.option("--only", type=_ONLY, help="Only facts of this fate when last asked.")
@click.option(
    "--format", "form", type=_FORMATS, default="table", show_default=True, help="The others have every field."
)
@common.workspace
def command(cycle: int | None, document: str | None, only: str | None, form: str, workspace: Workspace) -> None:
    """List the facts, and which were learnt or lost.

    A fact is a question about the documents, in all of its wordings: right if one that was asked is. The dashboard's
    page Knowledge says the same words of each wording by itself.
    """
    facts = [one for one in _read(workspace, cycle) if cycle in (None, one.cycle)]
    names = sorted({one.document for one in facts})
    if not facts:
        raise UsageError(
            "no question about documents was asked yet: `recover eval` asks those of the latest checkpoint"
        )
    if document is not None and document not in names:
        near = difflib.get_close_matches(document, names, n=1)
        hint = f"did you mean {printable(near[0])}?" if near else "`recover facts` lists those with facts"
        raise UsageError(f"no fact is about a document {printable(document)!r}: {hint}")
    facts = [one for one in facts if document in (None, one.document) and (only is None or one.fate == only)]
    rows = [common.plain(one) | {"fate": one.fate} for one in facts] if form != "table" else []
    if form == "csv":
        from dashboard.downloads import csv_text

        click.echo(csv_text(list(rows[0]) if rows else [], rows), nl=False)
    else:
        asked = only is not None or document is not None or cycle is not None
        common.emit(rows, form == "json", lambda: _table(facts, asked).rstrip())


def _read(workspace: Workspace, cycle: int | None) -> list[Fact]:
    """Return all facts. Raises UsageError if there is no such cycle."""
    from db import facts, queries
    from evals.probes import PROBES_FILE, load_probes
    from pipelines.evaluation.acceptance import no_cycle
    from pipelines.runtime.registry import reading

    with reading(workspace) as registry:
        cycles = [one.number for one in queries.cycles(registry.database, registry.experiment_id)]
        if cycle is not None and cycle not in cycles:
            raise no_cycle(cycle, cycles)
        files = {number: workspace.corpus(number) / PROBES_FILE for number in cycles}
        loaded = {number: load_probes(file) for number, file in files.items() if file.is_file() and file.stat().st_size}
        passages = {(number, probe.id): probe.passage for number, probes in loaded.items() for probe in probes}
        return facts.ledger(registry.database, registry.experiment_id, passages)


def _table(facts: Sequence[Fact], asked: bool) -> str:
    """Return the facts as a table, by document; without a filter that was ``asked`` for, some of what changed."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from db.knowledge_answers import ABOUT_RIGHT

    counts = {"in all": Counter(one.fate for one in facts)}
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name, width in (("document", 28), ("cycle", None), ("question", 56), ("expected answer", 20)):
        table.add_column(name, max_width=width, no_wrap=True)
    table.add_column("fate", overflow="fold")
    for one in facts if asked else ():
        counts.setdefault(one.document, Counter())[one.fate] += 1
    changed = sorted((one for one in facts if one.fate in ("learnt", "lost")), key=lambda one: one.fate != "lost")
    for one in facts if asked else changed[:_SHOWN]:
        question = " ".join(next(iter(one.wordings.values())).split())
        table.add_row(one.document, str(one.cycle), question, one.expected, fates(one))
    console = Console(width=150, markup=False, emoji=False, highlight=False)
    with console.capture() as capture:
        for document, fates_of in counts.items():
            parts, total = ", ".join(f"{name} {count:,}" for name, count in sorted(fates_of.items())), fates_of.total()
            console.print(
                f"{document or 'no document named'}: {total:,} fact{'s' * (total > 1)}: {parts}", soft_wrap=True
            )
        console.print(table)
        if not asked:
            shown = f"shown: {min(_SHOWN, len(changed)):,} of {len(changed):,} facts that were learnt or lost"
            console.print(f"{shown}; all: --only, --document, --cycle, --format csv", soft_wrap=True)
        console.print(ABOUT_RIGHT)
    return capture.get()


def fates(fact: Fact) -> str:
    """Return the fates of a fact with the cycles that they hold for: "learnt 1-7, lost cycle-7/q4_k_m".

    An artifact that answers as its source does is left out.
    """
    said, parts, source = [], [], ""
    for one in fact.fates:  # those of artifacts follow that of their source
        source = source if one.artifact else one.fate
        said += [one] if not one.artifact or one.fate != source else []
    for (fate, artifact), run in itertools.groupby(said, lambda one: (one.fate, one.artifact and one.checkpoint)):
        cycles = [one.cycle for one in run]
        parts.append(f"{fate} {artifact or '-'.join(map(str, dict.fromkeys((cycles[0], cycles[-1]))))}")
    return ", ".join(parts)


_NAMED = 5  # documents; all are in the JSON


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="DOCUMENT...")
@click.option("--rebuild", is_flag=True, help="Train the cycles again without it, and write its certificate.")
@common.workspace
@common.as_json
def withdraw(names: tuple[str, ...], rebuild: bool, workspace: Workspace, as_json: bool) -> None:
    """Show what a document taught, and train without it again.

    DOCUMENT is the path below its folder, a folder, or a pattern such as 'notes/*'. The cycles that read it, and those
    that build on them, are trained again from the last checkpoint without it, on what they had then and with the
    settings of the first; report and dashboard have the certificate. Without --rebuild nothing is changed.
    """
    from pipelines.runtime.registry import existing
    from pipelines.table import total_of
    from pipelines.withdrawal import find_withdrawal, rebuild_plan, taught

    existing(workspace)
    with stage_options.at_work(workspace, "recover withdraw", exclusive=rebuild) as session:
        withdrawal = find_withdrawal(session, names)
        facts, outcomes = taught(session, withdrawal)
        plan = rebuild_plan(session, withdrawal)
        from pipelines.cycle_estimate import estimate  # it imports torch: after the checks that need none

        with session.display.phase("reading the documents and planning"):
            planned = estimate(session, plan)
        common.note(_text(withdrawal, facts, outcomes))
        cycles = plan.with_verb("is", "are").rpartition(" ")[0]
        if not rebuild:
            value: dict[str, Any] = {"documents": withdrawal.documents, "facts": facts, "outcomes": outcomes}
            value |= {"rows": planned.rows, "start": plan.start}
            value |= dict(zip(("seconds", "memory"), total_of(planned.rows), strict=True))
            summary = f"a rebuild goes back to {plan.start} and trains {cycles} on what is left; --rebuild does it"
            common.emit(value, as_json, f"{planned.table()}\n\n{summary}")
            return
        from pipelines.cycle import start_plan

        start_plan(session, plan)
        common.note(f"the certificate is on the dashboard's page Cycle, and in recover report {plan.last}")
    from pipelines.cli.status import show_end

    show_end(workspace, as_json)


def _text(withdrawal: Withdrawal, facts: list[Fact], outcomes: list[tuple[str, list[int]]]) -> str:
    """Return what the documents taught, in lines."""
    ids, cycles = withdrawal.ids, ", ".join(map(str, withdrawal.documents))
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    one = len(ids) == 1
    lines = [
        f"{', '.join(ids[:_NAMED])}{more}: {len(ids)} document{'s' * (not one)}, read in cycle {cycles}; "
        f"{len(facts)} facts in the ledger (recover facts --cycle {next(iter(withdrawal.documents))})"
    ]
    for name, (answered, asked, recognised, sentences) in outcomes:
        lines.append(f"  {name}: answers {answered} of {asked} questions, recognises {recognised} of {sentences}")
    return "\n".join(lines)
