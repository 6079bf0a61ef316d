"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create every table, parents first."""
    _experiments()
    _stages()
    _curves()
    _checkpoints()
    _evaluations()
    _history()


def downgrade() -> None:
    """Drop every table, children first."""
    for table in (
        *("event", "decision", "token_scores", "sample", "evaluation", "latest"),
        *("checkpoint", "metric_point", "metric_series", "stage", "cycle", "experiment"),
    ):
        op.drop_table(table)


def _identity() -> sa.Column[int]:
    return sa.Column("id", sa.Integer(), primary_key=True)


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _word(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(), nullable=nullable)


def _number(name: str, *, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Float(53), nullable=nullable)


def _count(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=nullable)


def _large(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def _json(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.JSON(), nullable=False)


def _refers(table: str, column: str, target: str, *, keep: bool = False) -> sa.ForeignKeyConstraint:
    rule = "SET NULL" if keep else "CASCADE"
    return sa.ForeignKeyConstraint([column], [f"{target}.id"], name=f"fk_{table}_{column}", ondelete=rule)


def _experiments() -> None:
    op.create_table(
        "experiment",
        _identity(),
        _word("name"),
        _text("base_model"),
        _json("config"),
        _number("created_at"),
        sa.UniqueConstraint("name", name="uq_experiment_name"),
    )
    op.create_table(
        "cycle",
        _identity(),
        _count("experiment_id"),
        _count("number"),
        _text("documents"),
        _word("corpus_hash"),
        _json("details"),
        _number("created_at"),
        _refers("cycle", "experiment_id", "experiment"),
        sa.UniqueConstraint("experiment_id", "number", name="uq_cycle_experiment_id_number"),
    )


def _stages() -> None:
    op.create_table(
        "stage",
        _identity(),
        _count("experiment_id"),
        _count("cycle_id", nullable=True),
        *(_word("kind"), _word("status")),
        _count("student_id", nullable=True),
        _text("folder"),
        *(_json("config"), _json("versions"), _json("details")),
        *(_count("seed", nullable=True), _count("attempts")),
        *(_word("lease", nullable=True), _word("place"), _count("pid", nullable=True), _word("pid_started")),
        *(_number("heartbeat_at"), _number("started_at"), _number("finished_at", nullable=True)),
        *(_number("wall_seconds"), _number("seconds_used")),
        *(_count("steps_done"), _count("steps_total", nullable=True)),
        *(_large("tokens_sampled"), _large("tokens_scored"), _large("tokens_trained")),
        _large("peak_memory_bytes"),
        *(_word("stopped"), _text("error")),
        _refers("stage", "experiment_id", "experiment"),
        _refers("stage", "cycle_id", "cycle"),
    )
    op.create_index("ix_stage_experiment", "stage", ["experiment_id", "id"])
    op.create_index("ix_stage_status", "stage", ["status", "experiment_id"])
    op.create_index("ix_stage_cycle", "stage", ["cycle_id", "kind"])


def _curves() -> None:
    op.create_table(
        "metric_series",
        _identity(),
        _count("stage_id"),
        _word("name"),
        *(_count("last_step"), _number("last_value", nullable=True), _number("last_time")),
        _refers("metric_series", "stage_id", "stage"),
        sa.UniqueConstraint("stage_id", "name", name="uq_metric_series_stage_id_name"),
    )
    op.create_table(
        "metric_point",
        sa.Column("series_id", sa.Integer(), primary_key=True),
        sa.Column("step", sa.Integer(), primary_key=True, autoincrement=False),
        *(_number("value", nullable=True), _number("time")),
        _refers("metric_point", "series_id", "metric_series"),
        sqlite_with_rowid=False,
    )


def _checkpoints() -> None:
    op.create_table(
        "checkpoint",
        _identity(),
        _count("experiment_id"),
        *(_count(name, nullable=True) for name in ("cycle_id", "stage_id", "parent_id")),
        *(_word("name"), _word("kind"), _text("path"), _word("content_hash"), _word("tuning")),
        _json("details"),
        *(_number("created_at"), _number("superseded_at", nullable=True)),
        _refers("checkpoint", "experiment_id", "experiment"),
        _refers("checkpoint", "cycle_id", "cycle", keep=True),
        _refers("checkpoint", "stage_id", "stage", keep=True),
        _refers("checkpoint", "parent_id", "checkpoint", keep=True),
        sa.UniqueConstraint("experiment_id", "name", name="uq_checkpoint_experiment_id_name"),
    )
    op.create_index("ix_checkpoint_cycle", "checkpoint", ["cycle_id", "kind"])
    op.create_table(
        "latest",
        sa.Column("experiment_id", sa.Integer(), primary_key=True),
        *(_count("checkpoint_id"), _number("updated_at")),
        _refers("latest", "experiment_id", "experiment"),
        _refers("latest", "checkpoint_id", "checkpoint"),
    )


def _evaluations() -> None:
    op.create_table(
        "evaluation",
        _identity(),
        *(_count("checkpoint_id"), _count("stage_id", nullable=True)),
        *(_word("suite"), _word("name"), _count("corpus", nullable=True)),
        *(_number("value", nullable=True), _number("stderr", nullable=True), _count("n")),
        *(_json("details"), _number("created_at")),
        _refers("evaluation", "checkpoint_id", "checkpoint"),
        _refers("evaluation", "stage_id", "stage", keep=True),
    )
    op.create_index("ix_evaluation_checkpoint", "evaluation", ["checkpoint_id", "suite", "corpus"])
    op.create_table(
        "sample",
        _identity(),
        _count("evaluation_id"),
        *(_word("item"), _word("group"), _text("prompt"), _text("response")),
        *(_number("score", nullable=True), _json("verdicts"), _json("extra")),
        _refers("sample", "evaluation_id", "evaluation"),
    )
    op.create_index("ix_sample_evaluation", "sample", ["evaluation_id", "id"])
    op.create_index("ix_sample_item", "sample", ["evaluation_id", "item"])


def _history() -> None:
    op.create_table(
        "token_scores",
        _identity(),
        *(_count("stage_id"), _count("step"), _word("item"), _text("prompt")),
        *(_json("tokens"), _json("values")),
        _refers("token_scores", "stage_id", "stage"),
    )
    op.create_index("ix_token_scores_stage", "token_scores", ["stage_id", "step"])
    op.create_table(
        "decision",
        _identity(),
        *(_count("cycle_id"), _word("decision"), _word("who"), _text("why"), _json("evidence")),
        _number("created_at"),
        _refers("decision", "cycle_id", "cycle"),
    )
    op.create_index("ix_decision_cycle", "decision", ["cycle_id", "id"])
    op.create_table(
        "event",
        _identity(),
        *(_count("experiment_id"), _count("cycle_id", nullable=True), _count("stage_id", nullable=True)),
        *(_word("level"), _word("kind"), _text("message"), _json("data"), _number("created_at")),
        _refers("event", "experiment_id", "experiment"),
        _refers("event", "cycle_id", "cycle", keep=True),
        _refers("event", "stage_id", "stage", keep=True),
    )
    op.create_index("ix_event_experiment", "event", ["experiment_id", "id"])
