"""Migrations: upgrades from the first schema, copies made in advance, refusal of newer schemas."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import shutil
import signal
import sqlite3
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, event

from db import Database, SchemaError, Tracker, database_url, open_database, open_readonly, queries, reviews, session
from db.schema import Base, Stage
from tests.db.test_leases import end, fall_silent, holder

pytestmark = pytest.mark.differs

ARCHIVE = Path(__file__).resolve().parents[1] / "data" / "workspace-0.1.tar.xz"
NEXT = """
import sqlalchemy as sa
from alembic import op
revision = "9999"
down_revision = "{head}"
branch_labels = None
depends_on = None
def upgrade() -> None:
    op.add_column("experiment", sa.Column("mood", sa.String(), nullable=False, server_default="calm"))
    {extra}
def downgrade() -> None:
    op.drop_column("experiment", "mood")
"""


@pytest.fixture
def add_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that adds one revision to those the code knows."""

    def add(extra: str = "pass") -> None:
        head = session.newest()
        folder = tmp_path / "migrations"
        shutil.copytree(session.FOLDER, folder)
        (folder / "versions" / "9999_mood.py").write_text(NEXT.format(head=head, extra=extra))
        monkeypatch.setattr(session, "FOLDER", folder)

    return add


def test_the_files_of_the_migrations_are_read_once_in_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_database(tmp_path / "first.db").close()
    monkeypatch.setattr(ScriptDirectory, "walk_revisions", lambda _: pytest.fail("they were read again"))
    open_readonly(tmp_path / "first.db").close()
    open_database(tmp_path / "first.db").close()
    assert not list(tmp_path.glob("*.bak")), "a new file needs no copy"


def test_the_migrations_make_exactly_the_models(address: Path | str) -> None:
    database = open_database(address)
    with database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_revisions_form_one_line_that_starts_at_the_first_schema() -> None:
    script = ScriptDirectory.from_config(session.config())
    revisions = list(script.walk_revisions())
    assert revisions[-1].revision == "0001"
    assert len(script.get_heads()) == 1


def test_every_revision_is_valid_postgresql() -> None:
    statements: list[str] = []
    context = MigrationContext.configure(dialect_name="postgresql", opts={"as_sql": True})
    context.impl.static_output = statements.append  # type: ignore[method-assign]
    script = ScriptDirectory.from_config(session.config())
    with Operations.context(context):
        for revision in reversed(list(script.walk_revisions())):
            revision.module.upgrade()
    written = "\n".join(statements)
    assert all(f"CREATE TABLE {name}" in written for name in ("experiment", "metric_point", "sample"))
    assert "ROWID" not in written


def select(address: Path | str, query: str) -> list[tuple[object, ...]]:
    """Run a query without a check of the schema."""
    engine = create_engine(database_url(address))
    with engine.connect() as connection:
        rows = [tuple(row) for row in connection.exec_driver_sql(query)]
    engine.dispose()
    return rows


@pytest.mark.parametrize("opener", [open_database, open_readonly])
def test_an_older_database_is_upgraded_and_a_file_copied_first(
    address: Path | str, add_revision: Callable[..., None], opener: Callable[[Path | str], Database]
) -> None:
    first = session.newest()
    with Tracker(address) as tracker:
        tracker.experiment("kept")
    add_revision()
    opener(address).close()
    assert select(address, "SELECT name, mood FROM experiment") == [("kept", "calm")]
    if isinstance(address, str):
        return
    (copy,) = address.parent.glob("tracker.db.schema-*.bak")
    with sqlite3.connect(copy) as raw:
        assert raw.execute("SELECT version_num FROM alembic_version").fetchall() == [(first,)]
        assert raw.execute("SELECT name FROM experiment").fetchall() == [("kept",)]


def test_a_failed_upgrade_changes_nothing(address: Path | str, add_revision: Callable[..., None]) -> None:
    with Tracker(address) as tracker:
        tracker.experiment("kept")
    before = session.newest()
    add_revision('raise RuntimeError("broken halfway")')
    with pytest.raises(RuntimeError, match="halfway"):
        open_database(address)
    (row,) = select(address, "SELECT * FROM experiment")
    assert "calm" not in row
    assert select(address, "SELECT version_num FROM alembic_version") == [(before,)]


def upgrade_killed(path: Path, statement: int) -> None:
    """Open a tracker in a process that is killed before a statement."""
    count = itertools.count(1)

    def kill(*_: object) -> None:
        if next(count) == statement:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", kill)
    open_database(path).close()


@pytest.mark.parametrize("left", [2, 6, 10])
def test_an_upgrade_that_is_killed_changes_nothing_and_goes_on(
    tmp_path: Path, add_revision: Callable[..., None], left: int
) -> None:
    path = tmp_path / "tracker.db"
    with Tracker(path) as tracker:
        tracker.experiment("kept")
    add_revision()
    process = multiprocessing.get_context("fork").Process(target=upgrade_killed, args=(path, left))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    open_database(path).close()
    assert select(path, "SELECT name, mood FROM experiment") == [("kept", "calm")]


