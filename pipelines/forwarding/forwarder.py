"""Sends the tracker's records to one service; what arrived is noted in the workspace, so nothing is sent twice.

Stages and cycles are runs of the service, their rows go in parts that are sent one at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import select
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from db import Database, queries, records
from db.records import BY_CORPUS
from pipelines.forwarding.services import WRITERS, Row, Run, Writer
from recovery.workspace import Workspace, write_atomically

EVERY, LONGEST_WAIT = 2.0, 60.0  # seconds between two rounds; at most, while the service fails


class ServiceError(Exception):
    """A service raised, or its package did; the message is one line."""


class Forwarder:
    """One service, for one line of cycles.

    A writer that raised is dropped with everything that was not noted as sent; the next round starts with a new one.
    """

    def __init__(self, service: str, source: Source) -> None:
        self.service = service
        self._source = source
        self._writer: Writer | None = None
        self._run: Run | None = None
        self._marks: dict[str, Any] = {}  # of the open run

    def forward(self, stage_ids: Collection[int] | None = None) -> None:
        """Send what was not sent yet; see :meth:`Source.runs`. Raises ServiceError; the rest is sent by a later call.

        A stage's run stays open until the stage has ended.
        """
        with self._failing():
            for run, parts in self._source.runs(stage_ids):
                ends = None
                for part in parts(dict(self._marks) if self._is_open(run) else self._noted(run)):
                    self._send(run, part)
                    ends = part.ends or ends
                if ends is not None:
                    self._close(ends)

    def close(self) -> None:
        """Close the open run, whose stage may be continued later. Raises ServiceError."""
        with self._failing():
            self._close("running")

    def missing(self, stage_ids: Collection[int] | None = None) -> str:
        """Return in words what was not sent, "" if everything was."""
        counts: Counter[str] = Counter()
        for run, parts in self._source.runs(stage_ids):
            for part in parts(self._noted(run)):
                counts[part.kind] += part.count
        return ", ".join(f"{count:,} {kind if count > 1 else kind.removesuffix('s')}" for kind, count in counts.items())

    def _send(self, run: Run, part: Part) -> None:
        writer = self._opened(run)
        if part.rows:
            writer.log(part.rows)
        if part.facts:
            writer.describe(part.facts)
        if part.text is not None:
            writer.text(*part.text)
        self._marks[part.kind] = part.mark
        if writer.durable:
            self._note()

    def _opened(self, run: Run) -> Writer:
        if self._writer is None:
            self._writer = WRITERS[self.service]()
        if not self._is_open(run):
            self._close("running")
            self._writer.open(run)
            self._run, self._marks = run, self._noted(run)
        return self._writer

    def _is_open(self, run: Run) -> bool:
        return self._run is not None and self._run.key == run.key

    def _close(self, status: str) -> None:
        if self._writer is not None and self._run is not None:
            self._writer.close(status)
            self._note()
        self._run = None

    def _note(self) -> None:
        assert self._run is not None  # only an open run has marks
        write_atomically(self._path(self._run), json.dumps(self._marks) + "\n")

    def _noted(self, run: Run) -> dict[str, Any]:
        try:
            return dict(json.loads(self._path(run).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def _path(self, run: Run) -> Path:
        return self._source.workspace.reported / self.service / f"{run.key}.json"

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a service's package may raise anything
            self._writer, self._run, self._marks = None, None, {}
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise ServiceError(" ".join(lines[:1]).strip()[:200] or type(error).__name__) from error


def follow(forwarder: Forwarder, commands: int, say: Callable[[str], None]) -> None:
    """Send what is recorded for stages while they run: their ids are read from the file descriptor, one a line.

    At its end the session has ended, and what remains is sent. Only the first error is printed; the service is tried
    again at growing intervals, and once more at the end.
    """
    ids: set[int] = set()
    buffer, open_, wait, warned = b"", True, EVERY, False
    while open_:
        if select.select([commands], [], [], wait)[0]:
            read = os.read(commands, 4096)
            open_, buffer = bool(read), buffer + read
            *lines, buffer = buffer.split(b"\n")
            ids |= {int(line) for line in lines}
        try:
            forwarder.forward(ids)
            wait = EVERY
            if not open_:
                forwarder.close()
        except ServiceError as error:
            wait = min(2 * wait, LONGEST_WAIT)
            traceback.print_exc()  # to the log
            if not warned:
                say(f"{forwarder.service}: {error}; the tracker has everything, and sends it when it can")
            warned = True


# What is sent.


POINTS_AT_ONCE = 5000
Marks = Mapping[str, Any]
"""What was sent of a run: kind of part -> the ``mark`` of the newest one."""


@dataclass(frozen=True)
class Part:
    """Something of a run that is sent at once: ``count`` rows of a kind. ``mark`` says how far the service is then."""

    kind: str
    mark: Any
    count: int = 1
    rows: tuple[Row, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    text: tuple[str, str] | None = None
    ends: str | None = None
    """The status with which the run ends after this part."""


@dataclass(frozen=True)
class Source:
    """A workspace's line of cycles in the tracker."""

    workspace: Workspace
    database: Database
    experiment_id: int

    def runs(self, stage_ids: Collection[int] | None) -> Iterator[tuple[Run, Callable[[Marks], Iterator[Part]]]]:
        """Yield runs, each with a function that returns its parts beyond some marks.

        With ``stage_ids`` these stages, and the cycles that those of them that train belong to; otherwise all stages
        that are not running, and all cycles.
        """
        experiment = queries.experiment(self.database, self.experiment_id)
        if experiment is None or (stage_ids is not None and not stage_ids):
            return
        # Stages of different trackers have the same ids.
        token = hashlib.sha256(f"{experiment.name} {experiment.created_at!r}".encode()).hexdigest()[:10]
        stages = queries.find_stages(
            self.database,
            experiment_ids=[self.experiment_id],
            ids=None if stage_ids is None else list(stage_ids),
            limit=100_000,
        )
        cycles = {cycle.id: cycle for cycle in queries.cycles(self.database, self.experiment_id)}
        if stage_ids is not None:
            trained = {stage.cycle_id for stage in stages if stage.kind != "evaluate"}
            cycles = {key: cycle for key, cycle in cycles.items() if key in trained}
        # Cycles first: a decision is made while no stage runs, and the run that is opened last stays open.
        for cycle in cycles.values():
            yield self._cycle_run(token, cycle), partial(self._cycle_parts, cycle)
        for stage in reversed(stages):
            if stage_ids is not None or stage.status != "running":
                yield self._stage_run(token, stage), partial(self._stage_parts, stage)

    def _stage_run(self, token: str, stage: records.Stage) -> Run:
        label = self.workspace.label
        where = label if stage.cycle is None else f"{label} cycle {stage.cycle}"
        known = {"seed": stage.seed, "versions": dict(stage.versions)}
        config = {key: value for key, value in (dict(stage.config) | known).items() if value not in (None, [], {})}
        return Run(
            f"{token}-stage-{stage.id}",
            f"{where} {stage.kind} ({stage.id})",
            label,
            stage.kind,
            config,
            stage.started_at,
        )

    def _cycle_run(self, token: str, cycle: records.Cycle) -> Run:
        label = self.workspace.label
        config = {"documents": cycle.documents, "corpus_hash": cycle.corpus_hash}
        key, name = f"{token}-cycle-{cycle.number}", f"{label} cycle {cycle.number}"
        return Run(key, name, label, "cycle", config, cycle.created_at)

    def _stage_parts(self, stage: records.Stage, marks: Marks) -> Iterator[Part]:
        step = marks.get("points", -1)
        for part in self._points(stage, step):
            step = part.mark
            yield part
        evaluations = queries.stage_evaluations(self.database, stage.id, after=marks.get("evaluations", 0))
        for one in evaluations:
            yield Part("evaluations", one.id, rows=(Row(max(step, 0), _scores(one), one.created_at),))
        for made in queries.checkpoints(self.database, self.experiment_id):
            if made.stage_id == stage.id and made.id > marks.get("checkpoints", 0):
                facts = {
                    "checkpoint": made.name,
                    "checkpoint_kind": made.kind,
                    "checkpoint_hash": made.content_hash,
                    "checkpoint_path": str(self.workspace.found(made.path)),
                }
                yield Part("checkpoints", made.id, facts=facts)
        end = f"{stage.status}, attempt {stage.attempts}"
        if stage.status != "running" and marks.get("outcomes") != end:
            yield Part("outcomes", end, facts=_outcome(stage), ends=stage.status)

    def _points(self, stage: records.Stage, step: int) -> Iterator[Part]:
        """Yield the points after a step. The newest step of a running stage may be incomplete and is left for later."""
        while True:
            points = queries.points_after(self.database, stage.id, step, limit=POINTS_AT_ONCE)
            steps = [(number, list(rows)) for number, rows in itertools.groupby(points, key=lambda row: row[0])]
            if stage.status == "running" or len(points) == POINTS_AT_ONCE:
                steps = steps[:-1]
            if not steps:
                return
            rows = tuple(Row(number, {r[1]: r[2] for r in same}, same[0][3]) for number, same in steps)
            step = rows[-1].step
            yield Part("points", step, sum(len(row.metrics) for row in rows), rows)

    def _cycle_parts(self, cycle: records.Cycle, marks: Marks) -> Iterator[Part]:
        for one in reversed(queries.decisions(self.database, cycle.id)):
            if one.id > marks.get("decisions", 0):
                facts = {"decision": one.decision, "decided_by": one.who, "decided_because": one.why}
                yield Part("decisions", one.id, facts=facts, ends="finished")
        path = self.workspace.report(cycle.number)
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            mark = hashlib.sha256(text.encode()).hexdigest()[:16]
            if mark != marks.get("reports"):
                yield Part("reports", mark, text=(path.name, text), ends="finished")


def _scores(one: records.Evaluation) -> dict[str, float]:
    """Return an evaluation as metrics: the score, its 95% interval, and the number of items."""
    name = one.suite if one.corpus is None else f"{one.suite}{BY_CORPUS}/{one.corpus}"
    metrics = {f"{name}_n": float(one.n)}
    if one.value is not None:
        metrics[name] = one.value
        if interval := records.interval_of(one.suite, records.Score(one.value, one.stderr, one.n)):
            metrics[f"{name}_low"], metrics[f"{name}_high"] = interval
    return metrics


def _outcome(stage: records.Stage) -> dict[str, Any]:
    """Return what is known of a stage when it ends."""
    names = ("tokens_sampled", "tokens_scored", "tokens_trained", "wall_seconds", "peak_memory_bytes", "attempts")
    facts = {name: getattr(stage, name) for name in ("status", "stopped", *names)}
    return facts | ({"error": stage.error} if stage.error else {})
