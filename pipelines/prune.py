"""Prune: weights that no decision needs any more are removed; what they were and what they scored stays on record."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from db import queries
from pipelines.cycle import STOPPED, read_plan
from pipelines.session import Session
from recovery.checkpoints import CONTENT
from recovery.errors import UsageError
from recovery.workspace import Checkpoint

# What may be removed, and why it is not needed. A cycle that nobody decided about is never touched.
POLICIES = {
    "rejected": "of a cycle that was rejected or rolled back",
    "midtrained": "the mid-trained model of an accepted cycle",
    "replaced": "replaced by a later one of the same cycle",
    "states": "training states of a stage that is done",
}
_LEFT = ("rejected", "rolled_back")
_UNDER_WAY = (*STOPPED, "running")


@dataclass(frozen=True)
class Removal:
    """A folder that would go: what it is, why, how many bytes it holds."""

    name: str
    policy: str
    path: Path
    bytes: int

    @property
    def why(self) -> str:
        """The policy in words."""
        return POLICIES[self.policy]


def plan_prune(session: Session, policies: Iterable[str] = tuple(POLICIES)) -> list[Removal]:
    """What the policies would remove, largest first. Raises UsageError for a policy there is not."""
    wanted = list(dict.fromkeys(policies))
    if unknown := [name for name in wanted if name not in POLICIES]:
        raise UsageError(f"there is no policy {unknown[0]!r}: use {', '.join(POLICIES)}")
    kept = _kept(session)
    held = {c.path.resolve() for c in session.registry.all() if c.name in kept}
    found = [
        Removal(checkpoint.name, policy, checkpoint.path, _size(checkpoint.path))
        for checkpoint in session.registry.all()
        if checkpoint.name not in kept
        and (policy := _policy(session, checkpoint)) in wanted
        and checkpoint.path.resolve() not in held
        and _is_ours(session, checkpoint.path)
    ]
    found += _states(session) if "states" in wanted else []
    return sorted(found, key=lambda removal: -removal.bytes)


def prune(session: Session, removals: Iterable[Removal]) -> int:
    """Remove what was planned and record it; returns the bytes freed. A folder disappears whole or not at all."""
    freed = 0
    by_name = {c.name: c for c in session.registry.all()}
    for removal in removals:
        going = removal.path.with_name(f".removing-{removal.path.name}")
        removal.path.rename(going)
        if removal.name in by_name:
            _mark(session, removal)
        shutil.rmtree(going)
        freed += removal.bytes
        session.tracker.event(
            session.experiment_id,
            f"pruned {removal.name}: {removal.why}",
            kind="prune",
            data={"bytes": removal.bytes, "policy": removal.policy},
        )
    return freed


def _kept(session: Session) -> set[str]:
    """Names that no policy may touch: base, latest, ends of accepted cycles, undecided cycles, what is referred to."""
    decisions = {number: cycle.decision for number, cycle in session.cycles().items()}
    kept = {"base", *_referred(session)}
    latest = session.registry.latest()
    kept |= {latest.name} if latest is not None else set()
    for checkpoint in session.registry.all():
        if checkpoint.cycle is None:
            kept.add(checkpoint.name)
            continue
        decision, replaced = decisions.get(checkpoint.cycle), _is_replaced(session, checkpoint)
        ends_it = decision == "accepted" and checkpoint.name == _end(session, checkpoint.cycle)
        if ends_it or (decision is None and not replaced):
            kept.add(checkpoint.name)
    return kept


def _referred(session: Session) -> set[str]:
    """Checkpoints that unfinished work names in its settings, whatever the setting is called."""
    stages = queries.stages(session.tracker.database, session.experiment_id, limit=10_000)
    configs: list[Any] = [stage.config for stage in stages if stage.status in _UNDER_WAY]
    plan = read_plan(session)
    if plan is not None:  # its next parts start from these
        configs.append([c.name for c in session.registry.all() if (c.cycle or 0) >= plan.first])
    names = {c.name for c in session.registry.all()}
    return {word for config in configs for word in _words(config)} & names


def _words(value: Any) -> set[str]:
    """Every text in a configuration, and the parts of lists such as "a=0.5,b=0.5"."""
    if isinstance(value, str):
        return {value, *(part.rpartition("=")[0].strip() or part.strip() for part in value.split(","))} | {
            value.partition("=")[2]
        }
    if isinstance(value, dict):
        return {word for entry in value.values() for word in _words(entry)}
    if isinstance(value, list | tuple):
        return {word for entry in value for word in _words(entry)}
    return set()


def _policy(session: Session, checkpoint: Checkpoint) -> str:
    """The policy that a checkpoint falls under; "" where none does."""
    cycle = session.cycles().get(checkpoint.cycle or 0)
    if cycle is not None and cycle.decision in _LEFT:
        return "rejected"
    if _is_replaced(session, checkpoint):
        return "replaced"
    return "midtrained" if checkpoint.kind == "midtrained" and cycle and cycle.decision == "accepted" else ""


def _is_replaced(session: Session, checkpoint: Checkpoint) -> bool:
    """Whether a later recovered checkpoint of the same cycle took this one's place."""
    mine = [c.name for c in session.registry.all() if c.cycle == checkpoint.cycle and c.kind == "recovered"]
    return checkpoint.kind == "recovered" and checkpoint.cycle is not None and checkpoint.name != mine[-1]


def _end(session: Session, cycle: int) -> str:
    """The name of the checkpoint that a cycle ended with."""
    mine = [c for c in session.registry.all() if c.cycle == cycle]
    ends = [c for c in mine if c.kind == "recovered"] or mine
    return ends[-1].name


def _states(session: Session) -> list[Removal]:
    stages = queries.stages(session.tracker.database, session.experiment_id, limit=10_000)
    done = [stage for stage in stages if stage.status == "finished"]
    folders = ((s, session.workspace.stage(s.id, s.kind) / "states") for s in done)
    return [Removal(f"stage {s.id} ({s.kind})", "states", f, _size(f)) for s, f in folders if f.is_dir() and _size(f)]


def _mark(session: Session, removal: Removal) -> None:
    """Say in the tracker that the weights are gone; the row keeps its name, hash, parent and scores."""
    rows = queries.checkpoints(session.tracker.database, session.experiment_id)
    row = next(row for row in rows if row.name == removal.name)
    session.tracker.describe_checkpoint(row.id, dict(row.details) | {"pruned": time.strftime("%Y-%m-%d")})


def _is_ours(session: Session, path: Path) -> bool:
    """Inside the workspace's own checkpoints, and still there with weights."""
    home = (session.workspace.folder / "checkpoints").resolve()
    return path.resolve().is_relative_to(home) and any(next(path.glob(pattern), None) for pattern in CONTENT)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
