"""The plan of mid-training: documents, steps, tokens, memory and time, computed without loading weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from evals.probes import drawn_lines
from pipelines.data.corpus_snapshot import CorpusSnapshot
from pipelines.midtraining.material import Length, Material, few_questions, gather_cycle, gather_material
from pipelines.planning.architecture import Architecture
from pipelines.planning.memory import Needs, midtraining
from pipelines.planning.tuning import choose_tuning, teacher_footprint
from pipelines.planning.work import midtraining_work
from pipelines.runtime.session import Session
from pipelines.table import MIDTRAIN, PlanRow, of_process, table
from recovery.config import WRITER_FILE, MidtrainConfig
from recovery.errors import UsageError
from recovery.workspace import Checkpoint


@dataclass(frozen=True)
class MidtrainPlan:
    """The plan of mid-training, computed without loading weights. Tokens are target tokens."""

    cycle: int
    student: str
    documents: int
    earlier_documents: int
    replay_share: float
    replay_scored: bool
    earlier_share: float
    length: Length
    tuning: str
    tuning_reason: str
    lr: float
    parameters: int
    memory: Needs
    seconds: float
    corpus: tuple[str, ...]
    augmentation: tuple[str, ...] = ()
    experts: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    few_questions: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the figures as they are printed as JSON, those of the length among them."""
        length, values = self.length, {f.name: getattr(self, f.name) for f in fields(self) if f.name != "length"}
        return values | {
            "document_tokens": length.documents,
            "tokens_per_step": length.per_step,
            "row_length": length.row,
            "steps": length.steps,
            "tokens": length.tokens,
            "passes": length.passes,
            "rows": self.rows,
        }

    @property
    def rows(self) -> tuple[PlanRow, ...]:
        """What the stage takes."""
        peak = of_process(self.memory.memory.peak, self.memory.gpu)
        return (PlanRow("mid-training", MIDTRAIN, self.seconds, peak, self.cycle),)

    def text(self) -> str:
        """Return the plan as text for the user."""
        return f"{self.summary()}\n{table(self.rows, self.memory.free)}"

    def summary(self) -> str:
        """Return the plan as text, without what it takes."""
        earlier = (
            f", {self.earlier_share:.0%} from {self.earlier_documents} earlier documents" if self.earlier_share else ""
        )
        scored = " and scored" if self.replay_scored else ""
        length = self.length
        part = f"{length.passes:.0%} of the documents, " if round(length.passes, 2) < 1 else ""
        chat = f", {self.replay_share:.0%} chat answered{scored} by base" if self.replay_share else ", no chat replay"
        return "\n".join(
            [
                *self.corpus,
                f"cycle {self.cycle}: mid-train {self.student} ({self.parameters / 1e6:,.1f}M parameters) on "
                f"{self.documents} documents, {length.documents:,} tokens{earlier}{chat}",
                *self.augmentation,
                f"{length.steps} steps of {length.per_step:,} = {length.tokens:,} tokens, {part}peak rate {self.lr:g}",
                self.tuning_reason,
                *self.experts,
            ]
        )


def plan_midtrain(session: Session, config: MidtrainConfig) -> MidtrainPlan:
    """Return the plan of the next cycle's mid-training; writes nothing and loads no weights."""
    own = gather_cycle(session, config, session.next_cycle())
    return plan_of(session, gather_material(session, config, session.resolve(config.student), own))


def plan_in_turn(
    session: Session, configs: Sequence[MidtrainConfig], first: int
) -> list[tuple[MidtrainPlan, CorpusSnapshot]]:
    """Return the plans of cycles from ``first`` on, each of which follows those before it, and their documents.

    Writes nothing. A later cycle starts from the result of a recovery that does not exist yet: it is planned for the
    present student, with the documents of the cycles before it.
    """
    plans: list[tuple[MidtrainPlan, CorpusSnapshot]] = []
    before: dict[int, CorpusSnapshot] = {}
    for number, config in enumerate(configs, start=first):
        own = gather_cycle(session, config, number, before)
        plan = plan_of(session, gather_material(session, config, session.resolve(config.student), own, before))
        plans.append((replace(plan, student=f"cycle-{number - 1}/recovered") if before else plan, own))
        before[number] = own
    return plans


def length_of(session: Session, config: MidtrainConfig, own: CorpusSnapshot) -> Length:
    """Return the length of mid-training on the documents of a cycle; loads no weights."""
    return gather_material(session, config, session.resolve(config.student), own).length()


def plan_of(session: Session, material: Material) -> MidtrainPlan:
    """Return the plan of mid-training on the given data; loads no weights."""
    config, student, length = material.config, material.student, material.length()
    computed = round(length.tokens * material.computed_per_target(length.row))
    largest = material.largest_step(length)
    teachers = [material.clean] if config.anchor or config.distils_replay else []
    footprint = teacher_footprint(student, teachers, unshared=config.clean_teacher)
    tuning = choose_tuning(
        config,
        student,
        lambda *arguments: midtraining(config, *arguments, beside=footprint, row_length=length.row, step=largest),
        recommended=session.recommended("tuning"),
    )
    return MidtrainPlan(
        cycle=material.own.cycle,
        student=student.name,
        documents=len(material.own.documents),
        earlier_documents=material.earlier_documents,
        replay_share=config.replay,
        replay_scored=config.distils_replay,
        earlier_share=material.shares()["earlier"] / (1 - config.replay),
        length=length,
        tuning=tuning.name,
        tuning_reason=tuning.reason,
        lr=config.rate(tuning.name, tuning.parameters),
        parameters=tuning.parameters,
        memory=tuning.needs,
        seconds=midtraining_work(config, tuning.name, computed).seconds(tuning.network, tuning.speed),
        corpus=(*material.own.lines, *material.remarks),
        augmentation=_augmentation_lines(session, material),
        experts=_experts_line(config, student),
        questions=drawn_lines(material.own.probes, config.seed),
        few_questions=few_questions(config, material.own),
    )


def with_written(session: Session, material: Material, plan: MidtrainPlan) -> MidtrainPlan:
    """Return the plan updated to the length of the writer's text, which limits its number of passes."""
    return replace(plan, length=material.length(), augmentation=_augmentation_lines(session, material))


def _experts_line(config: MidtrainConfig, student: Checkpoint) -> tuple[str, ...]:
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


def _augmentation_lines(session: Session, material: Material) -> tuple[str, ...]:
    """Return the lines of the plan about paraphrases, questions and the cost of a writer."""
    config, made, shares = material.config, material.augmented, material.shares()
    if not config.augment:
        return ()
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
    if material.writing:
        lines.append(material.writing.line(session.workspace))
    return tuple(lines)
