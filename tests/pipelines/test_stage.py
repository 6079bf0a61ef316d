"""The life cycle of a stage: every kind of end is recorded, and no progress is lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from db import records
from pipelines.cycle import resume
from pipelines.cycle_plan import resumable, why_not_resumed
from pipelines.distillation.stage import distill
from pipelines.midtraining.stage import midtrain
from pipelines.runtime import recorded_paths
from pipelines.runtime.checkpoint_names import free_name
from pipelines.runtime.progress import Display
from pipelines.runtime.recorded_paths import FORMS, matches_recorded, recordable
from pipelines.runtime.session import Session, StageInterrupted, StopSignals
from pipelines.runtime.stage import one_line, running
from recovery.config import SECTIONS, DistillConfig, EvalConfig, MidtrainConfig, to_json
from recovery.config.files import changed_since, contents_of
from recovery.errors import CheckpointError, UsageError
from recovery.settings import settings_of, types_of
from recovery.training.resume_state import WHOLE, States
from recovery.workspace import Checkpoint, Workspace, write_atomically
from tests.pipelines.conftest import OpenSession, stages_of


def only_stage(session: Session) -> records.Stage:
    (stage,) = stages_of(session)
    return stage


def test_an_error_is_recorded_in_one_line_and_goes_on_up(session: Session) -> None:
    with pytest.raises(ValueError, match="first"), running(session, "evaluate", EvalConfig()):
        raise ValueError("first line\nsecond line")
    stage = only_stage(session)
    assert (stage.status, stage.error) == ("failed", "ValueError: first line")


def test_tokens_before_the_training_count_once_after_any_kill(session: Session) -> None:
    """The file that says so is written before they are added, or after: neither a kill between them loses any."""
    with running(session, "evaluate", EvalConfig()) as stage:
        stage.recorder.usage(tokens_sampled=7)
        stage.count_once("spoken.json", 30)
        stage.count_once("spoken.json", 30)
        session.tracker.flush()
        assert only_stage(session).tokens_sampled == 37
        write_atomically(stage.folder / "written.json", '{"before": 37}')  # killed before they were added
        stage.count_once("written.json", 5)
        stage.count_once("written.json", 5)
        write_atomically(stage.folder / "older.json", "12")  # as 0.1 wrote it
        stage.count_once("older.json", 12)
    assert only_stage(session).tokens_sampled == 42


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("none", ""),
        ("flipped", "continues behind step 2: the training state of step 4 is damaged"),
        ("both", "begins again at step 1: the training state of step 2 and 4 is damaged"),
        ("cut short", "continues behind step 2: the training state of step 4 is damaged"),
        ("gone", "begins again at step 1: there is no training state of its 5 steps"),
    ],
)
def test_a_training_state_that_is_lost_is_said(
    session: Session, capsys: pytest.CaptureFixture[str], fault: str, said: str
) -> None:
    with (
        contextlib.suppress(KeyboardInterrupt),
        running(session, "midtrain", MidtrainConfig(device="cpu")) as stage,
    ):
        for step in range(1, 6):
            stage.recorder.log(step, {"loss": 1.0}, {})
        for step in (2, 4):
            States(stage.states, 3).write(step, {"a": torch.ones(9)}, {"step": step})
        raise KeyboardInterrupt
    for step in {"flipped": [4], "both": [2, 4], "cut short": [4]}.get(fault, []):
        file = stage.states / f"step-{step:06d}" / WHOLE
        data = file.read_bytes()
        file.write_bytes(data[:-9] if fault == "cut short" else data[:-1] + bytes([data[-1] ^ 1]))
    if fault == "gone":
        shutil.rmtree(stage.states)
    capsys.readouterr()
    with running(session, "midtrain", MidtrainConfig(device="cpu"), resume=only_stage(session)):
        pass
    found = [line for line in capsys.readouterr().err.splitlines() if line.startswith("stage 1")]
    assert found == ([f"stage 1 (midtrain) {said} (in {stage.states})"] if said else [])


def test_a_resumed_evaluation_is_not_said_to_begin_again(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(KeyboardInterrupt), running(session, "evaluate", EvalConfig()) as stage:
        stage.recorder.progress(1, 9)
        raise KeyboardInterrupt
    capsys.readouterr()
    with running(session, "evaluate", EvalConfig(), resume=only_stage(session)):
        pass
    assert capsys.readouterr().err.splitlines() == ["evaluation goes on: stored answers are used again"]


def test_a_first_signal_asks_and_a_second_one_insists(session: Session) -> None:
    interrupts = StopSignals()
    with interrupts.deferred():
        interrupts.check()
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.requested
        with pytest.raises(StageInterrupted, match="recover resume"):
            interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_what_holds_a_stop_says_so_and_what_has_nothing_to_lose_does_not(capfd: pytest.CaptureFixture[str]) -> None:
    interrupts = StopSignals()
    with interrupts.deferred():
        with (
            pytest.raises(StageInterrupted, match="interrupted while loading base; .*recover resume"),
            interrupts.at_once("loading base"),
        ):
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.requested and capfd.readouterr().err == ""
        interrupts.requested = False
        with interrupts.held():
            os.kill(os.getpid(), signal.SIGINT)
            interrupts.check()
        assert "stopping once this step is decided; Ctrl-C again stops at once" in capfd.readouterr().err
        with pytest.raises(StageInterrupted), interrupts.at_once("loading base"):
            pytest.fail("it began")


class _StopsAt(StopSignals):
    """Stop signals as if Ctrl-C was pressed before the given check."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.number, self.checks = number, 0

    def check(self) -> None:
        self.checks += not self._held
        self.requested |= self.checks == self.number
        super().check()


