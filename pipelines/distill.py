"""One stage for every method: answers, scores, updates. `recover distill` is its on-policy face. Read top to bottom.

Behaviour prompts are scored by the clean base. Questions about the documents can be routed to a second teacher,
the frozen mid-trained checkpoint, which knows the answers; the base does not. What else a method may do (answers
made before, rewards, the student as its own teacher with a context) is a matter of the configuration's dials.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from db import records
from pipelines.ahead import Ahead
from pipelines.answers import (
    asked_beforehand,
    count_spoken,
    fitting,
    open_turns,
    reference_result,
)
from pipelines.estimates import Work
from pipelines.glimpses import Glimpses
from pipelines.memory import USUAL_PROMPT, Beside, Needs, Rollouts, distilling
from pipelines.midtrain import row_length, rows_of
from pipelines.mixing import choose
from pipelines.models import choose_tuning, load_frozen, reach_teacher
from pipelines.progress import duration
from pipelines.roles import Roles, cast
from pipelines.session import Session
from pipelines.setting import Setting, lasting, resolve
from pipelines.sources import BEHAVIOUR, KNOWLEDGE, Pools, Source, expert, manner
from pipelines.stage import Stage, running, settings_of
from pipelines.watch import Observer, Timed, TimedScorer, Watch
from recovery import processes
from recovery.batches import Row
from recovery.config import DistillConfig
from recovery.errors import UsageError
from recovery.loading import Loaded, load_chat
from recovery.methods import method_named
from recovery.rewards import judged
from recovery.rollouts import Engine, Sampling, TransformersEngine
from recovery.teachers import AdapterOff, Frozen, Identity, RemoteTeacher
from recovery.types import Message, Prompt
from recovery.workspace import Checkpoint, write_atomically

# Tokens a response takes on average, as a share of the most it may take: for the estimates of a dry run.
_USUAL_LENGTH = 0.5
# Prompts whose tokens are counted for the same.
_LOOKED_AT = 200


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


def plan_distill(session: Session, config: DistillConfig, cycle: int | None = None) -> DistillPlan:
    """The resolved plan; writes nothing and loads no weights."""
    return _plan(config, resolve(session, config, cycle), session.base)


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
    every ``check_every`` steps. Raises StageInterrupted when asked to stop; ``resume`` is that stage's record, to go
    on with it.
    """
    setting = resolve(session, config, resume.cycle if resume is not None else cycle)
    plan = _plan(config, setting, session.base)
    student = session.registered(setting.student, cycle_id=session.cycle_id(setting.cycle))
    config = replace(lasting(config, student, setting), tuning=plan.tuning)  # a resumed stage may find other memory
    session.display.say(plan.text())
    with (
        running(session, "distill", config, cycle=setting.cycle, student=student, resume=resume) as stage,
        contextlib.ExitStack() as held,
    ):
        reach_teacher(config)
        reference = reference_result(stage, setting.teacher or session.base, setting.development, config)
        given, spoken = _given(session, stage, config, setting, student)
        settings = settings_of(config, plan.steps, plan.lr)
        with cast(stage, _roles(session, config, setting, student, plan.tuning), settings) as models:
            loaded, memory = models.loaded, {"spent": float(spoken)}
            _same_teacher(stage, models.teachers)
            source = Source(
                config,
                loaded,
                models.engine,
                _pools(config, setting, loaded, given),
                models.teachers,
                models.logprobs,
                setting.context,
                setting.reward,
                _speaker(models.timed, config),
                memory,
                held.enter_context(contextlib.closing(Ahead())) if config.overlap else None,
                stage.sampled,
            )
            glimpses = Glimpses(stage, source, loaded, models.teachers, plan.steps, config.token_views)
            prompts, gauge = setting.development, models.gauge
            own = _manner_of(models.timed, config, source.pools.behaviour, loaded, session.display.say)
            watch = Watch(stage, config, loaded, models.engine, prompts, reference, gauge, memory, observe, own)
            result = stage.train(
                loaded,
                glimpses,
                models.estimator,
                settings,
                figure="reverse_kl" if config.divergence == "sampled" else _names(config)["loss/base"],
                names=_names(config),
                measured=watch.measured,
                after_step=_each(glimpses.look, watch.after_step),
                sound=watch.sound,
                memory=memory,
                shadow=models.shadow,
                gauge=gauge,
                helpers=models.helpers,
            )
        extra = {
            "cycle": setting.cycle,
            "method": config.method,
            "teacher": _called(models.teachers, plan.teacher),
            "steps": result.step,
            "stopped": result.stopped,
        }
        stage.details = {
            **extra,
            "development": memory.get("checks", []),
            **{name: memory.get(name, []) for name in ("observed", "geometry")},
            "parameters": plan.parameters,
        }
        if result.stopped.startswith("collapse"):
            session.display.say(f"stopped: {result.stopped}; kept the state of step {result.step}")
        return stage.keep(loaded, "recovered", student, extra, name=name)


