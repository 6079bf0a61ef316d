"""Access to the tracker database: addresses, engines, pragmas and error messages."""

from __future__ import annotations

import functools
import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, insert, inspect, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError

from db import liveness
from db.errors import DatabaseError, MissingDatabaseError, SchemaError
from db.liveness import RECONNECT_SECONDS

FOLDER = Path(__file__).parent / "migrations"
_LOCK_KEY = 7236831  # arbitrary key of the PostgreSQL lock that upgrades hold alone, and writers share
_LEASES = {
    "work": "SELECT purpose AS what, place, pid, pid_started, heartbeat_at FROM work",
    "stage": "SELECT kind AS what, place, pid, pid_started, heartbeat_at FROM stage WHERE status = 'running'",
}
"""Queries for the leases, with columns that every schema has."""
BUSY_SECONDS = 30.0
"""Seconds that a writer waits for another one before it fails."""
POSTGRESQL = "postgresql+psycopg"
# A URL even without its slashes: never the name of a file.
_SCHEMES = re.compile(r"(postgres|postgresql|sqlite)(\+\w+)?:", re.IGNORECASE)
_READS = "recovery_reads"  # the execution option of a connection that only reads
# Timeouts after which a lost server (power, network) is detected.
_NETWORK = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "recovery",
}


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
    """Return the revisions in ``folder``, newest first. Alembic imports every file, which takes most of the time."""
    return tuple(script.revision for script in ScriptDirectory(folder).walk_revisions())


def upgrade(engine: Engine, shown: str) -> None:
    """Create or upgrade the tables in one transaction that blocks other writers; a SQLite file is copied first.

    Versions with different schemas never write to one database: an upgrade is refused while a live process holds a
    lease, and a process without one, or one that was silent for too long, is refused at its next write.

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


def require_unchanged(connection: Connection, schema: str, shown: str) -> None:
    """Raise SchemaError if the schema is another one than ``schema``; it stays the same until the transaction ends."""
    if connection.dialect.name == "postgresql":  # SQLite has one writer at a time
        connection.execute(text("SELECT pg_advisory_xact_lock_shared(:key)"), {"key": _LOCK_KEY})
    revision = connection.scalar(text("SELECT version_num FROM alembic_version"))
    if revision != schema:
        raise SchemaError(
            f"{shown} was upgraded by another version while this one was running (schema {revision}, not {schema}): "
            "use that version, or another workspace"
        )


def _refuse_while_used(connection: Connection, revision: str, shown: str) -> None:
    """Raise SchemaError if a live process holds a lease: its version does not know the new schema."""
    now, tables = liveness.now(connection), inspect(connection).get_table_names()
    for table, query in _LEASES.items():
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


def _copy(path: Path, revision: str) -> None:
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


@dataclass(frozen=True)
class Database:
    """An open tracker database. ``reading`` and ``writing`` each open one short transaction.

    ``schema`` is the schema's revision when it was opened; it is written to with this revision only.
    """

    url: URL
    engine: Engine
    readonly: bool = False
    schema: str = ""

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a read-only, consistent view of the database.

        Raises DatabaseError if the database cannot be read.
        """
        with _translated_errors(self.url, "read"), self._connected() as connection:
            connection.execution_options(**{_READS: True})
            try:
                yield connection
            finally:
                if self.readonly and is_sqlite(self.url):
                    path = Path(str(self.url.database))
                    reader = connection.connection.dbapi_connection
                    before = reader.initial_state if isinstance(reader, _Reader) else None
                    if before is not None and before != _state(path):
                        raise DatabaseError(
                            f"{path} was written while it was read without locks (write-protected folder): try again"
                        )

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that is committed at the end of the block, or rolled back on an exception.

        Raises DatabaseError if the database cannot be written, SchemaError if another version has upgraded it.
        """
        if self.readonly:
            raise DatabaseError(f"{describe(self.url)} was opened for reading only")
        with _translated_errors(self.url, "written"), self._connected() as connection, connection.begin():
            require_unchanged(connection, self.schema, describe(self.url))
            yield connection

    def require_writable(self) -> None:
        """Raise DatabaseError if the database cannot be written, or its user may not."""
        with self.writing() as connection:
            connection.exec_driver_sql("UPDATE experiment SET name = name WHERE 1 = 0")  # needs the right, changes none

    def require_sound(self) -> None:
        """Read all of a SQLite file: a damaged index hides rows without any error.

        Raises DatabaseError if it is damaged. PostgreSQL checks its own pages as they are read.
        """
        if not is_sqlite(self.url):
            return
        with self.reading() as connection:
            result = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
        if result != "ok":
            line = " ".join(str(result).split()).removeprefix("*** in database main *** ")[:200]
            raise DatabaseError(
                f"{describe(self.url)} is damaged ({line}): restore a copy of it, or use another workspace"
            )

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _connected(self) -> Connection:
        """Return a connection; a writer waits for the server, a reader fails at once."""
        deadline = time.monotonic() + (0 if self.readonly or is_sqlite(self.url) else RECONNECT_SECONDS)
        while True:
            try:
                return self.engine.connect()
            except OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)


def database_url(address: str | Path | URL) -> URL:
    """Turn a file path or a database URL into a URL; a path without a scheme is a SQLite file, whose path is absolute.

    Raises DatabaseError if it is neither; the message does not quote the address, which may contain a password.
    """
    if isinstance(address, URL):
        return address
    text = str(address)
    if isinstance(address, Path) or ("://" not in text and not _SCHEMES.match(text)):
        return _sqlite_url(text)
    if text.count("@") > 1:  # the text after the first @ would be read as the host, and shown
        raise DatabaseError("the tracker's address has an @ in its password: write it as %40 (and / as %2F)")
    try:
        scheme, colon, remainder = text.partition(":")
        url = make_url(scheme.lower() + colon + remainder)
    except (ArgumentError, ValueError):
        raise DatabaseError(
            "the tracker's address is malformed: give a file, or postgresql://USER@HOST:PORT/DATABASE"
        ) from None
    if url.get_backend_name() in ("postgres", "postgresql"):
        return url.set(drivername=POSTGRESQL)
    if not is_sqlite(url):
        raise DatabaseError(f"the tracker supports SQLite and PostgreSQL, not {url.get_backend_name()}")
    if not url.database or url.database == ":memory:" or url.query or url.host:
        raise DatabaseError(
            "the tracker's SQLite address must name a file and nothing else: give its path, or sqlite:////PATH/FILE"
        )
    return _sqlite_url(url.database)


def _sqlite_url(path: str) -> URL:
    return URL.create("sqlite", database=str(Path(path).expanduser().absolute()))


def describe(url: URL) -> str:
    """Return the address for messages: a file's path, or a URL without password and settings."""
    if is_sqlite(url):
        return str(url.database)
    return url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)


