"""One stage for every method: answers, scores, updates. `recover distill` is its on-policy face. Read top to bottom.

Behaviour prompts are scored by the clean base. Questions about the documents can be routed to a second teacher,
the frozen mid-trained checkpoint, which knows the answers; the base does not. What else a method may do (answers
made before, rewards, the student as its own teacher with a context) is a matter of the configuration's dials.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from db import records
from evals.suites import sample
from pipelines.answers import (
    conversations,
    development_file,
    development_result,
    fitting,
    read_result,
    write_result,
)
from pipelines.corpora import FrozenCorpus, thaw_all
from pipelines.estimates import Needs, seconds_for
from pipelines.midtrain import row_length, rows_of
from pipelines.models import choose_tuning, engine_of, load_frozen, load_student, self_teacher, teacher_of
from pipelines.progress import duration
from pipelines.session import Session
from pipelines.sources import BEHAVIOUR, KNOWLEDGE, Pools, Source, expert
from pipelines.stage import Stage, running, settings_of
from pipelines.watch import ENOUGH_TO_DECIDE, Observer, Timed, Watch
from recovery.batches import Row
from recovery.config import SELF_TEACHERS, DistillConfig
from recovery.contexts import Context
from recovery.errors import UsageError
from recovery.loading import Loaded, pick_device
from recovery.methods import method_named
from recovery.objectives.estimator import Estimator
from recovery.prompts import PromptSplits, behaviour_prompts, load_conversations
from recovery.rewards import can_judge, judged, resolve_reward
from recovery.rollouts import Engine, Sampling
from recovery.teachers import Frozen, MovingAverage, Weighted
from recovery.training import resume_step
from recovery.types import Message, Prompt, SuiteResult
from recovery.workspace import Checkpoint

# Tokens a response takes on average, as a share of the most it may take: for the estimates of a dry run.
_USUAL_LENGTH = 0.5
NOBODY = ("none", "label")
EARLIER = "earlier-documents"


@dataclass(frozen=True)
class DistillPlan:
    """Everything that is known before weights are loaded."""

    cycle: int
    method: str
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
                f"{method_named(self.method).title} of {self.student} ({self.parameters / 1e6:,.1f}M parameters): "
                f"teacher {self.teacher}, {self.behaviour_prompts} prompts ({self.prompts}){knowledge}",
                f"at most {self.steps} steps of {self.rollouts_per_step} answers, up to "
                f"{self.tokens_sampled:,} tokens in all, peak rate {self.lr:g}",
                self.tuning_reason,
                *self.notes,
                f"memory: {self.memory}; time: about {duration(self.seconds)}",
            ]
        )


@dataclass(frozen=True)
class _Setting:
    """Who is taught by whom, and with what: all names resolved. ``teachers`` is empty where nobody frozen teaches."""

    cycle: int
    student: Checkpoint
    teachers: dict[Checkpoint, float]
    knowledge: Checkpoint | None
    experts: dict[str, Checkpoint]
    prompts: PromptSplits
    train: tuple[Prompt, ...]
    development: tuple[Prompt, ...]
    corpora: dict[int, FrozenCorpus]
    context: Context | None
    notes: tuple[str, ...]

    @property
    def questions(self) -> list[Prompt]:
        """Document questions of every cycle so far; those of earlier ones are tagged where they have their teacher."""
        earlier = (EARLIER,) if EARLIER in self.experts else ()
        return [
            question if number == self.cycle else dataclasses.replace(question, tags=(*question.tags, *earlier))
            for number, corpus in self.corpora.items()
            for question in corpus.questions
        ]

    @property
    def teacher(self) -> Checkpoint | None:
        """The first of the teachers."""
        return next(iter(self.teachers), None)

    def copies(self, config: DistillConfig) -> int:
        """How many models are held beside the student, when nothing is shared."""
        others = (self.knowledge is not None, config.anchor > 0, config.teacher in ("start", "ema"))
        return len(self.teachers) + len(self.experts) + sum(others)


def plan_distill(session: Session, config: DistillConfig, cycle: int | None = None) -> DistillPlan:
    """The resolved plan; writes nothing and loads no weights."""
    return _plan(config, _resolve(session, config, cycle))


def distill(
    session: Session,
    config: DistillConfig,
    *,
    cycle: int | None = None,
    resume: records.Stage | None = None,
    name: str | None = None,
    observe: Observer | None = None,
) -> Checkpoint:
    """Run the stage to its end and return the checkpoint it made, which is then ``latest``.

    ``name`` is what the checkpoint is called, "cycle-K/recovered" where it is left out; ``observe`` looks at the model
    every ``check_every`` steps. Raises StageInterrupted when
    asked to stop; ``resume`` is that stage's record, to go on with it.
    """
    setting = _resolve(session, config, resume.cycle if resume is not None else cycle)
    plan = _plan(config, setting)
    student = session.registered(setting.student, cycle_id=session.cycle_id(setting.cycle))
    config = _named(config, student, setting)
    session.display.say(plan.text())
    with running(session, "distill", config, cycle=setting.cycle, student=student, resume=resume) as stage:
        reference = _reference(session, stage, config, setting)
        given, spoken = _given(session, stage, config, setting, student)
        loaded = load_student(student, plan.tuning, config)
        memory: dict[str, Any] = {"spent": float(spoken)}
        teachers = _teachers(session, config, setting, student, loaded)
        anchor = Timed(teacher_of(session, student, loaded, session.base, config)) if config.anchor else None
        timed = _timed([*teachers.values(), *([anchor] if anchor else [])])
        engine = engine_of(loaded, config)
        source = Source(
            config,
            loaded,
            engine,
            _pools(config, setting, loaded, given),
            teachers,
            setting.context,
            resolve_reward(config.reward) if config.rewarded else None,
            _speaker(timed, config),
            memory,
        )
        estimator = Estimator(teachers, config.dials(), anchor)
        watch = Watch(stage, config, loaded, engine, setting.development, reference, timed, estimator, memory, observe)
        watch.measure(resume_step(stage.states) + 1)
        result = stage.train(
            loaded,
            source,
            estimator,
            settings_of(config, plan.steps, plan.tuning),
            figure="reverse_kl",
            measured=watch.measured,
            after_step=watch.after_step,
            sound=watch.sound,
            memory=memory,
            shadow=_shadow(timed),
        )
        extra = {
            "cycle": setting.cycle,
            "method": config.method,
            "teacher": plan.teacher,
            "steps": result.step,
            "stopped": result.stopped,
        }
        stage.details = {
            **extra,
            "development": memory.get("checks", []),
            "observed": memory.get("observed", []),
            "geometry": memory.get("geometry", []),
            "parameters": plan.parameters,
        }
        if result.stopped.startswith("collapse"):
            session.display.say(f"stopped: {result.stopped}; kept the state of step {result.step}")
        return stage.keep(loaded, "recovered", student, extra, name=name)


def _named(config: DistillConfig, student: Checkpoint, setting: _Setting) -> DistillConfig:
    """The configuration with names that still mean the same when the stage is resumed."""
    knowledge = setting.knowledge.name if setting.knowledge is not None else None
    weights = [f"{teacher.name}={weight}" for teacher, weight in setting.teachers.items()]
    teacher = setting.teacher.name if setting.teacher is not None and len(weights) == 1 else ",".join(weights)
    earlier = setting.experts.get(EARLIER)
    return dataclasses.replace(
        config,
        student=student.name,
        teacher=teacher or config.teacher,
        knowledge_teacher=knowledge,
        earlier_teacher=None if earlier is None else earlier.name,
        experts=tuple(f"{tag}={found.name}" for tag, found in setting.experts.items() if tag != EARLIER),
    )


# --- who, by whom, with what ---------------------------------------------------------------------------------


def _resolve(session: Session, config: DistillConfig, cycle: int | None) -> _Setting:
    student = session.resolve(config.student)
    teachers = _named_teachers(session, config, student)
    number = cycle or student.cycle or session.next_cycle()
    corpora = thaw_all(session.workspace, [k for k in session.cycles() if k <= number])
    prompts = behaviour_prompts(session.base.path, config.prompts, config.seed)
    notes = list(prompts.notes)
    context = _context(config)
    if config.rewarded:
        resolve_reward(config.reward)
    if config.alpha < 1.0 and config.answers == "given":
        _labelled(config, prompts)
    knowledge = session.resolve(config.knowledge_teacher) if config.knowledge_teacher else None
    if knowledge is not None and not any(corpus.questions for corpus in corpora.values()):
        knowledge = None
        notes.append("no questions about the documents: the knowledge teacher has nothing to score and is left out")
    return _Setting(
        number,
        student,
        teachers,
        knowledge,
        _experts(session, config, knowledge),
        prompts,
        _usable(config, prompts, context, notes),
        _development(config, prompts, notes),
        corpora,
        context,
        tuple(notes),
    )


def _experts(session: Session, config: DistillConfig, knowledge: Checkpoint | None) -> dict[str, Checkpoint]:
    """Who scores prompts of which tag. Questions about earlier documents are such prompts, where there are any."""
    earlier = {EARLIER: config.earlier_teacher} if config.earlier_teacher and knowledge is not None else {}
    return {tag: session.resolve(name) for tag, name in (config.routes | earlier).items()}


def _named_teachers(session: Session, config: DistillConfig, student: Checkpoint) -> dict[Checkpoint, float]:
    """The frozen teachers and their weights. Raises UsageError where the only one is the student itself."""
    if config.lam == 0.0 or config.teacher in (*NOBODY, *SELF_TEACHERS):
        return {}
    found = {session.resolve(name): weight for name, weight in config.teacher_weights.items()}
    for teacher in found if len(found) == 1 and config.context == "none" and not config.routes else ():
        if student.hash == teacher.hash:
            raise UsageError(
                f"the student {config.student} is the teacher {teacher.name} itself, so there is nothing to recover: "
                f"mid-train first (recover midtrain --docs FOLDER), or name a degraded model with --student"
            )
    return found


def _context(config: DistillConfig) -> Context | None:
    if config.context == "none":
        return None
    try:
        text = config.context_file.read_text(encoding="utf-8").strip() if config.context_file else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--context-file {config.context_file} cannot be read as text: {error}") from error
    return Context.of(config.context, text, config.context_template)


def _usable(
    config: DistillConfig, prompts: PromptSplits, context: Context | None, notes: list[str]
) -> tuple[Prompt, ...]:
    """The training prompts that this method can do something with. Raises UsageError where there are none."""
    if not prompts.train:
        raise UsageError(f"there is no behaviour prompt to train on ({prompts.source}): give more with --prompts")
    kept = [p for p in prompts.train if context is None or context.fits(p)]
    if not kept:
        raise UsageError(
            f"no prompt brings what --context {config.context} tells the teacher: give --context-file, or prompts with "
            f"{'an answer' if config.context == 'answer' else 'a context'} each (--prompts)"
        )
    if config.rewarded:
        kept = [p for p in kept if can_judge(config.reward, p)]
    if not kept:
        raise UsageError(
            f"--reward {config.reward} can judge none of the prompts ({prompts.source}): they need checks or an answer"
        )
    if len(kept) < len(prompts.train):
        notes.append(f"{len(prompts.train) - len(kept)} of {len(prompts.train)} prompts do not suit {config.method}")
    return tuple(kept)


def _development(config: DistillConfig, prompts: PromptSplits, notes: list[str]) -> tuple[Prompt, ...]:
    if not config.until or not config.recovering:
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
    tuning = choose_tuning(config, setting.student, teachers=setting.copies(config))
    rollouts = config.prompts_per_step * config.samples_per_prompt
    tokens = round(config.steps / config.batch_epochs * rollouts * config.max_new_tokens * _USUAL_LENGTH)
    device = str(pick_device(config.device))
    sampled = round(config.alpha * tokens)
    return DistillPlan(
        cycle=setting.cycle,
        method=config.method,
        student=setting.student.name,
        teacher=" and ".join(teacher.name for teacher in setting.teachers) or config.teacher,
        knowledge_teacher=setting.knowledge.name if setting.knowledge is not None else None,
        prompts=setting.prompts.source,
        behaviour_prompts=len(setting.train),
        knowledge_prompts=len(setting.questions) if setting.knowledge is not None else 0,
        development_prompts=len(setting.development),
        rollouts_per_step=rollouts,
        steps=config.steps,
        tokens_sampled=sampled,
        tuning=tuning.name,
        tuning_reason=tuning.reason,
        lr=config.rate(tuning.name),
        parameters=tuning.parameters,
        memory=tuning.needs,
        seconds=seconds_for(
            tuning.parameters,
            trained=tokens * config.batch_epochs,
            sampled=sampled,
            scored=tokens if setting.copies(config) else 0,
            device=device,
        ),
        notes=setting.notes,
    )


def _reference(session: Session, stage: Stage, config: DistillConfig, setting: _Setting) -> SuiteResult | None:
    """The clean model's own result on the development prompts: measured once, then kept by its content hash."""
    if not setting.development:
        return None
    teacher = setting.teacher or session.base
    path = development_file(session.workspace.folder / "cache", teacher.hash, setting.development, config)
    known = read_result(path)
    if known is not None:
        return known
    loaded = load_frozen(session.verified(teacher), config)
    with session.display.bar(f"{teacher.name} on development prompts", len(setting.development)):
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


