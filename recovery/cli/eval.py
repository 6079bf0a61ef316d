"""`recover eval`: what a checkpoint can do and knows."""

from __future__ import annotations

from pathlib import Path

import click

from recovery.cli import options, stages


@click.command()
@click.argument("checkpoint", default="latest")
@options.model
@options.workspace
@options.recipe
@click.option(
    "--limit", type=click.IntRange(min=1), default=None, help="Items asked of each suite at most.  [default: 1000]"
)
@stages.max_new_tokens
@click.option(
    "--question-tokens", type=click.IntRange(min=1), default=None, help="Tokens an answer to a question may take."
)
@stages.prompts
@click.option(
    "--ifeval", default=None, metavar="PATH", help="Ask IFEval's own prompts too: a file of them, or 'hub' to fetch it."
)
@click.option(
    "--task", "tasks", multiple=True, metavar="NAME", help="An lm-eval task too: its name or its yaml; may be repeated."
)
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
    recipe: Path | None,
    dry_run: bool,
    as_json: bool,
    **_: object,
) -> None:
    """Measure behaviour and knowledge of a checkpoint.

    CHECKPOINT is a name (base, latest, cycle-1/recovered), a folder or a hub id. Every score goes into the tracker
    with its standard error and every answer.
    """
    from evals.suites import scores_json
    from pipelines.evaluate import evaluate, measured, plan_evaluate
    from recovery.config import EvalConfig, Recipe, build, read_recipe

    own = read_recipe(recipe) if recipe else Recipe()
    with stages.at_work(workspace, "recover eval", model=model, alone=False) as session:
        config = build(EvalConfig, options.given(context), own, session.recipe)
        name = session.resolve(config.checkpoint).name
        if dry_run:
            plan = plan_evaluate(session, config)
            options.emit(plan, as_json, plan.text)
            return
        results = evaluate(session, config)
        if not measured(session, session.base):
            options.note("the clean model was not measured yet, so there is nothing to compare with: recover eval base")

    def text() -> str:
        lines = [f"{r.suite:32} {r.score.value:7.3f} ± {r.score.stderr:.3f}  (n = {r.score.n:,})" for r in results]
        return "\n".join([name, *lines])

    options.emit({"checkpoint": name, "scores": scores_json(results)}, as_json, text)
