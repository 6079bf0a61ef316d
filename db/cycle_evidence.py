"""Evidence about a cycle: recorded comparisons of its last checkpoint, and what is stored with a decision."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import exists, select
from sqlalchemy.orm import aliased

from db.records import IN_NATS_OR_BITS, CycleRow, Event, kind_of
from db.schema import Cycle, Evaluation
from db.session import Database

# Scores outside 0 to 1 or without scored items, votes on other pairs, or scores where more is worse.
NOT_COMPARED = (*IN_NATS_OR_BITS, "preference", "stale_answers")

# The test behind a comparison's p-values. Items of one group, such as a document, are not independent.
PAIRED_TESTS = "exact McNemar test (the clustered score test where items share a group)"
# Key of the lines that explain a judgement of the gate.
NOTES = "notes"
# The kinds of events of a cycle: a judgement by the gate; what remains of documents that it withdrew.
GATE, CERTIFICATE = "gate", "certificate"
DOCUMENTS = 25  # the most that a certificate names
# Entry of the evidence about a cycle: knowledge relative to the clean model, by checkpoint and corpus or "pooled".
KNOWLEDGE, POOLED = "knowledge_figures", "pooled"
ABOUT_CLEAN = "Knowledge against the clean model"
KNOWLEDGE_COLUMNS = ("Checkpoint", "Corpus", "Gap closed", "Asked, corrected for guessing", "K", "First among eight")
NOT_MEASURED = "not measured"
ABOUT_GAP = (
    "Gap closed: (asked after - asked base) / (asked open book - asked base), corrected for guessing, on the same "
    "questions; open book: the clean model with the page's passage in the prompt."
)
ABOUT_K = (
    "K: how much likelier the right answer became than base's, beyond what question and answer explain, in bits; p: "
    "permutation of answers within their kind. First: the right answer is first among eight of its kind."
)
OUTDATED = "Judged before the newest evaluation of what it compares"


def is_compared(suite: str) -> bool:
    """Whether a suite can be part of a comparison; its name may include what it is about."""
    return kind_of(suite) not in NOT_COMPARED


def newest_compared(database: Database, checkpoint_id: int) -> int:
    """Return the id of a checkpoint's newest evaluation that can be part of a comparison, 0 if there is none."""
    query = select(Evaluation.id, Evaluation.suite).where(Evaluation.checkpoint_id == checkpoint_id)
    with database.reading() as connection:
        rows = connection.execute(query.order_by(Evaluation.id.desc()))
        return next((row.id for row in rows if is_compared(row.suite)), 0)


def current(database: Database, row: CycleRow) -> Mapping[str, Any]:
    """Return the comparisons recorded with a cycle if they cover the newest evaluation of its last checkpoint; nothing
    if they are of another checkpoint, or older.
    """
    query = select(Cycle.details["evidence"]).where(Cycle.id == row.cycle.id)  # the row may be without its details
    with database.reading() as connection:
        recorded: Mapping[str, Any] = connection.scalar(query) or {}
    if row.end is None or recorded.get("checkpoint") != row.end.checkpoint.name:
        return {}
    newest = newest_compared(database, row.end.checkpoint.id)
    return recorded if 0 < newest <= recorded.get("newest_evaluation", 0) else {}


def knowledge_of(database: Database, cycle_ids: Sequence[int]) -> dict[int, Mapping[str, Any]]:
    """Return what is recorded with cycles of the knowledge of their checkpoints, by cycle and checkpoint's name."""
    query = select(Cycle.id, Cycle.details[("evidence", KNOWLEDGE)]).where(Cycle.id.in_(cycle_ids))
    with database.reading() as connection:
        return {cycle_id: recorded for cycle_id, recorded in connection.execute(query) if recorded}


def gap_words(figures: Mapping[str, Any], corpus: str = POOLED) -> tuple[str, str]:
    """Return the gap closed as "43% (31% to 55%)", or "not defined" or "not measured" with the reason.

    ("", "") if it is not recorded.
    """
    gap = figures.get(corpus, {}).get("gap_closed", {})
    if gap.get("value") is not None:
        value, low, high = (f"{round(gap[key], 2) + 0.0:.0%}" for key in ("value", "low", "high"))  # -0.0 is 0
        return f"{value} ({low} to {high})", ""
    reason = str(gap.get("undefined") or "").removeprefix(f"{NOT_MEASURED}: ")
    return ("not defined" if "base" in gap else NOT_MEASURED, reason) if reason else ("", "")


def k_words(figures: Mapping[str, Any], corpus: str) -> tuple[str, str]:
    """Return K with its interval and p-value, and the shares of centred top-1; the reason if it was not measured."""
    likelihood = figures.get(corpus, {}).get("likelihood", {})
    if likelihood.get("bits") is None:
        return str(likelihood.get("undefined", "")), ""
    p_value = f"p = {likelihood['p_value']:.3f}" if likelihood["p_value"] >= 0.001 else "p < 0.001"
    before, after = likelihood["first"]
    return (
        f"{likelihood['bits']:+.2f} bits ({likelihood['low']:+.2f} to {likelihood['high']:+.2f}), {p_value}",
        f"{after:.1%} (base {before:.1%}; {likelihood['n']:,} questions)",
    )


