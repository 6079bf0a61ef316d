"""A cycle's report and a checkpoint's model card, from the tracker's records."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from huggingface_hub import metadata_load

from db import Database, cycle_answers, cycle_evidence, knowledge_answers, queries, records, reviews
from db.artifacts import standing
from db.cycle_evidence import (
    CERTIFICATE,
    KNOWLEDGE,
    OUTDATED,
    PAIRED_TESTS,
    about_knowledge,
    certificate,
    judges,
    knowledge_rows,
    notes,
    outdated,
    rule_row,
    when,
)
from db.knowledge_answers import ABOUT_UNANSWERABLE, CONTROL, SHARES, SIDES
from db.reviews import LABELS, SCOPES, LabelRow, VoteRow
from db.sample_comparison import side_by_side
from pipelines.evaluation.acceptance import conclude, last_judgement, no_cycle
from pipelines.evaluation.stored_results import newest
from pipelines.reports.document import Block, Heading, Paragraph, Quote, Table, to_markdown
from pipelines.runtime.session import Session
from pipelines.table import duration
from recovery.models.gguf_files import origin_of, origin_text
from recovery.workspace import Checkpoint, write_atomically

SAMPLES, TYPES, QUESTIONS, ANSWERS = 5, 25, 10, 25  # shown; the tables count all
_MADE_BY = {
    "base": "the clean model, unchanged",
    "midtrained": "mid-trained on documents, its behaviour not yet recovered",
    "recovered": "its behaviour recovered",
}
_LICENCE = ("license", "license_name", "license_link", "language")


def cycle_report(session: Session, number: int) -> tuple[str, list[Block]]:
    """Return the title and the blocks of the report. Raises UsageError if there is no such cycle."""
    row = session.registry.cycle_row(number)
    if row is None:
        raise no_cycle(number, session.cycles())
    evidence = conclude(session, number)
    judged = cycle_answers.judged(session.tracker.database, row, evidence)
    title = (judged.headline if judged is not None else f"{row.summary[0].upper()}{row.summary[1:]}").removesuffix(".")
    return title, list(_blocks(session, row, evidence, title))


def write_report(session: Session, number: int) -> None:
    """Write a cycle's report as Markdown into the workspace. Raises UsageError if there is no such cycle."""
    read_at = time.time()
    _, blocks = cycle_report(session, number)
    store_report(session.workspace.report(number), blocks, read_at)


def store_report(path: Path, blocks: Sequence[Block], read_at: float) -> None:
    """Write a report as Markdown, dated when the reading of its records began: a decision made since is newer."""
    write_atomically(path, to_markdown(blocks))
    with contextlib.suppress(OSError):  # some network drives set no dates
        os.utime(path, (read_at, read_at))


def write_reports(session: Session) -> None:
    """Write the reports of cycles that have been concluded, unless one was since the last decision and judgement."""
    for number, cycle in session.cycles().items():
        if "evidence" not in cycle.details:
            continue
        # A report is dated when the reading of its records began: what was decided or judged later is not in it.
        path, judged = session.workspace.report(cycle.number), last_judgement(session, cycle.id)
        times = [one.created_at for one in queries.decisions(session.tracker.database, cycle.id)]
        times += [judged.created_at] if judged is not None else []
        if not path.is_file() or max(times, default=0.0) >= path.stat().st_mtime:
            write_report(session, number)


