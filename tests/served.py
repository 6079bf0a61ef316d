"""A real llama.cpp server for tests, and a proxy before it that misbehaves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from recovery.models.gguf_files.conversion import Silent
from recovery.models.gguf_files.writing import Source, write_gguf
from tests.http_json import address_of, serve_json, stop

Forward = Callable[..., tuple[int, Any]]
Change = Callable[[str, Any, Forward], tuple[int, Any]]
"""Returns status and body from path, JSON body and a function that asks the real server."""


def write(model: Path, target: Path, kind: str = "f32", digest: str = "") -> Path:
    """Write a model folder as a GGUF file that names its origin."""
    write_gguf(Source.of("tiny", model, digest=digest), target, kind, {"name": "Tiny"}, Silent())
    return target


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
