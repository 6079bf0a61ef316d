"""A key/value cache with room for the whole answer, written in place.

transformers' own layers concatenate: every decoded token copies the keys and values of all tokens before it, which is
a sixth of the decoding time of a small model on a CPU. Here the room for prompt and answer is allocated once.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class RoomyLayer(DynamicLayer):
    """A layer for at most ``room`` positions. ``keys`` and ``values`` are views of what is filled so far."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self._filled = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self._keys = key_states.new_empty((*key_states.shape[:2], self.room, key_states.shape[3]))
        self._values = value_states.new_empty((*value_states.shape[:2], self.room, value_states.shape[3]))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [B, groups, Q, d] to keys and values; returns all of them, [B, groups, T, d]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self._filled = self._filled, self._filled + key_states.shape[2]
        self._keys[:, :, start : self._filled] = key_states
        self._values[:, :, start : self._filled] = value_states
        self._show()
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only these rows of the batch, in ascending order."""
        self._keys, self._values = (_kept(held, indices, self._filled) for held in (self._keys, self._values))
        self._show()

    def _show(self) -> None:
        self.keys, self.values = self._keys[:, :, : self._filled], self._values[:, :, : self._filled]


def _kept(held: torch.Tensor, indices: torch.Tensor, filled: int) -> torch.Tensor:
    """The rows ``indices`` moved to the front of the same memory; only what is filled is copied."""
    for place, index in enumerate(indices.tolist()):  # ascending, so that no row is overwritten before it has moved
        if place != index:
            held[place, :, :filled] = held[index, :, :filled]
    return held[: len(indices)]


def roomy_cache(config: Any, room: int) -> DynamicCache:
    """A cache for ``config``'s model whose full-attention layers have room for ``room`` positions.

    Layers of other kinds (sliding windows, recurrent states) stay as transformers makes them.
    """
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
