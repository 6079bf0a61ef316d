"""A server that speaks vLLM's API with a real tiny model behind it, and misbehaves as it is told."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.http_json import address_of, serve_json, stop

NAME = "clean"
_PIECE = b"x" * (1 << 20)

# What a reply to a scoring request becomes: a function that changes the sound reply's choices.
_Edit = Callable[[dict[str, Any]], Any]


@dataclass
class Server:
    """The server; ``way`` is how it misbehaves on its next ``left`` requests for completions (-1: on all)."""

    folder: Path
    way: str = ""
    left: int = 0
    asked: int = 0
    sound_for: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        self.load(self.folder)

    def load(self, folder: Path) -> None:
        """Serve the model of a folder, under the same name."""
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def misbehave(self, way: str, left: int = -1, sound_for: int = 0) -> None:
        """Misbehave ``left`` times (-1: always), after ``sound_for`` sound replies."""
        self.way, self.left, self.sound_for, self.asked = way, left, sound_for, 0

    def next_way(self) -> str:
        """Return how to misbehave on this request, or ""."""
        with self.lock:
            self.asked += 1
            if not self.left or self.asked <= self.sound_for:
                return ""
            if self.way == "unavailable every other time":
                return "status 503" if self.asked % 2 else ""
            self.left -= 1
            return self.way

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        """Return the sound reply."""
        if path == "/v1/models":
            return 200, {"data": [{"id": NAME, "parent": None, "max_model_len": 256}]}
        if path == "/tokenize":
            return 200, {"tokens": self.tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]}
        if path == "/v1/completions":
            with self.lock, torch.inference_mode():
                choices = self._scored(body) if "prompt_logprobs" in body else [self._sampled(body)]
            return 200, {"model": body["model"], "choices": choices}
        return 404, {"detail": "Not Found"}

    def _scored(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        choices = []
        for index, ids in enumerate(body["prompt"]):
            log_p_TV = self.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
            positions: list[Any] = [None]
            for at, token in enumerate(ids[1:]):
                best = {*log_p_TV[at].topk(body["prompt_logprobs"]).indices.tolist(), token}
                positions.append({str(one): {"logprob": float(log_p_TV[at, one])} for one in best})
            choices.append({"index": index, "prompt_logprobs": positions, "prompt_token_ids": ids})
        return choices

    def _sampled(self, body: dict[str, Any]) -> dict[str, Any]:
        ids, logprobs = list(body["prompt"]), []
        while len(logprobs) < body["max_tokens"] and (not logprobs or ids[-1] not in body["stop_token_ids"]):
            log_p_V = self.model(torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)
            ids.append(int(log_p_V.argmax()))
            logprobs.append(float(log_p_V.max()))
        return {"token_ids": ids[len(body["prompt"]) :], "logprobs": {"token_logprobs": logprobs}}


def _numbers(value: float) -> _Edit:
    def edit(answer: dict[str, Any]) -> Any:
        for choice in answer["choices"]:
            for position in filter(None, choice.get("prompt_logprobs", ())):
                position[next(iter(position))]["logprob"] = value
            if choice.get("token_ids"):
                choice["logprobs"]["token_logprobs"][-1] = value
        return answer

    return edit


def _tokens(change: Callable[[list[Any]], Any]) -> _Edit:
    def edit(answer: dict[str, Any]) -> Any:
        for choice in answer["choices"]:
            change(choice["prompt_logprobs"] if "prompt_logprobs" in choice else choice["token_ids"])
        return answer

    return edit


def _strange(answer: dict[str, Any]) -> Any:
    for choice in answer["choices"]:
        for at, position in enumerate(choice.get("prompt_logprobs", ())):
            for name, strange in zip(sorted(position or ())[:2], ("9" * 30, "-5"), strict=False):
                if int(name) != choice["prompt_token_ids"][at]:
                    position[strange] = position.pop(name)
        if "token_ids" in choice:
            choice["token_ids"][-1] = 10**30
    return answer


EDITS: dict[str, _Edit] = {
    "NaN": _numbers(math.nan),
    "inf": _numbers(math.inf),
    "-inf": _numbers(-math.inf),
    "a positive log-probability": _numbers(3.0),
    "missing tokens": _tokens(lambda found: found.pop()),
    "too many tokens": _tokens(lambda found: found.extend(found[-1:] * 300)),
    "tokens that are none": _strange,
    "another model": lambda answer: answer | {"model": "another\x1b[31m"},
    "a list": lambda answer: [answer],
    "null": lambda _answer: None,
    "choices of text": lambda answer: answer | {"choices": "text"},
    "choices of numbers": lambda answer: answer | {"choices": [1, 2]},
}
CUT = ("cut in the middle", "a byte at a time", "reset", "no encoding that it says", "status 429", "status 500",
       "status 503")  # fmt: skip
FINAL = ("status 401", "status 403", "status 400", "a gigabyte", "brackets", "no JSON")


@contextmanager
def serving(server: Server) -> Iterator[str]:
    """Serve on a free port of this machine; yield the address."""

    def answer(path: str, asked: Any, _key: str | None) -> tuple[int, tuple[str, bytes]]:
        way = server.next_way() if path == "/v1/completions" else ""
        status, body = server.answer(path, asked)
        return status, (way, json.dumps(EDITS[way](body) if way in EDITS else body).encode())

    found = serve_json(answer, send=_send)
    try:
        yield address_of(found)
    finally:
        stop(found)


def _send(handler: BaseHTTPRequestHandler, status: int, reply: tuple[str, bytes]) -> None:
    """Send a reply in its way."""
    with contextlib.suppress(OSError):  # the client may leave
        _send_in(handler, reply[0], status, reply[1])


def _send_in(handler: BaseHTTPRequestHandler, way: str, status: int, payload: bytes) -> None:
    if way.startswith("status "):
        status, payload = int(way[7:]), b'{"error": {"message": "as it was told\\u001b[31m\\nto"}}'
    length = {"a gigabyte": 1 << 30, "brackets": 200_000}.get(way, len(payload))
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(length))
    if way == "no encoding that it says":
        handler.send_header("Content-Encoding", "gzip")
    handler.end_headers()
    if way == "cut in the middle":
        handler.wfile.write(payload[: len(payload) // 2])
        handler.close_connection = True
    elif way == "reset":
        handler.wfile.write(payload[:10])
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()
        handler.close_connection = True
    elif way == "a byte at a time":
        for byte in payload:
            handler.wfile.write(bytes([byte]))
            time.sleep(0.2)
    elif way == "a gigabyte":
        for _ in range(1 << 10):
            handler.wfile.write(_PIECE)
    else:
        handler.wfile.write({"brackets": b"[" * length, "no JSON": b"<" * length}.get(way, payload))
