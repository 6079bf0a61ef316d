"""Decisions and rollbacks keep what a later one may need, and are shown; an undecided gate asks as much as it needs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from db import DatabaseError, Decided, decide, queries, records
from evals.acceptance import Decision, Verdict
from pipelines import cycle, interpolate
from pipelines.cli import status
from pipelines.cycle import start_cycles
from pipelines.cycle_plan import PLAN, CyclePlan, new_plan
from pipelines.data.corpus_snapshot import load_snapshot
from pipelines.distillation.resolve import resolve
from pipelines.evaluation.acceptance import conclude, decide_cycle, judge_cycle, rules_of
from pipelines.export import export
from pipelines.midtraining.material import gather_cycle, gather_material, open_cycle
from pipelines.reports import cycle_report
from pipelines.reports.cycle_report import write_reports
from pipelines.reports.document import Block
from pipelines.runtime.session import Session
from recovery.config import CycleConfig, InterpolateConfig
from recovery.errors import UsageError
from recovery.workspace import Checkpoint
from tests.pipelines.conftest import Bench, Cycles, MakeCorpus, Record
from tests.recorded_stages import accept, leave


def test_no_decision_moves_the_latest_while_a_stage_trains(session: Session, midtrained: Checkpoint) -> None:
    with session.tracker.start_stage(session.experiment_id, "distill", cycle_id=session.cycle_id(1)) as stage:
        with pytest.raises(DatabaseError, match=f"stage {stage.id} .distill. is training"):
            decide(session.tracker.database, session.cycle_id(1), "rejected", who="Ada", why="no")
        stage.finish()
    assert decide(session.tracker.database, session.cycle_id(1), "rejected", who="Ada", why="no").after == "base"


def test_a_student_from_elsewhere_is_left_for_what_was_there_before(
    session: Session, bench: Bench, midtrained: Checkpoint, tmp_path: Path
) -> None:
    bench.distill()
    accept(session, 1)
    export(session, "cycle-1/midtrained", tmp_path / "elsewhere", merge=False)
    bench.distill(student=str(tmp_path / "elsewhere"))
    done = decide_cycle(session, 2, "rejected", who="Ada", why="not ours")
    assert done.after == "cycle-1/recovered"


def test_only_documents_that_the_student_descends_from_are_trained_on(
    session: Session, bench: Bench, midtrained: Checkpoint, make_corpus: MakeCorpus, record: Record
) -> None:
    """A cycle beside it was kept too: its probes are not asked, and it is not what this student was taught."""
    probes = load_snapshot(session.workspace, 1).probes
    docs = make_corpus("Second")
    asked = [probe.question for probe in probes if probe.form == "question"][:1]
    lines = [{"question": text, "answer": "Lund"} for text in [*asked, "Who keeps the second ferry?"]]
    (docs / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = bench.midtraining(docs=docs, student="base")
    student = record().midtrain(session, config, open_cycle(session, config))
    assert session.learnt_cycles(student) == [1, 2], "which an evaluation asks about"
    knowing = bench.distilling(knowledge_teacher="midtrained", prompts_per_step=4)
    found = resolve(session, knowing, None)
    assert set(found.corpora) == {2}
    assert asked and [question.text for question in found.asked] == ["Who keeps the second ferry?"]
    questions = interpolate._questions(session, InterpolateConfig(), student, 2)
    assert [probe.question for probe in questions] == ["Who keeps the second ferry?"]
    assert [one.number for one in cycle_report._lived(session, student)] == [2]
    own = gather_cycle(session, replace(config, docs=make_corpus("Third")), 3)
    assert gather_material(session, config, session.base, own).earlier == {}


def test_a_rule_about_what_the_start_never_learnt_is_refused_unless_that_is_base(
    session: Session, cycles: Cycles, record: Record
) -> None:
    record()
    start_cycles(session, cycles("First"))
    config = cycles("Second", evaluate=True, gate=("domain >= 0.9*previous",))
    with pytest.raises(UsageError, match="`previous` is not asked about a corpus that it never learnt"):
        new_plan(session, config)
    leave(session, 1, "rejected")
    assert new_plan(session, config).first == 2


@pytest.mark.parametrize("verdict", ["reject", "undecided"])
def test_a_person_who_decides_while_the_gate_judges_is_not_overruled(
    session: Session, cycles: Cycles, record: Record, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], verdict: str,
) -> None:  # fmt: skip
    def judged(*_: Any) -> Decision:
        accept(session, 1)
        return Decision(verdict, "the gate says so", (), {}, (), 0.05, 1, "a test")  # type: ignore[arg-type]

    record()
    monkeypatch.setattr(cycle, "_judged", judged)
    monkeypatch.setattr(cycle, "_ask_more", lambda *_: False)
    monkeypatch.setattr(cycle, "_extend", lambda *_: pytest.fail("it was decided"))
    monkeypatch.setattr(cycle, "_evaluate_base", lambda *_: None)
    monkeypatch.setattr(cycle, "_evaluate", lambda *_: None)
    start_cycles(session, cycles("First", evaluate=True, gate=("ifeval >= 0.5",)))
    decided = queries.decisions(session.tracker.database, session.cycle_id(1) or 0)
    assert [(one.decision, one.who) for one in decided] == [("accepted", "Ada")]
    assert session.resolve("latest").name == "cycle-1/recovered"
    assert "cycle 1 was accepted meanwhile by someone else, so the gate decides nothing" in capsys.readouterr().err


def test_the_number_of_a_rejected_cycle_is_not_used_again(session: Session, bench: Bench) -> None:
    """A new cycle of that number would be rejected before it began."""
    open_cycle(session, bench.midtraining())
    assert session.next_cycle() == 1
    leave(session, 1, "rejected")
    assert session.next_cycle() == 2


def status_of(session: Session, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    status.show(session.workspace, as_json=False)
    return capsys.readouterr().out


@pytest.mark.parametrize(("decision", "ends"), [("rejected", "rejected"), ("accepted", "not recovered yet")])
def test_the_status_shows_the_decision_on_a_cycle_that_was_not_recovered(
    session: Session, midtrained: Checkpoint, capsys: pytest.CaptureFixture[str], decision: str, ends: str
) -> None:
    decide_cycle(session, 1, decision, who="Ada", why="of these documents")
    lines = status_of(session, capsys).splitlines()
    row = [line for line in lines if "cycle-1/midtrained" in line][-1]  # the title, in one line or two, names it too
    assert row.split()[-1] == decision
    assert f"cycle 1: {ends}" in lines


@pytest.mark.parametrize("name", ["external/my[final]", "external/a[/b]", "external/:smile:", "external/a\\[b]"])
def test_the_status_shows_names_as_they_are(session: Session, capsys: pytest.CaptureFixture[str], name: str) -> None:
    made = session.tracker.add_checkpoint(
        session.experiment_id, name, "external", path="x", content_hash="x", cycle_id=session.cycle_id(1)
    )
    session.tracker.set_latest(session.experiment_id, made)
    assert status_of(session, capsys).count(name) == 2, "in the title and in a row"


def test_the_status_names_the_stage_that_resume_continues_and_no_other(
    session: Session, stopped_recovery: records.Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    resume = f"recover resume --workspace {session.workspace.folder}"
    advice = f"interrupted: distill (stage {stopped_recovery.id}), step 0; to continue: {resume}"
    assert advice in status_of(session, capsys)
    student = session.resolve("midtrained").id
    session.tracker.start_stage(session.experiment_id, "evaluate", student_id=student).finish()
    shown = status_of(session, capsys)
    assert advice in shown and "last: evaluate" in shown
    (session.workspace.folder / PLAN).write_text("{}")  # resume goes by the plan, whatever stage was stopped
    assert f"cycles are unfinished; to continue: {resume}" in status_of(session, capsys)
    (session.workspace.folder / PLAN).unlink()
    leave(session, 1, "rejected")
    assert "interrupted" not in status_of(session, capsys)
    session.tracker.start_stage(session.experiment_id, "distill", cycle_id=session.cycle_id(1)).interrupt()
    shown = status_of(session, capsys)
    assert "interrupted: distill" in shown and "resume" not in shown


def test_a_report_is_written_again_after_a_decision_or_a_judgement_and_only_then(
    session: Session, midtrained: Checkpoint
) -> None:
    conclude(session, 1)
    path = session.workspace.report(1)

    def written() -> str:
        write_reports(session)
        once, time = path.read_text(), path.stat().st_mtime_ns
        write_reports(session)
        assert path.stat().st_mtime_ns == time, "nothing has changed"
        return once

    assert "No decision yet" in written()
    accept(session, 1)
    (one,) = queries.decisions(session.tracker.database, session.cycle_id(1))
    when = datetime.fromtimestamp(one.created_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    assert f"Accepted by Ada on {when}: good" in (text := written()) and "last judgement" not in text
    judge_cycle(session, rules_of(("ifeval >= 0.9*base",), session), 1)
    assert "last judgement" in written()


def test_a_decision_entered_while_a_report_is_written_is_in_the_next(
    session: Session, midtrained: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    conclude(session, 1)
    whole = cycle_report.to_markdown

    def decided_meanwhile(blocks: Sequence[Block]) -> str:
        if not queries.decisions(session.tracker.database, session.cycle_id(1)):
            accept(session, 1)
        return whole(blocks)

    monkeypatch.setattr(cycle_report, "to_markdown", decided_meanwhile)
    write_reports(session)
    assert "No decision yet" in session.workspace.report(1).read_text()
    write_reports(session)
    assert "Accepted by Ada" in session.workspace.report(1).read_text()


def test_a_cycle_with_more_extensions_than_are_allowed_is_judged(
    session: Session, small: CycleConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a judgement there was no decision to enter, at every resume."""
    decision = Decision("accept", "the gate says so", (), {}, (), 0.05, 1, "a test")
    entered: list[Decision] = []

    def enter(_: Session, number: int, found: Decision) -> Decided:
        entered.append(found)
        return Decided(1, number, "accepted", None, None)

    monkeypatch.setattr(cycle, "_extensions", lambda *_: 2)
    monkeypatch.setattr(cycle, "_judged", lambda *_: decision)
    monkeypatch.setattr(cycle, "_is_settled", lambda *_: False)
    monkeypatch.setattr(cycle, "_entered", enter)
    config = replace(small, gate=("ifeval >= 0.5",), gate_extend=1)
    cycle._settle(session, CyclePlan(1, config), session.base, 1)
    assert entered == [decision]


