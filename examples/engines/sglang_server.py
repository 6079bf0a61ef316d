"""A rollout engine of your own: SGLang's server, over its native HTTP API (0.5.3 or later).

    python examples/engines/sglang_server.py distill --engine sglang+http://127.0.0.1:30000 --tuning full

An engine is a module with a function ``sampler(loaded, settings)`` that returns a
:class:`recovery.rollouts.weight_sync.Sampler`. The last lines register this one and start ``recover``. It follows
SGLang's documentation and was never run against a real server: a start for your own, not a part of Recovery.

Token ids are sent, token ids with log-probabilities come back.

Full weights are transferred through a folder that both sides can read (/update_weights_from_disk), under a new version
each time. The server returns the version with every completion, so that a server that was restarted, or whose weights
another client replaced, is noticed. Log-probabilities are those at the sampling temperature.
"""

from __future__ import annotations

import functools
import sys
import threading
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from peft import PeftModel

from recovery.__main__ import main
from recovery.engines import SERVERS, EngineSettings, server_address
from recovery.errors import EngineError, ServerError
from recovery.inference_server import CONNECTIONS, InferenceServer, NotOffered, ask_all, response_of, window_of
from recovery.models.loaded import Loaded
from recovery.rollouts.engine import Completion, Progress, Sampling, check_completion
from recovery.rollouts.weight_sync import TransferFolder, seeds

KEYS = ("RECOVER_ENGINE_KEY", "SGLANG_API_KEY")
_ATTEMPTS = 3  # transfers for one batch, before another client is assumed to replace the weights


class SglangServerSampler:
    """Samples on an SGLang server. ``folder`` is the transfer folder for weights, which both can read.

    Completions that may come from other weights are sampled again after another transfer. Raises ServerError if the
    server does not respond, EngineError if it cannot load the weights, or if the model has an adapter.
    """

    def __init__(self, loaded: Loaded, server: InferenceServer, *, folder: Path | None = None) -> None:
        self.loaded, self.server = loaded, server
        self._transfer = TransferFolder(folder)
        self._version: str | None = None  # of the weights transferred last
        if isinstance(loaded.model, PeftModel):
            raise EngineError(f"{self.name} gets full weights only: for an adapter use vLLM, or train --tuning full")

    @property
    def name(self) -> str:
        """Name of the engine, for messages."""
        return f"SGLang at {self.server.address}"

    @property
    def window(self) -> int:
        """Maximum length of a prompt with its completion, in tokens."""
        return min(self.loaded.max_length, self._served_length)

    @functools.cached_property
    def _served_length(self) -> int:
        """Maximum length that the server was started with; the model's, if it does not say."""
        try:
            served = self.server.get("/get_server_info")
        except NotOffered:
            served = None
        served = served if isinstance(served, dict) else {}
        limits = (window_of(served.get(name)) for name in ("context_length", "max_total_num_tokens"))
        return min((limit for limit in limits if limit), default=self.loaded.max_length)

    def sync(self) -> None:
        """Save the weights in the transfer folder and let the server load them."""
        self._transfer.save(self.loaded)
        self._push()

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        """Return one completion per prompt, in order; requests run concurrently, each with its own seed."""
        requests = list(zip(prompts, seeds(sampling, len(prompts)), strict=True))

        def ask(one: tuple[Sequence[int], int], given_up: threading.Event) -> tuple[Completion, str]:
            answer = self.server.post("/generate", self._body(*one, sampling), given_up=given_up)
            with response_of(self.server.address):
                completion, version = parse_completion(answer, self.loaded.chat.end_ids)
                return check_completion(completion, sampling.max_new_tokens, self.loaded.vocabulary), version

        def report(found: Sequence[tuple[Completion, str]]) -> None:
            if progress is not None:
                progress(len(found), sum(len(completion.ids) for completion, _ in found))

        for _ in range(_ATTEMPTS):
            found = ask_all(ask, requests, CONNECTIONS, report)
            if all(version == self._version for _, version in found):
                return [completion for completion, _ in found]
            progress = None  # reported already
            self._push()
        raise EngineError(f"{self.name} lost its weights {_ATTEMPTS} times in one batch: another client replaces them")

    def close(self) -> None:
        """Delete the transfer folder and close the connections."""
        self._transfer.close()
        self.server.close()

    def _body(self, prompt: Sequence[int], seed: int, sampling: Sampling) -> dict[str, Any]:
        params = {
            "max_new_tokens": min(sampling.max_new_tokens, self.window - len(prompt)),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p if sampling.temperature > 0 else 1.0,
            # Otherwise the recommendations of the served model would silently apply.
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "sampling_seed": seed % 2**31,
            # ignore_eos would also ignore these.
            "stop_token_ids": sorted(self.loaded.chat.end_ids),
            "no_stop_trim": True,
        }
        return {"input_ids": list(prompt), "sampling_params": params, "return_logprob": True, "logprob_start_len": -1}

    def _push(self) -> None:
        """Let the server load the weights in the transfer folder; it resets its prefix cache."""
        folder, version = self._transfer.path, uuid.uuid4().hex
        self._version = None  # until it is done: the former weights may be replaced in part, or be in the cache
        try:
            info = self.server.get("/get_model_info")
            if not isinstance(info, dict) or info.get("is_generation") is False:
                raise EngineError(f"{self.name} does not serve a model that generates text")
            try:
                body = {"model_path": str(folder), "weight_version": version}
                self.server.post("/update_weights_from_disk", body, retried=False)
            except ServerError as error:
                if isinstance(error, NotOffered):
                    raise
                raise EngineError(f"the server cannot load the weights: {error} (can it read {folder}?)") from error
            self.server.post("/flush_cache", {}, retried=False)
        except NotOffered as error:
            raise EngineError(f"{self.server.address} is not an SGLang server, or an old one: {error}") from error
        self._version = version


def sampler(loaded: Loaded, settings: EngineSettings) -> SglangServerSampler:
    """Return the sampler on the server that the settings name."""
    server = InferenceServer(server_address(settings.name), KEYS, timeout=settings.timeout, patience=settings.wait)
    return SglangServerSampler(loaded, server, folder=settings.folder)


def parse_completion(answer: Any, ends: Iterable[int]) -> tuple[Completion, str]:
    """Parse a response of /generate: the completion, and the version of the weights that it was sampled from.

    Raise ServerError if the request was aborted, or log-probabilities, some of them or the version are missing.
    """
    try:
        about = answer["meta_info"]
        reason = about["finish_reason"] or {}
        if reason.get("type") == "abort":
            raise ServerError(f"the server aborted a request: {' '.join(str(reason.get('message', '')).split())[:200]}")
        pairs = [(int(token), float(logprob)) for logprob, token, *_ in about["output_token_logprobs"]]
        version = str(about["weight_version"])
        sampled = len(answer.get("output_ids") or pairs)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ServerError(
            "the server's response has no log-probabilities with the version of its weights: use SGLang 0.5.3 or later"
        ) from error
    if sampled != len(pairs):
        raise ServerError(f"the server's response has {sampled} tokens and {len(pairs)} log-probabilities")
    ids = [token for token, _ in pairs]
    return Completion(ids, [logprob for _, logprob in pairs], bool(ids) and ids[-1] in set(ends)), version


if __name__ == "__main__":
    SERVERS["sglang"] = "sglang_server"  # this file's folder is on the path of a script
    sys.exit(main())
