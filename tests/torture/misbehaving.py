"""Servers that speak vLLM's and SGLang's API with a real tiny model behind them, and misbehave as they are told."""

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
from peft import PeftModel
from transformers import AutoTokenizer

from tests.http_json import address_of, serve_json, stop
from tests.sglang_stub import DEATHS, NO_ANSWER, Mortal, SglangStub, mix, read_model

NAME = "clean"
COMPLETIONS = ("/v1/completions", "/generate")
TRANSFERS = ("/collective_rpc", "/reset_prefix_cache", "/v1/load_lora_adapter", "/update_weights_from_disk",
             "/flush_cache")  # fmt: skip
_PIECE = b"x" * (1 << 20)

# What a reply becomes: a function that changes the sound reply.
_Edit = Callable[[dict[str, Any]], Any]


class Manners(Mortal):
    """``way`` is how a server misbehaves on its next ``left`` requests (-1: on all) for one of ``paths``."""

    way: str = ""
    left: int = 0
    asked: int = 0
    sound_for: int = 0
    paths_told: tuple[str, ...] = COMPLETIONS
    exchanged: Path | None = None
    """The model it is started with when it restarts, if it is another one."""
    _counting = threading.Lock()

    def misbehave(
        self, way: str, left: int = -1, sound_for: int = 0, paths: tuple[str, ...] = COMPLETIONS, away: int = 0
    ) -> None:
        """Misbehave ``left`` times (-1: always), after ``sound_for`` sound replies; or die in so many transfers."""
        self.dies, self.deaths, self.away = (way, left, away) if way in DEATHS else ("", 0, 0)
        self.way, self.left = ("", 0) if way in DEATHS else (way, left)
        self.sound_for, self.asked, self.paths_told = sound_for, 0, paths
        self.sound = sound_for

    def next_way(self, path: str) -> str:
        """Return how to misbehave on this request, or ""."""
        if path not in self.paths_told:
            return ""
        with self._counting:
            self.asked += 1
            if not self.left or self.asked <= self.sound_for:
                return ""
            if self.way == "unavailable every other time":
                return "status 503" if self.asked % 2 else ""
            self.left -= 1
            return self.way


class SglangServer(Manners, SglangStub):
    """An SGLang server."""

    @property
    def started_with(self) -> Path:
        """The model of a server that is started."""
        return self.model_path

    @started_with.setter
    def started_with(self, folder: Path) -> None:
        self.model_path = folder


