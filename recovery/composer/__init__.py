"""The built-in composer of behaviour prompts: general requests in our own words, for models without suites.

``writing`` asks for texts under verifiable rules (``rules``, and ``together`` for which can be followed at once);
``plain``, ``code``, ``dialogues`` and ``refusals`` hold the rest of what a chat model is asked. ``chat`` draws from all
of them what holds no verifiable instruction.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from recovery.composer.chat import chat
from recovery.composer.code import code
from recovery.composer.dialogues import dialogue
from recovery.composer.plain import plain
from recovery.composer.refusals import refusal
from recovery.composer.topics import TOPICS, Topic
from recovery.composer.writing import writing
from recovery.corpus.text import normalise, text_hash
from recovery.types import Prompt

__all__ = ["DEFAULT_COUNT", "TOPICS", "Topic", "compose", "compose_chat"]

DEFAULT_COUNT = 9000
_SHARES: tuple[tuple[Callable[[random.Random], Prompt | None], float], ...] = (
    (plain, 0.16),
    (code, 0.05),
    (refusal, 0.03),
    (dialogue, 0.14),
    (writing, 1.0),  # the rest
)
_PATIENCE = 40


def compose(count: int = DEFAULT_COUNT, seed: int = 0) -> list[Prompt]:
    """``count`` distinct prompts, the same for the same ``seed``; rather more than half carry checks.

    A kind that runs out of new wordings leaves its share to constrained writing, which has millions.
    """
    return _composed(_SHARES, count, random.Random(f"composer {seed}"))


def compose_chat(count: int = DEFAULT_COUNT, seed: int = 0) -> list[Prompt]:
    """At most ``count`` distinct prompts of ordinary chat, none of which holds a verifiable instruction."""
    return _composed(((chat, 1.0),), count, random.Random(f"composer chat {seed}"))


def _composed(
    shares: tuple[tuple[Callable[[random.Random], Prompt | None], float], ...], count: int, rng: random.Random
) -> list[Prompt]:
    found: dict[str, Prompt] = {}
    for draw, part in shares:
        goal = count if part == 1.0 else min(count, len(found) + round(part * count))
        _fill(found, draw, goal, rng)
    prompts = list(found.values())
    rng.shuffle(prompts)
    return prompts


def _fill(
    found: dict[str, Prompt], draw: Callable[[random.Random], Prompt | None], goal: int, rng: random.Random
) -> None:
    """Draw until ``goal`` prompts are found or new ones have become rare."""
    misses = 0
    while len(found) < goal and misses < _PATIENCE:
        prompt = draw(rng)
        if prompt is None:
            continue
        key = "\x1f".join(normalise(m["content"]) for m in prompt.messages)
        if key in found:
            misses += 1
            continue
        misses = 0
        found[key] = replace(prompt, id=f"composed-{text_hash(key)[:12]}")
