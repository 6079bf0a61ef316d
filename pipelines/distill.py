"""Distillation: the student answers, the teachers score every token, the student moves. Read top to bottom.

Behaviour prompts are scored by the clean base. Questions about the documents can be routed to a second teacher,
the frozen mid-trained checkpoint, which knows the answers; the base does not.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from db import records
from evals.statistics import recovered
from evals.suites import sample
from pipelines.answers import development_file, development_result, fitting, read_result, speak, write_result
from pipelines.corpora import FrozenCorpus, thaw_all
from pipelines.estimates import Needs, seconds_for
from pipelines.midtrain import row_length, rows_of
from pipelines.mixing import targets
from pipelines.models import choose_tuning, engine_of, load_frozen, load_student, teacher_of
from pipelines.progress import duration
from pipelines.session import Session
from pipelines.stage import Stage, running, settings_of
from recovery.batches import Batch, Row
from recovery.config import DistillConfig
from recovery.errors import UsageError
from recovery.loading import Loaded, pick_device
from recovery.objectives.estimator import Estimator
from recovery.objectives.heads import Head
from recovery.prompts import PromptSplits, behaviour_prompts
from recovery.rollouts import Engine, Sampling
from recovery.teachers import Teacher
from recovery.training import StepBatch, derive_seed
from recovery.types import Prompt, SuiteResult
from recovery.workspace import Checkpoint

ENOUGH_TO_DECIDE = 1000
RECOVERED, PLATEAU = "recovered", "plateau"
# A window's mean divergence must fall to this share of the window before, or the stage has run its course.
_STILL_FALLING = 0.97
# Tokens a response takes on average, as a share of the most it may take: for the estimates of a dry run.
_USUAL_LENGTH = 0.5

T = TypeVar("T")


@dataclass(frozen=True)
class DistillPlan:
    """Everything that is known before weights are loaded."""

    cycle: int
    student: str
    teacher: str
    knowledge_teacher: str | None
    prompts: str
    behaviour_prompts: int
    knowledge_prompts: int
    development_prompts: int
    rollouts_per_step: int
    steps: int
    tokens_sampled: int
    tuning: str
    tuning_reason: str
    lr: float
    parameters: int
    memory: Needs
    seconds: float
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """The plan for a person."""
        knowledge = (
            f"; {self.knowledge_teacher} scores a share of {self.knowledge_prompts} questions about the documents"
            if self.knowledge_teacher
            else ""
        )
        return "\n".join(
            [
                f"distil {self.student} ({self.parameters / 1e6:,.1f}M parameters): {self.teacher} scores "
                f"{self.behaviour_prompts} behaviour prompts ({self.prompts}){knowledge}",
                f"at most {self.steps} steps of {self.rollouts_per_step} rollouts, up to "
                f"{self.tokens_sampled:,} tokens in all, peak rate {self.lr:g}",
                self.tuning_reason,
                *self.notes,
                f"memory: {self.memory}; time: about {duration(self.seconds)}",
            ]
        )


@dataclass(frozen=True)
class _Setting:
    """Who is taught by whom, and with what: all names resolved."""

    cycle: int
    student: Checkpoint
    teacher: Checkpoint
    knowledge: Checkpoint | None
    prompts: PromptSplits
    development: tuple[Prompt, ...]
    corpora: dict[int, FrozenCorpus]
    notes: tuple[str, ...]

    @property
    def questions(self) -> list[Prompt]:
        """Document questions of every cycle so far."""
        return [question for corpus in self.corpora.values() for question in corpus.questions]


def plan_distill(session: Session, config: DistillConfig, cycle: int | None = None) -> DistillPlan:
    """The resolved plan; writes nothing and loads no weights."""
    return _plan(config, _resolve(session, config, cycle))


def distill(
    session: Session,
    config: DistillConfig,
    *,
    cycle: int | None = None,
    resume: records.Stage | None = None,
) -> Checkpoint:
    """Run the stage to its end and return the recovered checkpoint, which is then ``latest``.

    Raises StageInterrupted when asked to stop; ``resume`` is that stage's record, to go on with it.
    """
    setting = _resolve(session, config, resume.cycle if resume is not None else cycle)
    plan = _plan(config, setting)
    student = session.registered(setting.student, cycle_id=session.cycle_id(setting.cycle))
    config = _named(config, student, setting)
    session.display.say(plan.text())
    with running(session, "distill", config, cycle=setting.cycle, student=student, resume=resume) as stage:
        reference = _reference(session, stage, config, setting)
        loaded = load_student(student, plan.tuning, config)
        teachers = {"base": _Timed(teacher_of(session, student, loaded, setting.teacher, config))}
        if setting.knowledge is not None:
            teachers["knowledge"] = _Timed(teacher_of(session, student, loaded, setting.knowledge, config))
        engine = engine_of(loaded, config)
        source = _source(config, setting, loaded, engine)
        watch = _Watch(stage, config, loaded, engine, setting.development, reference, list(teachers.values()))
        result = stage.train(
            loaded,
            source,
            Estimator(teachers, divergence=config.divergence),  # type: ignore[arg-type]  # checked by the configuration
            settings_of(config, plan.steps, plan.tuning),
            figure="reverse_kl",
            measured=watch.measured,
            after_step=watch.after_step,
            memory=watch.memory,
        )
        extra = {
            "cycle": setting.cycle,
            "teacher": setting.teacher.name,
            "steps": result.step,
            "stopped": result.stopped,
        }
        stage.details = {**extra, "development": watch.memory.get("checks", [])}
        return stage.keep(loaded, "recovered", student, extra)


def _named(config: DistillConfig, student: Checkpoint, setting: _Setting) -> DistillConfig:
    """The configuration with names that still mean the same when the stage is resumed."""
    knowledge = setting.knowledge.name if setting.knowledge is not None else None
    return dataclasses.replace(config, student=student.name, knowledge_teacher=knowledge)


# --- who, by whom, with what ---------------------------------------------------------------------------------


def _resolve(session: Session, config: DistillConfig, cycle: int | None) -> _Setting:
    student, teacher = session.resolve(config.student), session.resolve(config.teacher)
    if student.hash == teacher.hash:
        raise UsageError(
            f"the student {config.student} is the teacher {teacher.name} itself, so there is nothing to recover: "
            f"mid-train first (recover midtrain --docs FOLDER), or name a degraded model with --student"
        )
    number = cycle or student.cycle or session.next_cycle()
    corpora = thaw_all(session.workspace, [k for k in session.cycles() if k <= number])
    prompts = behaviour_prompts(session.base.path, config.prompts, config.seed)
    if not prompts.train:
        raise UsageError(f"there is no behaviour prompt to train on ({prompts.source}): give more with --prompts")
    notes = list(prompts.notes)
    knowledge = session.resolve(config.knowledge_teacher) if config.knowledge_teacher else None
    if knowledge is not None and not any(corpus.questions for corpus in corpora.values()):
        knowledge = None
        notes.append("no questions about the documents: the knowledge teacher has nothing to score and is left out")
    development = _development(config, prompts, notes)
    return _Setting(number, student, teacher, knowledge, prompts, development, corpora, tuple(notes))


def _development(config: DistillConfig, prompts: PromptSplits, notes: list[str]) -> tuple[Prompt, ...]:
    if not config.until:
        return ()
    verifiable = [p for p in prompts.development if p.checks]
    if len(verifiable) < ENOUGH_TO_DECIDE:
        notes.append(
            f"only {len(verifiable)} development prompts can be verified: too few to decide --until {config.until} "
            f"({ENOUGH_TO_DECIDE} are needed), so the stage runs to its plateau or to --steps"
        )
        return ()
    return tuple(sample(verifiable, config.development))


def _plan(config: DistillConfig, setting: _Setting) -> DistillPlan:
    tuning = choose_tuning(config, setting.student, teachers=1 + (setting.knowledge is not None))
    rollouts = config.prompts_per_step * config.samples_per_prompt
    tokens = round(config.steps * rollouts * config.max_new_tokens * _USUAL_LENGTH)
    device = str(pick_device(config.device))
    return DistillPlan(
        cycle=setting.cycle,
        student=setting.student.name,
        teacher=setting.teacher.name,
        knowledge_teacher=setting.knowledge.name if setting.knowledge is not None else None,
        prompts=setting.prompts.source,
        behaviour_prompts=len(setting.prompts.train),
        knowledge_prompts=len(setting.questions) if setting.knowledge is not None else 0,
        development_prompts=len(setting.development),
        rollouts_per_step=rollouts,
        steps=config.steps,
        tokens_sampled=tokens,
        tuning=tuning.name,
        tuning_reason=tuning.reason,
        lr=config.rate(tuning.name),
        parameters=tuning.parameters,
        memory=tuning.needs,
        seconds=seconds_for(tuning.parameters, trained=tokens, sampled=tokens, scored=tokens, device=device),
        notes=setting.notes,
    )


def _reference(session: Session, stage: Stage, config: DistillConfig, setting: _Setting) -> SuiteResult | None:
    """The teacher's own result on the development prompts: measured once, then kept by its content hash."""
    if not setting.development:
        return None
    path = development_file(session.workspace.folder / "cache", setting.teacher.hash, setting.development, config)
    known = read_result(path)
    if known is not None:
        return known
    loaded = load_frozen(session.verified(setting.teacher), config)
    with session.display.bar("base on development prompts", len(setting.development)):
        result = development_result(
            loaded,
            engine_of(loaded, config),
            setting.development,
            max_new_tokens=config.max_new_tokens,
            seed=config.seed,
        )
    stage.interrupts.check()
    write_result(path, result)
    return result


