"""Reads from the tracker: each query opens one short transaction and returns records. Every list is bounded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Select, exists, func, select, true
from sqlalchemy.orm import InstrumentedAttribute

from db import records, row_readers
from db.cycle_evidence import knowledge_of
from db.schema import (
    Checkpoint,
    Decision,
    Evaluation,
    Event,
    Experiment,
    MetricPoint,
    MetricSeries,
    Sample,
    Stage,
    TokenScores,
)
from db.session import Database

TRADE = ("instruction_following", "domain_knowledge")
"""Suites of the trade-off between knowledge and instruction following."""

RESPONSE_MARK = "\n\nassistant: "
"""What stands before a response in the stored prompt of a conversation."""


def experiments(database: Database, *, prefix: str = "", limit: int = 200) -> list[records.Experiment]:
    """Return experiments, newest first; with ``prefix`` only those whose names begin with it."""
    condition = Experiment.name.startswith(prefix, autoescape=True) if prefix else true()
    with database.reading() as connection:
        return row_readers.experiments(connection, condition, limit=limit)


def experiment_names(database: Database, *, limit: int = 200) -> list[str]:
    """Return the names of experiments, newest first."""
    with database.reading() as connection:
        return list(connection.scalars(select(Experiment.name).order_by(Experiment.id.desc()).limit(limit)))


def newest_experiment(database: Database, *, but: str) -> records.Experiment | None:
    """Return the newest experiment whose name does not begin with ``but``; the newest of all if each does."""
    others = ~Experiment.name.startswith(but, autoescape=True)
    with database.reading() as connection:
        found = row_readers.experiments(connection, others, limit=1)
        return next(iter(found or row_readers.experiments(connection, true(), limit=1)), None)


def experiment(database: Database, name_or_id: str | int) -> records.Experiment | None:
    """Return an experiment by its name or id, or None."""
    column: InstrumentedAttribute[Any] = Experiment.id if isinstance(name_or_id, int) else Experiment.name
    with database.reading() as connection:
        return next(iter(row_readers.experiments(connection, column == name_or_id)), None)


def cycles(database: Database, experiment_id: int) -> list[records.Cycle]:
    """Return the cycles of an experiment by number, each with its newest decision."""
    with database.reading() as connection:
        return row_readers.cycles(connection, [experiment_id], details=True)


def stages(
    database: Database, experiment_id: int, *, cycle_id: int | None = None, kind: str | None = None, limit: int = 200
) -> list[records.Stage]:
    """Return stages of an experiment, newest first."""
    query = row_readers.stage_query().where(Stage.experiment_id == experiment_id)
    query = query if cycle_id is None else query.where(Stage.cycle_id == cycle_id)
    query = query if kind is None else query.where(Stage.kind == kind)
    with database.reading() as connection:
        return row_readers.stages(connection, query.limit(limit))


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
        return row_readers.stages(connection, row_readers.stage_query().where(*conditions).limit(limit))


def stage(database: Database, stage_id: int) -> records.Stage | None:
    """Return one stage, or None."""
    with database.reading() as connection:
        return next(iter(row_readers.stages(connection, row_readers.stage_query().where(Stage.id == stage_id))), None)


def running_stage(database: Database, experiment_id: int | None = None) -> records.Stage | None:
    """Return the newest stage whose process is alive, of one experiment or of all."""
    with database.reading() as connection:
        return row_readers.running(connection, experiment_id)


def checkpoints(database: Database, experiment_id: int) -> list[records.Checkpoint]:
    """Return every checkpoint of an experiment, oldest first."""
    query = row_readers.checkpoint_query().where(Checkpoint.experiment_id == experiment_id).order_by(Checkpoint.id)
    with database.reading() as connection:
        return [row_readers.record(records.Checkpoint, row) for row in connection.execute(query)]


def checkpoint(database: Database, experiment_id: int, name: str) -> records.Checkpoint | None:
    """Return a checkpoint by name; "latest" is the one the experiment continues from."""
    if name == "latest":
        return latest(database, experiment_id)
    query = row_readers.checkpoint_query().where(Checkpoint.experiment_id == experiment_id, Checkpoint.name == name)
    with database.reading() as connection:
        return row_readers.first(records.Checkpoint, connection, query)


def made_by(database: Database, stage_ids: Iterable[int]) -> dict[int, records.Checkpoint]:
    """Return the newest checkpoint of each stage by the stage's id."""
    query = row_readers.checkpoint_query().where(Checkpoint.stage_id.in_(list(stage_ids))).order_by(Checkpoint.id)
    with database.reading() as connection:
        return {row.stage_id: row_readers.record(records.Checkpoint, row) for row in connection.execute(query)}


