"""The tracker's reads: each opens one short transaction and returns plain records. Every list is bounded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, exists, func, select
from sqlalchemy.orm import InstrumentedAttribute, aliased

from db import process, records
from db.records import BY_CORPUS
from db.schema import (
    LEFT,
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

_Record = TypeVar("_Record")
_HEADLINES = (
    "instruction_following",
    "domain_knowledge",
    "domain_knowledge_stored",
    "general",
    "bits_per_byte",
)
_PER_CORPUS = ("domain_knowledge", "domain_knowledge_stored", "bits_per_byte")


def experiments(database: Database, *, prefix: str = "", limit: int = 200) -> list[records.Experiment]:
    """Experiments, newest first; with ``prefix`` those whose names begin so."""
    counted = select(func.count()).where(Cycle.experiment_id == Experiment.id).scalar_subquery().label("cycles")
    query = select(Experiment.__table__, counted).order_by(Experiment.id.desc()).limit(limit)
    query = query.where(Experiment.name.startswith(prefix, autoescape=True)) if prefix else query
    with database.reading() as connection:
        return [_record(records.Experiment, row) for row in connection.execute(query)]


def experiment(database: Database, name_or_id: str | int) -> records.Experiment | None:
    """One experiment by its name or its id."""
    column: InstrumentedAttribute[Any] = Experiment.id if isinstance(name_or_id, int) else Experiment.name
    with database.reading() as connection:
        return _experiment(connection, column == name_or_id)


def cycles(database: Database, experiment_id: int) -> list[records.Cycle]:
    """The cycles of an experiment by number, each with its newest decision."""
    with database.reading() as connection:
        return _cycles(connection, experiment_id)


def stages(
    database: Database,
    experiment_id: int,
    *,
    cycle_id: int | None = None,
    kind: str | None = None,
    limit: int = 200,
) -> list[records.Stage]:
    """Stages, newest first."""
    query = _stage_query().where(Stage.experiment_id == experiment_id)
    query = query if cycle_id is None else query.where(Stage.cycle_id == cycle_id)
    query = query if kind is None else query.where(Stage.kind == kind)
    with database.reading() as connection:
        return _stages(connection, query.limit(limit))


def find_stages(
    database: Database,
    *,
    ids: Sequence[int] | None = None,
    experiment_ids: Sequence[int] | None = None,
    kinds: Sequence[str] | None = None,
    metric: str | None = None,
    tokens: bool = False,
    search: str = "",
    limit: int = 200,
) -> list[records.Stage]:
    """Stages of any experiment, newest first: of some kinds, with a curve of this name, with rollouts token by token,
    or whose checkpoint's name holds a text."""
    conditions: list[ColumnElement[bool]] = []
    for column, wanted in ((Stage.id, ids), (Stage.experiment_id, experiment_ids), (Stage.kind, kinds)):
        if wanted is not None:
            conditions.append(column.in_(wanted))
    if metric is not None:
        conditions.append(exists().where(MetricSeries.stage_id == Stage.id, MetricSeries.name == metric))
    if tokens:
        conditions.append(exists().where(TokenScores.stage_id == Stage.id))
    if search:
        named = Checkpoint.name.icontains(search, autoescape=True)
        conditions.append(exists().where(Checkpoint.stage_id == Stage.id, named))
    with database.reading() as connection:
        return _stages(connection, _stage_query().where(*conditions).limit(limit))


def stage(database: Database, stage_id: int) -> records.Stage | None:
    """One stage."""
    with database.reading() as connection:
        return next(iter(_stages(connection, _stage_query().where(Stage.id == stage_id))), None)


def running_stage(database: Database, experiment_id: int | None = None) -> records.Stage | None:
    """The newest stage that really runs, of one experiment or of all."""
    with database.reading() as connection:
        return _running(connection, experiment_id)


def checkpoints(database: Database, experiment_id: int) -> list[records.Checkpoint]:
    """Every checkpoint of an experiment, oldest first."""
    query = _checkpoint_query().where(Checkpoint.experiment_id == experiment_id).order_by(Checkpoint.id)
    with database.reading() as connection:
        return [_record(records.Checkpoint, row) for row in connection.execute(query)]


