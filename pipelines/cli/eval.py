"""`recover eval`: behaviour and knowledge scores of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipelines.cli import common, stage_options
from recovery.workspace import Workspace


@click.command()
@click.argument("checkpoint", default="latest")
@common.model
@common.workspace
@common.recipe
@click.option("--limit", type=click.IntRange(min=1), default=None, help="Maximum items per suite.  [default: 1000]")
@stage_options.max_new_tokens
@click.option(
    "--question-tokens", type=click.IntRange(min=1), default=None, help="Maximum tokens of an answer to a question."
)
@stage_options.prompts
@click.option(
    "--ifeval",
    default=None,
    metavar="PATH",
    help="Also evaluate on IFEval's own prompts: a file of them, or 'hub' to fetch it.",
)
@click.option(
    "--ifeval-tokens",
    type=click.IntRange(min=1),
    default=None,
    help="Maximum tokens of a response to one of IFEval's own prompts.  [default: 1280]",
)
@click.option(
    "--complete-loops/--no-complete-loops",
    default=None,
    help="Stop a response that repeats itself, and complete it with the repetition: halves the time if a small model "
    "does not stop.",
)
@click.option(
    "--texts",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=None,
    metavar="FOLDER",
    help="Also measure bits per byte on these texts, which are never trained on: the model's general language ability.",
)
@click.option(
    "--responses",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    metavar="FILE",
    help="Judge these responses to the --ifeval file instead of running a model: lines of prompt and response.",
)
@stage_options.suites
@stage_options.model_options
@common.seed
@common.dry_run
@common.as_json
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

    CHECKPOINT is a name (base, latest, cycle-1/recovered), a folder or a hub id. Every score is recorded in the
    tracker with its standard error and all responses.
    """
    if responses is not None:
        _judge(ifeval, responses, as_json)
        return
    from pipelines.evaluation.plan import gather, plan_evaluate
    from pipelines.evaluation.retention import kept
    from pipelines.evaluation.stage import evaluate, measured
    from recovery.config import EvalConfig, Recipe, build, read_recipe

    own = read_recipe(recipe) if recipe else Recipe()
    with stage_options.at_work(workspace, "recover eval", model=model, alone=False) as session:
        config = build(EvalConfig, common.given(context), own, session.recipe)
        checkpoint = session.resolve(config.checkpoint)
        asked = gather(session, config, checkpoint)
        plan = plan_evaluate(session, config, asked=asked)
        if dry_run:
            common.emit(plan, as_json, plan.text)
            return
        for effect in plan.effects[:1]:
            common.note(effect)
        results = evaluate(session, config, asked=asked)
        if not measured(session, session.base):
            common.note("the clean model is not evaluated yet, so there is nothing to compare with: recover eval base")
        found = kept(session, checkpoint, results)
    _show(checkpoint.name, results, found, as_json)


def _judge(ifeval: str | None, responses: Path, as_json: bool) -> None:
    """Judge responses from elsewhere; needs no model and no workspace."""
    from evals.offline_responses import judge_file
    from recovery.errors import UsageError

    if ifeval is None or not Path(ifeval).is_file():
        raise UsageError(f"--responses {responses} needs the prompts they answer: give a file with --ifeval")
    found = judge_file(ifeval, responses)
    for problem in found.problems:
        common.note(problem)
    common.emit(found.to_json(), as_json, found.text)


def _show(name: str, results: Any, found: Any, as_json: bool) -> None:
    """Print every score with its retention relative to the clean model and to the best earlier checkpoint."""
    from evals.suites import scores_json

    def line(result: Any) -> str:
        change = f"  {found[result.suite].text()}" if result.suite in found else ""
        score = f"{result.score.value:7.3f} ± {result.score.stderr:.3f}  (n = {result.score.n:,})"
        return f"{result.suite:32} {score}{change}"

    value = {"checkpoint": name, "scores": scores_json(results), "kept": found}
    common.emit(value, as_json, lambda: "\n".join([name, *map(line, results)]))
