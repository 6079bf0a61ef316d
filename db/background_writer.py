"""What a running stage writes into the tracker: a queue that a thread empties, and the recorder of one stage."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, bindparam, case, select, update

from db import liveness
from db.errors import DatabaseError, StageBusyError
from db.json_values import finite, json_safe, text
from db.schema import MetricPoint, MetricSeries, Stage, Work
from db.session import Database, insert_new, insert_row

TOKEN_COUNTS = ("tokens_sampled", "tokens_scored", "tokens_trained")
"""Metrics of a step that are also summed in columns of the stage."""
_FAILURES_TOLERATED = 3

Point = tuple[str, int, float | None, float]  # name, step, value, time


def new_lease() -> str:
    """Return a random token known to this process only; it authorises writes to the row that stores it."""
    return uuid.uuid4().hex


@dataclass
class Batch:
    """Data of a stage that is not written yet."""

    points: list[Point] = field(default_factory=list)
    usage: Counter[str] = field(default_factory=Counter)


@dataclass
class Held:
    """A stage that this process runs: its lease and its pending data."""

    stage_id: int
    lease: str = field(default_factory=new_lease)
    wall_before: float = 0.0
    began: float = field(default_factory=time.monotonic)
    steps_done: int = 0
    steps_total: int | None = None
    peak_memory_bytes: int = 0
    lost: bool = False
    pending: Batch = field(default_factory=Batch)
    series: dict[str, int] = field(default_factory=dict)

    @property
    def wall_seconds(self) -> float:
        """Seconds spent on the stage over all attempts."""
        return self.wall_before + time.monotonic() - self.began


class Writer:
    """Buffers the data of held stages; writes it every ``flush_seconds``, heartbeats every ``heartbeat_seconds``."""

    def __init__(self, database: Database, flush_seconds: float, heartbeat_seconds: float) -> None:
        self._database = database
        self._flush_seconds = flush_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._held: dict[int, Held] = {}
        self._work: dict[str, str] = {}  # names of the experiments this process trains in, by lease
        self._work_lost = ""
        self._buffer = threading.Lock()  # guards _held, _work and every Held.pending; never held while writing
        self._io = threading.Lock()  # one write at a time, so that points stay in order
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._beat_at = 0.0
        self._failures = 0
        self._error: DatabaseError | None = None

    def hold(self, held: Held) -> None:
        """Start the heartbeats of a stage."""
        with self._buffer:
            self._held[held.stage_id] = held
        self._start()

    def hold_work(self, lease: str, name: str) -> None:
        """Start the heartbeats of the lease on an experiment called ``name``."""
        with self._buffer:
            self._work[lease] = name
        self._start()

    def release_work(self, lease: str) -> None:
        """Stop the heartbeats of a lease."""
        with self._io, self._buffer:
            self._work.pop(lease, None)

    def release(self, held: Held) -> None:
        """Write the pending data of a stage and stop its heartbeats."""
        self.flush()
        with self._buffer:
            self._held.pop(held.stage_id, None)
        self._check(held)

    def require(self, connection: Connection, held: Held) -> None:
        """Raise StageBusyError unless this process still holds the stage and its leases on experiments.

        The rows are locked until the transaction ends.
        """
        with self._buffer:
            work = dict(self._work)
        row_of_stage = select(Stage.id).where(Stage.id == held.stage_id, Stage.lease == held.lease)
        held.lost = held.lost or connection.scalar(row_of_stage.with_for_update(key_share=True)) is None
        leases = select(Work.lease).where(Work.lease.in_(work)).with_for_update(key_share=True)
        kept = set(connection.scalars(leases)) if work else set()
        self._work_lost = self._work_lost or next((name for lease, name in work.items() if lease not in kept), "")
        self._check(held)

    def log(self, held: Held, step: int, metrics: Mapping[str, Any], usage: Mapping[str, int]) -> None:
        """Buffer points and the usage they are written with.

        Raises DatabaseError if writing fails repeatedly, StageBusyError if taken over.
        """
        self._check(held)
        if self._failures >= _FAILURES_TOLERATED and self._error is not None:
            raise self._error
        now = time.time()
        points = [(name, int(step), finite(value), now) for name, value in metrics.items()]
        with self._buffer:
            held.pending.points.extend(points)
            held.pending.usage.update(usage)
            held.steps_done = int(step)

    def use(self, held: Held, usage: Mapping[str, int]) -> None:
        """Add to the resources a stage has used."""
        with self._buffer:
            held.pending.usage.update(usage)

    def flush(self, *, beat: bool = True) -> None:
        """Write all pending data. Raises DatabaseError and keeps the data for the next attempt if that fails."""
        with self._io:
            with self._buffer:
                work = dict(self._work)
                batches = [(held, held.pending) for held in self._held.values() if not held.lost]
                for held, _ in batches:
                    held.pending = Batch()
            if not (work or batches) or not (beat or any(batch.points or batch.usage for _, batch in batches)):
                return
            try:
                self._write(batches, work)
            except DatabaseError as error:
                with self._buffer:
                    for held, batch in batches:
                        held.pending.points[:0] = batch.points
                        held.pending.usage.update(batch.usage)
                self._failures, self._error = self._failures + 1, error
                raise
            self._failures, self._error, self._beat_at = 0, None, time.monotonic()

    def close(self) -> None:
        """Stop the thread, then write the pending data."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tracker-writer", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._closing.wait(self._flush_seconds):
            try:
                self.flush(beat=time.monotonic() - self._beat_at >= self._heartbeat_seconds)
            except DatabaseError:
                continue  # stored in _error: log() and flush() raise it

    def _check(self, held: Held) -> None:
        if held.lost:
            raise StageBusyError(f"stage {held.stage_id} was taken over by another process: this one must stop")
        if self._work_lost:
            raise StageBusyError(
                f"another process took {self._work_lost} over while this one sent no heartbeat: this one must stop"
            )

    def _write(self, batches: list[tuple[Held, Batch]], work: Mapping[str, str]) -> None:
        """Write all stages in one transaction, except those that lost their lease."""
        new_series: dict[int, dict[str, int]] = {}
        with self._database.writing() as connection:
            now = liveness.now(connection)
            leases = [held.lease for held, _ in batches]
            # Locked in a fixed order until the points are written, so that no stage is taken over in between.
            query = select(Stage.id).where(Stage.lease.in_(leases)).order_by(Stage.id).with_for_update(key_share=True)
            kept = set(connection.scalars(query))
            for held, batch in batches:
                held.lost = held.stage_id not in kept
                if not held.lost:
                    new_series[held.stage_id] = _write_points(connection, held, batch.points)
                    _write_stage(connection, held, batch.usage, now)
            # The heartbeats of leases on experiments; those that match no row are held by another process now.
            heartbeats = (
                connection.execute(update(Work).where(Work.lease == lease).values(heartbeat_at=now)) for lease in work
            )
            lost = [lease for lease, done in zip(work, heartbeats, strict=True) if not done.rowcount]
        for held, _ in batches:
            held.series.update(new_series.get(held.stage_id, {}))
        self._work_lost = self._work_lost or next((work[lease] for lease in lost), "")


