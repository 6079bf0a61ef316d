"""The rows of each step of mid-training and the prompts drawn for it, both pure functions of the seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pipelines.runtime.generation import CompletedConversation, SampledTurn
from recovery.batching import Row
from recovery.config import MidtrainConfig
from recovery.data.checkers import judge
from recovery.rng import RandomStream, derive_seed
from recovery.training.interfaces import Resumable
from recovery.types import Message, Prompt

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


# Weighted prompt sampling: kinds of instruction that recent completions failed are drawn more often.
#
# Each completion of a prompt with checks is judged when it is sampled, which costs no tokens. The weight of a kind of
# instruction is the failure rate of its recent completions. Prompts without checks are drawn only in the even share.

# Weight of a batch's counts relative to the next batch's: kinds that have recovered soon lose their weight.
_DECAY = 0.9
# Prior counts of each kind: two completions, one of them failed.
_PRIOR_COUNT, _PRIOR_FAILED = 2.0, 1.0


@dataclass
class FocusState(Resumable):
    """For each kind of instruction the decayed counts of completions and of failures."""

    focus: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class PromptSampler:
    """Draws prompts: a ``share`` of them in proportion to the failure rate of their worst kind, the rest evenly, from
    behind the first ``skipped`` of their order.
    """

    share: float
    skipped: int = 0
    state: FocusState = field(default_factory=FocusState)

    def choose(self, pool: Sequence[Prompt], count: int, batch: int, seed: int) -> list[Prompt]:
        """Return the prompts of a batch (from 1): a function of (seed, batch, state)."""
        checked = [prompt for prompt in pool if prompt.checks]
        drawn = min(round(self.share * count), len(checked))
        begin, end = (self.skipped + before * (count - drawn) for before in (batch - 1, batch))
        even = between(pool, begin, end, seed, stream=RandomStream.BEHAVIOUR_PROMPTS)
        if not drawn:
            return even
        # Weighted sampling without replacement (Efraimidis and Spirakis, 2006): the largest of u^(1/w).
        dice = random.Random(derive_seed(seed, batch, RandomStream.WEIGHTED_PROMPTS))
        ranked = sorted(checked, key=lambda prompt: dice.random() ** (1 / self.failure_rate(prompt)), reverse=True)
        return [*even, *ranked[:drawn]]

    def failure_rate(self, prompt: Prompt) -> float:
        """Return the failure rate of the prompt's worst kind of instruction, between 0 and 1."""
        return max(self._rate(check.instruction) for check in prompt.checks)

    def update(self, turns: Sequence[SampledTurn | CompletedConversation]) -> None:
        """Judge a batch's completions; of a conversation only the last, to which the checks apply."""
        counts = self.state.focus
        for entry in counts.values():
            entry[:] = [_DECAY * value for value in entry]
        for turn in turns:
            if turn.prompt.checks and _user_turns(turn.messages) == _user_turns(turn.prompt.messages):
                passed = judge(turn.prompt, turn.messages[-1]["content"]).repaired
                for check, good in zip(turn.prompt.checks, passed, strict=True):
                    entry = counts.setdefault(check.instruction, [0.0, 0.0])
                    entry[0] += 1
                    entry[1] += not good

    def _rate(self, instruction: str) -> float:
        count, failed = self.state.focus.get(instruction, (0.0, 0.0))
        return (failed + _PRIOR_FAILED) / (count + _PRIOR_COUNT)


def weakest(answered: Sequence[CompletedConversation], pool: Sequence[Prompt], count: int, seed: int) -> list[Prompt]:
    """Return ``count`` more prompts of the pool, drawn by the failure rates of the kinds in these conversations."""
    sampler, used = PromptSampler(1.0), {one.prompt.id for one in answered}
    sampler.update(answered)
    left = [prompt for prompt in pool if prompt.id not in used]
    return sampler.choose(left, min(count, len(left)), 1, seed) if left else []


def _user_turns(messages: Sequence[Message]) -> int:
    return sum(message["role"] == "user" for message in messages)
