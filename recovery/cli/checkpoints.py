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
    from pipelines.registry import reading
    from recovery.cli.stages import checkpoint_json

    with reading(workspace) as registry:
        found, latest = registry.all(), registry.latest()
    rows = [checkpoint_json(c) | {"latest": latest is not None and c.name == latest.name} for c in found]

    def text() -> str:
        lines = [
            f"{'*' if row['latest'] else ' '} {row['name']:24} {row['kind']:11} {row['tuning']:5} {row['hash'][:12]}  "
            f"from {row['parent'] or row['origin'] or '-':24} {row['path']}"
            for row in rows
        ]
        return "\n".join([*lines, "* latest"])

    options.emit(rows, as_json, text)
