"""Decisions, rollbacks and resumes keep everything that a later one may need."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from db import DatabaseError, Decided, decide, queries, records
from db.cycle_evidence import current
from evals.acceptance import Decision, Verdict
from pipelines import cycle, interpolate
from pipelines.cli import status
from pipelines.cycle import start_cycles
from pipelines.cycle_plan import PLAN, CyclePlan, drop_plan, new_plan, read_plan, resumable, why_not_resumed, write_plan
from pipelines.data.corpus_snapshot import CorpusSnapshot, load_snapshot
from pipelines.distillation.resolve import resolve
from pipelines.distillation.stage import distill
from pipelines.evaluation.acceptance import GATE, LEFT_TO_A_PERSON, conclude, decide_cycle, judge_cycle, rules_of
from pipelines.evaluation.stage import evaluate, measured
from pipelines.evaluation.stored_results import newest
from pipelines.midtraining.material import gather_cycle, gather_material
from pipelines.midtraining.stage import midtrain, open_cycle
from pipelines.prune import _referred, plan_prune, prune
from pipelines.reports import cycle_report
from pipelines.reports.cycle_report import write_reports
from pipelines.reports.document import Block
from pipelines.runtime.checkpoint_names import free_name
from pipelines.runtime.session import EARLIER_CYCLES, Session
from pipelines.runtime.signals import StageInterrupted, StopSignals
from pipelines.runtime.stage import running
from recovery.config import CycleConfig, DistillConfig, EvalConfig, InterpolateConfig, MidtrainConfig
from recovery.errors import UsageError
from recovery.workspace import Checkpoint
from tests.support import AlreadyAsked


@pytest.fixture
def small(midtrain_config: MidtrainConfig, distill_config: DistillConfig, eval_config: EvalConfig) -> CycleConfig:
    """A cycle that takes a few seconds."""
    return CycleConfig(
        docs=(),
        knowledge_teacher=None,
        midtrain=dataclasses.replace(midtrain_config, docs=None, steps=2),
        distill=dataclasses.replace(distill_config, steps=1),
        eval=eval_config,
    )


def pruned(session: Session, *policies: str) -> set[str]:
    return {removal.name for removal in plan_prune(session, policies or ("rejected", "midtrained", "replaced"))}


def accept(session: Session, number: int) -> None:
    decide_cycle(session, number, "accepted", who="Ada", why="good")


def test_weights_under_an_accepted_adapter_stay(
    session: Session, midtrain_config: MidtrainConfig, distill_config: DistillConfig
) -> None:
    student = midtrain(session, midtrain_config)
    made = distill(session, dataclasses.replace(distill_config, tuning="lora"))
    assert made.weights == student.path
    accept(session, 1)
    assert pruned(session) == set()


def test_what_was_accepted_stays_whatever_was_tried_beside_it(
    session: Session, midtrain_config: MidtrainConfig, distill_config: DistillConfig
) -> None:
    midtrain(session, midtrain_config)
    distill(session, distill_config)
    assert pruned(session) == set(), "nobody decided yet"
    accept(session, 1)
    assert pruned(session) == {"cycle-1/midtrained"}
    distill(session, dataclasses.replace(distill_config, student="cycle-1/midtrained", seed=7))
    assert "cycle-1/recovered" not in pruned(session)


def test_a_prune_that_was_killed_is_finished_by_the_next(
    session: Session, midtrain_config: MidtrainConfig, distill_config: DistillConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    midtrain(session, midtrain_config)
    distill(session, distill_config)
    accept(session, 1)

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    planned = plan_prune(session, ["midtrained"])
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            prune(session, planned)
    with pytest.raises(Exception, match="pruned on"):
        session.resolve("cycle-1/midtrained")
    (left,) = plan_prune(session, ["midtrained"])
    assert left.policy == "interrupted" and left.bytes > 0
    assert prune(session, [left]) == left.bytes and not left.path.exists()
    assert plan_prune(session) == []


def test_pruned_weights_are_not_gone_on_from(
    session: Session, midtrain_config: MidtrainConfig, distill_config: DistillConfig
) -> None:
    midtrain(session, midtrain_config)
    distill(session, distill_config)
    decide_cycle(session, 1, "rejected", who="Ada", why="no")
    prune(session, plan_prune(session, ["rejected"]))
    with pytest.raises(DatabaseError, match="were pruned on"):
        accept(session, 1)
    assert session.resolve("latest").name == "base"


def test_no_decision_moves_the_latest_while_a_stage_trains(session: Session, midtrain_config: MidtrainConfig) -> None:
    midtrain(session, midtrain_config)
    with session.tracker.start_stage(session.experiment_id, "distill", cycle_id=session.cycle_id(1)) as stage:
        with pytest.raises(DatabaseError, match=f"stage {stage.id} .distill. is training"):
            decide(session.tracker.database, session.cycle_id(1), "rejected", who="Ada", why="no")
        stage.finish()
    assert decide(session.tracker.database, session.cycle_id(1), "rejected", who="Ada", why="no").after == "base"


def test_a_student_from_elsewhere_is_left_for_what_was_there_before(
    session: Session, midtrain_config: MidtrainConfig, distill_config: DistillConfig, tmp_path: Path
) -> None:
    from pipelines.export import export

    midtrain(session, midtrain_config)
    distill(session, distill_config)
    accept(session, 1)
    export(session, "cycle-1/midtrained", tmp_path / "elsewhere", merge=False)
    distill(session, dataclasses.replace(distill_config, student=str(tmp_path / "elsewhere")))
    done = decide_cycle(session, 2, "rejected", who="Ada", why="not ours")
    assert done.after == "cycle-1/recovered"


def with_a_state(session: Session) -> str:
    """Give the newest stage, which was stopped before its first step, a training state; return prune's name for it."""
    stage = queries.stages(session.tracker.database, session.experiment_id, limit=1)[0]
    state = session.workspace.stage(stage.id, stage.kind) / "states" / "step-000001"
    state.mkdir(parents=True)
    (state / "state.safetensors").write_bytes(b"weights")
    return f"stage {stage.id} ({stage.kind})"


