"""Artifacts: what was made of a cycle's checkpoint to be served, how the gate judged it, and which one is in service.

The newest event about service decides which artifact is in service. A cycle that is rejected or rolled back takes its
own artifact out of service: the one that was in service before has to be served again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from db import queries, records
from db.schema import ARTIFACT, DISCARDED
from db.session import Database

PREFIX = "artifact/"  # of their names
JUDGED, SERVICE = "artifact_gate", "service"
"""Kinds of the events: a judgement of the gate, and an artifact that is put in service."""
SHIPS = {"accept": "ships as accepted", "reject": "does not ship", "undecided": "undecided"}
_MOST_EVENTS = 1000  # events of a kind that are read


@dataclass(frozen=True)
class Artifact:
    """An artifact, the checkpoint that it was made from, and the newest judgement of it."""

    checkpoint: records.Checkpoint
    source: records.Checkpoint
    judgement: records.Event | None = None

    @property
    def about(self) -> Mapping[str, Any]:
        """What it is: file, sha256, runtime, build, quantisation, template."""
        return self.checkpoint.details.get(ARTIFACT, {})

    @property
    def words(self) -> str:
        """What it is, in words."""
        parts = [self.about.get("quantisation"), self.about.get("runtime"), self.about.get("build")]
        return ", ".join(str(part) for part in parts if part)

    @property
    def file(self) -> str:
        """The file to serve, with its hash; the name of a remote server's model if there is none."""
        digest = str(self.about.get("sha256") or "")
        return f"{self.about.get('file') or self.about.get('model')}" + (f" (sha256 {digest[:16]})" if digest else "")

    @property
    def verdict(self) -> str:
        """The newest judgement in words; "not judged" if there is none."""
        if self.judgement is None:
            return "not judged"
        return SHIPS[str(self.judgement.data["decision"])]

    @property
    def points(self) -> list[str]:
        """How many points each suite lost when it was judged, with the 95% interval."""
        compared = () if self.judgement is None else self.judgement.data.get("compared", ())
        return [
            f"{one['name']} {100 * one['difference']:+.1f} ({100 * one['low']:+.1f} to {100 * one['high']:+.1f})"
            for one in compared
        ]

    @property
    def lost_count(self) -> int:
        """How many items it lost, of which :attr:`lost` may list a part."""
        counts = {} if self.judgement is None else self.judgement.data.get("lost_counts", {})
        return sum(counts.values())

    @property
    def lost(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The items that it lost, with their suites: prompt, the source's response, and its own."""
        by_suite = {} if self.judgement is None else self.judgement.data.get("lost", {})
        return [(suite, one) for suite, items in by_suite.items() for one in items]


def artifacts(database: Database, experiment_id: int, cycle: int | None = None) -> list[Artifact]:
    """Return the artifacts of an experiment, newest first; of one cycle's checkpoints if it is given."""
    known = {row.id: row for row in queries.checkpoints(database, experiment_id)}
    judgements: dict[int, records.Event] = {}
    for event in queries.events(database, experiment_id, kind=JUDGED, limit=_MOST_EVENTS):  # newest first
        judgements.setdefault(int(event.data["artifact_id"]), event)
    rows = [
        Artifact(row, known[row.parent_id], judgements.get(row.id))
        for row in known.values()
        if row.kind == ARTIFACT and row.parent_id in known
    ]
    return [artifact for artifact in reversed(rows) if cycle is None or artifact.source.cycle == cycle]


def standing(database: Database, experiment_id: int, cycle: int) -> list[tuple[Artifact, str]]:
    """Return the artifacts of a cycle with their state: "in service", "in service before", or nothing."""
    now, before = in_service(database, experiment_id)
    words = {one.checkpoint.id: word for one, word in ((before, "in service before"), (now, "in service")) if one}
    return [(one, words.get(one.checkpoint.id, "")) for one in artifacts(database, experiment_id, cycle)]


def in_service(database: Database, experiment_id: int) -> tuple[Artifact | None, Artifact | None]:
    """Return the artifact in service and the one that was before it, those of discarded cycles left out."""
    discarded = {one.number for one in queries.cycles(database, experiment_id) if one.decision in DISCARDED}
    known = {one.checkpoint.id: one for one in artifacts(database, experiment_id)}
    events = queries.events(database, experiment_id, kind=SERVICE, limit=_MOST_EVENTS)
    recorded = (known.get(int(event.data["artifact_id"])) for event in events)
    kept = (one for one in recorded if one is not None and one.source.cycle not in discarded)
    served = list({one.checkpoint.id: one for one in kept}.values())
    return (served[0] if served else None), (served[1] if len(served) > 1 else None)