def _write_points(connection: Connection, held: Held, points: list[Point]) -> dict[str, int]:
    """Insert points; a newer value replaces an older one of the same step. Returns the ids of new series."""
    if not points:
        return {}
    newest: dict[str, Point] = {}
    for point in points:
        if point[0] not in newest or point[1] >= newest[point[0]][1]:
            newest[point[0]] = point
    new_series = _find_series(connection, held, newest)
    ids = held.series | new_series
    rows = {(ids[name], step): (value, at) for name, step, value, at in points}
    statement = insert_new(connection, MetricPoint)
    statement = statement.on_conflict_do_update(
        index_elements=["series_id", "step"], set_={"value": statement.excluded.value, "time": statement.excluded.time}
    )
    connection.execute(
        statement,
        [{"series_id": key[0], "step": key[1], "value": value, "time": at} for key, (value, at) in rows.items()],
    )
    connection.execute(
        update(MetricSeries)
        .where(MetricSeries.id == bindparam("series"), MetricSeries.last_step <= bindparam("step"))
        .values(last_step=bindparam("step"), last_value=bindparam("value"), last_time=bindparam("at")),
        [{"series": ids[name], "step": step, "value": value, "at": at} for name, step, value, at in newest.values()],
    )
    return new_series


def _find_series(connection: Connection, held: Held, newest: Mapping[str, Point]) -> dict[str, int]:
    """Return the ids of series that ``held`` does not know yet; missing series are created."""
    missing = [name for name in newest if name not in held.series]
    if not missing:
        return {}
    rows = connection.execute(
        select(MetricSeries.name, MetricSeries.id).where(
            MetricSeries.stage_id == held.stage_id, MetricSeries.name.in_(missing)
        )
    )
    ids = {str(name): int(number) for name, number in rows}
    for name in missing:
        if name not in ids:
            _, step, value, at = newest[name]
            row = {"last_step": step, "last_value": value, "last_time": at}
            ids[name] = insert_row(connection, MetricSeries, row | {"stage_id": held.stage_id, "name": name})
    return ids


