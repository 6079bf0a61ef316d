"""Rewards: one number per completion, from a prompt's checks, its reference answer or a user's function.

``verifiable`` is the default: the share of a prompt's instructions that the response follows (IFEval's own checkers,
their faults repaired), or whether it equals the reference answer. A user's Python callable is named as
``package.module:function``: ``function(prompt, response) -> float``.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence

from recovery.data.checkers import judge
from recovery.data.corpus.text import normalise
from recovery.errors import RecoveryError, UsageError, first_line
from recovery.limits import Overdue, time_limit
from recovery.types import Prompt

Reward = Callable[[Prompt, str], float]

# Keeps the advantage finite if all rewards of a group are equal.
_SMALLEST_SPREAD = 1e-4


def verifiable(prompt: Prompt, response: str) -> float:
    """Return the share of the prompt's checks that pass; without checks, 1 for the reference answer, else 0."""
    if prompt.checks:
        verdicts = judge(prompt, response).repaired
        return sum(verdicts) / len(verdicts)
    return exact(prompt, response)


def all_checks(prompt: Prompt, response: str) -> float:
    """Return 1 if every instruction is followed, else 0, as in IFEval's prompt-level score."""
    return float(all(judge(prompt, response).repaired)) if prompt.checks else exact(prompt, response)


def exact(prompt: Prompt, response: str) -> float:
    """Return 1 if the response equals the reference answer, ignoring surrounding whitespace, else 0."""
    return float(prompt.answer is not None and response.strip() == prompt.answer.strip())


def normalised(prompt: Prompt, response: str) -> float:
    """Return 1 if the response equals the reference answer, ignoring case, punctuation and spaces, else 0."""
    return float(prompt.answer is not None and normalise(response) == normalise(prompt.answer))


NAMED: dict[str, Reward] = {
    "verifiable": verifiable,
    "all-checks": all_checks,
    "exact": exact,
    "normalised": normalised,
}


def resolve_reward(name: str) -> Reward:
    """Return the reward of a name, or of ``module:function``. Raise UsageError if there is none."""
    if name in NAMED:
        return NAMED[name]
    module, colon, function = name.partition(":")
    if not colon:
        known = ", ".join(NAMED)
        raise UsageError(f"--reward {name!r} is unknown: use {known}, or a callable as package.module:function")
    try:
        reward = getattr(importlib.import_module(module), function)
    except (Exception, SystemExit) as error:  # importing a user's module may raise anything
        raise UsageError(f"--reward {name} cannot be imported: {type(error).__name__}: {first_line(error)}") from error
    if not callable(reward):
        raise UsageError(f"--reward {name} is not callable: give a function of (prompt, response)")
    return reward


def can_judge(name: str, prompt: Prompt) -> bool:
    """Return whether a reward applies to this prompt; a user's callable always does."""
    if name in ("exact", "normalised"):
        return prompt.answer is not None
    return name not in NAMED or bool(prompt.checks) or prompt.answer is not None


def judged(reward: Reward, prompt: Prompt, response: str, limit: float = 0.0) -> float:
    """Return the reward of one response. Raise RecoveryError if the callable fails, returns no finite number, or takes
    longer than ``limit`` seconds (0: any time).
    """
    try:
        with time_limit(limit):
            value = float(reward(prompt, response))
    except Overdue as error:
        raise RecoveryError(
            f"the reward returned nothing for prompt {prompt.id!r} within {limit:g} seconds: fix the function of "
            f"--reward, or raise --reward-timeout"
        ) from error
    except (Exception, SystemExit) as error:  # a user's callable may raise anything
        raise RecoveryError(
            f"the reward failed on prompt {prompt.id!r}: {type(error).__name__}: {first_line(error)}; fix the function "
            f"of --reward"
        ) from error
    if not math.isfinite(value):
        raise RecoveryError(
            f"the reward returned {value} for prompt {prompt.id!r}: --reward must return a finite number"
        )
    return value


def group_advantages(rewards: Sequence[float], groups: Sequence[str]) -> list[float]:
    """Return (R_i - mean R) / (std R + delta) within each prompt's group (GRPO, arXiv 2402.03300, outcome supervision).

    The advantage is 0 in a group of one, or if all rewards of the group are equal.
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
