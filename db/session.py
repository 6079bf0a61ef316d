"""Opening the tracker database: addresses, engines, pragmas, and errors in words."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError

from db import migrate
from db.errors import DatabaseError, MissingDatabaseError, OutdatedSchemaError

BUSY_SECONDS = 30.0
"""How long a writer waits for another one before it gives up."""
RECONNECT_SECONDS = 120.0
"""How long a writer waits for a server that went away: a restart must not end a stage."""
POSTGRESQL = "postgresql+psycopg"
# A server that vanished (power, cable) is noticed within this, instead of never.
_NETWORK = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "recovery",
}


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
        with _in_words(self.url, "read"), self._connected() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is committed as a whole, or not at all if an exception leaves the block.

        Raises DatabaseError where the database cannot be written.
        """
        if self.readonly:
            raise DatabaseError(f"{describe(self.url)} was opened for reading only")
        with _in_words(self.url, "written"), self._connected() as connection, connection.begin():
            yield connection

    def close(self) -> None:
        """Give the connections back."""
        self.engine.dispose()

    def _connected(self) -> Connection:
        """A connection; a writer waits for one, a page says at once that there is none."""
        deadline = time.monotonic() + (0 if self.readonly or is_sqlite(self.url) else RECONNECT_SECONDS)
        while True:
            try:
                return self.engine.connect()
            except OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)


def database_url(address: str | Path | URL) -> URL:
    """Turn a file path or a database URL into a URL; a path without a scheme is a SQLite file.

    Raises DatabaseError where it is neither; the message holds nothing of the address, which may hold a password.
    """
    if isinstance(address, URL):
        return address
    text = str(address)
    if isinstance(address, Path) or ("://" not in text and not text.startswith(("postgres:", "postgresql:"))):
        return URL.create("sqlite", database=str(Path(text).expanduser().absolute()))
    if text.count("@") > 1:  # what follows the first would be taken for the host, and shown
        raise DatabaseError("the tracker's address has an @ in its password: write it as %40 (and / as %2F)")
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise DatabaseError(
            "the tracker's address is malformed: give a file, or postgresql://USER@HOST:PORT/DATABASE"
        ) from None
    if url.get_backend_name() in ("postgres", "postgresql"):
        return url.set(drivername=POSTGRESQL)
    if not is_sqlite(url):
        raise DatabaseError(f"the tracker is kept in SQLite or PostgreSQL, not in {url.get_backend_name()}")
    return url


def describe(url: URL) -> str:
    """The address as it may be shown: a file's path, or a URL without password and settings."""
    if is_sqlite(url):
        return str(url.database)
    return url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)


def is_sqlite(url: URL) -> bool:
    """Whether the address names a SQLite file."""
    return url.get_backend_name() == "sqlite"


def insert_new(connection: Connection, table: Any) -> Any:
    """An INSERT that can say what happens where the row is there already; each database has its own."""
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


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
    else:
        event.listen(engine, "connect", _prepare_server)
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
        # One snapshot a page, in which nothing can be written; under PostgreSQL it holds up nobody.
        engine = _engine(url, isolation_level="REPEATABLE READ").execution_options(postgresql_readonly=True)
    with _in_words(url, "opened"):
        try:
            migrate.require_current(engine, describe(url))
        except OutdatedSchemaError:
            open_database(url).close()
    return Database(url, engine, readonly=True)


def _engine(url: URL, **options: Any) -> Engine:
    if is_sqlite(url):
        options["connect_args"] = {"timeout": BUSY_SECONDS, "check_same_thread": False}
    else:
        options["connect_args"] = {name: value for name, value in _NETWORK.items() if name not in url.query}
        options["pool_pre_ping"] = True  # connections that a restart of the server broke are made anew
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


def _prepare_server(connection: Any, _record: Any) -> None:
    """Per connection: wait for others no longer than under SQLite."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '{BUSY_SECONDS:.0f}s'")
    connection.commit()


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
        "password authentication failed": "check user and password: RECOVER_DATABASE, or a password file (~/.pgpass)",
        "no password supplied": "put it into RECOVER_DATABASE or a password file (~/.pgpass)",
        "permission denied": "this user may not do that; docs/tracker.md says which rights are needed",
        'FATAL: database "': "make it first: createdb",
    }
    hint = next((advice for sign, advice in hints.items() if sign in line), "")
    return f"{line} ({hint})" if hint else line
