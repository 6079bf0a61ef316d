"""Log page: what happened in an experiment and when, newest first: stages, checkpoints, decisions, notes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dashboard import markup
from dashboard.formatting import DASH, ago, duration
from dashboard.markup import STAGE_WORDS, esc
from dashboard.pages import common
from dashboard.tracker_source import Source
from db import Database, queries
from db.records import Experiment

NAME = "Log"
SHOWN = 200
TONES = {"finished": "good", "interrupted": "warn", "failed": "bad", "accepted": "good", "rejected": "bad",
         "rolled_back": "bad", "warning": "warn", "error": "bad"}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One thing that happened; ``what`` is HTML, ``status`` and ``words`` are text."""

    at: float
    what: str
    cycle: int | None
    status: str
    words: str


def text(source: Source, experiment: Experiment, asked: dict[str, str]) -> str:
    """Return the page's HTML."""
    database, kind = source.database(), asked.get("kind", "")
    kind = kind if kind in KINDS else ""
    entries = [entry for name, read in KINDS.items() if kind in ("", name) for entry in read(database, experiment)]
    newest = sorted(entries, key=lambda entry: entry.at, reverse=True)[:SHOWN]
    here = common.address("log", experiment=experiment.name)
    links = [(here, "All", not kind)] + [(f"{here}&kind={name}", name.capitalize(), name == kind) for name in KINDS]
    tabs = markup.tabs("Kind of entry", links)
    if not newest:
        return tabs + markup.notice(
            "Nothing has happened yet" if not kind else f"No {kind} yet",
            f"What happens in experiment {experiment.name} appears here.",
            ["recover cycle --docs ./my-documents"],
        )
    counted = common.numbered(len(newest), "entry", "entries")
    title = counted if len(newest) < SHOWN else f"The newest {counted}"  # each kind is read up to that number
    columns = ("When", "What", "Cycle", "Status", "Note")
    table = markup.table(columns, map(_cells, newest), caption="Newest first; times in UTC")
    return markup.hero(esc(f"Experiment {experiment.name}"), esc(title)) + tabs + f'<div class="card">{table}</div>'


build = common.text_page(NAME, text)


def _cells(entry: Entry) -> list[str]:
    when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(entry.at))
    status = markup.chip(entry.status.replace("_", " "), TONES.get(entry.status, "")) if entry.status else ""
    return [
        f'<time title="{esc(ago(entry.at))}">{when}</time>',
        entry.what,
        DASH if entry.cycle is None else str(entry.cycle),
        status,
        esc(entry.words),
    ]


def _stages(database: Database, experiment: Experiment) -> Iterator[Entry]:
    """Yield the start of every stage, and its end."""
    for stage in queries.stages(database, experiment.id, limit=SHOWN):
        address, kind = common.live_address(experiment.name, stage), STAGE_WORDS[stage.kind]
        name = f'<a href="{esc(address)}">{esc(kind)}</a>'
        again = f"attempt {stage.attempts}" if stage.attempts > 1 else ""
        yield Entry(stage.started_at, f"{name} started", stage.cycle, "", again)
        if stage.finished_at is not None:
            reason = stage.error or (stage.stopped if stage.stopped not in ("", stage.status) else "")
            steps = f"{stage.steps:,} steps in " if stage.steps else ""
            done = f"{steps}{duration(stage.wall_seconds)}"
            words = f"{reason}; {done}" if reason else done
            yield Entry(stage.finished_at, f"{name} ended", stage.cycle, stage.status, words)


def _checkpoints(database: Database, experiment: Experiment) -> Iterator[Entry]:
    for one in queries.checkpoints(database, experiment.id):
        notes = [f"from {one.parent}"] if one.parent else []
        notes += [f"pruned on {one.details['pruned']}"] if one.details.get("pruned") else []
        yield Entry(one.created_at, f"Checkpoint {esc(one.name)}", one.cycle, "", "; ".join(notes))


def _decisions(database: Database, experiment: Experiment) -> Iterator[Entry]:
    numbers = {cycle.id: cycle.number for cycle in queries.cycles(database, experiment.id)}
    for one in queries.decisions(database, *numbers, limit=SHOWN):
        yield Entry(one.created_at, f"Decision by {esc(one.who)}", numbers[one.cycle_id], one.decision, one.why)


def _notes(database: Database, experiment: Experiment) -> Iterator[Entry]:
    numbers = {cycle.id: cycle.number for cycle in queries.cycles(database, experiment.id)}
    for one in queries.events(database, experiment.id, limit=SHOWN):
        level = "" if one.level == "info" else one.level
        number = numbers.get(one.cycle_id) if one.cycle_id is not None else None
        yield Entry(one.created_at, esc(one.kind.replace("_", " ").capitalize()), number, level, one.message)


KINDS: dict[str, Callable[[Database, Experiment], Iterator[Entry]]] = {
    "stages": _stages,
    "checkpoints": _checkpoints,
    "decisions": _decisions,
    "notes": _notes,
}
