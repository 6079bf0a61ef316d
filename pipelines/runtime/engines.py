"""Rollout engines of a model, by name: in this process, in all of several processes, or a server."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from recovery import distributed
from recovery.config import ModelConfig
from recovery.engines import TRANSFORMERS, EngineSettings, module_of
from recovery.errors import UsageError
from recovery.lazy_import import lazily
from recovery.models.checkpoints import content_hash
from recovery.models.hardware import free_memory
from recovery.models.loaded import Loaded
from recovery.rollouts.engine import Completion, Engine, Progress, Sampling
from recovery.rollouts.weight_sync import Sampler, SyncedEngine
from recovery.workspace import Checkpoint

if TYPE_CHECKING:
    from recovery.rollouts import transformers_engine
else:
    # One of the engines, taken by name as the others are.
    transformers_engine = lazily("recovery.rollouts.transformers_engine")


GENERATE = "generate"


@contextlib.contextmanager
def engine_of(loaded: Loaded, config: ModelConfig, *, complete_loops: bool = False) -> Iterator[Engine]:
    """Yield an engine that samples from a model; its resources are released at the end of the block.

    Every process of a training has one; of a server the main one alone asks for completions.
    """
    if config.engine == TRANSFORMERS:
        yield local_engine(loaded, config, complete_loops=complete_loops)
        return
    if distributed.size() > 1:
        _check_shared(loaded, config)
    with contextlib.closing(SyncedEngine(loaded, _sampler(loaded, config), config.engine_drift)) as engine:
        yield engine


def local_engine(loaded: Loaded, config: ModelConfig, *, complete_loops: bool = False) -> Engine:
    """Return an engine that samples in this process and from the model itself, whatever engine is chosen."""
    return transformers_engine.TransformersEngine(
        loaded, token_budget=config.rollout_tokens, complete_loops=complete_loops
    )


def _check_shared(loaded: Loaded, config: ModelConfig) -> None:
    """Raise UsageError if an engine cannot sample for several processes."""
    if not config.served:
        raise UsageError(
            f"--engine {config.engine} samples for one process only: start a single process, or a server on another "
            f"GPU (--engine http://HOST:PORT)"
        )
    if loaded.sharded and loaded.tuning == "lora" and not loaded.adapts_layers:
        raise UsageError(
            f"{loaded.path}: engines take no adapter of experts, and a sharded one is not merged: omit "
            f"--engine, or use --shard none"
        )


def _sampler(loaded: Loaded, config: ModelConfig) -> Sampler:
    settings = EngineSettings(
        config.engine,
        tokens=config.rollout_tokens,
        free=free_memory(str(loaded.device)),
        memory=None if config.engine_memory is None else int(config.engine_memory * (1 << 30)),
        sleep=config.engine_sleep,
        folder=config.engine_folder,
        timeout=config.server_timeout,
        wait=config.server_wait,
    )
    return importlib.import_module(module_of(config.engine)).sampler(loaded, settings)


def weights_hash(checkpoint: Checkpoint) -> str:
    """Return a hash of all weights that a checkpoint samples with: that of an adapter does not include its base."""
    return checkpoint.hash + ("" if checkpoint.adapter is None else _hash_once(checkpoint.weights))


_hash_once = functools.cache(content_hash)  # it reads all weights


@dataclass(frozen=True)
class DistributedEngine:
    """Distributes prompts over all processes through their helper ``GENERATE``; used by the main process.

    A completion does not depend on the process that samples it: random draws are numbered over the whole request.
    """

    engine: Engine

    @property
    def token_budget(self) -> int | None:
        """Token budget of the local engine."""
        return getattr(self.engine, "token_budget", None)

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        """Return one completion per prompt, in order."""
        parts, first = [], sampling.first
        for part in distributed.cut(prompts):
            parts.append((part, replace(sampling, first=first)))
            first += len(part)
        results = distributed.ask(GENERATE, parts, lambda own, part: self.engine.generate(own, part, progress))
        if progress is not None and len(prompts) > len(results[0]):
            progress(len(prompts) - len(results[0]), sum(len(one.ids) for part in results[1:] for one in part))
        return [completion for part in results for completion in part]