def is_sqlite(url: URL) -> bool:
    """Whether the address names a SQLite file."""
    return url.get_backend_name() == "sqlite"


def insert_new(connection: Connection, table: Any) -> Any:
    """Return an INSERT that supports ON CONFLICT, in the dialect of the database."""
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


def insert_row(connection: Connection, table: Any, values: Mapping[str, Any]) -> int:
    """Insert one row and return its id."""
    key = connection.execute(insert(table).values(**values)).inserted_primary_key
    assert key is not None  # every table that uses this has one
    return int(key[0])


def open_database(address: str | Path | URL) -> Database:
    """Open a database for writing; create or upgrade it first.

    An older SQLite file is copied next to it before it is changed.
    Raises DatabaseError if that fails, SchemaError if the database is newer than this code, or older and in use.
    """
    url = database_url(address)
    if is_sqlite(url) and not Path(str(url.database)).parent.is_dir():
        raise DatabaseError(f"no folder {Path(str(url.database)).parent} for the tracker database: create it first")
    engine = _engine(url)
    if is_sqlite(url):
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_of_writer)
    else:
        event.listen(engine, "connect", _prepare_server)
    with _translated_errors(url, "opened"):
        upgrade(engine, describe(url))
    return Database(url, engine, schema=newest())


def open_readonly(address: str | Path | URL) -> Database:
    """Open an existing database for reading, without ever blocking a writer.

    An older one is upgraded first, as by :func:`open_database`.
    Raises MissingDatabaseError if there is none, SchemaError as :func:`open_database`.
    """
    url = database_url(address)
    if is_sqlite(url):
        path = Path(str(url.database))
        if not path.is_file() or path.stat().st_size == 0:
            raise MissingDatabaseError(f"no tracker database at {path}: run `recover demo` or any stage first")
        engine = _engine(url, poolclass=NullPool, creator=lambda: _connect_reader(path))
        event.listen(engine, "connect", _prepare_reader)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    else:
        # One read-only snapshot per transaction; on PostgreSQL it blocks no other process.
        engine = _engine(url, isolation_level="REPEATABLE READ").execution_options(postgresql_readonly=True)
    with _translated_errors(url, "opened"):
        with engine.connect() as connection:
            revision = _known_revision(connection, describe(url))
        if revision is None:
            raise MissingDatabaseError(
                f"{describe(url)} contains no tracker yet: run `recover demo` or any stage first"
            )
        if revision != newest():
            open_database(url).close()
    return Database(url, engine, readonly=True)


class _Reader(sqlite3.Connection):
    """A reader's connection; ``initial_state`` is that of a file read without locks, else None."""

    initial_state: tuple[int, int] | None = None


