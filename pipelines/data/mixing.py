"""The schedule of mid-training: the rows of each step, a pure function of the seed, so that a run can be resumed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from recovery.batching import Row
from recovery.config import MidtrainConfig
from recovery.rng import RandomStream, derive_seed

T = TypeVar("T")

SMALLEST_STEP, LARGEST_STEP, UPDATES = 512, 8192, 100


@dataclass(frozen=True)
class Stream:
    """Rows of one source, and their share of each step's target tokens."""

    name: str
    rows: Sequence[Row]
    share: float

    @property
    def tokens(self) -> int:
        """Target tokens of one epoch."""
        return sum(row.targets for row in self.rows)


def step_size(config: MidtrainConfig, own_tokens: int, own_share: float) -> int:
    """Return the target tokens per step of a mid-training whose documents, of ``own_tokens``, are ``own_share`` of it:
    those that are set, else such that the run has about 100 steps, within bounds.

    It follows the length by passes, also where the number of steps is set.
    """
    tokens = round(config.passes * own_tokens / own_share)
    return config.batch_tokens or max(SMALLEST_STEP, min(LARGEST_STEP, tokens // UPDATES))


def step_count(config: MidtrainConfig, own_tokens: int, own_share: float, per_step: int) -> int:
    """Return the steps of that mid-training: those set, else until the documents were seen ``passes`` times."""
    return config.steps or max(1, math.ceil(config.passes * own_tokens / (per_step * own_share)))


def schedule(streams: Sequence[Stream], steps: int, per_step: int, seed: int) -> list[list[Row]]:
    """Return the rows of every step. Each stream is shuffled anew in each epoch.

    A step takes rows of a stream until the stream's cumulative quota is filled, so shares are exact over the run
    although rows differ in length.
    """
    orders = [
        _endless(len(stream.rows), derive_seed(seed, 0, RandomStream.MIXTURE + k)) for k, stream in enumerate(streams)
    ]
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
        # If long rows have filled the quotas of later steps, these steps repeat the rows of the step before.
        plan.append(rows or plan[-1])
    return plan


def choose(items: Sequence[T], count: int, step: int, seed: int, stream: int) -> list[T]:
    """Return the items of a step (from 1) if every step takes ``count``; see :func:`between`."""
    return between(items, (step - 1) * count, step * count, seed, stream)


def shuffled(items: Sequence[T], seed: int, stream: int, skipped: int = 0) -> list[T]:
    """Return all items in the order of the first epoch of :func:`between`, the first ``skipped`` of it last."""
    order = between(items, 0, len(items), seed, stream)
    first = skipped % max(1, len(items))
    return [*order[first:], *order[:first]]


def between(items: Sequence[T], begin: int, end: int, seed: int, stream: int) -> list[T]:
    """Return items ``begin`` to ``end`` of an endless sequence, a function of ``seed`` and ``stream``: epoch after
    epoch, each with a new order of all items.
    """
    chosen: list[T] = []
    orders: dict[int, list[int]] = {}
    for at in range(begin, end):
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