def _blocks(session: Session, row: records.CycleRow, evidence: Mapping[str, Any], title: str) -> Iterator[Block]:
    database = session.tracker.database
    yield Heading(1, title)
    model = _model(session)
    yield Paragraph(
        f"Cycle {row.cycle.number} of the base model {model}, on the documents of "
        f"{row.cycle.documents or 'an unnamed folder'} (hash {row.cycle.corpus_hash[:12] or 'none'}). "
        f"Written on {when(time.time())}."
    )
    yield from _answers_first(database, row, evidence)
    yield Heading(2, "Decision")
    yield from _decision(session, row)
    yield Heading(2, "Figures")
    yield Paragraph("Scores with their 95% interval, and n.")
    yield _scores(row)
    yield from _known(evidence.get(KNOWLEDGE, {}))
    for name, comparison in evidence["compared_with"].items():
        yield from _tests(name, evidence["checkpoint"], comparison)
    yield from _knowledge(evidence["knowledge"])
    yield from _unanswerable(database, row)
    yield from _served(database, session.experiment_id, row)
    yield from _withdrawn(database, row)
    yield from _questions(database, row)
    yield from _samples(database, row)
    yield from review_blocks(database, row)
    yield from _cost(database, session.experiment_id, row)
    yield from _lineage(row)


def _answers_first(database: Database, row: records.CycleRow, evidence: Mapping[str, Any]) -> Iterator[Block]:
    """Answer the three questions about a cycle."""
    judged = cycle_answers.judged(database, row, evidence)
    if judged is not None:
        rows = tuple((one.question, one.word, " ".join(one.says)) for one in judged.answers)
        yield Table(("question", "answer", "by"), rows, prose=True)
        yield Paragraph(f"The figures say: {judged.verdict.word}. {judged.verdict.why}")


def _served(database: Database, experiment_id: int, row: records.CycleRow) -> Iterator[Block]:
    """Show what was made of the cycle to be served: whether it ships as accepted, and what it lost."""
    artifacts = standing(database, experiment_id, row.cycle.number)
    if not artifacts:
        return
    yield Heading(2, "Files and servers")
    columns = ("artifact", "what it is", "made from", "judgement", "points against its source (95%)", "state")
    cells = tuple(
        (one.file, one.words, one.source.name, one.verdict, "; ".join(one.points), state) for one, state in artifacts
    )
    yield Table(columns, cells, prose=True)
    for artifact, _ in artifacts:
        if artifact.lost:
            yield Heading(3, f"Lost by {artifact.checkpoint.name}")
            keys = ("prompt", "was", "is")
            rows = tuple((suite, *(str(item[key]) for key in keys)) for suite, item in artifact.lost[:ANSWERS])
            yield Table(("suite", "prompt", artifact.source.name, "served"), rows, prose=True)


def _withdrawn(database: Database, row: records.CycleRow) -> Iterator[Block]:
    """Show the certificate of what the cycle withdrew."""
    event = queries.newest_event(database, CERTIFICATE, row.cycle.experiment_id, row.cycle.id)
    if event is not None:
        statement = certificate(event)
        yield Heading(2, statement.title)
        yield Paragraph(statement.about)
        yield Table(("claim", "verdict", "by"), tuple(statement.parts), prose=True)
        yield Paragraph(statement.not_proven)


def _questions(database: Database, row: records.CycleRow) -> Iterator[Block]:
    """Show questions about the cycle's own documents with every answer: some that were learnt, lost, never answered."""
    every = [one for one in knowledge_answers.questions(database, row, row.cycle.number) if CONTROL not in one.kinds]
    for outcome, words in knowledge_answers.OUTCOMES.items():
        selected = [one for one in every if one.is_of(outcome)]
        if outcome != "all" and selected:
            yield Heading(2, f"Questions {words} ({len(selected)} of {len(every)})")
            cells = tuple(
                (one.text, " or ".join(one.answers), *(_response(one.responses.get(name)) for name in SIDES))
                for one in selected[:QUESTIONS]
            )
            yield Table(("question", "expected", *SIDES), cells, prose=True)


def _unanswerable(database: Database, row: records.CycleRow) -> Iterator[Block]:
    """Show what was replied to questions about what no document holds."""
    replies = knowledge_answers.unanswerable(database, row, row.cycle.number)
    if replies:
        yield Heading(2, knowledge_answers.KNOWS_NOT)
        yield Paragraph(ABOUT_UNANSWERABLE)
        cells = tuple((name, str(n), *(_share(one.get(key)) for key in SHARES)) for name, (n, one) in replies.items())
        yield Table(("checkpoint", "questions", *SHARES.values()), cells)


