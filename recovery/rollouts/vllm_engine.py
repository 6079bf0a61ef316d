"""Rollouts by vLLM in this process: the fast engine, beside the model in training.

It holds a second copy of the weights, in the precision of the products, and a cache of keys and values. A LoRA adapter
is handed over by vLLM's own API, full weights by a worker extension (:mod:`recovery.rollouts.vllm_worker`); both empty
the prefix cache, which would otherwise go on answering with the old weights.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import safe_open

from recovery.errors import EngineError, UsageError
from recovery.loading import Loaded, resolve_base
from recovery.rollouts.engine import Completion, Progress, Sampling
from recovery.rollouts.follow import seeds
from recovery.rollouts.vllm_process import Running, Wanted, engine_for, stop

_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # those vLLM takes
_AT_ONCE = 1024  # prompts between two reports of progress
_FREE_SHARE = 0.4
WEIGHTS_ALLOWED = 1.2  # of the weights, for what is made of them while they are loaded
WORKSPACE = 2 << 30  # bytes for activations
_SPARE = 256  # tokens of blocks that are never all used
_NOT_SHAPE = {"_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache"}
_LIVE = 1  # the number of the adapter in training


class VllmSampler:
    """Samples with vLLM in this process.

    ``memory`` are bytes for the cache of keys and values; where left out, what ``tokens`` tokens of prompts and answers
    take, at most 40% of the ``free`` bytes. ``sleep`` gives memory back between two calls, where the platform can.
    vLLM starts at the first use. Raises UsageError where the memory does not hold one answer.
    """

    name = "vllm"

    def __init__(
        self, loaded: Loaded, *, tokens: int, free: int, memory: int | None = None, sleep: bool = False
    ) -> None:
        self.loaded, self.sleep = loaded, sleep
        each = _bytes_per_token(loaded)
        self.memory = memory or cache_bytes(loaded, tokens, free)
        self._window = min(loaded.max_length, self.memory // each - _SPARE)
        if self._window < min(loaded.max_length, _SPARE):
            raise UsageError(
                f"{self.memory >> 20} MiB for vLLM's cache hold {self.memory // each} tokens, too few for one answer: "
                f"raise --engine-memory, or use --engine transformers"
            )
        self._running: Running | None = None
        self._me = object()
        self._adapter: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def window(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._window

    def sync(self) -> None:
        """Hand the weights in memory over to vLLM. Raises EngineError where it does not start or take them."""
        self._running = engine_for(self._wanted())
        fresh, self._running.user = self._running.user is None, None
        with self._awake() as llm:
            if isinstance(self.loaded.model, PeftModel):
                self._hand_over_adapter(llm)
            elif not (fresh and self.loaded.tuning == "frozen"):  # a frozen model's are those it was loaded from
                self._hand_over_weights(llm)
            llm.reset_prefix_cache()
        self._running.user = self._me

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        """One completion a prompt, in order."""
        from vllm import SamplingParams

        ends = self.loaded.chat.end_ids
        parameters = [
            SamplingParams(
                max_tokens=min(sampling.max_new_tokens, self.window - len(prompt)),
                temperature=sampling.temperature,
                top_p=sampling.top_p if sampling.temperature > 0 else 1.0,
                seed=seed,
                logprobs=0,
                ignore_eos=True,
                stop_token_ids=sorted(ends),
                detokenize=False,
            )
            for prompt, seed in zip(prompts, seeds(sampling, len(prompts)), strict=True)
        ]
        if self._running is None or self._running.user is not self._me:
            self.sync()  # another model was here meanwhile
        found: list[Completion] = []
        with self._awake() as llm:
            for start in range(0, len(prompts), _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts[part]]
                answers = llm.generate(asked, parameters[part], use_tqdm=False, lora_request=self._adapter)
                found += [_completion(answer.outputs[0], ends) for answer in answers]
                if progress is not None:
                    progress(len(answers), sum(len(answer.outputs[0].token_ids) for answer in answers))
        return found

    def close(self) -> None:
        """Leave vLLM to who comes next; where it would stand in the way, stop it."""
        if self._running is not None:
            if self._running.user is self._me and not self._running.started_for.stays:
                stop()
            self._running = self._adapter = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _wanted(self) -> Wanted:
        base, _ = resolve_base(self.loaded.path)
        rank, targets = 0, tuple[str, ...]()
        if isinstance(self.loaded.model, PeftModel):
            settings = self.loaded.model.peft_config["default"]
            rank = next((rank for rank in _RANKS if rank >= settings.r), settings.r)
            targets = _adapted(self.loaded)
        return Wanted(
            model=base,
            shape=_shape(self.loaded),
            dtype=str(self.loaded.precision).removeprefix("torch."),
            window=self.window,
            memory=self.memory,
            share=self._share(),
            on_cpu=self.loaded.device.type == "cpu",
            sleep=self.sleep,
            rank=rank,
            targets=targets,
        )

    def _share(self) -> float:
        """What vLLM may take of a device, as it wants to be told: it refuses to start where less than that is free."""
        if self.loaded.device.type != "cuda":
            return 0.5  # on a CPU the cache's own size is what counts
        weights = sum(p.numel() for p in self.loaded.core.parameters()) * self.loaded.precision.itemsize
        needed = device_bytes(weights, self.memory)
        return float(min(0.95, needed / torch.cuda.mem_get_info(self.loaded.device)[1]))

    def _hand_over_adapter(self, llm: Any) -> None:
        from vllm.lora.request import LoRARequest

        folder = self._place()
        self.loaded.model.save_pretrained(folder, safe_serialization=True)
        self._adapter = LoRARequest("live", _LIVE, str(folder), load_inplace=True)
        if not llm.llm_engine.add_lora(self._adapter):
            raise EngineError("vLLM did not take over the adapter: use --engine transformers")
        # Named again with a request, it is not read from the disk again.
        self._adapter = LoRARequest("live", _LIVE, str(folder))

    def _hand_over_weights(self, llm: Any) -> None:
        if self._named_as_saved():
            tensors = [(name, p.detach()) for name, p in self.loaded.core.named_parameters()]
            llm.collective_rpc("take_tensors", args=(tensors,))
            return
        folder = self._place()
        self.loaded.core.save_pretrained(folder, safe_serialization=True)
        llm.collective_rpc("take_folder", args=(str(folder),))

    def _named_as_saved(self) -> bool:
        """Whether the model in memory calls its weights as its files do: some are fused when they are loaded."""
        base, _ = resolve_base(self.loaded.path)
        saved: set[str] = set()
        for file in Path(base).glob("*.safetensors"):
            with safe_open(file, "pt") as tensors:
                saved |= set(tensors.keys())
        return {name for name, _ in self.loaded.core.named_parameters()} <= saved

    def _place(self) -> Path:
        """A folder for what is handed over, in memory where there is such a one."""
        if self._folder is None:
            memory = Path("/dev/shm")
            room = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
            self._folder = tempfile.TemporaryDirectory(prefix="recovery-weights-", dir=room)
        return Path(self._folder.name)

    @contextlib.contextmanager
    def _awake(self) -> Iterator[Any]:
        """vLLM with its memory; afterwards without, where it is to sleep.

        A failure stops it for good: half of the answers may still be on their way.
        """
        assert self._running is not None
        llm = self._running.llm
        if self.sleep:
            llm.wake_up()
        try:
            yield llm
        except BaseException:
            self._running = None
            stop()
            raise
        if self.sleep:
            llm.sleep(level=1)


def _completion(said: Any, ends: frozenset[int]) -> Completion:
    ids = list(said.token_ids)
    logprobs = [float(entry[token].logprob) for token, entry in zip(ids, said.logprobs, strict=True)]
    return Completion(ids, logprobs, bool(ids) and ids[-1] in ends)


def _shape(loaded: Loaded) -> str:
    """The configuration without what says only where the weights came from."""
    told = {k: v for k, v in loaded.core.config.to_dict().items() if k not in _NOT_SHAPE}
    return json.dumps(told, sort_keys=True, default=str)


def _adapted(loaded: Loaded) -> tuple[str, ...]:
    """The kinds of layers with an adapter, by their last name: by a whole path vLLM would pass fused layers over."""
    names = (name.partition(".lora_")[0] for name, _ in loaded.model.named_parameters() if ".lora_" in name)
    return tuple(sorted({name.rpartition(".")[2] for name in names}))


def cache_bytes(loaded: Loaded, tokens: int, free: int | None = None) -> int:
    """vLLM's cache of keys and values: of ``tokens`` tokens, or of the longest text that the model reads if that is
    longer; at most 40% of the ``free`` bytes, where they are known.
    """
    wanted = (max(tokens, loaded.max_length) + _SPARE) * _bytes_per_token(loaded)
    return wanted if free is None else min(wanted, int(_FREE_SHARE * free))


def device_bytes(weights: int, cache: int) -> int:
    """What vLLM wants free of a device to start, with so many bytes of weights and of keys and values."""
    return cache + round(WEIGHTS_ALLOWED * weights) + WORKSPACE


def _bytes_per_token(loaded: Loaded) -> int:
    """What the keys and values of one token take in all layers together."""
    config = loaded.core.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * int(config.num_hidden_layers) * int(heads) * int(width) * loaded.precision.itemsize
