"""A stage killed at any moment ends with the same weights as an uninterrupted one, bit for bit."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from db import open_readonly, queries
from db.background_writer import Writer
from pipelines.cli.main import run
from pipelines.cycle import resume, resume_stage
from pipelines.cycle_plan import resumable
from pipelines.distillation.stage import distill
from pipelines.midtraining.stage import midtrain
from pipelines.planning import tuning
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.config import DistillConfig, MidtrainConfig
from recovery.errors import RecoveryError
from recovery.training.run_state import Position, RunState
from tests.http_json import address_of, serve_json, stop
from tests.pipelines.conftest import stages_of

Work = Callable[[Session], object]
# Forked, to save a second start of Python.
FORK = multiprocessing.get_context("fork")


def in_workspace(folder: Path, model: Path, work: Work) -> None:
    with Session.open(folder, model=str(model), display=Display(quiet=True)) as session:
        work(session)


def newest_state(folder: Path) -> int:
    """The step of the newest training state in a workspace, -1 before there is one."""
    return max((int(path.name[5:]) for path in folder.glob("stages/*/states/step-*")), default=-1)


def until_killed(folder: Path, model: Path, work: Work, step: int, delay: float) -> None:
    """Work until a thread of this process kills it: another process would be too late on a busy machine."""

    def kill() -> None:
        while newest_state(folder) < step:
            time.sleep(0.002)
        time.sleep(delay)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    in_workspace(folder, model, work)


def run_and_kill(folder: Path, model: Path, work: Work, step: int, delay: float) -> bool:
    """Do the work in a process that is killed with -9 a moment after it has saved the state of a step.

    True if it was killed before its end.
    """
    process = FORK.Process(target=until_killed, args=(folder, model, work, step, delay))
    process.start()
    process.join()
    return process.exitcode == -signal.SIGKILL


def goes_on(session: Session, begin: Work, result: str) -> None:
    """Resume what was interrupted, or begin if the kill came before there was a stage."""
    if resumable(session) is not None:
        resume(session)
    elif not any(c.name == f"cycle-1/{result}" for c in session.registry.all()):
        begin(session)


def killed_often(folder: Path, model: Path, work: Work, result: str, kills: int, steps: int) -> int:
    """Kill the work ``kills`` times at random moments, then let it end. Returns how often a kill hit it.

    The first comes before there is any state, the others anywhere up to the end.
    """
    draw = random.Random(f"{folder.name} {kills}")
    moments = [-1, *sorted(draw.sample(range(1, steps - 4), kills - 1))]
    hits = 0
    for at, moment in enumerate(moments):
        begin = work if at == 0 else (lambda session: goes_on(session, work, result))
        hits += run_and_kill(folder, model, begin, moment, draw.uniform(0, 0.15))
    in_workspace(folder, model, lambda session: goes_on(session, work, result))
    return hits


def made(folder: Path, model: Path, kind: str) -> tuple[str, int, int]:
    """(hash of the newest checkpoint of that kind, steps of its stage, attempts)."""
    with Session.open(folder, model=str(model), display=Display(quiet=True)) as session:
        checkpoint = session.resolve(kind)
        stages = stages_of(session)
        stage = next(s for s in stages if s.status == "finished" and s.kind in ("midtrain", "distill"))
        points = queries.series(session.tracker.database, stage.id, ["loss"], max_points=None)["loss"]
        assert [point.step for point in points] == list(range(1, stage.steps_done + 1)), "every step is logged once"
        return checkpoint.hash, stage.steps_done, stage.attempts


@pytest.fixture
def distilling(distill_config: DistillConfig) -> DistillConfig:
    return replace(distill_config, steps=24, max_new_tokens=16, prompts_per_step=4, plateau=0)


@pytest.mark.parametrize("tuning", ["full", pytest.param("lora", marks=pytest.mark.slow)])
def test_mid_training_killed_at_random(
    tmp_path: Path, tiny_model: Path, midtrain_config: MidtrainConfig, tuning: str
) -> None:
    config = replace(midtrain_config, steps=30, checkpoint_every=4, tuning=tuning)

    def work(session: Session) -> None:
        midtrain(session, config)

    in_workspace(tmp_path / "whole", tiny_model, work)
    hits = killed_often(tmp_path / "killed", tiny_model, work, "midtrained", 3, config.steps or 0)
    assert hits >= 2, "kills came too late"
    whole, steps, _ = made(tmp_path / "whole", tiny_model, "midtrained")
    assert made(tmp_path / "killed", tiny_model, "midtrained")[:2] == (whole, steps)


def test_the_points_of_all_steps_are_in_the_tracker_before_a_state_is_saved(
    tmp_path: Path, tiny_model: Path, midtrain_config: MidtrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its flush, a kill after the state would leave a gap in the curves that no resume fills."""
    write, stored = RunState.write, []

    def killed_after(saved: RunState, state: Position) -> None:
        write(saved, state)
        database = open_readonly(tmp_path / "tracker.db")  # as another process reads it
        points = queries.series(database, 1, ["loss"], max_points=None)["loss"]
        database.close()
        stored.append((state.step, [point.step for point in points]))

    monkeypatch.setattr(RunState, "write", killed_after)
    monkeypatch.setattr(Writer, "_run", lambda _: None)  # it writes nothing by the clock
    config = replace(midtrain_config, steps=10, checkpoint_every=4)
    in_workspace(tmp_path, tiny_model, lambda session: midtrain(session, config))
    assert stored == [(step, list(range(1, step + 1))) for step in (4, 8, 10)]


