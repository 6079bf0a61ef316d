"""The vLLM engine of this process: started at its first use and reused by later stages.

Starting takes seconds on a CPU and a minute on a GPU, and vLLM retains tens of megabytes of each engine it started. An
engine is therefore kept between stages if it does not occupy GPU memory: on a CPU, or asleep.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from recovery.errors import EngineError, UsageError

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
        alike = replace(other, window=self.window, memory=self.memory, share=self.share)
        if not self.rank:  # full weights are transferred, whatever model was loaded
            alike = replace(alike, model=self.model)
        return alike == self and self.window >= other.window and self.memory >= other.memory


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
