"""Reads from the tracker: each query opens one short transaction and returns records. Every list is bounded.

A query is a ``select`` whose columns have the names of a record's fields; :func:`record` makes the records.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, exists, func, select, true
from sqlalchemy.orm import InstrumentedAttribute, aliased

from db import liveness, records
from db.cycle_evidence import knowledge_of
from db.records import BY_CORPUS, HEADLINES, PER_CORPUS
from db.schema import (
    DISCARDED,
    Checkpoint,
    Cycle,
    Decision,
    Evaluation,
    Event,
    Experiment,
    Latest,
    MetricPoint,
    MetricSeries,
    Sample,
    Stage,
    TokenScores,
)
from db.session import Database

TRADEOFF_SUITES = ("instruction_following", "domain_knowledge")
"""Suites of the trade-off between knowledge and instruction following."""

RESPONSE_MARK = "\n\nassistant: "
"""What stands before a response in the stored prompt of a conversation."""

_Record = TypeVar("_Record")
_ENDS = ("recovered", "midtrained", "external")  # kinds of a cycle's last checkpoint, in order of precedence


def record(kind: type[_Record], row: Any, **overrides: Any) -> _Record:
    """Return a record built from the columns of a row that are named as its fields, and from ``overrides``."""
    columns = row._mapping
    names = (field.name for field in fields(kind))  # type: ignore[arg-type]
    return kind(**({name: columns[name] for name in names if name in columns and name not in overrides} | overrides))


def read(database: Database, kind: type[_Record], query: Select[Any]) -> list[_Record]:
    """Return the rows of a query as records, in a transaction of its own."""
    with database.reading() as connection:
        return _read(connection, kind, query)


def _read(connection: Connection, kind: type[_Record], query: Select[Any]) -> list[_Record]:
    return [record(kind, row) for row in connection.execute(query)]


def _first_or_none(rows: Sequence[_Record]) -> _Record | None:
    return rows[0] if rows else None


# --- experiments, cycles, stages -----------------------------------------------------------------------------


def _experiments(condition: Any, limit: int = 200) -> Select[Any]:
    """Return the query for experiments with the number of their cycles, newest first."""
    counted = select(func.count()).where(Cycle.experiment_id == Experiment.id).scalar_subquery().label("cycles")
    return select(Experiment.__table__, counted).where(condition).order_by(Experiment.id.desc()).limit(limit)


def experiments(database: Database, *, prefix: str = "", limit: int = 200) -> list[records.Experiment]:
    """Return experiments, newest first; with ``prefix`` only those whose names begin with it."""
    condition = Experiment.name.startswith(prefix, autoescape=True) if prefix else true()
    return read(database, records.Experiment, _experiments(condition, limit))


def experiment_names(database: Database, *, limit: int = 200) -> list[str]:
    """Return the names of experiments, newest first."""
    with database.reading() as connection:
        return list(connection.scalars(select(Experiment.name).order_by(Experiment.id.desc()).limit(limit)))


def newest_experiment(database: Database, *, but: str) -> records.Experiment | None:
    """Return the newest experiment whose name does not begin with ``but``; the newest of all if each does."""
    others = ~Experiment.name.startswith(but, autoescape=True)
    with database.reading() as connection:
        rows = _read(connection, records.Experiment, _experiments(others, 1))
        return _first_or_none(rows or _read(connection, records.Experiment, _experiments(true(), 1)))


def experiment(database: Database, name_or_id: str | int) -> records.Experiment | None:
    """Return an experiment by its name or id, or None."""
    column: InstrumentedAttribute[Any] = Experiment.id if isinstance(name_or_id, int) else Experiment.name
    return _first_or_none(read(database, records.Experiment, _experiments(column == name_or_id)))


def _cycles(connection: Connection, experiment_ids: Sequence[int], *, details: bool = False) -> list[records.Cycle]:
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
    overrides: dict[str, Any] = {} if details else {"details": {}}
    return [record(records.Cycle, row, **overrides) for row in connection.execute(query)]


def cycles(database: Database, experiment_id: int) -> list[records.Cycle]:
    """Return the cycles of an experiment by number, each with its newest decision."""
    with database.reading() as connection:
        return _cycles(connection, [experiment_id], details=True)


def _stage_query() -> Select[Any]:
    """Return the query for stages with their cycle's number, newest first."""
    return (
        select(Stage.__table__, Cycle.number.label("cycle"))
        .join(Cycle, Cycle.id == Stage.cycle_id, isouter=True)
        .order_by(Stage.id.desc())
    )


