"""Rollouts by a vLLM server: token ids go out, token ids with log-probabilities come back.

Weights reach the server through a folder that both sides can read. An adapter is loaded under a new name each time, so
that nothing the server has cached belongs to it; full weights need the server's development endpoints and our worker
extension, and its prefix cache is emptied after them.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from peft import PeftModel

from recovery.errors import EngineError, ServerError
from recovery.loading import Loaded, resolve_base
from recovery.rollouts.engine import Completion, Sampling
from recovery.rollouts.follow import seeds
from recovery.server import CONNECTIONS, NotOffered, VllmServer, served_model

KEYS = ("RECOVER_ENGINE_KEY", "VLLM_API_KEY")


class ServerSampler:
    """Samples on a vLLM server. ``folder`` is where weights are put for it: a place both can read.

    A server that was restarted meanwhile is given the weights again. Raises ServerError where it does not answer,
    EngineError where it cannot take over the weights.
    """

    def __init__(self, loaded: Loaded, server: VllmServer, *, folder: Path | None = None) -> None:
        self.loaded, self.server = loaded, server
        self.name = f"vLLM at {server.address}"
        self._root = folder
        self._folder: Path | None = None
        self._base: dict[str, Any] = {}
        self._adapter: str | None = None
        self._pushing = threading.Lock()
        self._pushed = 0.0  # when, by the monotonic clock
        self._mine = threading.local()  # when the server came back to this thread
        server.returned = lambda: setattr(self._mine, "returned", time.monotonic())

    @property
    def window(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return min(self.loaded.max_length, int(self._served().get("max_model_len") or self.loaded.max_length))

    @property
    def model(self) -> str:
        """What the server calls the weights that are sampled from."""
        return self._adapter or str(self._served()["id"])

    def sync(self) -> None:
        """Put the weights where the server reads them, and have it do so."""
        weights = self.loaded.model if isinstance(self.loaded.model, PeftModel) else self.loaded.core
        weights.save_pretrained(self._place(), safe_serialization=True)
        with self._pushing:
            self._push()

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Callable[[int], None] | None = None
    ) -> list[Completion]:
        """One completion a prompt, in order; many are asked at once, since each has a seed of its own."""
        drawn = seeds(sampling, len(prompts))
        found: list[Completion | None] = [None] * len(prompts)
        with ThreadPoolExecutor(min(CONNECTIONS, max(1, len(prompts)))) as pool:
            asked = {
                pool.submit(self._one, prompt, sampling, seed): index
                for index, (prompt, seed) in enumerate(zip(prompts, drawn, strict=True))
            }
            try:
                for done in as_completed(asked):
                    found[asked[done]] = done.result()
                    if progress is not None:
                        progress(1)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [completion for completion in found if completion is not None]

    def close(self) -> None:
        """Take what was put there away, and close the connections."""
        if self._adapter is not None:
            with contextlib.suppress(ServerError):
                self.server.post("/v1/unload_lora_adapter", {"lora_name": self._adapter})
            self._adapter = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        self.server.close()

    def _one(self, prompt: Sequence[int], sampling: Sampling, seed: int) -> Completion:
        body = {
            "prompt": list(prompt),
            "max_tokens": min(sampling.max_new_tokens, self.window - len(prompt)),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p if sampling.temperature > 0 else 1.0,
            # What the served model recommends for itself would silently hold otherwise.
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
        while True:
            self._mine.returned = None
            try:
                answer = self.server.post("/v1/completions", body | {"model": self.model})
            except NotOffered:  # a server that was restarted knows no adapter
                if self._mine.returned is None:
                    raise
            if self._mine.returned is None:
                return parse_completion(answer, self.loaded.chat.end_ids)
            with self._pushing:
                if self._pushed < self._mine.returned:
                    self._push()

    def _served(self) -> dict[str, Any]:
        if not self._base:
            self._base = served_model(self.server)
        return self._base

    def _push(self) -> None:
        """Have the server read what lies in the folder."""
        if isinstance(self.loaded.model, PeftModel):
            self._push_adapter()
        else:
            self._push_weights()
        self._pushed = time.monotonic()

    def _push_adapter(self) -> None:
        name = f"recovery-{uuid.uuid4().hex[:12]}"
        body = {"lora_name": name, "lora_path": str(self._place())}
        try:
            self.server.post("/v1/load_lora_adapter", body, retried=False)
        except NotOffered as error:
            raise EngineError(
                f"{self.server.address} takes no adapter: start it with --enable-lora and "
                f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment, where it can read {self._place()} ({error})"
            ) from error
        except ServerError as error:
            raise EngineError(f"the adapter cannot be handed over: {error}") from error
        former, self._adapter = self._adapter, name
        if former is not None:
            with contextlib.suppress(ServerError):  # it is no longer asked for
                self.server.post("/v1/unload_lora_adapter", {"lora_name": former}, retried=False)

    def _push_weights(self) -> None:
        folder = self._place()
        try:
            self.server.post("/collective_rpc", {"method": "take_folder", "args": [str(folder)]}, retried=False)
            emptied = self.server.post("/reset_prefix_cache", {}, retried=False)
        except NotOffered as error:
            if self._serves_these():
                return
            raise EngineError(
                f"{self.server.address} takes no weights: start it with VLLM_SERVER_DEV_MODE=1 in its environment and "
                f"--worker-extension-cls recovery.rollouts.vllm_worker.FollowedWeights, or train an adapter "
                f"(--tuning lora)"
            ) from error
        except ServerError as error:
            raise EngineError(
                f"the weights cannot be handed over: {error} (does the server read {folder}, and was it started with "
                f"--worker-extension-cls recovery.rollouts.vllm_worker.FollowedWeights?)"
            ) from error
        if isinstance(emptied, dict) and emptied.get("success") is False:
            raise EngineError(f"{self.server.address} did not empty its prefix cache: something else is using it")

    def _serves_these(self) -> bool:
        """Whether the server was started with the very folder a frozen model was loaded from."""
        base, _ = resolve_base(self.loaded.path)
        root = Path(str(self._served().get("root") or ""))
        return self.loaded.tuning == "frozen" and root.is_dir() and root.resolve() == Path(base).resolve()

    def _place(self) -> Path:
        if self._folder is None:
            if self._root is not None:
                self._root.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix="recovery-weights-", dir=self._root))
        return self._folder


def parse_completion(answer: Any, ends: Iterable[int]) -> Completion:
    """A completion as the server tells it. Raises ServerError where ids or log-probabilities are missing."""
    try:
        (choice,) = answer["choices"]
        ids = [int(token) for token in choice["token_ids"]]
        logprobs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ServerError(
            "the server's answer brings no token ids with log-probabilities: it must be vLLM, 0.10.2 or later"
        ) from error
    if len(ids) != len(logprobs):
        raise ServerError(f"the server's answer has {len(ids)} tokens and {len(logprobs)} log-probabilities")
    return Completion(ids, logprobs, bool(ids) and ids[-1] in set(ends))