def _teachers(
    session: Session, config: DistillConfig, setting: _Setting, student: Checkpoint, loaded: Loaded
) -> dict[str, Timed | Weighted]:
    """Who scores, by the names rows carry."""

    def of(checkpoint: Checkpoint) -> Timed:
        return Timed(teacher_of(session, student, loaded, checkpoint, config))

    found: dict[str, Timed | Weighted] = {}
    if config.self_taught:
        found[BEHAVIOUR] = Timed(self_teacher(student, loaded, config))
    elif len(setting.teachers) > 1:
        found[BEHAVIOUR] = Weighted([of(teacher) for teacher in setting.teachers], list(setting.teachers.values()))
    elif setting.teacher is not None:
        found[BEHAVIOUR] = of(setting.teacher)
    if setting.knowledge is not None:
        found[KNOWLEDGE] = of(setting.knowledge)
    return found | {expert(tag): of(checkpoint) for tag, checkpoint in setting.experts.items()}


def _timed(teachers: Iterable[Timed | Weighted]) -> list[Timed]:
    """Every teacher by itself, with its clock."""
    found: list[Timed] = []
    for teacher in teachers:
        parts = [part for part, _ in teacher.parts] if isinstance(teacher, Weighted) else [teacher]
        found += [part for part in parts if isinstance(part, Timed)]
    return found


