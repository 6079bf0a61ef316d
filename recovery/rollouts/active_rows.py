"""Rows that the transformers engine decodes, their completions, and decoding a token as a CUDA graph.

On a GPU a small model's time per token is that of starting its kernels one by one; a graph starts all of them at once.
Its shapes and addresses are fixed: attention reads all the room of the KV cache, and a mask hides the unfilled part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from recovery.rollouts.engine import Completion, Progress

# KV cache preallocated for prompt and completion, written in place.
#
# transformers' own layers concatenate: every decoded token copies the keys and values of all tokens before it, a sixth
# of the decoding time of a small model on a CPU.


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
        self._keys, self._values = (_select_rows(part, indices, self._filled) for part in (self._keys, self._values))
        self._update_views()

    def advance(self) -> None:
        """Count one position as filled, which was written at ``place_1``."""
        self._filled += 1
        self._update_views()

    def hide_unfilled(self) -> None:
        """Make the unfilled room finite: a mask hides it, but zero times infinity is NaN."""
        for states in (self._keys, self._values):
            states[:, :, self._filled :] = 0

    def shrink(self) -> None:
        """Free the unfilled room; nothing can be appended afterwards."""
        self._keys, self._values = self.keys.clone(), self.values.clone()
        self._update_views()

    @classmethod
    def joined(cls, layers: Sequence[PreallocatedLayer], steps: int) -> PreallocatedLayer:
        """Concatenate the rows of several layers, aligned at the end, with room for ``steps`` more positions."""
        filled = max(layer._filled for layer in layers)
        rows = sum(len(layer.keys) for layer in layers)
        merged = cls(filled + steps)
        first = layers[0]
        merged.lazy_initialization(*(part.new_empty((rows, *part.shape[1:])) for part in (first.keys, first.values)))
        merged._filled, start = filled, 0
        for layer in layers:
            place = slice(start, start + len(layer.keys)), slice(None), slice(filled - layer._filled, filled)
            merged._keys[place], merged._values[place] = layer.keys, layer.values
            # The padding before a shorter row is masked, but must be finite: zero times infinity is NaN.
            before = place[0], slice(None), slice(0, filled - layer._filled)
            merged._keys[before] = 0
            merged._values[before] = 0
            start += len(layer.keys)
        merged._update_views()
        return merged

    def _update_views(self) -> None:
        self.keys, self.values = self._keys[:, :, : self._filled], self._values[:, :, : self._filled]


def _select_rows(states: torch.Tensor, indices: torch.Tensor, filled: int) -> torch.Tensor:
    """Move the rows ``indices`` to the front of the same memory; only the filled part is copied.

    On a GPU, where every copy is a launch, all are copied at once.
    """
    if states.device.type != "cpu":
        return states.index_select(0, indices)
    for place, index in enumerate(indices.tolist()):  # ascending, so that no row is overwritten before it has moved
        if place != index:
            states[place, :, :filled] = states[index, :, :filled]
    return states[: len(indices)]


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
        cache.layers = [PreallocatedLayer.joined(same_layers, steps) for same_layers in layers]
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


# Largest relative difference of a row's hidden states from those without a graph, by the precision of the model:
# rounding of sums in another order.
ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 5e-2}


class BrokenCaptureError(Exception):
    """A capture that could not be ended: torch's allocator believes that it goes on, so there can be no other."""


