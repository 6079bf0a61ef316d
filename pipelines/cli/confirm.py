"""`recover confirm`: the claim, tested on a model of one's own."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import common, demo, stage_options
from pipelines.cli.stage_options import option_of
from recovery.config import EvalConfig
from recovery.workspace import Workspace


@click.command(cls=common.ShortHelp, common="model workspace example cycles seeds limit short per_hour dry_run")
@common.model
@common.workspace
@common.report_to()
@click.option(
    "--example",
    type=common.NamedPath(exists=True, file_okay=False),
    default=Path("examples/nextjs"),
    show_default=True,
    metavar="FOLDER",
    help="Documents and questions.",
)
@click.option("--cycles", type=common.WholeRange(min=1), default=1, show_default=True, help="Number of corpora.")
@common.seeds
@stage_options.seed
@option_of(EvalConfig, "limit")
@click.option("--short", is_flag=True, help="On a part of the documents, with few items: to try it; it shows nothing.")
@click.option("--per-hour", type=common.FiniteRange(min=0.0), metavar="PRICE", help="Price of the machine per hour.")
@common.dry_run
@stage_options.model_options
@click.pass_context
def command(
    context: click.Context,
    /,
    workspace: Workspace,
    model: str | None,
    example: Path,
    cycles: int,
    seeds: tuple[int, ...],
    seed: int,
    short: bool,
    per_hour: float | None,
    dry_run: bool,
    **_: object,
) -> None:
    """Test the claim on a model of your own.

    Three arms on the same documents: the defaults, the same without the recovery, and 30% replay of answers. What must
    hold, and the time, memory and cost of the whole are printed before; a page and a JSON file are written at the end.
    After an interrupt the same command resumes.
    """
    flags = demo.of_every_stage(context) | demo.flags_of(example, short)
    asked = demo.Asked(example, short, None, cycles)
    asked.check()
    scenario = demo.scenario_of(workspace, asked, model)
    from pipelines.data.question_splits import held_out_ids
    from pipelines.experiments import confirm
    from pipelines.runtime.progress import Display

    common.note(confirm.claims())
    with stage_options.at_work(workspace, "recover confirm", model=scenario.model, dry_run=True) as session:
        folders = scenario.write(session.workspace.folder.resolve() / scenario.part, 0)[: scenario.cycles]
        rows, free = confirm.planned(session, scenario, folders, flags, len(seeds or (seed,)))
        common.note("\n" + confirm.plan_text(rows, free, per_hour))
    if dry_run:
        return
    with stage_options.resumable():
        text = confirm.confirm(
            workspace,
            scenario,
            seeds=seeds or (seed,),
            flags=flags,
            rows=rows,
            price=per_hour,
            held_out=held_out_ids(example / "questions.jsonl"),
            display=Display(),
        )
    click.echo(text)
