"""Built-in composer of behaviour prompts: general requests written for this project, for models without suites.

``constrained_writing`` asks for texts under verifiable rules (``constraints``), and says which can be
combined. ``topics`` has plain questions, ``chat`` dialogues, programming requests and those to refuse, and draws from
all of them the prompts without verifiable instructions.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from recovery.data.corpus.text import normalise, text_hash
from recovery.data.synthetic_prompts.chat import chat, code, dialogue, refusal
from recovery.data.synthetic_prompts.constrained_writing import writing
from recovery.data.synthetic_prompts.topics import plain
from recovery.types import Prompt

DEFAULT_COUNT = 9000
_Shares = tuple[tuple[Callable[[random.Random], Prompt | None], float], ...]
_SHARES: _Shares = (
    (plain, 0.16),
    (code, 0.05),
    (refusal, 0.03),
    (dialogue, 0.14),
    (writing, 1.0),  # the remainder
)
_MAX_MISSES = 40


def compose(count: int = DEFAULT_COUNT, seed: int = 0) -> list[Prompt]:
    """Return ``count`` distinct prompts, deterministic by ``seed``; more than half have checks.

    If a kind runs out of new wordings, constrained writing, which has millions, fills its share.
    """
    return _composed(_SHARES, count, random.Random(f"composer {seed}"))


def compose_chat(count: int = DEFAULT_COUNT, seed: int = 0) -> list[Prompt]:
    """Return at most ``count`` distinct prompts of ordinary chat, without verifiable instructions."""
    return _composed(((chat, 1.0),), count, random.Random(f"composer chat {seed}"))


def _composed(shares: _Shares, count: int, rng: random.Random) -> list[Prompt]:
    found: dict[str, Prompt] = {}
    for draw, part in shares:
        goal = count if part == 1.0 else min(count, len(found) + round(part * count))
        misses = 0  # duplicates in a row
        while len(found) < goal and misses < _MAX_MISSES:
            prompt = draw(rng)
            if prompt is None:
                continue
            key = "\x1f".join(normalise(m["content"]) for m in prompt.messages)
            misses = misses + 1 if key in found else 0
            if not misses:
                found[key] = replace(prompt, id=f"composed-{text_hash(key)[:12]}")
    prompts = list(found.values())
    rng.shuffle(prompts)
    return prompts