def knowledge_rows(recorded: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str, str, str, str]]:
    """Return (checkpoint, corpus, gap closed, answers corrected for guessing, K, first) of what is recorded with a
    cycle. The pooled figures are left out if there is one corpus: they are the same.
    """
    rows = []
    for checkpoint, figures in recorded.items():
        for corpus in [one for one in figures if one != POOLED or len(figures) > 2]:
            gap, known = figures[corpus]["gap_closed"], k_words(figures, corpus)
            asked = ""
            if "after" in gap:
                asked = f"{gap['base']:.1%} → {gap['after']:.1%}, open book {gap['open_book']:.1%} (of {gap['n']:,})"
            rows.append((checkpoint, corpus, gap_words(figures, corpus)[0], asked, *known))
    return rows


def about_knowledge(recorded: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what the columns of :func:`knowledge_rows` mean, and why a gap is missing, each reason once."""
    gaps = dict.fromkeys(gap_words(figures, corpus) for figures in recorded.values() for corpus in figures)
    return " ".join([ABOUT_GAP, ABOUT_K, *(f"{words.capitalize()}: {reason}." for words, reason in gaps if reason)])


def judges(database: Database, judgement: Event, checkpoint_id: int) -> bool:
    """Whether a judgement of the gate is about a checkpoint; True if the judgement names no evaluations."""
    suites = judgement.data.get("evaluations", {}).get("student", {})
    ids = [number for numbers in suites.values() for number in numbers]
    query = select(Evaluation.id).where(Evaluation.id.in_(ids), Evaluation.checkpoint_id == checkpoint_id)
    with database.reading() as connection:
        return not ids or connection.execute(query.limit(1)).first() is not None


def outdated(database: Database, judgement: Event) -> bool:
    """Whether any evaluation that a judgement of the gate used has been repeated since."""
    recorded = judgement.data.get("evaluations", {}).values()
    ids = [number for suites in recorded for numbers in suites.values() for number in numbers]
    used, newer = aliased(Evaluation), aliased(Evaluation)
    was_repeated = exists().where(
        newer.checkpoint_id == used.checkpoint_id,
        newer.suite == used.suite,
        newer.corpus.is_not_distinct_from(used.corpus),
        newer.id > used.id,
    )
    with database.reading() as connection:
        return connection.execute(select(used.id).where(used.id.in_(ids), was_repeated).limit(1)).first() is not None


def rule_row(verdict: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return a rule, its verdict in a word, its suite, and what the verdict rests on.

    A rule that passed without comparing anything was not applied.
    """
    rule, word = str(verdict["rule"]), str(verdict["verdict"])
    word = "not applied" if word == "pass" and not verdict["n"] else word
    by = str(verdict.get("reason") or "").removeprefix(f"{rule}: ").removeprefix(f"{word}: ")
    return rule, word, str(verdict.get("suite") or ""), by


def notes(judgement: Event) -> Sequence[str]:
    """Return the lines that explain a judgement: which command measures what it lacked, and which checkpoints were
    measured by another release than the student.
    """
    return judgement.data.get(NOTES, judgement.data.get("releases", ()))  # its key in earlier judgements


class Certificate(NamedTuple):
    """What a model still has of documents that a cycle withdrew, in words; ``parts`` are (claim, verdict, by what)."""

    title: str
    about: str
    parts: Sequence[tuple[str, str, str]]
    not_proven: str


def certificate(event: Event) -> Certificate:
    """Return a recorded certificate in words."""
    data, ids = event.data, event.data["documents"]
    more = f" and {len(ids) - DOCUMENTS} more" if len(ids) > DOCUMENTS else ""
    about = (
        f"Withdrawn as {', '.join(data['names'])}, {len(ids)} of the documents that {data['before']} had read: "
        f"{', '.join(ids[:DOCUMENTS])}{more}. Measured on {data['after']} on {when(event.created_at)}."
    )
    parts = [(one["what"], one["verdict"], one["says"]) for one in data["parts"]]
    return Certificate(f"Certificate of withdrawal: {data['verdict']}", about, parts, data["not_proven"])


def when(seconds: float) -> str:
    """Return a time as date and minute in UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def for_decision(row: CycleRow, compared: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is stored with a decision: the comparisons of the cycle's last checkpoint, its scores and base's."""
    if row.end is None:
        return {}
    scores = {one.checkpoint.name: one.scores.to_json() for one in (row.base, row.end) if one is not None}
    return {"checkpoint": row.end.checkpoint.name, **compared, "scores": scores}
