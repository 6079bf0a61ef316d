"""Interface of the rollout engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from recovery.errors import ServerError, UsageError
from recovery.inference_server import log_probability

# progress(completions finished, tokens sampled), both since the last call. It may be called with 0 completions, so that
# a caller can show progress; an exception it raises ends the work.
Progress = Callable[[int, int], None]
CHUNK = 64  # prompts whose completions by a frozen model are sampled and cached together


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters: ``temperature`` 0 is greedy; ``seed`` determines the draws.

    ``first`` is the index of the first prompt if the prompts are a part of a longer request.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    first: int = 0


@dataclass(frozen=True)
class Completion:
    """A sampled response: ids up to and including the end token, and each token's log-probability (nats).

    ``finished`` is False if the response was truncated at the token limit.
    """

    ids: list[int]
    logprobs: list[float]
    finished: bool


class Engine(Protocol):
    """A rollout engine."""

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        """Return one completion per prompt, in order; an exception of ``progress`` ends the work."""


def check_completion(completion: Completion, limit: int, vocabulary: int) -> Completion:
    """Return a server's completion. Raise ServerError if it exceeds ``limit`` or has an invalid token or score."""
    if len(completion.ids) > limit:
        raise ServerError(f"the server sampled {len(completion.ids)} tokens, not at most {limit}: check the server")
    strange = next((token for token in completion.ids if not 0 <= token < vocabulary), None)
    if strange is not None:
        raise ServerError(
            f"the server sampled token {strange}, the model has {vocabulary}: let it serve the model that is trained"
        )
    try:
        for value in completion.logprobs:
            log_probability(value)
    except ValueError as error:
        raise ServerError(f"the server's scores are not sound: {error}; check the served model") from error
    return completion


def window_with(engine: object, window: int) -> int:
    """Return the tokens that a prompt with its completion may have: ``window`` of the model, or the engine's own."""
    return min(window, getattr(engine, "window", None) or window)


def check_room(prompts: Sequence[Sequence[int]], limit: int, whose: str = "the model") -> None:
    """Raise UsageError for a prompt that leaves no room for a completion in a window of ``limit`` tokens."""
    for prompt in prompts:
        if not prompt or len(prompt) >= limit:
            raise UsageError(f"a prompt has {len(prompt):,} tokens; {whose} accepts 1 to {limit - 1:,}: shorten it")


def tokens_only(progress: Progress | None) -> Progress | None:
    """Return a callback that reports tokens only, for responses that are not the last of their conversation."""
    return None if progress is None else lambda _answers, tokens: progress(0, tokens)
