"""`recover checkpoints`: what there is, and where it came from."""

from __future__ import annotations

import click

from recovery.cli import options
from recovery.workspace import Workspace


@click.command()
@options.workspace
@options.as_json
def command(workspace: Workspace, as_json: bool) -> None:
    """List the checkpoints and where they came from."""
    from db import queries
    from pipelines.registry import Registry, open_tracker
    from recovery.cli.stages import checkpoint_json

    database = open_tracker(workspace)
    try:
        experiment = queries.experiment(database, workspace.experiment)
        registry = Registry(workspace, database, experiment.id if experiment is not None else 0)
        found, latest = registry.all(), registry.latest()
    finally:
        database.close()
    rows = [checkpoint_json(c) | {"latest": latest is not None and c.name == latest.name} for c in found]

    def text() -> str:
        lines = [
            f"{'*' if row['latest'] else ' '} {row['name']:24} {row['kind']:11} {row['tuning']:5} {row['hash'][:12]}  "
            f"from {row['parent'] or '-':24} {row['path']}"
            for row in rows
        ]
        return "\n".join([*lines, "* latest"])

    options.emit(rows, as_json, text)
