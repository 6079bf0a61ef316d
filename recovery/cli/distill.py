"""`recover distill`: give a degraded student its behaviour back."""

from __future__ import annotations

import click

from recovery.cli import dials, options, stages


@click.command()
@dials.common
@dials.divergence
@dials.top_k
@click.pass_context
def command(context: click.Context, /, **_: object) -> None:
    """Recover a student's behaviour by on-policy distillation.

    The student answers, the teacher scores every token, the student moves towards it. Needs no mid-training here:
    `recover distill --student ./my-finetune --teacher ORG/MODEL`. It is `recover train --method opd`.
    """
    run(context, method="opd")


def run(context: click.Context, **fixed: str) -> None:
    """Run or plan the one stage of all methods: with the flags of the command, and what it has ``fixed``."""
    from pipelines.distill import distill, plan_distill
    from pipelines.setting import NOBODY
    from recovery.config import SELF_TEACHERS, DistillConfig, Recipe, build, read_recipe
    from recovery.server import is_address

    flags, given = context.params, options.given(context) | fixed
    own = read_recipe(flags["recipe"]) if flags["recipe"] else Recipe()
    build(DistillConfig, given, own)
    teacher = flags["teacher"]
    clean = None if teacher in (None, "base", "latest", *NOBODY, *SELF_TEACHERS) or "=" in teacher else teacher
    clean = None if clean is not None and is_address(clean) else clean
    purpose, as_json = f"recover {context.info_name}", flags["as_json"]
    with stages.at_work(flags["workspace"], purpose, model=flags["model"], fallback=clean) as session:
        config = build(DistillConfig, given, own, session.recipe)
        if flags["dry_run"]:
            plan = plan_distill(session, config)
            options.emit(plan, as_json, plan.text)
            return
        made = distill(session, config)
    text = f"made {made.name}: {made.path}\nnext: recover eval"
    options.emit({"checkpoint": stages.checkpoint_json(made)}, as_json, text)
