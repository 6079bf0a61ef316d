"""The SGLang engine against a server that speaks SGLang's API, with a real model behind it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from pipelines.runtime.engines import engine_of
from recovery.config import ModelConfig
from recovery.errors import EngineError, RecoveryError, ServerError, UsageError
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.engine import Sampling
from recovery.rollouts.sglang_server_engine import parse_completion
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.rollouts.weight_sync import SyncedEngine
from tests.sglang_stub import SglangStub

PROMPTS = [[5, 9, 30, 12, 8], [7, 11], [40, 41, 42, 43, 44], [3, 3, 3]]
GREEDY = Sampling(12, temperature=0.0)


@pytest.fixture
def serve(tiny_model: Path) -> Iterator[Callable[..., tuple[SglangStub, str]]]:
    """``serve(model, **settings)`` returns a running server and its name as an engine."""
    started = []

    def start(**settings: object) -> tuple[SglangStub, str]:
        stub = SglangStub(tiny_model, **settings)  # type: ignore[arg-type]
        started.append(stub)
        return stub, f"sglang+{stub.start()}"

    yield start
    for stub in started:
        stub.stop()


@pytest.fixture
def loaded(tiny_model: Path) -> Loaded:
    return load_model(tiny_model, tuning="full", precision="float32")


def step(loaded: Loaded) -> None:
    with torch.no_grad():
        for parameter in loaded.trainable().values():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))


def config(engine: str, **settings: object) -> ModelConfig:
    return ModelConfig(engine=engine, precision="float32", server_wait=0.0, **settings)  # type: ignore[arg-type]


def test_it_samples_what_the_model_would_and_follows_its_weights(
    serve: Callable[..., tuple[SglangStub, str]], loaded: Loaded, tmp_path: Path
) -> None:
    stub, name = serve()
    with engine_of(loaded, config(name, engine_folder=tmp_path / "shared")) as engine:
        assert isinstance(engine, SyncedEngine)
        before = engine.generate(PROMPTS, GREEDY)
        assert before == [
            dataclasses.replace(one, logprobs=pytest.approx(one.logprobs, abs=1e-4))
            for one in TransformersEngine(loaded).generate(PROMPTS, GREEDY)
        ]
        assert engine.figures["engine_drift"] < 1e-4
        step(loaded)
        after = engine.generate(PROMPTS, GREEDY)
        assert [one.ids for one in after] == [one.ids for one in TransformersEngine(loaded).generate(PROMPTS, GREEDY)]
        assert [one.ids for one in after] != [one.ids for one in before]
        assert engine.figures["engine_drift"] < 1e-4, "the stub's prefix cache was flushed"
        assert len(stub.updates) == stub.flushed == 2 and Path(stub.updates[0]).parent == tmp_path / "shared"
    assert not list((tmp_path / "shared").iterdir())


@pytest.mark.parametrize("top_p", [0.92, 0.96, 0.99])
def test_a_top_p_of_the_servers_own_is_found(
    serve: Callable[..., tuple[SglangStub, str]], loaded: Loaded, top_p: float
) -> None:
    stub, name = serve()
    stub.top_p = top_p
    with (
        engine_of(loaded, config(name)) as engine,
        pytest.raises(EngineError, match=r"does not draw as it was asked to.* of the model's probability only"),
    ):
        engine.generate(PROMPTS, Sampling(24, seed=3))
    assert stub.bodies[-1]["sampling_params"]["top_p"] == 1.0
    assert engine.figures["engine_drift"] < 0.1, "the difference of log-probabilities alone would pass"


def test_draws_follow_the_seed_and_end_at_end_tokens(
    serve: Callable[..., tuple[SglangStub, str]], loaded: Loaded
) -> None:
    _, name = serve()
    counted: list[tuple[int, int]] = []
    with engine_of(loaded, config(name)) as engine:
        prompts, sampling = [PROMPTS[0]] * 6, Sampling(40, temperature=0.9, seed=3)
        first = engine.generate(prompts, sampling, lambda done, tokens: counted.append((done, tokens)))
        assert first == engine.generate(prompts, sampling)
        assert len({tuple(one.ids) for one in first}) > 1, "each prompt has a seed of its own"
        assert sum(done for done, _ in counted) == 6
        assert sum(tokens for _, tokens in counted) == sum(len(one.ids) for one in first)
        ends = loaded.chat.end_ids
        assert all(one.finished == (one.ids[-1] in ends) and not set(one.ids[:-1]) & set(ends) for one in first)


def test_the_context_length_of_the_server_is_the_limit(
    serve: Callable[..., tuple[SglangStub, str]], loaded: Loaded
) -> None:
    _, name = serve(context_length=12)
    with engine_of(loaded, config(name)) as engine:
        found = engine.generate([PROMPTS[0], PROMPTS[1]], Sampling(40, temperature=0.0))
        cut = [(len(prompt), len(one.ids)) for prompt, one in zip(PROMPTS, found, strict=False) if not one.finished]
        assert cut and all(before + after == 12 for before, after in cut)
        with pytest.raises(UsageError, match="12"):
            engine.generate([[5] * 12], GREEDY)


def test_every_sampling_parameter_is_named(serve: Callable[..., tuple[SglangStub, str]], loaded: Loaded) -> None:
    """A parameter that is left out would follow the served model's own recommendation."""
    stub, name = serve()
    neutral = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    neutral |= {"stop_token_ids": sorted(loaded.chat.end_ids), "no_stop_trim": True}
    with engine_of(loaded, config(name)) as engine:
        engine.generate([PROMPTS[0]], Sampling(5, temperature=0.7, top_p=0.9, seed=2**40))
        drawn = stub.bodies[-1]
        engine.generate([PROMPTS[0]], Sampling(5, temperature=0.0, top_p=0.9, seed=1))
        greedy = stub.bodies[-1]
        engine.generate([[5] * (loaded.max_length - 3)], GREEDY)
        room = stub.bodies[-1]["sampling_params"]["max_new_tokens"]
    assert 0 <= drawn["sampling_params"].pop("sampling_seed") < 2**31
    greedy["sampling_params"].pop("sampling_seed")
    assert drawn["sampling_params"] == neutral | {"max_new_tokens": 5, "temperature": 0.7, "top_p": 0.9}
    assert greedy["sampling_params"] == neutral | {"max_new_tokens": 5, "temperature": 0.0, "top_p": 1.0}
    assert room == 3, "the context ends there"


