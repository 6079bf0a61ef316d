"""The device memory that vLLM in this process needs, from a model's sizes."""

from __future__ import annotations

WEIGHTS_ALLOWED = 1.2  # times the weights, for temporary copies while they are loaded
WORKSPACE = 2 << 30  # bytes for activations
SPARE = 256  # tokens of partially used blocks
_FREE_SHARE = 0.4


def cache_bytes(each: int, tokens: int, longest: int, free: int | None = None) -> int:
    """Return the size of the KV cache in bytes, with ``each`` bytes per token: for ``tokens`` tokens, but at least for
    the model's longest input; at most 40% of the ``free`` bytes, if known.
    """
    wanted = (max(tokens, longest) + SPARE) * each
    return wanted if free is None else min(wanted, int(_FREE_SHARE * free))


def device_bytes(weights: int, cache: int) -> int:
    """Return the free device memory that vLLM needs to start, with so many bytes of weights and of KV cache."""
    return cache + round(WEIGHTS_ALLOWED * weights) + WORKSPACE
