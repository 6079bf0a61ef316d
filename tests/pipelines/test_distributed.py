"""Two to four gloo processes on the CPU: the trajectory of one, with any kind of sharding, and a clean end of all."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from db import open_readonly, queries, records
from pipelines.runtime.engines import engine_of
from recovery import distributed
from recovery.config import DistillConfig
from recovery.errors import UsageError
from recovery.models.loading import load_model
from recovery.training.resume_state import resume_step
from tests import stages_together
from tests.pipelines.conftest import MakeTiny
from tests.torture.misbehaving import Server, serving

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "tests" / "stages_together.py"
# The stages of one launch of so many processes; most are slow tests.
GROUPS = [
    pytest.param(2, ("full", "cut"), id="whole"),
    pytest.param(2, ("cut-one",), id="one", marks=pytest.mark.slow),
    pytest.param(2, ("lora", "cut-lora", "cut-sampled", "cut-lora-sampled"), id="adapted", marks=pytest.mark.slow),
    pytest.param(2, ("served", "cut-served", "cut-lora-served"), id="served", marks=pytest.mark.slow),
    pytest.param(3, ("full", "cut", "cut-sampled"), id="three", marks=pytest.mark.slow),
    pytest.param(4, ("full", "cut", "cut-lora", "cut-lora-served"), id="four", marks=pytest.mark.slow),
]
# The models whose layers several processes shard: of each training the student, and all teachers that it does not hold;
# and how often the student is gathered: before and after each of four steps, unless it is sampled from in pieces.
SHARDED = {
    "full": [0, 0],
    "lora": [0, 0],
    "cut": [4, 8],
    "cut-lora": [3, 0],
    "cut-sampled": [3, 0],
    "cut-lora-sampled": [2, 0],
    "cut-one": [3, 8],
    "served": [0, 0],
    "cut-served": [4, 0],
    "cut-lora-served": [3, 0],
}
STEPS = 80
LONG = ("--steps", STEPS, "--batch-tokens", 64, "--row-length", 64, "--lr", "1e-3", "--precision", "float32")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

Launch = Callable[..., list["subprocess.Popen[str]"]]


@pytest.fixture(scope="module")
def both(
    processes: int,
    names: tuple[str, ...],
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model: Path,
    prompt_file: Path,
) -> list[tuple[Path, Path]]:
    """For each stage the workspaces of a run in this process, and of a run in several processes."""
    home = tmp_path_factory.mktemp("processes")
    docs = home / "docs"
    docs.mkdir()
    for number in range(4):
        body = "\n\n".join(f"Ferry {number}{k} sails from Cork with {37 * number + k} passengers." for k in range(6))
        (docs / f"ferries-{number}.md").write_text(f"# Ferries {number}\n\n{body}\n")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    given = [SCRIPT, home / "several", tiny_model, docs, prompt_file, *names]
    with serving(Server(tiny_model)) as address, pytest.MonkeyPatch.context() as environment:
        environment.setenv(stages_together.ENGINE, address)
        stages_together.main(home / "one", str(tiny_model), docs, prompt_file, list(names))
        together = {**ENVIRONMENT, stages_together.ENGINE: address}
        finished = subprocess.run(
            [*launch, *map(str, given)], env=together, capture_output=True, text=True, timeout=1000, check=False
        )
    assert finished.returncode == 0, finished.stderr
    return [(home / "one" / name, home / "several" / name) for name in names]


@pytest.fixture
def start(tmp_path: Path) -> Launch:
    """Two processes started one by one, as Slurm starts them: ``start(arguments, (folder, folder))``."""

    def go(arguments: list[object], folders: tuple[Path, Path] = (tmp_path, tmp_path)) -> list[subprocess.Popen[str]]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        found = []
        for number, folder in enumerate(folders):
            place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 2, "MASTER_PORT": port}
            found.append(
                subprocess.Popen(
                    [sys.executable, "-m", "recovery", *map(str, arguments)],
                    env={**ENVIRONMENT, "MASTER_ADDR": "127.0.0.1", **{k: str(v) for k, v in place.items()}},
                    cwd=folder,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )
        return found

    return go


def ended(running: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Status, output and errors of each process; one that hangs fails the test."""
    outputs = [process.communicate(timeout=900) for process in running]
    return [(process.returncode, *output) for process, output in zip(running, outputs, strict=True)]


