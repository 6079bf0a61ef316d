"""The part of a cycle's report about human review: votes, agreement, labels of lost answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from db import Database, records, reviews
from db.reviews import LABELS, SCOPES, LabelRow, VoteRow
from pipelines.reports.document import Block, Heading, Paragraph, Quote, Table

ANSWERS = 25
"""Labelled answers that are quoted; the table counts all."""


def compared(row: records.CycleRow) -> dict[str, records.Checkpoint]:
    """Return the checkpoints that people may have compared with a cycle's last one, by their name in a rule."""
    found: dict[str, records.Checkpoint] = {}
    for name, one in (("base", row.base), ("midtrained", row.midtrained), ("previous", row.before)):
        if one is not None and row.end is not None and one.checkpoint.id < row.end.checkpoint.id:
            found |= {} if one.checkpoint in found.values() else {name: one.checkpoint}
    return found


def review_blocks(database: Database, row: records.CycleRow) -> Iterator[Block]:
    """Yield the votes between a cycle's last checkpoint and the others, and the labels of its lost answers.

    Nothing is yielded if nobody has reviewed the cycle.
    """
    for name, other in compared(row).items():
        assert row.end is not None  # else nothing was compared
        end = row.end.checkpoint
        found = reviews.votes(database, other.id, end.id, earlier=True)
        votes = [one for one in found if one.current]
        labelled = reviews.labels(database, other.id, end.id, earlier=True)
        labels = [one for one in labelled if one.current]
        if found:
            yield Heading(2, f"Votes: {end.name} against {other.name}")
        if votes:
            yield from _votes(votes, name)
        if len(found) > len(votes):
            earlier = f"Votes about responses of earlier evaluations, not counted: {len(found) - len(votes)}."
            yield Paragraph(earlier)
        if labelled:
            yield Heading(2, f"Labels of answers of {end.name} that are lost against {other.name}")
        if labels:
            yield from _labels(labels, other.name, end.name)
        if len(labelled) > len(labels):
            yield Paragraph(f"Labels about earlier responses, not counted: {len(labelled) - len(labels)}.")


def _votes(votes: Sequence[VoteRow], name: str) -> Iterator[Block]:
    yield Paragraph(
        "Blind, in random order: the share of prompts for which the response is preferred, ties as one half, with the "
        "95% interval of Wilson; Krippendorff's alpha is the agreement of the reviewers (1: always, 0: as by chance). "
        f"The gate's rule preference({name}) judges the votes on {SCOPES[reviews.DIFFERING]}, over all suites but "
        "domain knowledge."
    )
    parts = list(dict.fromkeys((one.scope, one.suite) for one in votes))
    parts += [(scope, "all suites") for scope in SCOPES if sum(part[0] == scope for part in parts) > 1]
    rows = tuple(_share(votes, scope, suite) for scope, suite in sorted(parts, key=lambda part: part[0]))
    columns = ("prompts", "share", "95% interval", "n", "for it", "ties", "against", "skipped", "alpha", "reviewers")
    yield Table(columns, rows)


def _share(votes: Sequence[VoteRow], scope: str, suite: str) -> tuple[str, ...]:
    tally = reviews.tally(votes, scope=scope, suite=None if suite == "all suites" else suite)
    label = suite if scope == reviews.DIFFERING else f"{suite}, {SCOPES[scope]}"
    between = "" if tally.interval is None else "{:.3f} to {:.3f}".format(*tally.interval)
    return (
        label,
        "" if tally.share is None else f"{tally.share:.3f}",
        between,
        str(len(tally.scores)),
        *(str(tally.counts[choice]) for choice in (reviews.SECOND, reviews.TIE, reviews.FIRST, reviews.SKIP)),
        "" if tally.alpha is None else f"{tally.alpha:.2f}",
        ", ".join(tally.reviewers),
    )


def _labels(labels: Sequence[LabelRow], before: str, after: str) -> Iterator[Block]:
    who, counts = reviews.label_counts(labels)
    yield Table(("label", *who), tuple((LABELS[label], *map(str, row)) for label, row in counts.items()))
    answers = [list(group) for _, group in groupby(sorted(labels, key=_answer), key=_answer)]
    if len(answers) > ANSWERS:
        yield Paragraph(f"The first {ANSWERS} of {len(answers)} labelled answers:")
    for group in answers[:ANSWERS]:
        yield Heading(3, group[0].item)
        for one in group:
            yield Paragraph(f"{one.reviewer}: {LABELS.get(one.label, one.label)}" + (f": {one.note}" * bool(one.note)))
        yield Quote("prompt", group[0].prompt)
        yield Quote(before, group[0].first_response)
        yield Quote(after, group[0].second_response)


def _answer(one: LabelRow) -> tuple[str, str, str]:
    return one.item, one.prompt, one.second_response
