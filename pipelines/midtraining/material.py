"""What mid-training trains on, and the steps it makes: documents of this cycle and earlier ones, augmented data, chat.

Replayed chat is the user's, or the clean model's answers to ordinary prompts.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from evals.probes import PROBES_FILE, asked, drawn_lines
from evals.rewriting import Rewritten
from pipelines.data import augment
from pipelines.data.corpus_reading import gather
from pipelines.data.corpus_snapshot import (
    CorpusSnapshot,
    cycle_of,
    load_snapshot,
    load_snapshots,
    save_snapshot,
    saved_snapshots,
)
from pipelines.data.document_rows import chat_rows, row_length, text_rows, unknown_characters
from pipelines.data.mixing import Stream, choose, schedule, shuffled, step_count, step_size
from pipelines.data.prompt_sampler import weakest
from pipelines.data.revisions import check_withdrawn, left_out, revision_lines, up_to_date
from pipelines.runtime.generation import CompletedConversation, answered_before
from pipelines.runtime.model_loading import FrozenModel
from pipelines.runtime.session import Session
from pipelines.runtime.stage import Stage
from recovery.batching import Row
from recovery.config import WRITER_FILE, MidtrainConfig
from recovery.data.augmentation import Augmented, Conversation
from recovery.data.corpus.documents import Document
from recovery.data.prompt_files import REPLAY_DATA, load_conversations
from recovery.data.prompts import behaviour_prompts, without_held_out
from recovery.data.sources import beside, files_state, given_beside
from recovery.errors import UsageError
from recovery.losses.objective import MAIN_TEACHER
from recovery.models.chat_loading import load_chat
from recovery.models.chat_template import ChatFormat
from recovery.rng import RandomStream
from recovery.rollouts.engine import Sampling
from recovery.types import Prompt
from recovery.workspace import Checkpoint

# Of the documents' characters that the tokenizer may not know: more is another script than the model's.
MOST_UNKNOWN = 0.1
# Most passes over paraphrases, and over questions, per pass over the documents.
MOST_PASSES = 4
# Conversations per step whose loss a projected gradient may not raise.
GUARD_ROWS = 16


@dataclass(frozen=True)
class Length:
    """The length of mid-training: target tokens of the documents and per step, steps, tokens of the longest row, and
    the share of the target tokens that are the documents'.
    """

    documents: int
    per_step: int
    steps: int
    row: int
    share: float = 1.0

    @property
    def tokens(self) -> int:
        """Target tokens in all."""
        return self.steps * self.per_step

    @property
    def passes(self) -> float:
        """How often the documents are read."""
        return self.tokens * self.share / max(1, self.documents)


@dataclass
class Material:
    """What is trained on: documents of this cycle and of earlier ones, augmented data, a writer's task and its text.

    ``written`` is the writer's text; while it is None before the writer has run, the plan assumes that it is long
    enough. ``remarks`` say what this cycle's documents replace of earlier ones, and what of them the tokenizer does not
    know. Each stream of rows is packed once for each length.
    """

    config: MidtrainConfig
    clean: Checkpoint
    student: Checkpoint
    chat: ChatFormat
    own: CorpusSnapshot
    earlier: dict[int, CorpusSnapshot]
    augmented: Augmented
    writing: augment.Writing | None
    written: Rewritten | None = None
    remarks: tuple[str, ...] = ()
    _packed: dict[tuple[str, int], list[Row]] = field(default_factory=dict)

    def write(self, stage: Stage, frozen: FrozenModel) -> bool:
        """Let the writer write, if there is one, and count its text, or that which came with the documents, as sampled
        by the stage; return whether the writer has written, which may change the length of the training.
        """
        if self.writing:
            self.written = augment.write(stage, frozen, self.config, self.writing)
            self._packed = {key: rows for key, rows in self._packed.items() if key[0] != "wordings"}
        if self.written:
            augment.count_written(stage, self.writing.writer if self.writing else WRITER_FILE, self.written)
        return self.writing is not None

    def guard(self, chat: Sequence[Row]) -> Callable[[int], list[Row]] | None:
        """Return what selects the rows of chat whose loss a step may not raise, if that is wanted."""
        config, count = self.config, min(GUARD_ROWS, len(chat))
        if not config.project:
            return None
        return lambda step: choose(chat, count, step, config.seed, stream=RandomStream.GUARD_ROWS)

    def rows(self, stream: str, length: int) -> list[Row]:
        """Return a stream's rows of ``length`` tokens, longer if a conversation is."""
        if (stream, length) not in self._packed:
            texts, chats = self._texts_and_chats(stream)
            packed = text_rows(self.chat.tokenizer, length, texts)
            self._packed[stream, length] = [*packed, *chat_rows(self.chat, self.student, chats, length)]
        return self._packed[stream, length]

    def _texts_and_chats(self, stream: str) -> tuple[Sequence[Document], Sequence[Conversation]]:
        made = self.augmented
        if stream == "documents":
            return self.own.documents, ()
        if stream == "earlier":
            return [document for corpus in self.earlier.values() for document in corpus.documents], ()
        if stream == "wordings":
            return [*made.documents, *self.written_documents], made.descriptions
        return (), made.conversations

    @property
    def written_documents(self) -> tuple[Document, ...]:
        """The writer's text as documents, short texts together."""
        together = 1 if self.writing else augment.TOGETHER
        return augment.as_documents(self.written, together=together) if self.written else ()

    @property
    def earlier_documents(self) -> int:
        """The number of earlier cycles' documents."""
        return sum(len(corpus.documents) for corpus in self.earlier.values())

    @property
    def awaits_writer(self) -> bool:
        """Whether a writer's texts are wanted that it has not written yet."""
        return self.writing is not None and self.written is None

    def shares(self) -> dict[str, float]:
        """Return each stream's share of the target tokens; the share of an empty stream goes to the others."""
        config = self.config
        earlier = (config.replay_documents or 0.0) if self.earlier_documents else 0.0
        own = (1 - config.replay) * (1 - earlier)
        has_questions = bool(self.augmented.conversations)
        paraphrased = bool(self.augmented.documents or self.augmented.descriptions or self.writing or self.written)
        other = config.augment_share if has_questions or paraphrased else 0.0
        questions = (config.augment_questions if paraphrased else 1.0) if has_questions else 0.0
        texts, answers = self.augmented.characters
        texts += sum(len(document.text) for document in self.written_documents)
        # A few short answers would be repeated a hundred times: a stream's share is at most MOST_PASSES times what its
        # characters would take in one pass. What it may not take goes to the documents.
        per_character = own * (1 - other) / max(1, sum(len(d.text) for d in self.own.documents))
        most_texts = own if self.awaits_writer else MOST_PASSES * per_character * texts
        wordings = min(own * other * (1 - questions), most_texts)
        question_share = min(own * other * questions, MOST_PASSES * per_character * answers)
        return {
            "documents": own - wordings - question_share,
            "earlier": (1 - config.replay) * earlier,
            "wordings": wordings,
            "questions": question_share,
            "chat": config.replay,
        }

    def length(self) -> Length:
        """Return the length of the training, by the target tokens of the documents and their share."""
        config, share = self.config, self.shares()["documents"]
        row = row_length(self.student, config.row_length)
        own = _targets(self.rows("documents", row))
        per_step = step_size(config, own, share)
        if row > per_step:  # a row longer than a step would be repeated in the next steps
            row = per_step
            own = _targets(self.rows("documents", row))
        return Length(own, per_step, step_count(config, own, share, per_step), row, share)

    def computed_per_target(self, length: int) -> float:
        """Return the tokens computed per target token: prompts of augmented conversations are computed as well."""
        shares = self.shares()
        rows = {name: self.rows(name, length) for name in ("wordings", "questions") if self.config.augment}
        return 1.0 + sum(
            shares[name] * (sum(len(row.ids) for row in packed) / max(1, _targets(packed)) - 1)
            for name, packed in rows.items()
            if packed
        )

    def largest_step(self, length: Length) -> int | None:
        """Return the tokens of the largest step, all rows as wide as its widest; None if rows are not known yet: chat
        that the clean model is still to answer, a writer's text.
        """
        if self.config.replay or self.config.project or self.awaits_writer:
            return None
        return max(len(rows) * max(row.width for row in rows) for rows in self.steps(length, ()))

    def steps(self, length: Length, chat: Sequence[Row]) -> list[list[Row]]:
        """Return the rows of every step: each stream's share of the target tokens. ``chat`` is what is replayed."""
        shares = {name: share for name, share in self.shares().items() if share > 0}
        rows = {name: chat if name == "chat" else self.rows(name, length.row) for name in shares}
        streams = [Stream(name, rows[name], share) for name, share in shares.items()]
        return schedule(streams, length.steps, length.per_step, self.config.seed)

    def tokens(self, length: int) -> set[int]:
        """Return the tokens of all that is trained on but chat."""
        streams = (name for name, share in self.shares().items() if share > 0 and name != "chat")
        return {token for name in streams for row in self.rows(name, length) for token in row.ids}


