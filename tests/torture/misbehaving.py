"""Servers that speak vLLM's API with a real tiny model behind them, and misbehave as they are told."""

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
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from recovery.models.loading import LOADING
from tests.http_json import address_of, serve_json, stop

NAME = "clean"
COMPLETIONS = ("/v1/completions",)
TRANSFERS = ("/collective_rpc", "/reset_prefix_cache", "/v1/load_lora_adapter")
NO_ANSWER = object()
"""A body in whose place the connection ends."""
DEATHS = ("before it loads", "half-way, without an end", "after it loaded", "after it answered", "the answer is lost")
"""How a transfer of weights goes wrong; the server comes back with its former weights, except in the second and last.
"""
_PIECE = b"x" * (1 << 20)

# What a reply becomes: a function that changes the sound reply.
_Edit = Callable[[dict[str, Any]], Any]


class Mortal:
    """A server that dies in the next ``deaths`` transfers of weights (-1: in all) as ``dies`` says, one of DEATHS, and
    that draws from the likeliest tokens of mass ``top_p``, whatever it is asked, with their log-probabilities.

    That is after ``sound`` transfers; the ``away`` requests after each death find no server.
    """

    dies: str = ""
    deaths: int = 0
    sound: int = 0
    away: int = 0
    top_p: float = 1.0
    _missed: int = 0

    def cut(self, log_p_V: Tensor) -> Tensor:
        """Return the log-probabilities of the tokens that are left."""
        ranked, order = log_p_V.exp().sort(descending=True)
        outside = (ranked.cumsum(-1) - ranked >= self.top_p)[order.argsort()]
        return log_p_V.masked_fill(outside, -torch.inf).log_softmax(-1) if self.top_p < 1 else log_p_V

    def absent(self) -> bool:
        """Whether there is no server for this request."""
        self._missed -= 1
        return self._missed >= 0

    def transfer(self, load: Callable[[], Any], spoil: Callable[[], None], restart: Callable[[], None]) -> Any:
        """Return the answer to a transfer, or NO_ANSWER. ``spoil`` loads half of the weights."""
        self.sound -= 1
        if not self.deaths or self.sound >= 0:
            return load()
        before, half_way, _, after_the_answer, lost = DEATHS
        self.deaths, self._missed = self.deaths - 1, self.away
        if self.dies == half_way:
            spoil()
            return NO_ANSWER
        answer = None if self.dies == before else load()
        if self.dies != lost:
            restart()
        return answer if self.dies == after_the_answer else NO_ANSWER


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


def mix(model: Any, folder: Path) -> None:
    """Give every other tensor of a model the value that it has in a folder."""
    found = read_model(folder).state_dict()
    with torch.no_grad():
        for name, tensor in list(model.state_dict().items())[::2]:
            tensor.copy_(found[name])


def read_model(folder: Path) -> Any:
    """Return the model in a folder, in float32. Requests may come while another one loads a model."""
    with LOADING:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


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

    def answer(path: str, asked: Any, key: str | None) -> tuple[int, tuple[str, bytes]]:
        way = server.next_way(path)
        if way == "restarts":
            server.started_with = server.exchanged or server.started_with
            server.restart()
        status, body = server.answer(path, asked, key)
        if body is NO_ANSWER:
            return status, ("absent", b"")
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
