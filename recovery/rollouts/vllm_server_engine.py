"""Rollouts on a vLLM server: sends token ids, receives token ids with log-probabilities.

Weights are transferred through a folder that both sides can read. An adapter is loaded under a new name each time, so
that the server's caches never match it; full weights need the server's development endpoints and the worker extension
:mod:`recovery.rollouts.vllm_worker`, and the prefix cache is reset after each transfer.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from recovery.engines import EngineSettings, server_address
from recovery.errors import EngineError, ServerError
from recovery.inference_server import (
    CONNECTIONS,
    InferenceServer,
    NotOffered,
    ask_all,
    check_model,
    log_probability,
    response_of,
    served_model,
    window_of,
)
from recovery.models.loaded import Loaded
from recovery.rollouts.engine import Completion, Progress, Sampling, check_completion
from recovery.rollouts.weight_sync import TransferFolder, seeds

KEYS = ("RECOVER_ENGINE_KEY", "VLLM_API_KEY")
_ATTEMPTS = 3  # transfers for one batch, before another client is assumed to replace the weights
_NONE = "none"  # stands for weights that no server holds
# The scores of a few tokens identify the base model of an adapter, and a model whose server accepts no weights.
_TEXT, _PROBE = "The ferry leaves at 7:45 a.m.; return tickets cost 12.50 EUR.", 8
_SAME = 0.1  # nats: tolerance for rounding
_GAP = 5.0  # seconds without a response in which a server may have been exchanged
_WEIGHT_OPTIONS = (
    "VLLM_SERVER_DEV_MODE=1 in its environment and --worker-extension-cls recovery.rollouts.vllm_worker.FollowedWeights"
)


def sample_served(
    server: InferenceServer,
    model: str,
    window: int,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    loaded: Loaded,
) -> list[Completion]:
    """Return completions of a server's own ``model``, which has the tokens of ``loaded``, in order.

    Raise ServerError if it does not respond or its response is not sound.
    """

    def ask(request: tuple[Sequence[int], int], given_up: threading.Event) -> Completion:
        body = _request(*request, sampling, window, loaded.chat.end_ids)
        answer = server.post("/v1/completions", body | {"model": model}, given_up=given_up)
        return _checked_completion(server, model, answer, sampling, loaded)

    return ask_all(ask, list(zip(prompts, seeds(sampling, len(prompts)), strict=True)), CONNECTIONS)


def _request(
    prompt: Sequence[int], seed: int, sampling: Sampling, window: int, end_ids: Collection[int]
) -> dict[str, Any]:
    """Return a request for a completion without the name of its model."""
    return {
        "prompt": list(prompt),
        "max_tokens": min(sampling.max_new_tokens, window - len(prompt)),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p if sampling.temperature > 0 else 1.0,
        # Otherwise the recommendations of the served model would silently apply.
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": seed,
        "logprobs": 0,
        "return_token_ids": True,
        "ignore_eos": True,
        "stop_token_ids": sorted(end_ids),
    }


def _checked_completion(
    server: InferenceServer, model: str, answer: Any, sampling: Sampling, loaded: Loaded
) -> Completion:
    """Return the completion in a server's response. Raise ServerError if it is not sound, or is another model's."""
    with response_of(server.address):
        check_model(answer, model)
        completion = parse_completion(answer, loaded.chat.end_ids)
        return check_completion(completion, sampling.max_new_tokens, loaded.vocabulary)


class VllmServerSampler:
    """Samples on a vLLM server. ``folder`` is the transfer folder for weights, which both can read.

    A restarted server receives the weights again, and completions that may come from other weights are sampled again.
    A server that accepts no weights is used with those it was started with, for a frozen model only. Raises
    ServerError if it does not respond or was started with another model, EngineError if it cannot load the weights.
    """

    def __init__(self, loaded: Loaded, server: InferenceServer, *, folder: Path | None = None) -> None:
        self.loaded, self.server = loaded, server
        self._transfer = TransferFolder(folder)
        self._adapter: str | None = None
        self._token = ""  # identifies the weights transferred last
        self._fixed = False  # the server accepts no weights
        self._scores: list[float] = []
        self._answered = 0.0
        self._pushing = threading.Lock()
        server.returned = self._check_fixed

    @property
    def name(self) -> str:
        """Name of the engine, for messages."""
        note = f", which takes no weights ({_WEIGHT_OPTIONS} lets it)" if self._fixed else ""
        return f"vLLM at {self.server.address}{note}"

    @property
    def _lost_weights_message(self) -> str:
        return f"{self.name} lost its weights {_ATTEMPTS} times in one batch: another client replaces them"

    @property
    def window(self) -> int:
        """Maximum length of a prompt with its completion, in tokens."""
        return min(self.loaded.max_length, window_of(self._served.get("max_model_len")) or self.loaded.max_length)

    @property
    def model(self) -> str:
        """The server's name of the sampled weights."""
        return self._adapter or str(self._served["id"])

    def sync(self) -> None:
        """Save the weights in the transfer folder and let the server load them."""
        self._transfer.save(self.loaded)
        with self._pushing:
            self._scores = []  # even if this fails: they are those of the former adapter
            self._scores = self._push_and_probe()
        self._answered = time.monotonic()

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        """Return one completion per prompt, in order; requests run concurrently, each with its own seed."""
        requests = list(zip(prompts, seeds(sampling, len(prompts)), strict=True))

        def ask(request: tuple[Sequence[int], int], given_up: threading.Event) -> Completion:
            return self._complete(*request, sampling, given_up)

        def report(completions: Sequence[Completion]) -> None:
            if progress is not None:
                progress(len(completions), sum(len(completion.ids) for completion in completions))

        if time.monotonic() - self._answered > _GAP:
            self._check_fixed()
        for _ in range(_ATTEMPTS):
            completions = ask_all(ask, requests, CONNECTIONS, report)
            self._answered = time.monotonic()
            if self._holds_weights():
                return completions
            progress = None  # reported already
        raise EngineError(self._lost_weights_message)

    def close(self) -> None:
        """Unload the adapter, delete the transfer folder, and close the connections."""
        if self._adapter is not None:
            self.server.tell("/v1/unload_lora_adapter", {"lora_name": self._adapter})
            self._adapter = None
        self._transfer.close()
        self.server.close()

    def _complete(self, prompt: Sequence[int], seed: int, sampling: Sampling, given_up: threading.Event) -> Completion:
        body = _request(prompt, seed, sampling, self.window, self.loaded.chat.end_ids)
        for _ in range(_ATTEMPTS):
            model = self.model
            try:
                answer = self.server.post("/v1/completions", body | {"model": model}, given_up=given_up)
                break
            except NotOffered:  # a restarted server has no adapter
                if self._adapter is None:
                    raise
                with self._pushing:
                    if self._adapter == model:
                        self._check_same(self._push_and_probe())
        else:
            raise EngineError(self._lost_weights_message)
        return _checked_completion(self.server, model, answer, sampling, self.loaded)

    def _push_and_probe(self) -> list[float]:
        """Transfer the weights; return scores that identify the model they are added to, if only a part is transferred.

        Full weights are identified by their token.
        """
        for _ in range(_ATTEMPTS):
            self._push()
            try:
                return [] if self._token else self._probe()
            except NotOffered:  # restarted again
                if self._adapter is None:
                    raise
        raise EngineError(self._lost_weights_message)

    def _check_fixed(self) -> None:
        """Check that a server that takes no weights still has those that were compared."""
        if self._fixed:
            self._check_same(self._probe())

    def _check_same(self, scores: Sequence[float]) -> None:
        """Raise ServerError if the server was started with another model since the weights were compared."""
        self._scores = self._scores or list(scores)
        if any(abs(a - b) > _SAME for a, b in zip(self._scores, scores, strict=True)):
            if self._adapter is not None:  # nothing must be sampled from it any more
                self.server.tell("/v1/unload_lora_adapter", {"lora_name": self._adapter})
            raise ServerError(
                f"{self.server.address} now serves another model: start it with the former one, then `recover resume`"
            )

    def _probe(self) -> list[float]:
        """Return the log-probabilities of a few tokens of a fixed text."""
        ids = self.loaded.tokenizer(_TEXT, add_special_tokens=False)["input_ids"][:_PROBE]
        body = {"model": self.model, "prompt": [ids], "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 1}
        answer = self.server.post("/v1/completions", body)
        with response_of(self.server.address):
            check_model(answer, self.model)
            try:
                positions = answer["choices"][0]["prompt_logprobs"][1:]
                return [log_probability(at[str(t)]["logprob"]) for at, t in zip(positions, ids[1:], strict=True)]
            except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
                raise ServerError(
                    "the server's response has no sound prompt_logprobs: use vLLM 0.10.2 or later"
                ) from error

    def _holds_weights(self) -> bool:
        """Return whether the server still has the weights transferred last; otherwise transfer them again.

        Not needed for an adapter: requests with its unique name fail if it is missing.
        """
        if not self._token:
            return True
        response = self.server.post("/collective_rpc", {"method": "held"}, retried=False)
        tokens = response.get("results") if isinstance(response, dict) else None
        if isinstance(tokens, list) and tokens and all(token == self._token for token in tokens):
            return True
        with self._pushing:
            self._push()
        return False

    @functools.cached_property
    def _served(self) -> dict[str, Any]:
        """The server's description of the model that it was started with."""
        return served_model(self.server)

    def _push(self) -> None:
        """Let the server load the weights in the transfer folder."""
        if self.loaded.adapts_layers:
            self._push_adapter()
        else:
            self._push_weights()

    def _push_adapter(self) -> None:
        name = f"recovery-{uuid.uuid4().hex[:12]}"
        body = {"lora_name": name, "lora_path": str(self._transfer.path)}
        # Even if this fails, the former adapter, which has older weights, must not be sampled any more.
        former, self._adapter = self._adapter, name
        try:
            self.server.post("/v1/load_lora_adapter", body, retried=False)
        except NotOffered as error:
            raise EngineError(
                f"{self.server.address} accepts no adapter: start it with --enable-lora and "
                f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment, and let it read {self._transfer.path} "
                f"({error})"
            ) from error
        except ServerError as error:
            if not self._has_loaded(name):
                raise EngineError(f"the adapter cannot be loaded by the server: {error}") from error
        if former is not None:
            self.server.tell("/v1/unload_lora_adapter", {"lora_name": former})

    def _has_loaded(self, adapter: str) -> bool:
        """Return whether the server lists an adapter. A repeated request, after a lost response, is refused."""
        with contextlib.suppress(ServerError):
            listed = self.server.get("/v1/models")
            models = listed.get("data") if isinstance(listed, dict) else None
            return any(isinstance(model, dict) and model.get("id") == adapter for model in models or ())
        return False

    def _push_weights(self) -> None:
        folder, token = self._transfer.path, uuid.uuid4().hex
        self._token = _NONE  # until it is done: the former weights may be replaced in part, or be in the prefix cache
        try:
            self.server.post("/collective_rpc", {"method": "take_folder", "args": [str(folder), token]}, retried=False)
            reset = self.server.post("/reset_prefix_cache", {}, retried=False)
        except NotOffered as error:
            if self.loaded.tuning == "frozen":  # compared with the model afterwards
                self._fixed, self._token = True, ""
                return
            raise EngineError(
                f"{self.server.address} accepts no weights: start it with {_WEIGHT_OPTIONS}, or train an adapter "
                f"(--tuning lora)"
            ) from error
        except ServerError as error:
            raise EngineError(
                f"the weights cannot be loaded by the server: {error} (can it read {folder}, and was it started with "
                f"--worker-extension-cls recovery.rollouts.vllm_worker.FollowedWeights?)"
            ) from error
        if isinstance(reset, dict) and reset.get("success") is False:
            raise EngineError(f"{self.server.address} did not reset its prefix cache: another client is using it")
        self._token = token


def sampler(loaded: Loaded, settings: EngineSettings) -> VllmServerSampler:
    """Return the sampler on the server that the settings name."""
    server = InferenceServer(server_address(settings.name), KEYS, timeout=settings.timeout, patience=settings.wait)
    return VllmServerSampler(loaded, server, folder=settings.folder)


def parse_completion(answer: Any, ends: Iterable[int]) -> Completion:
    """Parse a completion response. Raise ServerError if ids or log-probabilities are missing."""
    try:
        (choice,) = answer["choices"]
        ids = [int(token) for token in choice["token_ids"]]
        logprobs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ServerError(
            "the server's response has no token ids with log-probabilities: use vLLM 0.10.2 or later"
        ) from error
    if len(ids) != len(logprobs):
        raise ServerError(f"the server's response has {len(ids)} tokens and {len(logprobs)} log-probabilities")
    return Completion(ids, logprobs, bool(ids) and ids[-1] in set(ends))
