"""Rollouts by vLLM in this process: the fast engine, beside the model in training.

It holds a second copy of the weights, in the precision of the products, and a cache of keys and values. A LoRA adapter
is handed over by vLLM's own API, full weights by a worker extension (:mod:`recovery.rollouts.vllm_worker`); both empty
the prefix cache, which would otherwise go on answering with the old weights.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import safe_open

from recovery.errors import EngineError, UsageError
from recovery.loading import Loaded, resolve_base
from recovery.rollouts.engine import Completion, Sampling
from recovery.rollouts.follow import seeds

# Read by vLLM when it is imported. One process, so that weights are handed over without a copy; no threads pinned to
# cores, since training goes on in the same process; nothing sent anywhere.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # those vLLM takes
_SEQUENCES = 256
_AT_ONCE = 1024  # prompts between two reports of progress
_FREE_SHARE = 0.4
_WORKSPACE = 2 << 30  # bytes for activations
_SPARE = 256  # tokens of blocks that are never all used
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
        tokens = max(tokens, loaded.max_length) + _SPARE
        self.memory = memory or min(tokens * each, int(_FREE_SHARE * free))
        self._window = min(loaded.max_length, self.memory // each - _SPARE)
        if self._window < min(loaded.max_length, _SPARE):
            raise UsageError(
                f"{self.memory >> 20} MiB for vLLM's cache hold {self.memory // each} tokens, too few for one answer: "
                f"raise --engine-memory, or use --engine transformers"
            )
        self._llm: Any = None
        self._adapter: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def window(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._window

    def sync(self) -> None:
        """Hand the weights in memory over to vLLM. Raises EngineError where it does not start or take them."""
        started = self._llm is None
        if started:
            self._llm = self._start()
        with self._awake():
            if isinstance(self.loaded.model, PeftModel):
                self._hand_over_adapter()
            elif not (started and self.loaded.tuning == "frozen"):  # a frozen model's are those it was loaded from
                self._hand_over_weights()
            self._llm.reset_prefix_cache()

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Callable[[int], None] | None = None
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
        found: list[Completion] = []
        with self._awake():
            for start in range(0, len(prompts), _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts[part]]
                answers = self._llm.generate(asked, parameters[part], use_tqdm=False, lora_request=self._adapter)
                found += [_completion(answer.outputs[0], ends) for answer in answers]
                if progress is not None:
                    progress(len(answers))
        return found

    def close(self) -> None:
        """Stop vLLM and give its memory back."""
        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown()
            self._llm = self._adapter = None
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> Any:
        vllm = imported()
        if self.sleep and not vllm.platforms.current_platform.is_sleep_mode_available():
            raise UsageError("--engine-sleep gives a GPU's memory back, and vLLM has none here: leave it out")
        base, _ = resolve_base(self.loaded.path)
        adapter = {}
        if isinstance(self.loaded.model, PeftModel):
            settings = self.loaded.model.peft_config["default"]
            adapter = {
                "enable_lora": True,
                "max_lora_rank": next((rank for rank in _RANKS if rank >= settings.r), settings.r),
                # Told which layers have one, vLLM leaves the head alone, which would fail beside log-probabilities.
                "lora_target_modules": _adapted(self.loaded),
            }
        threads = torch.set_num_threads
        try:
            # What vLLM seeds is its own; what the stage seeded stays as it was.
            with torch.random.fork_rng():
                return vllm.LLM(
                    model=base,
                    dtype=str(self.loaded.precision).removeprefix("torch."),
                    max_model_len=self.window,
                    max_num_seqs=_SEQUENCES,
                    kv_cache_memory_bytes=self.memory,
                    gpu_memory_utilization=self._share(),
                    logprobs_mode="processed_logprobs",
                    generation_config="vllm",  # the model's own top-k and penalties are not ours
                    enforce_eager=self.loaded.device.type == "cpu",
                    enable_sleep_mode=self.sleep,
                    worker_extension_cls="recovery.rollouts.vllm_worker.FollowedWeights",
                    use_tqdm_on_load=False,
                    disable_log_stats=True,
                    **adapter,
                )
        except (ValueError, RuntimeError, ImportError, OSError) as error:
            told = " ".join(str(error).split())[:300] or type(error).__name__
            raise EngineError(
                f"vLLM does not start with {base}: {told}; --engine transformers runs everywhere"
            ) from error
        finally:
            torch.set_num_threads = threads  # vLLM's CPU worker replaces it for the whole process

    def _share(self) -> float:
        """What vLLM may take of a device, as it wants to be told: it refuses to start where less than that is free."""
        if self.loaded.device.type != "cuda":
            return 0.5  # on a CPU the cache's own size is what counts
        weights = sum(p.numel() for p in self.loaded.core.parameters()) * self.loaded.precision.itemsize
        needed = self.memory + 1.2 * weights + _WORKSPACE
        return float(min(0.95, needed / torch.cuda.mem_get_info(self.loaded.device)[1]))

    def _hand_over_adapter(self) -> None:
        from vllm.lora.request import LoRARequest

        folder = self._place()
        self.loaded.model.save_pretrained(folder, safe_serialization=True)
        self._adapter = LoRARequest("live", _LIVE, str(folder), load_inplace=True)
        if not self._llm.llm_engine.add_lora(self._adapter):
            raise EngineError("vLLM did not take over the adapter: use --engine transformers")
        # Named again with a request, it is not read from the disk again.
        self._adapter = LoRARequest("live", _LIVE, str(folder))

    def _hand_over_weights(self) -> None:
        if self._named_as_saved():
            tensors = [(name, p.detach()) for name, p in self.loaded.core.named_parameters()]
            self._llm.collective_rpc("take_tensors", args=(tensors,))
            return
        folder = self._place()
        self.loaded.core.save_pretrained(folder, safe_serialization=True)
        self._llm.collective_rpc("take_folder", args=(str(folder),))

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
    def _awake(self) -> Iterator[None]:
        """vLLM with its memory; afterwards without, where it is to sleep."""
        if not self.sleep:
            yield
            return
        self._llm.wake_up()
        try:
            yield
        finally:
            self._llm.sleep(level=1)


def imported() -> Any:
    """The vllm package, its environment settled first. Raises EngineError, in one line, where it cannot be used."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if importlib.util.find_spec("vllm") is None:
        raise EngineError(
            "--engine vllm needs vLLM, which is not installed: pip install 'recovery[vllm]', or take --engine "
            "transformers"
        )
    try:
        import vllm
        import vllm.entrypoints.llm  # where a build that does not fit this machine fails
        import vllm.platforms

        return vllm
    except Exception as error:  # a build for another machine fails in many ways
        told = " ".join(str(error).split())[:200] or type(error).__name__
        raise EngineError(
            f"vLLM is installed and does not load ({told}): install the build for this machine "
            f"(pip install 'recovery[vllm]' for a GPU), or use --engine transformers"
        ) from error


def _completion(said: Any, ends: frozenset[int]) -> Completion:
    ids = list(said.token_ids)
    logprobs = [float(entry[token].logprob) for token, entry in zip(ids, said.logprobs, strict=True)]
    return Completion(ids, logprobs, bool(ids) and ids[-1] in ends)


def _adapted(loaded: Loaded) -> list[str]:
    """The kinds of layers with an adapter, by their last name: by a whole path vLLM would pass fused layers over."""
    names = (name.partition(".lora_")[0] for name, _ in loaded.model.named_parameters() if ".lora_" in name)
    return sorted({name.rpartition(".")[2] for name in names})


def _bytes_per_token(loaded: Loaded) -> int:
    """What the keys and values of one token take in all layers together."""
    config = loaded.core.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * int(config.num_hidden_layers) * int(heads) * int(width) * loaded.precision.itemsize
