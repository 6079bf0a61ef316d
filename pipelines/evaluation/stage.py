"""The evaluation stage: measures a checkpoint and records every score and response in the tracker."""

from __future__ import annotations

import contextlib
import datetime
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from db import queries, records
from db.records import SUITE
from db.schema import ARTIFACT
from evals import suites
from evals.generation import counted
from evals.knowledge import bits_per_byte
from evals.lm_eval_adapter import EngineLM, run_tasks
from evals.lm_eval_tasks import evaluate_ifeval
from pipelines.data.corpus_snapshot import CorpusSnapshot
from pipelines.evaluation.artifacts import Served, serving
from pipelines.evaluation.plan import EVERYTHING, EvalInputs, Scope, gather, plan_rows
from pipelines.evaluation.stored_results import IMPORTED, JUDGING, record_result
from pipelines.planning.work import Answering
from pipelines.runtime.generation import cached_engine
from pipelines.runtime.model_loading import load_frozen
from pipelines.runtime.progress import SuccessiveBars
from pipelines.runtime.recorded_paths import matches_recorded, spellings
from pipelines.runtime.session import CONTENTS, Session
from pipelines.runtime.stage import running
from pipelines.runtime.versions import machine, versions
from recovery.config import EvalConfig, to_json
from recovery.config.files import changed_since, contents_of
from recovery.errors import UsageError
from recovery.models.loaded import Loaded
from recovery.rollouts.completion_cache import CachingEngine
from recovery.rollouts.engine import Engine, window_with
from recovery.types import SuiteResult
from recovery.workspace import Checkpoint

# Bits per byte on texts that are not trained on.
UNRELATED = "unrelated_text"
# Settings that determine the items and how they are evaluated.
_ASKED = (
    "seed",
    "max_new_tokens",
    "question_tokens",
    "prompts",
    "behaviour",
    "ifeval",
    "ifeval_tokens",
    "complete_loops",
    "texts",
    "tasks",
    "template_args",
)
# A larger limit adds items to those of a smaller one; None and 0 mean no limit.
_LIMITS = ("limit", "earlier_limit")  # also "near_misses", where 0 means none


def evaluate(
    session: Session,
    config: EvalConfig,
    *,
    scope: Scope = EVERYTHING,
    inputs: EvalInputs | None = None,
    cycle: int | None = None,
    resume: records.Stage | None = None,
) -> list[SuiteResult]:
    """Measure a checkpoint and record every suite with its items; ``inputs`` if already gathered.

    Raises UsageError, before anything is generated, if there are no items or an input cannot be read.
    """
    checkpoint = session.resolve(config.checkpoint)
    inputs = inputs or gather(session, config, checkpoint, scope)
    checkpoint = session.registered(checkpoint)
    asked = contents_of(EvalConfig, vars(config))
    config = replace(config, checkpoint=checkpoint.name)  # "latest" may be another one when this is resumed
    for problem in inputs.problems:
        session.display.say(problem)
    number = cycle if cycle is not None else checkpoint.cycle
    with serving(session, checkpoint, config) if config.of_artifact else contextlib.nullcontext() as served:
        subject = checkpoint if served is None else served.artifact
        opened = subject.kind == "base"  # open book: of the clean model alone
        rows = plan_rows(inputs, config, Answering.of(config, checkpoint), opened=opened) if served is None else ()
        with running(session, "evaluate", config, cycle=number, student=subject, resume=resume, rows=rows) as stage:
            bars = SuccessiveBars(session.display, f"evaluate {subject.name}")

            def show(suite: str, done: int, total: int, tokens: int) -> None:
                stage.interrupts.check()
                bars.show(suite.replace("_", " "), done, total, tokens)
                if stage.known.get(SUITE) != suite:
                    stage.describe(**{SUITE: suite})
                stage.recorder.progress(done, total)

            with _model(session, checkpoint, config, served) as (loaded, engine), bars:
                results = _measure(loaded, engine, config, inputs, inputs.pages if opened else None, show)
                results += _extra(loaded, engine, config, inputs, show)
            if not results:
                raise UsageError(
                    f"there is nothing to evaluate {subject.name} on: give --docs to mid-train on, or --prompts"
                )
            for line in _without_room(results, window_with(engine, loaded.max_length)):
                session.display.say(line)
            for result in results:
                record_result(session, stage.recorder, subject, result)
            corpora = {str(number): _contents(corpus) for number, corpus in inputs.corpora.items()}
            facts = suites.recorded(
                engine,
                max_new_tokens=config.max_new_tokens,
                question_tokens=config.question_tokens,
                ifeval_tokens=config.ifeval_tokens if config.ifeval else None,
                seed=config.seed,
            )
            stage.details = {"recorded": facts, "suites": [result.suite for result in results], "corpora": corpora}
            stage.details[CONTENTS] = asked
            if served is not None:
                stage.details[ARTIFACT] = {"differences": served.checked.differences, "unknown": served.checked.unknown}
                session.display.say(f"recorded as {subject.name}, made from {checkpoint.name}")
    return results


