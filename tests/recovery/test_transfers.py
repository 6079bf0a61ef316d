"""Servers that die during a transfer of weights: none is sampled from with stale ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipelines.cli.main import run
from recovery.errors import EngineError, ServerError
from recovery.inference_server import InferenceServer
from recovery.models.adapters import LoraSettings
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.engine import Completion, Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.rollouts.vllm_server_engine import VllmServerSampler
from recovery.rollouts.vllm_worker import FollowedWeights
from recovery.rollouts.weight_sync import SyncedEngine
from tests.torture.misbehaving import DEATHS, Server, serving

PROMPTS = [[5, 9, 30, 12, 8], [7, 11], [40, 41, 42, 43, 44]]
GREEDY = Sampling(8, temperature=0.0)
TUNINGS = ("full", "lora")
SHORT = ("--steps", "3", "--prompts-per-step", "2", "--samples-per-prompt", "1", "--max-new-tokens", "4",
         "--checkpoint-every", "1", "--until", "0", "--plateau", "0", "--lr", "1e-3", "--precision", "float32",
         "--server-wait", "0.5")  # fmt: skip


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.inference_server._FIRST_PAUSE", 0.01)


@pytest.fixture(params=TUNINGS)
def served(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[tuple[Server, SyncedEngine]]:
    """A server and an engine on it, which has sampled once."""
    torch.manual_seed(0)
    loaded = load_model(tiny_model, tuning=request.param, lora=LoraSettings(8, 16), precision="float32")
    server = Server(tiny_model)
    with serving(server) as address:
        client = InferenceServer(address, (), timeout=60.0, patience=60.0)  # a busy machine needs seconds
        engine = SyncedEngine(loaded, VllmServerSampler(loaded, client), bound=1e-3)
        move(loaded)
        assert ids(engine.generate(PROMPTS, GREEDY)) == said_by(loaded)
        yield server, engine
        engine.close()


def move(loaded: Loaded) -> None:
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in loaded.trainable().values():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))


def ids(found: list[Completion]) -> list[list[int]]:
    return [one.ids for one in found]


def said_by(loaded: Loaded) -> list[list[int]]:
    return ids(TransformersEngine(loaded).generate(PROMPTS, GREEDY))


def test_an_engine_gets_the_adapter_alone_of_a_model_in_pieces(tiny_model: Path) -> None:
    adapted = load_model(tiny_model, tuning="lora", lora=LoraSettings(8, 16), precision="float32")
    assert adapted.weights_for_engines().keys() == adapted.trainable().keys()
    whole = load_model(tiny_model, tuning="full", precision="float32")
    assert whole.weights_for_engines().keys() >= whole.trainable().keys()


def test_a_server_that_dies_during_a_transfer_gets_the_weights_again(served: tuple[Server, SyncedEngine]) -> None:
    server, engine = served
    for death in DEATHS:
        before = said_by(engine.loaded)
        move(engine.loaded)
        server.misbehave(death, 2, away=1)
        assert ids(engine.generate(PROMPTS, GREEDY)) == said_by(engine.loaded) != before, death
        assert server.deaths < 2 and engine.figures["engine_drift"] < 1e-4
        server.restart()
        server.misbehave(death, 1)
        assert ids(engine.fixed_weights().generate(PROMPTS, GREEDY)) == said_by(engine.loaded), "without a comparison"


def test_one_that_dies_in_every_transfer_ends_the_run_with_one_line(
    served: tuple[Server, SyncedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, engine = served
    for death in DEATHS:
        move(engine.loaded)
        server.misbehave(death)
        monkeypatch.setattr(engine.sampler.server, "patience", 0.1)
        if engine.loaded.tuning == "lora" and death == "the answer is lost":
            engine.generate(PROMPTS, GREEDY)  # the server lists the adapter
        else:
            with pytest.raises((EngineError, ServerError)) as caught:
                engine.generate(PROMPTS, GREEDY)
            assert "127.0.0.1" in str(caught.value) and "\n" not in str(caught.value)
        server.misbehave("", 0)
        monkeypatch.undo()
        assert ids(engine.fixed_weights().generate(PROMPTS, GREEDY)) == said_by(engine.loaded), "not from what it had"
        assert ids(engine.generate(PROMPTS, GREEDY)) == said_by(engine.loaded)


@pytest.mark.parametrize("tuning", ["lora", "frozen"])
def test_a_server_that_is_started_with_another_model_is_refused(
    tiny_model: Path, make_tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tuning: Any
) -> None:
    other = make_tiny("qwen3", tmp_path / "other", seed=5)
    loaded = load_model(tiny_model, tuning=tuning, lora=LoraSettings(8, 16), precision="float32")
    server = Server(tiny_model, fixed=tuning == "frozen")
    with serving(server) as address:
        engine = SyncedEngine(loaded, VllmServerSampler(loaded, InferenceServer(address, ())), bound=1e-3)
        sound = engine.generate(PROMPTS, GREEDY)
        server.restart()
        assert engine.generate(PROMPTS, GREEDY) == sound
        server.load(other)
        server.misbehave("status 503", 1)  # away, as every server that is started again
        for _ in range(2):
            with pytest.raises(ServerError, match="now serves another model: start it with the former one"):
                engine.generate(PROMPTS, GREEDY)
            server.misbehave("status 503", 1)
        server.load(tiny_model)
        assert engine.generate(PROMPTS, GREEDY) == sound
        server.load(other)  # and back before anything is asked
        monkeypatch.setattr("recovery.rollouts.vllm_server_engine._GAP", 0.0)
        with pytest.raises(ServerError, match="now serves another model"):
            engine.generate(PROMPTS, GREEDY)
        engine.close()


def test_a_worker_holds_nothing_while_it_loads(tmp_path: Path) -> None:
    class Failing(FollowedWeights):
        def reload_weights(self, **_: object) -> None:
            raise RuntimeError("out of memory")

    worker = Failing()
    worker._recovery_holds = "the former"
    with pytest.raises(RuntimeError, match="out of memory"):
        worker.take_folder(str(tmp_path), "the new")
    assert worker.held() == ""


@pytest.mark.parametrize("tuning", ["full", pytest.param("lora", marks=pytest.mark.slow)])
def test_a_run_whose_engine_dies_during_a_transfer_makes_the_same_weights(
    small_workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tuning: str
) -> None:
    for split in ("train", "development", "test"):
        lines = [json.dumps({"key": f"{split}-{n}", "prompt": f"Name boat {n} of {split}."}) for n in range(6)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    base = small_workspace / "checkpoints" / "cycle-1" / "midtrained"
    server = Server(base)

    def recover(command: str, name: str, *more: str) -> int:
        return run([command, "--workspace", str(tmp_path / name), *more])

    with serving(server) as address:
        options = ["--engine", f"vllm+{address}", "--prompts", str(tmp_path), "--tuning", tuning, *SHORT]
        for name in ("straight", "waiting", "resumed"):
            shutil.copytree(small_workspace, tmp_path / name)
        assert recover("distill", "straight", *options) == 0
        server.restart()
        server.misbehave("after it loaded", 1, sound_for=1, away=1)
        assert recover("distill", "waiting", *options) == 0 and server.deaths == 0
        server.restart()
        server.misbehave("after it loaded", sound_for=1)
        capsys.readouterr()
        assert recover("distill", "resumed", *options) == 1
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
        assert line.startswith("recover: error: ") and address in line
        server.misbehave("", 0)
        assert recover("resume", "resumed") == 0
    folders = [tmp_path / name / "checkpoints" / "cycle-1" / "recovered" for name in ("straight", "waiting", "resumed")]
    straight, waiting, resumed = (weights(folder) for folder in folders)
    first = weights(base) if tuning == "full" else {name: 0 * tensor for name, tensor in straight.items()}
    assert any("lora_A" not in name and not torch.equal(straight[name], first[name]) for name in straight), "it trained"
    for name, tensor in straight.items():
        assert torch.equal(tensor, waiting[name]) and torch.equal(tensor, resumed[name]), name


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (path,) = folder.glob("*.safetensors")
    return load_file(path)
