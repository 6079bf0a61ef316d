"""What every rollout engine takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from recovery.errors import UsageError

# progress(answers finished, tokens sampled), both since the last call. It may be called with 0 answers, so that a
# caller can show that something moves; and it may raise, which ends the work.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Sampling:
    """How to sample: ``temperature`` 0 is greedy; ``seed`` fixes the draw.

    ``first`` is the number of the first prompt where they are a part of a longer request.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    first: int = 0


@dataclass(frozen=True)
class Completion:
    """A sampled response: ids up to and including the end token, and each token's log-probability (nats).

    ``finished`` is False where the response was cut off at the token limit.
    """

    ids: list[int]
    logprobs: list[float]
    finished: bool


class Engine(Protocol):
    """Samples one completion for each prompt, in the order given."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        progress: Progress | None = None,
    ) -> list[Completion]:
        """``progress`` hears of answers and tokens as they come; what it raises ends the work."""
        ...


def check_room(prompts: Sequence[Sequence[int]], limit: int) -> None:
    """Raises UsageError for a prompt that leaves no room to answer in a window of ``limit`` tokens."""
    for index, prompt in enumerate(prompts):
        if not prompt or len(prompt) >= limit:
            raise UsageError(f"prompt {index} has {len(prompt)} tokens; the model takes 1 to {limit - 1}")
