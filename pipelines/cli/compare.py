"""`recover compare`: methods from the same start at the same cost; `recover drift`: two checkpoints."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import common, stage_options
from pipelines.cli.stage_options import DataSource, option_of
from recovery.config import DistillConfig, EvalConfig, Recipe, build
from recovery.workspace import Workspace

_TOKENS = 400_000


@click.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD...")
@stage_options.documents(
    "--docs", type=DataSource(), required=True, help="The documents of the mid-training that all methods start from."
)
@common.model
@common.workspace
@common.report_to()
@common.seeds
@option_of(
    DistillConfig,
    "max_tokens",
    default=_TOKENS,
    show_default=True,
    help="Total tokens that each method may use: sampled, scored and trained.",
)
@stage_options.steps
@stage_options.lr
@common.as_json
@click.pass_context
def command(
    context: click.Context,
    /,
    methods: tuple[str, ...],
    docs: Path,
    model: str | None,
    workspace: Workspace,
    seeds: tuple[int, ...],
    max_tokens: int,
    as_json: bool,
    **_: object,
) -> None:
    """Compare methods from the same start at the same cost.

    One mid-training per seed, the same tokens for each method, one table over the seeds: `recover compare opd sft
    grpo --docs ./corpus`. Finished runs are stored in the workspace and not repeated.
    """
    from pipelines.experiments.compare import as_json as shown
    from pipelines.experiments.compare import compare, text
    from pipelines.runtime.progress import Display

    settings = common.given(context, "steps", "lr")
    wanted = seeds or (0, 1, 2)
    with stage_options.resumable():
        rows = compare(
            workspace,
            methods,
            docs,
            wanted,
            max_tokens=max_tokens,
            settings=settings,
            model=model,
            display=Display(),
        )
    common.emit(shown(rows, wanted), as_json, lambda: text(rows, wanted))


@click.command(cls=common.ShortHelp, common="reference model workspace recipe limit prompts engine as_json")
@click.argument("checkpoint", default="latest")
@click.option(
    "--from", "reference", default="base", show_default=True, metavar="NAME", help="Checkpoint to compare with."
)
@common.own_model
@common.workspace
@common.recipe
@click.option("--limit", type=common.WholeRange(min=2), help="Number of prompts.  [default: 200]")
@stage_options.max_new_tokens
@stage_options.prompts
@stage_options.model_options
@stage_options.seed
@common.as_json
@click.pass_context
def drift(
    context: click.Context,
    /,
    checkpoint: str,
    workspace: Workspace,
    model: str | None,
    recipe: Recipe,
    reference: str,
    limit: int | None,
    as_json: bool,
    **_: object,
) -> None:
    """Measure how far a checkpoint has moved from another.

    Both are sampled on the same behaviour prompts. Reports distances between the completions, each with its value under
    chance alone, and the divergences of the two distributions on requests and on held-out documents. The result is
    recorded in the tracker.
    """
    stage_options.check_clean_model(workspace, model, checkpoint, reference)
    with stage_options.at_work(workspace, "recover drift", model=model, exclusive=False) as session:
        session.check_names(checkpoint, reference)  # a wrong name is reported before torch is imported
        from pipelines.evaluation.drift import PROMPTS, measure_drift

        flags = common.given(context) | {"limit": limit or PROMPTS}
        report = measure_drift(session, build(EvalConfig, flags, recipe, session.recipe), reference)
    common.emit(report, as_json, report.text)
