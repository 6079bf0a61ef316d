"""Decisions about cycles: each adds a row and updates ``latest`` in one transaction."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, select

from db import liveness
from db.errors import DatabaseError
from db.json_values import json_safe, text
from db.queries import end_of, is_trial
from db.records import NO_DECISION
from db.schema import DECISIONS, DISCARDED, TRAINING, Checkpoint, Cycle, Decision, Experiment, Latest, Stage, Work
from db.session import Database, insert_new, insert_row


@dataclass(frozen=True)
class Decided:
    """Result of a decision: the names of ``latest`` before and after, the later cycles rolled back with it, and the
    other decision that it replaces, as in "accepted by Ada".
    """

    id: int
    cycle: int
    decision: str
    before: str | None
    after: str | None
    also: tuple[int, ...] = ()
    replaced: str = ""

    @property
    def moved(self) -> bool:
        """Whether ``latest`` changed."""
        return self.before != self.after


def decide(
    database: Database,
    cycle_id: int,
    decision: str,
    *,
    who: str,
    why: str = "",
    evidence: Any = None,
    seen: int | None = None,
) -> Decided:
    """Record a decision: "accepted", "rejected" or "rolled_back"; weights are never changed.

    Accepted: the cycle's last checkpoint becomes ``latest``, unless ``latest`` already descends from it. Rejected: if
    ``latest`` belongs to this cycle, it returns to the checkpoint the cycle started from. Rolled back: the same for
    this cycle and every later one that builds on it; those are recorded as rolled back too. ``seen`` is the id of the
    newest decision about the cycle that the reviewer knows of, 0 for none: after a newer one nothing is recorded. With
    None that is not checked.

    Raises DatabaseError if there is a decision that was not seen, if a cycle to be accepted is a trial or has no
    checkpoint, or if the weights of the new ``latest`` were pruned. So it does if the decision contradicts those about
    other cycles: later ones build on a cycle to be rejected, or were made without a cycle to be accepted, or that one
    builds on a discarded cycle. So it does while a stage is training or another process holds the experiment. But
    accepting a cycle that is part of ``latest`` moves nothing: only a stage of that cycle in training prevents it.
    """
    if decision not in DECISIONS:
        raise DatabaseError(f"{decision!r} is not a decision: use one of {', '.join(DECISIONS)}")
    if why_not := _why_trial(database, cycle_id, decision):
        raise DatabaseError(why_not)
    with database.writing() as connection:
        history = _History.read(connection, cycle_id)
        if seen is not None and history.decision_id != seen:
            raise DatabaseError(
                f"another decision about cycle {history.cycle.number} was recorded meanwhile: reload the page"
            )
        target, rolled_back = _target(connection, history, decision)
        row = {"who": text(who), "why": text(why), "evidence": json_safe(evidence or {}), "created_at": time.time()}
        key = insert_row(connection, Decision, row | {"cycle_id": cycle_id, "decision": decision})
        for later in rolled_back:
            reason = f"went on from cycle {history.cycle.number}, which was rolled back: {why}".rstrip(": ")
            later_row = {"cycle_id": history.cycles[later], "decision": decision, "why": text(reason)}
            insert_row(connection, Decision, row | later_row)
        if target is not None:
            move_latest(connection, history.cycle.experiment_id, target.id)
    before = history.latest.name if history.latest is not None else None
    after = target.name if target is not None else before
    replaced = "" if history.decision_text.startswith(f"{decision} ") else history.decision_text.replace("_", " ", 1)
    return Decided(key, history.cycle.number, decision, before, after, rolled_back, replaced)


def refusals(database: Database, cycle_id: int) -> dict[str, str]:
    """Return why :func:`decide` would refuse each decision about a cycle now, "" for one that it would record."""
    reasons = {word: why_not for word in DECISIONS if (why_not := _why_trial(database, cycle_id, word))}
    with database.reading() as connection:
        history = _History.read(connection, cycle_id, lock=False)
        for decision in [word for word in DECISIONS if word not in reasons]:
            try:
                _target(connection, history, decision)
                reasons[decision] = ""
            except DatabaseError as error:
                reasons[decision] = str(error)
    return reasons


def _why_trial(database: Database, cycle_id: int, decision: str) -> str:
    """Return why a cycle cannot be accepted if it is a trial, else "": it saw a small part of its documents."""
    with database.reading() as connection:
        row = connection.execute(select(Cycle.number, Cycle.experiment_id).where(Cycle.id == cycle_id)).one_or_none()
    if row is None or decision != "accepted" or not is_trial(database, row.experiment_id, cycle_id):
        return ""
    return f"cycle {row.number} is {NO_DECISION} to accept it"


def _target(connection: Connection, history: _History, decision: str) -> _Move:
    """Return the new ``latest``, None if it stays, and the later cycles that are rolled back with the cycle."""
    target, also = {"accepted": _accept, "rejected": _reject, "rolled_back": _roll_back}[decision](history)
    if target is not None and target.details.get("pruned"):
        raise DatabaseError(
            f"the weights of {target.name} were pruned on {target.details['pruned']}: training cannot continue from it"
        )
    # The end of a running stage would make its checkpoint the latest, although the cycle was rejected.
    if target is not None or decision in DISCARDED:
        _require_idle(connection, history.cycle.experiment_id)
    else:
        _require_no_training(connection, Stage.cycle_id == history.cycle.id)  # it would change the accepted model
    return target, also


@dataclass(frozen=True)
class _History:
    """The experiment of a cycle: its checkpoints by id, its cycles by number, and ``latest``."""

    cycle: Any
    cycles: Mapping[int, int]
    checkpoints: Mapping[int, Any]
    latest: Any
    discarded: Mapping[int, str]  # the newest decision of each rejected or rolled-back cycle, by the cycle's id
    decision_id: int  # of the newest decision about the cycle, 0 if there is none
    decision_text: str  # that decision and who decided

    @classmethod
    def read(cls, connection: Connection, cycle_id: int, *, lock: bool = True) -> _History:
        """Read it inside the transaction, with a ``lock`` so that no other process moves ``latest`` in between."""
        cycle = connection.execute(select(Cycle.__table__).where(Cycle.id == cycle_id)).one_or_none()
        if cycle is None:
            raise DatabaseError(f"there is no cycle with the id {cycle_id}")
        if lock:
            lock_experiment(connection, cycle.experiment_id)
        condition = Checkpoint.experiment_id == cycle.experiment_id
        rows = connection.execute(select(Checkpoint.__table__).where(condition).order_by(Checkpoint.id))
        checkpoints = {row.id: row for row in rows}
        numbers = connection.execute(
            select(Cycle.number, Cycle.id).where(Cycle.experiment_id == cycle.experiment_id).order_by(Cycle.number)
        )
        latest = connection.scalar(select(Latest.checkpoint_id).where(Latest.experiment_id == cycle.experiment_id))
        cycles = {row.number: row.id for row in numbers}
        decisions = connection.execute(
            select(Decision.id, Decision.cycle_id, Decision.decision, Decision.who)
            .where(Decision.cycle_id.in_(cycles.values()))
            .order_by(Decision.id)
        )
        newest = {row.cycle_id: row for row in decisions}
        discarded = {key: row.decision for key, row in newest.items() if row.decision in DISCARDED}
        last = newest.get(cycle_id)
        decided, decision_text = (last.id, f"{last.decision} by {last.who}") if last is not None else (0, "")
        return cls(cycle, cycles, checkpoints, checkpoints.get(latest or 0), discarded, decided, decision_text)

    @property
    def end(self) -> Any:
        """The cycle's last checkpoint, as :func:`~db.queries.end_of` has it."""
        return end_of(self.checkpoints, self.cycle.id, self.discarded)

    @property
    def start(self) -> Any:
        """The checkpoint the cycle started from: the first parent that belongs to another cycle.

        A cycle with an external student started from the end of the last cycle that was kept, or from base.
        """
        own_checkpoints = [row for row in self.checkpoints.values() if row.cycle_id == self.cycle.id]
        if any(row.kind == "external" for row in own_checkpoints):
            before = [key for number, key in self.cycles.items() if number < self.cycle.number]
            kept = (key for key in reversed(before) if key not in self.discarded)
            ends = (end_of(self.checkpoints, key, self.discarded) for key in kept)
            base = (row for row in self.checkpoints.values() if row.kind == "base")
            return next((end for end in ends if end is not None), next(base, None))
        parents = (self.checkpoints.get(row.parent_id or 0) for row in own_checkpoints)
        return next((parent for parent in parents if parent is not None and parent.cycle_id != self.cycle.id), None)

    def lineage(self, checkpoint: Any) -> dict[int, Any]:
        """Return a checkpoint and its ancestors by id, newest first."""
        ancestry: dict[int, Any] = {}
        while checkpoint is not None and checkpoint.id not in ancestry:
            ancestry[checkpoint.id] = checkpoint
            checkpoint = self.checkpoints.get(checkpoint.parent_id or 0)
        return ancestry

    def cycles_of(self, checkpoint: Any) -> set[int]:
        """Return the ids of the cycles in a checkpoint's ancestry."""
        return {row.cycle_id for row in self.lineage(checkpoint).values() if row.cycle_id is not None}

    def later(self) -> tuple[int, ...]:
        """Return the numbers of the later cycles in the ancestry of ``latest``."""
        through = self.cycles_of(self.latest)
        return tuple(n for n, key in self.cycles.items() if key in through and n > self.cycle.number)


