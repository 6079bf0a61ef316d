"""Downloads: all metric points, samples and scores as CSV or JSON (not downsampled), and cycle reports."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Response
from fastapi import Path as InPath

from dashboard.access import Access
from dashboard.ask_process import ERROR
from dashboard.tracker_source import Source
from db import DatabaseError, queries, reviews
from db.records import Evaluation, Experiment

_LOG = logging.getLogger(__name__)
_REPORTS = {"html": "text/html; charset=utf-8", "md": "text/markdown; charset=utf-8"}
# Characters that begin a formula in a spreadsheet: also line breaks before one, and full-width forms.
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")
_LONGEST = 120.0  # seconds a report may take
_TYPES = {"csv": "text/csv; charset=utf-8", "json": "application/json"}
_SAMPLED = ("item", "group", "prompt", "response", "score", "verdicts")
_SCORED = ("checkpoint", "kind", "cycle", "suite", "value", "stderr", "n", "evaluation", "created_at", "newest")
_ABOUT = ("suite", "item", "prompt", "first_response", "second_response", "reviewer")
_REVIEWED = {
    "votes": (*_ABOUT, "choice", "on_left", "scope", "seed", "current", "created_at"),
    "labels": (*_ABOUT, "label", "note", "current", "created_at"),
}
Rows = Iterable[Mapping[str, Any]]
Number = Annotated[int, InPath(ge=0, le=2**31 - 1)]
"""A number in an address: an id that a database can have."""
Cycle = Annotated[int, InPath(ge=1, le=2**31 - 1)]
"""The number of a cycle."""
_WRITING = threading.BoundedSemaphore(2)  # reports at once: each is a process


def add_routes(api: FastAPI, source: Source, access: Access) -> None:
    """Add the routes ``download/stage/ID.csv``, ``download/evaluation/ID.json``,
    ``download/overview.csv?experiment=NAME``, ``download/votes.csv?first=NAME&second=NAME``, the same for labels, and
    ``download/report/CYCLE.html``.
    """

    @api.get("/download/stage/{number}.{kind}")
    def stage(number: Number, kind: str) -> Response:
        return _send(f"stage-{number}", kind, ("metric", "step", "value", "time"), _points(source, number))

    @api.get("/download/evaluation/{number}.{kind}")
    def evaluation(number: Number, kind: str) -> Response:
        return _send(f"evaluation-{number}", kind, (*_SAMPLED, "headline"), _samples(source, number))

    @api.get("/download/overview.{kind}")
    def overview(kind: str, experiment: str | None = None) -> Response:
        return _send("overview", kind, _SCORED, _scores(source, experiment))

    @api.get("/download/{what}.{kind}")
    def reviewed(what: str, kind: str, first: str, second: str, experiment: str | None = None) -> Response:
        if what not in _REVIEWED:
            raise HTTPException(404, "votes and labels are available")
        return _send(what, kind, _REVIEWED[what], _reviewed(source, what, experiment, first, second))

    @api.get("/download/report/{cycle}.{kind}")
    def report(cycle: Cycle, kind: str, sec_fetch_site: Annotated[str, Header()] = "") -> Response:
        if access.read_only:  # `recover report` writes: it stores the tests of the cycle
            text = f"this dashboard was started with --read-only: run `recover report {cycle}` in the workspace"
            raise HTTPException(403, text)
        if sec_fetch_site == "cross-site":  # an image on any page would start a process here
            raise HTTPException(403, "a report is not written for another site: download it on the page Cycle")
        if kind not in _REPORTS:
            raise HTTPException(404, "reports are available as html and md")
        heading = {"content-disposition": f'attachment; filename="cycle-{cycle}.{kind}"'}
        return Response(_report(source, cycle, kind), media_type=_REPORTS[kind], headers=heading)


def _report(source: Source, cycle: int, kind: str) -> bytes:
    """Return a report written by a subprocess, so that no model library is loaded here."""
    workspace = source.workspace()
    if workspace is None:
        raise HTTPException(404, "this database has no workspace here: run `recover report` in its workspace")
    if not _WRITING.acquire(blocking=False):
        raise HTTPException(429, "other reports are being written: try again in a moment")
    with contextlib.ExitStack() as stack:
        stack.callback(_WRITING.release)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        command = [sys.executable, "-m", "recovery", "report", str(cycle), "--workspace", str(workspace)]
        env = os.environ | source.environment()
        try:
            done = subprocess.run(
                [*command, "--out", folder], capture_output=True, text=True, timeout=_LONGEST, check=False, env=env
            )
        except subprocess.TimeoutExpired:
            text = f"the report took more than {_LONGEST:.0f} seconds: run `recover report {cycle}` in the workspace"
            raise HTTPException(503, text) from None
        if done.returncode == 0:
            return (Path(folder) / f"cycle-{cycle}.{kind}").read_bytes()
    last = (done.stderr.strip().splitlines() or [""])[-1]
    if last.startswith(ERROR):
        raise HTTPException(404, last.removeprefix(ERROR))
    _LOG.error("the report of cycle %s failed: %s", cycle, done.stderr.strip())
    raise HTTPException(500, "the report could not be written: the dashboard's terminal says why")


def _send(name: str, kind: str, columns: Sequence[str], rows: Rows) -> Response:
    if kind not in _TYPES:
        raise HTTPException(404, "downloads are available as csv and json")
    try:
        if kind == "csv":
            text = csv_text(columns, rows)
        else:
            kept = ({column: row.get(column) for column in columns} for row in rows)
            text = "[" + ",".join("\n" + json.dumps(row, ensure_ascii=False) for row in kept) + "\n]\n"
    except DatabaseError as error:
        raise HTTPException(404, str(error)) from error
    heading = {"content-disposition": f'attachment; filename="{name}.{kind}"'}
    return Response(text, media_type=_TYPES[kind], headers=heading)


def csv_text(columns: Sequence[str], rows: Rows) -> str:
    """Return rows as CSV; what is no single value as JSON."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(columns)
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    """Return a cell that no spreadsheet reads as a formula: such text is prefixed with a quote.

    Only the first character counts, so that lists in Markdown stay unchanged: a spreadsheet must split at commas.
    """
    if isinstance(value, Mapping | list | tuple):
        value = json.dumps(value, ensure_ascii=False)
    return f"'{value}" if isinstance(value, str) and value[:1] in _FORMULA else value


