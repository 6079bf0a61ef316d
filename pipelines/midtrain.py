"""The mid-training stage: plan, data mixture, training on documents, checkpoint."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from db import records
from evals.rewriting import Rewritten
from pipelines.data import augment
from pipelines.data.corpus_snapshot import CorpusSnapshot, gather, load_snapshots, save_snapshot
from pipelines.data.document_rows import chat_rows, row_length, text_rows
from pipelines.data.mixing import Stream, choose, schedule, step_tokens, steps_for
from pipelines.data.prompt_sampler import weakest
from pipelines.planning.architecture import Architecture
from pipelines.planning.memory import Needs, midtraining
from pipelines.planning.work import midtraining_work
from pipelines.runtime.generation import CompletedConversation, answered_before
from pipelines.runtime.model_loading import FrozenModel, ModelSpecs, load_models, settings_of, teacher_footprint
from pipelines.runtime.progress import duration
from pipelines.runtime.session import Session
from pipelines.runtime.stage import Stage, running
from pipelines.runtime.tuning import Tuning, choose_tuning
from recovery.batching import Row
from recovery.config import WRITER_FILE, MidtrainConfig
from recovery.data.augmentation import Augmented, Conversation
from recovery.data.corpus import Document
from recovery.data.prompts import REPLAY_DATA, behaviour_prompts, load_conversations, without_held_out
from recovery.errors import CorpusError, UsageError
from recovery.losses.config import LossConfig
from recovery.losses.objective import MAIN_TEACHER
from recovery.models.chat_loading import load_chat
from recovery.models.chat_template import ChatFormat
from recovery.rng import RandomStream
from recovery.rollouts.engine import Sampling
from recovery.training.interfaces import Hooks, StepBatch
from recovery.types import Prompt
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
    experts: tuple[str, ...] = ()

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
                *self.experts,
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


@dataclass
class _Material:
    """What is trained on: documents of this cycle and of earlier ones, augmented data, a writer's task and its text.

    ``written`` is the writer's text; while it is None before the writer has run, the plan assumes that it is long
    enough. Each stream of rows is packed once for each length.
    """

    clean: Checkpoint
    student: Checkpoint
    chat: ChatFormat
    own: CorpusSnapshot
    earlier: dict[int, CorpusSnapshot]
    augmented: Augmented
    writing: augment.Writing | None
    written: Rewritten | None = None
    _packed: dict[tuple[str, int], list[Row]] = field(default_factory=dict)

    def add(self, written: Rewritten) -> None:
        """Add the writer's text."""
        self.written = written
        self._packed = {key: rows for key, rows in self._packed.items() if key[0] != "wordings"}

    def rows(self, stream: str, length: int) -> list[Row]:
        """Return a stream's rows of ``length`` tokens, longer if a conversation is."""
        if (stream, length) not in self._packed:
            texts, chats = self._of(stream)
            packed = text_rows(self.chat.tokenizer, length, texts)
            self._packed[stream, length] = [*packed, *chat_rows(self.chat, self.student, chats, length)]
        return self._packed[stream, length]

    def tokens(self, config: MidtrainConfig, length: int) -> set[int]:
        """Return the tokens of all that is trained on but chat."""
        found: set[int] = set()
        for name, share in self.shares(config).items():
            for row in self.rows(name, length) if share > 0 and name != "chat" else ():
                found.update(row.ids)
        return found

    def _of(self, stream: str) -> tuple[Sequence[Document], Sequence[Conversation]]:
        """Return the texts and the conversations of a stream."""
        made = self.augmented
        if stream == "documents":
            return self.own.documents, ()
        if stream == "earlier":
            return [document for corpus in self.earlier.values() for document in corpus.documents], ()
        return (
            ([*made.documents, *self._written_documents], made.descriptions)
            if stream == "wordings"
            else ((), made.conversations)
        )

    @property
    def _written_documents(self) -> tuple[Document, ...]:
        together = 1 if self.writing else augment.TOGETHER
        return augment.as_documents(self.written, together=together) if self.written else ()

    @property
    def earlier_documents(self) -> int:
        return sum(len(corpus.documents) for corpus in self.earlier.values())

    def shares(self, config: MidtrainConfig) -> dict[str, float]:
        """Return each stream's share of the target tokens; the share of an empty stream goes to the others."""
        earlier = (config.replay_documents or 0.0) if self.earlier_documents else 0.0
        own = (1 - config.replay) * (1 - earlier)
        has_questions = bool(self.augmented.conversations)
        paraphrased = bool(self.augmented.documents or self.augmented.descriptions or self.writing or self.written)
        other = config.augment_share if has_questions or paraphrased else 0.0
        questions = (config.augment_questions if paraphrased else 1.0) if has_questions else 0.0
        texts, answers = self.augmented.characters
        texts += sum(len(document.text) for document in self._written_documents)
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
    own = gather_cycle(config, cycle or session.next_cycle())
    return _plan(session, config, _material(session, config, session.resolve(config.student), own))


