"""`recover resume`: go on after Ctrl-C, a crash or a kill."""

from __future__ import annotations

import click

from recovery.cli import options, stages
from recovery.workspace import Workspace


@click.command()
@options.workspace
@options.dry_run
@options.as_json
def command(workspace: Workspace, dry_run: bool, as_json: bool) -> None:
    """Continue what was interrupted.

    A stage goes on from its newest saved state; cycles go on with whatever the tracker says is missing.
    """
    from pipelines.registry import existing

    existing(workspace)
    from pipelines.cycle import read_plan, resumable, resume

    with stages.at_work(workspace, "recover resume") as session:
        if dry_run:
            plan, stage = read_plan(session), resumable(session)
            found = {
                "cycles": [plan.first + at for at in range(len(plan.config.docs))] if plan else [],
                "stage": {"id": stage.id, "kind": stage.kind, "step": stage.steps_done} if stage else None,
            }
            text = f"stage {stage.id} ({stage.kind}) at step {stage.steps_done}" if stage else "no stage"
            options.emit(found, as_json, f"to resume: {text}; planned cycles: {found['cycles'] or 'none'}")
            return
        done = resume(session)
    options.emit({"done": done}, as_json, done)
