"""Shared queries that turn rows of the tracker into records; each takes an open connection."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, func, select
from sqlalchemy.orm import aliased

from db import liveness, records
from db.records import BY_CORPUS, HEADLINES, PER_CORPUS
from db.schema import DISCARDED, Checkpoint, Cycle, Decision, Evaluation, Experiment, Latest, Stage

_Record = TypeVar("_Record")
_ENDS = ("recovered", "midtrained", "external")  # kinds of a cycle's last checkpoint, in order of precedence


def record(kind: type[_Record], row: Any, **given: Any) -> _Record:
    """Return a record built from the columns of a row that are named as its fields, and from ``given``."""
    columns = row._mapping
    names = (field.name for field in fields(kind))  # type: ignore[arg-type]
    return kind(**({name: columns[name] for name in names if name in columns and name not in given} | given))


def first(kind: type[_Record], connection: Connection, query: Select[Any]) -> _Record | None:
    """Return the first row of a query as a record, or None."""
    row = connection.execute(query.limit(1)).first()
    return None if row is None else record(kind, row)


def experiments(connection: Connection, condition: Any, *, limit: int = 200) -> list[records.Experiment]:
    """Return experiments with the number of their cycles, newest first."""
    counted = select(func.count()).where(Cycle.experiment_id == Experiment.id).scalar_subquery().label("cycles")
    query = select(Experiment.__table__, counted).where(condition).order_by(Experiment.id.desc()).limit(limit)
    return [record(records.Experiment, row) for row in connection.execute(query)]


def cycles(connection: Connection, experiment_ids: Sequence[int], *, details: bool = False) -> list[records.Cycle]:
    """Return the cycles of experiments by number, each with its newest decision; details are read only on request."""
    decided = (
        select(Decision.decision)
        .where(Decision.cycle_id == Cycle.id)
        .order_by(Decision.id.desc())
        .limit(1)
        .scalar_subquery()
        .label("decision")
    )
    columns = [column for column in Cycle.__table__.columns if details or column.name != "details"]
    query = select(*columns, decided).where(Cycle.experiment_id.in_(experiment_ids)).order_by(Cycle.number)
    given: dict[str, Any] = {} if details else {"details": {}}
    return [record(records.Cycle, row, **given) for row in connection.execute(query)]


def stage_query() -> Select[Any]:
    """Return the query for stages with their cycle's number, newest first."""
    return (
        select(Stage.__table__, Cycle.number.label("cycle"))
        .join(Cycle, Cycle.id == Stage.cycle_id, isouter=True)
        .order_by(Stage.id.desc())
    )


def stages(connection: Connection, query: Select[Any]) -> list[records.Stage]:
    """Return the stages of a query; a running one whose process is gone has the status "interrupted"."""
    now = liveness.now(connection)

    def status(row: Any) -> str:
        return "interrupted" if row.status == "running" and liveness.is_dead(row, now) else str(row.status)

    return [
        record(records.Stage, row, status=status(row), silent_seconds=max(0.0, now - row.heartbeat_at))
        for row in connection.execute(query)
    ]


def running(connection: Connection, experiment_id: int | None) -> records.Stage | None:
    """Return the newest stage whose process is alive, of one experiment or of all."""
    query = stage_query().where(Stage.status == "running")
    query = query if experiment_id is None else query.where(Stage.experiment_id == experiment_id)
    return next((found for found in stages(connection, query.limit(50)) if found.status == "running"), None)


def checkpoint_query() -> Select[Any]:
    """Return the query for checkpoints with their parent's name and their cycle's number."""
    parent = aliased(Checkpoint)
    return (
        select(Checkpoint.__table__, parent.name.label("parent"), Cycle.number.label("cycle"))
        .join(parent, parent.id == Checkpoint.parent_id, isouter=True)
        .join(Cycle, Cycle.id == Checkpoint.cycle_id, isouter=True)
    )


def latest(connection: Connection, experiment_id: int) -> records.Checkpoint | None:
    """Return the checkpoint an experiment continues from."""
    query = checkpoint_query().join(Latest, Latest.checkpoint_id == Checkpoint.id)
    return first(records.Checkpoint, connection, query.where(Latest.experiment_id == experiment_id))


def standing(connection: Connection, experiment_ids: Sequence[int]) -> list[records.Checkpoint]:
    """Return the checkpoints of experiments that were not superseded, oldest first."""
    mine = Checkpoint.experiment_id.in_(experiment_ids), Checkpoint.superseded_at.is_(None)
    query = checkpoint_query().where(*mine).order_by(Checkpoint.id)
    return [record(records.Checkpoint, row) for row in connection.execute(query)]