def test_a_copy_that_cannot_be_finished_is_none(
    tmp_path: Path, add_revision: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tracker.db"
    Tracker(path).close()
    add_revision()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="No space"):
        open_database(path)
    assert {one.name for one in tmp_path.iterdir() if "bak" in one.name} == set()


def test_a_newer_schema_is_refused_untouched(address: Path | str) -> None:
    database = open_database(address)
    with database.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '7777'")
    database.close()
    for opener in (open_database, open_readonly):
        with pytest.raises(SchemaError, match=r"newer version \(schema 7777"):
            opener(address)


@pytest.mark.parametrize("opener", [open_database, open_readonly])
def test_a_live_process_of_an_older_version_is_waited_for(
    address: Path | str, add_revision: Callable[..., None], opener: Callable[[Path | str], Database]
) -> None:
    with Tracker(address) as tracker:
        experiment = tracker.experiment("kept")
        child, _ = holder(address, experiment, tracker.cycle(experiment, 1))
    before = session.newest()
    add_revision()
    message = rf"older schema {before}.*recover cycle \(process {child.pid}, alive \d+ s ago\): wait for it, or stop it"
    with pytest.raises(SchemaError, match=message) as caught:
        opener(address)
    assert "\n" not in str(caught.value)
    assert select(address, "SELECT version_num FROM alembic_version") == [(before,)]
    if isinstance(address, Path):
        assert not list(address.parent.glob("*.bak"))
    end(child)  # dead on this machine: detected at once
    opener(address).close()
    assert select(address, "SELECT name, mood FROM experiment") == [("kept", "calm")]


def test_who_was_silent_during_an_upgrade_writes_nothing(
    address: Path | str, add_revision: Callable[..., None]
) -> None:
    silent = Tracker(address, flush_seconds=1000, heartbeat_seconds=1000)
    experiment = silent.experiment("kept")
    stage = silent.start_stage(experiment, "evaluate")
    add_revision()
    with pytest.raises(SchemaError, match=rf"evaluate \(process {os.getpid()}, "):
        open_database(address)
    fall_silent(silent, Stage)
    open_database(address).close()
    stage.log(1, {"loss": 1.0})
    writes: list[Callable[[], object]] = [
        silent.flush,
        lambda: silent.event(experiment, "late"),
        lambda: silent.working(experiment, "recover cycle").__enter__(),
        stage.finish,
        silent.close,
    ]
    for write in writes:
        with pytest.raises(SchemaError, match="upgraded by another version while this one was running") as caught:
            write()
        assert "\n" not in str(caught.value)
    assert select(address, "SELECT status FROM stage") == [("running",)]
    for table in ("event", "metric_point"):
        assert select(address, f"SELECT count(*) FROM {table}") == [(0,)], table


def test_a_tracker_of_release_0_1_takes_votes_and_labels(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    (path,) = tmp_path.rglob("tracker.db")
    with Tracker(path) as tracker:
        experiment = queries.experiments(tracker.database)[0].id
        first, second = queries.checkpoints(tracker.database, experiment)[:2]
        for made in (first, second):
            items = [{"id": "p", "prompt": "Why?", "response": made.name, "score": float(made is first)}]
            tracker.add_evaluation(made.id, "instruction_following", value=1, stderr=0, n=1, items=items)
        answered = reviews.answered(tracker.database, experiment)
        evaluations = [rows["instruction_following"] for rows in answered.values()]
        (pair,) = reviews.pairs(tracker.database, *evaluations, reviews.LOST)
        review = reviews.open_review(tracker.database, first.id, second.id, "instruction_following", reviews.DIFFERING)
        reviews.vote(tracker.database, review, pair, "Ada", "tie")
        reviews.add_label(tracker.database, pair, "Ada", "other", "short")
        assert reviews.tally(reviews.votes(tracker.database, first.id, second.id)).share == 0.5
        assert [label.note for label in reviews.labels(tracker.database, first.id, second.id)] == ["short"]


def test_the_tables_of_reviews_are_added_to_what_is_there(address: Path | str) -> None:
    """From the schema before them, on both databases, and back."""
    settings, engine = session.config(), create_engine(database_url(address))

    def move(step: Callable[..., None], revision: str, statement: str = "SELECT 1") -> None:
        with engine.begin() as connection:
            settings.attributes["connection"] = connection
            step(settings, revision)
            connection.exec_driver_sql(statement)

    columns, values = "name, base_model, config, created_at", "'kept', '', '{}', 0"
    move(command.upgrade, "0002", f"INSERT INTO experiment ({columns}) VALUES ({values})")
    move(command.upgrade, "head")
    move(command.downgrade, "0002")
    engine.dispose()
    with Tracker(address) as tracker:
        assert [one.name for one in queries.experiments(tracker.database)] == ["kept"]
        assert reviews.votes(tracker.database, 1, 2) == []
