"""Recorder of one running stage: metrics, progress, usage and status."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, update

from db import liveness
from db.background_writer import Held, Writer
from db.errors import StageBusyError
from db.json_values import json_safe, text
from db.schema import Stage
from db.session import Database

# Metrics of a step that are also summed in columns of the stage.
TOKEN_COUNTS = ("tokens_sampled", "tokens_scored", "tokens_trained")


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

    def usage(
        self,
        *,
        tokens_sampled: int = 0,
        tokens_scored: int = 0,
        tokens_trained: int = 0,
        seconds: float = 0.0,
        peak_memory_bytes: int = 0,
    ) -> None:
        """Add to the resources the stage has used; for memory the maximum is kept."""
        amounts = {
            "tokens_sampled": int(tokens_sampled),
            "tokens_scored": int(tokens_scored),
            "tokens_trained": int(tokens_trained),
            "seconds_used": float(seconds),
        }
        self._held.peak_memory_bytes = max(self._held.peak_memory_bytes, int(peak_memory_bytes))
        self._writer.use(self._held, {name: amount for name, amount in amounts.items() if amount})

    def require_held(self, connection: Connection) -> None:
        """Raise StageBusyError unless this process holds the stage until the transaction ends."""
        self._writer.require(connection, self._held)

    def describe(
        self,
        *,
        config: Any = None,
        versions: Any = None,
        details: Any = None,
        steps_total: int | None = None,
        folder: Any = None,
    ) -> None:
        """Set columns that were not known when the stage started; None leaves a column unchanged.

        Raises StageBusyError if another process took the stage over.
        """
        given = {"config": config, "versions": versions, "details": details}
        values = {name: json_safe(value) for name, value in given.items() if value is not None}
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
