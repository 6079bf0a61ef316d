"""`recover resume`: continue after Ctrl-C, a crash or a kill."""

from __future__ import annotations

import click

from pipelines.cli import common, stage_options
from recovery.workspace import Workspace


@click.command()
@common.workspace
@common.report_to()
@common.dry_run
@common.as_json
def command(workspace: Workspace, dry_run: bool, as_json: bool) -> None:
    """Resume interrupted work.

    A stage continues from its newest saved state; cycles continue with the parts that the tracker does not hold. What
    was rejected or rolled back is not continued.
    """
    from pipelines.runtime.registry import existing

    existing(workspace)
    from pipelines.cycle_plan import begun_from_recipes, interrupted, read_plan, resumable
    from recovery.config import naming_recipes

    with stage_options.at_work(workspace, "recover resume") as session:
        if dry_run:
            plan, stage = read_plan(session), resumable(session)
            found = {
                "cycles": [plan.first + at for at in range(len(plan.config.docs))] if plan else [],
                "stage": {"id": stage.id, "kind": stage.kind, "step": stage.steps} if stage else None,
            }
            text = f"stage {stage.id} ({stage.kind}){stage.at_step}" if stage else "no stage"
            common.emit(found, as_json, f"to resume: {text}; planned cycles: {found['cycles'] or 'none'}")
            return
        session.tracker.database.require_sound()
        session.remove_finished()
        plan, stage = interrupted(session)
        session.from_recipes = begun_from_recipes(session, plan, stage)
        with naming_recipes(session.from_recipes, "; what is resumed keeps its settings"):
            from pipelines.cycle import resume

            done = resume(session)
    if plan is None or as_json:
        common.emit({"done": done}, as_json, done)
        return
    from pipelines.cli.status import show_end

    common.note(done)
    show_end(workspace, as_json)
