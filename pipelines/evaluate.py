"""Evaluation: what a checkpoint can do and knows, every score and every answer into the tracker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from db import queries, records
from evals import suites
from evals.harness import EngineLM
from evals.ifeval import evaluate_ifeval
from evals.probes import load_probes
from evals.retention import run_tasks
from pipelines.corpora import FrozenCorpus, thaw_all
from pipelines.models import engine_of, load_frozen
from pipelines.progress import Bar
from pipelines.session import Session
from pipelines.stage import Stage, running
from recovery.config import EvalConfig
from recovery.errors import UsageError
from recovery.loading import Loaded
from recovery.prompts import behaviour_prompts
from recovery.rollouts import Engine
from recovery.types import Probe, Prompt, SuiteResult
from recovery.workspace import Checkpoint

GENERAL = Path("suites") / "general.jsonl"


@dataclass(frozen=True)
class Scope:
    """Which parts to measure: all of them, or for a cycle only what is new. ``corpora`` None means all known."""

    behaviour: bool = True
    general: bool = True
    corpora: tuple[int, ...] | None = None


@dataclass(frozen=True)
class EvalPlan:
    """What will be asked of which checkpoint."""

    checkpoint: str
    instruction_prompts: int
    probes_by_corpus: dict[int, int]
    held_out_documents: dict[int, int]
    general_probes: int
    limit: int | None
    extra: tuple[str, ...] = ()

    def text(self) -> str:
        """The plan for a person."""
        probes = ", ".join(f"{n} about corpus {k}" for k, n in self.probes_by_corpus.items()) or "none"
        return "\n".join(
            [
                f"evaluate {self.checkpoint}: {self.instruction_prompts} instruction prompts; probes: {probes}; "
                f"{self.general_probes} of general knowledge",
                *self.extra,
            ]
        )


@dataclass(frozen=True)
class _Questions:
    """Everything that is asked."""

    instruction: Sequence[Prompt]
    corpora: dict[int, FrozenCorpus]
    general: Sequence[Probe]


def plan_evaluate(session: Session, config: EvalConfig, scope: Scope = Scope()) -> EvalPlan:
    """The resolved plan; loads no weights."""
    checkpoint = session.resolve(config.checkpoint)
    asked = _gather(session, config, checkpoint, scope)
    kept = suites.sample(asked.instruction, config.limit)
    return EvalPlan(
        checkpoint.name,
        len(kept),
        {k: len(corpus.probes) for k, corpus in asked.corpora.items()},
        {k: len(corpus.held_out) for k, corpus in asked.corpora.items()},
        len(suites.sample(asked.general, config.limit)),
        config.limit,
        tuple([f"IFEval's own prompts from {config.ifeval}"] if config.ifeval else [])
        + tuple(f"lm-eval task {task}" for task in config.tasks),
    )


def evaluate(
    session: Session,
    config: EvalConfig,
    *,
    scope: Scope = Scope(),
    cycle: int | None = None,
    resume: records.Stage | None = None,
) -> list[SuiteResult]:
    """Measure a checkpoint and record every suite with its items. Raises UsageError where there is nothing to ask."""
    checkpoint = session.registered(session.resolve(config.checkpoint))
    asked = _gather(session, config, checkpoint, scope)
    number = cycle if cycle is not None else checkpoint.cycle
    with running(session, "evaluate", config, cycle=number, student=checkpoint, resume=resume) as stage:
        loaded = load_frozen(session.verified(checkpoint), config)
        engine = engine_of(loaded, config)
        with _bars(session, stage, f"evaluate {checkpoint.name}") as bars:
            results = _measure(loaded, engine, config, asked, bars)
            results += _extra(loaded, engine, config)
        if not results:
            raise UsageError(f"there is nothing to ask {checkpoint.name}: give --docs to mid-train on, or --prompts")
        facts = suites.recorded(
            engine, max_new_tokens=config.max_new_tokens, question_tokens=config.question_tokens, seed=config.seed
        )
        for result in results:
            record(session, stage, checkpoint, result)
        stage.details = {"recorded": facts, "suites": [result.suite for result in results]}
    return results


def measured(session: Session, checkpoint: Checkpoint) -> bool:
    """Whether an evaluation of this checkpoint was finished."""
    stages = queries.stages(session.tracker.database, session.experiment_id, kind="evaluate", limit=1000)
    return any(stage.student_id == checkpoint.id and stage.status == "finished" for stage in stages)


def corpora_measured(session: Session, checkpoint: Checkpoint) -> set[int]:
    """The corpora whose probes this checkpoint was asked."""
    if checkpoint.id is None:
        return set()
    scores = queries.scores(session.tracker.database, checkpoint.id)
    return set(scores.domain_knowledge_by_corpus) | set(scores.domain_knowledge_stored_by_corpus)


def _gather(session: Session, config: EvalConfig, checkpoint: Checkpoint, scope: Scope) -> _Questions:
    base = session.base
    cycles = [k for k in session.cycles() if checkpoint.cycle is None or k <= checkpoint.cycle]
    wanted = cycles if scope.corpora is None else [k for k in cycles if k in scope.corpora]
    prompts: Iterable[Prompt] = (
        behaviour_prompts(base.path, config.prompts, config.seed).test if scope.behaviour else ()
    )
    general = base.path / GENERAL
    return _Questions(
        [p for p in prompts if p.checks or p.answer is not None or "refusal" in p.tags],
        thaw_all(session.workspace, wanted),
        load_probes(general) if scope.general and general.is_file() else (),
    )


def _measure(loaded: Loaded, engine: Engine, config: EvalConfig, asked: _Questions, bars: _Bars) -> list[SuiteResult]:
    return suites.evaluate(
        loaded,
        engine,
        instruction=asked.instruction,
        probes_by_corpus={k: corpus.probes for k, corpus in asked.corpora.items() if corpus.probes},
        held_out={k: [d.text for d in corpus.held_out] for k, corpus in asked.corpora.items() if corpus.held_out},
        general=asked.general,
        max_new_tokens=config.max_new_tokens,
        question_tokens=config.question_tokens,
        seed=config.seed,
        limit=config.limit,
        progress=bars.show,
    )


def _extra(loaded: Loaded, engine: Engine, config: EvalConfig) -> list[SuiteResult]:
    """IFEval's own prompts, and lm-eval tasks by name or file, where they were asked for."""
    results = []
    if config.ifeval:
        path = None if config.ifeval == "hub" else Path(config.ifeval)
        results.append(evaluate_ifeval(loaded, engine, path, limit=config.limit, seed=config.seed))
    if config.tasks:
        lm = EngineLM(loaded, engine, seed=config.seed)
        tasks = [Path(task) if Path(task).exists() else task for task in config.tasks]
        results += run_tasks(lm, tasks, limit=config.limit)
    return results


