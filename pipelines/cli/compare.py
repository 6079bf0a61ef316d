"""`recover compare`: a comparison of methods from the same start at the same cost."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import common, stage_options
from pipelines.cli.stage_options import DataSource, option_of
from recovery.config import DistillConfig
from recovery.workspace import Workspace

_TOKENS = 400_000


@click.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD...")
@click.option(
    "--docs",
    type=DataSource(),
    required=True,
    callback=stage_options.check_documents,
    metavar="SOURCE",
    help="The documents of the mid-training that all methods start from.",
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

    settings = {key: value for key, value in common.given(context).items() if key in ("steps", "lr")}
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