def plan_in_turn(session: Session, configs: Sequence[MidtrainConfig], first: int) -> list[MidtrainPlan]:
    """Return the plans of cycles from ``first`` on, each of which follows those before it; writes nothing.

    A later one starts from what a recovery is still to make: it is planned for the present student, with the documents
    of the cycles before it.
    """
    plans: list[MidtrainPlan] = []
    before: dict[int, CorpusSnapshot] = {}
    for number, config in enumerate(configs, start=first):
        own = gather_cycle(config, number)
        plan = _plan(session, config, _material(session, config, session.resolve(config.student), own, before))
        plans.append(replace(plan, student=f"cycle-{number - 1}/recovered") if before else plan)
        before[number] = own
    return plans


def length_of(session: Session, config: MidtrainConfig, own: CorpusSnapshot) -> Length:
    """Return the length of mid-training on the documents of a cycle; loads no weights."""
    return _length(config, _material(session, config, session.resolve(config.student), own))


def midtrain(
    session: Session,
    config: MidtrainConfig,
    own: CorpusSnapshot | None = None,
    *,
    resume: records.Stage | None = None,
    name: str | None = None,
) -> Checkpoint:
    """Run the stage on the documents of a cycle and return its checkpoint, which becomes ``latest``.

    ``own`` is the snapshot of an open cycle's documents, by default of the next cycle, opened on the configuration's;
    ``resume`` is the record of an interrupted stage to continue; ``name`` is the checkpoint's name,
    "cycle-K/midtrained" by default. Raise StageInterrupted if a stop is requested, CorpusError if the stage to continue
    began with other documents.
    """
    student, opened = session.resolve(config.student), own is not None
    own = own or gather_cycle(config, session.next_cycle())
    if resume is not None:
        _check_documents(resume, own)
    material = _material(session, config, student, own)
    plan = _plan(session, config, material)
    if not opened:  # after the plan, which may refuse: until then a stopped stage of the cycle can go on
        _save(session, own)
    student = session.registered(student)
    # The tuning is fixed here: a resumed stage may find another amount of free memory.
    config = replace(config, student=student.name, tuning=plan.tuning)
    session.display.say(plan.text())
    with running(session, "midtrain", config, cycle=own.cycle, student=student, resume=resume) as stage:
        stage.describe(corpus_hash=own.hash)
        frozen = FrozenModel(session, config)
        if material.writing:
            material.add(augment.write(stage, frozen, config, material.writing))
            plan = _with_written(session, config, material, plan)
        if material.written:
            augment.count_written(stage, material.writing.writer if material.writing else WRITER_FILE, material.written)
        chat = _replay(stage, frozen, config, material.clean) if config.replay or config.project else []
        steps = _steps(config, material, plan, chat)
        # The clean model is the anchor and the teacher of the replayed chat, if configured.
        specs = ModelSpecs(
            config,
            student,
            settings_of(config, plan.steps, plan.lr),
            teachers={MAIN_TEACHER: {material.clean: 1.0}} if config.distils_replay else {},
            anchor=material.clean if config.anchor else None,
            loss_config=LossConfig(anchor=config.anchor, divergence="forward_kl", metric="replay_kl"),
            trained_tokens=material.tokens(config, plan.row_length) if config.embeddings == "documents" else None,
        )
        with load_models(stage, specs, frozen) as models:
            hooks = Hooks(
                log=lambda _step, metrics: models.instrumentation.account(metrics) if models.timed else None,
                reference=_guard(config, chat) if config.project else None,
            )
            result = models.train(stage, lambda step: StepBatch(steps[step - 1], {}), hooks=hooks)
        extra = {"cycle": own.cycle, "corpus_hash": own.hash, "steps": result.step, "tokens": result.trained_tokens}
        stage.details = {"corpus": list(own.lines), "replay": len(chat), **extra}
        stage.details |= {"augmentation": list(plan.augmentation)} if plan.augmentation else {}
        return stage.keep(models.loaded, "midtrained", student, extra, name=name)


