"""Engines by name: what --engine accepts, and where each engine is."""

from __future__ import annotations

import importlib

import pytest

from recovery.config import ModelConfig
from recovery.engines import SAMPLERS, SERVERS, module_of, server_address
from recovery.errors import UsageError


def test_every_listed_module_makes_a_sampler() -> None:
    for name in (*SAMPLERS.values(), *SERVERS.values()):
        assert callable(importlib.import_module(name).sampler)


def test_a_name_leads_to_its_module_and_an_address_to_its_server() -> None:
    assert module_of("vllm") == SAMPLERS["vllm"]
    assert module_of("http://127.0.0.1:8000") == module_of("vllm+https://host") == SERVERS["vllm"]
    assert server_address("vllm+http://127.0.0.1:8000/v1/") == "http://127.0.0.1:8000"
    assert ModelConfig(engine="vllm+http://127.0.0.1:8000").served and not ModelConfig(engine="vllm").served


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vlm", "--engine 'vlm' is not known: use transformers, vllm, or a server's address"),
        ("nothing+http://127.0.0.1:8000", "is not known"),
        ("vllm+ftp://127.0.0.1", "--engine 'ftp://127.0.0.1' is not an address"),
        ("http://", "is not an address"),
        ("nothing+http://key@host", "must not contain a key"),
    ],
)
def test_an_unknown_engine_is_an_error_in_one_line(name: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        ModelConfig(engine=name)
    assert words in str(caught.value) and "\n" not in str(caught.value) and "key@" not in str(caught.value)
