"""Decoding a token as a CUDA graph.

On a GPU a small model's time for a token is that of starting its kernels one by one; a graph starts all of them at
once. Its shapes and addresses are fixed: attention reads all the room of the KV cache, and a mask hides what is not
filled yet.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from recovery.rollouts.kv_cache import KVCache

# Largest relative difference of the hidden states from those without a graph, by the precision of the model: rounding
# of sums in another order. Anything else that differs (a model that takes positions from the length of the cache, say)
# is larger.
ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 5e-2}


class DecodeGraph:
    """Decodes the rows of one batch, token by token, once their newest token was decoded without it.

    Args:
        decoder: the layers below the head.
        cache: the batch's KV cache, joinable (every layer preallocated).
        mask_BT: 1 where a position is attended to, up to the newest token.
        tokens_B: the newest token of each row.
        positions_B: its position.
    """

    def __init__(
        self, decoder: Any, cache: KVCache, mask_BT: torch.Tensor, tokens_B: torch.Tensor, positions_B: torch.Tensor
    ) -> None:
        self._decoder, self._cache = decoder, cache
        width = mask_BT.shape[1]
        self._tokens_B1, self._positions_B1 = tokens_B[:, None].clone(), positions_B[:, None].clone()
        self._mask_BR = F.pad(mask_BT.bool(), (0, cache.room_left))
        self._place_1 = torch.tensor([width - 1], device=mask_BT.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        cache.hide_unfilled()
        self._hidden_BD = self._captured() if mask_BT.device.type == "cuda" else self._run()

    def agrees(self, hidden_BD: torch.Tensor, precision: torch.dtype) -> bool:
        """Return whether the newest token's hidden states are those computed without the graph, up to rounding."""
        exact_BD = hidden_BD.float()
        away = (self._hidden_BD.float() - exact_BD).norm() / exact_BD.norm()
        return bool(away <= ROUNDING.get(precision, 0.0))  # false for NaN

    def __call__(self, tokens_B: torch.Tensor, positions_B: torch.Tensor) -> torch.Tensor:
        """Decode the next token of each row; return the hidden states, [B, D], valid until the next call."""
        self._tokens_B1.copy_(tokens_B[:, None])
        self._positions_B1.copy_(positions_B[:, None])
        self._place_1 += 1
        self._cache.advance()
        if self._graph is None:
            self._hidden_BD = self._run()
        else:
            self._graph.replay()
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

    def _captured(self) -> torch.Tensor:
        """Capture the graph, after a run on another stream as CUDA asks for; replay it once."""
        current, other = torch.cuda.current_stream(), torch.cuda.Stream()
        other.wait_stream(current)
        with torch.cuda.stream(other):
            self._run()
        current.wait_stream(other)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            hidden_BD = self._run()
        self._graph.replay()
        return hidden_BD