def _shadow(timed: Iterable[Timed]) -> MovingAverage | None:
    return next((t.teacher for t in timed if isinstance(t.teacher, MovingAverage)), None)


def _speaker(timed: Sequence[Timed], config: DistillConfig) -> Engine | None:
    """The teacher's own voice, where it is to continue the student's answers."""
    if not config.continuation:
        return None
    teacher = timed[0].teacher
    if not isinstance(teacher, Frozen):
        raise UsageError("--continuation needs a teacher loaded beside the student: use --tuning full")
    return engine_of(teacher.loaded, config)


# --- what is trained on --------------------------------------------------------------------------------------


def _pools(config: DistillConfig, setting: _Setting, loaded: Loaded, given: Sequence[tuple[Message, ...]]) -> Pools:
    room = loaded.max_length - min(config.max_new_tokens, loaded.max_length // 2)
    fit = fitting(loaded.chat, setting.train, room)
    behaviour = [p for p in fit if _told_fits(config, setting, loaded, p)]
    questions = fitting(loaded.chat, setting.questions, room) if setting.knowledge is not None else []
    if not behaviour and config.alpha > 0:
        raise UsageError(
            f"every prompt, with its context, is longer than the {room} tokens that leave room for an answer: lower "
            f"--max-new-tokens, or give shorter prompts with --prompts"
        )
    documents: list[Row] = []
    if config.document_loss:
        length = row_length(setting.student, config.row_length)
        documents = rows_of(loaded.tokenizer, length, *setting.corpora.values())
    return Pools(behaviour, questions, given, documents)


def _told_fits(config: DistillConfig, setting: _Setting, loaded: Loaded, prompt: Prompt) -> bool:
    """Whether the teacher's window holds the prompt with its context, and the answer."""
    if setting.context is None:
        return True
    told = loaded.chat.prompt_ids(setting.context.messages(prompt, prompt.messages))
    return len(told) + config.max_new_tokens <= loaded.max_length


def _given(
    session: Session, stage: Stage, config: DistillConfig, setting: _Setting, student: Checkpoint
) -> tuple[list[tuple[Message, ...]], int]:
    """The answers of the data states: the user's, or those of a frozen model asked beforehand; and tokens sampled."""
    if config.alpha == 1.0:
        return [], 0
    if config.answers == "given":
        return _labelled(config, setting.prompts), 0
    speaker = (setting.teacher or session.base) if config.answers == "teacher" else student
    loaded = load_frozen(session.verified(speaker), config)
    wanted = math.ceil(config.steps / config.batch_epochs * config.prompts_per_step * (1 - config.alpha))
    prompts = fitting(loaded.chat, setting.train, loaded.max_length // 2)[:wanted]
    repeated = [p for p in prompts for _ in range(config.samples_per_prompt if config.answers == "rejection" else 1)]
    with session.display.bar(f"answers of {speaker.name}", len(repeated)) as bar:

        def tick(count: int) -> None:
            bar.advance(count)
            stage.interrupts.check()

        answered = conversations(
            loaded,
            engine_of(loaded, config),
            repeated,
            content_hash=speaker.hash,
            sampling=Sampling(config.max_new_tokens, config.temperature, seed=config.seed),
            cache=session.workspace.folder / "cache",
            tick=tick,
        )
    spoken = sum(len(loaded.chat.encode(a.answer)) + 1 for a in answered)
    if not stage.resumed:
        stage.recorder.usage(tokens_sampled=spoken)
    if config.answers == "rejection":
        reward = resolve_reward(config.reward)
        answered = [a for a in answered if judged(reward, a.prompt, a.answer) >= config.keep_above]
    if not answered:
        raise UsageError(f"no answer of {speaker.name} was kept: lower --keep-above, or raise --max-new-tokens")
    return [a.messages for a in answered], spoken


def _labelled(config: DistillConfig, prompts: PromptSplits) -> list[tuple[Message, ...]]:
    """Conversations that end in the answer to imitate: the user's file, or prompts with a reference answer."""
    if config.data is not None:
        return load_conversations(Path(config.data))
    found = [(*p.messages, Message(role="assistant", content=p.answer)) for p in prompts.train if p.answer is not None]
    if not found:
        raise UsageError(
            f"--answers given: none of the prompts has an answer ({prompts.source}): give conversations with "
            f"--data FILE, or let a model answer (--answers teacher)"
        )
    return found
