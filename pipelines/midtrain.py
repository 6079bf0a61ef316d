"""Mid-training: documents into the weights. Read top to bottom: gather, plan, mix, train, keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from db import records
from pipelines import augmenting
from pipelines.answers import asked_beforehand, count_spoken, fitting
from pipelines.corpora import FrozenCorpus, freeze, gather, thaw, thaw_all
from pipelines.estimates import Work
from pipelines.memory import Needs, midtraining
from pipelines.mixing import Stream, choose, schedule, step_tokens, steps_for
from pipelines.models import Tuning, beside, choose_tuning, load_frozen
from pipelines.progress import duration
from pipelines.roles import Roles, cast
from pipelines.session import Session
from pipelines.sources import BEHAVIOUR
from pipelines.stage import Stage, running, settings_of
from recovery.augmentation import Augmented
from recovery.batches import Row, pack
from recovery.chat import ChatFormat
from recovery.config import MidtrainConfig
from recovery.corpus import Document, document_rows
from recovery.errors import UsageError
from recovery.loading import Loaded, load_chat
from recovery.objectives.dials import Dials
from recovery.prompts import behaviour_prompts, load_conversations
from recovery.rollouts import Sampling
from recovery.training import StepBatch
from recovery.types import Message
from recovery.workspace import Checkpoint

# Conversations whose loss a projected gradient may not raise, at each step.
GUARD_ROWS = 16
# Passes over other wordings, and over questions, to one over the documents.
MOST_PASSES = 4


@dataclass(frozen=True)
class MidtrainPlan:
    """Everything that is known before weights are loaded. Tokens are target tokens."""

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
        """The plan for a person."""
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
    """How long mid-training is: target tokens of the documents and a step, steps, the longest row."""

    documents: int
    per_step: int
    steps: int
    row: int


@dataclass(frozen=True)
class _Sources:
    """The documents of this cycle and of the ones before it; other wordings of this cycle's, who writes more, and what
    has come of that (None: not yet, and it is planned for as if there were enough).
    """

    own: FrozenCorpus
    earlier: dict[int, FrozenCorpus]
    augmented: Augmented
    writing: augmenting.Writing | None
    written: tuple[Document, ...] | None = None

    @property
    def earlier_documents(self) -> int:
        return sum(len(corpus.documents) for corpus in self.earlier.values())

    def shares(self, config: MidtrainConfig) -> dict[str, float]:
        """Which part of the target tokens each stream has; what there is nothing of leaves its part to the rest."""
        earlier = (config.replay_documents or 0.0) if self.earlier_documents else 0.0
        own = (1 - config.replay) * (1 - earlier)
        asked = bool(self.augmented.conversations)
        worded = bool(self.augmented.documents or self.augmented.told) or self.writing is not None
        other = config.augment_share if asked or worded else 0.0
        questions = (config.augment_questions if worded else 1.0) if asked else 0.0
        texts, answers = self.augmented.characters
        texts += sum(len(document.text) for document in self.written or ())
        # A few short answers would be seen a hundred times: by their length they get what so many passes take.
        once = own * (1 - other) / max(1, sum(len(d.text) for d in self.own.documents))
        unknown = self.writing is not None and self.written is None
        most_texts = own if unknown else MOST_PASSES * once * texts
        wordings = min(own * other * (1 - questions), most_texts)
        asked_share = min(own * other * questions, MOST_PASSES * once * answers)
        return {
            "documents": own - wordings - asked_share,
            "earlier": (1 - config.replay) * earlier,
            "wordings": wordings,
            "questions": asked_share,
            "chat": config.replay,
        }


def plan_midtrain(session: Session, config: MidtrainConfig, cycle: int | None = None) -> MidtrainPlan:
    """The resolved plan, from the documents as they are now; writes nothing and loads no weights."""
    student = session.resolve(config.student)
    number = cycle or session.next_cycle()
    return _plan(session, config, student, _sources(session, config, student, _gather(config, number)))


def length_of(session: Session, config: MidtrainConfig, cycle: int) -> Length:
    """How long mid-training on a cycle's frozen documents is; counts no memory and loads no weights."""
    student = session.resolve(config.student)
    return _length(config, student, _sources(session, config, student, thaw(session.workspace, cycle)))


