"""Random streams: a separate seed for each use of randomness, so that a resumed run draws the same values.

The enum values determine every recorded run: a new use gets a new value, and existing ones never change.
"""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class RandomStream(IntEnum):
    """The uses of randomness. The k-th stream of mid-training's mixture uses MIXTURE + k."""

    STEP = 0  # dropout of a training step; the tokens of the n-th completion
    ADAPTER = 3  # the initial weights of a LoRA adapter
    TURN = 5  # completions of the n-th turn of a conversation
    REPLAY = 7  # completions of the clean model for replay, the n-th chunk of prompts
    DRIFT = 9  # completions whose distributions `recover drift` compares
    MIXTURE = 11  # the order of the rows of one stream of mid-training's mixture
    BEHAVIOUR_PROMPTS = 21
    QUESTIONS = 22
    ROLLOUTS = 23  # the student's completions in a step of distillation
    DOCUMENT_ROWS = 24
    GIVEN_ROLLOUTS = 25  # given completions, used instead of sampled ones
    POSITION = 26  # the one scored position of a completion
    PREFIX = 27  # where a completion is cut for the teacher to continue
    CONTINUATION = 28  # the teacher's continuation of that prefix
    WEIGHTED_PROMPTS = 29  # prompts weighted by the checks that the student's completions failed
    GRADIENT_STATS = 30
    GUARD_ROWS = 31  # chat rows whose loss a guarded step of mid-training may not raise (29 up to release 0.1)
    EARLIER_QUESTIONS = 33
    NEAR_MISSES = 34
    TEACHER_CHECK = 37  # prompts that the teacher completes when a collapse is suspected


def derive_seed(seed: int, step: int, stream: int = RandomStream.STEP) -> int:
    """Return the seed of (seed, step, stream), by the mixing function of SplitMix64."""
    mask = (1 << 64) - 1
    x = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + stream * 0x94D049BB133111EB) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return (x ^ (x >> 31)) & ((1 << 63) - 1)