@pytest.mark.parametrize(("earlier", "n", "expected"), [(4, 2, [(6, 12)]), (0, 2, []), (0, 3, [(6, 0)])])
def test_an_undecided_gate_gives_earlier_documents_as_many_items_as_it_needs(
    session: Session, small: CycleConfig, monkeypatch: pytest.MonkeyPatch, earlier: int, n: int,
    expected: list[tuple[int, int]],
) -> None:  # fmt: skip
    """Two earlier corpora share four items, so two of one are all; without a share of their own three would be."""
    asked: list[tuple[int | None, int]] = []
    monkeypatch.setattr(Session, "learnt_cycles", lambda *_: [1, 2, 3])
    monkeypatch.setattr(cycle, "references", lambda *_: ["base"])
    monkeypatch.setattr(cycle, "evaluate", lambda _, config, **__: asked.append((config.limit, config.earlier_limit)))
    verdict = Verdict("rule", "undecided", "", "domain_knowledge_stored/1", 0.05, n=n, more=20)
    decision = Decision("undecided", "", (verdict,), {}, (), 0.05, 3, "")
    asking = replace(small.eval, limit=3, earlier_limit=earlier)
    config = replace(small, eval=asking, gate_samples=6)
    assert cycle._ask_more(session, config, [], decision, 3) is bool(expected)
    assert asked == expected