def _stages(connection: Connection, query: Select[Any]) -> list[records.Stage]:
    """Return the stages of a query; a running one whose process is gone has the status "interrupted"."""
    now = liveness.now(connection)

    def status(row: Any) -> str:
        return "interrupted" if row.status == "running" and liveness.is_dead(row, now) else str(row.status)

    return [
        record(records.Stage, row, status=status(row), silent_seconds=max(0.0, now - row.heartbeat_at))
        for row in connection.execute(query)
    ]


def stages(
    database: Database, experiment_id: int, *, cycle_id: int | None = None, kind: str | None = None, limit: int = 200
) -> list[records.Stage]:
    """Return stages of an experiment, newest first."""
    query = _stage_query().where(Stage.experiment_id == experiment_id)
    query = query if cycle_id is None else query.where(Stage.cycle_id == cycle_id)
    query = query if kind is None else query.where(Stage.kind == kind)
    with database.reading() as connection:
        return _stages(connection, query.limit(limit))


def is_trial(database: Database, experiment_id: int, cycle_id: int) -> bool:
    """Whether a cycle's figures are of a trial: its newest stage of a kind is, or a checkpoint's newest evaluation."""
    newest: dict[tuple[str, int | None], records.Stage] = {}
    for stage in stages(database, experiment_id, cycle_id=cycle_id):
        newest.setdefault((stage.kind, stage.student_id if stage.kind == records.EVALUATE else None), stage)
    return any(stage.config.get("trial") for stage in newest.values())


def find_stages(
    database: Database,
    *,
    ids: Sequence[int] | None = None,
    experiment_ids: Sequence[int] | None = None,
    kinds: Sequence[str] | None = None,
    metric: str | None = None,
    without: str | None = None,
    tokens: bool = False,
    search: str = "",
    limit: int = 200,
) -> list[records.Stage]:
    """Return stages of any experiment, newest first, that match all given filters: ids, kinds, a curve of this name
    or none of the name ``without``, recorded token scores, or a text in the name of their checkpoint."""
    conditions: list[ColumnElement[bool]] = []
    for column, wanted in ((Stage.id, ids), (Stage.experiment_id, experiment_ids), (Stage.kind, kinds)):
        if wanted is not None:
            conditions.append(column.in_(wanted))
    if metric is not None:
        conditions.append(exists().where(MetricSeries.stage_id == Stage.id, MetricSeries.name == metric))
    if without is not None:
        conditions.append(~exists().where(MetricSeries.stage_id == Stage.id, MetricSeries.name == without))
    if tokens:
        conditions.append(exists().where(TokenScores.stage_id == Stage.id))
    if search:
        named = Checkpoint.name.icontains(search, autoescape=True)
        conditions.append(exists().where(Checkpoint.stage_id == Stage.id, named))
    with database.reading() as connection:
        return _stages(connection, _stage_query().where(*conditions).limit(limit))


def stage(database: Database, stage_id: int) -> records.Stage | None:
    """Return one stage, or None."""
    with database.reading() as connection:
        return _first_or_none(_stages(connection, _stage_query().where(Stage.id == stage_id)))


def running_stage(database: Database, experiment_id: int | None = None) -> records.Stage | None:
    """Return the newest stage whose process is alive, of one experiment or of all."""
    with database.reading() as connection:
        return _running(connection, experiment_id)


def _running(connection: Connection, experiment_id: int | None) -> records.Stage | None:
    """Return the newest stage whose process is alive, of one experiment or of all."""
    query = _stage_query().where(Stage.status == "running")
    query = query if experiment_id is None else query.where(Stage.experiment_id == experiment_id)
    return next((stage for stage in _stages(connection, query.limit(50)) if stage.status == "running"), None)


# --- checkpoints and their scores ----------------------------------------------------------------------------


