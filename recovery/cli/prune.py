"""`recover prune`: free the space of weights that nobody needs any more."""

from __future__ import annotations

import click

from recovery.cli import options, stages
from recovery.workspace import Workspace


@click.command()
@options.workspace
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="What may go: rejected, midtrained (of accepted cycles), replaced, states; may be repeated.  [default: all]",
)
@click.option("--yes", is_flag=True, help="Remove it; without this it is only said what would go.")
@options.as_json
def command(workspace: Workspace, policies: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Free the space of weights that nobody needs any more.

    It is said first what would go.

    Never the clean model, the latest checkpoint, the end of an accepted cycle, anything of a cycle that nobody decided
    about, or what unfinished work refers to. Scores, answers and decisions stay.
    """
    from pipelines.prune import POLICIES, plan_prune, prune
    from pipelines.registry import existing

    existing(workspace)
    with stages.at_work(workspace, "recover prune", alone=yes) as session:
        removals = plan_prune(session, policies or tuple(POLICIES))
        total = sum(removal.bytes for removal in removals)
        freed = prune(session, removals) if yes else 0
    rows = [{"name": r.name, "bytes": r.bytes, "policy": r.policy, "path": str(r.path)} for r in removals]
    lines = [f"{_size(r.bytes):>10}  {r.name}: {r.why}" for r in removals]
    lines.append(
        f"{_size(freed)} freed" if yes else f"{_size(total)} would be freed" + ("; add --yes" if total else "")
    )
    options.emit({"removals": rows, "bytes": total, "freed": freed}, as_json, "\n".join(lines))


def _size(count: int) -> str:
    """A number of bytes for a person."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.1f} {unit}" if unit != "B" else f"{count} B"
        size /= 1024
    return f"{size:.1f} GiB"
