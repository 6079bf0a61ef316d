"""Which rows each step of mid-training sees: a pure function of the seed, so that a resumed run sees the same."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from recovery.batches import Row
from recovery.training import derive_seed

T = TypeVar("T")

SMALLEST_STEP, LARGEST_STEP, UPDATES = 512, 8192, 50


@dataclass(frozen=True)
class Stream:
    """Rows of one origin and the share of each step's target tokens that comes from them."""

    name: str
    rows: Sequence[Row]
    share: float

    @property
    def tokens(self) -> int:
        """Target tokens of one pass."""
        return sum(row.targets for row in self.rows)


def step_tokens(wanted: int | None, documents: int) -> int:
    """Target tokens a step: as set, else so that the run has some fifty updates, within sensible bounds."""
    return wanted or max(SMALLEST_STEP, min(LARGEST_STEP, documents // UPDATES))


def steps_for(passes: float, own_tokens: int, own_share: float, per_step: int) -> int:
    """Steps until the documents of share ``own_share`` have been seen ``passes`` times."""
    return max(1, math.ceil(passes * own_tokens / (per_step * own_share)))


def schedule(streams: Sequence[Stream], steps: int, per_step: int, seed: int) -> list[list[Row]]:
    """The rows of every step. Each stream runs through its rows in a fresh order each pass.

    A step takes rows of a stream until the stream's quota up to that step is filled, so shares are exact over
    the run although rows differ in length.
    """
    orders = [_endless(len(stream.rows), derive_seed(seed, 0, 11 + k)) for k, stream in enumerate(streams)]
    sizes = [[row.targets for row in stream.rows] for stream in streams]
    used = [0.0] * len(streams)
    plan: list[list[Row]] = []
    for step in range(1, steps + 1):
        rows: list[Row] = []
        for k, stream in enumerate(streams):
            while stream.rows and used[k] < step * per_step * stream.share:
                index = next(orders[k])
                used[k] += max(1, sizes[k][index])
                rows.append(stream.rows[index])
        # Where long rows have filled the quotas of steps to come, those steps take the rows before them again.
        plan.append(rows or plan[-1])
    return plan


def choose(items: Sequence[T], count: int, step: int, seed: int, stream: int) -> list[T]:
    """The items of a step (from 1): each pass goes through all of them in a fresh order. Depends on nothing else."""
    chosen: list[T] = []
    orders: dict[int, list[int]] = {}
    for at in range((step - 1) * count, step * count):
        number, index = divmod(at, len(items))
        if number not in orders:
            orders[number] = list(range(len(items)))
            random.Random(derive_seed(seed, number, stream)).shuffle(orders[number])
        chosen.append(items[orders[number][index]])
    return chosen


def _endless(count: int, seed: int) -> Iterator[int]:
    generator, order = random.Random(seed), list(range(count))
    while True:
        generator.shuffle(order)
        yield from order
