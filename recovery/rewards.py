"""Rewards: a number for a finished answer, where a teacher's word for every token is not what is wanted.

``verifiable`` is the default: the share of a prompt's instructions that the answer follows (IFEval's own checkers), or
whether it gives the reference answer. A Python callable by dotted name (``package.module:function``) takes its
place where the user has one: ``function(prompt, response) -> float``.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence

from recovery.checkers import judge
from recovery.corpus.text import normalise
from recovery.errors import RecoveryError, UsageError
from recovery.types import Prompt

Reward = Callable[[Prompt, str], float]

# Keeps the advantage finite where every answer of a group got the same reward.
_SMALLEST_SPREAD = 1e-4


def verifiable(prompt: Prompt, response: str) -> float:
    """The share of instructions followed where the prompt has checks, else 1 for the reference answer and 0."""
    if prompt.checks:
        kept = judge(prompt, response).strict
        return sum(kept) / len(kept)
    return exact(prompt, response)


def all_checks(prompt: Prompt, response: str) -> float:
    """1 where every instruction is followed, else 0: what IFEval's prompt-level score counts."""
    return float(all(judge(prompt, response).strict)) if prompt.checks else exact(prompt, response)


def exact(prompt: Prompt, response: str) -> float:
    """1 where the answer is the prompt's reference to the letter, else 0."""
    return float(prompt.answer is not None and response.strip() == prompt.answer.strip())


def normalised(prompt: Prompt, response: str) -> float:
    """1 where the answer is the prompt's reference, without regard to case, marks and spaces, else 0."""
    return float(prompt.answer is not None and normalise(response) == normalise(prompt.answer))


NAMED: dict[str, Reward] = {
    "verifiable": verifiable,
    "all-checks": all_checks,
    "exact": exact,
    "normalised": normalised,
}


def resolve_reward(name: str) -> Reward:
    """The reward of a name, or of ``module:function``. Raises UsageError where there is none."""
    if name in NAMED:
        return NAMED[name]
    module, colon, function = name.partition(":")
    if not colon:
        known = ", ".join(NAMED)
        raise UsageError(f"--reward {name!r} is unknown: use {known}, or a callable as package.module:function")
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:  # whatever a user's module raises while it is imported
        raise UsageError(f"--reward {name} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise UsageError(f"--reward {name} is not callable: give a function of (prompt, response)")
    reward: Reward = found
    return reward


def can_judge(name: str, prompt: Prompt) -> bool:
    """Whether a reward says anything about answers to this prompt; a callable of the user's always does."""
    if name in ("exact", "normalised"):
        return prompt.answer is not None
    return name not in NAMED or bool(prompt.checks) or prompt.answer is not None


def judged(reward: Reward, prompt: Prompt, response: str) -> float:
    """The reward of one answer. Raises RecoveryError where the callable fails or gives no finite number."""
    try:
        value = float(reward(prompt, response))
    except Exception as error:  # a user's callable may raise anything
        raise RecoveryError(
            f"the reward failed on prompt {prompt.id!r}: {type(error).__name__}: {error}; mend --reward"
        ) from error
    if not math.isfinite(value):
        raise RecoveryError(f"the reward gave {value} for prompt {prompt.id!r}: --reward must return a finite number")
    return value


def group_advantages(rewards: Sequence[float], groups: Sequence[str]) -> list[float]:
    """(R_i - mean R) / (std R + delta) within each prompt's group (GRPO, arXiv 2402.03300, outcome supervision).

    A group of one, or one whose answers all got the same, has nothing to compare: its advantage is 0.
    """
    by_group: dict[str, list[float]] = {}
    for value, group in zip(rewards, groups, strict=True):
        by_group.setdefault(group, []).append(value)
    spread = {group: _mean_and_deviation(values) for group, values in by_group.items()}
    return [
        (value - spread[group][0]) / (spread[group][1] + _SMALLEST_SPREAD)
        for value, group in zip(rewards, groups, strict=True)
    ]


def _mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
