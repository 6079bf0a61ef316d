"""Resumed, abandoned and new cycles do not go on from what was rejected, rolled back or given up."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from db import queries, records
from pipelines import cycle
from pipelines.cycle import start_cycles
from pipelines.cycle_plan import PLAN, drop_plan, new_plan, read_plan, resumable, why_not_resumed
from pipelines.data.corpus_snapshot import load_snapshot
from pipelines.evaluation.stored_results import newest
from pipelines.midtraining.material import gather_cycle, open_cycle
from pipelines.midtraining.stage import midtrain
from pipelines.runtime.session import EARLIER_CYCLES, Session, StageInterrupted
from recovery.errors import UsageError
from tests.pipelines.conftest import Bench, Cycles, MakeCorpus, Record, stages_of
from tests.recorded_stages import accept, leave, line, line_of, pruned, with_a_state
from tests.support import stopped


def test_what_was_given_up_with_its_cycles_is_neither_resumed_nor_kept(
    session: Session, cycles: Cycles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`recover resume` went on with it after the new cycles, and made it the latest again."""
    distill = cycle.distill

    def stopping(*given: Any, **named: Any) -> None:
        with stopped(session):
            distill(*given, **named)
        raise StageInterrupted("in the recovery")

    with monkeypatch.context() as patch:
        patch.setattr(cycle, "distill", stopping)
        with pytest.raises(StageInterrupted, match="in the recovery"):
            start_cycles(session, cycles("First"))
    states = with_a_state(session)
    assert resumable(session) is not None and states not in pruned(session, "all")
    cycle.start_plan(session, new_plan(session, cycles("Second"), abandon=True))
    assert resumable(session) is None
    assert states in pruned(session, "all")
    assert line_of(session, "latest") == line(2)
    assert session.learnt_cycles(session.resolve("latest")) == [2]


@pytest.mark.parametrize(
    ("stop", "decision", "learnt"),
    [
        ("distill 1", "rejected", [2, 3]),
        ("distill 2", "rolled_back", [3]),
        ("midtrain 2", "rolled_back", [2, 3]),  # cycle 2, which had made nothing, starts again
        ("midtrain 1", "rejected", [2, 3]),
    ],
)
def test_resumed_cycles_do_not_go_on_from_what_was_left(
    session: Session, cycles: Cycles, record: Record, capsys: pytest.CaptureFixture[str], stop: str, decision: str,
    learnt: list[int],
) -> None:  # fmt: skip
    record(stop)
    with pytest.raises(StageInterrupted):
        start_cycles(session, cycles("First", "Second", "Third"))
    leave(session, 1, decision)
    cycle.resume(session)
    assert line_of(session, "latest") == line(*learnt)
    assert session.learnt_cycles(session.resolve("latest")) == learnt
    assert resumable(session) is None
    assert f"cycle 1 of 3 was {decision.replace('_', ' ')}: it is not continued" in capsys.readouterr().err


@pytest.mark.parametrize(("stop", "learnt"), [("distill 1", [2]), ("distill 2", [1, 3]), ("midtrain 2", [1, 2])])
def test_abandoned_cycles_leave_nothing_to_the_new_ones(
    session: Session, cycles: Cycles, record: Record, capsys: pytest.CaptureFixture[str], stop: str, learnt: list[int]
) -> None:
    """A whole cycle of the plan stays; one that was trained and not recovered is rolled back."""
    record(stop)
    with pytest.raises(StageInterrupted):
        start_cycles(session, cycles("First", "Second"))
    cycle.start_plan(session, new_plan(session, cycles("Third"), abandon=True))
    assert "were given up; `recover prune --yes`" in capsys.readouterr().err
    assert line_of(session, "latest") == line(*learnt)
    assert session.learnt_cycles(session.resolve("latest")) == learnt
    decided = queries.decisions(session.tracker.database, *(one.id for one in session.cycles().values()))
    assert {(one.decision, one.who, one.why) for one in decided} <= {("rolled_back", "abandon", "given up")}
    assert resumable(session) is None


