"""Whole cycles, and interruptions at every point of one."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from db import queries
from db.schema import Stage
from pipelines import cycle
from pipelines.cli.cycle import _show_plan, _warn_of_teacher
from pipelines.cli.main import run
from pipelines.cycle import one_cycle, resume, start_cycles
from pipelines.cycle_estimate import estimate
from pipelines.cycle_plan import (
    CHECKSUM,
    PLAN,
    CyclePlan,
    drop_plan,
    midtrain_config,
    new_plan,
    planned_recovery,
    read_plan,
    recovery_config,
    resumable,
    write_plan,
)
from pipelines.data import corpus_reading
from pipelines.data.corpus_snapshot import load_snapshot
from pipelines.experiments.arm_cycle import _distilling
from pipelines.midtraining import material
from pipelines.midtraining.material import open_cycle
from pipelines.midtraining.plan import plan_midtrain
from pipelines.midtraining.stage import midtrain
from pipelines.planning import memory, tuning
from pipelines.runtime.session import Session, StageInterrupted
from pipelines.runtime.stage import running
from pipelines.table import duration
from recovery.arms import ARMS, arm_named
from recovery.config import WRITER_FILE, CycleConfig, DistillConfig, EvalConfig, MidtrainConfig, build
from recovery.errors import CheckpointError, CorpusError, ModelError, RecoveryError, ServerError, UsageError
from recovery.workspace import Checkpoint
from tests.http_json import address_of, serve_json, stop
from tests.models import OTHER_TEXT
from tests.pipelines.conftest import Bench, MakeCorpus, MakeTiny, OpenSession, stages_of
from tests.support import stopped

_RECOVERY = ("sampling", "teacher's scores", "training")
_EVALUATIONS = ("evaluations of base, mid-trained, recovered", "knowledge rulers and open book")


@pytest.fixture
def config(
    midtrain_config: MidtrainConfig,
    distill_config: DistillConfig,
    eval_config: EvalConfig,
    corpus: Path,
    make_corpus: MakeCorpus,
) -> CycleConfig:
    return CycleConfig(
        docs=(corpus, make_corpus("Orchid")),
        midtrain=replace(midtrain_config, docs=None),
        distill=replace(distill_config, prompts_per_step=4),
        eval=eval_config,
    )


def hashes(session: Session) -> dict[str, str]:
    return {c.name: c.hash for c in session.registry.all()}


def nothing_begun(session: Session) -> bool:
    """Whether a command that was refused has left neither a stage nor a cycle nor a plan, which would be in the way."""
    return not stages_of(session) and not session.cycles() and read_plan(session) is None


def interrupted(*_: Any, **__: Any) -> Any:
    raise StageInterrupted("interrupted")


def test_two_cycles_leave_the_whole_story_in_the_tracker(session: Session, config: CycleConfig) -> None:
    start_cycles(session, config)
    assert set(hashes(session)) == {
        "base",
        *(f"cycle-{k}/{kind}" for k in (1, 2) for kind in ("midtrained", "recovered")),
    }
    one = ["evaluate", "midtrain", "evaluate", "distill", "evaluate"]
    assert [(stage.kind, stage.status) for stage in stages_of(session)[::-1]] == [
        (kind, "finished") for kind in one * 2
    ]
    status = queries.status_json(session.tracker.database, session.experiment_id)
    assert [row["cycle"] for row in status["cycles"]] == [1, 2]
    last = status["cycles"][1]["recovered"]
    assert set(last["domain_knowledge_by_corpus"]) == {"1", "2"}
    assert set(status["base"]["domain_knowledge_by_corpus"]) == {"1", "2"}
    assert status["base"]["instruction_following"]["n"] == 4
    assert status["cycles"][1]["decision"] is None
    stages = stages_of(session, "distill")
    assert [stage.config["knowledge_teacher"] for stage in stages] == ["cycle-2/midtrained", "cycle-1/midtrained"]
    second = stages_of(session, "midtrain")[0]
    assert second.config["replay_documents"] == 0.5
    assert read_plan(session) is None
    with pytest.raises(UsageError, match="nothing to resume"):
        resume(session)


LONGER = [pytest.param(part, marks=pytest.mark.slow) for part in ("midtrain", "evaluate")]


@pytest.mark.parametrize("part", [*LONGER, "distill"])
def test_cycles_stopped_anywhere_go_on_to_the_same_weights(
    open_session: OpenSession, config: CycleConfig, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    # Evaluations change no weights: one stopped before distillation takes a third of the time without them.
    config = replace(config, docs=config.docs[:1], evaluate=part != "distill")
    with open_session(name="whole") as session:
        start_cycles(session, config)
        expected = hashes(session)
    with open_session(name="stopped") as session:
        real = getattr(cycle, part)

        monkeypatch.setattr(cycle, part, interrupted)
        with pytest.raises(StageInterrupted):
            start_cycles(session, config)
        monkeypatch.setattr(cycle, part, real)
        with pytest.raises(UsageError, match="recover resume"):
            start_cycles(session, config)
    with open_session(name="stopped") as session:
        assert "cycle 1 is done" in resume(session)
        assert hashes(session) == expected


def test_cycles_resume_from_another_folder_on_the_same_files(
    open_session: OpenSession, config: CycleConfig, prompt_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A relative path would name other documents there, or none."""
    shutil.copytree(prompt_file, tmp_path / "prompts")
    (tmp_path / "elsewhere" / "corpus").mkdir(parents=True)
    (tmp_path / "elsewhere" / "corpus" / "other.md").write_text("# Other\n\nThese documents have the same name.\n")
    parts = {part: replace(getattr(config, part), prompts=Path("prompts")) for part in ("midtrain", "eval")}
    config = replace(config, docs=(Path("corpus"),), evaluate=False, knowledge_teacher=None, **parts)
    monkeypatch.chdir(tmp_path)

    with monkeypatch.context() as patch, open_session() as session:
        patch.setattr(cycle, "open_cycle", interrupted)
        with pytest.raises(StageInterrupted):
            start_cycles(session, config)
    monkeypatch.chdir(tmp_path / "elsewhere")
    with open_session() as session:
        resume(session)
        own = load_snapshot(session.workspace, 1)
        assert {document.id for document in own.documents} <= {path.name for path in (tmp_path / "corpus").iterdir()}
        (trained,) = stages_of(session, "midtrain")
        paths = trained.config["docs"], trained.config["prompts"]
        assert paths == (str(tmp_path / "corpus"), str(tmp_path / "prompts"))


