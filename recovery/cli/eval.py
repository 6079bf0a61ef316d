"""`recover eval`: what a checkpoint can do and knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from recovery.cli import options, stages
from recovery.workspace import Workspace


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
    "--ifeval-tokens",
    type=click.IntRange(min=1),
    default=None,
    help="Tokens an answer to one of IFEval's own prompts may take.  [default: 1280]",
)
@click.option(
    "--complete-loops/--no-complete-loops",
    default=None,
    help="End an answer that repeats itself, and take the repetition as the rest of it: half the time where a small "
    "model finds no end.",
)
@click.option(
    "--texts",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=None,
    metavar="FOLDER",
    help="Also bits per byte on these texts, which nothing is learnt from: what became of the language.",
)
@click.option(
    "--responses",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    metavar="FILE",
    help="Judge these responses to the --ifeval file instead of asking a model: lines of prompt and response.",
)
@stages.suites
@stages.model_options
@options.seed
@options.dry_run
@options.as_json
@click.pass_context
def command(
    context: click.Context,
    /,
    workspace: Workspace,
    model: str | None,
    recipe: Path | None,
    ifeval: str | None,
    responses: Path | None,
    dry_run: bool,
    as_json: bool,
    **_: object,
) -> None:
    """Measure behaviour and knowledge of a checkpoint.

    CHECKPOINT is a name (base, latest, cycle-1/recovered), a folder or a hub id. Every score goes into the tracker
    with its standard error and every answer.
    """
    if responses is not None:
        _judge(ifeval, responses, as_json)
        return
    from pipelines.agenda import gather, plan_evaluate
    from pipelines.evaluate import evaluate, measured
    from pipelines.retained import kept
    from recovery.config import EvalConfig, Recipe, build, read_recipe

    own = read_recipe(recipe) if recipe else Recipe()
    with stages.at_work(workspace, "recover eval", model=model, alone=False) as session:
        config = build(EvalConfig, options.given(context), own, session.recipe)
        checkpoint = session.resolve(config.checkpoint)
        asked = gather(session, config, checkpoint)
        plan = plan_evaluate(session, config, asked=asked)
        if dry_run:
            options.emit(plan, as_json, plan.text)
            return
        for effect in plan.effects[:1]:
            options.note(effect)
        results = evaluate(session, config, asked=asked)
        if not measured(session, session.base):
            options.note("the clean model was not measured yet, so there is nothing to compare with: recover eval base")
        found = kept(session, checkpoint, results)
    _show(checkpoint.name, results, found, as_json)


def _judge(ifeval: str | None, responses: Path, as_json: bool) -> None:
    """Responses that were made elsewhere; nothing is loaded and no workspace is needed."""
    from evals.responses import judge_file
    from recovery.errors import UsageError

    if ifeval is None or not Path(ifeval).is_file():
        raise UsageError(f"--responses {responses} needs the prompts they answer: give a file with --ifeval")
    found = judge_file(ifeval, responses)
    for problem in found.problems:
        options.note(problem)
    options.emit(found.to_json(), as_json, found.text)


def _show(name: str, results: Any, found: Any, as_json: bool) -> None:
    """Every score, and beside it what is left of the clean model's and of the best one before."""
    from evals.suites import scores_json

    def line(result: Any) -> str:
        beside = f"  {found[result.suite].text()}" if result.suite in found else ""
        score = f"{result.score.value:7.3f} ± {result.score.stderr:.3f}  (n = {result.score.n:,})"
        return f"{result.suite:32} {score}{beside}"

    value = {"checkpoint": name, "scores": scores_json(results), "kept": found}
    options.emit(value, as_json, lambda: "\n".join([name, *map(line, results)]))
