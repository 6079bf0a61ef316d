"""Weighted prompt sampling: kinds of instruction that recent completions failed are drawn more often.

Each completion of a prompt with checks is judged when it is sampled, which costs no tokens. The weight of a kind of
instruction is the failure rate of its recent completions. Prompts without checks are drawn only in the even share.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipelines.data.mixing import between
from pipelines.runtime.generation import CompletedConversation, SampledTurn
from recovery.data.checkers import judge
from recovery.rng import RandomStream, derive_seed
from recovery.training.interfaces import Resumable
from recovery.types import Message, Prompt

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
        counts = (self.state.focus.get(check.instruction, (0.0, 0.0)) for check in prompt.checks)
        return max((failed + _PRIOR_FAILED) / (count + _PRIOR_COUNT) for count, failed in counts)

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


def weakest(answered: Sequence[CompletedConversation], pool: Sequence[Prompt], count: int, seed: int) -> list[Prompt]:
    """Return ``count`` more prompts of the pool, drawn by the failure rates of the kinds in these conversations."""
    sampler, used = PromptSampler(1.0), {one.prompt.id for one in answered}
    sampler.update(answered)
    unused = [prompt for prompt in pool if prompt.id not in used]
    return sampler.choose(unused, min(count, len(unused)), 1, seed) if unused else []


def _user_turns(messages: Sequence[Message]) -> int:
    return sum(message["role"] == "user" for message in messages)