_NAMED = 5  # documents in a message
_EXAMPLE = '{"question": "When does the first ferry leave?", "answers": ["7:15"], "passage": "It leaves at 7:15."}'


def gather_cycle(
    session: Session, config: MidtrainConfig, cycle: int, planned: Mapping[int, CorpusSnapshot] = MappingProxyType({})
) -> CorpusSnapshot:
    """Read a cycle's documents, probes and questions; writes nothing. Raise RecoveryError if they cannot be used. How
    many questions there are is left to :func:`check_questions`.

    Its held-out texts agree with those of the cycles that the student should know, and with ``planned`` ones. A folder
    that is an earlier cycle's snapshot is taken as it was then, probes and held-out texts too. What is withdrawn is
    left out.
    """
    if config.docs is None:
        raise UsageError("no documents to train on: give a folder with --docs FOLDER")
    settings: dict[str, Any] = {
        "held_out": config.held_out,
        "seed": config.seed,
        "skip_near": config.skips_near,
        "replaces": config.older_versions == "replace",
        "withdrawn": config.withdrawn,
        "before": load_snapshots(session.workspace, session.learnt_cycles(session.resolve(config.student), cycle - 1))
        | dict(planned),
    }
    docs, kept = config.docs, cycle_of(session.workspace, config.docs)

    def whole() -> CorpusSnapshot:
        if kept is None:
            return gather(docs, cycle, **settings)
        return replace(load_snapshot(session.workspace, kept), cycle=cycle, withdrawn=config.withdrawn)

    own = session.once(f"documents of cycle {cycle}", (docs, files_state(docs), settings), whole)
    if kept is None:
        check_withdrawn(settings["before"], own)
    own = left_out(own, config.withdrawn)
    if not own.documents:
        raise UsageError(f"{docs}: every document is withdrawn, so that nothing is left to train on")
    augment.check_texts(config, own)
    return own


