"""Tables of the tracker database.

experiment -> cycle -> stage -> metric series -> points; a stage makes checkpoints; a checkpoint has
evaluations, an evaluation has samples. Times are unix seconds (UTC) as floats, which compare equally in every
database. All column types are portable: the same migrations run on SQLite and PostgreSQL.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

TRAINING = ("midtrain", "distill", "interpolate")
"""Stages that produce weights and move ``latest``."""
EVALUATE = "evaluate"
STAGE_KINDS = (*TRAINING, EVALUATE)
ARTIFACT = "artifact"
"""A file or a server that a checkpoint was made into, to be served: it is measured, and never trained from."""
CHECKPOINT_KINDS = ("base", "midtrained", "recovered", "external", ARTIFACT)
DECISIONS = ("accepted", "rejected", "rolled_back")
DISCARDED = ("rejected", "rolled_back")
"""Decisions after which later cycles do not build on a cycle."""

_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Base class with named constraints, so that a later migration can alter them in every database."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: String(),
        int: Integer,
        float: Float(53),
        bool: Boolean,
        dict[str, Any]: JSON,
        list[Any]: JSON,
    }


def _parent(target: str, *, nullable: bool = False, cascade: bool = True, primary_key: bool = False) -> Any:
    """Return a foreign key column; deleting a parent deletes its children (``cascade``), or sets their key to null."""
    rule = "CASCADE" if cascade else "SET NULL"
    return mapped_column(Integer, ForeignKey(target, ondelete=rule), nullable=nullable, primary_key=primary_key)


class Experiment(Base):
    """A base model and its sequence of cycles."""

    __tablename__ = "experiment"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    base_model: Mapped[str] = mapped_column(Text, default="")
    config: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[float]


class Cycle(Base):
    """One training cycle on one folder of documents. Its decision is derived from ``Decision``."""

    __tablename__ = "cycle"
    __table_args__ = (UniqueConstraint("experiment_id", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[int] = _parent("experiment.id")
    number: Mapped[int]
    documents: Mapped[str] = mapped_column(Text, default="")
    corpus_hash: Mapped[str] = mapped_column(default="")
    details: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[float]


class Stage(Base):
    """One stage of work: registration, mid-training, distillation, interpolation or evaluation.

    A process holds a stage by ``lease``, a random token known to it alone. ``place`` identifies the machine and
    process namespace of ``pid`` by an opaque hash; no host name is stored.
    """

    __tablename__ = "stage"
    __table_args__ = (
        Index("ix_stage_experiment", "experiment_id", "id"),
        Index("ix_stage_status", "status", "experiment_id"),
        Index("ix_stage_cycle", "cycle_id", "kind"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[int] = _parent("experiment.id")
    cycle_id: Mapped[int | None] = _parent("cycle.id", nullable=True)
    kind: Mapped[str]
    status: Mapped[str]
    student_id: Mapped[int | None]
    """The checkpoint it starts from. No foreign key: checkpoints already refer to stages, and circular references
    cannot be created the same way in every database."""
    folder: Mapped[str] = mapped_column(Text, default="")
    config: Mapped[dict[str, Any]] = mapped_column(default=dict)
    versions: Mapped[dict[str, Any]] = mapped_column(default=dict)
    details: Mapped[dict[str, Any]] = mapped_column(default=dict)
    seed: Mapped[int | None]
    attempts: Mapped[int] = mapped_column(default=1)

    lease: Mapped[str | None]
    place: Mapped[str] = mapped_column(default="")
    pid: Mapped[int | None]
    pid_started: Mapped[str] = mapped_column(default="")
    heartbeat_at: Mapped[float]

    started_at: Mapped[float]
    finished_at: Mapped[float | None]
    wall_seconds: Mapped[float] = mapped_column(default=0.0)
    seconds_used: Mapped[float] = mapped_column(default=0.0)
    steps_done: Mapped[int] = mapped_column(default=0)
    steps_total: Mapped[int | None]
    tokens_sampled: Mapped[int] = mapped_column(BigInteger, default=0)
    tokens_scored: Mapped[int] = mapped_column(BigInteger, default=0)
    tokens_trained: Mapped[int] = mapped_column(BigInteger, default=0)
    peak_memory_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    stopped: Mapped[str] = mapped_column(default="")
    error: Mapped[str] = mapped_column(Text, default="")


class Work(Base):
    """The lease of the process that trains in an experiment: at most one over all machines that share the tracker.

    Held from the start of a command to its end, also between its stages; see ``Stage`` for the columns.
    """

    __tablename__ = "work"

    experiment_id: Mapped[int] = _parent("experiment.id", primary_key=True)
    purpose: Mapped[str]
    lease: Mapped[str]
    place: Mapped[str]
    pid: Mapped[int]
    pid_started: Mapped[str]
    heartbeat_at: Mapped[float]


class MetricSeries(Base):
    """One named curve of a stage, with its newest point, so that lists do not need to read the curve."""

    __tablename__ = "metric_series"
    __table_args__ = (UniqueConstraint("stage_id", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    stage_id: Mapped[int] = _parent("stage.id")
    name: Mapped[str]
    last_step: Mapped[int]
    last_value: Mapped[float | None]
    last_time: Mapped[float]


class MetricPoint(Base):
    """One value of a curve. ``value`` is null if the number was not finite.

    The key is (series, step), i.e. (stage, name, step) with the name stored once. Without a row id the table itself
    is the index, so a range of steps is read in one pass.
    """

    __tablename__ = "metric_point"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012

    series_id: Mapped[int] = _parent("metric_series.id", primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    value: Mapped[float | None]
    time: Mapped[float]


class Checkpoint(Base):
    """Weights on disk: kind, origin, and a content hash to detect changes."""

    __tablename__ = "checkpoint"
    __table_args__ = (UniqueConstraint("experiment_id", "name"), Index("ix_checkpoint_cycle", "cycle_id", "kind"))

    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[int] = _parent("experiment.id")
    cycle_id: Mapped[int | None] = _parent("cycle.id", nullable=True, cascade=False)
    stage_id: Mapped[int | None] = _parent("stage.id", nullable=True, cascade=False)
    parent_id: Mapped[int | None] = _parent("checkpoint.id", nullable=True, cascade=False)
    name: Mapped[str]
    kind: Mapped[str]
    path: Mapped[str] = mapped_column(Text)
    content_hash: Mapped[str] = mapped_column(default="")
    tuning: Mapped[str] = mapped_column(default="")
    details: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[float]
    superseded_at: Mapped[float | None]


class Latest(Base):
    """The checkpoint an experiment continues from: one row per experiment."""

    __tablename__ = "latest"

    experiment_id: Mapped[int] = _parent("experiment.id", primary_key=True)
    checkpoint_id: Mapped[int] = _parent("checkpoint.id")
    updated_at: Mapped[float]


class Evaluation(Base):
    """A suite's result on a checkpoint: the headline score, and further scores by name in ``details``."""

    __tablename__ = "evaluation"
    __table_args__ = (Index("ix_evaluation_checkpoint", "checkpoint_id", "suite", "corpus"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    checkpoint_id: Mapped[int] = _parent("checkpoint.id")
    stage_id: Mapped[int | None] = _parent("stage.id", nullable=True, cascade=False)
    suite: Mapped[str]
    name: Mapped[str]
    corpus: Mapped[int | None]
    value: Mapped[float | None]
    stderr: Mapped[float | None]
    n: Mapped[int]
    details: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[float]


class Sample(Base):
    """One item of an evaluation: prompt, response and verdicts."""

    __tablename__ = "sample"
    __table_args__ = (
        Index("ix_sample_evaluation", "evaluation_id", "id"),
        Index("ix_sample_item", "evaluation_id", "item"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    evaluation_id: Mapped[int] = _parent("evaluation.id")
    item: Mapped[str]
    group: Mapped[str] = mapped_column(default="")
    prompt: Mapped[str] = mapped_column(Text)
    response: Mapped[str] = mapped_column(Text)
    score: Mapped[float | None]
    verdicts: Mapped[dict[str, Any]] = mapped_column(default=dict)
    extra: Mapped[dict[str, Any]] = mapped_column(default=dict)


class TokenScores(Base):
    """A rollout with values per token (reverse KL, entropy ...)."""

    __tablename__ = "token_scores"
    __table_args__ = (Index("ix_token_scores_stage", "stage_id", "step"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    stage_id: Mapped[int] = _parent("stage.id")
    step: Mapped[int]
    item: Mapped[str] = mapped_column(default="")
    prompt: Mapped[str] = mapped_column(Text)
    tokens: Mapped[list[Any]]
    values: Mapped[dict[str, Any]]


class Decision(Base):
    """A decision about a cycle. Rows are only added; the newest one applies."""

    __tablename__ = "decision"
    __table_args__ = (Index("ix_decision_cycle", "cycle_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    cycle_id: Mapped[int] = _parent("cycle.id")
    decision: Mapped[str]
    who: Mapped[str]
    why: Mapped[str] = mapped_column(Text, default="")
    evidence: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[float]


class Review(Base):
    """A blind comparison of two checkpoints' responses to the prompts of a suite; ``first`` is the older checkpoint.

    ``seed`` determines the order of the prompts, and for each reviewer the side that each response is shown on.
    """

    __tablename__ = "review"
    __table_args__ = (UniqueConstraint("first_id", "second_id", "suite", "scope"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    first_id: Mapped[int] = _parent("checkpoint.id")
    second_id: Mapped[int] = _parent("checkpoint.id")
    suite: Mapped[str]
    scope: Mapped[str]
    seed: Mapped[int]
    created_at: Mapped[float]


class Vote(Base):
    """A reviewer's choice between two responses to one prompt. Rows are only added; a reviewer's newest one applies.

    ``choice`` is "first", "second", "tie" or "skip"; ``on_left`` is the response that was shown on the left: "first" or
    "second".
    """

    __tablename__ = "vote"
    __table_args__ = (Index("ix_vote_review", "review_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    review_id: Mapped[int] = _parent("review.id")
    first_id: Mapped[int] = _parent("sample.id")
    second_id: Mapped[int] = _parent("sample.id")
    reviewer: Mapped[str]
    choice: Mapped[str]
    on_left: Mapped[str]
    created_at: Mapped[float]


class Label(Base):
    """A reviewer's label of a response that fails (``second``) where the older checkpoint's passed (``first``).

    Rows are only added; a reviewer's newest one applies.
    """

    __tablename__ = "label"
    __table_args__ = (Index("ix_label_second", "second_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    first_id: Mapped[int] = _parent("sample.id")
    second_id: Mapped[int] = _parent("sample.id")
    reviewer: Mapped[str]
    label: Mapped[str]
    note: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[float]


class Event(Base):
    """A logged event with its message."""

    __tablename__ = "event"
    __table_args__ = (Index("ix_event_experiment", "experiment_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    experiment_id: Mapped[int] = _parent("experiment.id")
    cycle_id: Mapped[int | None] = _parent("cycle.id", nullable=True, cascade=False)
    stage_id: Mapped[int | None] = _parent("stage.id", nullable=True, cascade=False)
    level: Mapped[str]
    kind: Mapped[str]
    message: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[float]
