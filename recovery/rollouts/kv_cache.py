"""KV cache preallocated for prompt and completion, written in place.

transformers' own layers concatenate: every decoded token copies the keys and values of all tokens before it, a sixth of
the decoding time of a small model on a CPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class PreallocatedLayer(DynamicLayer):
    """A layer for at most ``room`` positions. ``keys`` and ``values`` are views of the filled part.

    While ``place_1`` is set, a tensor with one position, the newest keys and values are written there and all ``room``
    positions are returned: shapes and addresses stay the same from token to token, as a CUDA graph needs.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.place_1: torch.Tensor | None = None
        self._filled = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self._keys = key_states.new_empty((*key_states.shape[:2], self.room, key_states.shape[3]))
        self._values = value_states.new_empty((*value_states.shape[:2], self.room, value_states.shape[3]))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [B, groups, Q, d] to keys and values; return all of them, [B, groups, T, d]."""
        if self.place_1 is not None:
            self._keys.index_copy_(2, self.place_1, key_states)
            self._values.index_copy_(2, self.place_1, value_states)
            return self._keys, self._values
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self._filled = self._filled, self._filled + key_states.shape[2]
        self._keys[:, :, start : self._filled] = key_states
        self._values[:, :, start : self._filled] = value_states
        self._update_views()
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only these rows of the batch, in ascending order."""
        self._keys, self._values = (_kept(held, indices, self._filled) for held in (self._keys, self._values))
        self._update_views()

    def advance(self) -> None:
        """Count one position as filled, which was written at ``place_1``."""
        self._filled += 1
        self._update_views()

    def hide_unfilled(self) -> None:
        """Make the unfilled room finite: a mask hides it, but zero times infinity is NaN."""
        for held in (self._keys, self._values):
            held[:, :, self._filled :] = 0

    def shrink(self) -> None:
        """Free the unfilled room; nothing can be appended afterwards."""
        self._keys, self._values = self.keys.clone(), self.values.clone()
        self._update_views()

    @classmethod
    def joined(cls, layers: Sequence[PreallocatedLayer], steps: int) -> PreallocatedLayer:
        """Concatenate the rows of several layers, aligned at the end, with room for ``steps`` more positions."""
        filled = max(layer._filled for layer in layers)
        rows = sum(len(layer.keys) for layer in layers)
        made = cls(filled + steps)
        first = layers[0]
        made.lazy_initialization(*(held.new_empty((rows, *held.shape[1:])) for held in (first.keys, first.values)))
        made._filled, start = filled, 0
        for layer in layers:
            place = slice(start, start + len(layer.keys)), slice(None), slice(filled - layer._filled, filled)
            made._keys[place], made._values[place] = layer.keys, layer.values
            # The padding before a shorter row is masked, but must be finite: zero times infinity is NaN.
            before = place[0], slice(None), slice(0, filled - layer._filled)
            made._keys[before] = 0
            made._values[before] = 0
            start += len(layer.keys)
        made._update_views()
        return made

    def _update_views(self) -> None:
        self.keys, self.values = self._keys[:, :, : self._filled], self._values[:, :, : self._filled]


def _kept(held: torch.Tensor, indices: torch.Tensor, filled: int) -> torch.Tensor:
    """Move the rows ``indices`` to the front of the same memory; only the filled part is copied.

    On a GPU, where every copy is a launch, all are copied at once.
    """
    if held.device.type != "cpu":
        return held.index_select(0, indices)
    for place, index in enumerate(indices.tolist()):  # ascending, so that no row is overwritten before it has moved
        if place != index:
            held[place, :, :filled] = held[index, :, :filled]
    return held[: len(indices)]


@dataclass
class KVCache:
    """The KV cache of a batch. Layers other than full attention use transformers' own classes; batches with such layers
    cannot be joined.
    """

    cache: DynamicCache

    @classmethod
    def empty(cls, config: Any, room: int) -> KVCache:
        """Return a cache for the model of a configuration, with ``room`` positions."""
        cache = DynamicCache(config=config)
        cache.layers = [PreallocatedLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
        return cls(cache)

    @classmethod
    def joined(cls, parts: Sequence[KVCache], steps: int) -> KVCache:
        """Concatenate the rows of several caches; see :meth:`PreallocatedLayer.joined`."""
        cache = DynamicCache()
        layers = zip(*(part.cache.layers for part in parts), strict=True)
        cache.layers = [PreallocatedLayer.joined(alike, steps) for alike in layers]
        return cls(cache)

    @property
    def joinable(self) -> bool:
        """Whether this cache can be joined with others."""
        return all(isinstance(layer, PreallocatedLayer) for layer in self.cache.layers)

    @property
    def selectable(self) -> bool:
        """Whether rows can be dropped: the states of recurrent layers cannot."""
        return all(hasattr(layer, "batch_select_indices") for layer in self.cache.layers)

    @property
    def used(self) -> bool:
        """Whether the model has written to this cache."""
        return any(
            getattr(layer, "is_initialized", False) or any(getattr(layer, "has_previous_state", {}).values())
            for layer in self.cache.layers
        )

    @property
    def room_left(self) -> int:
        """How many more positions fit into a joinable cache."""
        first = self.cache.layers[0]
        return int(first.room - first.keys.shape[2])

    @contextlib.contextmanager
    def written_at(self, place_1: torch.Tensor) -> Iterator[None]:
        """Context in which the layers write at this position and return all their room."""
        for layer in self.cache.layers:
            layer.place_1 = place_1
        try:
            yield
        finally:
            for layer in self.cache.layers:
                layer.place_1 = None

    def advance(self) -> None:
        """Count one more position as filled."""
        for layer in self.cache.layers:
            layer.advance()

    def hide_unfilled(self) -> None:
        """Make the unfilled room of all layers finite."""
        for layer in self.cache.layers:
            layer.hide_unfilled()

    def select(self, rows: torch.Tensor) -> None:
        """Keep only these rows, in ascending order."""
        self.cache.batch_select_indices(rows)

    def shrink(self) -> None:
        """Free the unfilled memory."""
        for layer in self.cache.layers:
            layer.shrink()
