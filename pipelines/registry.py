"""The tracker's checkpoints as the workspace wants them: found by name, with their paths made absolute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from db import Database, database_url, open_readonly, queries, records
from db.session import describe
from recovery.errors import UsageError
from recovery.gguf_files.header import origin_text
from recovery.workspace import Checkpoint, Workspace


@dataclass(frozen=True)
class Registry:
    """What is registered in one experiment of a workspace's tracker; implements recovery.workspace.Index."""

    workspace: Workspace
    database: Database
    experiment_id: int

    def all(self) -> list[Checkpoint]:
        """Every registered checkpoint, oldest first."""
        return [self._read(row) for row in queries.checkpoints(self.database, self.experiment_id)]

    def latest(self) -> Checkpoint | None:
        """The one the next stage goes on from."""
        row = queries.latest(self.database, self.experiment_id)
        return None if row is None else self._read(row)

    def of_stage(self, stage_id: int) -> Checkpoint | None:
        """The checkpoint a stage has made, if it came so far."""
        rows = queries.checkpoints(self.database, self.experiment_id)
        return next((self._read(row) for row in rows if row.stage_id == stage_id), None)

    def _read(self, row: records.Checkpoint) -> Checkpoint:
        path = self.workspace.found(row.path)
        weights = row.details.get("weights", "")
        return Checkpoint(
            name=row.name,
            kind=row.kind,
            path=path,
            hash=row.content_hash,
            weights=self.workspace.found(weights) if weights else path,
            parent=row.parent,
            tuning=row.tuning or "full",
            cycle=row.cycle,
            id=row.id,
            pruned=str(row.details.get("pruned", "")),
            origin=origin_text(row.details.get("gguf")),
        )


def existing(workspace: Workspace) -> Workspace:
    """The workspace, if it was begun. Raises UsageError where it was not, or where its tracker is not named."""
    check_tracker(workspace)
    if not workspace.exists or (workspace.tracker is None and not Path(workspace.database).is_file()):
        raise UsageError(
            f"there is no workspace in {workspace.folder}: start with `recover demo` or "
            "`recover midtrain --docs FOLDER`" + _shared_folder(workspace)
        )
    return workspace


@contextmanager
def reading(workspace: Workspace) -> Iterator[Registry]:
    """What is registered of a workspace; nothing is written. Raises UsageError where nothing can be read."""
    database = open_tracker(workspace)
    try:
        experiment = queries.experiment(database, workspace.experiment)
        yield Registry(workspace, database, experiment.id if experiment is not None else 0)
    finally:
        database.close()


def check_tracker(workspace: Workspace) -> None:
    """Raise UsageError where the workspace's tracker is another one than was named."""
    elsewhere = workspace.settings().get("tracker")
    if elsewhere and workspace.tracker is None:
        raise UsageError(
            f"{workspace.folder} has its tracker at {elsewhere}: say so with RECOVER_DATABASE or --database"
        )
    if workspace.tracker is not None and not elsewhere and Path(Workspace(workspace.folder).database).is_file():
        raise UsageError(
            f"{workspace.folder} has a tracker of its own: leave --database out and unset RECOVER_DATABASE, "
            "or name another --workspace"
        )


def check_readable(workspace: Workspace) -> None:
    """Raise UsageError where there is no tracker to read. One that is shared can be read where there is no workspace,
    only its address, and so can one below whose folder the workspaces of several runs lie (``recover demo --arms``).
    """
    check_tracker(workspace)
    if workspace.tracker is None and (workspace.exists or not Path(workspace.database).is_file()):
        existing(workspace)


def open_tracker(workspace: Workspace) -> Database:
    """The tracker, for reading: see :func:`check_readable`."""
    check_readable(workspace)
    return open_readonly(workspace.database)


def told(workspace: Workspace) -> str:
    """Where the tracker is, as it may be shown."""
    return describe(database_url(workspace.database))


def _shared_folder(workspace: Workspace) -> str:
    """What to do where another machine holds the files of a shared tracker."""
    if workspace.tracker is None:
        return ""
    return (
        f"; the tracker at {told(workspace)} holds no weights: for those of another machine name its folder on a "
        "shared file system with --workspace"
    )
