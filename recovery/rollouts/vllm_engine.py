"""Rollouts with vLLM in this process, in addition to the model in training.

vLLM holds a second copy of the weights, in the precision of the products, and a KV cache. A LoRA adapter of
linear layers is transferred by vLLM's own API, full weights, also of a model with an adapter of stacked experts, by a
worker extension (:mod:`recovery.rollouts.vllm_worker`); both reset the prefix cache, which would otherwise contain
results of the old weights.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from recovery.engines import SPARE, EngineSettings, cache_bytes, device_bytes
from recovery.errors import EngineError, UsageError
from recovery.models.base_folder import resolve_base
from recovery.models.checkpoints import StoredWeights
from recovery.models.loaded import Loaded
from recovery.rollouts.engine import Completion, Progress, Sampling
from recovery.rollouts.weight_sync import seeds

# The vLLM engine of this process: started at its first use and reused by later stages. Starting takes seconds on a
# CPU and a minute on a GPU, and vLLM retains tens of megabytes of each engine it started. An engine is therefore kept
# between stages if it does not occupy GPU memory: on a CPU, or asleep.

# Read by vLLM when it is imported: a single process, so that weights are transferred without a copy; no threads pinned
# to cores, since training runs in the same process; no usage statistics.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_SEQUENCES = 256


@dataclass(frozen=True)
class Wanted:
    """Requirements of an engine.

    ``model`` is the folder it loads; full weights of the same ``shape`` (a configuration as JSON) can be transferred
    later. ``window`` is the maximum length of a prompt with its completion, ``memory`` the size of the KV cache in
    bytes, ``share`` the fraction of a GPU for vLLM. ``rank`` is the LoRA rank, 0 without an adapter; ``targets`` are
    the adapted layers.
    """

    model: str
    shape: str
    dtype: str
    window: int
    memory: int
    share: float
    on_cpu: bool
    sleep: bool
    rank: int = 0
    targets: tuple[str, ...] = ()

    @property
    def stays(self) -> bool:
        """Whether the engine may be kept after its stage."""
        return self.on_cpu or self.sleep

    def fits(self, other: Wanted) -> bool:
        """Return whether an engine started for this also meets the ``other`` requirements."""
        adjusted = replace(other, window=self.window, memory=self.memory, share=self.share)
        if not self.rank:  # full weights are transferred, whatever model was loaded
            adjusted = replace(adjusted, model=self.model)
        return adjusted == self and self.window >= other.window and self.memory >= other.memory


@dataclass
class Running:
    """A running engine; ``files`` are to be deleted after it, ``user`` identifies the sampler whose weights it holds
    (None before the first transfer).
    """

    llm: Any
    started_for: Wanted
    files: list[Path]
    user: object | None = None


_running: Running | None = None


def engine_for(wanted: Wanted) -> Running:
    """Return the engine of this process, replaced if it does not fit. Raise EngineError if it does not start."""
    global _running
    if _running is None or not _running.started_for.fits(wanted):
        stop()
        llm = _start(wanted)
        _running = Running(llm, wanted, [Path(file) for file in llm.collective_rpc("meeting_file") if file])
    return _running


def stop() -> None:
    """Stop the engine of this process, if there is one, and free its memory."""
    global _running
    if _running is None:
        return
    _running.llm.llm_engine.engine_core.shutdown()
    for file in _running.files:
        file.unlink(missing_ok=True)
    _running.llm = _running.user = None  # samplers that still refer to it see that it is gone
    _running = None
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


atexit.register(stop)


def imported() -> Any:
    """Set vLLM's environment, import it and return the package. Raise EngineError if it cannot be used."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if importlib.util.find_spec("vllm") is None:
        raise EngineError(
            "--engine vllm needs vLLM, which is not installed: pip install 'recovery[vllm]', or use --engine "
            "transformers"
        )
    try:
        import vllm
        import vllm.entrypoints.llm  # fails here if the build does not fit this machine
        import vllm.platforms

        return vllm
    except Exception as error:  # a build for another machine fails in many ways
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise EngineError(
            f"vLLM is installed but does not load ({reason}): install the build for this machine "
            f"(pip install 'recovery[vllm]' for a GPU), or use --engine transformers"
        ) from error