def test_abandoned_cycles_do_not_decide_how_the_new_ones_are_trained(
    session: Session, cycles: Cycles, record: Record
) -> None:
    """After a wrong tuning the corrected command was refused too: the adapter that it rolls back was the latest."""
    record("distill 1").tuning = "lora"
    with pytest.raises(StageInterrupted):
        start_cycles(session, cycles("First"))
    again = cycles("Second")
    assert session.resolve("latest").tuning == "lora" and again.midtrain.tuning == "full"
    assert new_plan(session, again, abandon=True).first == 2
    drop_plan(session)
    with pytest.raises(UsageError, match=r"cycle 2's mid-training cannot use it, since cycle-1/midtrained is a LoRA"):
        new_plan(session, again)


def test_a_stopped_stage_does_not_end_before_the_later_cycles_that_went_on_from_its_model(
    session: Session, bench: Bench, make_corpus: MakeCorpus, stopped_recovery: records.Stage
) -> None:
    """`latest` would be its end, behind the later cycles, and none of these could be accepted any more."""
    assert resumable(session) is not None
    later = bench.midtraining(docs=make_corpus("Second"))
    midtrain(session, later, gather_cycle(session, later, 2))
    assert session.resolve("latest").name == "cycle-2/midtrained" and resumable(session) is None
    with pytest.raises(
        UsageError, match=rf"stage {stopped_recovery.id} .* cannot be resumed: cycle 2 goes on from the model"
    ):
        cycle.resume_stage(session, stopped_recovery)
    assert session.resolve("latest").name == "cycle-2/midtrained"
    leave(session, 2, "rolled_back")
    assert "made cycle-1/recovered" in cycle.resume(session)


def test_a_stopped_stage_of_a_rejected_cycle_goes_on_only_if_it_is_accepted_again(
    session: Session, stopped_recovery: records.Stage
) -> None:
    states = with_a_state(session)
    leave(session, 1, "rejected")
    with pytest.raises(
        UsageError, match=rf"except stage {stopped_recovery.id}: its cycle, .* was rejected or rolled back: .* no"
    ):
        cycle.resume(session)
    with pytest.raises(UsageError, match=rf"stage {stopped_recovery.id} \(distill\) cannot be resumed: its cycle"):
        cycle.resume_stage(session, stopped_recovery)
    assert session.resolve("latest").name == "base" and states in pruned(session, "states")
    accept(session, 1)
    assert "made cycle-1/recovered" in cycle.resume(session)


def test_an_extension_that_was_stopped_does_not_replace_what_a_person_accepted(
    session: Session, bench: Bench, cycles: Cycles, record: Record
) -> None:
    recorded = record("midtrain 2")
    with pytest.raises(StageInterrupted):
        start_cycles(session, cycles("First", "Second"))
    recorded.stop = "distill 1"
    with pytest.raises(StageInterrupted):  # as a gate that is undecided does
        recorded.distill(session, bench.distilling(student="cycle-1/recovered"))
    stopped = resumable(session)
    assert stopped is not None and stopped.kind == "distill"
    accept(session, 1)
    with pytest.raises(UsageError, match="its end would take the place of what was accepted; start it again"):
        cycle.resume_stage(session, stopped)
    cycle.resume(session)
    assert line_of(session, "latest") == line(1, 2)


@pytest.mark.parametrize(("stop", "left"), [("distill 1", "recovered"), ("distill 1 saved", "recovered-2")])
def test_an_extension_that_cannot_go_on_leaves_what_was_recovered_before(
    session: Session,
    bench: Bench,
    cycles: Cycles,
    record: Record,
    prompt_file: Path,
    tmp_path: Path,
    stop: str,
    left: str,
) -> None:
    """The whole recovery began again from the mid-trained model."""
    prompts = Path(shutil.copyfile(prompt_file / "train.jsonl", tmp_path / "own.jsonl"))
    recorded = record("midtrain 2")
    with pytest.raises(StageInterrupted):
        start_cycles(session, cycles("First", "Second", distill=bench.distilling(prompts=prompts)))
    recorded.stop = stop
    with pytest.raises(StageInterrupted):  # as a gate that is undecided does
        recorded.distill(session, bench.distilling(prompts=prompts, student="cycle-1/recovered"))
    prompts.write_text(prompts.read_text() + json.dumps({"prompt": "Another?"}) + "\n")
    plan = read_plan(session)
    made = cycle._made(session, plan, 1, "recovered") if plan else None
    assert made == session.resolve(f"cycle-1/{left}") == session.resolve("latest"), "what is latest is evaluated"
    cycle.resume(session)
    stages = stages_of(session, "distill")
    assert [stage.cycle for stage in stages if stage.status == "finished"] == [2, 1]
    assert line_of(session, "latest") == line(1, 2), "the second cycle had begun from what was recovered first"


