"""Rollouts by a vLLM server: token ids go out, token ids with log-probabilities come back.

Weights reach the server through a folder that both sides can read. An adapter is loaded under a new name each time, so
that nothing the server has cached belongs to it; full weights need the server's development endpoints and our worker
extension, and its prefix cache is emptied after them.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from peft import PeftModel

from recovery.errors import EngineError, ServerError
from recovery.loading import Loaded
from recovery.rollouts.engine import Completion, Progress, Sampling
from recovery.rollouts.follow import seeds
from recovery.server import CONNECTIONS, NotOffered, VllmServer, ask_all, served_model

KEYS = ("RECOVER_ENGINE_KEY", "VLLM_API_KEY")
_TAKES_WEIGHTS = (
    "VLLM_SERVER_DEV_MODE=1 in its environment and --worker-extension-cls recovery.rollouts.vllm_worker.FollowedWeights"
)


class ServerSampler:
    """Samples on a vLLM server. ``folder`` is where weights are put for it: a place both can read.

    A server that was restarted meanwhile is given the weights again, and asked again for what it may have answered
    with others. One that takes no weights samples from those it was started with, for a frozen model only. Raises
    ServerError where it does not answer, EngineError where it cannot take over the weights.
    """

    def __init__(self, loaded: Loaded, server: VllmServer, *, folder: Path | None = None) -> None:
        self.loaded, self.server = loaded, server
        self._root = folder
        self._folder: Path | None = None
        self._base: dict[str, Any] = {}
        self._adapter: str | None = None
        self._token = ""  # names the weights that were handed over last
        self._fixed = False  # the server takes no weights
        self._pushing = threading.Lock()

    @property
    def name(self) -> str:
        """What answers, for messages."""
        told = f", which takes no weights ({_TAKES_WEIGHTS} lets it)" if self._fixed else ""
        return f"vLLM at {self.server.address}{told}"

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
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        """One completion a prompt, in order; many are asked at once, since each has a seed of its own."""
        asked = list(zip(prompts, seeds(sampling, len(prompts)), strict=True))

        def ask(one: tuple[Sequence[int], int], given_up: threading.Event) -> Completion:
            return self._one(*one, sampling, given_up)

        def heard(answers: Sequence[Completion]) -> None:
            if progress is not None:
                progress(len(answers), sum(len(answer.ids) for answer in answers))

        while True:
            found = ask_all(ask, asked, CONNECTIONS, heard)
            if self._hold():
                return found
            progress = None  # heard already

    def close(self) -> None:
        """Take what was put there away, and close the connections."""
        if self._adapter is not None:
            self.server.tell("/v1/unload_lora_adapter", {"lora_name": self._adapter})
            self._adapter = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        self.server.close()

    def _one(self, prompt: Sequence[int], seed: int, sampling: Sampling, given_up: threading.Event) -> Completion:
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
        model = self.model
        try:
            answer = self.server.post("/v1/completions", body | {"model": model}, given_up=given_up)
        except NotOffered:  # a server that was restarted knows no adapter
            if self._adapter is None:
                raise
            with self._pushing:
                if self._adapter == model:
                    self._push()
            answer = self.server.post("/v1/completions", body | {"model": self.model}, given_up=given_up)
        return parse_completion(answer, self.loaded.chat.end_ids)

    def _hold(self) -> bool:
        """Whether the server still holds the weights that were handed over last; it is given them where not.

        An adapter has a name of its own, and is missed when it is asked for.
        """
        if not self._token:
            return True
        told = self.server.post("/collective_rpc", {"method": "held"}, retried=False)
        held = told.get("results") if isinstance(told, dict) else None
        if held and all(token == self._token for token in held):
            return True
        with self._pushing:
            self._push()
        return False

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
            self.server.tell("/v1/unload_lora_adapter", {"lora_name": former})

    def _push_weights(self) -> None:
        folder, token = self._place(), uuid.uuid4().hex
        try:
            self.server.post("/collective_rpc", {"method": "take_folder", "args": [str(folder), token]}, retried=False)
            emptied = self.server.post("/reset_prefix_cache", {}, retried=False)
        except NotOffered as error:
            if self.loaded.tuning == "frozen":  # compared with the model right afterwards
                self._fixed = True
                return
            raise EngineError(
                f"{self.server.address} takes no weights: start it with {_TAKES_WEIGHTS}, or train an adapter "
                f"(--tuning lora)"
            ) from error
        except ServerError as error:
            raise EngineError(
                f"the weights cannot be handed over: {error} (does the server read {folder}, and was it started with "
                f"--worker-extension-cls recovery.rollouts.vllm_worker.FollowedWeights?)"
            ) from error
        if isinstance(emptied, dict) and emptied.get("success") is False:
            raise EngineError(f"{self.server.address} did not empty its prefix cache: something else is using it")
        self._token = token

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