@pytest.mark.slow
def test_mid_training_on_a_quantised_base_killed_once(
    tmp_path: Path, tiny_wide: Path, midtrain_config: MidtrainConfig
) -> None:
    config = replace(midtrain_config, steps=8, checkpoint_every=2, tuning="lora", quantize="nf4")

    def work(session: Session) -> None:
        midtrain(session, config)

    in_workspace(tmp_path / "whole", tiny_wide, work)
    assert run_and_kill(tmp_path / "killed", tiny_wide, work, 4, 0.0)
    in_workspace(tmp_path / "killed", tiny_wide, lambda session: goes_on(session, work, "midtrained"))
    whole, steps, _ = made(tmp_path / "whole", tiny_wide, "midtrained")
    assert made(tmp_path / "killed", tiny_wide, "midtrained") == (whole, steps, 2)


@pytest.mark.parametrize("first", [pytest.param("full", marks=pytest.mark.slow), "lora"])
def test_a_resumed_stage_keeps_the_tuning_it_began_with(
    tmp_path: Path, tiny_model: Path, midtrain_config: MidtrainConfig, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """With less or more memory, auto would choose another tuning."""
    config = replace(midtrain_config, steps=40, checkpoint_every=2, tuning="auto")
    memory = {"full": 1 << 40, "lora": 1 << 20}
    monkeypatch.setattr(tuning, "total_memory", lambda _: memory[first])
    assert run_and_kill(tmp_path, tiny_model, lambda session: midtrain(session, config), 10, 0.0)
    monkeypatch.setattr(tuning, "total_memory", lambda _: memory["lora" if first == "full" else "full"])
    in_workspace(tmp_path, tiny_model, lambda session: goes_on(session, lambda _: None, "midtrained"))
    with Session.open(tmp_path, model=str(tiny_model), display=Display(quiet=True)) as session:
        assert session.resolve("midtrained").tuning == first


def test_an_error_of_what_is_resumed_names_the_recipe_it_began_with(
    tmp_path: Path, tiny_model: Path, prompt_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve_json(lambda path, *_: (200, {"data": [{"id": "teacher"}]}) if path == "/v1/models" else (404, {}))
    recipe, place = tmp_path / "r.toml", ["--workspace", str(tmp_path / "work")]
    recipe.write_text(
        f'[distill]\nteacher = "{address_of(server)}"\ndivergence = "sampled"\nserver_wait = 0\nuntil = 0\n'
    )
    more = ["--model", str(tiny_model), "--prompts", str(prompt_file), "--recipe", str(recipe)]
    assert run(["distill", "--student", "base", "--steps", "2", *place, *more]) == 1, "it scores nothing"
    stop(server)
    assert run(["resume", *place]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith(f"--server-wait (server_wait is set by {recipe}; what is resumed keeps its settings)")


def distill_killed(
    folder: Path, model: Path, first: MidtrainConfig, config: DistillConfig, kills: int
) -> tuple[str, str, int]:
    """Hashes of an uninterrupted distillation and of one killed ``kills`` times, and how often a kill hit."""
    for name in ("whole", "killed"):
        in_workspace(folder / name, model, lambda session: midtrain(session, first))

    def work(session: Session) -> None:
        distill(session, config)

    in_workspace(folder / "whole", model, work)
    hits = killed_often(folder / "killed", model, work, "recovered", kills, config.steps)
    whole, steps, _ = made(folder / "whole", model, "recovered")
    killed, again, _ = made(folder / "killed", model, "recovered")
    assert again == steps
    return whole, killed, hits


@pytest.mark.slow
def test_distillation_killed_at_random(
    tmp_path: Path, tiny_model: Path, midtrain_config: MidtrainConfig, distilling: DistillConfig
) -> None:
    config = replace(distilling, knowledge_teacher="midtrained", document_loss=0.2)
    whole, killed, hits = distill_killed(tmp_path, tiny_model, midtrain_config, config, kills=3)
    assert hits >= 2, "kills came too late"
    assert killed == whole


def test_a_stage_that_a_live_process_runs_is_not_taken_from_it(
    tmp_path: Path, tiny_model: Path, midtrain_config: MidtrainConfig
) -> None:
    config = replace(midtrain_config, steps=2000)
    process = FORK.Process(
        target=in_workspace, args=(tmp_path / "w", tiny_model, lambda session: midtrain(session, config))
    )
    process.start()
    try:
        with Session.open(tmp_path / "w", model=str(tiny_model), display=Display(quiet=True)) as session:
            until = time.monotonic() + 600
            while queries.running_stage(session.tracker.database) is None and time.monotonic() < until:
                time.sleep(0.05)
            assert resumable(session) is None
            running = queries.running_stage(session.tracker.database)
            with pytest.raises(Exception, match="is run by process"):
                resume_stage(session, running)
            os.kill(process.pid or 0, signal.SIGTERM)
            process.join(600)
            stopped = resumable(session)
            assert (stopped.id, stopped.status) == (running.id, "interrupted")
    finally:
        process.kill()
        process.join()


def test_what_cannot_be_resumed_says_so(session: Session) -> None:
    with pytest.raises(RecoveryError, match="nothing to resume"):
        resume(session)
