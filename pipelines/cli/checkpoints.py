"""`recover checkpoints`: the list of checkpoints and their origins."""

from __future__ import annotations

import click

from pipelines.cli import common
from recovery.workspace import Workspace


@click.command()
@common.workspace
@common.as_json
def command(workspace: Workspace, as_json: bool) -> None:
    """List the checkpoints and where they came from."""
    from pipelines.cli.stage_options import checkpoint_json
    from pipelines.runtime.registry import reading

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

    common.emit(rows, as_json, text)
