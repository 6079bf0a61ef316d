"""The tracker's reads: each opens one short transaction and returns plain records. Every list is bounded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, exists, func, select, true
from sqlalchemy.orm import InstrumentedAttribute

from db import read, records
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
"""The suites of the trade-off that mid-training makes."""


def experiments(database: Database, *, prefix: str = "", limit: int = 200) -> list[records.Experiment]:
    """Experiments, newest first; with ``prefix`` those whose names begin so."""
    condition = Experiment.name.startswith(prefix, autoescape=True) if prefix else true()
    with database.reading() as connection:
        return read.experiments(connection, condition, limit=limit)


def experiment_names(database: Database, *, limit: int = 200) -> list[str]:
    """The names of experiments, newest first."""
    with database.reading() as connection:
        return list(connection.scalars(select(Experiment.name).order_by(Experiment.id.desc()).limit(limit)))


def newest_experiment(database: Database, *, but: str) -> records.Experiment | None:
    """The newest experiment whose name does not begin with ``but``; the newest of all where each does."""
    others = ~Experiment.name.startswith(but, autoescape=True)
    with database.reading() as connection:
        found = read.experiments(connection, others, limit=1) or read.experiments(connection, true(), limit=1)
        return next(iter(found), None)


def experiment(database: Database, name_or_id: str | int) -> records.Experiment | None:
    """One experiment by its name or its id."""
    column: InstrumentedAttribute[Any] = Experiment.id if isinstance(name_or_id, int) else Experiment.name
    with database.reading() as connection:
        return next(iter(read.experiments(connection, column == name_or_id)), None)


def cycles(database: Database, experiment_id: int) -> list[records.Cycle]:
    """The cycles of an experiment by number, each with its newest decision."""
    with database.reading() as connection:
        return read.cycles(connection, [experiment_id], details=True)


def stages(
    database: Database,
    experiment_id: int,
    *,
    cycle_id: int | None = None,
    kind: str | None = None,
    limit: int = 200,
) -> list[records.Stage]:
    """Stages, newest first."""
    query = read.stage_query().where(Stage.experiment_id == experiment_id)
    query = query if cycle_id is None else query.where(Stage.cycle_id == cycle_id)
    query = query if kind is None else query.where(Stage.kind == kind)
    with database.reading() as connection:
        return read.stages(connection, query.limit(limit))


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
        return read.stages(connection, read.stage_query().where(*conditions).limit(limit))


def stage(database: Database, stage_id: int) -> records.Stage | None:
    """One stage."""
    with database.reading() as connection:
        return next(iter(read.stages(connection, read.stage_query().where(Stage.id == stage_id))), None)


def running_stage(database: Database, experiment_id: int | None = None) -> records.Stage | None:
    """The newest stage that really runs, of one experiment or of all."""
    with database.reading() as connection:
        return read.running(connection, experiment_id)


def checkpoints(database: Database, experiment_id: int) -> list[records.Checkpoint]:
    """Every checkpoint of an experiment, oldest first."""
    query = read.checkpoint_query().where(Checkpoint.experiment_id == experiment_id).order_by(Checkpoint.id)
    with database.reading() as connection:
        return [read.record(records.Checkpoint, row) for row in connection.execute(query)]


def checkpoint(database: Database, experiment_id: int, name: str) -> records.Checkpoint | None:
    """A checkpoint by name; "latest" is the one the experiment goes on from."""
    if name == "latest":
        return latest(database, experiment_id)
    query = read.checkpoint_query().where(Checkpoint.experiment_id == experiment_id, Checkpoint.name == name)
    with database.reading() as connection:
        return read.first(records.Checkpoint, connection, query)


def made_by(database: Database, stage_ids: Iterable[int]) -> dict[int, records.Checkpoint]:
    """The newest checkpoint that each of the stages made."""
    query = read.checkpoint_query().where(Checkpoint.stage_id.in_(list(stage_ids))).order_by(Checkpoint.id)
    with database.reading() as connection:
        return {row.stage_id: read.record(records.Checkpoint, row) for row in connection.execute(query)}


def latest(database: Database, experiment_id: int) -> records.Checkpoint | None:
    """The checkpoint the next stage works on."""
    with database.reading() as connection:
        return read.latest(connection, experiment_id)


def scores(database: Database, checkpoint_id: int) -> records.Scores:
    """The newest score of a checkpoint in every suite."""
    return scores_of(database, [checkpoint_id])[checkpoint_id]


def scores_of(database: Database, checkpoint_ids: Iterable[int]) -> dict[int, records.Scores]:
    """``scores`` of several checkpoints by id, in one query."""
    with database.reading() as connection:
        return read.scores(connection, list(checkpoint_ids))


def overview(database: Database, experiment_id: int, *, details: bool = True) -> records.Overview | None:
    """An experiment's cycles with every checkpoint's scores; None if there is no such experiment.

    Without ``details`` those of cycles, their evidence, are left empty: it is the larger part of what is read.
    """
    with database.reading() as connection:
        found = next(iter(read.experiments(connection, Experiment.id == experiment_id)), None)
        if found is None:
            return None
        cycles = read.cycles(connection, [experiment_id], details=details)
        known = read.standing(connection, [experiment_id])
        whole = read.overview(found, cycles, known, read.scores(connection, [one.id for one in known]))
        return replace(
            whole, latest=read.latest(connection, experiment_id), running=read.running(connection, experiment_id)
        )


def paths(database: Database, experiment_ids: Sequence[int]) -> list[records.Overview]:
    """Overviews of several experiments with the scores of the trade-off alone: a dozen as quickly as one in full.

    Neither ``latest`` nor ``running`` is read, nor details of cycles. In the order of the ids; what is not there is
    left out.
    """
    with database.reading() as connection:
        experiments = {one.id: one for one in read.experiments(connection, Experiment.id.in_(experiment_ids))}
        cycles, known = read.cycles(connection, list(experiments)), read.standing(connection, list(experiments))
        scores = read.scores(connection, [one.id for one in known], TRADE)
    return [
        read.overview(
            experiments[number],
            [cycle for cycle in cycles if cycle.experiment_id == number],
            [one for one in known if one.experiment_id == number],
            scores,
        )
        for number in experiment_ids
        if number in experiments
    ]


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
        return [read.record(records.Evaluation, row) for row in rows]


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
        return records.SamplePage(tuple(read.record(records.Sample, row) for row in rows), total, offset)


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
        return [read.record(records.Decision, row) for row in connection.execute(query)]


def events(
    database: Database, experiment_id: int, *, kind: str | None = None, stage_id: int | None = None, limit: int = 100
) -> list[records.Event]:
    """What happened in an experiment, newest first; of one kind, or in one stage, where that is given."""
    query = select(Event.__table__).where(Event.experiment_id == experiment_id).order_by(Event.id.desc())
    query = query if kind is None else query.where(Event.kind == kind)
    query = query if stage_id is None else query.where(Event.stage_id == stage_id)
    with database.reading() as connection:
        return [read.record(records.Event, row) for row in connection.execute(query.limit(limit))]


def token_scores(
    database: Database, stage_id: int, step: int | None = None, *, limit: int = 50
) -> list[records.TokenScores]:
    """Rollouts with numbers a token, of one step or the newest ones."""
    query = select(TokenScores.__table__).where(TokenScores.stage_id == stage_id)
    query = query if step is None else query.where(TokenScores.step == step)
    with database.reading() as connection:
        rows = connection.execute(query.order_by(TokenScores.step.desc(), TokenScores.id).limit(limit))
        return [read.record(records.TokenScores, row, tokens=tuple(row.tokens)) for row in rows]


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
        return None if row is None else read.record(records.TokenScores, row, tokens=tuple(row.tokens))


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