def _connect_reader(path: Path) -> _Reader:
    """Open a SQLite file for reading. Raise DatabaseError if its log cannot be read in a write-protected folder.

    SQLite writes an index beside the log to coordinate readers with writers. Where it cannot, and there is no log, the
    file is complete, and is read without locks: :meth:`Database.reading` detects changes by a writer with the rights.
    """
    file = path.resolve()  # SQLite, too, puts log and index beside the file that a link leads to
    log, index = Path(f"{file}-wal"), Path(f"{file}-shm")
    unlocked = file.is_file() and not (os.access(file.parent, os.W_OK) or (log.is_file() and index.is_file()))
    if unlocked and log.is_file() and log.stat().st_size:
        raise DatabaseError(
            f"{path} cannot be read: {log.name} holds its newest records, and {file.parent} is write-protected: copy "
            "both files to a folder of your own, or let a user who may write there run `recover status` once"
        )
    initial_state = _state(file) if unlocked else None
    uri = f"{file.as_uri()}?mode=ro{'&immutable=1' if unlocked else ''}"
    connection = sqlite3.connect(uri, uri=True, factory=_Reader, timeout=BUSY_SECONDS, check_same_thread=False)
    connection.initial_state = initial_state
    return connection


def _state(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError as error:
        raise DatabaseError(
            f"{file} cannot be read ({error.strerror}): check that it is still there, then try again"
        ) from error
    return status.st_mtime_ns, status.st_size


def _engine(url: URL, **options: Any) -> Engine:
    if is_sqlite(url):
        options["connect_args"] = {"timeout": BUSY_SECONDS, "check_same_thread": False}
    else:
        options["connect_args"] = {name: value for name, value in _NETWORK.items() if name not in url.query}
        options["pool_pre_ping"] = True  # replaces connections broken by a restart of the server
    try:
        return create_engine(url, **options)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise DatabaseError(
            f"no driver for {describe(url)} ({error}): pip install 'recovery[postgres]' for PostgreSQL"
        ) from error


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Per connection: busy timeout, write-ahead log, foreign keys; transactions are begun explicitly."""
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
    mode = _write_ahead(cursor)
    if mode != "wal":
        raise DatabaseError(
            "the file system refuses SQLite's write-ahead mode (a network drive?): "
            "put the workspace on a local disk, or use a PostgreSQL address"
        )
    # A training state may be newer than no point that it counts: after a power failure too, nothing committed is lost.
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _prepare_server(connection: Any, _record: Any) -> None:
    """Per connection: the same lock timeout as for SQLite."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '{BUSY_SECONDS:.0f}s'")
    connection.commit()


def _write_ahead(cursor: Any) -> str:
    """Switch to WAL and retry: SQLite rejects concurrent attempts on a new file without waiting."""
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


def _begin_of_writer(connection: Connection) -> None:
    """Take the write lock at the start, unless it reads: SQLite rejects a later upgrade of a read lock at once."""
    reads = connection.get_execution_options().get(_READS, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


@contextmanager
def _translated_errors(url: URL, verb: str) -> Iterator[None]:
    """Turn a driver's error into a DatabaseError of one line: which database, the reason, what to do."""
    try:
        yield
    except DBAPIError as error:
        raise DatabaseError(f"{describe(url)} cannot be {verb}: {_reason(str(error.orig))}") from error
    except json.JSONDecodeError as error:  # a column of JSON
        raise DatabaseError(f"{describe(url)} holds a damaged value ({error}): restore a copy of it") from error
    except (SQLAlchemyError, sqlite3.Error) as error:  # SQLAlchemy passes on what fails in a new connection
        raise DatabaseError(f"{describe(url)} cannot be {verb}: {_reason(str(error))}") from error


def _reason(text: str) -> str:
    """Return the driver's message on one line, with advice for the common ones."""
    line = " ".join(text.split())
    hints = {
        "database is locked": f"another process held it for more than {BUSY_SECONDS:.0f} s; try again",
        "not a database": "it is another kind of file; give another workspace, or move it away",
        "readonly database": "the file or its folder is write-protected",
        "disk is full": "free some space and resume the stage",
        "unable to open": "check that the folder exists and is writable",
        "locking protocol": "its file system does not support locks; use a local disk or a PostgreSQL address",
        "malformed": "the file is damaged; restore a copy of it",
        "password authentication failed": "check user and password: RECOVER_DATABASE, or a password file (~/.pgpass)",
        "no password supplied": "put it into RECOVER_DATABASE or a password file (~/.pgpass)",
        "permission denied": "this user lacks the rights; docs/tracker.md lists them",
        'FATAL: database "': "create it first: createdb",
    }
    hint = next((advice for sign, advice in hints.items() if sign in line), "")
    return f"{line} ({hint})" if hint else line
