"""Servers for tests: llama.cpp's files, a model folder, and a proxy before a server that misbehaves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from recovery.models.gguf_files.conversion import Silent
from recovery.models.gguf_files.writing import Source, write_gguf
from recovery.models.loading import load_model
from recovery.rollouts.engine import Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from tests.http_json import address_of, serve_json, stop

Forward = Callable[..., tuple[int, Any]]
Change = Callable[[str, Any, Forward], tuple[int, Any]]
"""Returns status and body from path, JSON body and a function that asks the real server."""


def write(model: Path, target: Path, kind: str = "f32", digest: str = "") -> Path:
    """Write a model folder as a GGUF file that names its origin."""
    write_gguf(Source.of("tiny", model, digest=digest), target, kind, {"name": "Tiny"}, Silent())
    return target


@contextlib.contextmanager
def of_folder(folder: Path) -> Iterator[str]:
    """Serve the weights in a model folder, in OpenAI's form; its tokens are told as vLLM does. Yield the address."""
    loaded, one_at_a_time = load_model(folder, precision="float32", device="cpu"), threading.Lock()
    chat, engine = loaded.chat, TransformersEngine(loaded)

    def answer(path: str, body: Any, _key: str | None) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": folder.name, "root": str(folder), "owned_by": "transformers"}]}
        if path == "/tokenize" and "prompt" in body:
            return 200, {"tokens": loaded.tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]}
        if path == "/tokenize" and "messages" in body:
            return 200, {"tokens": chat.prompt_ids(body["messages"])}
        if path != "/v1/chat/completions" or "logit_bias" in body:
            return 404, {"error": "not offered"}
        with one_at_a_time:
            (said,) = engine.generate([chat.prompt_ids(body["messages"])], Sampling(body["max_tokens"], 0.0))
        content = loaded.tokenizer.decode(said.ids, skip_special_tokens=True)
        choice = {"message": {"content": content}, "finish_reason": "stop" if said.finished else "length"}
        return 200, {"choices": [choice], "usage": {"completion_tokens": len(said.ids)}}

    server = serve_json(answer)
    try:
        yield address_of(server)
    finally:
        stop(server)


@contextlib.contextmanager
def before(address: str, change: Change) -> Iterator[str]:
    """Serve what the server at ``address`` answers, ``change`` permitting; yield the address."""
    client = httpx.Client(base_url=address, timeout=60)

    def forward(path: str, body: Any) -> tuple[int, Any]:
        answer = client.get(path) if body is None else client.post(path, json=body)
        return answer.status_code, answer.json()

    proxy = serve_json(lambda path, body, _key: change(path, body, forward))
    try:
        yield address_of(proxy)
    finally:
        stop(proxy)
        client.close()
