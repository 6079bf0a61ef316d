"""Add the tables of reviews: blind comparisons, their votes, and labels of lost answers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "review",
        _identity(),
        *(_number("first_id"), _number("second_id")),
        *(_word("suite"), _word("scope"), _number("seed"), _moment()),
        *(_refers("review", column, "checkpoint") for column in ("first_id", "second_id")),
        sa.UniqueConstraint(
            *("first_id", "second_id", "suite", "scope"), name="uq_review_first_id_second_id_suite_scope"
        ),
    )
    op.create_table(
        "vote",
        _identity(),
        *(_number("review_id"), _number("first_id"), _number("second_id")),
        *(_word("reviewer"), _word("choice"), _word("on_left"), _moment()),
        _refers("vote", "review_id", "review"),
        *(_refers("vote", column, "sample") for column in ("first_id", "second_id")),
    )
    op.create_index("ix_vote_review", "vote", ["review_id", "id"])
    op.create_table(
        "label",
        _identity(),
        *(_number("first_id"), _number("second_id")),
        *(_word("reviewer"), _word("label"), sa.Column("note", sa.Text(), nullable=False), _moment()),
        *(_refers("label", column, "sample") for column in ("first_id", "second_id")),
    )
    op.create_index("ix_label_second", "label", ["second_id", "id"])


def downgrade() -> None:
    """Drop the tables, children first."""
    for table in ("label", "vote", "review"):
        op.drop_table(table)


def _identity() -> sa.Column[int]:
    return sa.Column("id", sa.Integer(), primary_key=True)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=False)


def _word(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(), nullable=False)


def _moment() -> sa.Column[float]:
    return sa.Column("created_at", sa.Float(53), nullable=False)


def _refers(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{target}.id"], name=f"fk_{table}_{column}", ondelete="CASCADE")
