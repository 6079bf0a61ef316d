"""Schema upgrades with Alembic; a SQLite file is copied first."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from db.errors import MissingDatabaseError, OutdatedSchemaError, SchemaError

FOLDER = Path(__file__).parent / "migrations"
_LOCK_KEY = 7236831  # arbitrary key of the PostgreSQL lock that serialises upgrades


def config() -> Config:
    """Return Alembic's settings, so that no ini file is needed."""
    settings = Config()
    settings.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    settings.set_main_option("path_separator", "os")
    return settings


def newest() -> str:
    """Return the revision this code works with."""
    return str(ScriptDirectory.from_config(config()).get_current_head())


def upgrade(engine: Engine, shown: str) -> None:
    """Create or upgrade the tables in one transaction that blocks other writers.

    ``shown`` is the address for messages. Raises SchemaError if the database is newer than this code.
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
        if revision is not None and connection.dialect.name == "sqlite":
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


def _known_revision(connection: Connection, shown: str) -> str | None:
    """Return the database's revision, None if it is empty. Raises SchemaError if the revision is unknown."""
    revision = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in ScriptDirectory.from_config(config()).walk_revisions()}
    if revision is not None and revision not in known:
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
