"""Rollouts on a vLLM server: sends token ids, receives token ids with log-probabilities.

Weights are transferred through a folder that both sides can read. An adapter is loaded under a new name each time, so
that the server's caches never match it; full weights need the server's development endpoints and the worker extension
:mod:`recovery.rollouts.vllm_worker`, and the prefix cache is reset after each transfer.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Sequence
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
    response_of,
    served_model,
    window_of,
)
from recovery.models.loading import Loaded
from recovery.rollouts.engine import Completion, Progress, Sampling, check_completion
from recovery.rollouts.transfer_folder import TransferFolder
from recovery.rollouts.weight_sync import seeds

KEYS = ("RECOVER_ENGINE_KEY", "VLLM_API_KEY")
_ATTEMPTS = 3  # transfers for one batch, before another client is assumed to replace the weights
_WEIGHT_OPTIONS = (
    "VLLM_SERVER_DEV_MODE=1 in its environment and --worker-extension-cls recovery.rollouts.vllm_worker.FollowedWeights"
)


class VllmServerSampler:
    """Samples on a vLLM server. ``folder`` is the transfer folder for weights, which both can read.

    A server that was restarted receives the weights again, and completions that may come from other weights are sampled
    again. A server that accepts no weights is used with those it was started with, for a frozen model only. Raises
    ServerError if it does not respond, EngineError if it cannot load the weights.
    """

    def __init__(self, loaded: Loaded, server: InferenceServer, *, folder: Path | None = None) -> None:
        self.loaded, self.server = loaded, server
        self._transfer = TransferFolder(folder)
        self._base: dict[str, Any] = {}
        self._adapter: str | None = None
        self._token = ""  # identifies the weights transferred last
        self._fixed = False  # the server accepts no weights
        self._pushing = threading.Lock()

    @property
    def name(self) -> str:
        """Name of the engine, for messages."""
        note = f", which takes no weights ({_WEIGHT_OPTIONS} lets it)" if self._fixed else ""
        return f"vLLM at {self.server.address}{note}"

    @property
    def window(self) -> int:
        """Maximum length of a prompt with its completion, in tokens."""
        return min(self.loaded.max_length, window_of(self._served().get("max_model_len")) or self.loaded.max_length)

    @property
    def model(self) -> str:
        """The server's name of the sampled weights."""
        return self._adapter or str(self._served()["id"])

    def sync(self) -> None:
        """Save the weights in the transfer folder and let the server load them."""
        self._transfer.save(self.loaded)
        with self._pushing:
            self._push()

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        """Return one completion per prompt, in order; requests run concurrently, each with its own seed."""
        requests = list(zip(prompts, seeds(sampling, len(prompts)), strict=True))

        def ask(one: tuple[Sequence[int], int], given_up: threading.Event) -> Completion:
            return self._one(*one, sampling, given_up)

        def report(completions: Sequence[Completion]) -> None:
            if progress is not None:
                progress(len(completions), sum(len(completion.ids) for completion in completions))

        for _ in range(_ATTEMPTS):
            found = ask_all(ask, requests, CONNECTIONS, report)
            if self._holds_weights():
                return found
            progress = None  # reported already
        raise EngineError(f"{self.name} lost its weights {_ATTEMPTS} times in one batch: another client replaces them")

    def close(self) -> None:
        """Unload the adapter, delete the transfer folder, and close the connections."""
        if self._adapter is not None:
            self.server.tell("/v1/unload_lora_adapter", {"lora_name": self._adapter})
            self._adapter = None
        self._transfer.close()
        self.server.close()

    def _one(self, prompt: Sequence[int], seed: int, sampling: Sampling, given_up: threading.Event) -> Completion:
        body = {
            "prompt": list(prompt),
            "max_tokens": min(sampling.max_new_tokens, self.window - len(prompt)),
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
            "stop_token_ids": sorted(self.loaded.chat.end_ids),
        }
        model = self.model
        try:
            answer = self.server.post("/v1/completions", body | {"model": model}, given_up=given_up)
        except NotOffered:  # a restarted server has no adapter
            if self._adapter is None:
                raise
            with self._pushing:
                if self._adapter == model:
                    self._push()
            model = self.model
            answer = self.server.post("/v1/completions", body | {"model": model}, given_up=given_up)
        with response_of(self.server.address):
            check_model(answer, model)
            found = parse_completion(answer, self.loaded.chat.end_ids)
            return check_completion(found, sampling.max_new_tokens, self.loaded.head.vocabulary)

    def _holds_weights(self) -> bool:
        """Return whether the server still has the weights transferred last; otherwise transfer them again.

        Not needed for an adapter: requests with its unique name fail if it is missing.
        """
        if not self._token:
            return True
        response = self.server.post("/collective_rpc", {"method": "held"}, retried=False)
        held = response.get("results") if isinstance(response, dict) else None
        if isinstance(held, list) and held and all(token == self._token for token in held):
            return True
        with self._pushing:
            self._push()
        return False

    def _served(self) -> dict[str, Any]:
        if not self._base:
            self._base = served_model(self.server)
        return self._base

    def _push(self) -> None:
        """Let the server load the weights in the transfer folder."""
        if self.loaded.adapts_layers:
            self._push_adapter()
        else:
            self._push_weights()

    def _push_adapter(self) -> None:
        name = f"recovery-{uuid.uuid4().hex[:12]}"
        body = {"lora_name": name, "lora_path": str(self._transfer.path)}
        try:
            self.server.post("/v1/load_lora_adapter", body, retried=False)
        except NotOffered as error:
            raise EngineError(
                f"{self.server.address} accepts no adapter: start it with --enable-lora and "
                f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment, and let it read {self._transfer.path} "
                f"({error})"
            ) from error
        except ServerError as error:
            raise EngineError(f"the adapter cannot be loaded by the server: {error}") from error
        former, self._adapter = self._adapter, name
        if former is not None:
            self.server.tell("/v1/unload_lora_adapter", {"lora_name": former})

    def _push_weights(self) -> None:
        folder, token = self._transfer.path, uuid.uuid4().hex
        try:
            self.server.post("/collective_rpc", {"method": "take_folder", "args": [str(folder), token]}, retried=False)
            reset = self.server.post("/reset_prefix_cache", {}, retried=False)
        except NotOffered as error:
            if self.loaded.tuning == "frozen":  # compared with the model afterwards
                self._fixed = True
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
