"""The mid-training stage: plan, data mixture, training on documents, checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import AutoTokenizer

from db import records
from pipelines.data import augment
from pipelines.data.corpus_snapshot import CorpusSnapshot, gather, load_snapshot, load_snapshots, save_snapshot
from pipelines.data.document_rows import row_length, rows_of, text_rows
from pipelines.data.mixing import Stream, choose, schedule, step_tokens, steps_for
from pipelines.planning.memory import Needs, midtraining
from pipelines.planning.work import midtraining_work
from pipelines.runtime.generation import clean_answers, fitting, record_sampled_tokens
from pipelines.runtime.model_loading import ModelSpecs, load_frozen, load_models, teacher_footprint
from pipelines.runtime.progress import duration
from pipelines.runtime.session import Session
from pipelines.runtime.stage import Stage, running, settings_of
from pipelines.runtime.tuning import Tuning, choose_tuning
from recovery.batching import Row, pack
from recovery.config import MidtrainConfig
from recovery.data.augmentation import Augmented
from recovery.data.corpus import Document
from recovery.data.prompts import behaviour_prompts, load_conversations
from recovery.errors import UsageError
from recovery.losses.config import LossConfig
from recovery.losses.objective import BEHAVIOUR
from recovery.models.chat_template import ChatFormat
from recovery.models.loading import Loaded, load_chat
from recovery.rng import RandomStream
from recovery.rollouts import Sampling
from recovery.training.loop import Hooks, StepBatch
from recovery.types import Message
from recovery.workspace import Checkpoint

# Conversations per step whose loss a projected gradient may not raise.
GUARD_ROWS = 16
# Most passes over paraphrases, and over questions, per pass over the documents.
MOST_PASSES = 4


@dataclass(frozen=True)
class MidtrainPlan:
    """The plan of mid-training, computed without loading weights. Tokens are target tokens."""

    cycle: int
    student: str
    documents: int
    document_tokens: int
    earlier_documents: int
    replay_share: float
    replay_scored: bool
    earlier_share: float
    tokens_per_step: int
    row_length: int
    steps: int
    tokens: int
    tuning: str
    tuning_reason: str
    lr: float
    parameters: int
    memory: Needs
    seconds: float
    corpus: tuple[str, ...]
    augmentation: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the plan as text for the user."""
        earlier = (
            f", {self.earlier_share:.0%} from {self.earlier_documents} earlier documents" if self.earlier_share else ""
        )
        scored = " and scored" if self.replay_scored else ""
        chat = f", {self.replay_share:.0%} chat answered{scored} by base" if self.replay_share else ", no chat replay"
        return "\n".join(
            [
                *self.corpus,
                f"cycle {self.cycle}: mid-train {self.student} ({self.parameters / 1e6:,.1f}M parameters) on "
                f"{self.documents} documents, {self.document_tokens:,} tokens{earlier}{chat}",
                *self.augmentation,
                f"{self.steps} steps of {self.tokens_per_step:,} = {self.tokens:,} tokens, peak rate {self.lr:g}",
                self.tuning_reason,
                f"memory: {self.memory}; time: about {duration(self.seconds)}",
            ]
        )


@dataclass(frozen=True)
class Length:
    """The length of mid-training: target tokens of the documents and per step, steps, tokens of the longest row."""

    documents: int
    per_step: int
    steps: int
    row: int


@dataclass(frozen=True)
class _Sources:
    """The training data: documents of this cycle and of earlier ones, augmented data, a writer's task and its text.

    ``written`` is None before the writer has run; the plan then assumes that its text is long enough.
    """

    own: CorpusSnapshot
    earlier: dict[int, CorpusSnapshot]
    augmented: Augmented
    writing: augment.Writing | None
    written: tuple[Document, ...] | None = None

    @property
    def earlier_documents(self) -> int:
        return sum(len(corpus.documents) for corpus in self.earlier.values())

    def shares(self, config: MidtrainConfig) -> dict[str, float]:
        """Return each stream's share of the target tokens; the share of an empty stream goes to the others."""
        earlier = (config.replay_documents or 0.0) if self.earlier_documents else 0.0
        own = (1 - config.replay) * (1 - earlier)
        has_questions = bool(self.augmented.conversations)
        paraphrased = bool(self.augmented.documents or self.augmented.told) or self.writing is not None
        other = config.augment_share if has_questions or paraphrased else 0.0
        questions = (config.augment_questions if paraphrased else 1.0) if has_questions else 0.0
        texts, answers = self.augmented.characters
        texts += sum(len(document.text) for document in self.written or ())
        # A few short answers would be repeated a hundred times: shares are limited to MOST_PASSES, by their length.
        once = own * (1 - other) / max(1, sum(len(d.text) for d in self.own.documents))
        unknown = self.writing is not None and self.written is None
        most_texts = own if unknown else MOST_PASSES * once * texts
        wordings = min(own * other * (1 - questions), most_texts)
        question_share = min(own * other * questions, MOST_PASSES * once * answers)
        return {
            "documents": own - wordings - question_share,
            "earlier": (1 - config.replay) * earlier,
            "wordings": wordings,
            "questions": question_share,
            "chat": config.replay,
        }


