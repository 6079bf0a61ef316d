"""Ask: one prompt put to several checkpoints, one after the other, to set their answers side by side."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from db import queries
from db.answers import asked_first
from evals.asking import answer
from pipelines.models import engine_of, load_frozen
from pipelines.registry import Registry
from pipelines.session import resolve
from recovery.checkpoints import verify
from recovery.config import EvalConfig
from recovery.errors import UsageError
from recovery.types import Message
from recovery.workspace import Checkpoint


@dataclass(frozen=True)
class Reply:
    """What a checkpoint answered in how many tokens and seconds; ``finished`` says that it ended the answer itself."""

    checkpoint: str
    answer: str
    tokens: int
    seconds: float
    finished: bool


def ask(
    registry: Registry, names: Sequence[str], prompt: str, config: EvalConfig, say: Callable[[str], None]
) -> Iterator[Reply]:
    """Greedy answers of the checkpoints ``names`` (or of base, the newest mid-trained and the newest recovered one).

    One model is in memory at a time; ``say`` is told which. A checkpoint named twice is asked once, and nothing is
    recorded. Raises UsageError for a prompt that is empty or leaves no room to answer, CheckpointError for a name that
    is nothing or weights that are gone or changed: names are looked up before anything is loaded.
    """
    if not prompt.strip():
        raise UsageError("the prompt is empty: give some text, or - to read it from standard input")
    chosen = names or [c.name for c in asked_first(queries.checkpoints(registry.database, registry.experiment_id))]
    found = list({c.path: c for c in (resolve(registry, name) for name in chosen)}.values())
    for number, checkpoint in enumerate(found, start=1):
        say(f"asking {checkpoint.name} ({number} of {len(found)})")
        yield _reply(checkpoint, prompt.strip(), config)
        gc.collect()  # models hold references in circles, and the next one needs the room
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _reply(checkpoint: Checkpoint, prompt: str, config: EvalConfig) -> Reply:
    """One checkpoint's answer; its model is gone when this returns."""
    verify(checkpoint.path, checkpoint.hash)
    loaded = load_frozen(checkpoint, config)
    started = time.perf_counter()
    with engine_of(loaded, config) as engine:
        (said,) = answer(
            loaded.chat,
            engine,
            [[Message(role="user", content=prompt)]],
            max_new_tokens=config.max_new_tokens,
            window=loaded.max_length,
            seed=config.seed,
        )
    if not said.fits:
        raise UsageError(
            f"the prompt leaves {checkpoint.name} no room to answer: its window holds {loaded.max_length:,} tokens"
        )
    return Reply(checkpoint.name, said.text, said.tokens, time.perf_counter() - started, said.finished)