def _response(response: knowledge_answers.Response | None) -> str:
    return "" if response is None else f"{'✓' if response.right else '✗'} {response.response}"


def _model(session: Session) -> str:
    """Return the clean model's name, and the GGUF file it was converted from, if any."""
    model = str(session.workspace.settings().get("model", ""))
    origin = next((c.origin for c in session.registry.all() if c.name == "base"), "")
    return f"{model}, converted from {origin}" if origin else model


def _decision(session: Session, row: records.CycleRow) -> Iterator[Block]:
    database = session.tracker.database
    decisions = queries.decisions(database, row.cycle.id)
    if not decisions:
        n = row.cycle.number
        yield Paragraph(f"No decision yet: recover accept {n} --why ..., or recover reject {n} --why ...")
    for one in decisions:
        how = f"{one.decision.replace('_', ' ').capitalize()} by {one.who} on {when(one.created_at)}"
        yield Paragraph(f"{how}: {one.why or 'no reason given'}")
    judged = last_judgement(session, row.cycle.id)
    if judged is not None and (row.end is None or not judges(database, judged, row.end.checkpoint.id)):
        yield Paragraph("The gate's last judgement was about an earlier checkpoint of this cycle.")
    elif judged is not None:
        yield from _judgement(database, judged)


def _judgement(database: Database, judged: records.Event) -> Iterator[Block]:
    yield Paragraph(f"The gate's last judgement: {judged.data['decision']} ({judged.data['method']}).")
    if outdated(database, judged):
        yield Paragraph(f"{OUTDATED}.")
    yield Table(("rule", "verdict", "suite", "by"), tuple(map(rule_row, judged.data["verdicts"])), prose=True)
    yield from map(Paragraph, notes(judged))


def _scores(row: records.CycleRow) -> Table:
    steps = [("base", row.base), ("before", row.before), ("mid-trained", row.midtrained), ("recovered", row.recovered)]
    if row.before is not None and row.base is not None and row.before.checkpoint.id == row.base.checkpoint.id:
        del steps[1]
    scores = [(label, step.scores.to_json() if step is not None else {}) for label, step in steps]
    names = list(dict.fromkeys(name for _, by_name in scores for name in by_name))
    rows = []
    for name in names:
        for corpus in sorted({k for _, by_name in scores for k in _corpora(by_name.get(name))}, key=int):
            label = f"{name.removesuffix('_by_corpus')}, corpus {corpus}"
            rows.append((label, *(_score(name, _corpora(by_name.get(name)).get(corpus)) for _, by_name in scores)))
        if not name.endswith("_by_corpus") and any(by_name.get(name) for _, by_name in scores):
            rows.append((name, *(_score(name, by_name.get(name)) for _, by_name in scores)))
    return Table(("suite", *(label for label, _ in scores)), tuple(rows))


def _corpora(entry: Any) -> Mapping[str, Any]:
    return entry if isinstance(entry, Mapping) and "value" not in entry else {}


def _tests(name: str, end: str, comparison: Mapping[str, Any]) -> Iterator[Block]:
    yield Heading(2, f"{end} against {name.replace('midtrained', 'its mid-trained model')}")
    yield Paragraph(
        "Both on the same items: difference in points with the 95% interval of a paired score test, items lost and "
        f"won, p-values of the {PAIRED_TESTS}, corrected by Holm's method over each table."
    )
    yield Table(_TESTED, tuple(map(_tested, comparison["suites"])))
    for suite in records.INSTRUCTIONS:
        types = comparison.get(f"types of {suite}", [])
        if types:
            yield Heading(3, f"By type of instruction ({suite}), most lost first")
            yield Table(_TESTED, tuple(map(_tested, types[:TYPES])))


