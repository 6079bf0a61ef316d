"""Read access to a workspace's registered checkpoints and cycles in the tracker."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from db import Database, database_url, open_readonly, queries, records
from db.schema import DISCARDED
from db.session import describe
from recovery.errors import UsageError
from recovery.models.gguf_files.header import origin_text
from recovery.workspace import Checkpoint, Workspace


@dataclass(frozen=True)
class Registry:
    """The checkpoints and cycles of one experiment in a workspace's tracker."""

    workspace: Workspace
    database: Database
    experiment_id: int

    def all(self) -> list[Checkpoint]:
        """Return all registered checkpoints, oldest first."""
        return [self._read(row) for row in queries.checkpoints(self.database, self.experiment_id)]

    def latest(self) -> Checkpoint | None:
        """Return the checkpoint that the next stage starts from."""
        row = queries.latest(self.database, self.experiment_id)
        return None if row is None else self._read(row)

    def of_stage(self, stage_id: int) -> Checkpoint | None:
        """Return the checkpoint that a stage has saved, if any."""
        rows = queries.checkpoints(self.database, self.experiment_id)
        return next((self._read(row) for row in rows if row.stage_id == stage_id), None)

    def cycles(self) -> dict[int, records.Cycle]:
        """Return the cycles so far, by number."""
        return {c.number: c for c in queries.cycles(self.database, self.experiment_id)}

    def cycle_row(self, number: int | None) -> records.CycleRow | None:
        """Return a cycle with what was measured of its checkpoints; None if there is none of that number."""
        overview = queries.overview(self.database, self.experiment_id)
        rows = () if overview is None else overview.cycles
        return next((row for row in rows if row.cycle.number == number), None)

    def ancestors(self, checkpoint: Checkpoint) -> list[Checkpoint]:
        """Return the checkpoint's ancestors, nearest first; the clean model is always included."""
        by_name = {one.name: one for one in self.all() if one.name != checkpoint.name}
        found: list[Checkpoint] = []
        parent = checkpoint.parent
        while parent in by_name:
            found.append(by_name.pop(parent))
            parent = found[-1].parent
        return found + [one for one in by_name.values() if one.name == "base"]

    def lineage_cycles(self, checkpoint: Checkpoint | None) -> set[int]:
        """Return the cycles of a checkpoint and its ancestors; none without a checkpoint."""
        line = () if checkpoint is None else (checkpoint, *self.ancestors(checkpoint))
        return {one.cycle for one in line if one.cycle is not None}

    def learnt_cycles(self, checkpoint: Checkpoint, last: int | None = None) -> list[int]:
        """Return the cycles (up to ``last``) whose documents a checkpoint should know.

        These are the cycles that were not rejected or rolled back, and those of the checkpoint and its ancestors.
        """
        lineage = self.lineage_cycles(checkpoint)
        counted = (k for k, c in self.cycles().items() if k in lineage or c.decision not in DISCARDED)
        return [k for k in counted if last is None or k <= last]

    def trained_cycles(self, checkpoint: Checkpoint, last: int | None = None) -> list[int]:
        """Return the cycles (up to ``last``) whose documents a checkpoint was trained on, by its ancestors.

        What a model from elsewhere was trained on is not known: it may be merged from checkpoints of any cycle. So all
        cycles count whose documents it should know.
        """
        if any(one.kind == "external" for one in (checkpoint, *self.ancestors(checkpoint))):
            return self.learnt_cycles(checkpoint, last)
        return sorted(k for k in self.lineage_cycles(checkpoint) if last is None or k <= last)

    def earlier_cycles(self, checkpoint: Checkpoint, cycle: int | None) -> list[int]:
        """Return the cycles before ``cycle`` whose documents a checkpoint should know; without one, all of them."""
        return [k for k in self.learnt_cycles(checkpoint, cycle) if k != cycle]

    def discarded_cycles(self) -> set[int]:
        """Return the cycles that were rejected or rolled back, except those that ``latest`` builds on."""
        line = self.lineage_cycles(self.latest())
        return {k for k, c in self.cycles().items() if c.decision in DISCARDED and k not in line}

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


def existing(workspace: Workspace) -> None:
    """Raise UsageError if the workspace does not exist, or if its tracker is not given."""
    check_tracker(workspace)
    if not workspace.exists or (workspace.tracker is None and not Path(workspace.database).is_file()):
        reason = (
            f"there is no workspace in {workspace.folder}: start with `recover demo`, or with `recover cycle --model "
            "NAME --docs FOLDER`"
        )
        if workspace.tracker is not None:
            reason += (
                f"; the tracker at {tracker_address(workspace)} holds no weights: for those of another machine, give "
                "--workspace with its folder on a shared file system"
            )
        raise UsageError(reason)


@contextmanager
def reading(workspace: Workspace) -> Iterator[Registry]:
    """Open a workspace's registry for reading. Raise UsageError if there is nothing to read."""
    with closing(open_tracker(workspace)) as database:
        experiment = own_experiment(workspace, database)
        yield Registry(workspace, database, experiment.id if experiment is not None else 0)


def own_experiment(workspace: Workspace, database: Database) -> records.Experiment | None:
    """Return the workspace's experiment in its tracker, None if there is none.

    Raise UsageError if the experiment of that name belongs to another workspace, and so does the tracker.
    """
    known = queries.experiment(database, workspace.experiment)
    if known is not None and workspace.exists and workspace.tracker is not None and not _belongs_to(workspace, known):
        raise UsageError(
            f"{known.name} at {tracker_address(workspace)} is another workspace's, not that of {workspace.folder}: "
            "give the --database it was created with"
        )
    return known


def _belongs_to(workspace: Workspace, experiment: records.Experiment) -> bool:
    settings = workspace.settings()
    recorded = experiment.config.get("workspace")
    if "id" in settings:
        return bool(recorded == settings["id"])
    # A workspace of an earlier version gets that id when it is next written to. Its tracker's address says nothing: the
    # tracker may have been moved, and be reached by other names and users.
    return recorded in (None, derived_id(experiment)) and experiment.base_model == settings.get("model")


def derived_id(experiment: records.Experiment) -> str:
    """Return the id of a workspace of an earlier version, which had none."""
    return hashlib.sha256(f"{experiment.name} {experiment.created_at!r}".encode()).hexdigest()[:32]


def check_tracker(workspace: Workspace) -> None:
    """Raise UsageError if the workspace's tracker is not the one given."""
    elsewhere = workspace.settings().get("tracker")
    if elsewhere and workspace.tracker is None:
        raise UsageError(f"{workspace.folder} has its tracker at {elsewhere}: set RECOVER_DATABASE or --database to it")
    if workspace.tracker is not None and not elsewhere and Path(Workspace(workspace.folder).database).is_file():
        raise UsageError(
            f"{workspace.folder} has its own tracker: omit --database and unset RECOVER_DATABASE, "
            "or use another --workspace"
        )


def check_readable(workspace: Workspace) -> None:
    """Raise UsageError if there is no tracker to read.

    No workspace is needed to read a shared tracker by its address, or one in a folder above the workspaces of several
    runs (``recover demo --arms``).
    """
    check_tracker(workspace)
    if workspace.tracker is None and (workspace.exists or not Path(workspace.database).is_file()):
        existing(workspace)


def open_tracker(workspace: Workspace) -> Database:
    """Open the tracker for reading; see :func:`check_readable`."""
    check_readable(workspace)
    return open_readonly(workspace.database)


def tracker_address(workspace: Workspace) -> str:
    """Return the address of the tracker without its password."""
    return describe(database_url(workspace.database))