def open_cycle(session: Session, config: MidtrainConfig, number: int | None = None) -> CorpusSnapshot:
    """Save the snapshot of a cycle's documents, probes and questions, and record the cycle in the tracker.

    ``number`` is the cycle's, by default the next one. Raise RecoveryError, before anything is saved, if
    there is no such student or the documents cannot be read.
    """
    own = gather_cycle(session, config, number or session.next_cycle())
    check_questions(session, config.trial, few_questions(config, own))
    record_cycle(session, own, config.seed)
    return own


def record_cycle(session: Session, own: CorpusSnapshot, seed: int) -> None:
    """Record a cycle and save its documents; the snapshot last, since a cycle that has one is not opened again.

    Some of its questions are shown: they are frozen here, and say whether anything is learnt.
    """
    session.tracker.cycle(
        session.experiment_id,
        own.cycle,
        documents=own.folder,
        corpus_hash=own.hash,
        details={"probes_hash": own.probes_hash, "probes": len(own.probes), "questions": len(own.questions)},
    )
    save_snapshot(session.workspace, own)
    session.display.say("\n".join(drawn_lines(own.probes, seed)))


def few_questions(config: MidtrainConfig, own: CorpusSnapshot) -> str:
    """Return what to do if too few questions measure whether anything is learnt of a cycle's documents; else ""."""
    questions = asked(own.probes)
    number, docs = len(questions), config.docs or Path()
    if number >= config.fewest_questions:
        return ""
    counts = Counter(question.source for question in questions)
    none = sorted({document.id for document in own.documents}.difference(counts))
    some = [f"{name} {count}" for name, count in counts.most_common()]
    where = f", of {_first_names(some)}, none of {_first_names(none)}"
    file = beside(docs, PROBES_FILE) or f"{PROBES_FILE} in a folder of the documents"
    build = "" if given_beside(docs, PROBES_FILE) else f"`recover probes build --docs {docs}`, then "
    more = (
        f"MORE.jsonl such as {_EXAMPLE}: {build}`recover probes review {file} --add MORE.jsonl` (a {PROBES_FILE} of "
        f"your own replaces the generated ones)"
        if own.probes
        else f"{file} such as {_EXAMPLE}"
    )
    return (
        f"questions about {number} facts of {docs} are too few to say what is learnt "
        f"({config.fewest_questions} are wanted){'' if '' in counts else where}. One of these helps:\n"
        f"- let the model write them: `recover probes build --docs {docs} --writer base`\n"
        f"- add yours, each a line of {more}\n"
        f"- train all the same: --fewest-questions {number}"
    )


def _first_names(names: Sequence[str]) -> str:
    """Return names as text; of many only the first, with the number of the others."""
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more or "no document"


def check_questions(session: Session, trial: bool, few: str) -> None:
    """Raise UsageError for what :func:`few_questions` found; of a trial, which decides nothing, only say it."""
    if few and not trial:
        raise UsageError(few.replace(":\n- ", ": ", 1).replace("\n- ", "; or "))  # an error is one line
    if few:
        session.display.say_once(f"warning: {few}")


