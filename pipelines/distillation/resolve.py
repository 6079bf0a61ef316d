"""Resolution and validation of a distillation's configuration, before weights are loaded: models, prompts, rewards.

Errors raised here: the teacher is the student, the prompts lack what the method needs, the reward cannot be imported,
the answers to imitate are missing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evals.paired_tests import ENOUGH_TO_DECIDE
from evals.suites import sample
from pipelines.data.augment import text_documents
from pipelines.data.corpus_reading import questions_of
from pipelines.data.corpus_snapshot import CorpusSnapshot
from pipelines.data.document_rows import row_length, text_rows
from pipelines.data.revisions import current_snapshots
from pipelines.distillation.inputs import context_of, given_answers, recovery_prompts, usable
from pipelines.runtime.model_loading import check_interpolatable
from pipelines.runtime.session import Session
from recovery.batching import Row
from recovery.config import WRITER_FILE, DistillConfig
from recovery.data.corpus.documents import Document
from recovery.data.corpus.facts.extraction import facts_of
from recovery.data.corpus.near_misses import near_misses
from recovery.data.document_questions import ProbeGuard
from recovery.data.prompt_records import prompt_id
from recovery.data.prompts import PromptSplits
from recovery.data.rewritten_texts import writer_questions
from recovery.errors import UsageError
from recovery.losses.objective import DOCUMENTS, EARLIER_DOCUMENTS, LABEL
from recovery.rewards import Reward, resolve_reward
from recovery.teacher_spec import Context
from recovery.types import Message, Prompt
from recovery.workspace import Checkpoint

EARLIER_QUESTIONS_TAG = "earlier-documents"
_MOST_NEAR_MISSES = 500
_MOST_REPEATS = 32  # that a run asks a question: in the recorded runs of the real model it was at most 27


@dataclass(frozen=True)
class ResolvedDistillation:
    """A configuration with its names resolved. ``teachers`` is empty if no frozen model teaches.

    ``config`` names every model such that a resumed stage finds the same one. ``given`` are the conversations to
    imitate, if the user or the prompts provide them. ``asked_about`` are the questions about the documents of each
    cycle. ``clean`` is the anchor; with ``--blend`` training starts between
    ``origin`` and the student. ``tuning_recommended`` says that the model's own recipe sets the tuning.
    """

    config: DistillConfig
    cycle: int
    clean: Checkpoint
    student: Checkpoint
    teachers: dict[Checkpoint, float]
    knowledge: Checkpoint | None
    experts: dict[str, Checkpoint]
    prompts: PromptSplits
    train: tuple[Prompt, ...]
    development: tuple[Prompt, ...]
    context: Context | None
    given: tuple[tuple[Message, ...], ...]
    corpora: dict[int, CorpusSnapshot] = field(default_factory=dict)
    asked_about: Mapping[int, Sequence[Prompt]] = field(default_factory=dict)
    reward: Reward | None = None
    notes: tuple[str, ...] = ()
    origin: Checkpoint | None = None
    tuning_recommended: bool = False
    near_misses: tuple[Prompt, ...] = ()

    @property
    def questions(self) -> list[Prompt]:
        """Questions about the documents of this cycle, if it has documents."""
        return list(self.asked_about.get(self.cycle, ()))

    @property
    def earlier_questions(self) -> list[Prompt]:
        """Questions about the documents of earlier cycles, tagged if they have a teacher of their own."""
        tags = (EARLIER_QUESTIONS_TAG,) if EARLIER_QUESTIONS_TAG in self.experts else ()
        return [
            dataclasses.replace(question, tags=(*question.tags, *tags))
            for number, questions in self.asked_about.items()
            if number != self.cycle
            for question in questions
        ]

    @property
    def asked(self) -> list[Prompt]:
        """All questions, if a teacher scores them."""
        return [*self.questions, *self.earlier_questions] if self.knowledge is not None else []

    @property
    def document_teachers(self) -> tuple[Checkpoint | None, Checkpoint | None]:
        """The teachers of this cycle's document text and of earlier cycles'; None for text without a teacher."""
        if not self.config.document_teacher:
            return None, None
        earlier = self.experts.get(EARLIER_QUESTIONS_TAG, self.knowledge) if set(self.corpora) - {self.cycle} else None
        return self.knowledge, earlier

    def document_rows(self, tokenizer: Any) -> list[Row]:
        """Return document text as packed rows, each with the name of what scores it: a teacher, or its own tokens."""
        length = row_length(self.student, self.config.row_length)
        by_scorer: dict[str, list[Document]] = {}
        for number, own in self.corpora.items():
            newest = DOCUMENTS if number == self.cycle else EARLIER_DOCUMENTS
            texts = text_documents(own) if self.config.document_texts else ()
            scorer = newest if self.config.document_teacher else LABEL
            by_scorer.setdefault(scorer, []).extend([*own.documents, *texts])
        return [
            dataclasses.replace(row, teacher=scorer)
            for scorer, documents in by_scorer.items()
            for row in text_rows(tokenizer, length, documents)
        ]

    @property
    def teacher(self) -> Checkpoint | None:
        """The first of the teachers."""
        return next(iter(self.teachers), None)

    @property
    def frozen(self) -> list[Checkpoint]:
        """The models that score or anchor, in addition to the student."""
        teachers = [*self.teachers, *self.experts.values(), *([self.knowledge] if self.knowledge else [])]
        return [*teachers, *([self.clean] if self.config.anchor else [])]


def resolve(session: Session, config: DistillConfig, cycle: int | None) -> ResolvedDistillation:
    """Resolve and validate a configuration without loading weights. Raise UsageError if it cannot be run."""
    student = session.resolve(config.student)
    teachers = _named_teachers(session, config, student)
    number = cycle or student.cycle or session.next_cycle()
    # Probes of every cycle that is still asked about are kept out (learnt: all but discarded ones); questions and
    # documents are those of the cycles that the student descends from (trained).
    trained_on = {*session.trained_cycles(student, number), number}
    probed = current_snapshots(session, session.learnt_cycles(student, number), trained_on)
    corpora = {cycle: corpus for cycle, corpus in probed.items() if cycle in trained_on}
    prompts = recovery_prompts(config, session.base.path)
    notes = list(prompts.notes)
    context = context_of(config)
    knowledge = session.resolve(config.knowledge_teacher) if config.knowledge_teacher else None
    asked_about = _questions(config, corpora, probed, notes)
    _check_documents(config, corpora, number, student)
    if knowledge is not None and not any(asked_about.values()) and not config.document_teacher:
        knowledge = None
        notes.append("no questions about the documents: the knowledge teacher has nothing to score and is left out")
    if knowledge is not None:
        newest = len(asked_about.get(number, ()))
        config = _as_many_as_there_are(config, newest, sum(map(len, asked_about.values())) - newest, notes)
    experts = _experts(session, config, knowledge)
    train = usable(config, prompts, context, notes)
    development = _development(config, prompts, notes)
    given = given_answers(config, prompts, notes)
    return ResolvedDistillation(
        config=_with_lasting_names(config, student, teachers, knowledge, experts),
        cycle=number,
        clean=session.base,
        student=student,
        teachers=teachers,
        knowledge=knowledge,
        experts=experts,
        prompts=prompts,
        train=train,
        development=development,
        corpora=corpora,
        asked_about=asked_about,
        context=context,
        reward=resolve_reward(config.reward) if config.rewarded else None,
        given=given,
        notes=tuple(notes),
        origin=_origin(session, config, student),
        tuning_recommended=session.recommended("tuning"),
        near_misses=_near_misses(config, corpora, probed, number),
    )


def _near_misses(
    config: DistillConfig, corpora: Mapping[int, CorpusSnapshot], probed: Mapping[int, CorpusSnapshot], number: int
) -> tuple[Prompt, ...]:
    """Return questions about what no document holds, other ones than the probes, if a share of the prompts asks them.

    Raises UsageError if none can be made of the cycle's documents.
    """
    if not config.near_miss_share:
        return ()
    documents = corpora[number].documents if number in corpora else ()
    texts = [d.text for one in probed.values() for part in one.split for d in part]
    texts += [probe.absent for one in probed.values() for probe in one.every_probe]  # nor what a probe asks about
    questions = near_misses(facts_of(documents), documents, texts, _MOST_NEAR_MISSES, "question", config.seed)
    if not questions:
        raise UsageError(
            f"--near-miss-share {config.near_miss_share:g}: no such question can be made from the documents of cycle "
            f"{number}: omit it"
        )
    asked = [(Message(role="user", content=one.question),) for one in questions]
    return tuple(Prompt(f"near-miss-{prompt_id(messages)}", messages) for messages in asked)


def resolve_planned(
    session: Session, config: DistillConfig, student: Checkpoint, to_make: Collection[str]
) -> ResolvedDistillation:
    """Resolve what is known of a distillation before its mid-training, with ``student`` in place of what that makes.

    There are no documents yet, nor the teachers that are ``to_make``, which have the student's tokenizer. Raise
    UsageError if it cannot be run.
    """

    def known(name: str | None) -> Checkpoint | None:
        return None if name is None or name in to_make else session.resolve(name)

    weights = config.teaching.weights if config.lam > 0 else {}
    teachers = {teacher: weight for name, weight in weights.items() if (teacher := known(name)) is not None}
    routes = {**config.routes, EARLIER_QUESTIONS_TAG: config.earlier_teacher}
    prompts, context = recovery_prompts(config, session.base.path), context_of(config)
    return ResolvedDistillation(
        config=config,
        cycle=student.cycle or 0,
        clean=session.base,
        student=student,
        teachers=teachers,
        knowledge=known(config.knowledge_teacher),
        experts={tag: expert for tag, name in routes.items() if (expert := known(name)) is not None},
        prompts=prompts,
        train=usable(config, prompts, context, []),
        development=_development(config, prompts, []),
        context=context,
        given=given_answers(config, prompts, []),
    )


def _questions(
    config: DistillConfig,
    corpora: Mapping[int, CorpusSnapshot],
    probed: Mapping[int, CorpusSnapshot],
    notes: list[str],
) -> dict[int, list[Prompt]]:
    """Return the questions about each corpus that no probe of those ``probed`` asks, with the writer's if wanted.

    Raises UsageError if a writer's questions are wanted, and there are none or no teacher scores them.
    """
    selected = {number: questions for number, questions in questions_of(probed).items() if number in corpora}
    for number, corpus in corpora.items():
        if left_out := len(corpus.questions) - len(selected[number]):
            notes.append(
                f"{left_out:,} of {len(corpus.questions):,} questions about the documents of cycle {number} left out: "
                f"probes of other cycles ask them"
            )
    if not config.writer_questions:
        return selected
    _check_writer_questions(config, corpora)
    guard = ProbeGuard([probe for corpus in probed.values() for probe in corpus.every_probe])
    for number, corpus in corpora.items():
        present = {question.text for question in selected[number]}
        written = writer_questions(corpus.texts, guard)
        selected[number] += [question for question in written if question.text not in present]
    return selected


def _as_many_as_there_are(config: DistillConfig, newest: int, earlier: int, notes: list[str]) -> DistillConfig:
    """Return the settings with fewer questions a step if their share would ask them too often, with a note on it.

    Of ``newest`` and ``earlier`` questions, ``earlier_share`` is drawn from the latter; without one all alike.
    """
    batches, share = math.ceil(config.steps / config.batch_epochs), config.earlier_share
    if share is None or not (newest and earlier):
        most = _MOST_REPEATS * (newest + earlier) / batches
    else:
        most = _MOST_REPEATS / batches * min(newest / (1 - share), earlier / share if share else math.inf)
    wanted, prompts = config.questions_per_step, config.on_policy_prompts_per_step
    count = max(1, math.floor(most))
    if not newest + earlier or count >= wanted:
        return config
    notes.append(
        f"{newest + earlier} questions about the documents are few: {count} of a step's {prompts} prompts ask one, not "
        f"{wanted}, so that none is asked more than some {_MOST_REPEATS} times"
    )
    return dataclasses.replace(config, knowledge_share=count / prompts)


def _check_writer_questions(config: DistillConfig, corpora: Mapping[int, CorpusSnapshot]) -> None:
    """Raise UsageError if there are no questions of a writer, or no teacher scores the answers."""
    if config.knowledge_teacher is None:
        raise UsageError("--writer-questions are asked of a knowledge teacher: add --knowledge-teacher midtrained")
    if not any(text.question for corpus in corpora.values() for text in corpus.texts):
        raise UsageError(
            f"--writer-questions: no text about the documents had a question when their cycles began: put them into "
            f"{WRITER_FILE} before, or omit the flag"
        )


def _check_documents(
    config: DistillConfig, corpora: Mapping[int, CorpusSnapshot], number: int, student: Checkpoint
) -> None:
    """Raise UsageError if document text lacks a scoring teacher, or if there is none, or none of a writer."""
    if config.document_loss and not corpora:
        raise UsageError(
            f"--document-loss {config.document_loss:g}: {student.name} was trained on no documents of this workspace: "
            f"mid-train it on some first (recover midtrain --docs FOLDER), or omit it"
        )
    if config.document_teacher and config.knowledge_teacher is None:
        raise UsageError("--document-teacher: a knowledge teacher scores the text: add --knowledge-teacher midtrained")
    if config.document_texts and number in corpora:
        require_texts(corpora[number])


def require_texts(own: CorpusSnapshot) -> None:
    """Raise UsageError if no text came with a cycle's documents."""
    if all(text.question for text in own.texts):
        raise UsageError(
            f"--document-texts: there was no text about {own.folder} when cycle {own.cycle} began: put some into "
            f"{WRITER_FILE} beside the documents before, or omit the flag"
        )