@pytest.mark.parametrize(
    ("suite", "n", "limit", "expected"),
    [
        ("instruction_following", 6, 10, 20),  # 6 of 10 prompts have checks: 6 more of them take 10 more
        ("behaviour/refusal", 2, 10, 40),
        ("behaviour/own", 10, 10, 16),
        ("behaviour/own", 9, 10, None),  # it has no more
        ("behaviour/refusal", 2, 11, None),  # nor have the prompts that it is drawn from
    ],
)
def test_an_undecided_gate_counts_the_prompts_that_were_sampled(
    session: Session, small: CycleConfig, monkeypatch: pytest.MonkeyPatch, suite: str, n: int, limit: int,
    expected: int | None,
) -> None:  # fmt: skip
    items = [
        {"id": f"q{at}", "prompt": "Why?", "response": "", "score": 1.0, "extra": {"headline": at < 6}}
        for at in range(10)
    ]
    session.tracker.add_evaluation(
        session.base.id or 0, "instruction_following", value=1.0, stderr=0.0, n=6, items=items
    )
    limits: list[int | None] = []
    monkeypatch.setattr(cycle, "references", lambda *_: ["base"])
    monkeypatch.setattr(cycle, "evaluate", lambda _, config, **__: limits.append(config.limit))
    verdict = Verdict("rule", "undecided", "", suite, 0.05, n=n, more=6)
    decision = Decision("undecided", "", (verdict,), {}, (), 0.05, 1, "")
    config = replace(small, eval=replace(small.eval, limit=limit))  # four times that at most
    assert cycle._ask_more(session, config, [], decision, 1) is (expected is not None)
    assert limits == ([] if expected is None else [expected])