def test_a_server_that_restarts_gets_the_weights_again(
    serve: Callable[..., tuple[SglangStub, str]], loaded: Loaded
) -> None:
    stub, name = serve()
    step(loaded)
    counted: list[int] = []
    with engine_of(loaded, config(name)) as engine:
        expected = engine.generate(PROMPTS, GREEDY)
        stub.restart()
        assert engine.generate(PROMPTS, GREEDY, lambda done, _tokens: counted.append(done)) == expected
    assert len(stub.updates) == 2
    assert sum(counted) == len(PROMPTS), "what is sampled again is not counted again"


def test_errors_are_one_line(
    serve: Callable[..., tuple[SglangStub, str]],
    loaded: Loaded,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(words: str, name: str, model: Loaded = loaded, kind: type[RecoveryError] = EngineError) -> None:
        with engine_of(model, config(name)) as engine, pytest.raises(kind) as caught:
            engine.generate(PROMPTS, GREEDY)
        assert words in str(caught.value) and "\n" not in str(caught.value)

    step(loaded)
    refused("does not sample from the weights in memory", serve(stale=True)[1])
    refused("the server aborted a request: Abort in waiting queue", serve(abort=True)[1], kind=ServerError)
    refused("use SGLang 0.5.3 or later", serve(old=True)[1], kind=ServerError)
    adapter = load_model(tiny_model, tuning="lora", precision="float32")
    with pytest.raises(EngineError, match="gets full weights only: for an adapter use vLLM"):
        engine_of(adapter, config(serve()[1])).__enter__()
    stub, name = serve(key="secret")
    refused("set RECOVER_ENGINE_KEY or SGLANG_API_KEY", name, kind=ServerError)
    monkeypatch.setenv("SGLANG_API_KEY", "secret")
    with engine_of(loaded, config(name)) as engine:
        assert len(engine.generate(PROMPTS, GREEDY)) == len(PROMPTS)
    stub, name = serve()
    monkeypatch.setattr(stub, "_update", lambda _body: SglangStub._update(stub, {"model_path": "/nowhere"}))
    refused("Failed to get weights iterator: /nowhere (not found). (can it read", name)
    stub, name = serve()
    monkeypatch.setattr(stub, "answer", lambda *_: (404, {"detail": "Not Found"}))
    refused("is not an SGLang server", name)
    stub, name = serve()
    unversioned = SglangStub._update
    monkeypatch.setattr(stub, "_update", lambda body: unversioned(stub, body | {"weight_version": "another client's"}))
    refused("lost its weights 3 times in one batch", name)
    assert len(stub.updates) == 1 + 3
    stub, name = serve()
    monkeypatch.setattr(stub, "is_generation", False)
    refused("does not serve a model that generates text", name)
    stub, name = serve()
    monkeypatch.setattr(stub, "missing", "/update_weights_from_disk")
    refused("is not an SGLang server, or an old one", name)


@pytest.mark.parametrize("answer", [{}, None, {"meta_info": {"finish_reason": None, "output_token_logprobs": [[1.0]]}}])
def test_a_response_without_log_probabilities_is_an_error(answer: object) -> None:
    with pytest.raises(ServerError, match="no log-probabilities"):
        parse_completion(answer, [1])


def test_a_response_without_some_of_the_log_probabilities_is_an_error() -> None:
    about = {"finish_reason": None, "output_token_logprobs": [[-1.0, 5, None]], "weight_version": "v"}
    completion, version = parse_completion({"output_ids": [5], "meta_info": about}, [1])
    assert (completion.ids, version) == ([5], "v")
    with pytest.raises(ServerError, match="has 2 tokens and 1 log-probabilities"):
        parse_completion({"output_ids": [5, 7], "meta_info": about}, [1])
