"""Alembic's entry point: runs on the connection passed by db.session, inside its transaction."""

from __future__ import annotations

from alembic import context

from db.schema import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