def midtrain(
    session: Session,
    config: MidtrainConfig,
    *,
    cycle: int | None = None,
    opened: bool = False,
    resume: records.Stage | None = None,
    name: str | None = None,
) -> Checkpoint:
    """Run the stage to its end and return the mid-trained checkpoint, which is then ``latest``.

    ``opened`` says that the cycle's documents were frozen already; ``name`` is what the checkpoint is called,
    "cycle-K/midtrained" where it is left out.

    Raises StageInterrupted when asked to stop; ``resume`` is that stage's record, to go on with it.
    """
    number = (resume.cycle if resume is not None else cycle) or session.next_cycle()
    student = session.registered(session.resolve(config.student))
    config = replace(config, student=student.name)
    own = thaw(session.workspace, number) if opened or resume is not None else open_cycle(session, config, number)
    sources = _sources(session, config, student, own)
    plan = _plan(session, config, student, sources)
    config = replace(config, tuning=plan.tuning)  # chosen once: a resumed stage may find other memory
    session.display.say(plan.text())
    with running(session, "midtrain", config, cycle=number, student=student, resume=resume) as stage:
        chat_rows = _replay(session, stage, config) if config.replay or config.project else []
        if sources.writing:
            sources = replace(sources, written=tuple(augmenting.write(session, stage, config, sources.writing)))
            plan = _with_written(session, config, student, sources, plan)
        roles = _roles(session, config, student, plan.tuning)
        settings = settings_of(config, plan.steps, plan.lr)
        with cast(stage, roles, settings) as models:
            loaded = models.loaded
            streams = _streams(config, loaded, plan.row_length, sources, chat_rows)
            steps = schedule(streams, plan.steps, plan.tokens_per_step, config.seed)
            result = stage.train(
                loaded,
                lambda step: StepBatch(steps[step - 1], {}),
                models.estimator,
                settings,
                names={f"loss/{BEHAVIOUR}": "replay_kl"},
                measured=models.gauge.account if models.timed else lambda _: None,
                reference=_guard(config, chat_rows) if config.project else None,
                gauge=models.gauge,
            )
        extra = {"cycle": number, "corpus_hash": own.hash, "steps": result.step, "tokens": result.trained_tokens}
        stage.details = {"corpus": list(own.lines), "replay": len(chat_rows), **extra}
        stage.details |= {"augmentation": list(plan.augmentation)} if plan.augmentation else {}
        return stage.keep(loaded, "midtrained", student, extra, name=name)


def open_cycle(session: Session, config: MidtrainConfig, number: int) -> FrozenCorpus:
    """Freeze a cycle's documents, probes and questions, and enter the cycle in the tracker."""
    own = _gather(config, number)
    freeze(session.workspace, own)
    session.tracker.cycle(
        session.experiment_id,
        number,
        documents=own.folder,
        corpus_hash=own.hash,
        details={"probes_hash": own.probes_hash, "probes": len(own.probes), "questions": len(own.questions)},
    )
    return own


def _gather(config: MidtrainConfig, cycle: int) -> FrozenCorpus:
    if config.docs is None:
        raise UsageError("there is nothing to learn: name a folder of documents with --docs FOLDER")
    return gather(config.docs, cycle, held_out=config.held_out, seed=config.seed)


def _earlier(session: Session, student: Checkpoint, cycle: int) -> dict[int, FrozenCorpus]:
    return thaw_all(session.workspace, session.taken_up(student, cycle - 1))


def _sources(session: Session, config: MidtrainConfig, student: Checkpoint, own: FrozenCorpus) -> _Sources:
    """What there is to learn. No question is made of what this cycle's probes ask, or those of an earlier one."""
    earlier = _earlier(session, student, own.cycle)
    probes = [probe for corpus in (own, *earlier.values()) for probe in corpus.probes]
    made = augmenting.augmented(config, own, probes)
    return _Sources(own, earlier, made, augmenting.writing(session, config, own))