def _origin(session: Session, config: DistillConfig, student: Checkpoint) -> Checkpoint | None:
    """Return the checkpoint that the student is blended with, if any. Raise UsageError if it cannot be."""
    if config.blend == 1.0:
        return None
    if student.parent is None:
        raise UsageError(
            f"--blend {config.blend:g} starts between {student.name} and the checkpoint it was trained from, which is "
            f"not known: omit it, or name a checkpoint of this workspace with --student"
        )
    origin = session.resolve(student.parent)
    check_interpolatable(student, origin, "omit --blend")
    return origin


def _experts(session: Session, config: DistillConfig, knowledge: Checkpoint | None) -> dict[str, Checkpoint]:
    """Return the teachers by prompt tag, including the one of questions about earlier documents, if configured."""
    earlier = (
        {EARLIER_QUESTIONS_TAG: config.earlier_teacher} if config.earlier_teacher and knowledge is not None else {}
    )
    return {tag: session.resolve(name) for tag, name in (config.routes | earlier).items()}


def _named_teachers(session: Session, config: DistillConfig, student: Checkpoint) -> dict[Checkpoint, float]:
    """Return the frozen teachers and their weights. Raise UsageError if the only one is the student itself."""
    if config.lam == 0.0 or not config.teaching.frozen:
        return {}
    teachers: dict[Checkpoint, float] = {}
    for name, weight in config.teaching.weights.items():  # two names may be one checkpoint's
        teacher = session.resolve(name)
        teachers[teacher] = teachers.get(teacher, 0.0) + weight
    for teacher in teachers if len(teachers) == 1 and config.needs_another else ():
        if student.hash == teacher.hash:
            raise UsageError(
                f"the student {config.student} is the teacher {teacher.name} itself, so there is nothing to recover: "
                f"mid-train first (recover midtrain --docs FOLDER), or name a degraded model with --student"
            )
    return teachers


