"""Rows that the transformers engine decodes, and the completions that come of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from recovery.rollouts.decode_graph import DecodeGraph
from recovery.rollouts.engine import Completion, Progress
from recovery.rollouts.kv_cache import KVCache

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
# With a graph, which is captured again for fewer rows: that runs the layers two times without one. Of so few rows the
# weights are read in most of the time, whether rows are done or not.
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

        def together(name: str) -> torch.Tensor:
            return torch.cat([getattr(part, name) for part in parts])

        return cls(
            together("owners_B"),
            together("lengths_B"),
            KVCache.joined([part.cache for part in parts], steps),
            torch.cat([F.pad(part.mask_BT, (width - part.mask_BT.shape[1], 0)) for part in parts]),
            together("positions_B"),
            together("tokens_B"),
            together("uniform_BT"),
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
        # Each copy from a GPU waits for it: five for all rows, not some for each of them.
        held = (rows, owners, live.lengths_B[rows], self.most_N[owners], self.tokens_NT[owners])
        for b, owner, length, most, ids in zip(*(values.tolist() for values in held), strict=True):
            period = period_of(ids[:length])
            if period:
                rest = torch.arange(length, most, device=self.tokens_NT.device)
                same = length - period + (rest - length) % period
                for values_NT in (self.tokens_NT, self.logprobs_NT):
                    values_NT[owner, rest] = values_NT[owner, same]
                live.done_B[b] = True
                self.over_N[owner] = True
                self.finished += 1

    def unfinished(self) -> list[int]:
        """Forget what was sampled of completions that are not over; return their indices."""
        left = (~self.over_N).nonzero().squeeze(-1)
        self.tokens_NT[left] = -1
        return [int(index) for index in left]

    def report(self) -> None:
        """Report progress since the last report."""
        if self.progress is not None:
            self.progress(self.finished, self.sampled)
        self.finished = self.sampled = 0

    def completions(self) -> list[Completion]:
        """Return one completion per prompt, in order."""
        ends, found = set(self.ends.tolist()), []
        for tokens, logprobs in zip(self.tokens_NT.tolist(), self.logprobs_NT.tolist(), strict=True):
            length = tokens.index(-1) if -1 in tokens else len(tokens)
            found.append(Completion(tokens[:length], logprobs[:length], length > 0 and tokens[length - 1] in ends))
        return found
