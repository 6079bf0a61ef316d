"""Engines by name: what --engine accepts, and where each engine is."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from recovery.config import ModelConfig
from recovery.engines import SAMPLERS, SERVERS, module_of, server_address
from recovery.errors import EngineError, ServerError, UsageError
from recovery.inference_server import InferenceServer
from recovery.models.loading import load_model
from recovery.rollouts.engine import Completion, Sampling
from recovery.rollouts.vllm_server_engine import VllmServerSampler
from tests.http_json import address_of, serve_json, stop


def test_every_listed_module_makes_a_sampler() -> None:
    for name in (*SAMPLERS.values(), *SERVERS.values()):
        assert callable(importlib.import_module(name).sampler)


def test_a_name_leads_to_its_module_and_an_address_to_its_server() -> None:
    assert module_of("vllm") == SAMPLERS["vllm"]
    assert module_of("http://127.0.0.1:8000") == module_of("vllm+https://host") == SERVERS["vllm"]
    assert server_address("vllm+http://127.0.0.1:8000/v1/") == "http://127.0.0.1:8000"
    assert ModelConfig(engine="vllm+http://127.0.0.1:8000").served and not ModelConfig(engine="vllm").served


def test_an_engine_of_ones_own_is_registered_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples" / "engines")
    monkeypatch.setitem(SERVERS, "sglang", "sglang_server")
    assert ModelConfig(engine="sglang+http://127.0.0.1:30000").served
    engine = importlib.import_module(module_of("sglang+http://127.0.0.1:30000"))
    assert callable(engine.sampler)
    about = {"finish_reason": None, "output_token_logprobs": [[-0.1, 5, None], [-0.2, 2, None]], "weight_version": "a"}
    assert engine.parse_completion({"meta_info": about}, {2}) == (Completion([5, 2], [-0.1, -0.2], True), "a")
    for wrong in ({}, {"meta_info": {**about, "weight_version": None, "output_token_logprobs": None}},
                  {"meta_info": about, "output_ids": [5, 2, 2]},
                  {"meta_info": {**about, "finish_reason": {"type": "abort", "message": "busy"}}}):  # fmt: skip
        with pytest.raises(ServerError):
            engine.parse_completion(wrong, {2})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vlm", "--engine 'vlm' is not known: use transformers, vllm, a server's address"),
        ("sglang+http://127.0.0.1:8000", "or an engine of your own (examples/engines)"),
        ("vllm+ftp://127.0.0.1", "--engine 'ftp://127.0.0.1' is not an address"),
        ("http://", "is not an address"),
        ("nothing+http://key@host", "must not contain a key"),
    ],
)
def test_an_unknown_engine_is_an_error_in_one_line(name: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        ModelConfig(engine=name)
    assert words in str(caught.value) and "\n" not in str(caught.value) and "key@" not in str(caught.value)


def test_weights_that_another_client_replaces_each_time_end_the_sampling(tiny_model: Path) -> None:
    def answer(path: str, body: Any, _key: str | None) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "clean", "parent": None, "max_model_len": "long"}]}
        if path == "/v1/completions":
            return 200, {"model": "clean", "choices": [{"token_ids": [5], "logprobs": {"token_logprobs": [-0.1]}}]}
        return 200, {"results": ["another client's"], "success": True}

    server = serve_json(answer)
    loaded = load_model(tiny_model, tuning="full", precision="float32")
    sampler = VllmServerSampler(loaded, InferenceServer(address_of(server), ()))
    try:
        assert sampler.window == loaded.max_length, "what the server says is no number"
        sampler.sync()
        with pytest.raises(EngineError, match="lost its weights 3 times in one batch"):
            sampler.sample([[5, 9]], Sampling(4, temperature=0.0))
    finally:
        sampler.close()
        stop(server)
