"""`recover distill`: give a degraded student its behaviour back."""

from __future__ import annotations

from pathlib import Path

import click

from recovery.cli import dials, options, stages


@click.command()
@dials.common
@dials.divergence
@click.pass_context
def command(
    context: click.Context,
    /,
    workspace: Path,
    model: str | None,
    teacher: str | None,
    recipe: Path | None,
    dry_run: bool,
    as_json: bool,
    **_: object,
) -> None:
    """Recover a student's behaviour by on-policy distillation.

    The student answers, the teacher scores every token, the student moves towards it. Needs no mid-training here:
    `recover distill --student ./my-finetune --teacher ORG/MODEL`. It is `recover train --method opd`.
    """
    run(context, "opd", workspace, model, teacher, recipe, dry_run, as_json)


def run(
    context: click.Context,
    method: str | None,
    workspace: Path,
    model: str | None,
    teacher: str | None,
    recipe: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run or plan the one stage of all methods with the flags of a command."""
    from pipelines.distill import NOBODY, distill, plan_distill
    from recovery.config import SELF_TEACHERS, DistillConfig, Recipe, build, read_recipe

    own = read_recipe(recipe) if recipe else Recipe()
    given = options.given(context) | ({"method": method} if method else {})
    build(DistillConfig, given, own)
    clean = None if teacher in (None, "base", "latest", *NOBODY, *SELF_TEACHERS) else teacher
    with stages.at_work(workspace, f"recover {context.info_name}", model=model, fallback=clean) as session:
        config = build(DistillConfig, given, own, session.recipe)
        if dry_run:
            plan = plan_distill(session, config)
            options.emit(plan, as_json, plan.text)
            return
        made = distill(session, config)
    text = f"made {made.name}: {made.path}\nnext: recover eval"
    options.emit({"checkpoint": stages.checkpoint_json(made)}, as_json, text)