def _plan(session: Session, config: MidtrainConfig, student: Checkpoint, sources: _Sources) -> MidtrainPlan:
    clean, length = session.base, _length(config, student, sources)
    taught = beside(student, [clean] * ((config.anchor > 0) + config.distils_replay))
    tuning: Tuning = choose_tuning(
        config, student, lambda *given: midtraining(config, *given, beside=taught, row_length=length.row)
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
    """The plan once it is known how much a writer wrote: its text is seen no more often than that of rules."""
    length = _length(config, student, sources)
    return replace(
        plan,
        steps=length.steps,
        tokens=length.steps * length.per_step,
        augmentation=tuple(_augmentation(session, config, sources)),
    )


def _augmentation(session: Session, config: MidtrainConfig, sources: _Sources) -> list[str]:
    """The plan of other wordings and questions for a person, with what a writer costs."""
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
    if length > per_step:  # a row longer than a step would be trained on several steps in turn
        length = per_step
        own = _tokens(tokenizer, length, sources.own)
    return Length(own, per_step, config.steps or steps_for(config.passes, own, own_share, per_step), length)


def _computed(config: MidtrainConfig, student: Checkpoint, sources: _Sources, length: int) -> float:
    """Tokens computed for each that is trained on: the prompts of questions and of chats that tell are read as well."""
    if not config.augment:
        return 1.0
    chat, shares = load_chat(str(student.weights), config.template_args), sources.shares(config)
    rows = _augmented_rows(chat, row_length(student, chat.tokenizer.model_max_length), length, sources)
    return 1.0 + sum(
        shares[name] * (sum(len(row.ids) for row in found) / max(1, Stream(name, found, 1.0).tokens) - 1)
        for name, found in rows.items()
        if found
    )


def midtraining_work(config: MidtrainConfig, tuning: str, tokens: int) -> Work:
    """The work of mid-training on so many tokens, prompts among them; an anchor reads them too, a teacher of the
    replayed chat its share, and a projection looks at some more.
    """
    lora = tuning == "lora"
    read = tokens * (config.anchor > 0) + round(tokens * config.replay * config.distils_replay)
    return Work(trained=tokens, read=read, frozen=lora, again=config.gradient_checkpointing)


def _roles(session: Session, config: MidtrainConfig, student: Checkpoint, tuning: str) -> Roles:
    """Who is trained, and what the clean model is beside it: the anchor, the teacher of the replayed chat."""
    clean = session.verified(session.base) if config.anchor or config.distils_replay else session.base
    return Roles(
        config,
        student,
        tuning,
        teachers={BEHAVIOUR: {clean: 1.0}} if config.distils_replay else {},
        anchor=clean if config.anchor else None,
        dials=Dials(anchor=config.anchor, divergence="forward_kl"),
    )


def _guard(config: MidtrainConfig, chat_rows: Sequence[Row]) -> Callable[[int], list[Row]]:
    """The chat rows of each step whose loss that step may not raise."""
    return lambda step: choose(chat_rows, min(GUARD_ROWS, len(chat_rows)), step, config.seed, stream=29)


def _tokens(tokenizer: Any, length: int, corpus: FrozenCorpus) -> int:
    return Stream("documents", rows_of(tokenizer, length, corpus), 1.0).tokens


def rows_of(tokenizer: Any, length: int, *corpora: FrozenCorpus) -> list[Row]:
    """The documents of some corpora as packed rows of at most ``length`` tokens, every token a target."""
    return text_rows(tokenizer, length, [document for corpus in corpora for document in corpus.documents])


def text_rows(tokenizer: Any, length: int, documents: Sequence[Document]) -> list[Row]:
    """Documents as packed rows of at most ``length`` tokens, every token a target."""
    if not documents:
        return []
    return pack([(ids, [True] * len(ids)) for ids in document_rows(list(documents), tokenizer, length)], length)


def row_length(student: Checkpoint, wanted: int) -> int:
    """``wanted`` tokens a row, or as many as the model has positions for."""
    config = AutoConfig.from_pretrained(student.weights).get_text_config()
    return min(wanted, int(getattr(config, "max_position_embeddings", None) or wanted))


def _streams(
    config: MidtrainConfig,
    loaded: Loaded,
    length: int,
    sources: _Sources,
    chat_rows: Sequence[Row],
) -> list[Stream]:
    """This cycle's documents, their other wordings and questions, the earlier ones' and the chat, each with its share
    of the target tokens.
    """
    rows = {
        "documents": rows_of(loaded.tokenizer, length, sources.own),
        "earlier": rows_of(loaded.tokenizer, length, *sources.earlier.values()),
        **_augmented_rows(loaded.chat, loaded.max_length, length, sources),
        "chat": chat_rows,
    }
    return [Stream(name, rows[name], share) for name, share in sources.shares(config).items() if share > 0]


def _augmented_rows(chat: ChatFormat, longest: int, length: int, sources: _Sources) -> dict[str, list[Row]]:
    """Other wordings, as texts and as chats that tell, and questions: rows of ``length`` tokens by stream."""
    made = sources.augmented
    texts = text_rows(chat.tokenizer, length, [*made.documents, *(sources.written or ())])
    return {
        "wordings": [*texts, *_packed(chat, longest, made.told, length)],
        "questions": _packed(chat, longest, made.conversations, length),
    }


def _replay(session: Session, stage: Stage, config: MidtrainConfig) -> list[Row]:
    """Chat for replay: training prompts answered by the clean base itself, or the user's; answers are the targets."""
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
    answered = asked_beforehand(stage, base, loaded, prompts, sampling, config)
    count_spoken(stage, loaded, answered)
    rows = _conversation_rows(loaded, [a.messages for a in answered], config)
    if not rows:
        raise UsageError(
            f"none of the clean model's answers ended within {config.max_new_tokens} tokens, so there is no chat to "
            f"replay: raise --max-new-tokens, or leave --replay out"
        )
    return rows


def _conversation_rows(
    loaded: Loaded, conversations: Sequence[tuple[Message, ...]], config: MidtrainConfig
) -> list[Row]:
    """Replayed conversations as packed rows, to be learnt or to be scored by the clean model."""
    rows = _packed(loaded.chat, loaded.max_length, conversations, config.row_length)
    return [replace(row, teacher=BEHAVIOUR) for row in rows] if config.distils_replay else rows


def _packed(chat: ChatFormat, longest: int, conversations: Sequence[tuple[Message, ...]], length: int) -> list[Row]:
    """Conversations as packed rows; one that is longer than a row has a longer row, up to what the model reads."""
    marked = [chat.conversation(messages) for messages in conversations]
    kept = [(ids, mask) for ids, mask in marked if len(ids) <= longest and any(mask)]
    return pack(kept, max([length, *(len(ids) for ids, _ in kept)]))