def scores(
    connection: Connection, checkpoint_ids: Sequence[int], suites: Sequence[str] | None = None
) -> dict[int, records.Scores]:
    """Return the newest scores of checkpoints by id, in every suite or in the given ones; none where the newest result
    has no score.
    """
    newest: dict[int, dict[tuple[str, int | None], records.Score | None]] = {number: {} for number in checkpoint_ids}
    columns = (Evaluation.checkpoint_id, Evaluation.suite, Evaluation.corpus)
    query = select(*columns, Evaluation.value, Evaluation.stderr, Evaluation.n).where(
        Evaluation.checkpoint_id.in_(checkpoint_ids)
    )
    query = query if suites is None else query.where(Evaluation.suite.in_(suites))
    for checkpoint, suite, corpus, value, stderr, n in connection.execute(query.order_by(Evaluation.id)):
        newest[checkpoint][suite, corpus] = None if value is None else records.Score(value, stderr, n)
    asked = [suite for suite in records.INSTRUCTIONS if suites is None or suite in suites]
    parts = [Evaluation.details[name] for name in (records.BEYOND_CONSTANT, records.ECHO)]
    details = select(Evaluation.checkpoint_id, Evaluation.suite, *parts).where(
        Evaluation.checkpoint_id.in_(checkpoint_ids), Evaluation.suite.in_(asked)
    )
    for checkpoint, suite, beyond, echo in connection.execute(details.order_by(Evaluation.id)):
        for name, part in ((records.BEYOND_CONSTANT, beyond), (records.ECHO, echo)):
            newest[checkpoint][f"{suite}/{name}", None] = records.Score(**part) if part else None
    return {
        number: _gather({key: score for key, score in found.items() if score is not None})
        for number, found in newest.items()
    }


def overview(
    experiment: records.Experiment,
    cycles: Sequence[records.Cycle],
    known: Sequence[records.Checkpoint],
    scores: Mapping[int, records.Scores],
) -> records.Overview:
    """Return an experiment's cycles with the scores of its checkpoints."""
    measured = {one.id: records.Measured(one, scores[one.id]) for one in known}
    base = next((step for step in measured.values() if step.checkpoint.kind == "base"), None)
    return records.Overview(experiment, base, _cycle_rows(cycles, measured, base), None, None)


def _gather(found: Mapping[tuple[str, int | None], records.Score]) -> records.Scores:
    """Return scores by (suite, corpus) as a record."""
    values: dict[str, Any] = {}
    for suite in PER_CORPUS:
        corpora = {corpus: score for (name, corpus), score in found.items() if name == suite and corpus is not None}
        values[suite + BY_CORPUS] = dict(sorted(corpora.items()))
    for suite in HEADLINES:
        corpora = values.get(suite + BY_CORPUS, {})
        # Of questions the newest corpus' own score, as evaluations repeat it: a mean would be on other questions.
        newest = corpora[max(corpora)] if corpora else None
        mean = suite == "bits_per_byte"
        values[suite] = found.get((suite, None), records.pooled(list(corpora.values())) if mean else newest)
    values["others"] = {
        suite if corpus is None else f"{suite}/{corpus}": score
        for (suite, corpus), score in sorted(found.items(), key=lambda one: str(one[0]))
        if suite not in (HEADLINES if corpus is None else PER_CORPUS)
    }
    return records.Scores(**values)


def _standing_for(checkpoints: Mapping[int, Any], left: Container[int]) -> dict[tuple[int | None, str], Any]:
    """Return the checkpoint of each (cycle, kind): the one that a later cycle started from, else the newest.

    Checkpoints are given by id, oldest first. A later cycle in ``left`` was rejected or rolled back: it does not count.
    """
    found: dict[tuple[int | None, str], Any] = {(one.cycle_id, one.kind): one for one in checkpoints.values()}
    for one in checkpoints.values():
        parent = checkpoints.get(one.parent_id or 0)
        if parent is not None and parent.cycle_id not in (None, one.cycle_id) and one.cycle_id not in left:
            found[parent.cycle_id, parent.kind] = parent
    return found


def end_of(checkpoints: Mapping[int, Any], cycle_id: int, left: Container[int]) -> Any:
    """Return the last checkpoint of a cycle, recovered, else mid-trained, or None; what a decision is about.

    Of several, the one that a later cycle started from, unless that is in ``left``, else the newest.
    """
    standing = {key: one for key, one in checkpoints.items() if one.superseded_at is None}
    found = _standing_for(standing, left)
    return next((found[cycle_id, kind] for kind in _ENDS if (cycle_id, kind) in found), None)


def _origin(recovered: records.Measured | None, measured: Mapping[int, records.Measured]) -> records.Measured | None:
    """Return the checkpoint of a cycle that its recovered one was made from, through all of its recoveries."""
    found = recovered
    while found is not None and found.checkpoint.kind == "recovered":
        found = measured.get(found.checkpoint.parent_id or 0)
    same = recovered is not None and found is not None and found.checkpoint.cycle_id == recovered.checkpoint.cycle_id
    return found if same else None


def _cycle_rows(
    found: Sequence[records.Cycle], measured: Mapping[int, records.Measured], base: records.Measured | None
) -> tuple[records.CycleRow, ...]:
    """Return a row for each cycle; it starts from its mid-trained checkpoint's parent, else from the previous end.

    The mid-trained checkpoint is that which the recovered one was made from: a cycle may have several of both.
    """
    checkpoints = {key: one.checkpoint for key, one in measured.items()}
    chosen = _standing_for(checkpoints, {cycle.id for cycle in found if cycle.decision in DISCARDED})
    newest = {key: measured[checkpoint.id] for key, checkpoint in chosen.items()}
    rows: list[records.CycleRow] = []
    previous = base
    for cycle in found:
        # An external student takes the place of the mid-trained checkpoint.
        recovered = newest.get((cycle.id, "recovered"))
        midtrained = _origin(recovered, measured) or newest.get((cycle.id, "midtrained"))
        midtrained = midtrained or newest.get((cycle.id, "external"))
        parent = measured.get(midtrained.checkpoint.parent_id or 0) if midtrained else None
        rows.append(records.CycleRow(cycle, base, parent or previous, midtrained, recovered))
        if cycle.decision not in DISCARDED:
            previous = recovered or midtrained or previous
    return tuple(rows)