_TESTED = ("", "before", "after", "difference", "interval", "lost", "won", "p", "p (Holm)", "n")


def _tested(one: Mapping[str, Any]) -> tuple[str, ...]:
    lost, won = ("" if one[k] is None else str(one[k]) for k in ("lost", "won"))
    return (
        one["name"], f"{one['first']:.3f}", f"{one['second']:.3f}", _points(one["difference"]),
        f"{_points(one['low'])} to {_points(one['high'])}", lost, won, _p(one["p_value"]), _p(one["p_adjusted"]),
        str(one["n"]),
    )  # fmt: skip


def _knowledge(matrix: Mapping[str, Any]) -> Iterator[Block]:
    if not any(matrix["rows"]):
        return
    corpora = sorted({j for row in [*matrix["rows"], matrix["chance"]] for j in row}, key=int)
    rows = [("base", matrix["chance"])]
    rows += [(f"after cycle {n}", row) for n, row in zip(matrix["cycles"], matrix["rows"], strict=True)]
    yield Heading(2, "Knowledge over time, on questions that all were asked")
    cells = tuple((label, *(_share(row.get(j)) for j in corpora)) for label, row in rows)
    yield Table(("", *(f"corpus {j}" for j in corpora)), cells)
    parts = [f"Known now, over all corpora: {_share(matrix['average'])}"]
    if matrix["backward_transfer"] is not None:
        parts.append(f"backward transfer {_points(matrix['backward_transfer'])} points")
        parts += [
            f"forgotten of corpus {j}: {_points(v)} points" for j, v in matrix["forgetting"].items() if v is not None
        ]
    yield Paragraph("; ".join(parts) + ".")


def _known(recorded: Mapping[str, Any]) -> Iterator[Block]:
    """Show what the cycle's checkpoints know against the clean model."""
    rows = knowledge_rows(recorded)
    if not rows:
        return
    yield Heading(2, cycle_evidence.ABOUT_CLEAN)
    yield Paragraph(about_knowledge(recorded))
    yield Table(cycle_evidence.KNOWLEDGE_COLUMNS, tuple(rows))


def _samples(database: Database, row: records.CycleRow) -> Iterator[Block]:
    """Show prompts that base follows and the cycle's last checkpoint does not, with all responses."""
    steps = {"base": row.base, "mid-trained": row.midtrained, "recovered": row.recovered}
    asked = {label: newest(database, step.checkpoint.id) for label, step in steps.items() if step is not None}
    suite = next((name for name in records.INSTRUCTIONS if all(name in rows for rows in asked.values())), None)
    if suite is None or len(asked) < 2 or "base" not in asked:
        return
    first, *middle, last = (rows[suite].id for rows in asked.values())
    every = side_by_side(database, first, next(iter(middle), None), last, limit=100_000).rows
    common = [one.answers for one in every if one.answers[-1] is not None]
    page = side_by_side(database, first, next(iter(middle), None), last, fate="still-lost", limit=SAMPLES)
    yield Heading(2, f"Lost and still lost ({page.total} of {len(common)} prompts)")
    for one in page.rows:
        yield Heading(3, one.item)
        yield Quote("prompt", one.prompt)
        for label, answer in zip(asked, one.answers, strict=True):
            if answer is not None:
                kept = answer.verdicts.items()
                words = ", ".join(f"{name} {'followed' if good else 'NOT followed'}" for name, good in kept)
                yield Quote(f"{label}: {words}", answer.response)


def _cost(database: Database, experiment: int, row: records.CycleRow) -> Iterator[Block]:
    stages = list(reversed(queries.stages(database, experiment, cycle_id=row.cycle.id, limit=1000)))
    yield Heading(2, "Cost")
    columns = ("stage", "status", "steps", "tokens sampled", "scored", "trained", "time", "peak memory")
    yield Table(columns, tuple(map(_spent, stages)))
    trained = [s for s in stages if s.kind in ("midtrain", "distill", "interpolate")]
    for stage in trained:
        yield Heading(3, f"Settings of {stage.kind} ({stage.id}), seed {stage.seed}")
        settings = {name: value for name, value in stage.config.items() if value not in (None, [], {})}
        yield Table(("setting", "value"), tuple((name, str(value)) for name, value in settings.items()))
    if trained:
        yield Heading(3, "Versions")
        yield Table(("", "version"), tuple((k, str(v)) for k, v in trained[-1].versions.items()))