# --- what each step trains on --------------------------------------------------------------------------------


@dataclass
class _Source:
    """Step → rows: fresh rollouts of the student on that step's prompts. A function of (seed, step, weights)."""

    config: DistillConfig
    loaded: Loaded
    engine: Engine
    behaviour: Sequence[Prompt]
    questions: Sequence[Prompt]
    documents: Sequence[Row]

    def __call__(self, step: int) -> StepBatch:
        config = self.config
        asked = config.knowledge_prompts if self.questions else 0
        prompts = [
            *choose(self.behaviour, config.prompts_per_step - asked, step, config.seed, stream=21),
            *choose(self.questions, asked, step, config.seed, stream=22),
        ]
        grouped = [prompt for prompt in prompts for _ in range(config.samples_per_prompt)]
        started = time.perf_counter()
        sampling = Sampling(config.max_new_tokens, seed=derive_seed(config.seed, step, 23))
        spoken = speak(self.loaded.chat, self.engine, grouped, sampling)
        seconds = time.perf_counter() - started
        rows = [
            Row(
                [*turn.context, *turn.completion.ids],
                [False] * len(turn.context) + [True] * len(turn.completion.ids),
                teacher="knowledge" if turn.prompt.kind == "knowledge" and asked else "base",
            )
            for turn in spoken
            if turn.completion.ids
        ]
        tokens = sum(len(turn.completion.ids) for turn in spoken)
        metrics = {
            "response_length": tokens / len(spoken),
            "end_rate": sum(turn.completion.finished for turn in spoken) / len(spoken),
            "tokens_sampled": float(tokens),
            "tokens_scored": float(tokens),
            "seconds_generating": seconds,
        }
        return StepBatch(rows + self._documents(step, tokens), metrics)

    def _documents(self, step: int, responses: int) -> list[Row]:
        """Document rows (the label teaches) for their share of the step's target tokens."""
        share = self.config.document_loss
        wanted = share / (1 - share) * responses
        order = list(self.documents)
        random.Random(derive_seed(self.config.seed, step, 24)).shuffle(order)
        rows: list[Row] = []
        for row in order:
            if wanted <= 0:
                break
            rows.append(row)
            wanted -= targets(row)
        return rows