def test_a_stage_resumes_from_another_folder_with_the_same_teachers(
    session: Session, bench: Bench, tiny_model: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those given as folders are not registered."""
    own = bench.midtrain().path
    for name, folder in (("prompts", prompt_file), ("teacher", tiny_model), ("experts/mine", own)):
        shutil.copytree(folder, tmp_path / name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    teachers = {"teacher": "teacher", "knowledge_teacher": "experts/mine", "experts": ("boats=experts/mine",)}
    with stopped(session):
        bench.distill(**teachers, knowledge_share=0.5, prompts=Path("prompts"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume(session).startswith("made cycle-1/recovered")


def test_an_evaluation_is_known_by_any_spelling_of_its_files(
    session: Session, config: CycleConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prompt_file: Path
) -> None:
    """Recorded now with absolute paths; by 0.1 as they were given."""
    shutil.copytree(prompt_file, tmp_path / "prompts")
    monkeypatch.chdir(tmp_path)
    short, whole = (replace(config.eval, prompts=path) for path in (Path("prompts"), tmp_path / "prompts"))
    cycle.evaluate(session, replace(short, checkpoint="base"))
    assert cycle.measured(session, session.base, short) and cycle.measured(session, session.base, whole)
    (stage,) = stages_of(session)
    with session.tracker.database.writing() as connection:
        old = {**stage.config, "prompts": "prompts"}
        connection.execute(update(Stage).where(Stage.id == stage.id).values(config=old))
    assert cycle.measured(session, session.base, short)


def test_a_stage_goes_on_in_a_workspace_that_was_moved(
    open_session: OpenSession, config: CycleConfig, tmp_path: Path, prompt_file: Path
) -> None:
    own = tmp_path / "workspace" / "prompts"
    asked = replace(config.eval, prompts=own, checkpoint="base")
    with open_session() as session:
        shutil.copytree(prompt_file, own)
        with pytest.raises(StageInterrupted), running(session, "evaluate", asked, student=session.base):
            raise StageInterrupted("interrupted")
    (tmp_path / "workspace").rename(tmp_path / "moved")
    with open_session(name="moved") as session:
        assert "evaluated base" in resume(session)
        here = replace(asked, prompts=tmp_path / "moved" / "prompts")
        assert cycle.measured(session, session.base, here)


def test_nothing_begins_beside_a_run_that_needs_the_memory(
    session: Session, config: CycleConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "planned_by_others", lambda _: [memory.PlannedRun(1, 1 << 60, 0)])
    with pytest.raises(UsageError, match="left beside process 1, another run"):
        start_cycles(session, config)
    with pytest.raises(UsageError, match="left beside process 1, another run"):
        midtrain(session, replace(config.midtrain, docs=config.docs[0]))
    assert nothing_begun(session)


def test_a_cycle_resumes_its_mid_training_as_it_began(
    session: Session, config: CycleConfig, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With less memory, auto would train an adapter, and latest may have moved: the saved states fit neither."""
    mid = replace(config.midtrain, tuning="auto")
    config = replace(config, docs=config.docs[:1], midtrain=mid, evaluate=False, knowledge_teacher=None)
    monkeypatch.setattr(tuning, "total_memory", lambda _: 1 << 40)
    with stopped(session):
        start_cycles(session, config)
    shutil.copytree(tiny_model, tmp_path / "other")
    (tmp_path / "other" / "vocab.json").write_text("{}")
    other = session.registered(session.resolve(str(tmp_path / "other")))
    session.tracker.set_latest(session.experiment_id, other.id or 0)
    monkeypatch.setattr(tuning, "total_memory", lambda _: 1 << 20)
    assert "cycle 1 is done" in resume(session)
    trained = session.resolve("midtrained")
    assert (trained.tuning, trained.parent) == ("full", "base")


def test_an_interrupted_stage_is_found_until_a_later_one_has_done_its_work(session: Session, bench: Bench) -> None:
    assert resumable(session) is None
    with stopped(session, "recover resume"):
        bench.midtrain()
    stage = resumable(session)
    assert (stage.kind, stage.status) == ("midtrain", "interrupted")
    assert "made cycle-1/midtrained" in resume(session)
    assert resumable(session) is None


def test_other_documents_do_not_replace_those_of_a_stopped_stage(
    session: Session, bench: Bench, config: CycleConfig
) -> None:
    """A refused mid-training leaves them; a stage whose documents are gone does not go on with others."""
    with stopped(session):
        bench.midtrain()
    own, others = load_snapshot(session.workspace, 1), bench.midtraining(docs=config.docs[1])
    with pytest.raises(UsageError, match="has no experts"):
        midtrain(session, replace(others, router_loss=0.1))
    assert load_snapshot(session.workspace, 1) == own
    open_cycle(session, others, 1)
    with pytest.raises(CorpusError, match="cannot continue: the documents of cycle 1 were replaced"):
        resume(session)
    assert bench.midtrain().name == "cycle-1/midtrained"
    assert resumable(session) is None


def test_a_cycle_whose_documents_were_saved_is_recorded(
    session: Session, config: CycleConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the two must not leave a cycle without its documents' hash: it is not opened again."""

    def killed(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(session.tracker, "cycle", killed)
    with pytest.raises(KeyboardInterrupt):
        start_cycles(session, replace(config, docs=config.docs[:1], evaluate=False))
    assert not session.workspace.corpus(1).exists()
    monkeypatch.undo()
    resume(session)
    assert session.cycles()[1].corpus_hash == load_snapshot(session.workspace, 1).hash


def test_a_plan_can_be_given_up_and_no_documents_are_no_plan(session: Session, config: CycleConfig) -> None:
    with pytest.raises(UsageError, match="--docs"):
        start_cycles(session, replace(config, docs=()))
    plan = session.workspace.folder / PLAN
    for damaged in ("{", "3", "[]"):
        plan.write_text(damaged)
        with pytest.raises(UsageError, match=r"plan\.json cannot be read .*: `recover cycle --abandon` starts"):
            read_plan(session)
    plan.write_text('{"first": 1, "config": {"midtrain": {"tunIng": "full"}}}')
    with pytest.raises(UsageError, match=r"plan\.json: .* does not know: tunIng"):
        read_plan(session)
    drop_plan(session)
    assert read_plan(session) is None


def test_a_corpus_without_the_texts_of_its_writer_is_refused_before_anything_begins(
    session: Session, config: CycleConfig
) -> None:
    mid = replace(config.midtrain, augment=1, writer=WRITER_FILE)
    config = replace(config, midtrain=mid)
    texts = replace(config.distill, document_loss=0.3, document_texts=True)
    with pytest.raises(UsageError, match=f"--document-texts: there is no rewritten.jsonl beside .* {config.docs[0]}"):
        new_plan(session, replace(config, midtrain=MidtrainConfig(), distill=texts))
    scored = replace(config.distill, document_loss=0.3, document_teacher=True)
    with pytest.raises(UsageError, match="--document-teacher: a knowledge teacher scores the text: omit --knowledge-t"):
        new_plan(session, replace(config, midtrain=MidtrainConfig(), knowledge_teacher=None, distill=scored))
    (config.docs[0] / WRITER_FILE).write_text(json.dumps({"document": "a.md", "text": "A.", "question": "Q?"}) + "\n")
    with pytest.raises(UsageError, match="--document-texts: every line of .* has a question"):
        new_plan(session, replace(config, midtrain=MidtrainConfig(), distill=texts))
    (config.docs[0] / WRITER_FILE).write_text("")
    with pytest.raises(UsageError, match=f"there is no rewritten.jsonl beside the documents of {config.docs[1]}"):
        new_plan(session, config)
    line = {"document": "a.md", "text": "Of it.", "question": "Of what?"}
    (config.docs[0] / WRITER_FILE).write_text(json.dumps(line) + "\n")
    for folder in config.docs[1:]:
        (folder / WRITER_FILE).write_text(json.dumps(line | {"question": None}) + "\n")
    asked = replace(config, midtrain=replace(mid, writer_questions=True))
    with pytest.raises(
        UsageError, match=f"--writer-questions: no line of {config.docs[1] / WRITER_FILE} has a question"
    ):
        new_plan(session, asked)


def test_texts_of_which_none_is_about_the_documents_end_a_cycle_before_it_trains(
    session: Session, config: CycleConfig
) -> None:
    (config.docs[0] / WRITER_FILE).write_text(json.dumps({"document": "nowhere.md", "text": "Of it."}) + "\n")
    distill = replace(config.distill, document_loss=0.3, document_texts=True)
    plan = CyclePlan(1, replace(config, docs=config.docs[:1], distill=distill))
    with pytest.raises(UsageError, match="--document-texts: there was no text about .* when cycle 1 began"):
        one_cycle(session, plan, 1)
    assert not stages_of(session)


def test_each_cycle_has_other_ordinary_prompts_than_those_before_it(session: Session) -> None:
    def before(number: int, teacher: str | None = "midtrained", **settings: Any) -> int | None:
        distill = DistillConfig(prompts_per_step=10, knowledge_share=0.4, steps=7, **settings)
        return recovery_config(
            CycleConfig(knowledge_teacher=teacher, distill=distill), session.base, number
        ).prompts_before

    assert [before(number) for number in (1, 2, 3)] == [None, 42, 84] and before(2, None) == 70
    assert before(3, prompts_before=5) == 5
    arm = arm_named("recovery")
    assert _distilling(arm, DistillConfig(), session.base, 3).prompts_before is None, "records of arms are compared"


def test_questions_of_a_writer_are_asked_where_a_knowledge_teacher_scores_them(session: Session) -> None:
    def asked(method: str, teacher: str | None = "midtrained") -> bool:
        distill = build(DistillConfig, {"method": method, "writer_questions": True})
        return recovery_config(
            CycleConfig(knowledge_teacher=teacher, distill=distill), session.base, 1
        ).writer_questions

    scored = DistillConfig(document_loss=0.3, document_teacher=True)
    found = {
        teacher: recovery_config(CycleConfig(knowledge_teacher=teacher, distill=scored), session.base, 1)
        for teacher in ("midtrained", None)
    }
    assert {teacher: config.document_teacher for teacher, config in found.items()} == {"midtrained": True, None: False}
    assert asked("opd")
    assert not asked("opd", None) and not asked("sft")
    given = DistillConfig(writer_questions=True)
    found = {name: _distilling(arm_named(name), given, session.base, 1) for name in ("recovery", "one-teacher")}
    assert {name: config.writer_questions for name, config in found.items()} == {"recovery": True, "one-teacher": False}


@pytest.mark.parametrize("name", [arm.name for arm in ARMS.values() if arm.follow == "distill"])
def test_every_arm_follows_from_settings_that_its_method_does_not_use(session: Session, name: str) -> None:
    """All arms share them: those of a divergence have no effect on an arm that imitates responses."""
    given = DistillConfig(divergence="jsd", beta=0.2, skip_first=3)
    config = _distilling(arm_named(name), given, session.base, 1)
    used = config.divergence, config.beta, config.skip_first
    assert used == (("reverse_kl", 0.5, 0) if name == "own-answers" else ("jsd", 0.2, 3))


def test_an_extension_starts_from_the_recovered_model_itself(
    session: Session, config: CycleConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blended again, it would start closer to the mid-trained model: part of the recovery would be undone."""
    config = replace(config, docs=config.docs[:1], distill=replace(config.distill, blend=0.6))
    trained = midtrain(session, replace(config.midtrain, docs=config.docs[0]))
    ran: list[DistillConfig] = []

    def distilled(session: Session, config: DistillConfig, **_: Any) -> Checkpoint:
        ran.append(config)
        return replace(trained, name="cycle-1/recovered", kind="recovered")

    monkeypatch.setattr(cycle, "distill", distilled)
    monkeypatch.setattr(cycle, "_made", lambda *_: distilled(session, config.distill))
    monkeypatch.setattr(cycle, "_evaluate", lambda *_: None)
    cycle._extend(session, CyclePlan(1, config), trained, 1)
    first, extension = recovery_config(config, trained, 1), ran[-1]
    assert (first.blend, extension.blend) == (0.6, 1.0)
    changed = {"student": "cycle-1/recovered", "seed": first.seed + 1000, "blend": 1.0}
    assert extension == replace(first, **changed), "all else is that of the first recovery"


def test_a_mistake_beside_abandon_leaves_the_old_plan(session: Session, config: CycleConfig) -> None:
    write_plan(session, CyclePlan(1, config))
    with pytest.raises(UsageError, match="unfinished here"):
        new_plan(session, config)
    with pytest.raises(UsageError, match="no-such-rule"):
        new_plan(session, replace(config, gate=("no-such-rule >= 0.5",)), abandon=True)
    with pytest.raises(UsageError, match="has no questions of general knowledge"):
        new_plan(session, replace(config, gate=("general >= 0.5",)), abandon=True)
    assert read_plan(session) == CyclePlan(1, config)
    assert new_plan(session, config, abandon=True).config == config


TOO_LATE: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"teacher": "nobody"}, CheckpointError, "no checkpoint 'nobody'"),
    ({"teacher": "base=0.5,nobody=0.5"}, CheckpointError, "no checkpoint 'nobody'"),
    ({"teacher": "./no/where"}, ModelError, "there is no folder ./no/where: it was looked for at"),
    ({"teacher": "./nowhere"}, ModelError, "there is no folder ./nowhere: it was looked for at"),
    ({"knowledge_teacher": "midtrained", "earlier_teacher": "nobody"}, CheckpointError, "no checkpoint 'nobody'"),
    ({"experts": ("code=nobody",)}, CheckpointError, "no checkpoint 'nobody'"),
    ({"experts": ("code=recovered",)}, CheckpointError, "no checkpoint 'recovered'"),
    ({"prompts": Path("nowhere.jsonl")}, UsageError, "--prompts nowhere.jsonl: there is no such file, folder or d"),
    ({"prompts": Path("composer:chatt")}, UsageError, "--prompts composer:chatt: there is no such"),
    ({"prompts": Path("page.md")}, UsageError, "no usable prompt in .*page.md"),
    ({"prompts": Path("tools.jsonl")}, RecoveryError, "chat template has no place for the tools"),
    ({"lam": 0.5, "reward": "no_module:reward"}, UsageError, "--reward no_module:reward cannot be imported"),
    ({"method": "grpo", "prompts": "plain.jsonl"}, UsageError, "--reward verifiable can judge none of the prompts"),
    ({"method": "sft", "prompts": "plain.jsonl"}, UsageError, "--answers given: none of the prompts has an answer"),
    ({"method": "opcd", "prompts": "plain.jsonl"}, UsageError, "no prompt has the text that --context system"),
]
IN_OTHER_STAGES: list[tuple[dict[str, dict[str, Any]], str]] = [
    ({"midtrain": {"replay": 0.3, "replay_data": Path("plain.jsonl")}}, "--replay-data plain.jsonl, line 1 has no"),
    ({"eval": {"ifeval": "nowhere.jsonl"}}, "cannot read nowhere.jsonl: No such file"),
    ({"eval": {"ifeval": "plain.jsonl"}}, "plain.jsonl, line 1: not an IFEval prompt"),
    ({"eval": {"tasks": ("nowhere.yaml",)}}, "there is no lm-eval task file nowhere.yaml"),
    ({"eval": {"tasks": ("mine=./nowhere.jsonl",)}}, "--task mine=./nowhere.jsonl: there is no file or folder"),
    ({"eval": {"behaviour": (Path("page.md"),)}}, "no usable prompt in .*page.md"),
    ({"eval": {"behaviour": (Path("nowhere.jsonl"),)}}, "--behaviour nowhere.jsonl: there is no such file: correct it"),
    ({"eval": {"prompts": Path("page.md")}}, "no usable prompt in .*page.md"),
    (
        {"midtrain": {"tuning": "lora"}, "distill": {"tuning": "full"}},
        "1's recovery cannot use it, since cycle 1's mid-training makes",
    ),
    (
        {"midtrain": {"tuning": "auto", "quantize": "nf4"}, "distill": {"tuning": "full"}},
        "cycle 1's recovery cannot use it",
    ),
    (
        {"midtrain": {"tuning": "full"}, "distill": {"tuning": "lora"}},
        "2's mid-training cannot use it, since cycle 1's recovery makes",
    ),
    (
        {"midtrain": {"tuning": "auto"}, "distill": {"tuning": "lora", "blend": 0.7}},
        "frozen below the new LoRA adapter of the recovery",
    ),
    (
        {"midtrain": {"tuning": "lora"}, "distill": {"tuning": "lora", "quantize": "nf4"}},
        "--quantize nf4 needs: pip install",
    ),
]


@pytest.mark.parametrize(
    ("stages", "error", "message"),
    [
        *(({"distill": settings}, error, message) for settings, error, message in TOO_LATE),
        *((stages, RecoveryError, message) for stages, message in IN_OTHER_STAGES),
    ],
)
def test_what_a_later_stage_would_fail_for_is_found_before_anything_is_recorded(
    session: Session, config: CycleConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    stages: dict[str, dict[str, Any]], error: type[Exception], message: str,
) -> None:  # fmt: skip
    """Mid-training takes hours; and a plan that was stored is in the way of the corrected command."""
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.chdir(tmp_path)
    Path("page.md").write_text("# A page\n\nIt is no prompt.\n")
    plain = [{"prompt": f"Name boat {n}."} for n in range(9)]
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    for name, records in (("plain", plain), ("tools", [one | {"tools": tools} for one in plain])):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    changed = {
        stage: build(DistillConfig, given) if "method" in given else replace(getattr(config, stage), **given)
        for stage, given in stages.items()
    }
    with pytest.raises(error, match=message):
        start_cycles(session, replace(config, **changed))
    assert nothing_begun(session)


def test_an_adapter_that_the_recovery_could_not_train_whole_is_refused_before_it_is_made(
    session: Session, config: CycleConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --tuning auto the memory decides; the recovery with --tuning full refused the adapter, hours later."""
    assert config.distill.tuning == "full"
    plan = new_plan(session, replace(config, midtrain=replace(config.midtrain, tuning="auto")))
    monkeypatch.setattr(tuning, "total_memory", lambda _: 1 << 20)
    for begin in (lambda: cycle.start_plan(session, plan), lambda: _show_plan(session, plan, True)):
        with pytest.raises(UsageError, match="does not fit .* use lora in both stages, or full in both to try it"):
            begin()
    assert nothing_begun(session)
    monkeypatch.setattr(tuning, "total_memory", lambda _: 1 << 40)
    monkeypatch.setattr(tuning, "free_memory", lambda _: 1)
    _show_plan(session, plan, True)
    assert [one["tuning"] for one in json.loads(capsys.readouterr().out)["midtrain"]] == ["full", "full"]
    _show_plan(session, plan, False)
    assert "\nless memory is free now than this needs" in capsys.readouterr().out, "it is said, and chooses nothing"
    assert midtrain_config(plan, 1).tuning == "full", "also if there is less memory by then"


def test_a_recovery_makes_no_adapter_that_the_next_mid_training_could_not_train_whole(
    session: Session, config: CycleConfig
) -> None:
    """With --tuning auto the memory decides; the next mid-training with --tuning full refused the adapter."""
    assert config.midtrain.tuning == "full" and len(config.docs) > 1
    auto = replace(config, distill=replace(config.distill, tuning="auto"))
    assert planned_recovery(session, auto, 1).tuning == "full"
    alone = replace(auto, docs=auto.docs[:1])
    assert planned_recovery(session, alone, 1).tuning == "auto", "one cycle may end with an adapter"
    either = replace(auto, midtrain=replace(auto.midtrain, tuning="auto"))
    assert planned_recovery(session, either, 1).tuning == "auto", "auto continues an adapter"


def test_a_teacher_with_other_tokens_is_checked_before_anything_is_trained(
    session: Session, config: CycleConfig, make_tiny: MakeTiny, tmp_path: Path
) -> None:
    other = make_tiny("llama", tmp_path / "other", seed=3, text=OTHER_TEXT, vocabulary=400)
    taught = replace(config.distill, teacher=str(other), temperature=0.7)
    with pytest.raises(UsageError, match="another tokenizer than the student, which --temperature 0.7 excludes"):
        start_cycles(session, replace(config, distill=taught))
    assert nothing_begun(session)


def test_a_file_of_evaluations_may_be_missing_if_nothing_reads_it_and_be_named_in_any_way(
    session: Session, config: CycleConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = replace(config.eval, behaviour=(Path("nowhere.jsonl"),))
    assert new_plan(session, replace(config, eval=lacking, evaluate=False)).first == 1
    rows = "\n".join(f"Name boat {number}.,Ann" for number in range(9))
    (tmp_path / "own.csv").write_text(f"question,answer\n{rows}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (Path("~/own.csv"), tmp_path / "own.csv:question"):
        asked = replace(config.eval, behaviour=(name,))
        assert new_plan(session, replace(config, eval=asked)).first == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("page.pdf", b"%PDF-1.7 and no more", "page.pdf cannot be used as documents"),
        ("rows.parquet", b"PAR1 and no more", "rows.parquet cannot be used as documents"),
        ("folder/page.pdf", b"%PDF-1.7 and no more", "no readable document in .*folder"),
    ],
)
def test_documents_that_cannot_be_read_are_found_before_a_plan_is_stored(
    session: Session, config: CycleConfig, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    """The plan would be in the way of the corrected command. Also of a later cycle: it would fail hours later."""
    broken = tmp_path / name
    broken.parent.mkdir(exist_ok=True)
    broken.write_bytes(content)
    docs = broken.parent if broken.parent != tmp_path else broken
    for folders in ((docs,), (config.docs[0], docs)):
        with pytest.raises(CorpusError, match=message):
            start_cycles(session, replace(config, docs=folders))
        assert nothing_begun(session)
    assert not session.workspace.corpus(1).exists()


def test_a_teacher_on_a_server_is_asked_before_anything_is_trained(
    session: Session, config: CycleConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recovery begins hours later. A dry run says it too, and goes on."""
    server = serve_json(lambda path, *_: (200, {"data": [{"id": "teacher"}]}) if path == "/v1/models" else (404, {}))
    remote: dict[str, Any] = {"teacher": address_of(server), "divergence": "sampled", "server_wait": 0.0}
    plan = new_plan(session, replace(config, distill=replace(config.distill, **remote)))
    ran: list[CyclePlan] = []
    monkeypatch.setattr(cycle, "run_plan", lambda _session, given: ran.append(given))
    try:
        cycle.start_plan(session, plan)
        _warn_of_teacher(plan.config.distill)
        begun = replace(plan, rows=ran[0].rows)
        assert ran == [begun] and "warning" not in capsys.readouterr().err
    finally:
        stop(server)
    drop_plan(session)
    with pytest.raises(ServerError, match="nothing is trained yet: start the teacher's server first, or raise --"):
        cycle.start_plan(session, plan)
    assert ran == [begun] and read_plan(session) is None
    capsys.readouterr()
    _warn_of_teacher(plan.config.distill)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {address_of(server)} ") and "start it before the run" in line


def test_a_dry_run_plans_each_cycle_as_the_run_will(
    session: Session, config: CycleConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    passes = replace(config.midtrain, steps=None, epochs=2.0)
    plan = new_plan(session, replace(config, midtrain=passes))
    _show_plan(session, plan, True)
    shown = json.loads(capsys.readouterr().out)["midtrain"]
    assert [(one["cycle"], one["student"]) for one in shown] == [(1, "base"), (2, "cycle-1/recovered")]
    assert [(one["earlier_documents"], one["earlier_share"]) for one in shown] == [(0, 0.0), (4, 0.5)]
    open_cycle(session, midtrain_config(plan, 1), 1)
    made = replace(session.base, id=None, name="cycle-1/recovered", kind="recovered")
    number = session.registered(made, cycle_id=session.cycle_id(1)).id
    session.tracker.set_latest(session.experiment_id, number)
    run = plan_midtrain(session, midtrain_config(plan, 2)).length
    assert (shown[1]["steps"], shown[1]["tokens"]) == (run.steps, run.tokens)


def test_one_table_of_all_stages_is_printed_before_a_run_stored_and_compared_with_what_it_took(
    session: Session, config: CycleConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    one = replace(config, docs=config.docs[:1], eval=replace(config.eval, limit=2))
    plan = new_plan(session, one)
    _show_plan(session, plan, True)
    shown = json.loads(capsys.readouterr().out)
    parts = [row["part"] for row in shown["rows"]]
    assert parts == ["mid-training", *_RECOVERY, *_EVALUATIONS]
    assert {row["cycle"] for row in shown["rows"]} == {1} and all(row["seconds"] > 0 for row in shown["rows"])
    assert shown["seconds"] == sum(row["seconds"] for row in shown["rows"])
    assert shown["memory"] == max(row["memory"] for row in shown["rows"]) > 0
    _show_plan(session, plan, False)
    printed = capsys.readouterr().out
    assert all(f"\n{part} " in printed for part in (*parts, "total, at most"))
    cycle.start_plan(session, plan)
    said = capsys.readouterr().err.splitlines()
    assert said[0].split() == ["time", "memory"]
    assert all(line.startswith(part) for line, part in zip(said[1:], parts, strict=False))
    (whole,) = [line for line in said if line.startswith("took ")]
    stages = stages_of(session)
    took = duration(sum(stage.wall_seconds for stage in stages))
    assert whole.startswith(f"took {took} of {duration(shown['seconds'])} planned (mid-training ")
    assert sum(line.startswith(("mid-training took ", "recovery took ", "evaluation took ")) for line in said) == 5
    assert all("memory_before" in stage.details for stage in stages)


def test_resume_ends_as_a_cycle_does(
    open_session: OpenSession, small: CycleConfig, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_session() as session, stopped(session):
        start_cycles(session, replace(small, docs=(corpus,)))
    place = str(tmp_path / "workspace")
    assert run(["resume", "--workspace", place]) == 0
    shown, said = capsys.readouterr()
    assert "cycle-1/recovered" in shown and "in brackets: 95% intervals" in shown
    assert "\ncycle 1 is done\n" in said and "\ntook " in said
    assert f": recover ask 'QUESTION' --workspace {place}; then review the cycle" in said.splitlines()[-1]


def test_a_table_counts_each_cycle_and_what_a_gate_may_add(session: Session, config: CycleConfig) -> None:
    gated = replace(config, gate=("ifeval >= 0.9*base",), gate_extend=1)
    rows = estimate(session, new_plan(session, gated)).rows
    extra = ["gate's further items", "gate's further recovery"]
    assert (
        [row.part for row in rows if row.cycle == 1][-2:] == [row.part for row in rows if row.cycle == 2][-2:] == extra
    )
    assert config.eval.limit and gated.gate_budget == 4 * config.eval.limit
    without = replace(gated, gate_extend=0, gate_samples=config.eval.limit)
    assert not [row for row in estimate(session, new_plan(session, without)).rows if row.part in extra], "no room"
    alone = replace(config, evaluate=False, docs=config.docs[:1])
    assert {row.stage for row in estimate(session, new_plan(session, alone)).rows} == {"midtrain", "distill"}


def test_documents_are_read_and_packed_once_for_the_plans_of_a_command_and_its_start(
    session: Session, config: CycleConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    for module, name in ((corpus_reading, "read_corpus"), (material, "text_rows")):
        counted = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, _real=counted, **k: done.append(_real) or _real(*a, **k))
    plan = new_plan(session, replace(config, docs=config.docs[:1]))
    first = estimate(session, plan)
    packed = len(done)
    sized = replace(plan.config, midtrain=replace(plan.config.midtrain, steps=4))
    second = estimate(session, replace(plan, config=sized))
    opened = open_cycle(session, midtrain_config(plan, 1), 1)
    assert second.midtrain[0].length.steps == 4 != first.midtrain[0].length.steps
    assert len(done) == packed and opened.documents
    (config.docs[0] / "new.md").write_text("# New\n\nThe Harbour ferry number 99 is kept by Anna Berg in Lund.\n")
    assert estimate(session, plan).midtrain[0].documents == first.midtrain[0].documents + 1


def test_a_plan_keeps_its_table_and_one_of_an_older_release_is_read_as_it_was(
    session: Session, config: CycleConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = new_plan(session, config)
    write_plan(session, replace(plan, rows=estimate(session, plan).rows))
    known = read_plan(session)
    assert known is not None and len(known.rows) > 8 and known.rows[0].part == "mid-training"
    path = session.workspace.folder / PLAN
    values = json.loads(path.read_text())
    values["config"]["docs"] = ["corpus"]
    path.write_text(json.dumps(values))
    with pytest.raises(UsageError, match=r"plan\.json cannot be read \(it has been changed or damaged since"):
        read_plan(session)
    del values["rows"], values[CHECKSUM]  # which they did not write
    path.write_text(json.dumps(values))
    monkeypatch.chdir(tmp_path)
    older = read_plan(session)
    assert older == replace(known, rows=(), config=replace(config, docs=(Path("corpus"),)))


@pytest.mark.parametrize("method", ["opd", "grpo"])
def test_a_dry_run_promises_only_the_questions_and_evaluations_that_there_are(
    session: Session, config: CycleConfig, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    own = replace(build(DistillConfig, {"method": method}), prompts=config.distill.prompts)
    for evaluate in (True, False):
        _show_plan(session, new_plan(session, replace(config, distill=own, evaluate=evaluate)), False)
        shown = capsys.readouterr().out
        last = shown.splitlines()[-1]
        assert ("evaluations of base" in shown) == evaluate
        assert ("questions about the documents" in last) == (method == "opd")
        assert last.endswith("and by two evaluations" if evaluate else "nothing is evaluated")


def test_a_dry_run_of_too_few_questions_shows_the_plan_and_then_warns(
    session: Session, config: CycleConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(config, docs=config.docs[:1])
    wanting = replace(config, midtrain=replace(config.midtrain, fewest_questions=1000))
    _show_plan(session, new_plan(session, wanting), False)
    *shown, last, _, _, _ = capsys.readouterr().out.splitlines()  # below it three remedies
    assert "mid-training" in "\n".join(shown) and "are too few" not in "\n".join(shown)
    assert last.startswith("warning: ") and "questions about" in last and "are too few" in last
    with pytest.raises(UsageError, match="are too few"):
        cycle.start_plan(session, new_plan(session, wanting))
    assert read_plan(session) is None


def test_teachers_that_a_cycle_is_to_make_are_no_mistakes(session: Session, config: CycleConfig) -> None:
    for name in ("midtrained", "cycle-1/midtrained", "latest", "base"):
        distill = replace(config.distill, knowledge_teacher=name, earlier_teacher=name, experts=(f"code={name}",))
        made = replace(config, knowledge_teacher=name, distill=distill)
        assert new_plan(session, made).config == made
    with pytest.raises(UsageError, match="--earlier-teacher needs --knowledge-teacher"):
        new_plan(session, replace(made, knowledge_teacher=None))