def _spent(stage: records.Stage) -> tuple[str, ...]:
    tokens = (f"{count:,}" for count in (stage.tokens_sampled, stage.tokens_scored, stage.tokens_trained))
    memory = f"{stage.peak_memory_bytes / 2**30:.1f} GiB"
    status = stage.stopped or stage.status
    steps = "–" if stage.steps is None else str(stage.steps)
    return (f"{stage.kind} ({stage.id})", status, steps, *tokens, duration(stage.wall_seconds), memory)


def _lineage(row: records.CycleRow) -> Iterator[Block]:
    steps: Sequence[records.Measured | None] = (row.base, row.before, row.midtrained, row.recovered)
    known = {step.checkpoint.id: step.checkpoint for step in steps if step is not None}.values()
    made_from = {c.id: c.parent or origin_text(c.details.get("gguf")) for c in known}
    yield Heading(2, "Checkpoints")
    rows = tuple((c.name, c.kind, made_from[c.id], c.content_hash[:16]) for c in known)
    yield Table(("name", "kind", "made from", "hash"), rows)


def _score(name: str, entry: Any) -> str:
    if not entry:
        return ""
    value = entry["value"]
    interval = records.interval_of(name, records.Score(value, entry.get("stderr"), entry["n"]))
    bounds = f", {interval[0]:.3f} to {interval[1]:.3f}" if interval is not None else ""
    return f"{value:.3f}{bounds} ({entry['n']:,})"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _points(value: float | None) -> str:
    return "" if value is None else cycle_answers.points(value)


def _p(value: float | None) -> str:
    return "" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


# --- human review: votes, agreement, labels of lost answers ---------------------------------------------------


def review_blocks(database: Database, row: records.CycleRow) -> Iterator[Block]:
    """Yield the votes between a cycle's last checkpoint and the others, and the labels of its lost answers.

    Nothing is yielded if nobody has reviewed the cycle.
    """
    for name, other in reviews.compared(row).items():
        assert row.end is not None  # else nothing was compared
        end = row.end.checkpoint
        every_vote = reviews.votes(database, other.id, end.id, earlier=True)
        votes = [one for one in every_vote if one.current]
        every_label = reviews.labels(database, other.id, end.id, earlier=True)
        labels = [one for one in every_label if one.current]
        if every_vote:
            yield Heading(2, f"Votes: {end.name} against {other.name}")
        if votes:
            yield from _votes(votes, name)
        if len(every_vote) > len(votes):
            earlier = f"Votes about responses of earlier evaluations, not counted: {len(every_vote) - len(votes)}."
            yield Paragraph(earlier)
        if every_label:
            yield Heading(2, f"Labels of answers of {end.name} that are lost against {other.name}")
        if labels:
            yield from _labels(labels, other.name, end.name)
        if len(every_label) > len(labels):
            yield Paragraph(f"Labels about earlier responses, not counted: {len(every_label) - len(labels)}.")


def _votes(votes: Sequence[VoteRow], name: str) -> Iterator[Block]:
    yield Paragraph(
        "Blind, in random order: the share of prompts for which the response is preferred, ties as one half, with the "
        "95% interval of Wilson; Krippendorff's alpha is the agreement of the reviewers (1: always, 0: as by chance). "
        f"The gate's rule preference({name}) judges the votes on {SCOPES[reviews.DIFFERING]}, over all suites but "
        "domain knowledge."
    )
    parts = list(dict.fromkeys((one.scope, one.suite) for one in votes))
    parts += [(scope, "all suites") for scope in SCOPES if sum(part[0] == scope for part in parts) > 1]
    rows = tuple(_tally_row(votes, scope, suite) for scope, suite in sorted(parts, key=lambda part: part[0]))
    columns = ("prompts", "share", "95% interval", "n", "for it", "ties", "against", "skipped", "alpha", "reviewers")
    yield Table(columns, rows)