def record(session: Session, stage: Stage, checkpoint: Checkpoint, result: SuiteResult) -> None:
    """Enter a suite's result in the tracker; "NAME/3" is the suite NAME of corpus 3."""
    suite, _, corpus = result.suite.partition("/")
    by_corpus = corpus.isdigit()
    assert checkpoint.id is not None  # registered before the stage began
    session.tracker.add_evaluation(
        checkpoint.id,
        suite if by_corpus else result.suite,
        value=result.score.value,
        stderr=result.score.stderr,
        n=result.score.n,
        name="strict" if suite == "instruction_following" else "score",
        corpus=int(corpus) if by_corpus else None,
        details=dict(result.details),
        items=result.items,
        stage_id=stage.recorder.id,
    )


@dataclass
class _Bars:
    """One bar for whichever suite is running; also where an evaluation notices that it should stop."""

    session: Session
    stage: Stage
    title: str
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    suite: str = ""
    bar: Bar | None = None

    def show(self, suite: str, done: int, total: int) -> None:
        """The progress callback of evals.suites."""
        self.stage.interrupts.check()
        if suite != self.suite or self.bar is None:
            self.stack.close()
            self.suite, self.bar = (
                suite,
                self.stack.enter_context(self.session.display.bar(f"{self.title}: {suite}", total)),
            )
        self.bar.update(done)
        self.stage.recorder.progress(done, total)


@contextlib.contextmanager
def _bars(session: Session, stage: Stage, title: str) -> Iterator[_Bars]:
    bars = _Bars(session, stage, title)
    with bars.stack:
        yield bars