def _require_idle(connection: Connection, experiment_id: int) -> None:
    """Raise DatabaseError while a stage trains, or another process holds the experiment, even between two stages.

    The process that holds the experiment may decide by its own gate.
    """
    now = liveness.now(connection)
    _require_no_training(connection, Stage.experiment_id == experiment_id)
    held = live_work(connection, experiment_id, now)
    if held is not None and not liveness.is_ours(held):
        raise DatabaseError(
            f"{held.purpose} ({liveness.named(held, now)}) is training this experiment and moves the latest: wait for "
            "it, or stop it first"
        )


def _require_no_training(connection: Connection, which: ColumnElement[bool]) -> None:
    """Raise DatabaseError while one of some stages trains."""
    now = liveness.now(connection)
    training = select(Stage.__table__).where(which, Stage.status == "running", Stage.kind.in_(TRAINING))
    for stage in connection.execute(training):
        if not liveness.is_dead(stage, now):
            raise DatabaseError(
                f"stage {stage.id} ({stage.kind}) is training and will become the latest: wait for it, or stop it first"
            )


_Move = tuple[Any, tuple[int, ...]]


def _accept(history: _History) -> _Move:
    end, latest = history.end, history.latest
    if end is None:
        raise DatabaseError(f"cycle {history.cycle.number} has no checkpoint yet: there is nothing to accept")
    if latest is None:
        return end, ()
    if end.id in history.lineage(latest):
        return None, ()
    # A cycle that builds on a discarded one would bring its documents back into `latest`.
    discarded = (history.cycles_of(history.end) - {history.cycle.id}) & history.discarded.keys()
    earlier = next((number for number, key in history.cycles.items() if key in discarded), None)
    if earlier is not None:
        was = history.discarded[history.cycles[earlier]].replace("_", " ")
        raise DatabaseError(
            f"cycle {history.cycle.number} builds on cycle {earlier}, which was {was}: accept cycle {earlier} first"
        )
    if latest.id not in history.lineage(end):
        raise DatabaseError(
            f"{latest.name}, the latest, does not build on {end.name}: roll its cycle back first, or leave cycle "
            f"{history.cycle.number} out"
        )
    return end, ()