def _checkpoint_query() -> Select[Any]:
    """Return the query for checkpoints with their parent's name and their cycle's number."""
    parent = aliased(Checkpoint)
    return (
        select(Checkpoint.__table__, parent.name.label("parent"), Cycle.number.label("cycle"))
        .join(parent, parent.id == Checkpoint.parent_id, isouter=True)
        .join(Cycle, Cycle.id == Checkpoint.cycle_id, isouter=True)
    )


def checkpoints(database: Database, experiment_id: int) -> list[records.Checkpoint]:
    """Return every checkpoint of an experiment, oldest first."""
    query = _checkpoint_query().where(Checkpoint.experiment_id == experiment_id).order_by(Checkpoint.id)
    return read(database, records.Checkpoint, query)


def checkpoint(database: Database, experiment_id: int, name: str) -> records.Checkpoint | None:
    """Return a checkpoint by name; "latest" is the one the experiment continues from."""
    if name == "latest":
        return latest(database, experiment_id)
    query = _checkpoint_query().where(Checkpoint.experiment_id == experiment_id, Checkpoint.name == name)
    return _first_or_none(read(database, records.Checkpoint, query))


def made_by(database: Database, stage_ids: Iterable[int]) -> dict[int, records.Checkpoint]:
    """Return the newest checkpoint of each stage by the stage's id."""
    query = _checkpoint_query().where(Checkpoint.stage_id.in_(list(stage_ids))).order_by(Checkpoint.id)
    return {one.stage_id: one for one in read(database, records.Checkpoint, query) if one.stage_id is not None}


def latest(database: Database, experiment_id: int) -> records.Checkpoint | None:
    """Return the checkpoint the next stage starts from."""
    return _first_or_none(read(database, records.Checkpoint, _latest(experiment_id)))


def _latest(experiment_id: int) -> Select[Any]:
    query = _checkpoint_query().join(Latest, Latest.checkpoint_id == Checkpoint.id)
    return query.where(Latest.experiment_id == experiment_id)


def _current_checkpoints(experiment_ids: Sequence[int]) -> Select[Any]:
    """Return the query for the checkpoints of experiments that were not superseded, oldest first."""
    conditions = Checkpoint.experiment_id.in_(experiment_ids), Checkpoint.superseded_at.is_(None)
    return _checkpoint_query().where(*conditions).order_by(Checkpoint.id)


def scores(database: Database, checkpoint_id: int) -> records.Scores:
    """Return the newest score of a checkpoint in every suite."""
    return scores_of(database, [checkpoint_id])[checkpoint_id]


def scores_of(database: Database, checkpoint_ids: Iterable[int]) -> dict[int, records.Scores]:
    """Return :func:`scores` of several checkpoints by id, in one query."""
    with database.reading() as connection:
        return _scores(connection, list(checkpoint_ids))


def _scores(
    connection: Connection, checkpoint_ids: Sequence[int], suites: Sequence[str] | None = None
) -> dict[int, records.Scores]:
    """Return the newest scores of checkpoints by id, of all or the given suites; none if the newest has no score."""
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
        number: _gather({key: score for key, score in by_suite.items() if score is not None})
        for number, by_suite in newest.items()
    }


def _gather(scores: Mapping[tuple[str, int | None], records.Score]) -> records.Scores:
    """Return scores by (suite, corpus) as a record."""
    values: dict[str, Any] = {}
    for suite in PER_CORPUS:
        corpora = {corpus: score for (name, corpus), score in scores.items() if name == suite and corpus is not None}
        values[suite + BY_CORPUS] = dict(sorted(corpora.items()))
    for suite in HEADLINES:
        corpora = values.get(suite + BY_CORPUS, {})
        # A suite of questions shows the newest corpus' score, as evaluations do: a mean over corpora would compare
        # checkpoints on different questions.
        newest = corpora[max(corpora)] if corpora else None
        mean = suite == "bits_per_byte"
        values[suite] = scores.get((suite, None), records.pooled(list(corpora.values())) if mean else newest)
    values["others"] = {
        suite if corpus is None else f"{suite}/{corpus}": score
        for (suite, corpus), score in sorted(scores.items(), key=lambda one: str(one[0]))
        if suite not in (HEADLINES if corpus is None else PER_CORPUS)
    }
    return records.Scores(**values)