def _remote(teachers: Mapping[str, object]) -> RemoteTeacher | None:
    found = teachers.get(BEHAVIOUR)
    scorer = found.teacher if isinstance(found, TimedScorer) else None
    return scorer if isinstance(scorer, RemoteTeacher) else None


def _same_teacher(stage: Stage, teachers: Mapping[str, object]) -> None:
    """Raise ServerError where a resumed stage would be taught by another model than the one it began with."""
    teacher, file = _remote(teachers), stage.folder / "teacher.json"
    if teacher is None:
        return
    if stage.resumed and file.is_file():
        teacher.check_same(Identity(**json.loads(file.read_text(encoding="utf-8"))))
    write_atomically(file, json.dumps(asdict(teacher.identity)) + "\n")


def _called(teachers: Mapping[str, object], name: str) -> str:
    """What the teacher is called in the tracker; a server by its address and by the model it serves."""
    remote = _remote(teachers)
    return name if remote is None else f"{name} ({remote.model})"


def _each(look: Callable[[int], None], after_step: Callable[[int], str | None]) -> Callable[[int], str | None]:
    """First look, then say whether to stop."""

    def after(step: int) -> str | None:
        look(step)
        return after_step(step)

    return after


def _plan(config: DistillConfig, setting: Setting, clean: Checkpoint) -> DistillPlan:
    prompt, beside = _prompt_tokens(setting, config), setting.beside(config, clean)
    tuning = choose_tuning(
        config,
        setting.student,
        lambda *given: distilling(config, *given, beside=beside, prompt=prompt),
    )
    rollouts = config.prompts_per_step * config.samples_per_prompt
    work = distilling_work(config, tuning.name, beside=beside, prompt=prompt)
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
        tokens_sampled=round(config.alpha * answer_tokens(config)),
        tuning=tuning.name,
        tuning_reason=tuning.reason,
        lr=config.rate(tuning.name, tuning.parameters),
        parameters=tuning.parameters,
        memory=tuning.needs,
        seconds=work.seconds(tuning.network, tuning.speed),
        notes=setting.notes,
    )


def answer_tokens(config: DistillConfig) -> int:
    """Tokens of all answers of a stage, where they take their usual length; each batch of them counts once."""
    rollouts = config.prompts_per_step * config.samples_per_prompt
    return round(config.steps / config.batch_epochs * rollouts * config.max_new_tokens * _USUAL_LENGTH)


def distilling_work(
    config: DistillConfig, tuning: str, *, beside: Beside, prompt: int = USUAL_PROMPT, vllm: bool = False
) -> Work:
    """The work of a distillation to its last step. Prompts are read with every answer; some answer takes its full
    length, so that each batch of them is decoded to the end.
    """
    rollouts = config.prompts_per_step * config.samples_per_prompt
    batches = config.steps / config.batch_epochs
    passed = round(answer_tokens(config) + batches * rollouts * prompt)
    sampling = Rollouts(config.rollout_tokens, config.max_new_tokens, round(config.alpha * rollouts), prompt)
    groups = math.ceil(sampling.most / sampling.at_once)
    taught = beside.count > 0 or config.self_taught
    return Work(
        trained=passed * config.batch_epochs,
        read=passed * config.batch_epochs * taught,
        turns=round(batches * groups * config.max_new_tokens),
        rows=sampling.at_once,
        frozen=tuning == "lora",
        again=config.gradient_checkpointing,
        vllm=vllm,
    )


