"""`recover prune`: deletion of weights that are no longer needed."""

from __future__ import annotations

import click

from pipelines.cli import common, stage_options
from recovery.workspace import Workspace


@click.command()
@common.workspace
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=("all",),
    metavar="NAME",
    help="What to prune: rejected, midtrained (of accepted cycles), replaced, states, interrupted; all; repeatable.  "
    "[default: all]",
)
@click.option("--yes", is_flag=True, help="Delete; without this flag the command only lists what it would delete.")
@common.as_json
def command(workspace: Workspace, policies: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete weights that are no longer needed.

    Without --yes it only lists what it would delete.

    Keeps the clean model, the latest checkpoint, the end of an accepted cycle, all checkpoints of an undecided cycle,
    and what unfinished work refers to. Scores, responses and decisions stay.
    """
    from pipelines.prune import plan_prune, prune
    from pipelines.runtime.registry import existing

    existing(workspace)
    with stage_options.at_work(workspace, "recover prune", alone=yes) as session:
        removals = plan_prune(session, policies)
        total = sum(removal.bytes for removal in removals)
        freed = prune(session, removals) if yes else 0
    rows = [{"name": r.name, "bytes": r.bytes, "policy": r.policy, "path": str(r.path)} for r in removals]
    lines = [f"{_size(r.bytes):>10}  {r.name}: {r.why}" for r in removals]
    lines.append(
        f"{_size(freed)} freed" if yes else f"{_size(total)} would be freed" + ("; add --yes" if total else "")
    )
    common.emit({"removals": rows, "bytes": total, "freed": freed}, as_json, "\n".join(lines))


def _size(count: int) -> str:
    """Format a number of bytes."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.1f} {unit}" if unit != "B" else f"{count} B"
        size /= 1024
    return f"{size:.1f} GiB"
