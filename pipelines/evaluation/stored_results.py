"""Results of a checkpoint in the tracker: recording one, and reading the newest of each suite with its items."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from db import Database, StageRecorder, queries, records
from evals.acceptance import Verdict
from evals.behaviour import PREFIX, SUITES
from evals.measurement import Measurement, measurement
from pipelines.runtime.session import Session
from recovery.types import Score, SuiteResult
from recovery.workspace import Checkpoint

# The entry in the settings of an evaluation that another tool made: the path its logs were read from.
IMPORTED = "imported"
# The packages that compose prompts and judge responses.
JUDGING = ("recovery", "lm_eval")


def newest(database: Database, checkpoint: int) -> dict[str, records.Evaluation]:
    """Return the newest evaluation of each suite by name; corpus 2's knowledge is "domain_knowledge/2"."""
    by_suite: dict[str, records.Evaluation] = {}
    for row in queries.evaluations(database, checkpoint, limit=None):  # newest first
        by_suite.setdefault(suite_name(row), row)
    return by_suite


def asked_prompts(database: Database, student: int | None, verdict: Verdict) -> int:
    """Return how many prompts ``--limit`` chose for a suite: a rule may count several instructions of one, and of those
    that most behaviour suites are drawn from only a part.
    """
    suite = records.INSTRUCTIONS[0] if verdict.suite in [PREFIX + one.name for one in SUITES] else verdict.suite
    if suite not in records.INSTRUCTIONS or student is None:
        return verdict.n
    known = newest(database, student).get(suite)
    return 0 if known is None else queries.samples(database, known.id, limit=1).total


def suite_name(row: records.Evaluation) -> str:
    """Return the name of an evaluation's suite with its corpus, if it is about one."""
    return row.suite if row.corpus is None else f"{row.suite}/{row.corpus}"


def other_release(
    database: Database,
    packages: Iterable[str],
    rows: Iterable[records.Evaluation],
    others: Iterable[records.Evaluation],
) -> str:
    """Return the releases of ``packages`` that judged ``others`` and ``rows``, where they differ: "recovery 1.0 and
    1.1". "" if they are the same, or are not known: another tool made them, or people.
    """
    now, other = _releases(database, rows), _releases(database, others)
    differ = [name for name in packages if now[name] and other[name] and now[name] != other[name]]
    return "; ".join(f"{name} {', '.join(sorted(other[name]))} and {', '.join(sorted(now[name]))}" for name in differ)


def _releases(database: Database, rows: Iterable[records.Evaluation]) -> dict[str, set[str]]:
    stages = (queries.stage(database, key) for key in {row.stage_id for row in rows} if key is not None)
    made = [stage for stage in stages if stage is not None and IMPORTED not in stage.config]
    return {name: {stage.versions[name] for stage in made if name in stage.versions} for name in JUDGING}


def result_items(result: SuiteResult) -> Measurement:
    """Return a new result as a measurement, its items keyed as in the tracker."""
    rows = (
        (queries.item_key(one.id, one.prompt), one.score, one.group, one.verdicts, one.extra) for one in result.items
    )
    return replace(measurement(rows), score=result.score)


def items_of(database: Database, row: records.Evaluation) -> Measurement:
    """Return an evaluation's judged items and its score."""
    measured = measurement(queries.judged_items(database, row.id))
    score = None if row.value is None else Score(row.value, row.stderr or 0.0, row.n)
    return replace(measured, score=score)


def scores_json(results: Iterable[SuiteResult]) -> dict[str, Any]:
    """Return the scores of suites under the names of ``recover status --json``; suites that were not measured are
    omitted.

    {"instruction_following": {"value", "stderr", "n"}, "domain_knowledge": {...}, "domain_knowledge_stored": {...},
    "domain_knowledge_by_corpus": {"1": {...}}, "domain_knowledge_stored_by_corpus": {...},
    "bits_per_byte_by_corpus": {"1": {...}}, "general": {...}}
    """
    scores: dict[str, Any] = {}
    for result in results:
        name, _, corpus = result.suite.partition("/")
        if corpus and name in records.PER_CORPUS:
            scores.setdefault(name + records.BY_CORPUS, {})[corpus] = vars(result.score)
        else:
            scores[result.suite] = vars(result.score)
    return scores


def record_result(session: Session, recorder: StageRecorder, checkpoint: Checkpoint, result: SuiteResult) -> None:
    """Record a suite's result in the tracker; "NAME/3" is the suite NAME of corpus 3."""
    suite, _, corpus = result.suite.partition("/")
    by_corpus = suite in records.PER_CORPUS and corpus.isdigit()
    assert checkpoint.id is not None  # registered before the stage began
    session.tracker.add_evaluation(
        checkpoint.id,
        suite if by_corpus else result.suite,
        value=result.score.value,
        stderr=result.score.stderr,
        n=result.score.n,
        name="strict" if suite == "instruction_following" else "score",
        corpus=int(corpus) if by_corpus else None,
        details=dict(result.details),
        items=result.items,
        by=recorder,
    )