def checkpoint(database: Database, experiment_id: int, name: str) -> records.Checkpoint | None:
    """A checkpoint by name; "latest" is the one the experiment goes on from."""
    if name == "latest":
        return latest(database, experiment_id)
    query = _checkpoint_query().where(Checkpoint.experiment_id == experiment_id, Checkpoint.name == name)
    with database.reading() as connection:
        return _first(records.Checkpoint, connection, query)


def made_by(database: Database, stage_ids: Iterable[int]) -> dict[int, records.Checkpoint]:
    """The newest checkpoint that each of the stages made."""
    query = _checkpoint_query().where(Checkpoint.stage_id.in_(list(stage_ids))).order_by(Checkpoint.id)
    with database.reading() as connection:
        return {row.stage_id: _record(records.Checkpoint, row) for row in connection.execute(query)}


def latest(database: Database, experiment_id: int) -> records.Checkpoint | None:
    """The checkpoint the next stage works on."""
    with database.reading() as connection:
        return _latest(connection, experiment_id)


def scores(database: Database, checkpoint_id: int) -> records.Scores:
    """The newest score of a checkpoint in every suite."""
    return scores_of(database, [checkpoint_id])[checkpoint_id]


def scores_of(database: Database, checkpoint_ids: Iterable[int]) -> dict[int, records.Scores]:
    """``scores`` of several checkpoints by id, in one query."""
    with database.reading() as connection:
        return _scores(connection, list(checkpoint_ids))


def overview(database: Database, experiment_id: int) -> records.Overview | None:
    """An experiment's cycles with every checkpoint's scores; None if there is no such experiment."""
    with database.reading() as connection:
        found = _experiment(connection, Experiment.id == experiment_id)
        if found is None:
            return None
        query = _checkpoint_query().where(Checkpoint.experiment_id == experiment_id, Checkpoint.superseded_at.is_(None))
        known = [_record(records.Checkpoint, row) for row in connection.execute(query.order_by(Checkpoint.id))]
        measured_scores = _scores(connection, [one.id for one in known])
        measured = {one.id: records.Measured(one, measured_scores[one.id]) for one in known}
        base = next((step for step in measured.values() if step.checkpoint.kind == "base"), None)
        rows = _cycle_rows(_cycles(connection, experiment_id), measured, base)
        return records.Overview(
            found, base, rows, _latest(connection, experiment_id), _running(connection, experiment_id)
        )


def status_json(database: Database, experiment_id: int) -> dict[str, Any]:
    """What ``recover status --json`` prints: the base's scores, and each cycle's."""
    seen = overview(database, experiment_id)
    if seen is None:
        return {"base": None, "cycles": []}

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
            }
            for row in seen.cycles
        ],
    }


def metric_names(database: Database, stage_id: int) -> list[str]:
    """The names of a stage's curves."""
    with database.reading() as connection:
        query = select(MetricSeries.name).where(MetricSeries.stage_id == stage_id).order_by(MetricSeries.name)
        return list(connection.scalars(query))


def latest_metrics(database: Database, stage_id: int) -> dict[str, records.Point]:
    """The newest point of each curve of a stage, without reading the curves."""
    with database.reading() as connection:
        rows = connection.execute(select(MetricSeries.__table__).where(MetricSeries.stage_id == stage_id))
        return {
            row.name: records.Point(row.last_step, row.last_value, row.last_value, row.last_value, row.last_time)
            for row in rows
        }