def _write_stage(connection: Connection, held: Held, usage: Mapping[str, int], now: float) -> None:
    """Write a stage's heartbeat, its progress and the resources used since the last write.

    The status is set too: a stage considered dead while the machine was suspended is running again.
    """
    peak = held.peak_memory_bytes
    values: dict[str, Any] = {
        "status": "running",
        "finished_at": None,
        "heartbeat_at": now,
        "wall_seconds": held.wall_seconds,
        "steps_done": held.steps_done,
        "peak_memory_bytes": case((Stage.peak_memory_bytes < peak, peak), else_=Stage.peak_memory_bytes),
    }
    if held.steps_total is not None:
        values["steps_total"] = held.steps_total
    values |= {name: getattr(Stage, name) + amount for name, amount in usage.items()}
    connection.execute(update(Stage).where(Stage.id == held.stage_id).values(values))


class StageRecorder:
    """Records a stage from its start, or resumption, to its end; created by ``Tracker``.

    The stage has the status "running" while this object is open and its process is alive. As a context manager it
    ends the stage: finished, interrupted on KeyboardInterrupt and SystemExit, failed on any other exception.
    """

    def __init__(self, database: Database, writer: Writer, held: Held, kind: str) -> None:
        self._database = database
        self._writer = writer
        self._held = held
        self._open = True
        self.id = held.stage_id
        self.kind = kind
        writer.hold(held)

    def log(self, step: int, metrics: Mapping[str, Any], tokens: Mapping[str, int] | None = None) -> None:
        """Record metrics of a step; a background thread writes them within half a second.

        ``tokens`` (see ``TOKEN_COUNTS``) are added to the stage's usage in the same transaction: a resumed stage takes
        the counts of the steps it repeats from it.
        Raises StageBusyError if another process took the stage over, DatabaseError if writing fails repeatedly.
        """
        self._writer.log(self._held, step, metrics, tokens or {})

    def progress(self, done: int, total: int | None = None) -> None:
        """Record the progress of a stage without metrics (for an evaluation: items done and their total)."""
        self._held.steps_done = int(done)
        if total is not None:
            self._held.steps_total = int(total)

    def usage(self, *, peak_memory_bytes: int = 0, **tokens: int) -> None:
        """Add to the resources the stage has used, ``tokens`` as for :meth:`log`; for memory the maximum is kept."""
        self._held.peak_memory_bytes = max(self._held.peak_memory_bytes, int(peak_memory_bytes))
        self._writer.use(self._held, tokens)

    def require_held(self, connection: Connection) -> None:
        """Raise StageBusyError unless this process holds the stage until the transaction ends."""
        self._writer.require(connection, self._held)

    def describe(self, *, details: Any = None, steps_total: int | None = None, folder: Any = None) -> None:
        """Set columns that were not known when the stage started; None leaves a column unchanged.

        Raises StageBusyError if another process took the stage over.
        """
        values = {} if details is None else {"details": json_safe(details)}
        if steps_total is not None:
            self._held.steps_total = values["steps_total"] = int(steps_total)
        if folder is not None:
            values["folder"] = text(folder)
        if values:
            with self._database.writing() as connection:
                self.require_held(connection)
                connection.execute(update(Stage).where(Stage.id == self.id).values(values))

    def finish(self, stopped: str = "finished", details: Any = None) -> None:
        """End the stage as finished; ``stopped`` is the stop reason ("recovered", "plateau" ...)."""
        values = {"status": "finished", "stopped": text(stopped)}
        self._end(values if details is None else values | {"details": json_safe(details)})

    def interrupt(self, reason: str = "") -> None:
        """End the stage as interrupted; it can be resumed."""
        self._end({"status": "interrupted", "stopped": text(reason) or "interrupted"})

    def fail(self, error: str) -> None:
        """End the stage as failed, with an error message."""
        self._end({"status": "failed", "stopped": "failed", "error": text(error)})

    def _end(self, values: dict[str, Any]) -> None:
        """Write pending data, then release the lease. Does nothing if the stage has ended already."""
        if not self._open:
            return
        self._open = False
        self._writer.release(self._held)
        values |= {"wall_seconds": self._held.wall_seconds, "lease": None}
        with self._database.writing() as connection:
            values["finished_at"] = liveness.now(connection)
            ended = connection.execute(
                update(Stage).where(Stage.id == self.id, Stage.lease == self._held.lease).values(values)
            )
        if not ended.rowcount:
            raise StageBusyError(f"stage {self.id} was taken over by another process: its end is not recorded")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        elif isinstance(error, (KeyboardInterrupt, SystemExit)):
            self.interrupt()
        else:
            self.fail(str(error) or type(error).__name__)