def _tally_row(votes: Sequence[VoteRow], scope: str, suite: str) -> tuple[str, ...]:
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


# --- the model card ------------------------------------------------------------------------------------------


def model_card(session: Session, checkpoint: Checkpoint) -> str:
    """Return the README.md of exported weights: their origin and their scores."""
    cycles = _lived(session, checkpoint)
    front = card_front(session, checkpoint) | {"library_name": "transformers"}
    blocks: list[Block] = [
        Heading(1, front.pop("name")),
        Paragraph(f"{front.pop('description')}."),
        Heading(2, "Scores"),
        Paragraph("With their 95% interval, and n. Base is the clean model."),
        _card_scores(session, checkpoint),
        Heading(2, "Documents"),
        Table(
            ("cycle", "documents' hash", "decision"),
            tuple((str(c.number), c.corpus_hash, (c.decision or "no decision yet").replace("_", " ")) for c in cycles),
        ),
    ]
    lines = "".join(f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}\n" for key, value in front.items())
    return f"---\n{lines}---\n\n{to_markdown(blocks)}"


def card_front(session: Session, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the origin of exported weights in the terms of a model card: name, description, base model, licence, tags.

    A base model from a folder or file is named without its place on this machine. The licence is that of its own card.
    """
    within = checkpoint.kind != "external"
    weights = session.base.weights if within else checkpoint.weights
    origin = origin_of(weights) or {}
    model = str(session.workspace.settings().get("model", "")) if within else checkpoint.name.removeprefix("external/")
    base = origin.get("name") or (Path(model).name.removesuffix(".gguf") if Path(model).is_absolute() else model)
    described = f"{origin_text(origin) or base}, {_MADE_BY.get(checkpoint.kind, 'as it is')}"
    if within:
        described += f", after {len(_lived(session, checkpoint))} folders of documents"
    metadata = _card(weights / "README.md")
    return {
        "name": base if checkpoint.kind in ("base", "external") else f"{base} {checkpoint.name}",
        "description": f"{described}. Content hash {checkpoint.hash}",
        "base_model": base,
        **{key: metadata[key] for key in _LICENCE if key in metadata},
        "tags": ["continual-learning", "recovery"],
    }


def _card(path: Path) -> dict[str, Any]:
    """Return the metadata of a model card; empty if there is none that can be read."""
    try:
        metadata = metadata_load(path) or {}
    except Exception:  # a missing file, or anything a parser raises: an export does not depend on the base's card
        return {}
    if "language" in metadata:
        metadata["language"] = _languages(metadata["language"])
    return metadata


def _languages(value: Any) -> Any:
    """Return the languages of a model card with Norwegian's code, which YAML reads as false."""
    if isinstance(value, list):
        return [_languages(one) for one in value]
    return "no" if value is False else value


def _lived(session: Session, checkpoint: Checkpoint) -> list[records.Cycle]:
    return [session.cycles()[k] for k in session.trained_cycles(checkpoint, checkpoint.cycle or 0)]


def _card_scores(session: Session, checkpoint: Checkpoint) -> Table:
    database = session.tracker.database
    sides = [queries.scores(database, c.id) if c.id else records.Scores() for c in (session.base, checkpoint)]
    scored = [scores.to_json() for scores in sides]
    names = [name for name in scored[1] if not name.endswith("_by_corpus") and scored[1][name]]
    return Table(
        ("suite", "base", "this model"),
        tuple((name, *(_score(name, scores.get(name)) for scores in scored)) for name in names),
    )