def _prompt_tokens(setting: Setting, config: DistillConfig) -> int:
    """The length of a long prompt in tokens: nine of ten are no longer."""
    chat = load_chat(str(setting.student.weights), config.template_args)
    step = max(1, len(setting.train) // _LOOKED_AT)
    lengths = sorted(len(chat.prompt_ids(prompt.messages)) for prompt in setting.train[::step])
    return lengths[int(0.9 * (len(lengths) - 1))]


def _roles(session: Session, config: DistillConfig, setting: Setting, student: Checkpoint, tuning: str) -> Roles:
    """Who is trained and who scores, by the names rows carry; every teacher is verified."""
    teachers: dict[str, dict[Checkpoint, float]] = {}
    if config.self_taught or config.remote_teacher or setting.teachers:
        teachers[BEHAVIOUR] = {} if config.self_taught or config.remote_teacher else setting.teachers
    if setting.knowledge is not None:
        teachers[KNOWLEDGE] = {setting.knowledge: 1.0}
    teachers |= {expert(tag): {checkpoint: 1.0} for tag, checkpoint in setting.experts.items()}
    anchor = session.base if config.anchor else None
    for checkpoint in [*(one for weights in teachers.values() for one in weights), *([anchor] if anchor else [])]:
        session.verified(checkpoint)
    return Roles(config, student, tuning, teachers, anchor, config.dials())


def _speaker(timed: Sequence[Timed | TimedScorer], config: DistillConfig) -> Engine | None:
    """The teacher's own voice, where it is to continue the student's answers."""
    if not config.continuation:
        return None
    teacher = timed[0].teacher
    if not isinstance(teacher, Frozen):
        raise UsageError("--continuation needs a teacher loaded beside the student: use --tuning full")
    # The one engine of the stage holds the student's weights; the teacher speaks with its own.
    return TransformersEngine(teacher.loaded, token_budget=config.rollout_tokens)


def _manner_of(
    timed: Sequence[Timed | TimedScorer],
    config: DistillConfig,
    prompts: Sequence[Prompt],
    loaded: Loaded,
    say: Callable[[str], None],
) -> Callable[[], dict[str, float]] | None:
    """What the first teacher's own answers are like, sampled when asked; None where it cannot speak here: a server,
    or a model that lies in pieces in several processes.
    """
    teacher = timed[0].teacher if timed else None
    if not isinstance(teacher, (Frozen, AdapterOff)) or not prompts or processes.size() > 1:
        return None

    def ask() -> dict[str, float]:
        asked = choose(prompts, config.prompts_per_step, 1, config.seed, stream=37)
        say(f"the answers change as in a collapse: asking the teacher for {len(asked)} of its own to compare")
        ids = [loaded.chat.prompt_ids(open_turns(prompt.messages)[0]) for prompt in asked]
        sampling = Sampling(config.max_new_tokens, config.temperature, seed=config.seed)
        with contextlib.ExitStack() as off:
            if isinstance(teacher, AdapterOff):
                off.enter_context(loaded.adapter_off())
            speaking = teacher.loaded if isinstance(teacher, Frozen) else loaded
            said = TransformersEngine(speaking, token_budget=config.rollout_tokens).generate(ids, sampling)
        logprobs = [value for one in said for value in one.logprobs]
        return manner(said) | {"entropy": -sum(logprobs) / max(1, len(logprobs))}  # in expectation

    return ask


def _names(config: DistillConfig) -> dict[str, str]:
    """What the loss of the behaviour teacher's rows is, for the curves."""
    if config.divergence == "sampled":
        return {"loss/base": "policy_loss"}
    return {"loss/base": config.divergence if config.lam == 1.0 else "mixed_loss"}


# --- what is trained on --------------------------------------------------------------------------------------


def _pools(config: DistillConfig, setting: Setting, loaded: Loaded, given: Sequence[tuple[Message, ...]]) -> Pools:
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


def _told_fits(config: DistillConfig, setting: Setting, loaded: Loaded, prompt: Prompt) -> bool:
    """Whether the teacher's window holds the prompt with its context, and the answer."""
    if setting.context is None:
        return True
    told = loaded.chat.prompt_ids(setting.context.messages(prompt, prompt.messages))
    return len(told) + config.max_new_tokens <= loaded.max_length


def _given(
    session: Session, stage: Stage, config: DistillConfig, setting: Setting, student: Checkpoint
) -> tuple[list[tuple[Message, ...]], int]:
    """The answers of the data states: the user's, or those of a frozen model asked beforehand; and tokens sampled."""
    if config.alpha == 1.0:
        return [], 0
    if config.answers == "given":
        return list(setting.given), 0
    speaker = (setting.teacher or session.base) if config.answers == "teacher" else student
    loaded = load_frozen(session.verified(speaker), config)
    wanted = math.ceil(config.steps / config.batch_epochs * config.prompts_per_step * (1 - config.alpha))
    prompts = fitting(loaded.chat, setting.train, loaded.max_length // 2)[:wanted]
    repeated = [p for p in prompts for _ in range(config.samples_per_prompt if config.answers == "rejection" else 1)]
    sampling = Sampling(config.max_new_tokens, config.temperature, seed=config.seed)
    answered = asked_beforehand(stage, speaker, loaded, repeated, sampling, config)
    spoken = count_spoken(stage, loaded, answered)
    if config.answers == "rejection" and setting.reward is not None:
        answered = [a for a in answered if judged(setting.reward, a.prompt, a.answer) >= config.keep_above]
    if not answered:
        raise UsageError(f"no answer of {speaker.name} was kept: lower --keep-above, or raise --max-new-tokens")
    return [a.messages for a in answered], spoken