def open_cycle(session: Session, config: MidtrainConfig, number: int | None = None) -> CorpusSnapshot:
    """Save the snapshot of a cycle's documents, probes and questions, and record the cycle in the tracker.

    ``number`` is the cycle's, by default the next one. Raise RecoveryError, before anything is saved, if
    there is no such student or the documents cannot be read.
    """
    session.resolve(config.student)
    own = gather_cycle(config, number or session.next_cycle())
    _save(session, own)
    return own


def _save(session: Session, own: CorpusSnapshot) -> None:
    """Record a cycle and save its documents; the snapshot last, since a cycle that has one is not opened again."""
    session.tracker.cycle(
        session.experiment_id,
        own.cycle,
        documents=own.folder,
        corpus_hash=own.hash,
        details={"probes_hash": own.probes_hash, "probes": len(own.probes), "questions": len(own.questions)},
    )
    save_snapshot(session.workspace, own)


def _check_documents(stopped: records.Stage, own: CorpusSnapshot) -> None:
    """Raise CorpusError if another mid-training has replaced the documents that a stopped stage began with."""
    if stopped.details.get("corpus_hash", own.hash) != own.hash:  # none before 0.2
        raise CorpusError(
            f"stage {stopped.id} (midtrain) cannot continue: the documents of cycle {own.cycle} were replaced by those "
            f"of {own.folder} after it began; train on them again (recover midtrain, or recover cycle --abandon)"
        )


def gather_cycle(config: MidtrainConfig, cycle: int) -> CorpusSnapshot:
    """Read a cycle's documents, probes and questions; writes nothing. Raise RecoveryError if they cannot be used."""
    if config.docs is None:
        raise UsageError("no documents to train on: give a folder with --docs FOLDER")
    own = gather(config.docs, cycle, held_out=config.held_out, seed=config.seed, skip_near=config.skips_near)
    augment.check_texts(config, own)
    return own


def _material(
    session: Session,
    config: MidtrainConfig,
    student: Checkpoint,
    own: CorpusSnapshot,
    before: Mapping[int, CorpusSnapshot] = MappingProxyType({}),
) -> _Material:
    """Return the training data. No question is made from facts that probes of this cycle or earlier ones ask.

    ``before`` are the documents of planned cycles before this one, in addition to those of the workspace.
    """
    chat = load_chat(str(student.weights), config.template_args, adapter=student.adapter)
    earlier = load_snapshots(session.workspace, session.learnt_cycles(student, own.cycle - 1)) | dict(before)
    probes = [probe for corpus in (own, *earlier.values()) for probe in corpus.probes]
    given = augment.given_texts(config, own, lambda text: len(chat.control.plain(text)))
    made = augment.augmented(config, own, probes, given)
    return _Material(session.base, student, chat, own, earlier, made, augment.writing(session, config, own), given)


