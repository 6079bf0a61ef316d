"""Instruction following beyond constant replies: the instructions of a prompt that no fixed reply follows.

IFEval's checkers give credit to replies that follow nothing: "no comma" is kept by nearly every short reply. An
instruction is *trivial* if any of :data:`REPLIES` follows it by the checker (strict), whatever the prompt asks for. The
share of the others that a model follows shows whether it follows instructions at all. The share that an echo of the
prompt gets is shown with it, since some instructions can be followed by copying words.

Which instructions are trivial depends on the prompts and the checkers, not on a model. Each item of a suite stores it,
so that the share can be computed again from the stored verdicts.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from evals.statistics import is_headline, score_of
from recovery.lazy_import import lazily
from recovery.types import Check, Item, Message, Prompt, Score

VERSION = 1
"""Version of the list of replies: shares of different versions are about different instructions, not comparable."""
REPLIES = (
    "I'm here to help.",
    "I am happy to help you with that. Please tell me more about what you need, and I will do my best to write it for "
    "you.",
    "The first part of the conversation is about a cat. " * 40,
    "i am glad to help with that today.",
)
DETAIL = "beyond_constant"
"""The name of the share among a suite's details, and of its rows in comparisons."""
ECHO = f"{DETAIL}_echo"
"""The name of the share that an echo of the prompt gets on the same instructions."""
_VERSION, _TRIVIAL, _ECHOED = "constant_replies", "trivial", "echoed"
NEEDED = (_VERSION, _TRIVIAL)
"""Keys that an item's extra must have to compute the share from its verdicts."""

checkers = lazily("recovery.data.checkers")  # the share itself is computed without them

# An item's key, score, group, verdicts and extra, as the tracker returns them.
Row = tuple[str, float | None, str, Mapping[str, Any], Any]


def flags(prompt: Prompt, names: Sequence[str]) -> dict[str, Any]:
    """Return the data that an item stores: the version of the list, and the instructions, by their ``names`` [number of
    checks], that are trivial and those that an echo of the prompt follows.
    """
    checks = tuple((check.instruction, json.dumps(dict(check.kwargs), sort_keys=True)) for check in prompt.checks)
    trivial, echoed = _flags(prompt.id, prompt.text, checks)
    return {
        _VERSION: VERSION,
        _TRIVIAL: [name for name, flag in zip(names, trivial, strict=True) if flag],
        _ECHOED: [name for name, flag in zip(names, echoed, strict=True) if flag],
    }


@functools.lru_cache(maxsize=8192)  # every checkpoint answers the same prompts
def _flags(key: str, text: str, checks: tuple[tuple[str, str], ...]) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    parsed = tuple(Check(instruction, json.loads(kwargs)) for instruction, kwargs in checks)
    prompt = Prompt(key, (Message(role="user", content=text),), checks=parsed)
    trivial = tuple(map(any, zip(*(checkers.follows(prompt, reply) for reply in REPLIES), strict=True)))
    return trivial, checkers.follows(prompt, text)


def details(items: Sequence[Item]) -> dict[str, Score]:
    """Return the share of non-trivial instructions that the responses follow, and that of an echo, with standard errors
    clustered by prompt; empty without such instructions.
    """
    rows = [(item.id, item.score, item.group, item.verdicts, item.extra) for item in items]
    single = list(single_instructions(rows))
    if not single:
        return {}
    groups = [group for _, _, group, _, _ in single]
    echoed = [
        float(name in item.extra[_ECHOED]) for item in items for name in item.verdicts if _is_counted(name, item.extra)
    ]
    return {DETAIL: score_of([score for _, score, _, _, _ in single], groups), ECHO: score_of(echoed, groups)}


def single_instructions(rows: Iterable[Row]) -> Iterator[tuple[str, float, str, dict[str, Any], dict[str, Any]]]:
    """Return the instructions of a suite's items that are not trivial, as rows of their own, grouped by prompt.

    Items of an earlier release, which do not say what is trivial, give none.
    """
    for key, _, _, verdicts, extra in rows:
        for name, followed in verdicts.items():
            if is_headline(extra) and _is_counted(name, extra):
                yield f"{key}#{name}", float(followed), key, {}, {}


def _is_counted(name: str, extra: Mapping[str, Any]) -> bool:
    return extra.get(_VERSION) == VERSION and name not in extra[_TRIVIAL]
