"""Opening the tracker database: addresses, engines, pragmas, and errors in words."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from db import migrate
from db.errors import DatabaseError, MissingDatabaseError, OutdatedSchemaError

BUSY_SECONDS = 30.0
"""How long a writer waits for another one before it gives up."""


@dataclass(frozen=True)
class Database:
    """An open tracker database. ``reading`` and ``writing`` are one short transaction each."""

    url: URL
    engine: Engine
    readonly: bool = False

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A consistent view of the database; nothing is written.

        Raises DatabaseError where the database cannot be read.
        """
        with _in_words(self.url, "read"), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is committed as a whole, or not at all if an exception leaves the block.

        Raises DatabaseError where the database cannot be written.
        """
        if self.readonly:
            raise DatabaseError(f"{describe(self.url)} was opened for reading only")
        with _in_words(self.url, "written"), self.engine.begin() as connection:
            yield connection

    def close(self) -> None:
        """Give the connections back."""
        self.engine.dispose()


def database_url(address: str | Path | URL) -> URL:
    """Turn a file path or a database URL into a URL; a path without a scheme is a SQLite file."""
    if isinstance(address, URL):
        return address
    text = str(address)
    if isinstance(address, Path) or "://" not in text:
        return URL.create("sqlite", database=str(Path(text).expanduser().absolute()))
    try:
        return make_url(text)
    except ArgumentError as error:
        raise DatabaseError(f"{text!r} is not a database address: give a file or a database URL") from error


def describe(url: URL) -> str:
    """The address as it may be shown: a file's path, or a URL with its password hidden."""
    return str(url.database) if is_sqlite(url) else url.render_as_string(hide_password=True)


def is_sqlite(url: URL) -> bool:
    """Whether the address names a SQLite file."""
    return url.get_backend_name() == "sqlite"


def open_database(address: str | Path | URL) -> Database:
    """Open a database for writing; make it, or bring it up to date, first.

    A copy of an older SQLite file is made beside it before it is changed.
    Raises DatabaseError where that cannot be done, SchemaError where the database is newer than this code.
    """
    url = database_url(address)
    if is_sqlite(url) and not Path(str(url.database)).parent.is_dir():
        raise DatabaseError(f"no folder {Path(str(url.database)).parent} for the tracker database: make it first")
    engine = _engine(url)
    if is_sqlite(url):
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_immediate)
    with _in_words(url, "opened"):
        migrate.upgrade(engine, describe(url))
    return Database(url, engine)


def open_readonly(address: str | Path | URL) -> Database:
    """Open an existing database for reading, in a way that never holds up a writer.

    An older one is brought up to date first, with a copy made, as a writer would.
    Raises MissingDatabaseError where there is none, SchemaError where it is newer than this code.
    """
    url = database_url(address)
    if is_sqlite(url):
        path = Path(str(url.database))
        if not path.is_file() or path.stat().st_size == 0:
            raise MissingDatabaseError(f"no tracker database at {path}: run `recover demo` or any stage first")
        query = {"uri": "true", "mode": "ro"}
        engine = _engine(URL.create("sqlite", database=path.as_uri(), query=query), poolclass=NullPool)
        event.listen(engine, "connect", _prepare_reader)
        event.listen(engine, "begin", _begin)
    else:
        engine = _engine(url, isolation_level="AUTOCOMMIT", pool_pre_ping=True)
    with _in_words(url, "opened"):
        try:
            migrate.require_current(engine, describe(url))
        except OutdatedSchemaError:
            open_database(url).close()
    return Database(url, engine, readonly=True)


def _engine(url: URL, **options: Any) -> Engine:
    if is_sqlite(url):
        options["connect_args"] = {"timeout": BUSY_SECONDS, "check_same_thread": False}
    try:
        return create_engine(url, **options)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise DatabaseError(
            f"no driver for {describe(url)} ({error}): pip install 'recovery[postgres]' for PostgreSQL"
        ) from error


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Per connection: wait for others, write ahead, keep references. Transactions are begun by us alone."""
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
    mode = _write_ahead(cursor)
    if mode != "wal":
        raise DatabaseError(
            "the file system refuses SQLite's write-ahead mode (a network drive?): "
            "put the workspace on a local disk, or use a PostgreSQL address"
        )
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _write_ahead(cursor: Any) -> str:
    """Switch to WAL. Processes that open a new file at once are refused without waiting, so ask again."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return str(cursor.execute("PRAGMA journal_mode = WAL").fetchone()[0]).lower()
        except Exception as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _prepare_reader(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
    cursor.execute("PRAGMA query_only = ON")
    cursor.close()


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _begin_immediate(connection: Connection) -> None:
    """Take the write lock at the start: a reader that turns writer midway is refused without waiting."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def _in_words(url: URL, verb: str) -> Iterator[None]:
    """Turn a driver's error into one line that says which database and what to do."""
    try:
        yield
    except DBAPIError as error:
        raise DatabaseError(f"{describe(url)} cannot be {verb}: {_reason(str(error.orig))}") from error
    except SQLAlchemyError as error:
        raise DatabaseError(f"{describe(url)} cannot be {verb}: {_reason(str(error))}") from error


def _reason(text: str) -> str:
    """The driver's own words on one line, with what to do about the common ones."""
    line = " ".join(text.split())
    hints = {
        "database is locked": f"another process held it for more than {BUSY_SECONDS:.0f} s; try again",
        "not a database": "it is another kind of file; give another workspace, or move it away",
        "readonly database": "the file or its folder is write-protected",
        "disk is full": "free some space and resume the stage",
        "unable to open": "check that the folder exists and may be written",
        "locking protocol": "its file system cannot lock; use a local disk or a PostgreSQL address",
        "malformed": "the file is damaged; restore a copy of it",
    }
    hint = next((advice for sign, advice in hints.items() if sign in line), "")
    return f"{line} ({hint})" if hint else line