def _plan(session: Session, config: MidtrainConfig, material: _Material) -> MidtrainPlan:
    student, length, lines = material.student, _length(config, material), _augmentation(session, config, material)
    computed = round(length.steps * length.per_step * _computed(config, material, length.row))
    largest = _largest_step(config, material, length)
    teachers = [material.clean] if config.anchor or config.distils_replay else []
    footprint = teacher_footprint(student, teachers, apart=config.clean_teacher)
    tuning: Tuning = choose_tuning(
        config,
        student,
        lambda *given: midtraining(config, *given, beside=footprint, row_length=length.row, step=largest),
    )
    return MidtrainPlan(
        cycle=material.own.cycle,
        student=student.name,
        documents=len(material.own.documents),
        document_tokens=length.documents,
        earlier_documents=material.earlier_documents,
        replay_share=config.replay,
        replay_scored=config.distils_replay,
        earlier_share=material.shares(config)["earlier"] / (1 - config.replay),
        tokens_per_step=length.per_step,
        row_length=length.row,
        steps=length.steps,
        tokens=length.steps * length.per_step,
        tuning=tuning.name,
        tuning_reason=tuning.reason,
        lr=config.rate(tuning.name, tuning.parameters),
        parameters=tuning.parameters,
        memory=tuning.needs,
        seconds=midtraining_work(config, tuning.name, computed).seconds(tuning.network, tuning.speed),
        corpus=material.own.lines,
        augmentation=tuple(lines),
        experts=_experts(config, student),
    )


def _experts(config: MidtrainConfig, student: Checkpoint) -> tuple[str, ...]:
    """Return the line of the plan about a mixture of experts. Raise UsageError if another model gets a router loss."""
    text = (student.weights / "config.json").read_text(encoding="utf-8")
    size = Architecture.of(text)
    if not size.experts:
        if config.router_loss:
            raise UsageError(f"--router-loss {config.router_loss:g}: {student.name} has no experts; omit it")
        return ()
    weight = json.loads(text).get("router_aux_loss_coef") if config.router_loss is None else config.router_loss
    loss = f"router loss {weight:g}" if weight else "no router loss (--router-loss)"
    return (f"mixture of experts: each token takes {size.routed} of {size.experts}; {loss}",)


def _with_written(session: Session, config: MidtrainConfig, material: _Material, plan: MidtrainPlan) -> MidtrainPlan:
    """Return the plan updated to the length of the writer's text, which limits its number of passes."""
    length, lines = _length(config, material), _augmentation(session, config, material)
    return replace(
        plan,
        tokens_per_step=length.per_step,
        row_length=length.row,
        steps=length.steps,
        tokens=length.steps * length.per_step,
        augmentation=tuple(lines),
    )


def _augmentation(session: Session, config: MidtrainConfig, material: _Material) -> list[str]:
    """Return the lines of the plan about paraphrases, questions and the cost of a writer."""
    if not config.augment:
        return []
    made, shares = material.augmented, material.shares(config)
    lines = [
        f"augmentation: {made.facts} facts in up to {config.augment} other wordings and {len(made.descriptions)} chats "
        f"that tell of subjects and sections, {shares['wordings']:.0%} of the trained tokens; "
        f"{len(made.conversations)} questions with answers, those that came with the documents or their writer and "
        f"those about {made.askable} facts that no probe asks, {shares['questions']:.0%}"
    ]
    if config.writer == WRITER_FILE and material.written:
        written = material.written
        lines.append(
            f"{WRITER_FILE}: {written.sentences_kept:,} of {written.sentences:,} sentences add nothing to their "
            f"document and are used; all {written.tokens:,} tokens count as sampled by this stage"
        )
    return [*lines, material.writing.line(session.workspace)] if material.writing else lines


def _length(config: MidtrainConfig, material: _Material) -> Length:
    length, share = row_length(material.student, config.row_length), material.shares(config)["documents"]
    own = _targets(material.rows("documents", length))
    per_step = step_tokens(config.batch_tokens, round(config.passes * own / share))
    if length > per_step:  # a row longer than a step would be repeated in the next steps
        length = per_step
        own = _targets(material.rows("documents", length))
    return Length(own, per_step, config.steps or steps_for(config.passes, own, share, per_step), length)


def _computed(config: MidtrainConfig, material: _Material, length: int) -> float:
    """Return the tokens computed per target token: the prompts of augmented conversations are computed as well."""
    rows = {name: material.rows(name, length) for name in ("wordings", "questions") if config.augment}
    shares = material.shares(config)
    return 1.0 + sum(
        shares[name] * (sum(len(row.ids) for row in found) / max(1, _targets(found)) - 1)
        for name, found in rows.items()
        if found
    )


