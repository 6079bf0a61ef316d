"""Writes to the tracker. Every call is one short transaction; a thread batches metric points."""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import URL, Connection, delete, exists, func, insert, select, update
from sqlalchemy.orm import aliased

from db import liveness
from db.background_writer import TOKEN_COUNTS, Held, StageRecorder, Writer, new_lease
from db.decisions import live_work, lock_experiment, move_latest
from db.errors import DatabaseError, StageBusyError
from db.json_values import finite, json_safe, text
from db.schema import (
    CHECKPOINT_KINDS,
    STAGE_KINDS,
    TRAINING,
    Checkpoint,
    Cycle,
    Evaluation,
    Event,
    Experiment,
    MetricPoint,
    MetricSeries,
    Sample,
    Stage,
    TokenScores,
    Work,
)
from db.session import insert_new, insert_row, open_database, open_readonly

_SAMPLES_AT_ONCE = 500


class Tracker:
    """Records experiments in a database that several processes may write to at the same time.

    ``url`` is a file path or a database URL. The database is created or upgraded first; one that is ``readonly`` must
    exist, and each write to it fails. Raises DatabaseError if that is not possible.
    """

    def __init__(
        self,
        url: str | Path | URL,
        *,
        flush_seconds: float = 0.5,
        heartbeat_seconds: float = 5.0,
        readonly: bool = False,
    ) -> None:
        self.database = open_readonly(url) if readonly else open_database(url)
        self.url = self.database.url
        self._writer = Writer(self.database, flush_seconds, heartbeat_seconds)
        self._closed = False
        atexit.register(self.close)

    def flush(self) -> None:
        """Write all pending metric points. Raises DatabaseError if that fails."""
        self._writer.flush()

    def close(self) -> None:
        """Write pending data and close the database. Also runs at exit."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        try:
            self._writer.close()
        finally:
            self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def experiment(self, name: str, *, base_model: str = "") -> int:
        """Return the id of the experiment of this name; create it if there is none."""
        values = {"name": text(name), "base_model": text(base_model), "config": {}, "created_at": time.time()}
        find = select(Experiment.id).where(Experiment.name == name)
        with self.database.writing() as connection:
            if (known := connection.scalar(find)) is not None:
                return known
            connection.execute(insert_new(connection, Experiment).values(values).on_conflict_do_nothing())
            return int(connection.scalar(find) or 0)

    def claim_experiment(self, names: Iterable[str], workspace: str, place: str, *, base_model: str = "") -> int:
        """Return the id of a new experiment of a workspace: the first of ``names`` that no other workspace has.

        Each name is taken in one transaction, so that two processes never get the same one. ``workspace`` is the
        workspace's random id and ``place`` its folder's: an experiment that was begun for this folder, and has no stage
        yet, is returned as it is, with the id it was begun with. Both are in the experiment's configuration.
        """
        for name in names:
            values = {"name": text(name), "base_model": text(base_model), "created_at": time.time()}
            values |= {"config": {"workspace": workspace, "place": place}}
            find = select(Experiment.id, Experiment.config).where(Experiment.name == text(name))
            with self.database.writing() as connection:
                made = connection.execute(insert_new(connection, Experiment).values(values).on_conflict_do_nothing())
                row = connection.execute(find).one()
                worked = connection.scalar(select(Stage.id).where(Stage.experiment_id == row.id).limit(1))
            if made.rowcount or (row.config.get("place") == place and worked is None):
                return int(row.id)
        raise ValueError("no name is left")

    def forget_experiment(self, experiment_id: int) -> bool:
        """Delete an experiment in which nothing was begun: no stage, no cycle. Return whether it was deleted."""
        begun = [select(table.id).where(table.experiment_id == experiment_id).exists() for table in (Stage, Cycle)]
        with self.database.writing() as connection:
            gone = connection.execute(delete(Experiment).where(Experiment.id == experiment_id, ~begun[0], ~begun[1]))
        return bool(gone.rowcount)

    def describe_experiment(self, experiment_id: int, config: Any) -> None:
        """Replace the stored configuration of an experiment."""
        with self.database.writing() as connection:
            changed = update(Experiment).where(Experiment.id == experiment_id).values(config=json_safe(config))
            connection.execute(changed)

    def set_base_model(self, experiment_id: int, base_model: str) -> None:
        """Replace the name of an experiment's base model: of one that was begun with another, and stopped."""
        with self.database.writing() as connection:
            changed = update(Experiment).where(Experiment.id == experiment_id).values(base_model=text(base_model))
            connection.execute(changed)

    @contextmanager
    def working(self, experiment_id: int, purpose: str) -> Iterator[None]:
        """Hold the exclusive lease to train in an experiment; ``purpose`` names the holder in messages.

        The background thread keeps the lease alive. The lease of a process that died, or sent no heartbeat for
        ``liveness.STALE_SECONDS``, is taken over. Raises StageBusyError with the holder if a live process holds it.
        """
        lease = new_lease()
        with self.database.writing() as connection:
            name, now = lock_experiment(connection, experiment_id), liveness.now(connection)
            if (held := live_work(connection, experiment_id, now)) is not None:
                raise StageBusyError(
                    f"{held.purpose} ({liveness.named(held, now)}) is training {name}: wait for it, or stop it first"
                )
            connection.execute(delete(Work).where(Work.experiment_id == experiment_id))
            values = {"experiment_id": experiment_id, "purpose": text(purpose), "lease": lease, "heartbeat_at": now}
            connection.execute(insert(Work).values(values | liveness.who()))
        self._writer.hold_work(lease, name)
        try:
            yield
        finally:
            self._writer.release_work(lease)
            with self.database.writing() as connection:
                connection.execute(delete(Work).where(Work.lease == lease))

    def cycle(
        self,
        experiment_id: int,
        number: int,
        *,
        documents: str | Path = "",
        corpus_hash: str = "",
        details: Any = None,
    ) -> int:
        """Return the id of a cycle by its number, created if there is none.

        Given documents, hash and details replace the recorded ones.
        """
        changes: dict[str, Any] = {"documents": text(documents)} if documents else {}
        changes |= {"corpus_hash": corpus_hash} if corpus_hash else {}
        changes |= {"details": json_safe(details)} if details is not None else {}
        with self.database.writing() as connection:
            lock_experiment(connection, experiment_id)
            known = connection.scalar(
                select(Cycle.id).where(Cycle.experiment_id == experiment_id, Cycle.number == number)
            )
            if known is None:
                values = {"experiment_id": experiment_id, "number": number, "created_at": time.time()}
                return insert_row(connection, Cycle, values | changes)
            if changes:
                connection.execute(update(Cycle).where(Cycle.id == known).values(changes))
            return known

    def start_stage(
        self,
        experiment_id: int,
        kind: str,
        *,
        cycle_id: int | None = None,
        config: Any = None,
        seed: int | None = None,
        versions: Any = None,
        steps_total: int | None = None,
        student_id: int | None = None,
    ) -> StageRecorder:
        """Start a stage; its status is "running" while the recorder is open and this process is alive.

        Raises StageBusyError if the stage trains and another live process already trains in the same cycle.
        """
        _require(kind, STAGE_KINDS, "a kind of stage")
        held = Held(stage_id=0, steps_total=steps_total)
        values: dict[str, Any] = {
            "experiment_id": experiment_id,
            "cycle_id": cycle_id,
            "kind": kind,
            "student_id": student_id,
            "config": json_safe(config or {}),
            "versions": json_safe(versions or {}),
            "seed": seed,
            "steps_total": steps_total,
        }
        with self.database.writing() as connection:
            lock_experiment(connection, experiment_id)
            now = liveness.now(connection)
            if cycle_id is not None and kind in TRAINING:
                _refuse_second(connection, cycle_id, now)
            held.stage_id = insert_row(connection, Stage, values | _who_runs(held, now) | {"started_at": now})
        return StageRecorder(self.database, self._writer, held, kind)

    def resume_stage(self, stage_id: int, *, from_step: int) -> StageRecorder:
        """Resume a stage from a step; metrics recorded after it are deleted, since they will be recorded again.

        The tokens of these steps are taken from the stage's counts, so that steps repeated after a kill count once.

        Raises StageBusyError while a live process runs it, DatabaseError if there is none or it is finished.
        """
        with self.database.writing() as connection:
            now = liveness.now(connection)
            query = select(Stage.__table__).where(Stage.id == stage_id).with_for_update(key_share=True)
            row = connection.execute(query).one_or_none()
            if row is None:
                raise DatabaseError(f"there is no stage {stage_id}: `recover status` lists them")
            if row.status == "finished":
                raise DatabaseError(f"stage {stage_id} is finished: there is nothing to resume")
            if row.status == "running" and not liveness.is_dead(row, now):
                raise StageBusyError(
                    f"stage {stage_id} is run by {liveness.named(row, now)}: stop it first, "
                    f"or wait {liveness.STALE_SECONDS:.0f} s if it was killed on another machine"
                )
            if row.cycle_id is not None and row.kind in TRAINING:
                _refuse_second(connection, row.cycle_id, now)
            held = Held(stage_id, wall_before=row.wall_seconds, steps_done=from_step, steps_total=row.steps_total)
            repeated = _forget_after(connection, stage_id, from_step)
            values = {name: max(0, getattr(row, name) - count) for name, count in repeated.items()}
            values |= _who_runs(held, now) | {"attempts": row.attempts + 1, "steps_done": from_step}
            values |= {"finished_at": None, "stopped": "", "error": ""}
            connection.execute(update(Stage).where(Stage.id == stage_id).values(values))
        return StageRecorder(self.database, self._writer, held, row.kind)

    def reap_dead_stages(self) -> list[int]:
        """Mark running stages whose process is gone as interrupted. Returns their ids."""
        running = select(Stage.__table__).where(Stage.status == "running")
        with self.database.writing() as connection:
            now = liveness.now(connection)
            # Locked rows are being written by the process that runs the stage, or reaped by another one.
            rows = connection.execute(running.with_for_update(skip_locked=True, key_share=True))
            dead = {row.id: row.heartbeat_at for row in rows if liveness.is_dead(row, now)}
            for stage_id, seen in dead.items():
                values = {"status": "interrupted", "stopped": "process ended", "finished_at": seen}
                connection.execute(update(Stage).where(Stage.id == stage_id).values(values))
        return list(dead)

    def add_checkpoint(
        self,
        experiment_id: int,
        name: str,
        kind: str,
        *,
        path: str | Path,
        content_hash: str = "",
        parent_id: int | None = None,
        cycle_id: int | None = None,
        stage_id: int | None = None,
        by: StageRecorder | None = None,
        tuning: str = "",
        details: Any = None,
    ) -> int:
        """Record weights under a name and return their id.

        The same weights recorded again keep their id. Other weights take over a name that is in use; if the former
        ones were evaluated, they stay in the history as NAME@HASH-ID. ``by`` is the running stage that made the
        weights: raises StageBusyError, and records nothing, if another process took the stage over.
        """
        _require(kind, CHECKPOINT_KINDS, "a kind of checkpoint")
        values = {
            "kind": kind,
            "path": text(path),
            "content_hash": content_hash,
            "parent_id": parent_id,
            "cycle_id": cycle_id,
            "stage_id": stage_id if by is None else by.id,
            "tuning": tuning,
            "details": json_safe(details or {}),
            "created_at": time.time(),
        }
        with self.database.writing() as connection:
            lock_experiment(connection, experiment_id)
            _require_held(connection, by)
            known = connection.execute(
                select(Checkpoint.id, Checkpoint.name, Checkpoint.content_hash).where(
                    Checkpoint.experiment_id == experiment_id, Checkpoint.name == name
                )
            ).one_or_none()
            if known is not None and not _rename_superseded(connection, known, content_hash):
                connection.execute(update(Checkpoint).where(Checkpoint.id == known.id).values(values))
                return int(known.id)
            values |= {"experiment_id": experiment_id, "name": text(name)}
            return insert_row(connection, Checkpoint, values)

    def join_cycle(self, checkpoint_id: int, cycle_id: int) -> None:
        """Record the cycle of a checkpoint that has none, unless another cycle was made from it."""
        child = aliased(Checkpoint)
        elsewhere = exists().where(child.parent_id == checkpoint_id, child.cycle_id != cycle_id)
        conditions = (Checkpoint.id == checkpoint_id, Checkpoint.cycle_id.is_(None), ~elsewhere)
        with self.database.writing() as connection:
            connection.execute(update(Checkpoint).where(*conditions).values(cycle_id=cycle_id))

    def describe_checkpoint(self, checkpoint_id: int, details: Any) -> None:
        """Replace the stored details of a checkpoint."""
        with self.database.writing() as connection:
            changed = update(Checkpoint).where(Checkpoint.id == checkpoint_id).values(details=json_safe(details))
            connection.execute(changed)

    def move_weights(self, experiment_id: int, old: str, new: str) -> None:
        """Record that a folder of weights has moved: of the checkpoints in it, and of the adapters on it."""
        with self.database.writing() as connection:
            lock_experiment(connection, experiment_id)
            rows = select(Checkpoint.id, Checkpoint.path, Checkpoint.details)
            for row in connection.execute(rows.where(Checkpoint.experiment_id == experiment_id)).all():
                details = row.details | ({"weights": new} if row.details.get("weights") == old else {})
                values = {"path": new if row.path == old else row.path, "details": details}
                connection.execute(update(Checkpoint).where(Checkpoint.id == row.id).values(values))

    def set_latest(self, experiment_id: int, checkpoint_id: int, *, by: StageRecorder | None = None) -> None:
        """Set ``latest``, the checkpoint the next stage starts from. ``by`` as for ``add_checkpoint``."""
        with self.database.writing() as connection:
            lock_experiment(connection, experiment_id)
            _require_held(connection, by)
            move_latest(connection, experiment_id, checkpoint_id)

    def add_evaluation(
        self,
        checkpoint_id: int,
        suite: str,
        *,
        value: float,
        stderr: float,
        n: int,
        name: str = "score",
        corpus: int | None = None,
        details: Any = None,
        items: Iterable[Any] = (),
        by: StageRecorder | None = None,
    ) -> int:
        """Record a suite's result with its items in one transaction. Returns the evaluation's id.

        ``items`` have the attributes, or keys, id, prompt, response, score, verdicts, group, extra. All evaluations
        are kept; overviews show the newest of each checkpoint, suite and corpus. ``by`` as for ``add_checkpoint``; such
        a stage records each of them once: a resumed one keeps what it recorded before it was killed.
        """
        values = {
            "checkpoint_id": checkpoint_id,
            "stage_id": None if by is None else by.id,
            "suite": suite,
            "name": name,
            "corpus": corpus,
            "value": finite(value),
            "stderr": finite(stderr),
            "n": int(n),
            "details": json_safe(details or {}),
            "created_at": time.time(),
        }
        rows = [_sample(item) for item in items]
        with self.database.writing() as connection:
            _require_held(connection, by)
            names = ("checkpoint_id", "stage_id", "suite", "name", "corpus")
            same = select(Evaluation.id).where(
                *(getattr(Evaluation, one).is_not_distinct_from(values[one]) for one in names)
            )
            if by is not None and (known := connection.scalar(same)) is not None:
                return int(known)
            evaluation = insert_row(connection, Evaluation, values)
            for start in range(0, len(rows), _SAMPLES_AT_ONCE):
                chunk = rows[start : start + _SAMPLES_AT_ONCE]
                connection.execute(insert(Sample), [row | {"evaluation_id": evaluation} for row in chunk])
        return evaluation

    def add_token_scores(self, stage_id: int, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Record rollouts with values per token: rows of {"item", "prompt", "tokens": [], "values": {}}."""
        values = [
            {
                "stage_id": stage_id,
                "step": int(step),
                "item": text(row.get("item", "")),
                "prompt": text(row.get("prompt", "")),
                "tokens": json_safe(row["tokens"]),
                "values": json_safe(row.get("values", {})),
            }
            for row in rows
        ]
        if values:
            with self.database.writing() as connection:
                connection.execute(insert(TokenScores), values)

    def event(
        self,
        experiment_id: int,
        message: str,
        *,
        kind: str = "note",
        level: str = "info",
        cycle_id: int | None = None,
        stage_id: int | None = None,
        data: Any = None,
    ) -> int:
        """Record an event with a message. Returns its id."""
        values = {"experiment_id": experiment_id, "message": text(message), "kind": kind, "level": level}
        values |= {"cycle_id": cycle_id, "stage_id": stage_id, "data": json_safe(data or {})}
        with self.database.writing() as connection:
            return insert_row(connection, Event, values | {"created_at": time.time()})


def _require(word: str, known: tuple[str, ...], what: str) -> None:
    if word not in known:
        raise DatabaseError(f"{word!r} is not {what}: use one of {', '.join(known)}")


def _who_runs(held: Held, now: float) -> dict[str, Any]:
    """Return the columns that mark a stage as run by this process."""
    return {"status": "running", "lease": held.lease, "heartbeat_at": now} | liveness.who()


def _require_held(connection: Connection, by: StageRecorder | None) -> None:
    if by is not None:
        by.require_held(connection)


def _refuse_second(connection: Connection, cycle_id: int, now: float) -> None:
    """Raise StageBusyError if another live process runs a training stage of the cycle."""
    running = select(Stage.__table__).where(
        Stage.cycle_id == cycle_id, Stage.status == "running", Stage.kind.in_(TRAINING)
    )
    for row in connection.execute(running):
        if not liveness.is_ours(row) and not liveness.is_dead(row, now):
            raise StageBusyError(
                f"stage {row.id} ({row.kind}, {liveness.named(row, now)}) is training this cycle: wait for it, or stop "
                "it first"
            )


def _forget_after(connection: Connection, stage_id: int, step: int) -> dict[str, int]:
    """Delete the metrics and token scores of a stage after a step, and update the newest point of each series.

    Returns the deleted steps' tokens, by the column that counts them.
    """
    series = select(MetricSeries.id).where(MetricSeries.stage_id == stage_id)
    counts = (
        select(MetricSeries.name, func.sum(MetricPoint.value))
        .join(MetricPoint, MetricPoint.series_id == MetricSeries.id)
        .where(MetricSeries.stage_id == stage_id, MetricSeries.name.in_(TOKEN_COUNTS), MetricPoint.step > step)
        .group_by(MetricSeries.name)
    )
    deleted = {name: int(tokens or 0) for name, tokens in connection.execute(counts)}
    connection.execute(delete(MetricPoint).where(MetricPoint.series_id.in_(series), MetricPoint.step > step))
    connection.execute(delete(TokenScores).where(TokenScores.stage_id == stage_id, TokenScores.step > step))
    for series_id in list(connection.scalars(series.where(MetricSeries.last_step > step))):
        last = connection.execute(
            select(MetricPoint.step, MetricPoint.value, MetricPoint.time)
            .where(MetricPoint.series_id == series_id)
            .order_by(MetricPoint.step.desc())
            .limit(1)
        ).one_or_none()
        if last is None:
            connection.execute(delete(MetricSeries).where(MetricSeries.id == series_id))
        else:
            values = {"last_step": last.step, "last_value": last.value, "last_time": last.time}
            connection.execute(update(MetricSeries).where(MetricSeries.id == series_id).values(values))
    return deleted


def _rename_superseded(connection: Connection, known: Any, new_hash: str) -> bool:
    """Rename evaluated weights whose name other weights take over. Returns False if the row can be reused."""
    evaluated = connection.scalar(select(Evaluation.id).where(Evaluation.checkpoint_id == known.id).limit(1))
    if known.content_hash == new_hash or evaluated is None:
        return False
    kept = f"{known.name}@{known.content_hash[:12]}-{known.id}"
    connection.execute(update(Checkpoint).where(Checkpoint.id == known.id).values(name=kept, superseded_at=time.time()))
    return True


def _sample(item: Any) -> dict[str, Any]:
    """Return a sample's columns from an object's attributes or a mapping's keys."""

    def get(name: str, default: Any = None) -> Any:
        return item.get(name, default) if isinstance(item, Mapping) else getattr(item, name, default)

    return {
        "item": text(get("id")),
        "group": text(get("group", "")),
        "prompt": text(get("prompt", "")),
        "response": text(get("response", "")),
        "score": finite(get("score")),
        "verdicts": json_safe(get("verdicts") or {}),
        "extra": json_safe(get("extra") or {}),
    }
