"""Add the table of leases on experiments: at most one process trains in each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of leases on experiments."""
    op.create_table(
        "work",
        sa.Column("experiment_id", sa.Integer(), primary_key=True),
        *(sa.Column(name, sa.String(), nullable=False) for name in ("purpose", "lease", "place")),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("pid_started", sa.String(), nullable=False),
        sa.Column("heartbeat_at", sa.Float(53), nullable=False),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiment.id"], name="fk_work_experiment_id", ondelete="CASCADE"),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("work")
