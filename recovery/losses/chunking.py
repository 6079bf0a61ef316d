"""Sizes of the chunks and blocks that the fused loss works in: how many tokens are projected to logits at once."""

from __future__ import annotations

from collections.abc import Iterator

import torch

# One buffer of logits: part of the processor's last-level cache for a small vocabulary, but never fewer tokens than
# matrix products need to be efficient (narrower types need more). Four times as many tokens make the products of a
# head's gradient twice as fast; they are taken if the buffer stays below the larger size.
_CHUNK_BYTES = 8 << 20
_LARGE_CHUNK_BYTES = 128 << 20
_MIN_CHUNK = 128
# One block of rows on a CPU: three such buffers fit in the cache of one or two cores.
_BLOCK_BYTES = 2 << 20


def slices(total: int, size: int) -> Iterator[slice]:
    """Yield slices of ``size`` over ``total`` items."""
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


def chunk_size(vocabulary: int, dtype: torch.dtype) -> int:
    """Return the tokens per chunk: a multiple of the smallest efficient chunk, within the budgets of one buffer."""
    smallest = _MIN_CHUNK * 4 // min(dtype.itemsize, 4)
    cached, large = (
        budget // (vocabulary * dtype.itemsize * smallest) for budget in (_CHUNK_BYTES, _LARGE_CHUNK_BYTES)
    )
    return max(1, cached, min(4, large)) * smallest


def block_rows(chunk: int, vocabulary: int, dtype: torch.dtype, device: torch.device) -> int:
    """Return the rows per block: what fits in the cache on a CPU; the whole chunk elsewhere, to save kernel
    launches.
    """
    if device.type != "cpu":
        return chunk
    return max(1, min(chunk, _BLOCK_BYTES // (vocabulary * dtype.itemsize)))
