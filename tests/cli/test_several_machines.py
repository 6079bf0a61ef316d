"""A whole cycle as processes on a PostgreSQL tracker, with what happens to one in real life."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from db import open_readonly, queries, records
from tests.pipelines.conftest import write_corpus
from tests.postgres import PASSWORD, Server

ROOT = Path(__file__).resolve().parents[2]
STEPS = 200  # enough for a second process to begin and be refused meanwhile
RECIPE = f"""
[midtrain]
steps = {STEPS}
batch_tokens = 256
row_length = 128
checkpoint_every = 1
fewest_questions = 0
[distill]
steps = 2
prompts_per_step = 2
samples_per_prompt = 2
max_new_tokens = 16
until = 0
[eval]
limit = 4
max_new_tokens = 16
"""
pytestmark = [pytest.mark.postgres, pytest.mark.slow]  # a dozen processes, one after another

Recover = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def shared(postgres: Server) -> str:
    """The address of an empty database on the server."""
    return postgres.create()


@pytest.fixture
def begin(tmp_path: Path, shared: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``begin("cycle", ...)`` starts a command beside the test; what still runs at its end is killed."""
    children: list[subprocess.Popen[str]] = []

    def start(*arguments: str | Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "recovery", *map(str, arguments)]
        env = os.environ | {"PYTHONPATH": str(ROOT), "RECOVER_DATABASE": shared}
        pipe = subprocess.PIPE
        children.append(subprocess.Popen(command, cwd=tmp_path, env=env, stdout=pipe, stderr=pipe, text=True))
        return children[-1]

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate()


def wait_for(shared: str, happened: Callable[[list[records.Stage]], bool], child: subprocess.Popen[str]) -> None:
    """Wait until the stages of the first experiment, newest first, are as wanted."""
    until = time.monotonic() + 1000
    while time.monotonic() < until:
        assert child.poll() is None, child.communicate()
        try:
            database = open_readonly(shared)
        except Exception:  # not made yet
            time.sleep(0.3)
            continue
        experiments = queries.experiments(database)
        stages = queries.stages(database, experiments[0].id) if experiments else []
        database.close()
        if happened(stages):
            return
        time.sleep(0.3)
    pytest.fail("it took too long")


def now_at(shared: str) -> int:
    """The step of the newest stage."""
    database = open_readonly(shared)
    stage = queries.stages(database, queries.experiments(database)[0].id)[0]
    database.close()
    return stage.steps_done


def training(step: int) -> Callable[[list[records.Stage]], bool]:
    """Whether a mid-training has come to a step."""
    return lambda stages: bool(stages) and stages[0].kind == "midtrain" and stages[0].steps_done >= step


def test_a_cycle_with_a_restart_a_second_machine_a_kill_and_the_dashboard(
    recover: Recover, begin: Callable[..., subprocess.Popen[str]], postgres: Server, shared: str, tmp_path: Path
) -> None:
    at = {"RECOVER_DATABASE": shared}
    write_corpus(tmp_path / "docs", "Harbour")
    (tmp_path / "short.toml").write_text(RECIPE)
    first = begin(
        "cycle", "--docs", "docs", "--recipe", "short.toml", "--knowledge-teacher", "none", "--workspace", "line"
    )
    wait_for(shared, training(2), first)

    # Another machine, which does not see the first one's lock file: it is refused by the tracker.
    shutil.copytree(tmp_path / "line", tmp_path / "elsewhere" / "line", ignore=shutil.ignore_patterns("lock", "stages"))
    refused = recover("midtrain", "--docs", "docs", "--workspace", "elsewhere/line", env=at, check=False)
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    refusal = refused.stderr.splitlines()[-1]
    assert f"recover cycle (process {first.pid}, alive" in refusal and "is training line: wait for it" in refusal

    before = now_at(shared)
    postgres.stop()
    postgres.start()
    wait_for(shared, training(before + 2), first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert "interrupted: midtrain" in recover("status", "--workspace", "line", env=at).stdout
    recover("resume", "--workspace", "line", env=at)

    status = json.loads(recover("status", "--workspace", "line", "--json", env=at).stdout)
    assert status["experiment"] == "line" and status["latest"] == "cycle-1/recovered"
    assert status["cycles"][0]["recovered"]["instruction_following"]["n"] == 4
    database = open_readonly(shared)
    (experiment,) = queries.experiments(database)
    stages = queries.stages(database, experiment.id)
    mid = next(stage for stage in stages if stage.kind == "midtrain")
    assert (mid.status, mid.attempts, mid.steps_done) == ("finished", 2, STEPS)
    points = queries.series(database, mid.id, ["loss"], max_points=None)["loss"]
    assert [point.step for point in points] == list(range(1, STEPS + 1)), "nothing lost, nothing twice"
    database.close()

    # With the address alone the tracker can be read; if weights are elsewhere, the error says what to do.
    assert "cycle-1/recov" in recover("status", "--workspace", "nowhere/line", env=at).stdout
    gone = recover("export", "latest", "out", "--workspace", "elsewhere/line", env=at, check=False)
    assert gone.returncode == 1 and "shared file system" in gone.stderr and gone.stderr.count("\n") == 1
    forgot = recover("status", "--workspace", "line", check=False)
    assert forgot.returncode == 1 and "set RECOVER_DATABASE" in forgot.stderr

    dashboard = begin("dashboard", "--workspace", "line", "--port", "18860")
    line = dashboard.stdout.readline()
    address = line.split()[2]
    for page in ("", "cycle", "live", "samples", "compare", f"download/stage/{mid.id}.csv", "download/report/1.md"):
        with urllib.request.urlopen(f"{address}/{page}", timeout=600) as answer:
            body = answer.read().decode()
            assert answer.status == 200 and PASSWORD not in body
    assert "cycle 1" in body.lower(), "the report was written by a process that found the tracker"

    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".safetensors"]
    assert len(kept) > 50 and not [path for path in kept if PASSWORD.encode() in path.read_bytes()]
    dumped = subprocess.run(
        [postgres.bin / "pg_dump", shared], capture_output=True, text=True, check=True, cwd=postgres.folder
    )
    assert "cycle-1/recovered" in dumped.stdout and PASSWORD not in dumped.stdout
