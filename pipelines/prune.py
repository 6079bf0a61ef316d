"""Pruning: deletes weights that are no longer needed; their records and scores stay in the tracker."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from db import queries, records
from db.schema import DISCARDED
from pipelines.cycle_plan import read_plan, unfinished
from pipelines.runtime.checkpoint_names import find
from pipelines.runtime.recorded_paths import read
from pipelines.runtime.session import Session
from recovery.config import ALL, PRUNE_POLICIES, to_json
from recovery.errors import UsageError
from recovery.models.checkpoints import CONTENT
from recovery.workspace import Checkpoint

_REMOVED_PREFIX = ".removing-"
_ALIASES = ("latest", "midtrained", "recovered", "base")


@dataclass(frozen=True)
class Removal:
    """A folder to delete: its name, policy, path and bytes."""

    name: str
    policy: str
    path: Path
    bytes: int

    @property
    def why(self) -> str:
        """The policy in words."""
        return PRUNE_POLICIES[self.policy]


def plan_prune(session: Session, policies: Iterable[str] = (ALL,)) -> list[Removal]:
    """Return what the policies would delete, largest first. Raises UsageError for an unknown policy."""
    wanted = {*policies}
    if unknown := sorted(wanted - {ALL, *PRUNE_POLICIES}):
        raise UsageError(f"there is no policy {unknown[0]!r}: use {', '.join((ALL, *PRUNE_POLICIES))}")
    if ALL in wanted:
        wanted = {*PRUNE_POLICIES}
    known, kept = session.registry.all(), _kept(session)
    # An adapter needs the weights of its base, even if that checkpoint could be deleted.
    held = {path.resolve() for c in known if c.name in kept for path in (c.path, c.weights)}
    removals = [
        Removal(checkpoint.name, policy, checkpoint.path, _size(checkpoint.path))
        for checkpoint in known
        if checkpoint.name not in kept
        and (policy := _policy(session, checkpoint)) in wanted
        and checkpoint.path.resolve() not in held
        and _is_ours(session, checkpoint.path)
    ]
    removals += _states(session) if "states" in wanted else []
    return sorted(removals + _left_over(session), key=lambda removal: -removal.bytes)


def prune(session: Session, removals: Iterable[Removal]) -> int:
    """Delete what was planned and record it; return the bytes freed.

    The record is written first, and the folder is renamed before it is deleted: if this is killed, no partial
    checkpoint is taken for a complete one, and the next call deletes the rest.
    """
    freed = 0
    by_name = {c.name: c for c in session.registry.all()}
    for removal in removals:
        if removal.name in by_name:
            _mark(session, removal)
        going = removal.path.with_name(f"{_REMOVED_PREFIX}{removal.path.name.removeprefix(_REMOVED_PREFIX)}")
        removal.path.rename(going)
        shutil.rmtree(going)
        freed += removal.bytes
        message, data = f"pruned {removal.name}: {removal.why}", {"bytes": removal.bytes, "policy": removal.policy}
        session.tracker.event(session.experiment_id, message, kind="prune", data=data)
    return freed


def _kept(session: Session) -> set[str]:
    """Return the names that no policy may delete.

    The clean model, the latest checkpoint, those of no cycle or of one without a decision, accepted ones, the start of
    every cycle that is not rejected or rolled back (a rollback returns there), and what unfinished work refers to.
    """
    known, latest = session.registry.all(), session.registry.latest()
    kept = {"base", *_referred(session)} | ({latest.name} if latest is not None else set())
    cycle_of = {c.name: c.cycle for c in known}
    for number, cycle in session.cycles().items():
        of_cycle = [c for c in known if c.cycle == number]
        if cycle.decision is None:
            kept |= {c.name for c in of_cycle}
        elif cycle.decision == "accepted":
            kept |= _accepted(session, cycle.id, number)
        if cycle.decision not in DISCARDED:
            kept |= {c.parent for c in of_cycle if c.parent is not None and cycle_of.get(c.parent) != number}
    return kept | {c.name for c in known if c.cycle is None}


def _accepted(session: Session, cycle_id: int, number: int) -> set[str]:
    """Return the checkpoint that each acceptance of a cycle names, else the last one at that time."""
    database = session.tracker.database
    rows = [c for c in queries.checkpoints(database, session.experiment_id) if c.cycle == number]
    names = set()
    for decision in queries.decisions(database, cycle_id):
        earlier = [c for c in rows if decision.decision == "accepted" and c.created_at <= decision.created_at]
        ends = [c for c in earlier if c.kind == "recovered"] or earlier
        name = decision.evidence.get("checkpoint")
        names |= {name} if earlier and name in {c.name for c in earlier} else {c.name for c in ends[-1:]}
    return names


def _referred(session: Session) -> set[str]:
    """Return the checkpoints that unfinished work starts from or names in any of its settings."""
    under_way = _under_way(session)
    configs: list[Any] = [read(stage.config, session.workspace) for stage in under_way]
    plan = read_plan(session)
    if plan is not None:  # "midtrained" means each cycle's own there, and in ``prune`` it is a policy's name
        teacher = plan.config.knowledge_teacher
        config = replace(plan.config, prune=(), knowledge_teacher=None if teacher == "midtrained" else teacher)
        configs.append(to_json(config))
    known = session.registry.all()
    words = {word for config in configs for word in _words(config)}
    named = (find(word, session.registry) for word in words if word in _ALIASES or any(c.name == word for c in known))
    folders = {Path(word).resolve() for word in words if word.startswith("/")}  # a plan keeps a folder as it was given
    students = {stage.student_id for stage in under_way}
    return {c.name for c in named if c is not None} | {
        c.name for c in known if c.id in students or c.path.resolve() in folders
    }


def _under_way(session: Session) -> list[records.Stage]:
    """Return the stages that are running, and those that `recover resume` can still continue."""
    stages = queries.stages(session.tracker.database, session.experiment_id, limit=10_000)
    return [*(stage for stage in stages if stage.status == "running"), *unfinished(session.registry)]


def _words(value: Any) -> set[str]:
    """Return every string in a configuration, and the parts of lists such as "a=0.5,b=0.5"."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",")]
        return {value, *parts, *(half.strip() for part in parts for half in part.split("="))}
    if isinstance(value, dict):
        return {word for entry in value.values() for word in _words(entry)}
    if isinstance(value, list | tuple):
        return {word for entry in value for word in _words(entry)}
    return set()