def series(
    database: Database,
    stage_id: int,
    names: Sequence[str] | None = None,
    *,
    since: int | Mapping[str, int] | None = None,
    max_points: int | None = 400,
) -> dict[str, list[records.Point]]:
    """Curves of a stage by name, from after the step ``since``: one for all, or one a name.

    Where there are more than about ``max_points`` steps, the database averages neighbours; lowest and highest
    of each group are kept in the points. ``max_points=None`` gives every point.
    """
    wanted = select(MetricSeries.id, MetricSeries.name, MetricSeries.last_step).where(MetricSeries.stage_id == stage_id)
    wanted = wanted if names is None else wanted.where(MetricSeries.name.in_(names))
    with database.reading() as connection:
        known = {row.id: row for row in connection.execute(wanted.order_by(MetricSeries.name))}
        found: dict[str, list[records.Point]] = {row.name: [] for row in known.values()}
        alike: dict[int | None, list[int]] = {}  # series that are read from the same step on
        for row in known.values():
            after = since.get(row.name) if isinstance(since, Mapping) else since
            if after is None or row.last_step > after:
                alike.setdefault(after, []).append(row.id)
        for after, ids in alike.items():
            first = _first_step(connection, ids) if after is None else after + 1
            span = max(known[number].last_step for number in ids) - first + 1
            width = 1 if max_points is None else max(1, math.ceil(span / max_points))
            for row in connection.execute(_points(ids, after, width)):
                found[known[row.series_id].name].append(records.Point(row.step, row.value, row.low, row.high, row.time))
    return found


def evaluations(database: Database, checkpoint_id: int, *, limit: int = 500) -> list[records.Evaluation]:
    """Every evaluation of a checkpoint, newest first."""
    query = select(Evaluation.__table__).where(Evaluation.checkpoint_id == checkpoint_id)
    with database.reading() as connection:
        rows = connection.execute(query.order_by(Evaluation.id.desc()).limit(limit))
        return [_record(records.Evaluation, row) for row in rows]


def samples(
    database: Database,
    evaluation_id: int,
    *,
    offset: int = 0,
    limit: int = 50,
    group: str | None = None,
    passed: bool | None = None,
    search: str | None = None,
) -> records.SamplePage:
    """A page of an evaluation's samples: of a group, with full score or without, holding a text."""
    query = select(Sample.__table__).where(Sample.evaluation_id == evaluation_id)
    if group is not None:
        query = query.where(Sample.group == group)
    if passed is not None:
        query = query.where(Sample.score >= 1 if passed else Sample.score < 1)
    if search:
        query = query.where(
            Sample.prompt.icontains(search, autoescape=True) | Sample.response.icontains(search, autoescape=True)
        )
    with database.reading() as connection:
        total = connection.scalar(select(func.count()).select_from(query.subquery())) or 0
        rows = connection.execute(query.order_by(Sample.id).offset(offset).limit(limit))
        return records.SamplePage(tuple(_record(records.Sample, row) for row in rows), total, offset)


def judged_items(
    database: Database, evaluation_id: int
) -> list[tuple[str, float | None, str, dict[str, Any], dict[str, Any]]]:
    """Every item of an evaluation for paired tests: (key, score, group, verdicts, extra).

    The key is the id with what was asked: the same id over other words is another item.
    """
    columns = (Sample.item, Sample.prompt, Sample.score, Sample.group, Sample.verdicts, Sample.extra)
    query = select(*columns).where(Sample.evaluation_id == evaluation_id).order_by(Sample.id)
    with database.reading() as connection:
        return [(item_key(item, prompt), *rest) for item, prompt, *rest in connection.execute(query)]


def item_key(item: str, prompt: str) -> str:
    """What tells an item from others in paired tests: its id and what was asked."""
    return f"{item}\x1f{asked(prompt)}"


def asked(prompt: str) -> str:
    """What was asked first: a conversation goes on with answers, which differ from model to model."""
    return prompt.split("\n\nassistant: ")[0]


def decisions(database: Database, cycle_id: int) -> list[records.Decision]:
    """Every decision about a cycle, newest first."""
    query = select(Decision.__table__).where(Decision.cycle_id == cycle_id).order_by(Decision.id.desc())
    with database.reading() as connection:
        return [_record(records.Decision, row) for row in connection.execute(query)]


