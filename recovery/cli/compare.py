"""`recover compare`: methods side by side, from the same start and at the same cost."""

from __future__ import annotations

from pathlib import Path

import click

from recovery.cli import options, stages
from recovery.workspace import Workspace

_TOKENS = 400_000


@click.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD...")
@click.option(
    "--docs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    metavar="FOLDER",
    help="The documents of the mid-training that all methods start from.",
)
@options.model
@options.workspace
@options.seeds
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=_TOKENS,
    show_default=True,
    help="Tokens sampled, scored and trained, all together, that each method may use.",
)
@options.steps
@options.lr
@options.as_json
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

    One mid-training a seed, the same tokens for each method, one table over the seeds: `recover compare opd sft
    grpo --docs ./corpus`. What is done is kept in the workspace and not done again.
    """
    from pipelines.compare import as_json as shown
    from pipelines.compare import compare, text
    from pipelines.progress import Display

    settings = {key: value for key, value in options.given(context).items() if key in ("steps", "lr")}
    wanted = seeds or (0, 1, 2)
    with stages.resumable():
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
    options.emit(shown(rows, wanted), as_json, lambda: text(rows, wanted))
