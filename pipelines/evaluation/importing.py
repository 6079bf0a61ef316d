"""Records results that another tool measured, as an evaluation of a checkpoint."""

from __future__ import annotations

import hashlib
from pathlib import Path

from evals.imported_results import Imported, ImportedLog, read_logs
from pipelines.evaluation.stored_results import IMPORTED, record_result
from pipelines.runtime.checkpoint_names import find
from pipelines.runtime.session import Session
from pipelines.runtime.versions import versions
from recovery.errors import UsageError
from recovery.types import SuiteResult
from recovery.workspace import Checkpoint

EXTERNAL = "external/"


def read_import(name: str, path: Path) -> Imported:
    """Read the results in another tool's logs, to be recorded for the checkpoint ``name``; needs no workspace.

    Raises UsageError if the name is empty or the logs cannot be used.
    """
    if not name.removeprefix(EXTERNAL).strip("/ "):
        raise UsageError(f"the name {name!r} is empty: say whose results are in {path}, as in external/NAME")
    return read_logs(path)


def target(session: Session, name: str) -> tuple[str, Checkpoint | None]:
    """Return the name under which results of ``name`` are recorded, and its checkpoint, None if it is a new one.

    A name that is not known becomes ``external/NAME``. Raises UsageError for the name of a cycle's or the clean model
    that does not exist.
    """
    full = name if name.startswith(EXTERNAL) else f"{EXTERNAL}{name}"
    found = find(name, session.registry) or find(full, session.registry)
    if found is not None:
        return found.name, found
    if name.startswith("cycle-") or name in ("base", "latest", "midtrained", "recovered"):
        raise UsageError(f"there is no checkpoint {name!r} yet: give the name of one, or a new name for this model")
    return full, None


def import_results(session: Session, name: str, path: Path, imported: Imported) -> tuple[Checkpoint, list[SuiteResult]]:
    """Record the results that :func:`read_import` read from ``path`` as an evaluation of the checkpoint ``name``.

    A name that is not known is registered, as a checkpoint without weights; see :func:`target`.
    """
    checkpoint, results = _checkpoint(session, name, imported), imported.results
    used = [log for log in imported.logs if log.results]
    groups = sorted({group for log in used for group in log.groups})
    # As an evaluation of our own has them: the gate tells the suites of two groups apart by them.
    config = {IMPORTED: str(path), "logs": [_origin(log) for log in used], "tasks": groups}
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
    full, found = target(session, name)
    if found is not None:
        return found
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
