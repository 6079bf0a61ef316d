"""The commands as typed by a user: whole lines in an empty folder, on checkpoints of every model family."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pipelines.cli.main import run
from recovery.models.loading import load_model

ROOT = Path(__file__).resolve().parents[2]

TEXT = """# The {name} ferry

The {name} ferry is kept by Anna Berg in the town of Lund and carries 340 passengers on every day of the week.

It was built in the year 1934 by the yard of Otto Finch, who also built the Copper ferry of the same line.

The office of the {name} ferry opens at seven in the morning and closes when the last ferry has come back.
"""

RECIPE = """
[model]
precision = "float32"
tuning = "{tuning}"
lora_rank = 4
[midtrain]
steps = 4
batch_tokens = 128
row_length = 64
lr = 3e-3
fewest_questions = 0
[distill]
steps = 2
prompts_per_step = 2
samples_per_prompt = 2
max_new_tokens = 6
until = 0
[eval]
limit = 3
max_new_tokens = 6
question_tokens = 4
"""

Recover = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with nothing in it but ./corpus, a folder of ordinary English Markdown."""
    (tmp_path / "corpus").mkdir()
    for name in ("Harbour", "Orchid", "Falcon"):
        (tmp_path / "corpus" / f"{name.lower()}.md").write_text(TEXT.format(name=name))
    probe = {"question": "Who keeps the Harbour ferry?", "answers": ["Anna Berg"]}
    (tmp_path / "corpus" / "probes.jsonl").write_text(json.dumps(probe) + "\n")
    return tmp_path


def recipe(place: Path, tuning: str) -> Path:
    path = place / "small.toml"
    path.write_text(RECIPE.format(tuning=tuning))
    return path


def in_process(*arguments: str | Path) -> None:
    """A command in this process, to save time; the process tests check that both are the same."""
    assert run([str(argument) for argument in arguments]) == 0