def _policy(session: Session, checkpoint: Checkpoint) -> str:
    """Return the policy that applies to a checkpoint, "" if none."""
    cycle = session.cycles().get(checkpoint.cycle or 0)
    if cycle is None or cycle.decision is None:
        return ""
    if cycle.decision in DISCARDED:
        return "rejected"
    return "midtrained" if checkpoint.kind == "midtrained" else "replaced"


def _left_over(session: Session) -> list[Removal]:
    """Return the renamed folders that a killed prune left."""
    home = session.workspace.folder
    renamed = (*(home / "checkpoints").rglob(f"{_REMOVED_PREFIX}*"), *(home / "stages").glob(f"*/{_REMOVED_PREFIX}*"))
    return [Removal(str(path.relative_to(home)), "interrupted", path, _size(path)) for path in renamed if path.is_dir()]


def _states(session: Session) -> list[Removal]:
    stages = queries.stages(session.tracker.database, session.experiment_id, limit=10_000)
    needed = {stage.id for stage in _under_way(session)}
    done = [stage for stage in stages if stage.id not in needed]
    folders = ((s, session.workspace.stage(s.id, s.kind) / "states") for s in done)
    return [Removal(f"stage {s.id} ({s.kind})", "states", f, _size(f)) for s, f in folders if f.is_dir() and _size(f)]


def _mark(session: Session, removal: Removal) -> None:
    """Record in the tracker that the weights are deleted; the row keeps its name, hash, parent and scores."""
    rows = queries.checkpoints(session.tracker.database, session.experiment_id)
    row = next(row for row in rows if row.name == removal.name)
    today = time.strftime("%Y-%m-%d", time.gmtime())
    session.tracker.describe_checkpoint(row.id, dict(row.details) | {"pruned": today})


def _is_ours(session: Session, path: Path) -> bool:
    """Whether ``path`` is in the workspace's checkpoints and has weights."""
    home = (session.workspace.folder / "checkpoints").resolve()
    return path.resolve().is_relative_to(home) and any(next(path.glob(pattern), None) for pattern in CONTENT)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