@contextlib.contextmanager
def _model(
    session: Session, checkpoint: Checkpoint, config: EvalConfig, served: Served | None
) -> Iterator[tuple[Loaded, CachingEngine]]:
    """Yield what is measured: a checkpoint with its weights, or what is served, without any."""
    if served is not None:
        if not served.loaded.can_score:
            session.display.say(
                "not measured: stored knowledge, K and bits per byte: it returns no log-probabilities of a given text"
            )
        yield served.loaded, served.engine
        return
    with session.at_once(f"loading {checkpoint.name}"):
        loaded = load_frozen(session.verified(checkpoint), config)
    with cached_engine(session, checkpoint, loaded, config, complete_loops=config.complete_loops) as engine:
        yield loaded, engine


def how_measured(session: Session, checkpoint: Checkpoint, gpu: str) -> dict[str, Any]:
    """Return how a checkpoint was just measured here: date, model, machine, and settings that can change a score."""
    stages = queries.stages(session.tracker.database, session.experiment_id, kind="evaluate", limit=1000)
    newest = next(one for one in stages if one.student_id == checkpoint.id and "recorded" in one.details)
    day = datetime.datetime.fromtimestamp(newest.started_at).date().isoformat()
    return {
        "date": day,
        "model": Path(session.workspace.settings()["model"]).name,
        "machine": machine(gpu),
        **newest.details["recorded"],
    }


def newest_measured(session: Session) -> Checkpoint:
    """Return the checkpoint or artifact of the newest evaluation."""
    (stage,) = queries.stages(session.tracker.database, session.experiment_id, kind="evaluate", limit=1)
    return next(one for one in session.registry.all() if one.id == stage.student_id)


def _without_room(results: Sequence[SuiteResult], window: int) -> list[str]:
    """Return a line for each suite with prompts that leave no room to answer."""
    lines = []
    for result in results:
        long = sum(bool(item.extra.get("too_long")) for item in result.items)
        if long:
            lines.append(
                f"{result.suite}: {long:,} of {len(result.items):,} prompts leave no room to answer in the model's "
                f"window of {window:,} tokens: they count as failed"
            )
    return lines


def measured(session: Session, checkpoint: Checkpoint, config: EvalConfig | None = None) -> bool:
    """Whether an evaluation of this checkpoint is finished; with ``config``, whether the newest one has its items, or
    more: the gate and the reports read the newest result of each suite. Imported results do not count, nor with
    ``config`` evaluations on a corpus alone, nor one that an imported result of the same suite came after.
    """
    done = _finished(session, checkpoint)
    if config is None:
        return bool(done)
    others = (one for one in done if any(s.partition("/")[0] not in records.PER_CORPUS for s in _suites_of(one)))
    newest = next(others, None)
    if newest is None:
        return False
    imported = _finished(session, checkpoint, imported=True)
    later = {s for stage in imported if (stage.finished_at or 0) > (newest.finished_at or 0) for s in _suites_of(stage)}
    return later.isdisjoint(_suites_of(newest)) and _asked_same_items(session, newest, config)


def _suites_of(stage: records.Stage) -> Sequence[str]:
    return stage.details.get("suites", ())


def _asked_same_items(session: Session, stage: records.Stage, config: EvalConfig) -> bool:
    """Whether a stage asked the items of these settings, or more, in the same way: also not those of a file that was
    changed since, nor with the prompts and checkers of another release.
    """
    now = versions()
    if any(stage.versions.get(name, now[name]) != now[name] for name in JUDGING if name in now):
        return False
    if changed_since(EvalConfig, vars(config), stage.details.get(CONTENTS, {})):
        return False
    return any(_has_items(stage.config, wanted) for wanted in spellings(config, session.registry))


