"""One prompt completed by several checkpoints, one after the other, to compare their responses."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from db import queries
from db.sample_comparison import asked_first
from evals.generation import answer
from pipelines.runtime.checkpoint_names import resolve
from pipelines.runtime.engines import engine_of
from pipelines.runtime.model_loading import load_frozen
from pipelines.runtime.registry import Registry
from recovery.config import EvalConfig
from recovery.errors import UsageError
from recovery.models.checkpoints import verify
from recovery.models.hardware import pick_device, release_gpu_memory
from recovery.rollouts.engine import window_with
from recovery.types import Message
from recovery.workspace import Checkpoint


@dataclass(frozen=True)
class Reply:
    """A checkpoint's response with its tokens and seconds; ``finished``: it ended with an end-of-turn token."""

    checkpoint: str
    answer: str
    tokens: int
    seconds: float
    finished: bool


def ask(
    registry: Registry, names: Sequence[str], prompt: str, config: EvalConfig, say: Callable[[str], None]
) -> Iterator[Reply]:
    """Yield greedy responses of the checkpoints ``names`` (default: base, the newest mid-trained and recovered ones).

    One model is in memory at a time; ``say`` receives its name. Duplicate names are prompted once, and nothing is
    recorded. Raises UsageError for a prompt that leaves no room for a response, CheckpointError for an unknown name or
    for weights that are missing or changed; names are resolved before anything is loaded.
    """
    chosen = names or [c.name for c in asked_first(queries.checkpoints(registry.database, registry.experiment_id))]
    checkpoints = list({c.path: c for c in (resolve(registry, name) for name in chosen)}.values())
    for number, checkpoint in enumerate(checkpoints, start=1):
        say(f"asking {checkpoint.name} ({number} of {len(checkpoints)})")
        yield _reply(checkpoint, prompt.strip(), config)
        gc.collect()  # models have reference cycles, and the next one needs the memory
        release_gpu_memory(pick_device(config.device))


def _reply(checkpoint: Checkpoint, prompt: str, config: EvalConfig) -> Reply:
    """Return one checkpoint's response; its model is released on return."""
    verify(checkpoint.path, checkpoint.hash)
    loaded = load_frozen(checkpoint, config)
    started = time.perf_counter()
    with engine_of(loaded, config) as engine:
        window = window_with(engine, loaded.max_length)
        (response,) = answer(
            loaded.chat,
            engine,
            [[Message(role="user", content=prompt)]],
            max_new_tokens=config.max_new_tokens,
            window=window,
            seed=config.seed,
        )
    if not response.fits:
        raise UsageError(f"the prompt leaves {checkpoint.name} no room to answer: its window holds {window:,} tokens")
    return Reply(checkpoint.name, response.text, response.tokens, time.perf_counter() - started, response.finished)
