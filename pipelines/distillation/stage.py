"""The distillation stage, for every method: sample, score, update. `recover distill` is the on-policy method.

Completions of behaviour prompts are scored by the clean base. Questions about the documents can be routed to a second
teacher, the frozen mid-trained checkpoint, which knows the answers; the base does not. Other methods (completions from
data, rewards, the student as its own teacher with a context) are settings of the configuration.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from db import records
from pipelines.data.mixing import choose, shuffled
from pipelines.distillation.batch_builder import BatchBuilder, Pools, completion_metrics, expert
from pipelines.distillation.early_stopping import EarlyStopping, Observer, StoppingState
from pipelines.runtime.engines import local_engine
from pipelines.runtime.generation import answered_before, fitting, last_request, open_turns
from pipelines.runtime.model_group import LoadedModels, ModelSpecs, load_models, train_settings
from pipelines.runtime.model_loading import FrozenModel
from pipelines.runtime.session import Session
from pipelines.runtime.stage import Stage, running
from recovery import distributed
from recovery.batching import Row
from recovery.config import DistillConfig
from recovery.errors import UsageError
from recovery.lazy_import import lazily
from recovery.losses.objective import DOCUMENTS, EARLIER_DOCUMENTS, KNOWLEDGE, MAIN_TEACHER
from recovery.losses.token_stats import TokenView
from recovery.models.loaded import Loaded
from recovery.rewards import judged
from recovery.rng import RandomStream
from recovery.rollouts.engine import Completion, Engine, Sampling, window_with
from recovery.teacher_spec import Context
from recovery.teachers.teacher import Identity, Teacher, same_tokens
from recovery.training.interfaces import COLLAPSE, FINISHED, Hooks, StepBatch, TrainResult, TrainSettings
from recovery.types import Message, Prompt
from recovery.workspace import Checkpoint, write_atomically

if TYPE_CHECKING:
    from pipelines.distillation import development
    from pipelines.distillation import plan as planner
    from pipelines.distillation.resolve import ResolvedDistillation
    from pipelines.planning import memory
    from pipelines.runtime import teacher_server
    from recovery.rollouts import vllm_server_engine as served
else:
    # By name: importing a stage must not import its planner, which reads the prompts and questions of all cycles and
    # estimates memory, nor the test of --until, which many runs do not use. Only members of their results are used.
    development, planner = lazily("pipelines.distillation.development"), lazily("pipelines.distillation.plan")
    memory = lazily("pipelines.planning.memory")
    # Where the teacher is a server.
    served, teacher_server = lazily("recovery.rollouts.vllm_server_engine"), lazily("pipelines.runtime.teacher_server")


def distill(
    session: Session,
    config: DistillConfig,
    *,
    cycle: int | None = None,
    resume: records.Stage | None = None,
    name: str | None = None,
    observe: Observer | None = None,
) -> Checkpoint:
    """Run the stage and return its checkpoint, which becomes ``latest``.

    ``name`` is the checkpoint's name, "cycle-K/recovered" by default; ``observe`` evaluates the model every
    ``check_every`` steps; ``resume`` is the record of an interrupted stage to continue. Raise StageInterrupted if a
    stop is requested.
    """
    resolved = planner.resolve(session, config, resume.cycle if resume is not None else cycle)
    plan = planner.make_plan(resolved)
    student = session.registered(resolved.student, cycle_id=session.cycle_id(resolved.cycle))
    # The tuning is fixed here, and what follows from it: a resumed stage may find another amount of memory.
    was, config = resolved.config.tuning, replace(resolved.config, tuning=plan.tuning, blend=plan.blend)
    resolved = replace(resolved, config=config, student=student, origin=None if plan.blend == 1.0 else resolved.origin)
    say = session.display.say
    say(plan.text())
    with (
        memory.memory_counted(plan.rows, config.device),
        running(
            session, "distill", config, cycle=resolved.cycle, student=student, resume=resume, rows=plan.rows, asked=was
        ) as stage,
        contextlib.ExitStack() as resources,
    ):
        _check_inputs(session, resolved)
        frozen = FrozenModel(session, config)
        until = _until_test(stage, frozen, resolved)
        imitated, tokens = given_completions(stage, frozen, resolved)
        specs = model_specs(resolved, train_settings(config, plan.steps, plan.lr))
        with load_models(stage, specs, frozen) as models:
            check_same_teacher(stage, models.teachers)
            prefetcher = resources.enter_context(ThreadPoolExecutor(1, "prefetch")) if config.overlap else None
            builder = BatchBuilder(
                config,
                student=models.loaded,
                engine=models.engine,
                pools=build_pools(resolved, models.loaded, imitated, models.teachers, models.engine, say),
                teachers=models.teachers,
                logprobs=models.logprobs,
                context=resolved.context,
                reward=resolved.reward,
                teacher_engine=teacher_engine(models.scorers, config),
                prefetcher=prefetcher,
                progress=stage.sampled,
                cross=models.cross,
            )
            seen = teacher_metrics(
                models.scorers, config, builder.pools.behaviour, models.loaded, resolved.context, say
            )
            state = StoppingState(float(tokens))
            stopping = EarlyStopping(
                stage, config, models, until=until, state=state, observe=observe, teacher_metrics=seen
            )
            result = models.train(
                stage,
                builder,
                hooks=_hooks(stopping, TokenLogger(stage, models, plan.steps, config.token_views, config.teacher)),
                figure=_figure(stage, config),
                resumables=(builder.state, builder.sampler.state, stopping.state, stopping.detector.state),
            )
        extra = {"cycle": resolved.cycle, "method": config.method}
        extra |= {"teacher": teacher_label(models.teachers, plan.teacher), "steps": result.step}
        extra |= {"stopped": result.stopped}
        stage.details = {**extra, **stopping.state.measured, "parameters": plan.parameters}
        if result.stopped != FINISHED:
            say(_end_message(result, plan.steps))
        return stage.keep(models.loaded, "recovered", student, extra, name=name)


def _check_inputs(session: Session, resolved: ResolvedDistillation) -> None:
    """Raise ServerError if a teacher cannot be reached, CheckpointError if the blend's origin has changed."""
    if resolved.config.teaching.remote:
        teacher_server.reach_teacher(resolved.config, say=session.display.say)
    if resolved.origin is not None:
        session.verified(resolved.origin)


