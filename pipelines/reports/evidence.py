"""Collection of the evidence for a cycle's last judgement from the tracker, as a bundle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import PurePath
from typing import Any

from db import Database, queries, records, reviews
from evals.acceptance import Decision
from evals.beyond_constant import NEEDED
from evals.domain_pmi import CELLS
from evals.statistics import is_headline
from pipelines.evaluation.acceptance import last_judgement, no_cycle
from pipelines.evaluation.stored_results import items_of, suite_name
from pipelines.reports.bundle import checks, pack, sha256
from pipelines.runtime.session import Session
from recovery.errors import UsageError

_MOST_ITEMS = 1_000_000


def evidence_bundle(session: Session, number: int, *, responses: bool = False) -> bytes:
    """Return the evidence for a cycle's last judgement; with ``responses`` also the texts of prompts and responses.

    Raises UsageError if there is no such cycle, if the gate has not judged it, or if the items in the tracker do not
    give the recorded verdicts.
    """
    cycle = session.cycles().get(number)
    if cycle is None:
        raise no_cycle(number, session.cycles())
    judged = last_judgement(session, cycle.id)
    if judged is None or "evaluations" not in judged.data:
        raise UsageError(f"cycle {number} has no judgement to prove: run `recover gate {number}` first")
    database, used = session.tracker.database, judged.data["evaluations"]
    rows = queries.find_evaluations(
        database, {one for suites in used.values() for ids in suites.values() for one in ids}
    )
    checkpoints = {one.id: one for one in queries.checkpoints(database, session.experiment_id)}
    files = {
        "cycle.json": _about(session, cycle, rows),
        "evaluations.json": {
            str(row.id): {
                "checkpoint": checkpoints[row.checkpoint_id].name,
                "suite": suite_name(row),
                "score": asdict(score) if (score := items_of(database, row).headline) is not None else None,
                "evaluated_at": row.created_at,
                "stage": row.stage_id,
            }
            for row in rows
        },
        "judgement.json": {
            "cycle": number,
            "judged_at": judged.created_at,
            "evaluations": used,
            "decision": {one.name: judged.data[one.name] for one in fields(Decision)},
        },
    }
    data = pack(files, {row.id: list(_items(database, row, responses)) for row in rows})
    try:
        list(checks(data))
    except UsageError as error:
        raise UsageError(
            f"the tracker's items do not give the recorded judgement of cycle {number} ({error}): "
            f"run `recover gate {number}` again with its rules"
        ) from error
    return data


def _items(database: Database, row: records.Evaluation, responses: bool) -> Iterator[Mapping[str, Any]]:
    """Yield the items of an evaluation in their order, on which sums depend."""
    for one in queries.samples(database, row.id, limit=_MOST_ITEMS).samples:
        yield {
            "item": one.item,
            "prompt_sha256": sha256(queries.asked(one.prompt)),
            "response_sha256": sha256(one.response),
            "group": one.group,
            "score": one.score,
            "verdicts": one.verdicts,
            "headline": is_headline(one.extra),
            **{name: one.extra[name] for name in (*NEEDED, *CELLS) if name in one.extra},
            **({"votes": one.extra["votes"]} if "votes" in one.extra else {}),
            **({"prompt": one.prompt, "response": one.response} if responses else {}),
        }


def _about(session: Session, cycle: records.Cycle, rows: Sequence[records.Evaluation]) -> dict[str, Any]:
    """Return the cycle's checkpoints, corpora and decisions, and the stages that trained and evaluated them."""
    database = session.tracker.database
    measured = {row.checkpoint_id for row in rows}
    stages = {one.id: one for one in queries.stages(database, session.experiment_id, cycle_id=cycle.id, limit=1000)}
    by = {row.stage_id for row in rows if row.stage_id is not None} - stages.keys()
    stages |= {one.id: one for one in queries.find_stages(database, ids=sorted(by), limit=len(by))}
    return {
        "cycle": cycle.number,
        "base_model": _without_folders(session.workspace.settings().get("model")),
        "checkpoints": {
            one.name: {"kind": one.kind, "parent": one.parent, "hash": one.content_hash, "tuning": one.tuning}
            for one in queries.checkpoints(database, session.experiment_id)
            if one.id in measured or one.cycle_id == cycle.id
        },
        "corpora": {
            str(number): {"documents_hash": one.corpus_hash, "probes_hash": one.details.get("probes_hash")}
            for number, one in session.cycles().items()
            if number <= cycle.number
        },
        **_reviewed(session, cycle.number),
        "decisions": [
            {"decision": one.decision, "who": one.who, "why": one.why, "at": one.created_at, "evidence": one.evidence}
            for one in queries.decisions(database, cycle.id)
        ],
        "stages": {
            str(one.id): {
                "kind": one.kind,
                "seed": one.seed,
                "settings": _without_folders(one.config),
                "versions": one.versions,
                "recorded": one.details.get("recorded"),
            }
            for one in sorted(stages.values(), key=lambda stage: stage.id)
        },
    }


def _without_folders(settings: Any) -> Any:
    """Return settings with the last name of each path: a bundle is passed on, and hashes say which files were meant."""
    if isinstance(settings, dict):
        return {name: _without_folders(value) for name, value in settings.items()}
    if isinstance(settings, list):
        return [_without_folders(value) for value in settings]
    return PurePath(settings).name if isinstance(settings, str) and PurePath(settings).is_absolute() else settings


def _reviewed(session: Session, number: int) -> dict[str, list[dict[str, Any]]]:
    """Return every vote on the cycle's last checkpoint, with its seed and side, and every label of a lost answer."""
    database, row = session.tracker.database, session.registry.cycle_row(number)
    reviewed: dict[str, list[dict[str, Any]]] = {"votes": [], "labels": []}
    if row is None or row.end is None:
        return reviewed
    for other in reviews.compared(row).values():
        names = {"first": other.name, "second": row.end.checkpoint.name}
        for vote in reviews.votes(database, other.id, row.end.checkpoint.id, earlier=True):
            kept = {name: getattr(vote, name) for name in ("suite", "scope", "seed", "item", "reviewer", "choice")}
            kept |= {"on_left": vote.on_left, "at": vote.created_at}
            reviewed["votes"].append(names | kept | {"prompt_sha256": sha256(queries.asked(vote.prompt))})
        for label in reviews.labels(database, other.id, row.end.checkpoint.id, earlier=True):
            kept = {name: getattr(label, name) for name in ("suite", "item", "reviewer", "label", "note")}
            kept |= {"at": label.created_at, "response_sha256": sha256(label.second_response)}
            reviewed["labels"].append(names | kept | {"prompt_sha256": sha256(queries.asked(label.prompt))})
    return reviewed