def overview(database: Database, experiment_id: int, *, details: bool = True) -> records.Overview | None:
    """Return an experiment's cycles with every checkpoint's scores; None if there is no such experiment.

    Without ``details`` the details of cycles (their evidence, most of the data) are not read and left empty.
    """
    with database.reading() as connection:
        row = _first_or_none(_read(connection, records.Experiment, _experiments(Experiment.id == experiment_id)))
        if row is None:
            return None
        cycles = _cycles(connection, [experiment_id], details=details)
        known = _read(connection, records.Checkpoint, _current_checkpoints([experiment_id]))
        result = _overview(row, cycles, known, _scores(connection, [one.id for one in known]))
        latest = _first_or_none(_read(connection, records.Checkpoint, _latest(experiment_id)))
        return replace(result, latest=latest, running=_running(connection, experiment_id))


def paths(database: Database, experiment_ids: Sequence[int]) -> list[records.Overview]:
    """Return overviews of several experiments with the trade-off scores only: a dozen take the time of one in full.

    ``latest``, ``running`` and details of cycles are not read. The result is in the order of the ids, without missing
    experiments.
    """
    with database.reading() as connection:
        asked = _experiments(Experiment.id.in_(experiment_ids))
        experiments = {one.id: one for one in _read(connection, records.Experiment, asked)}
        cycles = _cycles(connection, list(experiments))
        known = _read(connection, records.Checkpoint, _current_checkpoints(list(experiments)))
        scores = _scores(connection, [one.id for one in known], TRADEOFF_SUITES)
    return [
        _overview(
            experiments[number],
            [cycle for cycle in cycles if cycle.experiment_id == number],
            [one for one in known if one.experiment_id == number],
            scores,
        )
        for number in experiment_ids
        if number in experiments
    ]


def _overview(
    experiment: records.Experiment,
    cycles: Sequence[records.Cycle],
    known: Sequence[records.Checkpoint],
    scores: Mapping[int, records.Scores],
) -> records.Overview:
    """Return an experiment's cycles with the scores of its checkpoints."""
    measured = {one.id: records.Measured(one, scores[one.id]) for one in known}
    base = next((step for step in measured.values() if step.checkpoint.kind == "base"), None)
    return records.Overview(experiment, base, _cycle_rows(cycles, measured, base), None, None)


def _cycle_rows(
    cycles: Sequence[records.Cycle], measured: Mapping[int, records.Measured], base: records.Measured | None
) -> tuple[records.CycleRow, ...]:
    """Return a row for each cycle; it starts from its mid-trained checkpoint's parent, else from the previous end.

    The mid-trained checkpoint is that which the recovered one was made from: a cycle may have several of both.
    """
    checkpoints = {key: one.checkpoint for key, one in measured.items()}
    chosen = _representatives(checkpoints, {cycle.id for cycle in cycles if cycle.decision in DISCARDED})
    newest = {key: measured[checkpoint.id] for key, checkpoint in chosen.items()}
    rows: list[records.CycleRow] = []
    previous = base
    for cycle in cycles:
        # An external student takes the place of the mid-trained checkpoint.
        recovered = newest.get((cycle.id, "recovered"))
        midtrained = _origin(recovered, measured) or newest.get((cycle.id, "midtrained"))
        midtrained = midtrained or newest.get((cycle.id, "external"))
        parent = measured.get(midtrained.checkpoint.parent_id or 0) if midtrained else None
        rows.append(records.CycleRow(cycle, base, parent or previous, midtrained, recovered))
        if cycle.decision not in DISCARDED:
            previous = recovered or midtrained or previous
    return tuple(rows)


def _origin(recovered: records.Measured | None, measured: Mapping[int, records.Measured]) -> records.Measured | None:
    """Return the checkpoint of a cycle that its recovered one was made from, through all of its recoveries."""
    ancestor = recovered
    while ancestor is not None and ancestor.checkpoint.kind == "recovered":
        ancestor = measured.get(ancestor.checkpoint.parent_id or 0)
    if recovered is None or ancestor is None or ancestor.checkpoint.cycle_id != recovered.checkpoint.cycle_id:
        return None
    return ancestor


