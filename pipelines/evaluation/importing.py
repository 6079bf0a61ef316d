"""Records results that another tool measured, as an evaluation of a checkpoint."""

from __future__ import annotations

import hashlib
from pathlib import Path

from evals.imported_log import ImportedLog
from evals.imported_results import Imported, read_logs
from pipelines.evaluation.stored_results import IMPORTED, record_result
from pipelines.runtime.checkpoint_names import find
from pipelines.runtime.session import Session
from pipelines.runtime.versions import versions
from recovery.errors import UsageError
from recovery.types import SuiteResult
from recovery.workspace import Checkpoint


def import_results(session: Session, name: str, path: Path) -> tuple[Checkpoint, list[SuiteResult]]:
    """Record the results in another tool's logs as an evaluation of the checkpoint ``name``.

    A name that is not known is registered as ``external/NAME``, a checkpoint without weights. Raises UsageError if the
    logs cannot be used; nothing is recorded then.
    """
    imported = read_logs(path)
    for problem in imported.problems:
        session.display.say(problem)
    checkpoint = _checkpoint(session, name, imported)
    results = [result for log in imported.logs for result in log.results if imported.newest[result.suite] is log]
    config = {IMPORTED: str(path), "logs": [_origin(log) for log in imported.logs if log.results]}
    recorder = session.tracker.start_stage(
        session.experiment_id,
        "evaluate",
        cycle_id=None if checkpoint.cycle is None else session.cycle_id(checkpoint.cycle),
        config=config,
        versions=versions(),
        student_id=checkpoint.id,
    )
    session.copies.add(recorder.id)
    with recorder:
        for result in results:
            record_result(session, recorder, checkpoint, result)
        recorder.describe(details={"suites": [result.suite for result in results]})
    return checkpoint, results


def _checkpoint(session: Session, name: str, imported: Imported) -> Checkpoint:
    """Return the registered checkpoint of this name; if there is none, a new one without weights."""
    full = name if name.startswith("external/") else f"external/{name}"
    found = find(name, session.registry) or find(full, session.registry)
    if found is not None:
        return found
    if name.startswith("cycle-") or name in ("base", "latest", "midtrained", "recovered"):
        raise UsageError(f"there is no checkpoint {name!r} yet: give the name of one, or a new name for this model")
    session.tracker.add_checkpoint(
        session.experiment_id,
        full,
        "external",
        path=session.workspace.stored(session.workspace.folder / "imported" / name.replace("/", "-")),
        parent_id=session.base.id,
        details={IMPORTED: sorted({log.model for log in imported.logs if log.model})},
    )
    found = find(full, session.registry)
    assert found is not None
    return found


def _origin(log: ImportedLog) -> dict[str, str]:
    """Return what identifies a log: its tool, its model and its contents."""
    return {
        "tool": f"{log.tool} {log.version}".strip(),
        "model": log.model,
        "date": log.date,
        "file": log.file.name,
        "sha256": hashlib.sha256(log.file.read_bytes()).hexdigest(),
    }
