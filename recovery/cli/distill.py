"""`recover distill`: give a degraded student its behaviour back."""

from __future__ import annotations

from pathlib import Path

import click

from recovery.cli import options, stages


@click.command()
@click.option(
    "--teacher", default=None, metavar="NAME", help="Who scores behaviour: base, a folder or a hub id.  [default: base]"
)
@click.option(
    "--student", default=None, metavar="NAME", help="Who is recovered: a name, a folder, a hub id.  [default: latest]"
)
@click.option(
    "--knowledge-teacher",
    default=None,
    metavar="NAME",
    help="Who scores questions about the documents, e.g. midtrained.  [default: nobody; inside a cycle midtrained]",
)
@click.option(
    "--knowledge-share", type=click.FloatRange(0, 0.95), default=None, help="Share of prompts that are such questions."
)
@click.option(
    "--document-loss",
    type=click.FloatRange(0, 0.95),
    default=None,
    help="Share of trained tokens that are documents themselves.",
)
@options.model
@options.workspace
@options.recipe
@stages.prompts
@click.option("--prompts-per-step", type=click.IntRange(min=1), default=None, help="Different prompts in one step.")
@click.option("--samples-per-prompt", type=click.IntRange(min=1), default=None, help="Answers sampled to each prompt.")
@stages.max_new_tokens
@options.steps
@options.lr
@click.option(
    "--divergence", type=click.Choice(["reverse_kl", "forward_kl", "jsd"]), default=None, help="What is made small."
)
@click.option(
    "--until",
    type=click.FloatRange(0, 1),
    default=None,
    help="Stop when this share of the teacher's score is proven on 1,000 prompts; 0: never.  [default: 0.99]",
)
@click.option("--margin", type=click.FloatRange(0, 0.95), default=None, help="Margin of that test, in score.")
@click.option("--check-every", type=click.IntRange(min=1), default=None, help="Steps between such tests.")
@click.option("--development", type=click.IntRange(min=1), default=None, help="Development prompts in such a test.")
@click.option(
    "--plateau",
    type=click.IntRange(min=0),
    default=None,
    help="Stop where the divergence no longer falls over so many steps; 0: never.",
)
@stages.tuning_options
@stages.model_options
@options.seed
@options.dry_run
@options.as_json
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
    `recover distill --student ./my-finetune --teacher ORG/MODEL`.
    """
    from pipelines.distill import distill, plan_distill
    from recovery.config import DistillConfig, Recipe, build, read_recipe

    own = read_recipe(recipe) if recipe else Recipe()
    build(DistillConfig, options.given(context), own)
    clean = None if teacher in (None, "base", "latest") else teacher
    with stages.at_work(workspace, "recover distill", model=model, fallback=clean) as session:
        config = build(DistillConfig, options.given(context), own, session.recipe)
        if dry_run:
            plan = plan_distill(session, config)
            options.emit(plan, as_json, plan.text)
            return
        made = distill(session, config)
    text = f"made {made.name}: {made.path}\nnext: recover eval"
    options.emit({"checkpoint": stages.checkpoint_json(made)}, as_json, text)