def latest(database: Database, experiment_id: int) -> records.Checkpoint | None:
    """Return the checkpoint the next stage starts from."""
    with database.reading() as connection:
        return row_readers.latest(connection, experiment_id)


def scores(database: Database, checkpoint_id: int) -> records.Scores:
    """Return the newest score of a checkpoint in every suite."""
    return scores_of(database, [checkpoint_id])[checkpoint_id]


def scores_of(database: Database, checkpoint_ids: Iterable[int]) -> dict[int, records.Scores]:
    """Return :func:`scores` of several checkpoints by id, in one query."""
    with database.reading() as connection:
        return row_readers.scores(connection, list(checkpoint_ids))


def overview(database: Database, experiment_id: int, *, details: bool = True) -> records.Overview | None:
    """Return an experiment's cycles with every checkpoint's scores; None if there is no such experiment.

    Without ``details`` the details of cycles (their evidence, most of the data) are not read and left empty.
    """
    with database.reading() as connection:
        found = next(iter(row_readers.experiments(connection, Experiment.id == experiment_id)), None)
        if found is None:
            return None
        cycles = row_readers.cycles(connection, [experiment_id], details=details)
        known = row_readers.standing(connection, [experiment_id])
        whole = row_readers.overview(found, cycles, known, row_readers.scores(connection, [one.id for one in known]))
        return replace(
            whole,
            latest=row_readers.latest(connection, experiment_id),
            running=row_readers.running(connection, experiment_id),
        )


def paths(database: Database, experiment_ids: Sequence[int]) -> list[records.Overview]:
    """Return overviews of several experiments with the trade-off scores only: a dozen take the time of one in full.

    ``latest``, ``running`` and details of cycles are not read. The result is in the order of the ids, without missing
    experiments.
    """
    with database.reading() as connection:
        experiments = {one.id: one for one in row_readers.experiments(connection, Experiment.id.in_(experiment_ids))}
        cycles = row_readers.cycles(connection, list(experiments))
        known = row_readers.standing(connection, list(experiments))
        scores = row_readers.scores(connection, [one.id for one in known], TRADE)
    return [
        row_readers.overview(
            experiments[number],
            [cycle for cycle in cycles if cycle.experiment_id == number],
            [one for one in known if one.experiment_id == number],
            scores,
        )
        for number in experiment_ids
        if number in experiments
    ]


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
    since: int | Mapping[str, int] | None = None,
    max_points: int | None = 400,
) -> dict[str, list[records.Point]]:
    """Return curves of a stage by name, after the step ``since`` (one step for all curves, or one per name).

    If there are more than about ``max_points`` steps, the database averages neighbours; each point then holds the
    minimum and maximum of its group. ``max_points=None`` returns every point.
    """
    wanted = select(MetricSeries.id, MetricSeries.name, MetricSeries.last_step).where(MetricSeries.stage_id == stage_id)
    wanted = wanted if names is None else wanted.where(MetricSeries.name.in_(names))
    with database.reading() as connection:
        known = {row.id: row for row in connection.execute(wanted.order_by(MetricSeries.name))}
        found: dict[str, list[records.Point]] = {row.name: [] for row in known.values()}
        alike: dict[int | None, list[int]] = {}  # series to be read after the same step
        for row in known.values():
            after = since.get(row.name) if isinstance(since, Mapping) else since
            if after is None or row.last_step > after:
                alike.setdefault(after, []).append(row.id)
        for after, ids in alike.items():
            smallest = select(func.min(MetricPoint.step)).where(MetricPoint.series_id.in_(ids))
            first = (connection.scalar(smallest) or 0) if after is None else after + 1
            span = max(known[number].last_step for number in ids) - first + 1
            width = 1 if max_points is None else max(1, math.ceil(span / max_points))
            for row in connection.execute(_points(ids, after, width)):
                found[known[row.series_id].name].append(records.Point(row.step, row.value, row.low, row.high, row.time))
    return found


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
    with database.reading() as connection:
        return [
            row_readers.record(records.Evaluation, row) for row in connection.execute(query.order_by(Evaluation.id))
        ]


