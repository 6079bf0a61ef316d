"""Decoding a token as a CUDA graph.

On a GPU a small model's time for a token is that of starting its kernels one by one; a graph starts all of them at
once. Its shapes and addresses are fixed: attention reads all the room of the KV cache, and a mask hides what is not
filled yet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from recovery.rollouts.kv_cache import KVCache

# Largest relative difference of a row's hidden states from those without a graph, by the precision of the model:
# rounding of sums in another order.
ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 5e-2}


class BrokenCaptureError(Exception):
    """A capture that could not be ended: torch's allocator believes that it goes on, so there can be no other."""


class DecodeGraph:
    """Decodes the rows of one batch, token by token, once their newest token was decoded without it.

    On another device than a GPU the layers run with the same fixed shapes, without a graph.

    Args:
        decoder: the layers below the head.
        cache: the batch's KV cache, joinable (every layer preallocated) and with room for another position. What it
            counts as filled is not changed before the first call.
        mask_BT: 1 where a position is attended to, up to the newest token.
        tokens_B: the newest token of each row.
        positions_B: its position.
        stream: where the graph is captured: one for all graphs, since cuBLAS keeps memory for each.
    """

    def __init__(
        self,
        decoder: Any,
        cache: KVCache,
        mask_BT: torch.Tensor,
        tokens_B: torch.Tensor,
        positions_B: torch.Tensor,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self._decoder, self._cache = decoder, cache
        width = mask_BT.shape[1]
        self._tokens_B1, self._positions_B1 = tokens_B[:, None].clone(), positions_B[:, None].clone()
        self._mask_BR = F.pad(mask_BT.bool(), (0, cache.room_left))
        self._place_1 = torch.tensor([width], device=mask_BT.device)  # of the next token
        self._graph: torch.cuda.CUDAGraph | None = None
        cache.hide_unfilled()
        if stream is not None:
            self._capture(stream)

    def __call__(self, tokens_B: torch.Tensor, positions_B: torch.Tensor) -> torch.Tensor:
        """Decode the next token of each row; return the hidden states, [B, D], valid until the next call.

        Keys and values are written, but the cache does not count the position as filled: see :meth:`KVCache.advance`.
        """
        self._tokens_B1.copy_(tokens_B[:, None])
        self._positions_B1.copy_(positions_B[:, None])
        if self._graph is None:
            self._hidden_BD = self._run()
        else:
            self._graph.replay()
        self._place_1 += 1
        return self._hidden_BD

    def _run(self) -> torch.Tensor:
        self._mask_BR.index_fill_(1, self._place_1, True)
        with self._cache.written_at(self._place_1):
            output = self._decoder(
                input_ids=self._tokens_B1,
                attention_mask=self._mask_BR[:, None, None, :],
                position_ids=self._positions_B1,
                past_key_values=self._cache.cache,
                use_cache=True,
            )
        hidden_BD: torch.Tensor = output.last_hidden_state[:, -1]
        return hidden_BD

    def _capture(self, stream: torch.cuda.Stream) -> None:
        """Capture the graph, after a run on its stream, as CUDA asks for; the first call overwrites what that writes.

        torch.cuda.graph would first free all memory that torch holds, which the next training step takes again.
        """
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(stream.device)
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                # What waits for the device cannot be captured: it is refused in the first run, which leaves no trace.
                with _no_waiting():
                    self._run()
                stream.synchronize()
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    self._hidden_BD = self._run()
                finally:
                    _end(graph)
        finally:  # an interrupted run may still write to the cache, where the next token's keys go
            current.wait_stream(stream)
        self._graph = graph


def _end(graph: torch.cuda.CUDAGraph) -> None:
    try:
        graph.capture_end()
    except RuntimeError as error:
        raise BrokenCaptureError(str(error)) from error


def same(found_BD: torch.Tensor, expected_BD: torch.Tensor, precision: torch.dtype) -> bool:
    """Return whether the hidden states of every row are equal up to the rounding of a precision."""
    exact_BD = expected_BD.float()
    away_B = (found_BD.float() - exact_BD).norm(dim=-1) / exact_BD.norm(dim=-1)
    return bool((away_B <= ROUNDING.get(precision, 0.0)).all())  # false for NaN


@contextlib.contextmanager
def _no_waiting() -> Iterator[None]:
    """Context in which an operation that waits for the device raises RuntimeError."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