@pytest.mark.parametrize(
    "starts",
    [pytest.param("none", id="in-process"), pytest.param("all", id="processes", marks=pytest.mark.slow)],
)
def test_the_line_of_the_readme(
    recover: Recover,
    place: Path,
    tiny_qwen3: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    starts: str,
) -> None:
    """Imports take most of a process's time: processes of their own are slow."""
    monkeypatch.chdir(place)

    def command(*arguments: str | Path, status: int = 0) -> tuple[str, str]:
        if starts == "all":
            finished = recover(*arguments, cwd=place, check=False)
            assert finished.returncode == status, finished.stderr
            return finished.stdout, finished.stderr
        capsys.readouterr()
        assert run([str(argument) for argument in arguments]) == status
        return tuple(capsys.readouterr())

    small = recipe(place, "full")
    command("midtrain", "--docs", "./corpus", "--model", tiny_qwen3, "--recipe", small)
    command("distill", "--teacher", "base", "--recipe", small)
    output = json.loads(command("eval", "--recipe", small, "--json")[0])
    assert output["checkpoint"] == "cycle-1/recovered"
    status = json.loads(command("status", "--json")[0])
    (cycle,) = status["cycles"]
    assert (cycle["cycle"], cycle["decision"]) == (1, None)
    assert cycle["recovered"]["instruction_following"] == output["scores"]["instruction_following"]
    assert set(cycle["recovered"]["instruction_following"]) == {"value", "stderr", "n"}
    assert set(cycle["recovered"]["domain_knowledge_by_corpus"]) == {"1"}
    listed = json.loads(command("checkpoints", "--json")[0])
    assert [row["name"] for row in listed] == ["base", "cycle-1/midtrained", "cycle-1/recovered"]
    assert [row["parent"] for row in listed] == [None, "base", "cycle-1/midtrained"]
    assert all({"name", "kind", "hash", "parent", "path"} <= set(row) for row in listed)
    assert "cycle-1/recovered" in command("status")[0]
    _, wrong = command("resume", status=1)
    assert wrong.count("\n") == 1
    assert "nothing to resume" in wrong


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3"])
def test_every_family_with_an_adapter(
    place: Path, family: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    model = request.getfixturevalue(f"tiny_{family}")
    small = recipe(place, "lora")
    in_process("midtrain", "--docs", "corpus", "--model", model, "--recipe", small)
    in_process("distill", "--teacher", "base", "--recipe", small)
    in_process("eval", "--recipe", small)
    in_process("export", "latest", "merged", "--merge")
    checkpoint = place / "recovery-workspace" / "checkpoints" / "cycle-1" / "recovered"
    assert not (checkpoint / "config.json").exists(), "the checkpoint is an adapter on untouched weights"
    assert not (place / "merged" / "adapter_config.json").exists()
    merged = load_model(place / "merged", precision="float32", device="cpu").model
    adapted = load_model(model, adapter=checkpoint, precision="float32", device="cpu").model
    ids = torch.tensor([[5, 9, 17, 33]])
    with torch.no_grad():
        torch.testing.assert_close(merged(input_ids=ids).logits, adapted(input_ids=ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_every_family_as_processes(recover: Recover, place: Path, tiny_family: Path, tuning: str) -> None:
    small = recipe(place, tuning)
    recover("midtrain", "--docs", "./corpus", "--model", tiny_family, "--recipe", small, cwd=place)
    recover("distill", "--teacher", "base", "--recipe", small, cwd=place)
    recover("eval", "--recipe", small, cwd=place)
    status = json.loads(recover("status", "--json", cwd=place).stdout)
    assert status["cycles"][0]["recovered"]["instruction_following"]["n"] == 3


@pytest.mark.slow
def test_cycles_in_one_command(place: Path, tiny_qwen3: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = place / "second"
    second.mkdir()
    for name in ("Copper", "Willow", "Granite"):
        (second / f"{name.lower()}.md").write_text(TEXT.format(name=name).replace("Anna Berg", "Tomas Reed"))
    home = place / "home"
    common = ["--workspace", home, "--recipe", recipe(place, "full"), "--json"]
    docs = ["--docs", place / "corpus", "--docs", second, "--model", tiny_qwen3]
    in_process("cycle", *docs, *common, "--dry-run")
    plan = json.loads(capsys.readouterr().out)
    assert [stage["steps"] for stage in plan["midtrain"]] == [4, 4]
    assert (plan["blend"], plan["knowledge_share"]) == (0.8, 0.5)
    in_process("cycle", *docs, "--knowledge-share", "0.5", *common)
    status = json.loads(capsys.readouterr().out)
    assert [cycle["cycle"] for cycle in status["cycles"]] == [1, 2]
    assert set(status["cycles"][1]["recovered"]["domain_knowledge_by_corpus"]) == {"1", "2"}


def test_ctrl_c_stops_at_a_step_and_resume_goes_on(
    place: Path, tiny_qwen3: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = place / "home"
    command = ["midtrain", "--docs", "corpus", "--model", tiny_qwen3, "--recipe", recipe(place, "full")]
    command += ["--steps", "4000", "--checkpoint-every", "1", "--workspace", home]
    process = subprocess.Popen(
        [sys.executable, "-m", "recovery", *map(str, command)],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    states = home / "stages" / "0001-midtrain" / "states"
    until = time.monotonic() + 600
    while not list(states.glob("step-*")) and time.monotonic() < until and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=600)
    assert process.returncode == 130
    assert output.splitlines()[-1].endswith(f"to continue: recover resume --workspace {home}")
    assert "Traceback" not in output
    in_process("resume", "--workspace", home, "--dry-run", "--json")
    stage = json.loads(capsys.readouterr().out)["stage"]
    assert stage["kind"] == "midtrain"
    assert 0 < stage["step"] < 4000
    in_process("status", "--workspace", home)
    assert "interrupted: midtrain" in capsys.readouterr().out
