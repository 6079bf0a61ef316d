"""The first schema: where the line of revisions begins.

A new tracker is made of the models (:func:`db.session.upgrade`), and one that exists had these tables when it was made:
nothing runs this.
"""

from __future__ import annotations

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Refuse: what the first schema was is no longer written down."""
    raise NotImplementedError("a new tracker is made of the models: open it with db.open_database")