def _start(wanted: Wanted) -> Any:
    vllm = imported()
    if wanted.sleep and not vllm.platforms.current_platform.is_sleep_mode_available():
        raise UsageError("--engine-sleep releases GPU memory, and vLLM uses no GPU here: omit it")
    adapter = {}
    if wanted.rank:
        # With explicit target layers vLLM does not adapt the head, which would fail together with log-probabilities.
        adapter = {
            "enable_lora": True,
            "max_lora_rank": wanted.rank,
            "lora_target_modules": list(wanted.targets),
        }
    threads = torch.set_num_threads
    try:
        # vLLM sets global seeds: the stage's random state must not change.
        with torch.random.fork_rng():
            return vllm.LLM(
                model=wanted.model,
                dtype=wanted.dtype,
                max_model_len=wanted.window,
                max_num_seqs=_SEQUENCES,
                kv_cache_memory_bytes=wanted.memory,
                gpu_memory_utilization=wanted.share,
                logprobs_mode="processed_logprobs",
                generation_config="vllm",  # not the model's own top-k and penalties
                enforce_eager=wanted.on_cpu,
                # On a CPU vLLM 0.32 cannot undo a seeded draw, which chunked prefill needs.
                enable_chunked_prefill=not wanted.on_cpu,
                enable_sleep_mode=wanted.sleep,
                worker_extension_cls="recovery.rollouts.vllm_worker.FollowedWeights",
                use_tqdm_on_load=False,
                disable_log_stats=True,
                **adapter,
            )
    except (ValueError, RuntimeError, ImportError, OSError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise EngineError(
            f"vLLM does not start with {wanted.model}: {reason}; --engine transformers works on any platform"
        ) from error
    finally:
        torch.set_num_threads = threads  # vLLM's CPU worker replaces it for the whole process


_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the ranks that vLLM supports
_AT_ONCE = 1024  # prompts between two progress reports
_NOT_SHAPE = {"_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache"}
_LIVE = 1  # id of the adapter in training


class VllmSampler:
    """Samples with vLLM in this process.

    ``memory`` is the size of the KV cache in bytes; by default that of ``tokens`` prompt and completion tokens, at most
    40% of the ``free`` bytes. ``sleep`` releases memory between calls, if the platform supports it. ``window`` is the
    largest number of tokens of a prompt with its completion. vLLM starts at the first use. Raises UsageError if the
    memory does not hold one completion.
    """

    name = "vllm"

    def __init__(
        self, loaded: Loaded, *, tokens: int, free: int, memory: int | None = None, sleep: bool = False
    ) -> None:
        self.loaded, self.sleep = loaded, sleep
        # The bytes of the keys and values of one token in all layers.
        config = loaded.core.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        token_bytes = 2 * int(config.num_hidden_layers) * int(heads) * int(width) * loaded.precision.itemsize
        self.memory = memory or cache_bytes(token_bytes, tokens, loaded.max_length, free)
        self.window = min(loaded.max_length, self.memory // token_bytes - SPARE)
        if self.window < min(loaded.max_length, SPARE):
            raise UsageError(
                f"{self.memory >> 20} MiB of KV cache hold {self.memory // token_bytes} tokens, too few for a "
                f"completion: raise --engine-memory, or use --engine transformers"
            )
        self._running: Running | None = None
        self._me = object()
        self._adapter: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def sync(self) -> None:
        """Transfer the weights in memory to vLLM. Raise EngineError if it does not start or accept them."""
        self._running = engine_for(self._requirements())
        fresh, self._running.user = self._running.user is None, None
        with self._awake() as llm:
            if self.loaded.adapts_layers:
                self._send_adapter(llm)
            elif not (fresh and self.loaded.tuning == "frozen" and self.loaded.core is self.loaded.model):
                self._send_weights(llm)  # a frozen model without an adapter has the weights it was loaded from
            llm.reset_prefix_cache()
        self._running.user = self._me

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        """Return one completion per prompt, in order."""
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
            self.sync()  # another model has used the engine
        completions: list[Completion] = []
        with self._awake() as llm:
            for start in range(0, len(prompts), _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts[part]]
                results = llm.generate(requests, parameters[part], use_tqdm=False, lora_request=self._adapter)
                completions += [_completion(result.outputs[0], ends) for result in results]
                if progress is not None:
                    progress(len(results), sum(len(result.outputs[0].token_ids) for result in results))
        return completions

    def close(self) -> None:
        """Release vLLM for the next user; stop it if it would occupy memory that the next stage needs."""
        if self._running is not None:
            if self._running.user is self._me and not self._running.started_for.stays:
                stop()
            self._running = self._adapter = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _requirements(self) -> Wanted:
        base, _ = resolve_base(self.loaded.path)
        rank, targets = 0, tuple[str, ...]()
        if self.loaded.adapts_layers:
            settings = self.loaded.model.peft_config["default"]
            rank = next((rank for rank in _RANKS if rank >= settings.r), settings.r)
            targets = self.loaded.adapted  # last names: with full paths vLLM would skip fused layers
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
        """Return the fraction of the device for vLLM, which refuses to start if less is free."""
        if self.loaded.device.type != "cuda":
            return 0.5  # on a CPU only the size of the KV cache counts
        weights = sum(p.numel() for p in self.loaded.core.parameters()) * self.loaded.precision.itemsize
        needed = device_bytes(weights, self.memory)
        return float(min(0.95, needed / torch.cuda.mem_get_info(self.loaded.device)[1]))

    def _send_adapter(self, llm: Any) -> None:
        from vllm.lora.request import LoRARequest

        folder = self._transfer_folder()
        self.loaded.model.save_pretrained(folder, safe_serialization=True)
        self._adapter = LoRARequest("live", _LIVE, str(folder), load_inplace=True)
        if not llm.llm_engine.add_lora(self._adapter):
            raise EngineError("vLLM did not accept the adapter: use --engine transformers")
        # Without load_inplace it is not read from the disk again at each request.
        self._adapter = LoRARequest("live", _LIVE, str(folder))

    def _send_weights(self, llm: Any) -> None:
        if self.loaded.core is self.loaded.model and self._named_as_saved():
            tensors = [(name, p.detach()) for name, p in self.loaded.core.named_parameters()]
            llm.collective_rpc("take_tensors", args=(tensors,))
            return
        folder = self._transfer_folder()
        self.loaded.merged_weights().save_pretrained(folder, safe_serialization=True)
        llm.collective_rpc("take_folder", args=(str(folder),))

    def _named_as_saved(self) -> bool:
        """Return whether the parameter names in memory are those of the files: some models fuse weights on loading."""
        base, _ = resolve_base(self.loaded.path)
        return {name for name, _ in self.loaded.core.named_parameters()} <= StoredWeights(Path(base)).keys()

    def _transfer_folder(self) -> Path:
        """Return a temporary folder for the transfer, in memory (/dev/shm) if possible."""
        if self._folder is None:
            memory = Path("/dev/shm")
            room = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
            self._folder = tempfile.TemporaryDirectory(prefix="recovery-weights-", dir=room)
        return Path(self._folder.name)

    @contextlib.contextmanager
    def _awake(self) -> Iterator[Any]:
        """Wake vLLM up for the block, then put it to sleep if configured.

        A failure stops vLLM: some requests may still be running.
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


def sampler(loaded: Loaded, settings: EngineSettings) -> VllmSampler:
    """Return the sampler that the settings describe."""
    return VllmSampler(loaded, tokens=settings.tokens, free=settings.free, memory=settings.memory, sleep=settings.sleep)


def _completion(output: Any, ends: frozenset[int]) -> Completion:
    ids = list(output.token_ids)
    logprobs = [float(entry[token].logprob) for token, entry in zip(ids, output.logprobs, strict=True)]
    return Completion(ids, logprobs, bool(ids) and ids[-1] in ends)


def _shape(loaded: Loaded) -> str:
    """Return the model configuration as JSON, without entries about the origin of the weights."""
    shape = {k: v for k, v in loaded.core.config.to_dict().items() if k not in _NOT_SHAPE}
    return json.dumps(shape, sort_keys=True, default=str)
