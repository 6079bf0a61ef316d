"""The vLLM engine of this process: started when it is first wanted, used again by whoever comes next.

Starting takes seconds on a CPU and a minute on a GPU, and vLLM keeps tens of megabytes of each engine it ever started.
So one stays from stage to stage where it takes nothing from the next: on a CPU, or asleep.
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
_SEQUENCES = 256


@dataclass(frozen=True)
class Wanted:
    """What an engine is started for.

    ``model`` is the folder it loads; any full weights of the same ``shape`` (a configuration as JSON) can be handed
    over later. ``window`` are tokens of a prompt and its answer, ``memory`` bytes of keys and values, ``share`` the
    part of a GPU that vLLM may take. ``rank`` is 0 where no adapter is served, ``targets`` are the layers it changes.
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
        """Whether it may outlive the stage it was started for."""
        return self.on_cpu or self.sleep

    def fits(self, other: Wanted) -> bool:
        """Whether an engine started for this serves the other as well."""
        alike = replace(other, window=self.window, memory=self.memory, share=self.share)
        if not self.rank:  # whatever it was loaded from, full weights are handed over
            alike = replace(alike, model=self.model)
        return alike == self and self.window >= other.window and self.memory >= other.memory


@dataclass
class Running:
    """An engine at work; ``files`` are what it leaves behind, ``user`` stands for the one whose weights it holds, None
    before any were handed over.
    """

    llm: Any
    started_for: Wanted
    files: list[Path]
    user: object | None = None


_running: Running | None = None


def engine_for(wanted: Wanted) -> Running:
    """The engine of this process if it fits, else a new one in its place. Raises EngineError if it does not start."""
    global _running
    if _running is None or not _running.started_for.fits(wanted):
        stop()
        llm = _start(wanted)
        _running = Running(llm, wanted, [Path(file) for file in llm.collective_rpc("meeting_file") if file])
    return _running


def stop() -> None:
    """Stop the engine of this process, if there is one, and give its memory back."""
    global _running
    if _running is None:
        return
    _running.llm.llm_engine.engine_core.shutdown()
    for file in _running.files:
        file.unlink(missing_ok=True)
    _running.llm = _running.user = None  # whoever still holds it sees that it is gone
    _running = None
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


atexit.register(stop)


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


def _start(wanted: Wanted) -> Any:
    vllm = imported()
    if wanted.sleep and not vllm.platforms.current_platform.is_sleep_mode_available():
        raise UsageError("--engine-sleep gives a GPU's memory back, and vLLM has none here: leave it out")
    adapter = {}
    if wanted.rank:
        # Told which layers have one, vLLM leaves the head alone, which would fail beside log-probabilities.
        adapter = {
            "enable_lora": True,
            "max_lora_rank": wanted.rank,
            "lora_target_modules": list(wanted.targets),
        }
    threads = torch.set_num_threads
    try:
        # What vLLM seeds is its own; what the stage seeded stays as it was.
        with torch.random.fork_rng():
            return vllm.LLM(
                model=wanted.model,
                dtype=wanted.dtype,
                max_model_len=wanted.window,
                max_num_seqs=_SEQUENCES,
                kv_cache_memory_bytes=wanted.memory,
                gpu_memory_utilization=wanted.share,
                logprobs_mode="processed_logprobs",
                generation_config="vllm",  # the model's own top-k and penalties are not ours
                enforce_eager=wanted.on_cpu,
                # On a CPU vLLM 0.32 cannot take back a seeded draw, as it does where a prompt is read in two parts.
                enable_chunked_prefill=not wanted.on_cpu,
                enable_sleep_mode=wanted.sleep,
                worker_extension_cls="recovery.rollouts.vllm_worker.FollowedWeights",
                use_tqdm_on_load=False,
                disable_log_stats=True,
                **adapter,
            )
    except (ValueError, RuntimeError, ImportError, OSError) as error:
        told = " ".join(str(error).split())[:300] or type(error).__name__
        raise EngineError(
            f"vLLM does not start with {wanted.model}: {told}; --engine transformers runs everywhere"
        ) from error
    finally:
        torch.set_num_threads = threads  # vLLM's CPU worker replaces it for the whole process