def _representatives(checkpoints: Mapping[int, Any], discarded: Container[int]) -> dict[tuple[int | None, str], Any]:
    """Return the checkpoint of each (cycle, kind): the one that a later cycle started from, else the newest.

    Checkpoints are given by id, oldest first. Later cycles in ``discarded`` do not count.
    """
    chosen: dict[tuple[int | None, str], Any] = {(one.cycle_id, one.kind): one for one in checkpoints.values()}
    for one in checkpoints.values():
        parent = checkpoints.get(one.parent_id or 0)
        if parent is not None and parent.cycle_id not in (None, one.cycle_id) and one.cycle_id not in discarded:
            chosen[parent.cycle_id, parent.kind] = parent
    return chosen


def end_of(checkpoints: Mapping[int, Any], cycle_id: int, discarded: Container[int]) -> Any:
    """Return the last checkpoint of a cycle, recovered, else mid-trained, or None; what a decision is about.

    Of several, the one that a later cycle started from, unless that is in ``discarded``, else the newest.
    """
    standing = {key: one for key, one in checkpoints.items() if one.superseded_at is None}
    chosen = _representatives(standing, discarded)
    return next((chosen[cycle_id, kind] for kind in _ENDS if (cycle_id, kind) in chosen), None)


def status_json(database: Database, experiment_id: int) -> dict[str, Any]:
    """Return the output of ``recover status --json``: the scores of the base and of each cycle."""
    seen = overview(database, experiment_id)
    if seen is None:
        return {"base": None, "cycles": []}

    known = knowledge_of(database, [row.cycle.id for row in seen.cycles])

    def shown(measured: records.Measured | None) -> dict[str, Any] | None:
        return measured.scores.to_json() if measured else None

    return {
        "experiment": seen.experiment.name,
        "base_model": seen.experiment.base_model,
        "latest": seen.latest.name if seen.latest else None,
        "base": shown(seen.base),
        "cycles": [
            {
                "cycle": row.cycle.number,
                "documents": row.cycle.documents,
                "midtrained": shown(row.midtrained),
                "recovered": shown(row.recovered),
                "decision": row.cycle.decision,
                "summary": row.summary,
                "knowledge": known.get(row.cycle.id, {}),
            }
            for row in seen.cycles
        ],
    }


# --- curves, evaluations, samples ----------------------------------------------------------------------------


def metric_names(database: Database, stage_id: int) -> list[str]:
    """Return the names of a stage's curves."""
    with database.reading() as connection:
        query = select(MetricSeries.name).where(MetricSeries.stage_id == stage_id).order_by(MetricSeries.name)
        return list(connection.scalars(query))


def series(
    database: Database,
    stage_id: int,
    names: Sequence[str] | None = None,
    *,
    since: Mapping[str, int] | None = None,
    max_points: int | None = 400,
) -> dict[str, list[records.Point]]:
    """Return curves of a stage by name; of those named in ``since`` the points after that step.

    If there are more than about ``max_points`` steps, the database averages neighbours; each point then holds the
    minimum and maximum of its group. ``max_points=None`` returns every point.
    """
    wanted = select(MetricSeries.id, MetricSeries.name, MetricSeries.last_step).where(MetricSeries.stage_id == stage_id)
    wanted = wanted if names is None else wanted.where(MetricSeries.name.in_(names))
    with database.reading() as connection:
        known = {row.id: row for row in connection.execute(wanted.order_by(MetricSeries.name))}
        curves: dict[str, list[records.Point]] = {row.name: [] for row in known.values()}
        ids_after: dict[int | None, list[int]] = {}  # series to be read after the same step
        for row in known.values():
            after = since.get(row.name) if since else None
            if after is None or row.last_step > after:
                ids_after.setdefault(after, []).append(row.id)
        for after, ids in ids_after.items():
            smallest = select(func.min(MetricPoint.step)).where(MetricPoint.series_id.in_(ids))
            first = (connection.scalar(smallest) or 0) if after is None else after + 1
            span = max(known[number].last_step for number in ids) - first + 1
            width = 1 if max_points is None else max(1, math.ceil(span / max_points))
            for row in connection.execute(_points(ids, after, width)):
                point = records.Point(row.step, row.value, row.low, row.high, row.time)
                curves[known[row.series_id].name].append(point)
    return curves