def _until_test(stage: Stage, frozen: FrozenModel, resolved: ResolvedDistillation) -> development.UntilTest | None:
    """Return the test of --until, against the teacher's answers, if there are development prompts for it."""
    clean, prompts, config = resolved.teacher or resolved.clean, resolved.development, resolved.config
    if not prompts:
        return None
    reference = development.reference_result(stage, frozen, clean, prompts, config)
    return development.UntilTest(config, prompts, reference)


def _end_message(result: TrainResult, steps: int) -> str:
    """Return why a run ended early."""
    if result.stopped.startswith(COLLAPSE):
        return f"stopped: {result.stopped}; the weights of step {result.step} are kept"
    return f"stopped at step {result.step} of {steps}: {result.stopped}"


def _figure(stage: Stage, config: DistillConfig) -> str:
    """Return the metric on the progress bar, after declaring what a divergence is called on the live page."""
    loss = config.loss_config()
    if loss.loss_title:
        stage.declare(loss.loss_metric, loss.loss_title)
    return "reverse_kl" if config.divergence == "sampled" else loss.loss_metric


def _hooks(stopping: EarlyStopping, token_logger: TokenLogger) -> Hooks:
    def after_step(step: int) -> str | None:
        token_logger.record(step)
        return stopping.after_step(step)

    return Hooks(
        log=lambda _step, metrics: stopping.add_metrics(metrics),
        on_batch=token_logger.keep,
        after_step=after_step,
        healthy=stopping.healthy,
    )


# Teachers of a distillation: their models, checks on resume, and what they sample themselves.


def model_specs(resolved: ResolvedDistillation, settings: TrainSettings) -> ModelSpecs:
    """Return the student and the teachers, by the names used in rows."""
    config = resolved.config
    teachers: dict[str, dict[Checkpoint, float]] = {}
    if resolved.teachers or config.teaching.is_student or config.teaching.remote:
        teachers[MAIN_TEACHER] = resolved.teachers
    if resolved.knowledge is not None:
        teachers[KNOWLEDGE] = {resolved.knowledge: 1.0}
    teachers |= {expert(tag): {checkpoint: 1.0} for tag, checkpoint in resolved.experts.items()}
    of_text = zip((DOCUMENTS, EARLIER_DOCUMENTS), resolved.document_teachers, strict=True)
    teachers |= {name: {checkpoint: 1.0} for name, checkpoint in of_text if checkpoint is not None}
    anchor = resolved.clean if config.anchor else None
    return ModelSpecs(
        config, resolved.student, settings, teachers, anchor, config.loss_config(), origin=resolved.origin
    )


