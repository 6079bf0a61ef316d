"""What of the tracker goes to a service: stages and cycles as runs, their rows in parts that are sent one at a time."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from db import Database, queries, records
from db.records import BY_CORPUS
from pipelines.forwarding.writer import Row, Run
from recovery.workspace import Workspace

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
        found = queries.stage_evaluations(self.database, stage.id, after=marks.get("evaluations", 0))
        for one in found:
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
            found = queries.points_after(self.database, stage.id, step, limit=POINTS_AT_ONCE)
            steps = [(number, list(rows)) for number, rows in itertools.groupby(found, key=lambda row: row[0])]
            if stage.status == "running" or len(found) == POINTS_AT_ONCE:
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
    found = {f"{name}_n": float(one.n)}
    if one.value is not None:
        found[name] = one.value
        if interval := records.interval_of(one.suite, records.Score(one.value, one.stderr, one.n)):
            found[f"{name}_low"], found[f"{name}_high"] = interval
    return found


def _outcome(stage: records.Stage) -> dict[str, Any]:
    """Return what is known of a stage when it ends."""
    names = ("tokens_sampled", "tokens_scored", "tokens_trained", "wall_seconds", "peak_memory_bytes", "attempts")
    found = {name: getattr(stage, name) for name in ("status", "stopped", *names)}
    return found | ({"error": stage.error} if stage.error else {})