def plan_midtrain(session: Session, config: MidtrainConfig, cycle: int | None = None) -> MidtrainPlan:
    """Return the plan, from the current documents; writes nothing and loads no weights."""
    student = session.resolve(config.student)
    number = cycle or session.next_cycle()
    return _plan(session, config, student, _sources(session, config, student, _gather(config, number)))


def length_of(session: Session, config: MidtrainConfig, cycle: int) -> Length:
    """Return the length of mid-training on the snapshot of a cycle; loads no weights."""
    student = session.resolve(config.student)
    return _length(config, student, _sources(session, config, student, load_snapshot(session.workspace, cycle)))


def midtrain(
    session: Session,
    config: MidtrainConfig,
    *,
    cycle: int | None = None,
    opened: bool = False,
    resume: records.Stage | None = None,
    name: str | None = None,
) -> Checkpoint:
    """Run the stage and return its checkpoint, which becomes ``latest``.

    ``opened`` is set if the cycle's documents are already saved as a snapshot; ``resume`` is the record of an
    interrupted stage to continue; ``name`` is the checkpoint's name, "cycle-K/midtrained" by default. Raise
    StageInterrupted if a stop is requested.
    """
    number = (resume.cycle if resume is not None else cycle) or session.next_cycle()
    student = session.registered(session.resolve(config.student))
    config = replace(config, student=student.name)
    own = (
        load_snapshot(session.workspace, number)
        if opened or resume is not None
        else open_cycle(session, config, number)
    )
    sources = _sources(session, config, student, own)
    plan = _plan(session, config, student, sources)
    config = replace(config, tuning=plan.tuning)  # fixed: a resumed stage may find another amount of free memory
    session.display.say(plan.text())
    with running(session, "midtrain", config, cycle=number, student=student, resume=resume) as stage:
        chat_rows = _replay(session, stage, config) if config.replay or config.project else []
        if sources.writing:
            sources = replace(sources, written=tuple(augment.write(session, stage, config, sources.writing)))
            plan = _with_written(session, config, student, sources, plan)
        specs = _model_specs(session, config, student, plan.tuning)
        settings = settings_of(config, plan.steps, plan.lr)
        with load_models(stage, specs, settings) as models:
            loaded = models.loaded
            streams = _streams(config, loaded, plan.row_length, sources, chat_rows)
            steps = schedule(streams, plan.steps, plan.tokens_per_step, config.seed)
            hooks = Hooks(
                log=lambda _step, metrics: models.instrumentation.account(metrics) if models.timed else None,
                reference=_guard(config, chat_rows) if config.project else None,
            )
            result = models.train(stage, lambda step: StepBatch(steps[step - 1], {}), settings, hooks=hooks)
        extra = {"cycle": number, "corpus_hash": own.hash, "steps": result.step, "tokens": result.trained_tokens}
        stage.details = {"corpus": list(own.lines), "replay": len(chat_rows), **extra}
        stage.details |= {"augmentation": list(plan.augmentation)} if plan.augmentation else {}
        return stage.keep(loaded, "midtrained", student, extra, name=name)


def open_cycle(session: Session, config: MidtrainConfig, number: int) -> CorpusSnapshot:
    """Save the snapshot of a cycle's documents, probes and questions, and record the cycle in the tracker."""
    own = _gather(config, number)
    save_snapshot(session.workspace, own)
    session.tracker.cycle(
        session.experiment_id,
        number,
        documents=own.folder,
        corpus_hash=own.hash,
        details={"probes_hash": own.probes_hash, "probes": len(own.probes), "questions": len(own.questions)},
    )
    return own


def _gather(config: MidtrainConfig, cycle: int) -> CorpusSnapshot:
    if config.docs is None:
        raise UsageError("no documents to train on: give a folder with --docs FOLDER")
    return gather(config.docs, cycle, held_out=config.held_out, seed=config.seed)