def check_same_teacher(stage: Stage, teachers: Mapping[str, Teacher]) -> None:
    """Raise ServerError if the server's model is not the one that a resumed stage began with."""
    teacher, file = teachers.get(MAIN_TEACHER), stage.folder / "teacher.json"
    if teacher is None or teacher.identity is None:
        return
    if stage.resumed and file.is_file():
        teacher.check_same(Identity(**json.loads(file.read_text(encoding="utf-8"))))
    write_atomically(file, json.dumps(asdict(teacher.identity)) + "\n")


def teacher_label(teachers: Mapping[str, Teacher], name: str) -> str:
    """Return the teacher's name for the tracker; for a server, its address and the model it serves."""
    main = teachers.get(MAIN_TEACHER)
    return name if main is None or main.identity is None else f"{name} ({main.identity.model})"


def teacher_engine(teachers: Sequence[Teacher], config: DistillConfig) -> Engine | None:
    """Return an engine of the teacher if it continues the student's completions, else None."""
    if not config.continuation:
        return None
    teacher = teachers[0]
    if teacher.loaded is None or not teacher.own_weights:
        raise UsageError("--continuation needs a teacher with weights of its own in memory: use --tuning full")
    # The stage's engine samples from the student's weights, this one from the teacher's.
    return local_engine(teacher.loaded, config)


def teacher_metrics(
    teachers: Sequence[Teacher],
    config: DistillConfig,
    prompts: Sequence[Prompt],
    loaded: Loaded,
    context: Context | None,
    say: Callable[[str], None],
) -> Callable[[], dict[str, float]] | None:
    """Return a function that samples the first teacher, with what it has in its ``context``, and returns the metrics of
    its completions.

    With several processes it is called in the main one. None without a teacher of its own, and for one that is sharded.
    """
    teacher = teachers[0] if teachers else None
    if teacher is None or teacher.is_student or not prompts:
        return None
    sharded = config.shard == "full" or (config.shard == "student" and not teacher.own_weights)
    if distributed.size() > 1 and sharded and teacher.loaded is not None:
        return None

    def measure() -> dict[str, float]:
        chosen = choose(prompts, config.prompts_per_step, 1, config.seed, stream=RandomStream.TEACHER_CHECK)
        say(f"the completions change as in a collapse: sampling {len(chosen)} of the teacher for comparison")
        model = teacher.loaded or loaded  # what a server samples is in the student's tokens
        opened = [(prompt, open_turns(prompt.messages)[0]) for prompt in chosen]
        read = [turn if context is None else context.messages(prompt, turn) for prompt, turn in opened]
        ids = [model.chat.prompt_ids(messages) for messages in read]
        completions = _sampled(teacher, loaded, ids, config)
        logprobs = [value for one in completions for value in one.logprobs]
        if not same_tokens(model.tokenizer, loaded.tokenizer):
            completions = [_to_student_tokens(loaded, model, one) for one in completions]
        # Minus the mean log-probability of sampled tokens is an unbiased estimate of the entropy.
        tokens = sum(len(one.ids) for one in completions)
        return completion_metrics(completions) | {"entropy": -sum(logprobs) / max(1, tokens)}

    return measure


def _sampled(
    teacher: Teacher, student: Loaded, ids: Sequence[Sequence[int]], config: DistillConfig
) -> list[Completion]:
    """Return the teacher's completions of prompts; a server's are in the student's tokens, as its scores are."""
    sampling = Sampling(config.max_new_tokens, config.temperature, seed=config.seed)
    if teacher.server is not None:
        window = teacher.window + 1 if teacher.window else student.max_length
        short = [prompt for prompt in ids if len(prompt) < window]
        return served.sample_served(teacher.server, teacher.model, window, short, sampling, student)
    with teacher.reading() as model:
        return local_engine(model, config).generate(ids, sampling)


def _to_student_tokens(student: Loaded, teacher: Loaded, completion: Completion) -> Completion:
    """Return a teacher's completion in the student's tokens, so that figures per token can be compared."""
    ids = completion.ids[: len(completion.ids) - completion.finished]
    spelled = student.chat.encode(teacher.chat.raw_text(ids))
    return Completion([*spelled, *completion.ids[len(ids) :]], [], completion.finished)


# Pools of a distillation: prompts that fit, document rows, and completions to imitate.