def evaluations(
    database: Database, checkpoint_id: int, *, suites: Sequence[str] = (), limit: int | None = 500
) -> list[records.Evaluation]:
    """Return evaluations of a checkpoint, newest first; of these ``suites`` if given, at most ``limit``."""
    query = select(Evaluation.__table__).where(Evaluation.checkpoint_id == checkpoint_id)
    query = query.where(Evaluation.suite.in_(suites)) if suites else query
    with database.reading() as connection:
        rows = connection.execute(query.order_by(Evaluation.id.desc()).limit(limit))
        return [row_readers.record(records.Evaluation, row) for row in rows]


def answered(database: Database, ids: Iterable[int]) -> set[int]:
    """Return those of several evaluations whose responses are stored."""
    stored = exists().where(Sample.evaluation_id == Evaluation.id)
    with database.reading() as connection:
        return set(connection.scalars(select(Evaluation.id).where(Evaluation.id.in_(list(ids)), stored)))


def find_evaluations(database: Database, ids: Iterable[int]) -> list[records.Evaluation]:
    """Return evaluations by their ids, oldest first; missing ones are left out."""
    query = select(Evaluation.__table__).where(Evaluation.id.in_(list(ids))).order_by(Evaluation.id)
    with database.reading() as connection:
        return [row_readers.record(records.Evaluation, row) for row in connection.execute(query)]


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
    """Return a page of an evaluation's samples, filtered by group, full score, or text in prompt and response."""
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
        return records.SamplePage(tuple(row_readers.record(records.Sample, row) for row in rows), total, offset)


def judged_items(
    database: Database, evaluation_id: int
) -> list[tuple[str, float | None, str, dict[str, Any], dict[str, Any]]]:
    """Return every item of an evaluation for paired tests: (key, score, group, verdicts, extra).

    The key is :func:`item_key`: the same id with another prompt is another item.
    """
    columns = (Sample.item, Sample.prompt, Sample.score, Sample.group, Sample.verdicts, Sample.extra)
    query = select(*columns).where(Sample.evaluation_id == evaluation_id).order_by(Sample.id)
    with database.reading() as connection:
        return [(item_key(item, prompt), *rest) for item, prompt, *rest in connection.execute(query)]


def item_key(item: str, prompt: str) -> str:
    """Return the key of an item in paired tests: its id and its first prompt."""
    return f"{item}\x1f{asked(prompt)}"


def asked(prompt: str) -> str:
    """Return the part of a prompt before the first response: later turns of a conversation differ between models."""
    return prompt.split(RESPONSE_MARK)[0]


def decisions(database: Database, *cycle_ids: int, limit: int | None = None) -> list[records.Decision]:
    """Return the decisions about cycles, newest first; at most ``limit``."""
    query = select(Decision.__table__).where(Decision.cycle_id.in_(cycle_ids)).order_by(Decision.id.desc())
    with database.reading() as connection:
        return [row_readers.record(records.Decision, row) for row in connection.execute(query.limit(limit))]


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
    with database.reading() as connection:
        return [row_readers.record(records.Event, row) for row in connection.execute(query.limit(limit))]


def token_numbers(
    database: Database, stage_id: int, name: str = "reverse_kl", *, limit: int = 400
) -> list[records.TokenNumbers]:
    """Return one value per token of a stage's rollouts, by step; the other, much larger values are not read.

    Of more than ``limit`` rollouts the first of each step, as many of each.
    """
    mine = TokenScores.stage_id == stage_id
    number = TokenScores.values[name].label("numbers")
    columns = (TokenScores.id, TokenScores.step, TokenScores.item, TokenScores.tokens, number)
    place = func.row_number().over(partition_by=TokenScores.step, order_by=TokenScores.id).label("place")
    ranked = select(TokenScores.id, place).where(mine).subquery()
    with database.reading() as connection:
        steps = connection.scalar(select(func.count(TokenScores.step.distinct())).where(mine)) or 1
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
        return None if row is None else row_readers.record(records.TokenScores, row, tokens=tuple(row.tokens))


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
