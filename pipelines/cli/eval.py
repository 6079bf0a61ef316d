"""`recover eval`: behaviour and knowledge scores of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from pipelines.cli import common, stage_options
from pipelines.cli.stage_options import option_of, options_of
from recovery.config import EvalConfig, Recipe, build
from recovery.errors import UsageError
from recovery.workspace import Workspace


@click.command(
    cls=common.ShortHelp,
    common="model workspace limit trial prompts ifeval behaviour tasks texts responses served_at runtime engine "
    "dry_run as_json",
)
@click.argument("checkpoint", default="latest", callback=common.check_name)
@common.model
@common.workspace
@common.report_to()
@common.recipe
@options_of(EvalConfig, "limit", "earlier_limit", "near_misses", "max_new_tokens", "question_tokens")
@stage_options.trial
@stage_options.prompts
@stage_options.ifeval
@option_of(EvalConfig, "complete_loops")
@stage_options.retired("--recognise/--no-recognise")
@option_of(EvalConfig, "texts")
@click.option(
    "--responses",
    type=common.NamedPath(exists=True, dir_okay=False),
    metavar="FILE",
    help="Judge these responses to the --ifeval file instead of running a model: lines of prompt and response.",
)
@click.option(
    "--import",
    "logs",
    type=common.NamedPath(),
    metavar="PATH",
    help="Record results that another tool measured on CHECKPOINT: a folder of lm-eval's --log_samples, or logs of "
    "Inspect. A new name is recorded as a checkpoint without weights.",
)
@options_of(EvalConfig, "served_at", "runtime", "despite_differences")
@stage_options.suites
@stage_options.model_options
@stage_options.seed
@common.dry_run
@common.as_json
@click.pass_context
def command(
    context: click.Context,
    /,
    workspace: Workspace,
    model: str | None,
    recipe: Recipe,
    ifeval: str | None,
    responses: Path | None,
    logs: Path | None,
    dry_run: bool,
    as_json: bool,
    **_: object,
) -> None:
    """Measure behaviour and knowledge of a checkpoint.

    CHECKPOINT is a name (base, latest, cycle-1/recovered), a folder or a hub id. Every score is recorded in the
    tracker with its standard error and all responses. With --served or --runtime what is served is measured, as an
    artifact of the checkpoint that it was made from; template, tokens and end tokens are compared first.
    """
    if responses is not None:
        _judge(ifeval, responses, as_json)
        return
    if logs is not None:
        _import(context, workspace, model, logs, dry_run, as_json)
        return
    from pipelines.runtime.checkpoint_names import is_here

    flags = common.given(context)
    wanted = build(EvalConfig, flags, recipe)  # wrong flags are reported before anything is opened
    file = _exported_file(wanted, workspace) if wanted.runtime else None
    itself = wanted.checkpoint if file is None and is_here(wanted.checkpoint) else None  # a new workspace's clean model
    if itself is None and file is None:
        stage_options.check_clean_model(workspace, model, wanted.checkpoint)
    with (
        stage_options.at_work(
            workspace, "recover eval", model=model, fallback=itself, exclusive=False, dry_run=dry_run
        ) as session,
        stage_options.configured(session, EvalConfig, flags, recipe) as config,
    ):
        if file is not None:
            from pipelines.evaluation.artifacts import source_of

            config = replace(config, checkpoint=source_of(session, file).name, file=file)
        checkpoint = session.resolve(config.checkpoint)  # a wrong name is reported before torch is imported
        from pipelines.evaluation.plan import gather, plan_evaluate

        inputs = gather(session, config, checkpoint)  # as is an unknown task, or a file that cannot be used
        from pipelines.evaluation.retention import kept
        from pipelines.evaluation.stage import evaluate, how_measured, measured, newest_measured
        from recovery.models.hardware import gpu_name

        planned = partial(plan_evaluate, inputs=inputs)
        if config.trial:
            config = stage_options.trial_sizes(session, "eval", config, flags, planned)
        plan = planned(session, config)
        if dry_run:
            common.emit(plan, as_json, plan.text)
            return
        for effect in plan.effects[:1]:
            common.note(effect)
        session.registered(checkpoint)
        results = evaluate(session, config, inputs=inputs)
        checkpoint = newest_measured(session)
        if not measured(session, session.base):
            common.note("the clean model is not evaluated yet, so there is nothing to compare with: recover eval base")
        retention = kept(session, checkpoint, results)
        how = how_measured(session, checkpoint, gpu_name(config.device)) if as_json else {}
    _show(checkpoint.name, results, retention, as_json, how)


def _exported_file(config: EvalConfig, workspace: Workspace) -> Path:
    """Return the file that --runtime serves, of a workspace that exists."""
    from pipelines.runtime.registry import existing
    from recovery.models.gguf_files.header import is_gguf

    existing(workspace)
    file = Path(config.checkpoint).expanduser()
    if not (is_gguf(file) and file.is_file()):
        raise UsageError(f"--runtime {config.runtime} serves a GGUF file, and {config.checkpoint} is none: export one")
    return file.resolve()


def _import(
    context: click.Context, workspace: Workspace, model: str | None, logs: Path, dry_run: bool, as_json: bool
) -> None:
    """Record the results in another tool's logs; needs no model."""

    if "checkpoint" not in common.given(context):
        raise UsageError(f"name the checkpoint whose results are in {logs}: recover eval CHECKPOINT --import {logs}")
    from pipelines.evaluation.importing import import_results, read_import, target
    from pipelines.evaluation.retention import kept

    name = context.params["checkpoint"]
    imported = read_import(name, logs)  # logs that cannot be used are reported before a workspace is made
    for problem in imported.problems:
        common.note(problem)
    with stage_options.at_work(workspace, "recover eval", model=model, exclusive=False, dry_run=dry_run) as session:
        if dry_run:
            full, known = target(session, name)
            new = "" if known is not None else ", a new checkpoint without weights"
            common.note(f"dry run: nothing is recorded; these results would be recorded for {full}{new}")
            _show(full, imported.results, {}, as_json)
            return
        checkpoint, results = import_results(session, name, logs, imported)
        retention = kept(session, checkpoint, results)
    _show(checkpoint.name, results, retention, as_json)