def stages(workspace: Path) -> list[records.Stage]:
    """A workspace's stages, oldest first."""
    return queries.stages(open_readonly(workspace / "tracker.db"), 1)[::-1]


def curves(workspace: Path) -> dict[tuple[str, str, int], float]:
    """Every point of every curve, except those of time and memory."""
    database = open_readonly(workspace / "tracker.db")
    return {
        (stage.kind, name, point.step): point.value
        for stage in queries.stages(database, 1)
        for name, points in queries.series(database, stage.id, max_points=None).items()
        for point in points
        # The null is random: each process draws it for its own tokens.
        if not name.startswith(("seconds", "tokens_per_second", "memory", "geometry/bias_null"))
    }


def weights(workspace: Path, kind: str) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint of the first cycle."""
    (path,) = (workspace / "checkpoints" / "cycle-1" / kind).glob("*.safetensors")
    return load_file(path)


def alike(one: Path, two: Path, kind: str) -> None:
    """Assert that both have the same weights, up to rounding."""
    ours, theirs = weights(one, kind), weights(two, kind)
    assert ours.keys() == theirs.keys()
    apart = torch.cat([(tensor - theirs[name]).abs().flatten() for name, tensor in ours.items()])
    # Adam divides by the gradient's size: where that is nearly 0, rounding decides the sign of an update.
    assert float((apart > 1e-5).float().mean()) < 1e-3
    assert float(apart.max()) < 3e-4  # in a few weights whose gradient is nearly 0


@pytest.mark.parametrize(("processes", "names"), GROUPS, scope="module")
def test_several_processes_make_the_weights_of_one(both: list[tuple[Path, Path]]) -> None:
    for one, two in both:
        for kind in ("midtrained", "recovered"):
            alike(one, two, kind)
        first, last = weights(one, "midtrained"), weights(one, "recovered")
        assert any(not torch.equal(first[key], last[key]) for key in first), "the distillation trained"
        counts = [[*map(int, home.with_suffix(".sharded").read_text().split())] for home in (one, two)]
        assert counts == [[0, 0], SHARDED[one.name]]


@pytest.mark.parametrize(("processes", "names"), GROUPS, scope="module")
def test_every_figure_of_every_step_is_that_of_one_process(both: list[tuple[Path, Path]]) -> None:
    for one, two in ((curves(alone), curves(together)) for alone, together in both):
        assert one.keys() == two.keys()
        assert {key[1] for key in one} >= {
            "loss",
            "gradient_norm",
            "lr",
            "tokens_trained",
            "reverse_kl",
            "geometry/density",
        }
        for key, value in one.items():
            assert two[key] == pytest.approx(value, rel=2e-4, abs=1e-6), key


@pytest.mark.parametrize(("processes", "names"), GROUPS, scope="module")
def test_the_tracker_holds_each_stage_once_with_the_tokens_of_all(both: list[tuple[Path, Path]]) -> None:
    for one, two in ((stages(alone), stages(together)) for alone, together in both):
        assert [(s.kind, s.status) for s in two] == [("midtrain", "finished"), ("distill", "finished")]
        for ours, theirs in zip(one, two, strict=True):
            assert (ours.tokens_sampled, ours.tokens_scored) == (theirs.tokens_sampled, theirs.tokens_scored)
            assert ours.tokens_trained == theirs.tokens_trained > 0
        assert two[1].tokens_sampled > 0 and two[1].tokens_scored > 0


@pytest.mark.slow
def test_accelerate_launches_the_usual_command(tmp_path: Path, tiny_model: Path, corpus: Path) -> None:
    launch = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    command = [sys.executable, "-m", "accelerate.commands.launch", *launch, "--dynamo_backend", "no"]
    learn = ["midtrain", "--docs", corpus, "--model", tiny_model, "--steps", "2", "--workspace", "work"]
    finished = subprocess.run(
        [*command, "--main_process_port", "0", "-m", "recovery", *map(str, learn)],
        env=ENVIRONMENT,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("made cycle-1/midtrained") == 1, "one process speaks for both"
    (stage,) = stages(tmp_path / "work")
    assert (stage.status, stage.steps_done) == ("finished", 2)


def until_step(workspace: Path, step: int) -> Path:
    """Wait for the state of a step and return the folder of the states."""
    for _ in range(45_000):
        found = next(workspace.glob("stages/*/states"), None)
        if found is not None and resume_step(found) >= step:
            return found
        time.sleep(0.02)
    raise AssertionError(f"no state of step {step}")


@pytest.fixture
def learn(tiny_model: Path, corpus: Path) -> list[Any]:
    """A mid-training of full weights that saves a state at each step."""
    return ["midtrain", "--docs", corpus, "--model", tiny_model, "--tuning", "full", *LONG, "--checkpoint-every", 1]


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["none", "full"])
def test_a_stop_asked_of_one_process_stops_both_and_one_process_goes_on(
    tmp_path: Path, learn: list[Any], start: Launch, recover: Callable[..., subprocess.CompletedProcess[str]], cut: str
) -> None:
    running = start([*learn, "--shard", cut, "--workspace", "stopped"])
    states = until_step(tmp_path / "stopped", 2)
    running[1].send_signal(signal.SIGTERM)
    (status, _, errors), (other, *_) = ended(running)
    assert (status, other) == (130, 0), errors
    assert "interrupted at step" in errors and "to continue: recover resume" in errors
    (stage,) = stages(tmp_path / "stopped")
    assert stage.status == "interrupted" and 2 <= stage.steps_done < STEPS
    newest = states / f"step-{stage.steps_done:06d}"
    parts = sorted(path.name for path in newest.glob("*.safetensors"))
    if cut == "none":
        assert parts == ["state.safetensors"]
    else:
        assert parts == ["state-00001-of-00002.safetensors", "state-00002-of-00002.safetensors"]
        first, second = (load_file(newest / name) for name in parts)
        name = "param/model.layers.0.mlp.up_proj.weight"
        assert first[name].shape == second[name].shape == (32, 32), "each holds half the rows"
    recover("resume", "--workspace", "stopped")
    recover(*learn, "--workspace", "straight")
    alike(tmp_path / "straight", tmp_path / "stopped", "midtrained")
    assert stages(tmp_path / "stopped")[0].tokens_trained == stages(tmp_path / "straight")[0].tokens_trained


@pytest.mark.slow
def test_what_fails_in_one_process_ends_both_with_one_line(
    tmp_path: Path, tiny_model: Path, corpus: Path, start: Launch
) -> None:
    elsewhere = tmp_path / "another-node"  # a folder of the same name there is not the same folder
    elsewhere.mkdir()
    learn = ["midtrain", "--docs", corpus, "--model", tiny_model, *LONG, "--checkpoint-every", 1, "--workspace", "work"]
    (status, _, errors), (_, _, other) = ended(start(learn, (tmp_path, elsewhere)))
    assert status == 1
    (line,) = [line for line in (errors + other).splitlines() if "error" in line.lower()]
    assert line.startswith("recover: error: process 1: ") and "all nodes share" in line
    assert stages(tmp_path / "work")[0].status == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(("cut", "victim"), [("none", 1), ("full", 1), ("full", 0)])
def test_a_killed_process_ends_the_other_and_its_stage_is_resumed_to_the_same_weights(
    tmp_path: Path,
    learn: list[Any],
    start: Launch,
    recover: Callable[..., subprocess.CompletedProcess[str]],
    cut: str,
    victim: int,
) -> None:
    learn += ["--shard", cut, "--workspace"]
    running = start([*learn, "work"])
    until_step(tmp_path / "work", 2)
    running[victim].kill()
    status, _, errors = ended(running)[1 - victim]
    assert status == 1 and "Traceback" not in errors
    said = [line for line in errors.splitlines() if "error" in line.lower()]
    if victim == 1:  # the main process reports for both
        (line,) = said
        assert line.startswith("recover: error: another process was lost")
    else:  # torch adds a warning about the lost store, with a trace of its own
        (line,) = [line for line in said if line.startswith("recover:")]
        assert line == (
            "recover: error: process 1: the main process was lost or has not ended: continue with `recover resume`"
        )
    (stage,) = stages(tmp_path / "work")
    assert stage.status == ("failed" if victim == 1 else "interrupted") and 2 <= stage.steps_done < STEPS
    shutil.copytree(tmp_path / "work", tmp_path / "alone")
    for workspace, resumed in (("work", ["resume", "--workspace", "work"]), ("straight", [*learn, "straight"])):
        both = ended(start(resumed))
        assert [status for status, *_ in both] == [0, 0], (workspace, both[0][2])
    recover("resume", "--workspace", "alone")
    ours, theirs = weights(tmp_path / "straight", "midtrained"), weights(tmp_path / "work", "midtrained")
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    alike(tmp_path / "straight", tmp_path / "alone", "midtrained")
    for workspace in ("work", "alone"):
        (stage,), (whole,) = stages(tmp_path / workspace), stages(tmp_path / "straight")
        assert (stage.status, stage.attempts, stage.steps_done) == ("finished", 2, STEPS)
        assert stage.tokens_trained == whole.tokens_trained


def test_a_launch_that_does_not_say_who_is_who_is_refused(
    recover: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    finished = recover("status", check=False, env={"WORLD_SIZE": "2"})
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1].startswith("recover: error: WORLD_SIZE is 2 but RANK, MASTER_ADDR")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "vllm"}, "--engine vllm samples for one process only: start a single process, or a server"),
        ({"engine": "http://127.0.0.1:1"}, "engines take no adapter of experts, and a sharded one is not merged"),
    ],
)
def test_an_engine_that_cannot_sample_for_several_processes_is_refused(
    make_tiny: MakeTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], message: str
) -> None:
    family = "qwen3" if settings["engine"] == "vllm" else "qwen3_moe"
    loaded = load_model(make_tiny(family, tmp_path / family), tuning="lora", precision="float32")
    loaded.sharded = True
    monkeypatch.setattr(distributed, "size", lambda: 2)
    with pytest.raises(UsageError, match=message), engine_of(loaded, DistillConfig(**settings)):
        pass


@pytest.mark.slow
def test_a_server_that_takes_no_weights_ends_all_processes_with_one_line(
    tmp_path: Path, tiny_model: Path, learn: list[Any], prompt_file: Path, start: Launch, recover: Callable[..., Any]
) -> None:
    recover(*learn, "--workspace", "work", "--steps", 2)
    with serving(Server(tiny_model, fixed=True)) as address:
        sampling = ["--engine", address, "--prompts", prompt_file, "--steps", 2, "--tuning", "full", "--shard", "full"]
        more = ["--precision", "float32", "--until", 0, "--server-wait", 1, "--workspace", "work"]
        (status, _, errors), (other, _, others) = ended(start(["distill", *sampling, *more]))
    assert (status, other) == (1, 0), errors + others
    (line,) = [line for line in (errors + others).splitlines() if "error" in line.lower()]
    assert line.startswith("recover: error: ") and "accepts no weights" in line
    assert stages(tmp_path / "work")[1].status == "failed"