class DecodeGraph:
    """Decodes the rows of one batch, token by token, after one token was decoded without it.

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
        self._place_1 = torch.tensor([width], device=mask_BT.device)  # where the next token is written
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
        return output.last_hidden_state[:, -1]

    def _capture(self, stream: torch.cuda.Stream) -> None:
        """Capture the graph, after a run on its stream, as CUDA requires; the first call overwrites its output.

        torch.cuda.graph would first free all memory that torch holds, which the next training step takes again.
        """
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(stream.device)
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                # An operation that waits for the device cannot be captured: it raises in this first, uncaptured run.
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


def states_agree(found_BD: torch.Tensor, expected_BD: torch.Tensor, precision: torch.dtype) -> bool:
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


# Detection of greedy completions that repeat themselves up to the token limit, which is common in small models. Half
# of the tokens of SmolLM2-135M's greedy completions of long prompts are in such repetitions (docs/log.md). A model
# that has repeated the same tokens several times nearly always continues to do so, so the rest of the completion can
# be filled in without decoding it.

# Minimum number of repeats and of tokens for a repetition to count.
TIMES = 4
LEAST = 64


def period_of(ids: Sequence[int]) -> int:
    """Return the period in tokens of the shortest repetition at the end of ``ids``; 0 if there is none."""
    for period in range(1, len(ids) // TIMES + 1):
        length = max(TIMES * period, LEAST)
        if length > len(ids):
            return 0
        if ids[-1] == ids[-1 - period] and all(ids[-n] == ids[-n - period] for n in range(1, length - period + 1)):
            return period
    return 0


# The batch is compacted once this share of its rows is done: compacting copies the cache.
DROP_SHARE = 0.2
# With a graph, dropping rows needs a new capture, which runs the layers twice without a graph. With at most GRAPH_ROWS
# rows most of the time is spent reading the weights, whether rows are done or not.
GRAPH_DROP_SHARE, GRAPH_ROWS = 0.5, 64


@dataclass
class ActiveRows:
    """The rows being decoded: their indices in the request, lengths so far, and decoding state."""

    owners_B: torch.Tensor
    lengths_B: torch.Tensor
    cache: KVCache
    mask_BT: torch.Tensor
    positions_B: torch.Tensor
    tokens_B: torch.Tensor
    uniform_BT: torch.Tensor
    done_B: torch.Tensor = field(init=False)
    graph: DecodeGraph | None = field(init=False, default=None)
    plain: bool = field(init=False, default=False)  # decoded without a graph

    def __post_init__(self) -> None:
        self.done_B = torch.zeros_like(self.tokens_B, dtype=torch.bool)

    @property
    def drop_share(self) -> float:
        """The share of rows that may be done before they are dropped."""
        if self.graph is None:
            return DROP_SHARE
        return GRAPH_DROP_SHARE if len(self.done_B) > GRAPH_ROWS else 1.0

    def drop_done(self) -> None:
        """Remove the rows that are done."""
        self.graph = None
        keep = (~self.done_B).nonzero().squeeze(-1)
        self.cache.select(keep)
        for name in ("owners_B", "lengths_B", "mask_BT", "positions_B", "tokens_B", "uniform_BT", "done_B"):
            setattr(self, name, getattr(self, name)[keep])

    @classmethod
    def joined(cls, parts: Sequence[ActiveRows], steps: int) -> ActiveRows:
        """Concatenate the rows of several batches, aligned at the end, with room for ``steps`` more tokens."""
        width = max(part.mask_BT.shape[1] for part in parts)

        def concatenated(name: str) -> torch.Tensor:
            return torch.cat([getattr(part, name) for part in parts])

        return cls(
            concatenated("owners_B"),
            concatenated("lengths_B"),
            KVCache.joined([part.cache for part in parts], steps),
            torch.cat([F.pad(part.mask_BT, (width - part.mask_BT.shape[1], 0)) for part in parts]),
            concatenated("positions_B"),
            concatenated("tokens_B"),
            concatenated("uniform_BT"),
        )


@dataclass
class Results:
    """The completions of a request so far; -1 marks tokens not sampled."""

    tokens_NT: torch.Tensor
    logprobs_NT: torch.Tensor
    most_N: torch.Tensor
    ends: torch.Tensor
    progress: Progress | None
    finished: int = 0
    sampled: int = 0
    over_N: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.over_N = torch.zeros_like(self.most_N, dtype=torch.bool)

    def add(self, live: ActiveRows, tokens_B: torch.Tensor, logprobs_B: torch.Tensor) -> None:
        """Append a token to each row that is not done, and mark the rows that end with it as done."""
        alive_B = ~live.done_B
        rows, at = live.owners_B[alive_B], live.lengths_B[alive_B]
        self.tokens_NT[rows, at] = tokens_B[alive_B]
        self.logprobs_NT[rows, at] = logprobs_B[alive_B]
        live.tokens_B = tokens_B
        live.lengths_B = live.lengths_B + alive_B
        over_B = torch.isin(tokens_B, self.ends) | (live.lengths_B >= self.most_N[live.owners_B])
        self.over_N[live.owners_B] |= over_B
        self.sampled += len(rows)
        self.finished += int((alive_B & over_B).sum())
        live.done_B |= over_B

    def complete_loops(self, live: ActiveRows) -> None:
        """Mark rows that repeat themselves as done and fill the rest of their completions with the repetition."""
        rows = (~live.done_B).nonzero().squeeze(-1)
        owners = live.owners_B[rows]
        # Each copy from a GPU waits for it, so five copies serve all rows.
        columns = (rows, owners, live.lengths_B[rows], self.most_N[owners], self.tokens_NT[owners])
        for b, owner, length, most, ids in zip(*(values.tolist() for values in columns), strict=True):
            period = period_of(ids[:length])
            if period:
                remaining = torch.arange(length, most, device=self.tokens_NT.device)
                source = length - period + (remaining - length) % period
                for values_NT in (self.tokens_NT, self.logprobs_NT):
                    values_NT[owner, remaining] = values_NT[owner, source]
                live.done_B[b] = True
                self.over_N[owner] = True
                self.finished += 1

    def unfinished(self) -> list[int]:
        """Discard the tokens of unfinished completions; return their indices."""
        remaining = (~self.over_N).nonzero().squeeze(-1)
        self.tokens_NT[remaining] = -1
        return [int(index) for index in remaining]

    def report(self) -> None:
        """Report progress since the last report."""
        if self.progress is not None:
            self.progress(self.finished, self.sampled)
        self.finished = self.sampled = 0

    def completions(self) -> list[Completion]:
        """Return one completion per prompt, in order."""
        ends, results = set(self.ends.tolist()), []
        for tokens, logprobs in zip(self.tokens_NT.tolist(), self.logprobs_NT.tolist(), strict=True):
            length = tokens.index(-1) if -1 in tokens else len(tokens)
            results.append(Completion(tokens[:length], logprobs[:length], length > 0 and tokens[length - 1] in ends))
        return results