def gather_material(
    session: Session,
    config: MidtrainConfig,
    student: Checkpoint,
    own: CorpusSnapshot,
    before: Mapping[int, CorpusSnapshot] = MappingProxyType({}),
) -> Material:
    """Return the training data; earlier documents are those of cycles that the student descends from. No question is
    made from facts that probes of this cycle or any earlier one ask.

    ``before`` are the documents of planned cycles before this one, in addition to those of the workspace.
    """
    chat = load_chat(str(student.weights), config.template_args, adapter=student.adapter)
    if config.replay_data is not None:
        chat.check_answers()
    unknown = _unknown(own, chat, student)
    snapshots = saved_snapshots(session, session.learnt_cycles(student, own.cycle - 1)) | dict(before)
    snapshots[own.cycle] = own
    read = {*session.trained_cycles(student, own.cycle - 1), *before}
    trained = {cycle: corpus for cycle, corpus in snapshots.items() if cycle in read or corpus is own}
    current = up_to_date(trained, trained)
    earlier = {cycle: corpus for cycle, corpus in current.items() if cycle in read}
    probes = [probe for corpus in snapshots.values() for probe in corpus.probes]
    supplied = augment.given_texts(config, own, lambda text: len(chat.control.plain(text)))
    asked_for = (config.augment, config.augment_questions, config.seed, own, probes, supplied)
    name = f"of cycle {own.cycle}"
    made = session.once(f"texts {name}", asked_for, lambda: augment.augmented(config, own, probes, supplied))
    # One dictionary for all plans of these documents: rows that one has packed are not packed again.
    packed: dict[tuple[str, int], list[Row]] = session.once(
        f"rows {name}", (student, config.template_args, own, earlier, made, supplied), dict
    )
    writing, remarks = augment.writing(session, config, own), (*revision_lines(trained, current), *unknown)
    return Material(config, session.base, student, chat, own, earlier, made, writing, supplied, remarks, packed)


def _unknown(own: CorpusSnapshot, chat: ChatFormat, student: Checkpoint) -> list[str]:
    """Return a line about what the tokenizer does not know of the documents. Raise UsageError if that is too much."""
    lost, total, examples = unknown_characters(own.documents, chat.tokenizer)
    if not lost:
        return []
    line = f"{lost:,} of the {total:,} characters ({lost / total:.1%}) are unknown to the tokenizer of {student.name}"
    if lost > MOST_UNKNOWN * total:
        raise UsageError(f"{own.folder}: {line}, such as {examples}: use a model that knows this script")
    return [f"{line}, such as {examples}: it cannot learn them"]


def _targets(rows: Sequence[Row]) -> int:
    return sum(row.targets for row in rows)


# Replayed chat.


def replayed(stage: Stage, frozen: FrozenModel, config: MidtrainConfig, base: Checkpoint) -> list[Row]:
    """Return packed rows of chat, the user's or the clean model's completions of training prompts. They are trained on
    directly or towards the clean model's scores, or no step may raise their loss; none if neither is wanted.
    """
    if not (config.replay or config.project):
        return []
    prompts, notes = behaviour_prompts(base.path, config.prompts, config.seed), list[str]()
    if config.replay_data is not None:
        source, cut = f"{REPLAY_DATA} {config.replay_data}", set[int]()
        loaded = load_conversations(config.replay_data, option=REPLAY_DATA, notes=notes)
        kept = without_held_out(loaded, prompts, given=source, notes=notes)
        problem = f"{source}: no conversation fits in the context of {base.name}"
    else:
        sampling = Sampling(config.max_new_tokens, seed=config.seed)
        answered = _answered(stage, frozen, config, base, prompts.train, sampling)
        kept = [one.messages for one in answered]
        cut = {index for index, one in enumerate(answered) if not one.finished}
        problem = (
            f"none of the clean model's answers {'began' if config.distils_replay else 'ended'} within "
            f"{config.max_new_tokens} tokens, so there is no chat to replay: raise --max-new-tokens, or omit --replay"
        )
    chat = load_chat(str(base.weights), config.template_args, adapter=base.adapter)
    rows = chat_rows(chat, base, kept, config.row_length, cut, notes=notes)
    if not rows:
        raise UsageError(problem)
    for note in notes:
        stage.session.display.say(note)
    return [replace(row, teacher=MAIN_TEACHER) for row in rows] if config.distils_replay else rows


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
    complete = functools.partial(answered_before, unfinished=config.distils_replay)
    even = shuffled(prompts, config.seed, RandomStream.BEHAVIOUR_PROMPTS)
    answered, _ = complete(stage, frozen, base, even, sampling, count=config.replay_prompts - weak)
    if not weak:
        return answered
    chosen = weakest(answered, prompts, weak, config.seed)
    more, _ = complete(stage, frozen, base, chosen, sampling, count=weak, counted="spoken-weak.json")
    return [*answered, *more]
