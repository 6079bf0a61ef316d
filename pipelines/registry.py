"""The tracker's checkpoints as the workspace wants them: found by name, with their paths made absolute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from db import Database, open_readonly, queries, records
from recovery.errors import UsageError
from recovery.workspace import Checkpoint, Workspace

EXPERIMENT = "main"


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
        )


def existing(folder: Path) -> Workspace:
    """The workspace in ``folder``. Raises UsageError where none has been begun there."""
    workspace = Workspace(folder)
    if not workspace.exists or not workspace.database.is_file():
        raise UsageError(
            f"there is no workspace in {folder}: start with `recover demo` or `recover midtrain --docs FOLDER`"
        )
    return workspace


@contextmanager
def reading(folder: Path) -> Iterator[Registry]:
    """What is registered in the workspace in ``folder``; nothing is written there. Raises UsageError without one."""
    workspace = existing(folder)
    database = open_readonly(workspace.database)
    try:
        experiment = queries.experiment(database, EXPERIMENT)
        yield Registry(workspace, database, experiment.id if experiment is not None else 0)
    finally:
        database.close()