def test_a_stopped_stage_does_not_go_on_without_a_cycle_that_was_accepted_since(
    session: Session, cycles: Cycles, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would end as a sibling of that cycle, halfway on a schedule for other documents."""
    record("midtrain 2")
    start_cycles(session, cycles("First"))
    leave(session, 1, "rejected")
    with pytest.raises(StageInterrupted):
        start_cycles(session, cycles("Second"))
    stopped = resumable(session)
    assert stopped is not None and stopped.details[EARLIER_CYCLES] == []
    accept(session, 1)
    with pytest.raises(UsageError, match=rf"stage {stopped.id} \(midtrain\) cannot be resumed: earlier cycles were"):
        cycle.resume_stage(session, stopped)
    assert resumable(session) is None, "nor does it hide older stages"
    plan = session.workspace.folder / PLAN
    plan.rename(plan.with_suffix(".aside"))
    with pytest.raises(UsageError, match=f"except stage {stopped.id}: earlier cycles were decided about"):
        cycle.resume(session)
    plan.with_suffix(".aside").rename(plan)
    cycle.resume(session)
    assert line_of(session, "latest") == line(1, 2)
    assert f"stage {stopped.id} (midtrain) starts again: earlier cycles were decided about" in capsys.readouterr().err
    assert queries.stage(session.tracker.database, stopped.id + 1).details[EARLIER_CYCLES] == [1]  # type: ignore[union-attr]


def test_decisions_about_earlier_cycles_stop_only_stages_that_read_them_or_end_beside_them(
    session: Session, bench: Bench, make_corpus: MakeCorpus, record: Record
) -> None:
    recorded = record("midtrain 2")
    recorded.midtrain(session, bench.midtraining(), open_cycle(session, bench.midtraining()))
    config = bench.midtraining(docs=make_corpus("Second"), student="base")
    with pytest.raises(StageInterrupted):
        recorded.midtrain(session, config, open_cycle(session, config))
    stopped = resumable(session)
    assert stopped is not None and stopped.details[EARLIER_CYCLES] == [1]
    leave(session, 1, "rejected")
    assert getattr(resumable(session), "id", None) == stopped.id, "it reads no earlier document"
    reading = replace(stopped, config={**stopped.config, "replay_documents": 0.5})
    assert "earlier cycles were decided about" in why_not_resumed(session.registry, reading)


def test_abandoned_work_is_not_taken_for_the_new_cycles(
    session: Session, cycles: Cycles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, stopped(session):
        patch.setattr(cycle, "_evaluate_base", lambda *_: None)
        start_cycles(session, cycles("First", evaluate=True))
    drop_plan(session)
    second = cycles("Second", evaluate=True)
    start_cycles(session, second)
    done = [stage for stage in stages_of(session, "midtrain") if stage.status == "finished"]
    assert [Path(stage.config["docs"]) for stage in done] == list(second.docs) and done[0].attempts == 1


def test_the_base_is_asked_about_the_documents_that_replace_abandoned_ones(
    session: Session, cycles: Cycles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked() -> set[str]:
        found = newest(session.tracker.database, session.base.id or 0)["domain_knowledge_stored/1"]
        return {sample.item for sample in queries.samples(session.tracker.database, found.id).samples}

    def stopping(*_: object, **__: object) -> None:
        raise StageInterrupted("before the training")

    monkeypatch.setattr(cycle, "midtrain", stopping)
    for name in ("First", "Second"):
        with pytest.raises(StageInterrupted):
            start_cycles(session, cycles(name, evaluate=True))
        drop_plan(session)
        assert asked() <= {probe.id for probe in load_snapshot(session.workspace, 1).probes}
