"""`recover export`: a checkpoint as a plain Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import common, stage_options
from recovery.errors import UsageError
from recovery.workspace import Workspace


@click.command()
@click.argument("checkpoint", default="latest")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@common.workspace
@click.option("--merge", is_flag=True, help="Merge a LoRA adapter into the weights, so that the base is not needed.")
@common.as_json
def command(checkpoint: str, folder: Path, workspace: Workspace, merge: bool, as_json: bool) -> None:
    """Write a checkpoint as an ordinary model folder.

    CHECKPOINT is a name such as latest or cycle-2/recovered; FOLDER must be new or empty.
    """
    from pipelines.runtime.registry import existing

    existing(workspace)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty: name a new folder")
    from pipelines.export import export

    with stage_options.at_work(workspace, "recover export", alone=False) as session:
        written = export(session, checkpoint, folder, merge=merge)
    common.emit(written, as_json, f"wrote {written['name']} ({written['kind']}) to {written['path']}")
