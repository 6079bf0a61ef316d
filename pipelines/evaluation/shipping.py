"""Does what is served ship as it was accepted? An artifact is judged against the checkpoint that it was made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from db import Database, queries, records
from db.artifacts import JUDGED, PREFIX, SERVICE, SHIPS, Artifact, artifacts, in_service
from db.json_values import json_safe
from db.knowledge_answers import LIKELIHOOD
from db.records import kind_of
from db.schema import DISCARDED
from evals.acceptance import Decision, judge_all
from evals.acceptance_rules import SOURCE, Rule, parse_rule
from evals.measurement import evidence_of
from pipelines.evaluation.acceptance import compared, gather, measured_by, no_cycle, system_user
from pipelines.evaluation.stored_results import newest
from pipelines.runtime.session import Session
from recovery.errors import UsageError

# Three points, as in the standard rules of a cycle: what serving may cost of what was accepted.
RULES = (f"instructions >= {SOURCE} - 3", f"domain >= {SOURCE} - 3", f"general >= {SOURCE} - 3")
NOT_MEASURED = "K: not measured: it returns no log-probabilities of a given text"
_LISTED = 25  # lost items of a suite that are stored with a judgement; all are counted


@dataclass(frozen=True)
class Shipping:
    """The judgement of an artifact: the rules, the paired comparison of each suite, and what was lost by suite."""

    artifact: Artifact
    decision: Decision
    compared: Sequence[dict[str, Any]]
    lost: dict[str, list[dict[str, Any]]]

    @property
    def verdict(self) -> str:
        """The judgement in words."""
        word, reason = SHIPS[self.decision.decision], self.decision.reason.removeprefix("undecided: ")
        return word if self.decision.decision == "accept" else f"{word}: {reason}"

    @property
    def not_measured(self) -> list[str]:
        """One line if no likelihood of answers was compared, else none."""
        return [] if any(kind_of(one["name"]) == LIKELIHOOD for one in self.compared) else [NOT_MEASURED]

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as recorded."""
        return json_safe(
            self.decision.to_json()
            | {
                "artifact": self.artifact.checkpoint.name,
                "artifact_id": self.artifact.checkpoint.id,
                "source": self.artifact.source.name,
                "compared": self.compared,
                "lost": {suite: lost[:_LISTED] for suite, lost in self.lost.items()},
                "lost_counts": {suite: len(lost) for suite, lost in self.lost.items()},
                "not_measured": self.not_measured,
            }
        )


def find_artifact(session: Session, name: str) -> Artifact:
    """Return an artifact by its name (prefix and runtime are optional) or file. Raise UsageError if not unique."""
    known = artifacts(session.tracker.database, session.experiment_id)
    path = str(Path(name).expanduser().resolve())
    by_name = [one for one in known if one.checkpoint.name in (name, PREFIX + name)]
    matching = by_name or [
        one
        for one in known
        if one.about.get("file") == path or one.checkpoint.name.removeprefix(PREFIX).partition("@")[0] == name
    ]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(one.checkpoint.name for one in matching or known)
    if matching:
        raise UsageError(f"{name} is served in several ways: name one of {names}")
    others = f"there are {names}" if names else "measure one first: recover eval FILE.gguf --runtime llama.cpp"
    raise UsageError(f"there is no artifact {name!r}: {others}")


def cycle_of(session: Session, artifact: Artifact) -> int:
    """Return the cycle whose last checkpoint an artifact was made from. Raise UsageError for any other checkpoint."""
    name, source = artifact.checkpoint.name, artifact.source
    row = session.registry.cycle_row(source.cycle)
    if row is None or row.end is None:
        raise UsageError(f"{name} was made from {source.name}, which no cycle ended with: export a cycle's checkpoint")
    if row.end.checkpoint.id != source.id:
        end = row.end.checkpoint.name
        raise UsageError(f"{name} was made from {source.name}, and cycle {source.cycle} ended with {end}: export that")
    return row.cycle.number