def _development(config: DistillConfig, prompts: PromptSplits, notes: list[str]) -> tuple[Prompt, ...]:
    if not config.until or not config.recovers_a_checkpoint:
        return ()
    verifiable = [p for p in prompts.development if p.checks]
    if len(verifiable) < ENOUGH_TO_DECIDE:
        notes.append(
            f"only {len(verifiable)} development prompts can be verified: too few to decide --until {config.until} "
            f"({ENOUGH_TO_DECIDE} are needed), so this test does not stop the stage"
        )
        return ()
    if config.steps < config.check_every:
        notes.append(
            f"--until {config.until:g} is tested every {config.check_every} steps (--check-every), and there are "
            f"{config.steps}: base is asked no development prompts"
        )
        return ()
    if len(verifiable) < config.development:
        notes.append(f"--development {config.development:,}: only {len(verifiable):,} prompts can be verified")
    return tuple(sample(verifiable, config.development))


def _with_lasting_names(
    config: DistillConfig,
    student: Checkpoint,
    teachers: dict[Checkpoint, float],
    knowledge: Checkpoint | None,
    experts: dict[str, Checkpoint],
) -> DistillConfig:
    """Return the configuration with names that mean the same when the stage is resumed.

    A name such as "latest" becomes the checkpoint's own name; a model that is not registered is named by its folder.
    """

    def name(checkpoint: Checkpoint) -> str:
        return checkpoint.name if checkpoint.id is not None else str(checkpoint.path)

    weights = [f"{name(teacher)}={weight}" for teacher, weight in teachers.items()]
    earlier = experts.get(EARLIER_QUESTIONS_TAG)
    return dataclasses.replace(
        config,
        student=student.name,
        teacher=name(next(iter(teachers))) if len(weights) == 1 else ",".join(weights) or config.teacher,
        knowledge_teacher=None if knowledge is None else name(knowledge),
        earlier_teacher=None if earlier is None else name(earlier),
        experts=tuple(f"{tag}={name(expert)}" for tag, expert in experts.items() if tag != EARLIER_QUESTIONS_TAG),
    )