def _earlier(session: Session, student: Checkpoint, cycle: int) -> dict[int, CorpusSnapshot]:
    return load_snapshots(session.workspace, session.learnt_cycles(student, cycle - 1))


def _sources(session: Session, config: MidtrainConfig, student: Checkpoint, own: CorpusSnapshot) -> _Sources:
    """Return the training data. No question is made from facts that probes of this cycle or earlier ones ask."""
    earlier = _earlier(session, student, own.cycle)
    probes = [probe for corpus in (own, *earlier.values()) for probe in corpus.probes]
    made = augment.augmented(config, own, probes)
    return _Sources(own, earlier, made, augment.writing(session, config, own))


def _plan(session: Session, config: MidtrainConfig, student: Checkpoint, sources: _Sources) -> MidtrainPlan:
    clean, length = session.base, _length(config, student, sources)
    footprint = teacher_footprint(student, [clean] * ((config.anchor > 0) + config.distils_replay))
    tuning: Tuning = choose_tuning(
        config, student, lambda *given: midtraining(config, *given, beside=footprint, row_length=length.row)
    )
    return MidtrainPlan(
        cycle=sources.own.cycle,
        student=student.name,
        documents=len(sources.own.documents),
        document_tokens=length.documents,
        earlier_documents=sources.earlier_documents,
        replay_share=config.replay,
        replay_scored=config.distils_replay,
        earlier_share=sources.shares(config)["earlier"] / (1 - config.replay),
        tokens_per_step=length.per_step,
        row_length=length.row,
        steps=length.steps,
        tokens=length.steps * length.per_step,
        tuning=tuning.name,
        tuning_reason=tuning.reason,
        lr=config.rate(tuning.name, tuning.parameters),
        parameters=tuning.parameters,
        memory=tuning.needs,
        seconds=midtraining_work(
            config, tuning.name, round(length.steps * length.per_step * _computed(config, student, sources, length.row))
        ).seconds(tuning.network, tuning.speed),
        corpus=sources.own.lines,
        augmentation=tuple(_augmentation(session, config, sources)),
    )


def _with_written(
    session: Session, config: MidtrainConfig, student: Checkpoint, sources: _Sources, plan: MidtrainPlan
) -> MidtrainPlan:
    """Return the plan updated to the length of the writer's text, which limits its number of passes."""
    length = _length(config, student, sources)
    return replace(
        plan,
        steps=length.steps,
        tokens=length.steps * length.per_step,
        augmentation=tuple(_augmentation(session, config, sources)),
    )


def _augmentation(session: Session, config: MidtrainConfig, sources: _Sources) -> list[str]:
    """Return the lines of the plan about paraphrases, questions and the cost of a writer."""
    if not config.augment:
        return []
    made, shares = sources.augmented, sources.shares(config)
    lines = [
        f"augmentation: {made.facts} facts in up to {config.augment} other wordings and {len(made.told)} chats that "
        f"tell of subjects and sections, {shares['wordings']:.0%} of the trained tokens; {len(made.conversations)} "
        f"questions with answers, those that came with the documents and those about {made.asked} facts that no probe "
        f"asks, {shares['questions']:.0%}"
    ]
    return [*lines, sources.writing.line(session.workspace)] if sources.writing else lines


def _length(config: MidtrainConfig, student: Checkpoint, sources: _Sources) -> Length:
    tokenizer = AutoTokenizer.from_pretrained(student.weights)
    length = row_length(student, config.row_length)
    own = _tokens(tokenizer, length, sources.own)
    own_share = sources.shares(config)["documents"]
    per_step = step_tokens(config.batch_tokens, round(config.passes * own / own_share))
    if length > per_step:  # a row longer than a step would be repeated in the next steps
        length = per_step
        own = _tokens(tokenizer, length, sources.own)
    return Length(own, per_step, config.steps or steps_for(config.passes, own, own_share, per_step), length)


def _computed(config: MidtrainConfig, student: Checkpoint, sources: _Sources, length: int) -> float:
    """Return the tokens computed per target token: the prompts of augmented conversations are computed as well."""
    if not config.augment:
        return 1.0
    chat, shares = load_chat(str(student.weights), config.template_args), sources.shares(config)
    rows = _augmented_rows(chat, row_length(student, chat.tokenizer.model_max_length), length, sources)
    return 1.0 + sum(
        shares[name] * (sum(len(row.ids) for row in found) / max(1, Stream(name, found, 1.0).tokens) - 1)
        for name, found in rows.items()
        if found
    )