def _reject(history: _History) -> _Move:
    if history.latest is None or history.cycle.id not in history.cycles_of(history.latest):
        return None, ()
    if later := history.later():
        raise DatabaseError(
            f"cycle {', '.join(map(str, later))} builds on cycle {history.cycle.number}: roll it back instead "
            f"(recover rollback {history.cycle.number}), together with the cycles that build on it"
        )
    return history.start, ()


def _roll_back(history: _History) -> _Move:
    if history.latest is None or history.cycle.id not in history.cycles_of(history.latest):
        where = "there is none yet" if history.latest is None else f"{history.latest.name} does not build on it"
        raise DatabaseError(f"cycle {history.cycle.number} is not in the latest checkpoint ({where}): nothing to undo")
    return history.start, history.later()


def lock_experiment(connection: Connection, experiment_id: int) -> str:
    """Block other writers of an experiment until this transaction ends. Returns the experiment's name.

    On PostgreSQL this is a row lock that blocks neither readers nor inserts of rows that refer to it; a SQLite write
    transaction is exclusive anyway. Raises DatabaseError if there is no such experiment.
    """
    row = select(Experiment.name).where(Experiment.id == experiment_id).with_for_update(key_share=True)
    name = connection.scalar(row)
    if name is None:
        raise DatabaseError(f"there is no experiment with the id {experiment_id}")
    return str(name)


def live_work(connection: Connection, experiment_id: int, now: float) -> Any:
    """Return the row of the live process that trains in an experiment, or None; ``now`` is :func:`liveness.now`."""
    row = connection.execute(select(Work.__table__).where(Work.experiment_id == experiment_id)).one_or_none()
    return None if row is None or liveness.is_dead(row, now) else row


def move_latest(connection: Connection, experiment_id: int, checkpoint_id: int) -> None:
    """Set ``latest``, the checkpoint the next stage starts from."""
    values = {"checkpoint_id": checkpoint_id, "updated_at": time.time()}
    statement = insert_new(connection, Latest).values(values | {"experiment_id": experiment_id})
    connection.execute(statement.on_conflict_do_update(index_elements=["experiment_id"], set_=values))