def _largest_step(config: MidtrainConfig, material: _Material, length: Length) -> int | None:
    """Return the tokens of the largest step, all rows as wide as its widest; None if rows are not known yet: chat that
    the clean model is still to answer, a writer's text.
    """
    if config.replay or config.project or (material.writing is not None and material.written is None):
        return None
    steps = schedule(_streams(config, material, length.row, ()), length.steps, length.per_step, config.seed)
    return max(len(rows) * max(row.width for row in rows) for rows in steps)


def _targets(rows: Sequence[Row]) -> int:
    return sum(row.targets for row in rows)


def _steps(config: MidtrainConfig, material: _Material, plan: MidtrainPlan, chat: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of every step: each stream's share of the target tokens."""
    streams = _streams(config, material, plan.row_length, chat)
    return schedule(streams, plan.steps, plan.tokens_per_step, config.seed)


def _streams(config: MidtrainConfig, material: _Material, length: int, chat: Sequence[Row]) -> list[Stream]:
    shares = {name: share for name, share in material.shares(config).items() if share > 0}
    rows = {name: chat if name == "chat" else material.rows(name, length) for name in shares}
    return [Stream(name, rows[name], share) for name, share in shares.items()]


def _guard(config: MidtrainConfig, chat_rows: Sequence[Row]) -> Callable[[int], list[Row]]:
    """Return the hook that selects the chat rows whose loss a step may not raise."""
    return lambda step: choose(
        chat_rows, min(GUARD_ROWS, len(chat_rows)), step, config.seed, stream=RandomStream.GUARD_ROWS
    )


def _answered(
    stage: Stage,
    frozen: FrozenModel,
    config: MidtrainConfig,
    base: Checkpoint,
    prompts: Sequence[Prompt],
    sampling: Sampling,
) -> list[CompletedConversation]:
    """Return the clean model's conversations to be replayed; the last of them on prompts of its weakest kinds."""
    weak = round(config.replay_prompts * config.replay_focus)
    if weak and not any(prompt.checks for prompt in prompts):
        stage.session.display.say("no prompt has checks by which answers are judged: all are replayed evenly")
        weak = 0
    # A distribution can be learnt from the beginning of an answer; as an example it would teach to stop there.
    whole = functools.partial(answered_before, unfinished=config.distils_replay)
    answered, _ = whole(stage, frozen, base, prompts, sampling, count=config.replay_prompts - weak)
    if not weak:
        return answered
    chosen = weakest(answered, prompts, weak, config.seed)
    more, _ = whole(stage, frozen, base, chosen, sampling, count=weak, counted="spoken-weak.json")
    return [*answered, *more]


def _replay(stage: Stage, frozen: FrozenModel, config: MidtrainConfig, base: Checkpoint) -> list[Row]:
    """Return packed rows of chat, trained on directly or towards the clean model's scores: the user's chat, or the
    clean model's completions of training prompts.
    """
    prompts, notes = behaviour_prompts(base.path, config.prompts, config.seed), list[str]()
    if config.replay_data is not None:
        given, cut = f"{REPLAY_DATA} {config.replay_data}", set[int]()
        said = load_conversations(config.replay_data, option=REPLAY_DATA)
        found = without_held_out(said, prompts, given=given, notes=notes)
        problem = f"{given}: no conversation fits in the context of {base.name}"
    else:
        sampling = Sampling(config.max_new_tokens, seed=config.seed)
        answered = _answered(stage, frozen, config, base, prompts.train, sampling)
        found = [one.messages for one in answered]
        cut = {index for index, one in enumerate(answered) if not one.finished}
        problem = (
            f"none of the clean model's answers {'began' if config.distils_replay else 'ended'} within "
            f"{config.max_new_tokens} tokens, so there is no chat to replay: raise --max-new-tokens, or omit --replay"
        )
    chat = load_chat(str(base.weights), config.template_args, adapter=base.adapter)
    rows = chat_rows(chat, base, found, config.row_length, cut, notes=notes)
    if not rows:
        raise UsageError(problem)
    for note in notes:
        stage.session.display.say(note)
    return [replace(row, teacher=MAIN_TEACHER) for row in rows] if config.distils_replay else rows