def _model_specs(session: Session, config: MidtrainConfig, student: Checkpoint, tuning: str) -> ModelSpecs:
    """Return the student, and the clean model as anchor and as teacher of the replayed chat, if configured."""
    clean = session.verified(session.base) if config.anchor or config.distils_replay else session.base
    return ModelSpecs(
        config,
        student,
        tuning,
        teachers={BEHAVIOUR: {clean: 1.0}} if config.distils_replay else {},
        anchor=clean if config.anchor else None,
        loss_config=LossConfig(anchor=config.anchor, divergence="forward_kl", metric="replay_kl"),
    )


def _guard(config: MidtrainConfig, chat_rows: Sequence[Row]) -> Callable[[int], list[Row]]:
    """Return the hook that selects the chat rows whose loss a step may not raise."""
    return lambda step: choose(
        chat_rows, min(GUARD_ROWS, len(chat_rows)), step, config.seed, stream=RandomStream.GUARD_ROWS
    )


def _tokens(tokenizer: Any, length: int, corpus: CorpusSnapshot) -> int:
    return Stream("documents", rows_of(tokenizer, length, corpus), 1.0).tokens


def _streams(
    config: MidtrainConfig,
    loaded: Loaded,
    length: int,
    sources: _Sources,
    chat_rows: Sequence[Row],
) -> list[Stream]:
    """Return the streams with their shares of the target tokens: documents of this cycle and of earlier ones,
    paraphrases, questions, chat.
    """
    rows = {
        "documents": rows_of(loaded.tokenizer, length, sources.own),
        "earlier": rows_of(loaded.tokenizer, length, *sources.earlier.values()),
        **_augmented_rows(loaded.chat, loaded.max_length, length, sources),
        "chat": chat_rows,
    }
    return [Stream(name, rows[name], share) for name, share in sources.shares(config).items() if share > 0]


def _augmented_rows(chat: ChatFormat, longest: int, length: int, sources: _Sources) -> dict[str, list[Row]]:
    """Return rows of ``length`` tokens by stream: paraphrases, as texts and as conversations, and questions."""
    made = sources.augmented
    texts = text_rows(chat.tokenizer, length, [*made.documents, *(sources.written or ())])
    return {
        "wordings": [*texts, *_packed(chat, longest, made.told, length)],
        "questions": _packed(chat, longest, made.conversations, length),
    }


def _replay(session: Session, stage: Stage, config: MidtrainConfig) -> list[Row]:
    """Return rows of chat for replay: the user's, or the clean base's completions of training prompts."""
    base = session.verified(session.base)
    if config.replay_data is not None:
        loaded = load_frozen(base, config)
        given = load_conversations(config.replay_data)
        rows = _conversation_rows(loaded, given, config)
        if not rows:
            raise UsageError(f"--replay-data {config.replay_data}: no conversation fits in {loaded.max_length} tokens")
        return rows
    splits = behaviour_prompts(base.path, config.prompts, config.seed)
    loaded = load_frozen(base, config)
    prompts = fitting(loaded.chat, splits.train, loaded.max_length // 2)[: config.replay_prompts]
    sampling = Sampling(config.max_new_tokens, seed=config.seed)
    answered = clean_answers(stage, base, loaded, prompts, sampling, config)
    record_sampled_tokens(stage, loaded, answered)
    rows = _conversation_rows(loaded, [a.messages for a in answered], config)
    if not rows:
        raise UsageError(
            f"none of the clean model's answers ended within {config.max_new_tokens} tokens, so there is no chat to "
            f"replay: raise --max-new-tokens, or omit --replay"
        )
    return rows


def _conversation_rows(
    loaded: Loaded, conversations: Sequence[tuple[Message, ...]], config: MidtrainConfig
) -> list[Row]:
    """Return replayed conversations as packed rows, trained on directly or towards the clean model's scores."""
    rows = _packed(loaded.chat, loaded.max_length, conversations, config.row_length)
    return [replace(row, teacher=BEHAVIOUR) for row in rows] if config.distils_replay else rows


def _packed(chat: ChatFormat, longest: int, conversations: Sequence[tuple[Message, ...]], length: int) -> list[Row]:
    """Return conversations as packed rows; rows are longer if a conversation is, up to ``longest`` tokens."""
    marked = [chat.conversation(messages) for messages in conversations]
    kept = [(ids, mask) for ids, mask in marked if len(ids) <= longest and any(mask)]
    return pack(kept, max([length, *(len(ids) for ids, _ in kept)]))