def _has_items(asked: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether settings ask the items of others in the same way."""
    asked = {**to_json(EvalConfig()), **asked}  # an older stage lacks settings that came later
    return (
        all(matches_recorded(asked[name], wanted[name]) for name in _ASKED)
        and all((asked[name] or math.inf) >= (wanted[name] or math.inf) for name in _LIMITS)
        and asked["near_misses"] >= wanted["near_misses"]
    )


def corpus_measured(session: Session, checkpoint: Checkpoint, corpus: CorpusSnapshot, config: EvalConfig) -> bool:
    """Whether the newest evaluation of this checkpoint on that corpus asked these probes and texts, as many as
    ``config`` asks or more.

    The documents of a cycle that never trained give their number to others. An evaluation that does not record what it
    asked, as of older releases, does not count: asking again is cheap and always right.
    """
    asking = ((stage, stage.details.get("corpora", {})) for stage in _finished(session, checkpoint))
    newest = next(((stage, asked) for stage, asked in asking if str(corpus.cycle) in asked), None)
    if newest is None or newest[1][str(corpus.cycle)] != _contents(corpus):
        return False
    return _asked_same_items(session, newest[0], config)


def _contents(corpus: CorpusSnapshot) -> list[str]:
    return [corpus.hash, corpus.probes_hash]


def _finished(session: Session, checkpoint: Checkpoint, *, imported: bool = False) -> list[records.Stage]:
    """Return the finished evaluations of a checkpoint made here, or those that were ``imported``, newest first."""
    stages = queries.stages(session.tracker.database, session.experiment_id, kind="evaluate", limit=1000)
    done = [stage for stage in stages if stage.student_id == checkpoint.id and stage.status == "finished"]
    return [stage for stage in done if (IMPORTED in stage.config) == imported]


def _measure(
    loaded: Loaded,
    engine: Engine,
    config: EvalConfig,
    inputs: EvalInputs,
    pages: Mapping[int, Mapping[str, str]] | None,
    show: suites.SuiteProgress,
) -> list[SuiteResult]:
    return suites.evaluate(
        loaded,
        engine,
        instruction=inputs.instruction,
        extra_prompts=inputs.extra_prompts,
        user_suites=inputs.user_suites,
        probes_by_corpus={k: corpus.probes for k, corpus in inputs.corpora.items() if corpus.probes},
        outdated={k: corpus.outdated for k, corpus in inputs.corpora.items() if corpus.outdated},
        held_out={k: [d.text for d in corpus.held_out] for k, corpus in inputs.corpora.items() if corpus.held_out},
        general=inputs.general,
        max_new_tokens=config.max_new_tokens,
        question_tokens=config.question_tokens,
        seed=config.seed,
        limit=config.limit,
        earlier_limit=config.earlier_limit,
        near_misses=config.near_misses,
        pages=pages,
        progress=show,
    )


def _extra(
    loaded: Loaded, engine: Engine, config: EvalConfig, inputs: EvalInputs, show: suites.SuiteProgress
) -> list[SuiteResult]:
    """Evaluate on IFEval's own prompts, the user's texts and lm-eval's tasks, if requested."""
    results = []
    if inputs.ifeval:
        total = min(len(inputs.ifeval["ifeval"].eval_docs), config.limit or sys.maxsize)
        progress = counted(show, "ifeval", total)
        results.append(
            evaluate_ifeval(
                loaded,
                engine,
                inputs.ifeval,
                limit=config.limit,
                max_new_tokens=config.ifeval_tokens,
                seed=config.seed,
                progress=progress,
            )
        )
    if not loaded.can_score:
        return results
    if inputs.texts:
        show(UNRELATED, 0, len(inputs.texts), 0)
        results.append(bits_per_byte(loaded, inputs.texts, suite=UNRELATED))
    lm = EngineLM(loaded, engine, seed=config.seed)
    for number, (name, task) in enumerate(inputs.tasks.items(), start=1):
        results += run_tasks(lm, {name: task}, limit=config.limit)
        show("lm-eval tasks", number, len(inputs.tasks), 0)
    return results