def events(
    database: Database, experiment_id: int, *, kind: str | None = None, stage_id: int | None = None, limit: int = 100
) -> list[records.Event]:
    """What happened in an experiment, newest first; of one kind, or in one stage, where that is given."""
    query = select(Event.__table__).where(Event.experiment_id == experiment_id).order_by(Event.id.desc())
    query = query if kind is None else query.where(Event.kind == kind)
    query = query if stage_id is None else query.where(Event.stage_id == stage_id)
    with database.reading() as connection:
        return [_record(records.Event, row) for row in connection.execute(query.limit(limit))]


def token_scores(
    database: Database, stage_id: int, step: int | None = None, *, limit: int = 50
) -> list[records.TokenScores]:
    """Rollouts with numbers a token, of one step or the newest ones."""
    query = select(TokenScores.__table__).where(TokenScores.stage_id == stage_id)
    query = query if step is None else query.where(TokenScores.step == step)
    with database.reading() as connection:
        rows = connection.execute(query.order_by(TokenScores.step.desc(), TokenScores.id).limit(limit))
        return [_record(records.TokenScores, row, tokens=tuple(row.tokens)) for row in rows]


def token_numbers(
    database: Database, stage_id: int, name: str = "reverse_kl", *, limit: int = 400
) -> list[records.TokenNumbers]:
    """One number of each token of a stage's rollouts, by step: the rest, which is much more, is not read."""
    number = TokenScores.values[name].label("numbers")
    columns = (TokenScores.id, TokenScores.step, TokenScores.item, TokenScores.tokens, number)
    query = select(*columns).where(TokenScores.stage_id == stage_id).order_by(TokenScores.step, TokenScores.id)
    with database.reading() as connection:
        return [
            records.TokenNumbers(row.id, row.step, row.item, tuple(row.tokens), tuple(row.numbers or ()))
            for row in connection.execute(query.limit(limit))
        ]


def rollout(database: Database, rollout_id: int) -> records.TokenScores | None:
    """One rollout with all its numbers."""
    with database.reading() as connection:
        row = connection.execute(select(TokenScores.__table__).where(TokenScores.id == rollout_id)).first()
        return None if row is None else _record(records.TokenScores, row, tokens=tuple(row.tokens))


def _record(kind: type[_Record], row: Any, **given: Any) -> _Record:
    """A record from the columns of a row that bear its fields' names."""
    columns = row._mapping
    names = (field.name for field in fields(kind))  # type: ignore[arg-type]
    return kind(**({name: columns[name] for name in names if name in columns and name not in given} | given))


def _first(kind: type[_Record], connection: Connection, query: Select[Any]) -> _Record | None:
    row = connection.execute(query.limit(1)).first()
    return None if row is None else _record(kind, row)


def _experiment(connection: Connection, condition: Any) -> records.Experiment | None:
    counted = select(func.count()).where(Cycle.experiment_id == Experiment.id).scalar_subquery().label("cycles")
    return _first(records.Experiment, connection, select(Experiment.__table__, counted).where(condition))


def _cycles(connection: Connection, experiment_id: int) -> list[records.Cycle]:
    decided = (
        select(Decision.decision)
        .where(Decision.cycle_id == Cycle.id)
        .order_by(Decision.id.desc())
        .limit(1)
        .scalar_subquery()
        .label("decision")
    )
    query = select(Cycle.__table__, decided).where(Cycle.experiment_id == experiment_id).order_by(Cycle.number)
    return [_record(records.Cycle, row) for row in connection.execute(query)]


def _stage_query() -> Select[Any]:
    return (
        select(Stage.__table__, Cycle.number.label("cycle"))
        .join(Cycle, Cycle.id == Stage.cycle_id, isouter=True)
        .order_by(Stage.id.desc())
    )


def _stages(connection: Connection, query: Select[Any]) -> list[records.Stage]:
    now = process.now(connection)

    def status(row: Any) -> str:
        return "interrupted" if row.status == "running" and process.is_dead(row, now) else str(row.status)

    return [
        _record(records.Stage, row, status=status(row), silent_seconds=max(0.0, now - row.heartbeat_at))
        for row in connection.execute(query)
    ]