def choose(items: Sequence[T], count: int, step: int, seed: int, stream: int) -> list[T]:
    """The items of a step (from 1): each pass goes through all of them in a fresh order. Depends on nothing else."""
    chosen: list[T] = []
    orders: dict[int, list[int]] = {}
    for at in range((step - 1) * count, step * count):
        number, index = divmod(at, len(items))
        if number not in orders:
            orders[number] = list(range(len(items)))
            random.Random(derive_seed(seed, number, stream)).shuffle(orders[number])
        chosen.append(items[orders[number][index]])
    return chosen


def _source(config: DistillConfig, setting: _Setting, loaded: Loaded, engine: Engine) -> _Source:
    room = loaded.max_length - min(config.max_new_tokens, loaded.max_length // 2)
    behaviour = fitting(loaded.chat, setting.prompts.train, room)
    questions = fitting(loaded.chat, setting.questions, room) if setting.knowledge is not None else []
    if not behaviour:
        raise UsageError(
            f"every prompt is longer than the {room} tokens that leave room for an answer: lower --max-new-tokens, "
            f"or give shorter prompts with --prompts"
        )
    documents: list[Row] = []
    if config.document_loss:
        length = row_length(setting.student, config.row_length)
        documents = rows_of(loaded.tokenizer, length, *setting.corpora.values())
    return _Source(config, loaded, engine, behaviour, questions, documents)


# --- when to stop --------------------------------------------------------------------------------------------


@dataclass
class _Timed:
    """A teacher, and the seconds it has taken since they were last asked for."""

    teacher: Teacher
    seconds: float = 0.0

    def hidden(self, batch: Batch) -> torch.Tensor:
        """The teacher's own."""
        started = time.perf_counter()
        hidden_BTE = self.teacher.hidden(batch)
        self.seconds += time.perf_counter() - started
        return hidden_BTE

    @property
    def head(self) -> Head:
        """The teacher's own."""
        return self.teacher.head

    def taken(self) -> float:
        """Seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


@dataclass
class _Watch:
    """Looks at every step and says when the stage has done its work. ``memory`` outlives a resume."""

    stage: Stage
    config: DistillConfig
    loaded: Loaded
    engine: Engine
    development: Sequence[Prompt]
    reference: SuiteResult | None
    teachers: Sequence[_Timed]
    memory: dict[str, Any] = field(default_factory=dict)

    def measured(self, metrics: dict[str, float]) -> None:
        """Take the divergence down, and set scoring apart from training."""
        scoring = sum(teacher.taken() for teacher in self.teachers)
        metrics["seconds_scoring"] = scoring
        metrics["seconds_training"] = max(0.0, metrics.get("seconds_training", 0.0) - scoring)
        history = self.memory.setdefault("divergence", [])
        history.append(metrics.get("reverse_kl", metrics["loss"]))
        del history[: -2 * max(1, self.config.plateau)]

    def after_step(self, step: int) -> str | None:
        """Why to stop, if so."""
        if self.reference is not None and step % self.config.check_every == 0 and self._recovered(step):
            return RECOVERED
        return PLATEAU if on_plateau(self.memory.get("divergence", []), self.config.plateau) else None

    def _recovered(self, step: int) -> bool:
        assert self.reference is not None
        config = self.config
        result = development_result(
            self.loaded, self.engine, self.development, max_new_tokens=config.max_new_tokens, seed=config.seed
        )
        test = recovered(self.reference, result, until=config.until, margin=config.margin, minimum=ENOUGH_TO_DECIDE)
        self.stage.recorder.log(step, {"development/instruction_following": result.score.value})
        self.memory.setdefault("checks", []).append({"step": step, "value": result.score.value, "ratio": test.ratio})
        self.stage.session.display.say(f"step {step}: {test.reason}")
        return test.recovered


def on_plateau(history: Sequence[float], window: int) -> bool:
    """Whether the mean of the last ``window`` values hardly differs from that of the window before."""
    if not window or len(history) < 2 * window:
        return False
    before, now = sum(history[-2 * window : -window]), sum(history[-window:])
    return now > _STILL_FALLING * before