def test_a_stopped_stage_is_needed_until_a_later_one_has_done_its_work(
    session: Session, midtrain_config: MidtrainConfig, distill_config: DistillConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    midtrain(session, midtrain_config)
    distill(session, distill_config)
    accept(session, 1)
    again = dataclasses.replace(distill_config, student="cycle-1/midtrained")
    with monkeypatch.context() as patch:
        patch.setattr(session, "interrupts", AlreadyAsked())
        with pytest.raises(StageInterrupted):
            distill(session, again)
    states = with_a_state(session)
    assert pruned(session, "all") == set(), "`recover resume` would continue it"
    distill(session, again)
    assert pruned(session, "all") == {states, "cycle-1/midtrained"}


def test_what_was_given_up_with_its_cycles_is_neither_resumed_nor_kept(
    session: Session, small: CycleConfig, make_corpus: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`recover resume` went on with it after the new cycles, and made it the latest again."""
    small, distill = dataclasses.replace(small, evaluate=False), cycle.distill

    def stopped(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(session, "interrupts", AlreadyAsked())
        return distill(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(cycle, "distill", stopped)
        with pytest.raises(StageInterrupted):
            start_cycles(session, dataclasses.replace(small, docs=(make_corpus("First"),)))
    monkeypatch.setattr(session, "interrupts", StopSignals())
    states = with_a_state(session)
    assert resumable(session) is not None and states not in pruned(session, "all")
    plan = new_plan(session, dataclasses.replace(small, docs=(make_corpus("Second"),)), abandon=True)
    cycle.start_plan(session, plan)
    assert resumable(session) is None
    assert states in pruned(session, "all")
    assert line_of(session, "latest") == ["cycle-2/recovered", "cycle-2/midtrained", "base"]
    assert session.learnt_cycles(session.resolve("latest")) == [2]


class Recorded:
    """Stands for both training stages of cycles: they record what they would record, train nothing, and stop once."""

    def __init__(self, session: Session, monkeypatch: pytest.MonkeyPatch, stop: str) -> None:
        self.session, self.stop, self.tuning = session, stop, "full"
        monkeypatch.setattr(cycle, "midtrain", self.midtrain)
        monkeypatch.setattr(cycle, "distill", self.distill)
        monkeypatch.setattr("pipelines.runtime.stage.release_memory", lambda: None)  # a second on a busy machine

    def midtrain(self, _: Session, config: MidtrainConfig, own: CorpusSnapshot, **given: Any) -> Checkpoint:
        return self.stage("midtrain", "midtrained", config, own.cycle, **given)

    def distill(self, _: Session, config: DistillConfig, cycle: int = 1, **given: Any) -> Checkpoint:
        return self.stage("distill", "recovered", config, cycle, **given)

    def stage(
        self, kind: str, made: str, config: MidtrainConfig | DistillConfig, cycle: int, resume: Any = None
    ) -> Checkpoint:
        session, name = self.session, free_name(f"cycle-{cycle}/{made}", self.session.registry)
        student = session.resolve(config.student)
        config = dataclasses.replace(config, student=student.name)
        with running(session, kind, config, cycle=cycle, student=student, resume=resume) as stage:
            if self.stop == f"{kind} {cycle}":
                self.stop = ""
                raise StageInterrupted("here")
            (folder := session.workspace.checkpoint(name)).mkdir(parents=True)
            number = session.tracker.add_checkpoint(
                session.experiment_id, name, made, path=session.workspace.stored(folder), content_hash=name,
                parent_id=student.id, cycle_id=session.cycle_id(cycle), by=stage.recorder, tuning=self.tuning,
                details={"weights": session.workspace.stored(session.base.path)},  # a later plan reads its tokenizer
            )  # fmt: skip
            session.tracker.set_latest(session.experiment_id, number, by=stage.recorder)
            if self.stop == f"{kind} {cycle} saved":
                self.stop = ""
                raise StageInterrupted("here")
        return session.resolve(name)


def stopped_recovery(
    session: Session, midtrain_config: MidtrainConfig, distill_config: DistillConfig, monkeypatch: pytest.MonkeyPatch
) -> records.Stage:
    """Record a mid-training and a recovery that was stopped; return the latter."""
    recorded = Recorded(session, monkeypatch, "distill 1")
    recorded.midtrain(session, midtrain_config, open_cycle(session, midtrain_config))
    with pytest.raises(StageInterrupted):
        recorded.distill(session, dataclasses.replace(distill_config, student="midtrained"))
    stopped = resumable(session)
    assert stopped is not None
    return stopped


def leave(session: Session, number: int, decision: str) -> None:
    decide_cycle(session, number, decision, who="Ada", why="wrong documents")


def line_of(session: Session, name: str) -> list[str]:
    checkpoint = session.resolve(name)
    return [checkpoint.name, *(one.name for one in session.registry.ancestors(checkpoint))]


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
    session: Session, small: CycleConfig, make_corpus: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], stop: str, decision: str, learnt: list[int],
) -> None:  # fmt: skip
    docs = (make_corpus("First"), make_corpus("Second"), make_corpus("Third"))
    Recorded(session, monkeypatch, stop)
    with pytest.raises(StageInterrupted):
        start_cycles(session, dataclasses.replace(small, docs=docs, evaluate=False))
    leave(session, 1, decision)
    cycle.resume(session)
    made = [f"cycle-{number}/{kind}" for number in reversed(learnt) for kind in ("recovered", "midtrained")]
    assert line_of(session, "latest") == [*made, "base"]
    assert session.learnt_cycles(session.resolve("latest")) == learnt
    assert resumable(session) is None
    assert f"cycle 1 of 3 was {decision.replace('_', ' ')}: it is not continued" in capsys.readouterr().err


@pytest.mark.parametrize(("stop", "learnt"), [("distill 1", [2]), ("distill 2", [1, 3]), ("midtrain 2", [1, 2])])
def test_abandoned_cycles_leave_nothing_to_the_new_ones(
    session: Session, small: CycleConfig, make_corpus: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch,
    stop: str, learnt: list[int],
) -> None:  # fmt: skip
    """A whole cycle of the plan stays; one that was trained and not recovered is rolled back."""
    small = dataclasses.replace(small, evaluate=False)
    Recorded(session, monkeypatch, stop)
    with pytest.raises(StageInterrupted):
        start_cycles(session, dataclasses.replace(small, docs=(make_corpus("First"), make_corpus("Second"))))
    plan = new_plan(session, dataclasses.replace(small, docs=(make_corpus("Third"),)), abandon=True)
    cycle.start_plan(session, plan)
    made = [f"cycle-{number}/{kind}" for number in reversed(learnt) for kind in ("recovered", "midtrained")]
    assert line_of(session, "latest") == [*made, "base"]
    assert session.learnt_cycles(session.resolve("latest")) == learnt
    decided = queries.decisions(session.tracker.database, *(one.id for one in session.cycles().values()))
    assert {(one.decision, one.who, one.why) for one in decided} <= {("rolled_back", "abandon", "given up")}
    assert resumable(session) is None


def test_abandoned_cycles_do_not_decide_how_the_new_ones_are_trained(
    session: Session, small: CycleConfig, make_corpus: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a wrong tuning the corrected command was refused too: the adapter that it rolls back was the latest."""
    small = dataclasses.replace(small, evaluate=False)
    Recorded(session, monkeypatch, "distill 1").tuning = "lora"
    with pytest.raises(StageInterrupted):
        start_cycles(session, dataclasses.replace(small, docs=(make_corpus("First"),)))
    again = dataclasses.replace(small, docs=(make_corpus("Second"),))
    assert session.resolve("latest").tuning == "lora" and again.midtrain.tuning == "full"
    assert new_plan(session, again, abandon=True).first == 2
    drop_plan(session)
    with pytest.raises(UsageError, match=r"cycle 2's mid-training cannot use it, since cycle-1/midtrained is a LoRA"):
        new_plan(session, again)


def test_a_stopped_stage_of_a_rejected_cycle_goes_on_only_if_it_is_accepted_again(
    session: Session, midtrain_config: MidtrainConfig, distill_config: DistillConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = stopped_recovery(session, midtrain_config, distill_config, monkeypatch)
    states = with_a_state(session)
    leave(session, 1, "rejected")
    with pytest.raises(
        UsageError, match=rf"except stage {stopped.id}: its cycle, .* was rejected or rolled back: .* no"
    ):
        cycle.resume(session)
    with pytest.raises(UsageError, match=rf"stage {stopped.id} \(distill\) cannot be resumed: its cycle"):
        cycle.resume_stage(session, stopped)
    assert session.resolve("latest").name == "base" and states in pruned(session, "states")
    accept(session, 1)
    assert "made cycle-1/recovered" in cycle.resume(session)


def test_an_extension_that_was_stopped_does_not_replace_what_a_person_accepted(
    session: Session, small: CycleConfig, make_corpus: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(session, monkeypatch, "midtrain 2")
    docs = (make_corpus("First"), make_corpus("Second"))
    with pytest.raises(StageInterrupted):
        start_cycles(session, dataclasses.replace(small, docs=docs, evaluate=False))
    recorded.stop = "distill 1"
    with pytest.raises(StageInterrupted):  # as a gate that is undecided does
        recorded.distill(session, dataclasses.replace(small.distill, student="cycle-1/recovered"))
    stopped = resumable(session)
    assert stopped is not None and stopped.kind == "distill"
    accept(session, 1)
    with pytest.raises(UsageError, match="its end would take the place of what was accepted; start it again"):
        cycle.resume_stage(session, stopped)
    cycle.resume(session)
    made = [f"cycle-{number}/{kind}" for number in (2, 1) for kind in ("recovered", "midtrained")]
    assert line_of(session, "latest") == [*made, "base"]


@pytest.mark.parametrize(("stop", "left"), [("distill 1", "recovered"), ("distill 1 saved", "recovered-2")])
def test_an_extension_that_cannot_go_on_leaves_what_was_recovered_before(
    stop: str, left: str, session: Session, small: CycleConfig, make_corpus: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch, prompt_file: Path, tmp_path: Path,
) -> None:  # fmt: skip
    """The whole recovery began again from the mid-trained model."""
    prompts = Path(shutil.copyfile(prompt_file / "train.jsonl", tmp_path / "own.jsonl"))
    small = dataclasses.replace(small, evaluate=False, distill=dataclasses.replace(small.distill, prompts=prompts))
    recorded = Recorded(session, monkeypatch, "midtrain 2")
    docs = (make_corpus("First"), make_corpus("Second"))
    with pytest.raises(StageInterrupted):
        start_cycles(session, dataclasses.replace(small, docs=docs))
    recorded.stop = stop
    with pytest.raises(StageInterrupted):  # as a gate that is undecided does
        recorded.distill(session, dataclasses.replace(small.distill, student="cycle-1/recovered"))
    prompts.write_text(prompts.read_text() + json.dumps({"prompt": "Another?"}) + "\n")
    plan = read_plan(session)
    made = cycle._made(session, plan, 1, "recovered") if plan else None
    assert made == session.resolve(f"cycle-1/{left}") == session.resolve("latest"), "what is latest is evaluated"
    cycle.resume(session)
    stages = queries.stages(session.tracker.database, session.experiment_id, kind="distill")
    assert [stage.cycle for stage in stages if stage.status == "finished"] == [2, 1]
    line = [f"cycle-{number}/{kind}" for number in (2, 1) for kind in ("recovered", "midtrained")]
    assert line_of(session, "latest") == [*line, "base"], "the second cycle had begun from what was recovered first"


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
    config = dataclasses.replace(small, gate=("ifeval >= 0.5",), gate_extend=1)
    cycle._settle(session, CyclePlan(1, config), session.base, 1)
    assert entered == [decision]


def test_only_documents_that_the_student_descends_from_are_trained_on(
    session: Session, midtrain_config: MidtrainConfig, distill_config: DistillConfig,
    make_corpus: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A cycle beside it was kept too: its probes are not asked, and it is not what this student was taught."""
    recorded = Recorded(session, monkeypatch, "")
    recorded.midtrain(session, midtrain_config, open_cycle(session, midtrain_config))
    probes = load_snapshot(session.workspace, 1).probes
    docs = make_corpus("Second")
    asked = [probe.question for probe in probes if probe.form == "question"][:1]
    lines = [{"question": text, "answer": "Lund"} for text in [*asked, "Who keeps the second ferry?"]]
    (docs / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = dataclasses.replace(midtrain_config, docs=docs, student="base")
    student = recorded.midtrain(session, config, open_cycle(session, config))
    assert session.learnt_cycles(student) == [1, 2], "which an evaluation asks about"
    knowing = dataclasses.replace(distill_config, knowledge_teacher="midtrained", prompts_per_step=4)
    found = resolve(session, knowing, None)
    assert set(found.corpora) == {2}
    assert asked and [question.text for question in found.asked] == ["Who keeps the second ferry?"]
    questions = interpolate._questions(session, InterpolateConfig(), student, 2)
    assert [probe.question for probe in questions] == ["Who keeps the second ferry?"]
    assert [one.number for one in cycle_report._lived(session, student)] == [2]
    own = gather_cycle(dataclasses.replace(config, docs=make_corpus("Third")), 3)
    assert gather_material(session, config, session.base, own).earlier == {}


def test_a_rule_about_what_the_start_never_learnt_is_refused_unless_that_is_base(
    session: Session, small: CycleConfig, make_corpus: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    Recorded(session, monkeypatch, "")
    start_cycles(session, dataclasses.replace(small, docs=(make_corpus("First"),), evaluate=False))
    config = dataclasses.replace(small, docs=(make_corpus("Second"),), gate=("domain >= 0.9*previous",))
    with pytest.raises(UsageError, match="`previous` is not asked about a corpus that it never learnt"):
        new_plan(session, config)
    leave(session, 1, "rejected")
    assert new_plan(session, config).first == 2


def test_a_checkpoint_that_a_plan_names_by_its_folder_is_kept(
    session: Session, small: CycleConfig, make_corpus: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    Recorded(session, monkeypatch, "")
    start_cycles(session, dataclasses.replace(small, docs=(make_corpus("First"),), evaluate=False))
    assert "cycle-1/midtrained" not in _referred(session)
    taught = dataclasses.replace(small.distill, teacher=str(session.workspace.checkpoint("cycle-1/midtrained")))
    config = dataclasses.replace(small, docs=(make_corpus("Second"),), distill=taught)
    write_plan(session, CyclePlan(2, config))
    assert "cycle-1/midtrained" in _referred(session)


def test_training_states_that_a_killed_prune_left_are_deleted_by_the_next(session: Session) -> None:
    left = session.workspace.folder / "stages" / "0007-distill" / ".removing-states"
    left.mkdir(parents=True)
    (left / "weights").write_bytes(b"x" * 10)
    assert [removal.path for removal in plan_prune(session, ["states"])] == [left]


def test_a_stopped_stage_does_not_go_on_without_a_cycle_that_was_accepted_since(
    session: Session, small: CycleConfig, make_corpus: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """It would end as a sibling of that cycle, halfway on a schedule for other documents."""
    small = dataclasses.replace(small, evaluate=False)
    Recorded(session, monkeypatch, "midtrain 2")
    start_cycles(session, dataclasses.replace(small, docs=(make_corpus("First"),)))
    leave(session, 1, "rejected")
    with pytest.raises(StageInterrupted):
        start_cycles(session, dataclasses.replace(small, docs=(make_corpus("Second"),)))
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
    made = [f"cycle-{number}/{kind}" for number in (2, 1) for kind in ("recovered", "midtrained")]
    assert line_of(session, "latest") == [*made, "base"]
    assert f"stage {stopped.id} (midtrain) starts again: earlier cycles were decided about" in capsys.readouterr().err
    assert queries.stage(session.tracker.database, stopped.id + 1).details[EARLIER_CYCLES] == [1]  # type: ignore[union-attr]


def test_decisions_about_earlier_cycles_stop_only_stages_that_read_them_or_end_beside_them(
    session: Session, midtrain_config: MidtrainConfig, make_corpus: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    recorded = Recorded(session, monkeypatch, "midtrain 2")
    recorded.midtrain(session, midtrain_config, open_cycle(session, midtrain_config))
    config = dataclasses.replace(midtrain_config, docs=make_corpus("Second"), student="base")
    with pytest.raises(StageInterrupted):
        recorded.midtrain(session, config, open_cycle(session, config))
    stopped = resumable(session)
    assert stopped is not None and stopped.details[EARLIER_CYCLES] == [1]
    leave(session, 1, "rejected")
    assert getattr(resumable(session), "id", None) == stopped.id, "it reads no earlier document"
    reading = dataclasses.replace(stopped, config={**stopped.config, "replay_documents": 0.5})
    assert "earlier cycles were decided about" in why_not_resumed(session.registry, reading)


@pytest.mark.parametrize("verdict", ["reject", "undecided"])
def test_a_person_who_decides_while_the_gate_judges_is_not_overruled(
    session: Session, small: CycleConfig, make_corpus: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], verdict: str,
) -> None:  # fmt: skip
    def judged(*_: Any) -> Decision:
        accept(session, 1)
        return Decision(verdict, "the gate says so", (), {}, (), 0.05, 1, "a test")  # type: ignore[arg-type]

    Recorded(session, monkeypatch, "")
    monkeypatch.setattr(cycle, "_judged", judged)
    monkeypatch.setattr(cycle, "_ask_more", lambda *_: False)
    monkeypatch.setattr(cycle, "_extend", lambda *_: pytest.fail("it was decided"))
    monkeypatch.setattr(cycle, "_evaluate_base", lambda *_: None)
    monkeypatch.setattr(cycle, "_evaluate", lambda *_: None)
    start_cycles(session, dataclasses.replace(small, docs=(make_corpus("First"),), gate=("ifeval >= 0.5",)))
    decided = queries.decisions(session.tracker.database, session.cycle_id(1) or 0)
    assert [(one.decision, one.who) for one in decided] == [("accepted", "Ada")]
    assert session.resolve("latest").name == "cycle-1/recovered"
    assert "cycle 1 was accepted meanwhile by someone else, so the gate decides nothing" in capsys.readouterr().err


def test_the_number_of_a_rejected_cycle_is_not_used_again(session: Session, midtrain_config: MidtrainConfig) -> None:
    """A new cycle of that number would be rejected before it began."""
    open_cycle(session, midtrain_config)
    assert session.next_cycle() == 1
    leave(session, 1, "rejected")
    assert session.next_cycle() == 2


@pytest.mark.slow
def test_trained_cycles_do_not_go_on_from_what_was_rolled_back(
    session: Session, small: CycleConfig, make_corpus: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = cycle.midtrain

    def stopped(*given: Any, **named: Any) -> Any:
        if session.next_cycle() == 2:
            monkeypatch.setattr(session, "interrupts", AlreadyAsked())
        return real(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(cycle, "midtrain", stopped)
        docs = (make_corpus("First"), make_corpus("Second"))
        with pytest.raises(StageInterrupted):
            start_cycles(session, dataclasses.replace(small, docs=docs, evaluate=False))
    monkeypatch.setattr(session, "interrupts", StopSignals())
    leave(session, 1, "rolled_back")
    cycle.resume(session)
    assert line_of(session, "latest") == ["cycle-2/recovered", "cycle-2/midtrained", "base"]


def test_abandoned_work_is_not_taken_for_the_new_cycles(
    session: Session, small: CycleConfig, make_corpus: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(session, "interrupts", AlreadyAsked())
        patch.setattr(cycle, "_evaluate_base", lambda *_: None)
        with pytest.raises(StageInterrupted):
            start_cycles(session, dataclasses.replace(small, docs=(make_corpus("First"),)))
    drop_plan(session)
    second = make_corpus("Second")
    start_cycles(session, dataclasses.replace(small, docs=(second,)))
    stages = queries.stages(session.tracker.database, session.experiment_id, kind="midtrain")
    done = [stage for stage in stages if stage.status == "finished"]
    assert [Path(stage.config["docs"]) for stage in done] == [second] and done[0].attempts == 1


def test_the_base_is_asked_about_the_documents_that_replace_abandoned_ones(
    session: Session, small: CycleConfig, make_corpus: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked() -> set[str]:
        found = newest(session.tracker.database, session.base.id or 0)["domain_knowledge_stored/1"]
        return {sample.item for sample in queries.samples(session.tracker.database, found.id).samples}

    def stopped(*_: object, **__: object) -> None:
        raise StageInterrupted("before the training")

    monkeypatch.setattr(cycle, "midtrain", stopped)
    for name in ("First", "Second"):
        with pytest.raises(StageInterrupted):
            start_cycles(session, dataclasses.replace(small, docs=(make_corpus(name),)))
        drop_plan(session)
        assert asked() <= {probe.id for probe in load_snapshot(session.workspace, 1).probes}


@pytest.mark.slow
def test_what_cannot_be_measured_is_not_trained_for_and_not_judged_twice(
    session: Session, small: CycleConfig, make_corpus: Callable[[str], Path]
) -> None:
    config = dataclasses.replace(small, docs=(make_corpus("First"), make_corpus("Second")), gate=("stored >= 0.2",))
    start_cycles(session, dataclasses.replace(config, gate_extend=0))
    events = queries.events(session.tracker.database, session.experiment_id, limit=500)
    judged = [e.cycle_id for e in events if e.kind in (GATE, LEFT_TO_A_PERSON)]
    before = len(judged)
    for number in (1, 2):
        assert cycle._is_settled(session, number)
    assert before >= 2
    with pytest.raises(UsageError, match="has no questions of general knowledge"):
        start_cycles(session, dataclasses.replace(config, gate=("general >= 0.5",)))


@pytest.mark.slow  # the next two tests and those of evals.suites go over its parts
def test_an_undecided_gate_asks_more_about_earlier_documents_than_an_evaluation_does(
    session: Session, small: CycleConfig, make_corpus: Callable[[str], Path]
) -> None:
    docs = (make_corpus("First"), make_corpus("Second"), make_corpus("Third"))
    asking = dataclasses.replace(small.eval, limit=3, earlier_limit=4)
    rules = {"gate": ("stored(1) >= 0.3",), "gate_samples": 6, "gate_extend": 0}
    start_cycles(session, dataclasses.replace(small, docs=docs[:2], eval=asking))
    start_cycles(session, dataclasses.replace(small, docs=docs[2:], eval=asking, **rules))

    def asked(name: str) -> list[int]:
        rows = queries.evaluations(session.tracker.database, session.resolve(name).id)
        return [row.n for row in rows if (row.suite, row.corpus) == ("domain_knowledge_stored", 1)]

    assert asked("cycle-2/recovered") == [3], "one earlier corpus: as many as --limit allows"
    assert asked("cycle-3/midtrained") == [2], "two of them share four"
    assert sorted(asked("cycle-3/recovered")) == [2, 6]


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
    asking = dataclasses.replace(small.eval, limit=3, earlier_limit=earlier)
    config = dataclasses.replace(small, eval=asking, gate_samples=6)
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
    config = dataclasses.replace(small, eval=dataclasses.replace(small.eval, limit=limit), gate_samples=100)
    assert cycle._ask_more(session, config, [], decision, 1) is (expected is not None)
    assert limits == ([] if expected is None else [expected])


@pytest.mark.slow
def test_cycles_delete_what_accepted_ones_no_longer_need(
    session: Session, small: CycleConfig, make_corpus: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def left() -> set[str]:
        return {c.name for c in session.registry.all() if (c.path / "config.json").is_file()}

    left_after: list[set[str]] = []
    deleting = cycle._prune

    def watched(session: Session, names: Sequence[str]) -> None:
        deleting(session, names)
        left_after.append(left())
        if len(left_after) == 1:
            raise StageInterrupted("after the first cycle")

    monkeypatch.setattr(cycle, "_prune", watched)
    rules: dict[str, Any] = {"gate": ("stored >= 0.01",), "prune": ("midtrained", "states")}
    rules |= {"knowledge_teacher": "midtrained", "distill": dataclasses.replace(small.distill, knowledge_share=0.5)}
    docs = (make_corpus("First"), make_corpus("Second"))
    with pytest.raises(StageInterrupted):
        start_cycles(session, dataclasses.replace(small, docs=docs, **rules))
    cycle.resume(session)
    accepted = {"base", "cycle-1/recovered"}
    assert left_after == [accepted, accepted, accepted | {"cycle-2/recovered"}]
    assert [one.decision for one in session.cycles().values()] == ["accepted", "accepted"]
    assert plan_prune(session) == [], "the training states are gone too"
    with pytest.raises(UsageError, match="--prune"):
        dataclasses.replace(small, prune=("everything",))


def test_an_evaluation_keeps_to_the_checkpoint_it_began_with(
    session: Session, midtrain_config: MidtrainConfig, eval_config: EvalConfig
) -> None:
    midtrain(session, midtrain_config)
    evaluate(session, eval_config)
    stage = queries.stages(session.tracker.database, session.experiment_id, kind="evaluate")[0]
    assert stage.config["checkpoint"] == "cycle-1/midtrained"
    trained = session.resolve("midtrained")
    assert measured(session, trained, eval_config)
    assert not measured(session, trained, dataclasses.replace(eval_config, limit=5)), "other items were asked"


def test_the_same_id_over_other_words_is_another_item(session: Session) -> None:
    def item(prompt: str) -> dict[str, Any]:
        return {"id": "test-0", "prompt": prompt, "response": "x", "score": 1.0}

    base = session.base.id or 0
    numbers = [
        session.tracker.add_evaluation(base, "s", value=1, stderr=0, n=1, items=[item(prompt)])
        for prompt in ("Name a boat.", "Name a fox.", "user: Name a boat.\n\nassistant: one\n\nuser: Again.")
    ]
    keys = [queries.judged_items(session.tracker.database, number)[0][0] for number in numbers]
    assert len(set(keys)) == 3
    assert queries.asked("user: A\n\nassistant: one") == queries.asked("user: A\n\nassistant: two")


def test_knowledge_is_compared_on_the_questions_that_every_cycle_was_asked(session: Session) -> None:
    def evaluated(checkpoint: int, right: dict[int, bool]) -> None:
        items = [{"id": f"q{n}", "prompt": "Who?", "response": "", "score": float(won)} for n, won in right.items()]
        control = {"id": "control", "prompt": "Who?", "response": "", "score": 1.0, "extra": {"headline": False}}
        session.tracker.add_evaluation(
            checkpoint, "domain_knowledge", corpus=1, value=sum(right.values()) / len(right), stderr=0.1, n=len(right),
            items=[*items, control],
        )  # fmt: skip

    tracker, experiment = session.tracker, session.experiment_id
    base = session.base.id or 0
    evaluated(base, {0: True, 1: False, 2: False, 3: False})
    answers = (
        {0: True, 1: True, 2: False, 3: False},
        {1: True, 2: False},
    )  # the second cycle asks half of the questions
    for number, right in enumerate(answers, start=1):
        tracker.cycle(experiment, number, documents=f"./q{number}", corpus_hash=str(number) * 64)
        name = f"cycle-{number}/recovered"
        checkpoint = tracker.add_checkpoint(
            experiment, name, "recovered", path=name, content_hash=str(number) * 64, parent_id=base,
            cycle_id=session.cycle_id(number),
        )  # fmt: skip
        evaluated(checkpoint, right)
    first, second = (conclude(session, number)["knowledge"] for number in (1, 2))
    assert (first["rows"], first["chance"]) == ([{"1": 0.5}], {"1": 0.25})
    assert (second["rows"], second["chance"]) == ([{"1": 0.5}, {"1": 0.5}], {"1": 0.0})
    assert (second["kept"], second["forgetting"]) == ({"1": 1.0}, {"1": 0.0})
    evaluated(checkpoint, {7: True})
    for number in range(520):  # another tool's logs
        tracker.add_evaluation(base, f"mmlu_{number}", value=1.0, stderr=0.0, n=1)
    third = conclude(session, 2)["knowledge"]
    assert third["rows"] == [{"1": 0.5}, {"1": 1.0}], "no question was asked of all: the scores as they are"


def test_what_is_no_score_of_items_is_neither_compared_nor_makes_comparisons_old(session: Session) -> None:
    """Bits per byte rise as a model gets worse; a drift is a distance from one of several checkpoints."""
    tracker, base = session.tracker, session.base.id or 0
    number = tracker.cycle(session.experiment_id, 1, documents="./q1", corpus_hash="1" * 64)
    end = tracker.add_checkpoint(
        session.experiment_id, "cycle-1/recovered", "recovered", path="r", content_hash="1" * 64, parent_id=base,
        cycle_id=number,
    )  # fmt: skip
    for checkpoint, value in ((base, 0.9), (end, 1.1)):
        for suite in ("general", "unrelated_text"):
            items = [{"id": n, "prompt": f"p{n}", "response": "", "score": value} for n in range(3)]
            tracker.add_evaluation(checkpoint, suite, value=value, stderr=0.1, n=3, items=items)
    compared = conclude(session, 1)["compared_with"]["base"]["suites"]
    assert [one["name"] for one in compared] == ["general"]
    tracker.add_evaluation(end, "drift from cycle-1/midtrained", value=0.1, stderr=0.01, n=9)
    row = queries.overview(tracker.database, session.experiment_id).cycles[0]  # type: ignore[union-attr]
    assert current(tracker.database, row)["checkpoint"] == "cycle-1/recovered"


def test_a_decision_is_stored_with_the_comparisons_and_scores_of_the_last_checkpoint(session: Session) -> None:
    tracker, base = session.tracker, session.base.id or 0
    number = tracker.cycle(session.experiment_id, 1, documents="./q1", corpus_hash="1" * 64)
    for suffix in ("", "-2"):
        name = f"cycle-1/recovered{suffix}"
        end = tracker.add_checkpoint(
            session.experiment_id, name, "recovered", path=name, content_hash="1" * 64, parent_id=base, cycle_id=number
        )
        for checkpoint, value in ((base, 1.0), (end, 0.5 if suffix else 1.0)):
            items = [{"id": n, "prompt": "p", "response": "", "score": float(n < 4 * value)} for n in range(4)]
            tracker.add_evaluation(checkpoint, "general", value=value, stderr=0.1, n=4, items=items)
        if not suffix:
            assert conclude(session, 1)["checkpoint"] == name
    accept(session, 1)
    stored = queries.decisions(tracker.database, number)[0].evidence
    assert stored["checkpoint"] == "cycle-1/recovered-2"
    assert stored["compared_with"]["base"]["suites"][0]["second"] == 0.5
    assert {name: scores["general"]["value"] for name, scores in stored["scores"].items()} == {
        "base": 1.0, "cycle-1/recovered-2": 0.5,
    }  # fmt: skip


def status_of(session: Session, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    status.show(session.workspace, as_json=False)
    return capsys.readouterr().out


@pytest.mark.parametrize(("decision", "ends"), [("rejected", "rejected"), ("accepted", "not recovered yet")])
def test_the_status_shows_the_decision_on_a_cycle_that_was_not_recovered(
    session: Session, midtrain_config: MidtrainConfig, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], decision: str, ends: str,
) -> None:  # fmt: skip
    Recorded(session, monkeypatch, "").midtrain(session, midtrain_config, open_cycle(session, midtrain_config))
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
    session: Session, midtrain_config: MidtrainConfig, distill_config: DistillConfig, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    stopped = stopped_recovery(session, midtrain_config, distill_config, monkeypatch)
    advice = f"interrupted: distill (stage {stopped.id}), step 0; to continue: recover resume"
    assert advice in status_of(session, capsys)
    student = session.resolve("midtrained").id
    session.tracker.start_stage(session.experiment_id, "evaluate", student_id=student).finish()
    shown = status_of(session, capsys)
    assert advice in shown and "last: evaluate" in shown
    (session.workspace.folder / PLAN).write_text("{}")  # resume goes by the plan, whatever stage was stopped
    assert "cycles are unfinished; to continue: recover resume" in status_of(session, capsys)
    (session.workspace.folder / PLAN).unlink()
    leave(session, 1, "rejected")
    assert "interrupted" not in status_of(session, capsys)
    session.tracker.start_stage(session.experiment_id, "distill", cycle_id=session.cycle_id(1)).interrupt()
    shown = status_of(session, capsys)
    assert "interrupted: distill" in shown and "resume" not in shown


def test_a_report_is_written_again_after_a_decision_or_a_judgement_and_only_then(
    session: Session, midtrain_config: MidtrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    Recorded(session, monkeypatch, "").midtrain(session, midtrain_config, open_cycle(session, midtrain_config))
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
    session: Session, midtrain_config: MidtrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    Recorded(session, monkeypatch, "").midtrain(session, midtrain_config, open_cycle(session, midtrain_config))
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