def _judge(ifeval: str | None, responses: Path, as_json: bool) -> None:
    """Judge responses from elsewhere; needs no model and no workspace."""
    from evals.instruction_following import judge_file

    if ifeval is None or not Path(ifeval).is_file():
        raise UsageError(f"--responses {responses} needs the prompts they answer: give a file with --ifeval")
    judged = judge_file(ifeval, responses)
    for problem in judged.problems:
        common.note(problem)
    common.emit(judged.to_json(), as_json, judged.text)


def _show(name: str, results: Any, kept: Any, as_json: bool, how: Mapping[str, Any] | None = None) -> None:
    """Print every score with its retention relative to the clean model and to the best earlier checkpoint; as JSON
    also its parts, and ``how`` it was measured.
    """
    from db.records import Score, interval_of
    from pipelines.evaluation.stored_results import scores_json

    def line(suite: str, result_score: Any) -> str:
        score = Score(result_score.value, result_score.stderr, result_score.n)
        low, high = interval_of(suite, score) or (score.value, score.value)
        return f"{suite:32} {score.value:7.3f}  (95%: {low:.3f} to {high:.3f}, n = {score.n:,})"

    def shown(result: Any) -> str:
        change = f"  {kept[result.suite].text()}" if result.suite in kept else ""
        return line(result.suite, result.score) + change

    parts = {one.suite: {key: score.value for key, score in one.details.items()} for one in results if one.details}
    value = {"checkpoint": name, "scores": scores_json(results), "kept": kept, "details": parts, "recorded": how or {}}
    common.emit(value, as_json, lambda: "\n".join([name, *map(shown, results)]))