def _points(source: Source, stage: int) -> Rows:
    database = source.database()
    if queries.stage(database, stage) is None:
        raise DatabaseError(f"there is no stage {stage}")
    for name, points in queries.series(database, stage, None, max_points=None).items():
        for point in points:
            yield {"metric": name, "step": point.step, "value": point.value, "time": point.time}


def _samples(source: Source, evaluation: int) -> Rows:
    page = queries.samples(source.database(), evaluation, limit=1_000_000)
    if not page.total:
        raise DatabaseError(f"evaluation {evaluation} has no samples")
    for sample in page.samples:
        # The suite's score is the mean over these alone.
        headline = sample.extra.get("headline", True)
        yield {name: getattr(sample, name) for name in _SAMPLED} | {"headline": headline}


def _scores(source: Source, experiment: str | None) -> Rows:
    database, chosen = source.database(), _experiment(source, experiment)
    for checkpoint in queries.checkpoints(database, chosen.id):
        rows = queries.evaluations(database, checkpoint.id, limit=None)[::-1]
        newest = {_suite(row): row.id for row in rows} if checkpoint.superseded_at is None else {}
        for row in rows:
            yield {
                "checkpoint": checkpoint.name,
                "kind": checkpoint.kind,
                "cycle": checkpoint.cycle,
                "suite": _suite(row),
                "value": row.value,
                "stderr": row.stderr,
                "n": row.n,
                "evaluation": row.id,
                "created_at": row.created_at,
                "newest": newest.get(_suite(row)) == row.id,
            }


def _experiment(source: Source, name: str | None) -> Experiment:
    experiment = source.experiment(name)
    if experiment is None:
        raise DatabaseError(f"there is no experiment {name or ''}")
    return experiment


def _suite(row: Evaluation) -> str:
    return row.suite if row.corpus is None else f"{row.suite}/{row.corpus}"


def _reviewed(source: Source, what: str, experiment: str | None, first: str, second: str) -> Rows:
    """Yield all votes or labels on two checkpoints."""
    database, chosen = source.database(), _experiment(source, experiment)
    one, two = (queries.checkpoint(database, chosen.id, name) for name in (first, second))
    if one is None or two is None:
        raise DatabaseError(f"there is no checkpoint {first if one is None else second}")
    read: Any = reviews.votes if what == "votes" else reviews.labels
    for row in read(database, *sorted((one.id, two.id)), earlier=True):
        yield {name: getattr(row, name) for name in _REVIEWED[what]}
