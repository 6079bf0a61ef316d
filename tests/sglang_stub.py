"""A server that speaks SGLang's native HTTP API with a real model behind it, for tests.

It answers as documented at docs.sglang.io (native API, sampling parameters): /health, /get_model_info,
/get_server_info, /generate, /update_weights_from_disk and /flush_cache. Log-probabilities are the model's, weights are
loaded from the folder that is named, and a prefix cache of whole prompts holds results of old weights until it is
flushed. It can die during a transfer of weights.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from recovery.models.loading_lock import LOADING
from tests.http_json import address_of, send_json, serve_json, stop

NO_ANSWER = object()
"""A body in whose place the connection ends."""
DEATHS = ("before it loads", "half-way, without an end", "after it loaded", "after it answered", "the answer is lost")
"""How a transfer of weights goes wrong; the server comes back with its former weights, except in the second and last.
"""
_DEFAULTS: dict[str, Any] = {
    "max_new_tokens": 128,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "sampling_seed": None,
    "stop_token_ids": [],
    "ignore_eos": False,
    "no_stop_trim": False,
}


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


def send_or_cut(handler: BaseHTTPRequestHandler, status: int, body: Any) -> None:
    """Send a body as JSON, or end the connection."""
    if body is NO_ANSWER:
        handler.close_connection = True
    else:
        send_json(handler, status, body)


def mix(model: Any, folder: Path) -> None:
    """Give every other tensor of a model the value that it has in a folder."""
    found = read_model(folder).state_dict()
    with torch.no_grad():
        for name, tensor in list(model.state_dict().items())[::2]:
            tensor.copy_(found[name])


@dataclass
class SglangStub(Mortal):
    """One server; ``stale`` makes it report a successful update and keep its weights, ``key`` is its API key."""

    model_path: Path
    key: str = ""
    stale: bool = False
    abort: bool = False
    old: bool = False
    context_length: int | None = None  # None: that of the model, as in SGLang
    updates: list[str] = field(default_factory=list)
    flushed: int = 0
    weight_version: str = "default"
    is_generation: bool = True
    missing: str = ""  # path of an endpoint that an old server lacks
    paths: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)  # of /generate
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _server: ThreadingHTTPServer | None = None

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Load the weights that the server was started with, as a new process would."""
        self._model, self._cache, self.weight_version = read_model(self.model_path), {}, "default"

    def start(self) -> str:
        """Serve; returns the address."""
        self._server = serve_json(lambda *request: self.answer(*request), send=send_or_cut)
        return address_of(self._server)

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            stop(self._server)

    def answer(self, path: str, body: Any, authorization: str | None) -> tuple[int, Any]:
        """Return status and body of a response."""
        self.paths.append(path)
        if self.absent():
            return 0, NO_ANSWER
        if self.key and authorization != f"Bearer {self.key}":
            return 401, {"error": "Unauthorized"}
        if path == self.missing:
            return 404, {"detail": "Not Found"}
        with self._lock:
            if path == "/health":
                return 200, ""
            if path == "/get_model_info":
                about = {"model_path": str(self.model_path), "is_generation": self.is_generation, "tokenizer_path": ""}
                return 200, about | {"preferred_sampling_params": None, "weight_version": self.weight_version}
            if path == "/get_server_info":
                return 200, {"context_length": self.context_length, "max_total_num_tokens": 4096}
            if path == "/update_weights_from_disk" and body is not None:
                return self._update(body)
            if path == "/flush_cache":
                self._cache.clear()
                self.flushed += 1
                return 200, "Cache flushed.\nPlease check backend logs for more details.\n"
            if path == "/generate" and body is not None:
                return self._generate(body)
        return 404, {"detail": "Not Found"}

    def _update(self, body: dict[str, Any]) -> tuple[int, Any]:
        folder = Path(body["model_path"])
        if not (folder / "config.json").is_file():
            return 400, {"success": False, "message": f"Failed to get weights iterator: {folder}\n(not found).",
                         "num_paused_requests": 0}  # fmt: skip
        self.updates.append(str(folder))

        def load() -> dict[str, Any]:
            if not self.stale:
                self._model = read_model(folder)
            self.weight_version = body.get("weight_version") or self.weight_version
            return {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}

        return 200, self.transfer(load, lambda: mix(self._model, folder), self.restart)

    def _generate(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.bodies.append(json.loads(json.dumps(body)))
        unknown = set(body["sampling_params"]) - set(_DEFAULTS)
        if unknown:
            return 400, {"error": {"message": f"Unexpected keyword argument {sorted(unknown)[0]!r}"}}
        if self.abort:
            reason: dict[str, Any] = {"type": "abort", "message": "Abort in waiting queue"}
            return 200, {"text": "", "output_ids": [], "meta_info": {"finish_reason": reason}}
        params = _DEFAULTS | body["sampling_params"]
        ids, logprobs, matched = self._sample(body["input_ids"], params)
        reason = {"type": "length", "length": len(ids)} if matched is None else {"type": "stop", "matched": matched}
        about = {"id": "0", "finish_reason": reason, "prompt_tokens": len(body["input_ids"])}
        about |= {"completion_tokens": len(ids), "cached_tokens": 0}
        if not self.old:
            about["weight_version"] = self.weight_version
        if body.get("return_logprob"):
            assert body["logprob_start_len"] == -1  # of output tokens only
            about |= {
                "input_token_logprobs": [],
                "output_token_logprobs": [[p, i, None] for p, i in zip(logprobs, ids, strict=True)],
            }
        return 200, {"text": "", "output_ids": ids, "meta_info": about}

    def _sample(self, prompt: list[int], params: dict[str, Any]) -> tuple[list[int], list[float], int | None]:
        """Return ids, log-probabilities and the token that ended the completion, if any did."""
        ends = set(params["stop_token_ids"]) | set(_listed(self._model.generation_config.eos_token_id))
        ends = set() if params["ignore_eos"] else ends  # both kinds of end token, as in SGLang
        generator = torch.Generator().manual_seed(params["sampling_seed"] or 0)
        ids, logprobs = [], []
        for _ in range(params["max_new_tokens"]):
            logits_V = self._logits([*prompt, *ids])
            greedy = params["temperature"] == 0
            log_p_V = self.cut((logits_V / (1.0 if greedy else params["temperature"])).log_softmax(-1))
            token = int(log_p_V.argmax()) if greedy else int(torch.multinomial(log_p_V.exp(), 1, generator=generator))
            ids.append(token)
            logprobs.append(float(log_p_V[token]))
            if token in ends:
                return ids, logprobs, token
        return ids, logprobs, None

    def _logits(self, ids: list[int]) -> Tensor:
        found: Tensor | None = self._cache.get(tuple(ids))
        if found is None:
            with torch.inference_mode():
                found = self._model(torch.tensor([ids])).logits[0, -1].float()
            self._cache[tuple(ids)] = found
        return found


def read_model(folder: Path) -> Any:
    """Return the model in a folder, in float32. Requests may come while another one loads a model."""
    with LOADING:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def _listed(value: Any) -> list[int]:
    return [] if value is None else list(value) if isinstance(value, list) else [value]