def judge_artifact(
    session: Session, artifact: Artifact, texts: Sequence[str], number: int | None, *, alpha: float
) -> Shipping:
    """Judge an artifact by rules, those of :data:`RULES` if none are given, and record the judgement."""
    cycle = cycle_of(session, artifact)
    if number not in (None, cycle):
        if number not in session.cycles():
            raise no_cycle(number or 0, session.cycles())
        raise UsageError(
            f"{artifact.checkpoint.name} was made from {artifact.source.name}, of cycle {cycle}, not {number}"
        )
    database = session.tracker.database
    rules = [parse_rule(text) for text in texts] or list(_measured_rules(database, artifact, cycle))
    evaluations = gather(session, rules, cycle, artifact=artifact)
    decision = judge_all(rules, evidence_of(measured_by(database, evaluations), cycle), alpha=alpha)
    suites = compared(database, artifact.source.id, artifact.checkpoint.id)["suites"]
    shipping = Shipping(artifact, decision, suites, dict(_lost(database, artifact)))
    message, cycle_id = f"{artifact.checkpoint.name}: {shipping.verdict}", session.cycles()[cycle].id
    session.tracker.event(session.experiment_id, message, kind=JUDGED, cycle_id=cycle_id, data=shipping.to_json())
    return shipping


def cycle_to_serve(session: Session, artifact: Artifact) -> int:
    """Return :func:`cycle_of` an artifact that is to be put in service. Raise UsageError if the cycle was discarded."""
    number = cycle_of(session, artifact)
    decision = session.cycles()[number].decision
    if decision in DISCARDED:
        raise UsageError(
            f"{artifact.checkpoint.name} is of cycle {number}, which was {decision.replace('_', ' ')}: accept the "
            f"cycle first (recover accept {number} --why TEXT)"
        )
    return number


def put_in_service(session: Session, artifact: Artifact, *, who: str | None, why: str) -> Artifact | None:
    """Record that an artifact is in service; return the one that was before it."""
    number = cycle_to_serve(session, artifact)
    before, _ = in_service(session.tracker.database, session.experiment_id)
    if before is not None and before.checkpoint.id == artifact.checkpoint.id:
        return in_service(session.tracker.database, session.experiment_id)[1]
    message, cycle_id = f"{artifact.checkpoint.name} is in service: {why}", session.cycles()[number].id
    data = {"artifact_id": artifact.checkpoint.id, "who": who or system_user(), "why": why}
    session.tracker.event(session.experiment_id, message, kind=SERVICE, cycle_id=cycle_id, data=data)
    return before


def to_serve_again(before: Artifact | None, now: Artifact | None) -> str:
    """Return what a decision about a cycle means for what is served; nothing if it changed nothing."""
    if (before and before.checkpoint.id) == (now and now.checkpoint.id):
        return ""
    if before is None:
        return "" if now is None else f"in service again: {now.file} ({now.checkpoint.name})"
    stop = f"{before.checkpoint.name} is no longer in service"
    if now is None:
        return f"{stop}, and no artifact of another cycle was before it: serve the clean model again"
    return f"{stop}: serve {now.file} again ({now.checkpoint.name})"


def _measured_rules(database: Database, artifact: Artifact, number: int) -> Iterator[Rule]:
    """Yield the rules about what was measured of the source; the first in any case, which is undecided without."""
    known = newest(database, artifact.source.id)
    for text, suite in zip(RULES, ("", f"domain_knowledge/{number}", "general"), strict=True):
        if not suite or suite in known:
            yield parse_rule(text)


def _lost(database: Database, artifact: Artifact) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield by suite the items that the source got right and the artifact got wrong, in any of their instructions."""
    of_source, of_artifact = newest(database, artifact.source.id), newest(database, artifact.checkpoint.id)
    for suite in sorted(of_source.keys() & of_artifact.keys()):
        if suite.partition("/")[0] not in ("domain_knowledge", "general", *records.INSTRUCTIONS):
            continue
        before, now = (_samples(database, rows[suite].id) for rows in (of_source, of_artifact))
        pairs = [(one, now[key]) for key, one in before.items() if key in now and not one.extra.get("control")]
        lost: list[dict[str, Any]] = []
        for one, other in pairs:
            if suite in records.INSTRUCTIONS:
                broken = _broken(one, other)
                is_lost = bool(broken)
            else:
                broken, is_lost = [], (one.score or 0) >= 1 > (other.score or 0)
            if is_lost:
                item = {"prompt": queries.asked(one.prompt), "was": one.response, "is": other.response}
                lost.append(item | {"instructions": broken})
        if lost:
            yield suite, lost


def _broken(before: records.Sample, now: records.Sample) -> list[str]:
    """Return the instructions of a prompt that were followed before and are not now."""
    return [kind for kind, kept in before.verdicts.items() if kept and not now.verdicts.get(kind)]


def _samples(database: Database, evaluation: int) -> dict[str, records.Sample]:
    samples = queries.samples(database, evaluation, limit=100_000).samples
    return {queries.item_key(one.item, one.prompt): one for one in samples}
