"""Engines that sample from a copy of the weights: transfers when needed, errors on disagreement."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from pipelines.cli.main import run
from recovery.errors import EngineError, UsageError
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.engine import Completion, Progress, Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.rollouts.weight_sync import SyncedEngine, fingerprint, seeds

PROMPTS = [[5, 9, 30, 12, 8], [7, 11], [40, 41, 42, 43, 44], [3, 3, 3]]


class Copy:
    """Samples from a second copy of the model, updated by ``sync`` unless ``frozen``."""

    name = "a copy"

    def __init__(self, loaded: Loaded, frozen: bool = False) -> None:
        self.loaded, self.frozen, self.syncs = loaded, frozen, 0
        self.mine = dataclasses.replace(loaded, model=copy.deepcopy(loaded.model), tuning="frozen")

    @property
    def window(self) -> int:
        return self.loaded.max_length

    def sync(self) -> None:
        self.syncs += 1
        if not self.frozen:
            self.mine.model.load_state_dict(self.loaded.model.state_dict())

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        return TransformersEngine(self.mine).generate(prompts, sampling, progress)

    def close(self) -> None:
        pass


@pytest.fixture
def loaded(tiny_model: Path) -> Loaded:
    return load_model(tiny_model, tuning="full", precision="float32")


def step(loaded: Loaded, lr: float = 1e-2) -> None:
    """One step of the optimizer that training uses."""
    optimizer = torch.optim.AdamW(loaded.trainable().values(), lr=lr, fused=True)
    for parameter in loaded.trainable().values():
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    optimizer.zero_grad()


def test_weights_are_handed_over_when_they_have_changed_and_only_then(loaded: Loaded) -> None:
    sampler = Copy(loaded)
    engine = SyncedEngine(loaded, sampler, bound=0.01)
    before = engine.generate(PROMPTS, Sampling(8, temperature=0))
    engine.generate(PROMPTS, Sampling(8, seed=1))
    assert sampler.syncs == 1
    step(loaded)
    after = engine.generate(PROMPTS, Sampling(8, temperature=0))
    assert sampler.syncs == 2
    assert after != before
    assert after == TransformersEngine(loaded).generate(PROMPTS, Sampling(8, temperature=0))
    assert engine.figures["engine_drift"] < 1e-4
    assert engine.figures["engine_ratio"] == pytest.approx(1, abs=1e-4)


def test_an_engine_with_old_weights_is_detected(loaded: Loaded) -> None:
    engine = SyncedEngine(loaded, Copy(loaded, frozen=True), bound=0.05)
    engine.generate(PROMPTS, Sampling(8))
    step(loaded, lr=0.1)
    for _ in range(2):
        with pytest.raises(EngineError, match=r"--engine-drift 0.05"):
            engine.generate(PROMPTS, Sampling(8))
    assert engine.figures["engine_drift"] > 0.05


def test_weights_that_are_not_numbers_are_a_drift(loaded: Loaded) -> None:
    engine = SyncedEngine(loaded, Copy(loaded, frozen=True), bound=0.05)
    engine.generate(PROMPTS, Sampling(8))
    with torch.no_grad():
        next(iter(loaded.trainable().values())).fill_(float("nan"))
    with pytest.raises(EngineError, match="does not sample from the weights"):
        engine.generate(PROMPTS, Sampling(8))


def test_fixed_weights_are_those_of_the_last_transfer(loaded: Loaded) -> None:
    engine = SyncedEngine(loaded, Copy(loaded), bound=0.05)
    greedy = Sampling(8, temperature=0)
    engine.follow(PROMPTS, greedy)
    before = TransformersEngine(loaded).generate(PROMPTS, greedy)
    step(loaded, lr=0.1)
    assert engine.fixed_weights().generate(PROMPTS, greedy) == before
    assert engine.generate(PROMPTS, greedy) != before


@pytest.mark.parametrize("lr", [1e-2, 1e-6])
def test_every_step_of_the_optimizer_is_seen(loaded: Loaded, lr: float) -> None:
    before = fingerprint(loaded)
    assert fingerprint(loaded) == before
    step(loaded, lr)
    assert fingerprint(loaded) != before


def test_every_prompt_draws_for_itself() -> None:
    drawn = seeds(Sampling(8, seed=4), 100)
    assert len(set(drawn)) == 100
    assert drawn == seeds(Sampling(8, seed=4), 100) != seeds(Sampling(8, seed=5), 100)


def test_a_prompt_as_long_as_the_window_is_refused(loaded: Loaded) -> None:
    with pytest.raises(UsageError, match=r"a prompt has 1,024 tokens; a copy accepts 1 to 1,023: shorten"):
        SyncedEngine(loaded, Copy(loaded), bound=1.0).generate([[5] * loaded.max_length], Sampling(4))


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_one_line_says_what_to_install(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", "base", "--limit", "2", "--engine", "vllm", "--workspace", str(tmp_path / "w")]) == 1
    said = capsys.readouterr().err
    assert "pip install 'recovery[vllm]'" in said
    assert "Traceback" not in said