@pytest.mark.parametrize("kind", ["midtrain", "distill"])
def test_a_stop_is_heeded_within_a_micro_batch_and_loses_no_step(
    open_session: OpenSession, midtrain_config: MidtrainConfig, distill_config: DistillConfig, kind: str
) -> None:
    def train(session: Session, number: int = 0) -> tuple[Checkpoint, int]:
        midtrained = midtrain(session, midtrain_config) if kind == "distill" else None
        session.interrupts = stops = _StopsAt(number)
        return distill(session, distill_config) if midtrained else midtrain(session, midtrain_config), stops.checks

    with open_session(name="whole") as session:
        whole, checks = train(session)
    assert checks > 180, "before each layer and at each gradient, not only at each step"
    for part in (3, 7):
        with open_session(name=f"part-{part}") as session:
            with pytest.raises(StageInterrupted):
                train(session, checks * part // 8)
            session.interrupts = StopSignals()
            resume(session)
            assert session.resolve("latest").hash == whole.hash


@pytest.mark.parametrize("stop", [StageInterrupted("interrupted at step 3"), KeyboardInterrupt()])
def test_a_stopped_stage_reads_interrupted_and_can_be_resumed(session: Session, stop: BaseException) -> None:
    with pytest.raises(type(stop)), running(session, "evaluate", EvalConfig()):
        raise stop
    stage = only_stage(session)
    assert stage.status == "interrupted"
    with running(session, "evaluate", EvalConfig(), resume=stage):
        pass
    stage = only_stage(session)
    assert (stage.status, stage.attempts) == ("finished", 2)


@pytest.mark.parametrize("form", ["{}", "{}:prompt", "folder"])
def test_a_stage_does_not_go_on_with_other_data_than_it_began_with(session: Session, tmp_path: Path, form: str) -> None:
    """Its next steps would draw other prompts: some again, some never."""
    (tmp_path / "data").mkdir()
    prompts = tmp_path / "data" / "train.jsonl"
    prompts.write_text('{"prompt": "One."}\n')
    named = prompts.parent if form == "folder" else Path(form.format(prompts))
    with (
        pytest.raises(StageInterrupted),
        running(session, "distill", DistillConfig(prompts=named), student=session.base),
    ):
        raise StageInterrupted("here")
    stopped = only_stage(session)
    assert resumable(session) is not None
    prompts.write_text('{"prompt": "One."}\n{"prompt": "Two."}\n')
    assert why_not_resumed(session.registry, stopped) == f"the data of --prompts {named} has changed since it began"
    with pytest.raises(UsageError, match=r"has changed since it began: there is nothing to resume"):
        resume(session)
    prompts.write_text('{"prompt": "One."}\n')
    assert resumable(session) is not None


def test_the_rows_of_a_saved_dataset_are_its_contents(tmp_path: Path) -> None:
    """They are in a folder for each split: only the list of these is beside them."""
    rows = tmp_path / "saved" / "train" / "data-0.arrow"
    rows.parent.mkdir(parents=True)
    rows.write_bytes(b"one")
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    begun = contents_of(DistillConfig, {"data": f"{tmp_path / 'saved'}:train"})
    assert changed_since(DistillConfig, {"data": f"{tmp_path / 'saved'}:train"}, begun) == ""
    rows.write_bytes(b"two")
    assert changed_since(DistillConfig, {"data": f"{tmp_path / 'saved'}:train"}, begun).startswith("--data ")


def test_a_stop_asked_for_at_the_end_of_a_stage_stops_before_the_next(session: Session) -> None:
    with running(session, "evaluate", EvalConfig()):
        os.kill(os.getpid(), signal.SIGINT)
    assert only_stage(session).status == "finished", "what was done is kept"
    with pytest.raises(StageInterrupted, match="recover resume"), running(session, "evaluate", EvalConfig()):
        pytest.fail("it began")
    assert only_stage(session).status == "finished", "no other stage was begun"


class _Cycle:
    """A reference cycle that sends SIGINT to this process while it is freed."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def test_a_stop_asked_for_while_memory_is_freed_is_not_lost(session: Session) -> None:
    with running(session, "evaluate", EvalConfig()):
        _Cycle()
    with pytest.raises(StageInterrupted, match="recover resume"), running(session, "evaluate", EvalConfig()):
        pytest.fail("it began")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stop_between_two_stages_is_heeded_even_where_python_drops_it(tmp_path: Path, tiny_model: Path) -> None:
    class Callback:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    with Session.open(tmp_path, model=str(tiny_model), display=Display(quiet=True), purpose="cycle") as session:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        assert session.interrupts.requested
        session.interrupts.requested = False
        Callback()  # Python drops its KeyboardInterrupt
        with pytest.raises(StageInterrupted, match="recover resume"), running(session, "evaluate", EvalConfig()):
            pytest.fail("it began")
        with running(session, "evaluate", EvalConfig()) as stage:  # one stop stops one stage
            assert not stage.interrupts.requested
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_stop_in_the_last_moments_of_a_session_keeps_the_next_one_from_its_work(
    tmp_path: Path, tiny_model: Path
) -> None:
    def work() -> None:
        for _seed in range(2):
            with Session.open(tmp_path, model=str(tiny_model), display=Display(quiet=True), purpose="study") as session:
                with running(session, "evaluate", EvalConfig()):
                    os.kill(os.getpid(), signal.SIGINT)
                done.append(session.experiment_id)

    done: list[int] = []
    with pytest.raises(StageInterrupted, match="recover resume"):
        work()
    assert len(done) == 1
    with Session.open(tmp_path, display=Display(quiet=True), purpose="study"):
        pass  # it was closed, and its lease released


def test_names_in_use_are_left_alone(session: Session) -> None:
    assert free_name("cycle-1/recovered", session.registry) == "cycle-1/recovered"
    assert free_name("base", session.registry) == "base-2"


def test_one_line_of_any_error() -> None:
    assert one_line(CheckpointError("what\nmore")) == r"what\nmore"
    assert one_line(KeyError()) == "KeyError"


def test_two_stages_do_not_run_in_one_workspace(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    with (
        workspace.lock("recover midtrain"),
        pytest.raises(UsageError, match=r"recover midtrain \(process \d+\) is using"),
        workspace.lock("recover distill"),
    ):
        pass
    with workspace.lock("recover distill"):
        pass


def test_paths_are_recorded_absolute_and_other_names_as_they_are(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("docs", "teacher", "run=1", "workspace/docs"):
        (tmp_path / folder).mkdir()
    for file in ("chat.parquet", "task.yaml", "ifeval.jsonl", "own.jsonl", "context.txt", "weights.gguf"):
        (tmp_path / file).touch()

    def recorded(config: Any, **given: Any) -> dict[str, Any]:
        known = to_json(recordable(config(**given), session.registry))
        return {name: known[name] for name in given}

    here = str(tmp_path)
    asked = {"docs": Path("docs"), "replay": 0.3, "replay_data": Path("chat.parquet:messages")}
    expected = {"docs": f"{here}/docs", "replay": 0.3, "replay_data": f"{here}/chat.parquet:messages"}
    assert recorded(MidtrainConfig, **asked) == expected
    assert recorded(MidtrainConfig, prompts=Path("composer:chat")) == {"prompts": "composer:chat"}
    assert recorded(MidtrainConfig, docs=Path("org/texts:train"), student="latest") == {
        "docs": "org/texts:train", "student": "latest",
    }  # fmt: skip
    asked = {"behaviour": (Path("own.jsonl"),), "ifeval": "ifeval.jsonl", "engine": "http://127.0.0.1:8000"}
    asked |= {"tasks": ("arc_easy", "task.yaml", "arc_easy=own.jsonl"), "engine_folder": Path("org/new")}
    assert recorded(EvalConfig, **asked) == {
        "behaviour": [f"{here}/own.jsonl"], "ifeval": f"{here}/ifeval.jsonl", "engine": "http://127.0.0.1:8000",
        "tasks": ["arc_easy", f"{here}/task.yaml", f"arc_easy={here}/own.jsonl"], "engine_folder": f"{here}/org/new",
    }  # fmt: skip
    assert recorded(EvalConfig, ifeval="hub") == {"ifeval": "hub"}
    served = {"teacher": "http://127.0.0.1:8001", "divergence": "sampled"}
    assert recorded(DistillConfig, **served) == served
    for teacher, expected in (
        ("teacher", f"{here}/teacher"), ("teacher=0.5,base=0.5", f"{here}/teacher=0.5,base=0.5"),
        ("run=1", f"{here}/run=1"), ("weights.gguf", f"{here}/weights.gguf"), ("org/model", "org/model"),
        ("base", "base"),
    ):  # fmt: skip
        assert recorded(DistillConfig, teacher=teacher) == {"teacher": expected}
    assert recorded(DistillConfig, experts=("a=teacher", "b=latest"), knowledge_teacher="midtrained") == {
        "experts": [f"a={here}/teacher", "b=latest"], "knowledge_teacher": "midtrained",
    }  # fmt: skip
    (tmp_path / "workspace2").mkdir()
    inside = DistillConfig(prompts=Path("docs/../workspace/docs"), experts=("a=workspace/docs", "b=workspace2"))
    written = recorded_paths.recorded(inside, session.registry)
    assert (written["prompts"], written["experts"]) == (
        "{workspace}/docs", ["a={workspace}/docs", f"b={here}/workspace2"],
    )  # fmt: skip
    there = recorded_paths.read(written, Workspace(tmp_path / "new"))
    assert (there["prompts"], there["experts"]) == (f"{here}/new/docs", [f"a={here}/new/docs", f"b={here}/workspace2"])


def test_recorded_settings_are_alike_if_their_files_were_moved(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    new.mkdir()
    for name in ("p.jsonl", "t.csv"):
        (new / name).touch()
    ran: dict[str, Any] = {"prompts": f"{old}/p.jsonl", "tasks": [f"{old}/t.csv:question"], "steps": 3}
    wanted = {"prompts": f"{new}/p.jsonl", "tasks": [f"{new}/t.csv:question"], "steps": 3}
    assert matches_recorded(ran, wanted)
    assert not matches_recorded({**ran, "steps": 4}, wanted)
    assert not matches_recorded(ran, {**wanted, "prompts": f"{new}/other.jsonl"})
    old.mkdir()
    (old / "t.csv").touch()
    assert not matches_recorded(ran, wanted), "another file of that name"


def test_every_setting_with_text_either_names_no_file_or_is_recorded_with_its_path() -> None:
    no_file = {
        "device",
        "engine",
        "method",
        "reward",
        "context_template",
        "gate",
        "prune",
        "without_kinds",
        "withdrawn",
        "served_at",
    }
    for kind in SECTIONS.values():
        for name, declared in settings_of(kind).items():
            if not declared.choices and "str" in str(types_of(kind)[name]) and name != "template_args":
                assert (name in FORMS) != (name in no_file), name
