"""Prompts weighted to what was lost: the kinds of instruction that the student's own newest answers missed.

Every answer to a prompt with checks is judged as it is sampled, which costs no token. A kind of instruction is then
asked the more often the more of its newest answers missed it. Prompts without checks keep their place in the share
that is drawn evenly.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.answers import Spoken
from pipelines.mixing import choose
from recovery.checkers import judge
from recovery.training import derive_seed
from recovery.types import Message, Prompt

# What was seen a batch ago counts this much of what is seen now: kinds that are back are soon left alone.
_DECAY = 0.9
# A kind counts as if it had been missed once in two answers before any was seen.
_ASKED, _MISSED = 2.0, 1.0


@dataclass
class Focus:
    """Draws prompts; ``memory`` holds, for each kind of instruction, how many answers were asked and how many missed.

    ``share`` of the prompts are drawn in proportion to how often their worst kind was missed, the rest evenly.
    """

    share: float
    memory: dict[str, Any]

    def choose(self, pool: Sequence[Prompt], count: int, batch: int, seed: int) -> list[Prompt]:
        """The prompts of a batch (from 1): a function of (seed, batch, memory)."""
        checked = [prompt for prompt in pool if prompt.checks]
        drawn = min(round(self.share * count), len(checked))
        even = choose(pool, count - drawn, batch, seed, stream=21)
        if not drawn:
            return even
        # Without putting back (Efraimidis and Spirakis, 2006): the largest of u^(1/w).
        dice = random.Random(derive_seed(seed, batch, 29))
        ranked = sorted(checked, key=lambda prompt: dice.random() ** (1 / self.missed(prompt)), reverse=True)
        return [*even, *ranked[:drawn]]

    def missed(self, prompt: Prompt) -> float:
        """How often the prompt's worst kind of instruction was missed, between 0 and 1."""
        return max(self._rate(check.instruction) for check in prompt.checks)

    def look(self, spoken: Sequence[Spoken]) -> None:
        """Judge a batch's answers; of a conversation only the last, which the checks are about."""
        counts: dict[str, list[float]] = self.memory.setdefault("focus", {})
        for entry in counts.values():
            entry[:] = [_DECAY * value for value in entry]
        for turn in spoken:
            if turn.prompt.checks and _asked(turn.messages) == _asked(turn.prompt.messages):
                kept = judge(turn.prompt, turn.messages[-1]["content"]).strict
                for check, good in zip(turn.prompt.checks, kept, strict=True):
                    entry = counts.setdefault(check.instruction, [0.0, 0.0])
                    entry[0] += 1
                    entry[1] += not good

    def _rate(self, instruction: str) -> float:
        asked, missed = self.memory.get("focus", {}).get(instruction, (0.0, 0.0))
        return (missed + _MISSED) / (asked + _ASKED)


def _asked(messages: Sequence[Message]) -> int:
    return sum(message["role"] == "user" for message in messages)