def _running(connection: Connection, experiment_id: int | None) -> records.Stage | None:
    query = _stage_query().where(Stage.status == "running")
    query = query if experiment_id is None else query.where(Stage.experiment_id == experiment_id)
    return next((found for found in _stages(connection, query.limit(50)) if found.status == "running"), None)


def _checkpoint_query() -> Select[Any]:
    parent = aliased(Checkpoint)
    return (
        select(Checkpoint.__table__, parent.name.label("parent"), Cycle.number.label("cycle"))
        .join(parent, parent.id == Checkpoint.parent_id, isouter=True)
        .join(Cycle, Cycle.id == Checkpoint.cycle_id, isouter=True)
    )


def _latest(connection: Connection, experiment_id: int) -> records.Checkpoint | None:
    query = _checkpoint_query().join(Latest, Latest.checkpoint_id == Checkpoint.id)
    return _first(records.Checkpoint, connection, query.where(Latest.experiment_id == experiment_id))


def _scores(connection: Connection, checkpoint_ids: Sequence[int]) -> dict[int, records.Scores]:
    newest: dict[int, dict[tuple[str, int | None], records.Score]] = {number: {} for number in checkpoint_ids}
    columns = (Evaluation.checkpoint_id, Evaluation.suite, Evaluation.corpus)
    query = select(*columns, Evaluation.value, Evaluation.stderr, Evaluation.n).where(
        Evaluation.checkpoint_id.in_(checkpoint_ids), Evaluation.value.is_not(None)
    )
    for row in connection.execute(query.order_by(Evaluation.id)):
        newest[row.checkpoint_id][row.suite, row.corpus] = records.Score(row.value, row.stderr, row.n)
    return {number: _gather(found) for number, found in newest.items()}


def _gather(found: Mapping[tuple[str, int | None], records.Score]) -> records.Scores:
    """Scores by suite and corpus, put in their places."""
    values: dict[str, Any] = {}
    for suite in _PER_CORPUS:
        corpora = {corpus: score for (name, corpus), score in found.items() if name == suite and corpus is not None}
        values[suite + BY_CORPUS] = dict(sorted(corpora.items()))
    for suite in _HEADLINES:
        pooled = records.pooled(list(values.get(suite + BY_CORPUS, {}).values()))
        values[suite] = found.get((suite, None), pooled)
    values["others"] = {
        suite if corpus is None else f"{suite}/{corpus}": score
        for (suite, corpus), score in sorted(found.items(), key=str)
        if suite not in _HEADLINES or (corpus is not None and suite not in _PER_CORPUS)
    }
    return records.Scores(**values)


def _cycle_rows(
    found: Sequence[records.Cycle], measured: Mapping[int, records.Measured], base: records.Measured | None
) -> tuple[records.CycleRow, ...]:
    """Each cycle's path, from its mid-trained checkpoint's parent, else from where the last one ended."""
    newest = {(one.checkpoint.cycle_id, one.checkpoint.kind): one for one in measured.values()}
    rows: list[records.CycleRow] = []
    previous = base
    for cycle in found:
        # A student degraded elsewhere stands where a cycle of ours has its mid-trained checkpoint.
        midtrained = newest.get((cycle.id, "midtrained")) or newest.get((cycle.id, "external"))
        recovered = newest.get((cycle.id, "recovered"))
        parent = measured.get(midtrained.checkpoint.parent_id or 0) if midtrained else None
        rows.append(records.CycleRow(cycle, base, parent or previous, midtrained, recovered))
        if cycle.decision not in LEFT:
            previous = recovered or midtrained or previous
    return tuple(rows)


def _first_step(connection: Connection, series_ids: Sequence[int]) -> int:
    first = connection.scalar(select(func.min(MetricPoint.step)).where(MetricPoint.series_id.in_(series_ids)))
    return 0 if first is None else first


def _points(series_ids: Sequence[int], since: int | None, width: int) -> Select[Any]:
    """Points of several series in steps' order; ``width`` neighbouring steps become one point."""
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
