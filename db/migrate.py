"""Schema upgrades with Alembic; a SQLite file is copied first.

Versions with different schemas never write to one database: an upgrade is refused while a live process holds a lease,
and a process without one, or one that was silent for too long, is refused at its next write.
"""

from __future__ import annotations

import functools
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text

from db import liveness
from db.errors import MissingDatabaseError, OutdatedSchemaError, SchemaError

FOLDER = Path(__file__).parent / "migrations"
_LOCK_KEY = 7236831  # arbitrary key of the PostgreSQL lock that upgrades hold alone, and writers share
_HOLDERS = {
    "work": "SELECT purpose AS what, place, pid, pid_started, heartbeat_at FROM work",
    "stage": "SELECT kind AS what, place, pid, pid_started, heartbeat_at FROM stage WHERE status = 'running'",
}
"""Queries for the leases, with columns that every schema has."""


def config() -> Config:
    """Return Alembic's settings, so that no ini file is needed."""
    settings = Config()
    settings.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    settings.set_main_option("path_separator", "os")
    return settings


def newest() -> str:
    """Return the revision this code works with."""
    return _revisions(FOLDER)[0]


@functools.cache
def _revisions(folder: Path) -> tuple[str, ...]:
    """Return the revisions in ``folder``, newest first. Alembic imports each file of it, which takes longer than all
    the rest of opening a tracker.
    """
    return tuple(script.revision for script in ScriptDirectory(folder).walk_revisions())


def upgrade(engine: Engine, shown: str) -> None:
    """Create or upgrade the tables in one transaction that blocks other writers.

    ``shown`` is the address for messages. Raises SchemaError if the database is newer than this code, or if a live
    process works with the older schema.
    """
    with engine.connect() as connection:
        if _known_revision(connection, shown) == newest():
            return
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
        revision = _known_revision(connection, shown)
        if revision == newest():
            return
        if revision is not None:
            _refuse_while_used(connection, revision, shown)
            if connection.dialect.name == "sqlite":
                _copy(Path(shown), revision)
        settings = config()
        settings.attributes["connection"] = connection
        command.upgrade(settings, "head")


def require_current(engine: Engine, shown: str) -> None:
    """Raise MissingDatabaseError, OutdatedSchemaError or SchemaError unless the schema is current."""
    with engine.connect() as connection:
        revision = _known_revision(connection, shown)
    if revision is None:
        raise MissingDatabaseError(f"{shown} contains no tracker yet: run `recover demo` or any stage first")
    if revision != newest():
        raise OutdatedSchemaError(f"{shown} has the older schema {revision}, not {newest()}")


def require_unchanged(connection: Connection, schema: str, shown: str) -> None:
    """Raise SchemaError if the schema is another one than ``schema``; it stays the same until the transaction ends."""
    if connection.dialect.name == "postgresql":  # SQLite has one writer at a time
        connection.execute(text("SELECT pg_advisory_xact_lock_shared(:key)"), {"key": _LOCK_KEY})
    found = connection.scalar(text("SELECT version_num FROM alembic_version"))
    if found != schema:
        raise SchemaError(
            f"{shown} was upgraded by another version while this one was running (schema {found}, not {schema}): "
            "use that version, or another workspace"
        )


def _refuse_while_used(connection: Connection, revision: str, shown: str) -> None:
    """Raise SchemaError if a live process holds a lease: its version does not know the new schema."""
    now, tables = liveness.now(connection), inspect(connection).get_table_names()
    for table, query in _HOLDERS.items():
        for row in connection.execute(text(query)) if table in tables else ():
            if not liveness.is_dead(row, now):
                raise SchemaError(
                    f"{shown} has the older schema {revision}, and an older version works with it: {row.what} "
                    f"({liveness.named(row, now)}): wait for it, or stop it, and repeat this command"
                )


def _known_revision(connection: Connection, shown: str) -> str | None:
    """Return the database's revision, None if it is empty. Raises SchemaError if the revision is unknown."""
    revision = MigrationContext.configure(connection).get_current_revision()
    if revision is not None and revision not in _revisions(FOLDER):
        raise SchemaError(
            f"{shown} was written by a newer version (schema {revision}, this one knows {newest()}): "
            "update this installation, or use another workspace"
        )
    return revision


def _copy(path: Path, revision: str) -> Path:
    """Make a consistent copy of a SQLite file next to it, named after its schema and the time.

    It is written under a temporary name: a copy that was not finished must not look like one.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    target = path.with_name(f"{path.name}.schema-{revision}.{stamp}.bak")
    writing = path.with_name(f".writing-{os.getpid()}-{target.name}")
    try:
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(writing)) as copy:
            source.backup(copy)
        writing.rename(target)
    finally:
        writing.unlink(missing_ok=True)
    return target