def _points(series_ids: Sequence[int], since: int | None, width: int) -> Select[Any]:
    """Return the query for points of several series by step; ``width`` neighbouring steps become one point."""
    value = MetricPoint.value
    condition: list[ColumnElement[bool]] = [MetricPoint.series_id.in_(series_ids)]
    if since is not None:
        condition.append(MetricPoint.step > since)
    if width == 1:
        ends = [value.label("low"), value.label("high"), MetricPoint.time]
        columns: list[Any] = [MetricPoint.series_id, MetricPoint.step, value, *ends]
        return select(*columns).where(*condition).order_by(MetricPoint.series_id, MetricPoint.step)
    return (
        select(
            MetricPoint.series_id,
            func.max(MetricPoint.step).label("step"),
            func.avg(value).label("value"),
            func.min(value).label("low"),
            func.max(value).label("high"),
            func.max(MetricPoint.time).label("time"),
        )
        .where(*condition)
        .group_by(MetricPoint.series_id, MetricPoint.step // width)
        .order_by(MetricPoint.series_id, func.max(MetricPoint.step))
    )


def points_after(database: Database, stage_id: int, step: int, *, limit: int) -> list[tuple[int, str, float, float]]:
    """Return (step, name, value, time) of a stage's finite points after a step, by step; at most ``limit``."""
    columns = (MetricPoint.step, MetricSeries.name, MetricPoint.value, MetricPoint.time)
    query = select(*columns).join(MetricSeries, MetricSeries.id == MetricPoint.series_id)
    query = query.where(MetricSeries.stage_id == stage_id, MetricPoint.step > step, MetricPoint.value.is_not(None))
    with database.reading() as connection:
        rows = connection.execute(query.order_by(MetricPoint.step, MetricSeries.name).limit(limit))
        return [(row.step, row.name, row.value, row.time) for row in rows]


def stage_evaluations(database: Database, stage_id: int, *, after: int = 0) -> list[records.Evaluation]:
    """Return the evaluations that a stage recorded, oldest first; only those with an id above ``after``."""
    query = select(Evaluation.__table__).where(Evaluation.stage_id == stage_id, Evaluation.id > after)
    return read(database, records.Evaluation, query.order_by(Evaluation.id))


def evaluations(
    database: Database, checkpoint_id: int, *, suites: Sequence[str] = (), limit: int | None = 500
) -> list[records.Evaluation]:
    """Return evaluations of a checkpoint, newest first; of these ``suites`` if given, at most ``limit``."""
    query = select(Evaluation.__table__).where(Evaluation.checkpoint_id == checkpoint_id)
    query = query.where(Evaluation.suite.in_(suites)) if suites else query
    return read(database, records.Evaluation, query.order_by(Evaluation.id.desc()).limit(limit))


def answered(database: Database, ids: Iterable[int]) -> set[int]:
    """Return those of several evaluations whose responses are stored."""
    stored = exists().where(Sample.evaluation_id == Evaluation.id)
    with database.reading() as connection:
        return set(connection.scalars(select(Evaluation.id).where(Evaluation.id.in_(list(ids)), stored)))


def find_evaluations(database: Database, ids: Iterable[int]) -> list[records.Evaluation]:
    """Return evaluations by their ids, oldest first; missing ones are left out."""
    query = select(Evaluation.__table__).where(Evaluation.id.in_(list(ids))).order_by(Evaluation.id)
    return read(database, records.Evaluation, query)


def samples(database: Database, evaluation_id: int, *, limit: int = 50) -> records.SamplePage:
    """Return the first samples of an evaluation, at most ``limit``, and the number of all."""
    condition = Sample.evaluation_id == evaluation_id
    with database.reading() as connection:
        total = connection.scalar(select(func.count()).select_from(Sample).where(condition)) or 0
        query = select(Sample.__table__).where(condition).order_by(Sample.id).limit(limit)
        return records.SamplePage(tuple(_read(connection, records.Sample, query)), total)


def judged_items(
    database: Database, evaluation_id: int
) -> list[tuple[str, float | None, str, dict[str, Any], dict[str, Any]]]:
    """Return every item of an evaluation for paired tests: (key, score, group, verdicts, extra).

    The key is :func:`item_key`: the same id with another prompt is another item.
    """
    columns = (Sample.item, Sample.prompt, Sample.score, Sample.group, Sample.verdicts, Sample.extra)
    query = select(*columns).where(Sample.evaluation_id == evaluation_id).order_by(Sample.id)
    with database.reading() as connection:
        return [(item_key(item, prompt), *values) for item, prompt, *values in connection.execute(query)]


def item_key(item: str, prompt: str) -> str:
    """Return the key of an item in paired tests: its id and its first prompt."""
    return f"{item}\x1f{asked(prompt)}"


def asked(prompt: str) -> str:
    """Return the part of a prompt before the first response: later turns of a conversation differ between models."""
    return prompt.split(RESPONSE_MARK)[0]


def decisions(database: Database, *cycle_ids: int, limit: int | None = None) -> list[records.Decision]:
    """Return the decisions about cycles, newest first; at most ``limit``."""
    query = select(Decision.__table__).where(Decision.cycle_id.in_(cycle_ids)).order_by(Decision.id.desc())
    return read(database, records.Decision, query.limit(limit))


def events(
    database: Database,
    experiment_id: int,
    *,
    kind: str | None = None,
    stage_id: int | None = None,
    cycle_id: int | None = None,
    limit: int = 100,
) -> list[records.Event]:
    """Return events of an experiment, newest first; of one kind, stage or cycle if given."""
    query = select(Event.__table__).where(Event.experiment_id == experiment_id).order_by(Event.id.desc())
    query = query if kind is None else query.where(Event.kind == kind)
    query = query if stage_id is None else query.where(Event.stage_id == stage_id)
    query = query if cycle_id is None else query.where(Event.cycle_id == cycle_id)
    return read(database, records.Event, query.limit(limit))


def newest_event(database: Database, kind: str, experiment_id: int, cycle_id: int) -> records.Event | None:
    """Return a cycle's newest event of a kind."""
    return _first_or_none(events(database, experiment_id, kind=kind, cycle_id=cycle_id, limit=1))


def token_numbers(database: Database, stage_id: int, *, limit: int = 400) -> list[records.TokenNumbers]:
    """Return the reverse KL of each token of a stage's rollouts, by step; the other, much larger values are not read.

    Of more than ``limit`` rollouts the first of each step, as many of each.
    """
    condition = TokenScores.stage_id == stage_id
    number = TokenScores.values["reverse_kl"].label("numbers")
    columns = (TokenScores.id, TokenScores.step, TokenScores.item, TokenScores.tokens, number)
    place = func.row_number().over(partition_by=TokenScores.step, order_by=TokenScores.id).label("place")
    ranked = select(TokenScores.id, place).where(condition).subquery()
    with database.reading() as connection:
        steps = connection.scalar(select(func.count(TokenScores.step.distinct())).where(condition)) or 1
        query = (
            select(*columns)
            .join(ranked, ranked.c.id == TokenScores.id)
            .where(ranked.c.place <= max(1, limit // steps))
            .order_by(TokenScores.step, TokenScores.id)
        )
        return [
            records.TokenNumbers(row.id, row.step, row.item, tuple(row.tokens), tuple(row.numbers or ()))
            for row in connection.execute(query.limit(limit))
        ]


def token_rollouts(database: Database, stage_id: int) -> int:
    """Return the number of a stage's rollouts with values per token."""
    query = select(func.count()).select_from(TokenScores).where(TokenScores.stage_id == stage_id)
    with database.reading() as connection:
        return connection.scalar(query) or 0


def rollout(database: Database, rollout_id: int) -> records.TokenScores | None:
    """Return one rollout with all its values, or None."""
    with database.reading() as connection:
        row = connection.execute(select(TokenScores.__table__).where(TokenScores.id == rollout_id)).first()
        return None if row is None else record(records.TokenScores, row, tokens=tuple(row.tokens))