@dataclass
class Server(Manners):
    """A vLLM server. It takes full weights and adapters, holds them until :meth:`restart`, and has no cache.

    ``key`` is its API key; with ``fixed`` it takes no weights, with ``stale`` it takes them and samples from its own.
    """

    folder: Path
    key: str = ""
    fixed: bool = False
    stale: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        self.started_with = self.folder
        self.load(self.folder)

    def load(self, folder: Path) -> None:
        """Start with the model of a folder, under the same name."""
        self.started_with = folder
        self.restart()

    def restart(self) -> None:
        """Load what the server was started with, as a new process would."""
        self.model, self.holds = read_model(self.started_with), ""
        self.adapters: dict[str, Any] = {}

    def answer(self, path: str, body: Any, authorization: str | None = None) -> tuple[int, Any]:
        """Return the sound reply."""
        if self.absent():
            return 0, NO_ANSWER
        if self.key and authorization != f"Bearer {self.key}":
            return 401, {"error": "Unauthorized"}
        if path == "/v1/models":
            adapters = [{"id": name, "parent": NAME} for name in self.adapters]
            return 200, {"data": [{"id": NAME, "parent": None, "max_model_len": 256}, *adapters]}
        if path == "/tokenize":
            return 200, {"tokens": self.tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]}
        if path == "/v1/completions":
            if body["model"] not in (NAME, *self.adapters):
                return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
            with self.lock, torch.inference_mode():
                choices = self._scored(body) if "prompt_logprobs" in body else [self._sampled(body)]
            return 200, {"model": body["model"], "choices": choices}
        if self.fixed:
            return 404, {"detail": "Not Found"}
        with self.lock:
            return self._taken(path, body)

    def _taken(self, path: str, body: Any) -> tuple[int, Any]:
        """Answer a request about weights."""
        if path == "/collective_rpc" and body["method"] == "held":
            return 200, {"results": [self.holds]}
        if path == "/collective_rpc":
            folder, token = Path(body["args"][0]), body["args"][1]

            def take() -> Any:
                self.model, self.holds = self.model if self.stale else read_model(folder), token
                return {"results": [None]}

            return 200, self.transfer(take, lambda: mix(self.model, folder), self.restart)
        if path == "/reset_prefix_cache":
            return 200, {}
        name = body["lora_name"]
        if path == "/v1/unload_lora_adapter":
            return 200 if self.adapters.pop(name, None) is not None else 404, "said"
        if name in self.adapters:
            return 400, {"error": {"message": f"The lora adapter '{name}' has already been loaded."}}

        def add() -> Any:
            base = read_model(self.started_with)
            self.adapters[name] = base if self.stale else PeftModel.from_pretrained(base, body["lora_path"]).eval()
            return f"Success: LoRA adapter '{name}' added successfully."

        return 200, self.transfer(add, lambda: None, self.restart)

    def _scored(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        choices = []
        model = self.adapters.get(body["model"], self.model)
        for index, ids in enumerate(body["prompt"]):
            log_p_TV = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
            positions: list[Any] = [None]
            for at, token in enumerate(ids[1:]):
                best = {*log_p_TV[at].topk(body["prompt_logprobs"]).indices.tolist(), token}
                positions.append({str(one): {"logprob": float(log_p_TV[at, one])} for one in best})
            choices.append({"index": index, "prompt_logprobs": positions, "prompt_token_ids": ids})
        return choices

    def _sampled(self, body: dict[str, Any]) -> dict[str, Any]:
        model, temperature = self.adapters.get(body["model"], self.model), body["temperature"]
        generator = torch.Generator().manual_seed(body["seed"])
        ids, logprobs = list(body["prompt"]), []
        while len(logprobs) < body["max_tokens"] and (not logprobs or ids[-1] not in body["stop_token_ids"]):
            log_p_V = self.cut(
                (model(torch.tensor([ids])).logits[0, -1].float() / (temperature or 1.0)).log_softmax(-1)
            )
            drawn = int(torch.multinomial(log_p_V.exp(), 1, generator=generator)) if temperature else None
            ids.append(int(log_p_V.argmax()) if drawn is None else drawn)
            logprobs.append(float(log_p_V[ids[-1]]))
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


def _pairs(change: Callable[[list[Any]], Any]) -> _Edit:
    """Change the log-probabilities, with token ids, of an SGLang server."""

    def edit(answer: dict[str, Any]) -> Any:
        change(answer["meta_info"]["output_token_logprobs"])
        return answer

    return edit


def _about(**values: Any) -> _Edit:
    return lambda answer: answer | {"meta_info": answer["meta_info"] | values}


def edited(way: str, body: Any) -> Any:
    """Return a reply in its way."""
    if way in SGLANG_EDITS and isinstance(body, dict) and "meta_info" in body:
        return SGLANG_EDITS[way](body)
    return EDITS[way](body) if way in EDITS else body


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
SGLANG_EDITS: dict[str, _Edit] = {
    "NaN": _pairs(lambda found: found[-1].__setitem__(0, math.nan)),
    "inf": _pairs(lambda found: found[-1].__setitem__(0, math.inf)),
    "-inf": _pairs(lambda found: found[-1].__setitem__(0, -math.inf)),
    "a positive log-probability": _pairs(lambda found: found[-1].__setitem__(0, 3.0)),
    "missing tokens": _pairs(lambda found: found.pop()),
    "too many tokens": _pairs(lambda found: found.extend(found[-1:] * 300)),
    "tokens that are none": _pairs(lambda found: found[-1].__setitem__(1, 10**30)),
    "another model": _about(weight_version="another\x1b[31m"),
    "choices of text": lambda answer: answer | {"meta_info": "text"},
    "choices of numbers": _about(output_token_logprobs=[1, 2]),
}
CUT = ("cut in the middle", "a byte at a time", "reset", "no encoding that it says", "status 429", "status 500",
       "status 503")  # fmt: skip
FINAL = ("status 401", "status 403", "status 400", "a gigabyte", "brackets", "no JSON")


@contextmanager
def serving(server: Server | SglangServer) -> Iterator[str]:
    """Serve on a free port of this machine; yield the address."""

    def answer(path: str, asked: Any, key: str | None) -> tuple[int, tuple[str, bytes]]:
        way = server.next_way(path)
        if way == "restarts":
            server.started_with = server.exchanged or server.started_with
            server.restart()
        status, body = server.answer(path, asked, key)
        return status, ("absent", b"") if body is NO_ANSWER else (way, json.dumps(edited(way, body)).encode())

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
    if way == "absent":
        handler.close_connection = True
        return
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