def build_pools(
    resolved: ResolvedDistillation,
    loaded: Loaded,
    imitated: Sequence[tuple[Message, ...]],
    teachers: Mapping[str, Teacher] = MappingProxyType({}),
    engine: object = None,
    say: Callable[[str], None] = lambda _text: None,
) -> Pools:
    """Return what fits the windows of student, ``engine`` and ``teachers``; ``say`` gets a line about what does not."""
    config = resolved.config
    window = window_with(engine, loaded.max_length)
    prompt_limit = window - min(config.max_new_tokens, window // 2)  # an answer gets at most half of the window
    row_limit = longest_row(teachers, loaded)
    if row_limit < window:  # an engine ends a completion at its window, no teacher can score more than its own
        prompt_limit = max(0, min(prompt_limit, row_limit - config.max_new_tokens))
    fit = fitting(loaded.chat, resolved.train, prompt_limit, config.max_new_tokens)
    if len(fit) < len(resolved.train):
        removed = len(resolved.train) - len(fit)
        say(f"{removed:,} of {len(resolved.train):,} prompts left out: they have more than {prompt_limit:,} tokens")
    longest = longest_of_main(teachers, loaded)
    behaviour = [p for p in fit if _context_fits(resolved, loaded, p, longest)]
    scored = resolved.knowledge is not None
    questions = fitting(loaded.chat, resolved.questions, prompt_limit, config.max_new_tokens) if scored else []
    earlier = fitting(loaded.chat, resolved.earlier_questions, prompt_limit, config.max_new_tokens) if scored else []
    if not behaviour and config.alpha > 0:
        raise UsageError(
            f"every prompt, with its context, is longer than the {prompt_limit} tokens that leave room for an answer: "
            f"lower --max-new-tokens, or give shorter prompts with --prompts"
        )
    conversations = _fitting_conversations(loaded, imitated, row_limit, say)
    documents = resolved.document_rows(loaded.tokenizer) if config.document_loss else ()
    near_misses = fitting(loaded.chat, resolved.near_misses, prompt_limit, config.max_new_tokens)
    return Pools(behaviour, questions, earlier, conversations, documents, near_misses)


def _fitting_conversations(
    loaded: Loaded, conversations: Sequence[tuple[Message, ...]], longest: int, say: Callable[[str], None]
) -> list[tuple[Message, ...]]:
    """Return the conversations of at most ``longest`` tokens: a cut one would teach to stop in mid-sentence.

    Raise UsageError if none fits.
    """
    kept = [messages for messages in conversations if len(loaded.chat.conversation(messages)[0]) <= longest]
    if long := len(conversations) - len(kept):
        share = f"{long:,} of {len(conversations):,}"
        message = f"{share} conversations to imitate left out: they have more than {longest:,} tokens"
        if not kept:
            raise UsageError(f"{message}, which is what the model takes: give shorter ones")
        say(message)
    return kept


def _context_fits(resolved: ResolvedDistillation, loaded: Loaded, prompt: Prompt, longest: int) -> bool:
    """Whether the prompt with its context and all completions is one of the teacher's rows, of ``longest`` tokens."""
    if resolved.context is None:
        return True
    messages, before = last_request(prompt.messages)
    ids = loaded.chat.prompt_ids(resolved.context.messages(prompt, messages))
    return len(ids) + resolved.config.max_new_tokens * (before + 1) <= longest


def given_completions(
    stage: Stage, frozen: FrozenModel, resolved: ResolvedDistillation
) -> tuple[list[tuple[Message, ...]], int]:
    """Return the off-policy conversations, the user's or sampled from a frozen model, and the tokens sampled."""
    config = resolved.config
    if config.alpha == 1.0:
        return [], 0
    if config.answers == "given":
        return list(resolved.given), 0
    source = (resolved.teacher or resolved.clean) if config.answers == "teacher" else resolved.student
    answered, sampled_tokens = answered_before(
        stage,
        frozen,
        source,
        # A file's first prompts may all be of one kind; steps draw theirs in this order.
        shuffled(resolved.train, config.seed, RandomStream.BEHAVIOUR_PROMPTS, config.prompts_before or 0),
        Sampling(config.max_new_tokens, config.temperature, seed=config.seed),
        count=math.ceil(config.steps / config.batch_epochs * config.prompts_per_step * (1 - config.alpha)),
        each=config.samples_per_prompt if config.answers == "rejection" else 1,
        most=_sampling_budget(config),
    )
    ended = bool(answered)
    if config.answers == "rejection" and resolved.reward is not None:
        reward, limit = resolved.reward, config.reward_timeout
        answered = [a for a in answered if judged(reward, a.prompt, a.answer, limit) >= config.keep_above]
    if not answered:
        larger = "--max-new-tokens" if config.max_tokens is None else "--max-new-tokens or --max-tokens"
        lower = "lower --keep-above, or " if ended else ""
        why = "" if ended else f", since none ended within {config.max_new_tokens:,} tokens"
        raise UsageError(f"no answer of {source.name} was kept{why}: {lower}raise {larger}")
    return [a.messages for a in answered], sampled_tokens


def _sampling_budget(config: DistillConfig) -> int | None:
    """Return the share of --max-tokens for responses that are sampled before the first step, so that the rest suffices
    to train each about once: responses are sampled, trained and, unless they are only imitated, scored.
    """
    uses = 2 if config.imitates else 3
    share = (config.prompts_per_step - config.on_policy_prompts_per_step) / config.rows_per_step
    return None if config.max_tokens is None else round(config.max_tokens * share / uses)


def longest_of_main(teachers: Mapping[str, Teacher], student: Loaded) -> int:
    """Return the tokens of the longest row that the main teacher can score: by its window, if it has one of its own."""
    main = teachers.get(MAIN_TEACHER)
    windows = [part.window for part, _ in main.parts if part.window] if main is not None else []
    return min(windows, default=student.max_length)


def longest_row(teachers: Mapping[str, Teacher], student: Loaded) -> int:
    """Return the tokens of the longest row that the student and all teachers in its tokens read."""
    parts = [part for teacher in teachers.values() for part, _ in teacher.parts]
    same = (part for part in parts if part.loaded is None or same_tokens(part.loaded.tokenizer, student.tokenizer))
    return min([student.max_length, *(part.window for part in same if part.window)])


# Token scores of a few completions of a running stage, for review on the dashboard.

RECORDED = 5  # times per stage, in addition to the first step


@dataclass
class TokenLogger:
    """Records, at some steps, token scores of ``count`` rows that a single teacher scores.

    ``main_teacher`` is the checkpoint that rows of :data:`~recovery.losses.objective.MAIN_TEACHER` mean.
    """

    stage: Stage
    models: LoadedModels
    steps: int
    count: int
    main_teacher: str
    rows: list[Row] = field(default_factory=list)

    def keep(self, step: int, batch: StepBatch) -> None:
        """Select rows of a step's batch, if the step is to be recorded."""
        if self._is_recorded(step):
            self.rows = _evenly_spaced([row for row in batch.rows if self._has_view(row)], self.count)

    def record(self, step: int) -> None:
        """Score the selected rows with the updated student and store them, if the step is to be recorded."""
        if not self._is_recorded(step) or not self.rows:
            return
        views = [(row, view) for row in self.rows for view in self.models.token_views(row)]
        self.rows = []
        self.stage.session.tracker.add_token_scores(
            self.stage.recorder.id, step, [self._record(number, row, view) for number, (row, view) in enumerate(views)]
        )

    def _is_recorded(self, step: int) -> bool:
        return self.count > 0 and (step in (1, self.steps) or step % max(1, self.steps // RECORDED) == 0)

    def _has_view(self, row: Row) -> bool:
        """Whether the row is a response of one teacher in this process that has the student's tokenizer."""
        if row.segments or row.spans is not None:  # text of documents, or another tokenizer
            return False
        return row.teacher in self.models.teachers and self.models.teachers[row.teacher].has_logits

    def _record(self, number: int, row: Row, view: TokenView) -> dict[str, Any]:
        """Return a view as the tracker stores it: tokens as text; the teacher's name, folder name, or part."""
        text = self.models.loaded.chat.raw_text
        scorer = self.main_teacher if row.teacher == MAIN_TEACHER else row.teacher
        scorer = Path(scorer).name if Path(scorer).is_absolute() else scorer
        shown = {
            name: [[(text([t]), p) for t, p in top] for top in getattr(view, name)] for name in ("top", "teacher_top")
        }
        numbers = ("reverse_kl", "entropy", "teacher_entropy", "logprob", "teacher_logprob", "advantage")
        values = {name: getattr(view, name) for name in numbers if getattr(view, name)}
        return {
            "item": f"{number}, {scorer}",
            "prompt": text(view.prompt_ids),
            "tokens": [text([token]) for token in view.ids],
            "values": values | shown,
        }


def _evenly_spaced(rows: Sequence[Row], count: int) -> list[Row]:
    """Return ``count`` evenly spaced rows, so that several prompts and teachers are included."""
    if len(rows) <= count:
        return list(rows)
    return [rows[round(at * (len(rows) - 1) / max(1, count - 1))] for at in range(count)]
