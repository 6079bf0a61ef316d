"""Verifiable instructions, judged by IFEval's own checkers, unmodified, from lm-eval.

Some checkers are random (the language detector; the choice of a letter where a prompt gives no valid one). They are
seeded by the prompt's id, so that a verdict depends only on the prompt and the response.
"""

from __future__ import annotations

import functools
import importlib
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import langdetect

from recovery.data.nltk_data import prepare
from recovery.errors import UsageError
from recovery.types import Prompt


@dataclass(frozen=True)
class Verdict:
    """Whether one response follows each of its prompt's instructions, in order.

    ``strict`` judges the response as it is; ``loose`` also variants without its first line, last line or asterisks.
    ``repaired`` is ``strict`` without the checkers' faults (:data:`REPAIRED`): what a reward should be.
    """

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]
    repaired: tuple[bool, ...]


def _without_blank_chunks(response: str) -> str:
    return "\n\n".join(chunk for chunk in response.split("\n\n") if chunk.strip())


# The paragraph is looked up among all chunks between blank lines, but counted without the blank ones.
REPAIRED = {"length_constraints:nth_paragraph_first_word": _without_blank_chunks}
"""Instructions whose checker has a plain fault, with the change to a response that avoids it."""


def judge(prompt: Prompt, response: str) -> Verdict:
    """Return the strict and loose verdict for every instruction. An empty response follows none."""
    with fixed_draws(prompt.id):
        loose = checkers().test_instruction_following_loose(_example(prompt), response).follow_instruction_list
    strict = follows(prompt, response)
    return Verdict(strict, tuple(map(bool, loose)), _repaired(prompt, response, strict))


def follows(prompt: Prompt, response: str) -> tuple[bool, ...]:
    """Return the strict verdict for every instruction."""
    with fixed_draws(prompt.id):
        strict = checkers().test_instruction_following_strict(_example(prompt), response).follow_instruction_list
    return tuple(map(bool, strict))


def _repaired(prompt: Prompt, response: str, strict: tuple[bool, ...]) -> tuple[bool, ...]:
    found = list(strict)
    for place, check in enumerate(prompt.checks):
        if change := REPAIRED.get(check.instruction):
            found[place] = follows(prompt, change(response))[place]
    return tuple(found)


def _example(prompt: Prompt) -> Any:
    return checkers().InputExample(
        key=0,
        instruction_id_list=[check.instruction for check in prompt.checks],
        prompt=prompt.text,
        kwargs=[dict(check.kwargs) for check in prompt.checks],
    )


def check_prompts(prompts: Sequence[Prompt]) -> None:
    """Verify that every check can be judged: sentence data exists, ids are known, arguments are accepted.

    Each judges one response, as an argument that is used as a regular expression may be none ("**"). Raises UsageError
    naming the first prompt that cannot be judged.
    """
    registry = checkers().instructions_registry.INSTRUCTION_DICT
    for prompt in prompts:
        for check in prompt.checks:
            if check.instruction not in registry:
                raise UsageError(f"prompt {prompt.id!r}: {check.instruction!r} is not an instruction that IFEval knows")
            kwargs = {name: value for name, value in check.kwargs.items() if value}
            try:
                with fixed_draws(prompt.id):
                    checker = registry[check.instruction](check.instruction)
                    checker.build_description(**kwargs)
                    if check.instruction.startswith(_BY_EXPRESSION):
                        checker.check_following("A reply.")
            except (TypeError, ValueError, AttributeError, re.error) as error:
                raise UsageError(f"prompt {prompt.id!r}: bad arguments for {check.instruction}: {error}") from error


# Groups whose arguments are used as regular expressions.
_BY_EXPRESSION = ("keywords:", "detectable_content:postscript", "detectable_format:multiple_sections")


@functools.cache
def checkers() -> ModuleType:
    """Return lm-eval's IFEval module, imported lazily: it loads nltk data, which ``prepare`` provides."""
    prepare()
    return importlib.import_module("lm_eval.tasks.ifeval.utils")


@contextmanager
def fixed_draws(key: str) -> Iterator[None]:
    """Seed the global random generators that the checkers use from ``key``, and restore their state afterwards."""
    langdetect.DetectorFactory.seed = 0
    state = random.getstate()
    random.seed(f"ifeval {key}")
    try:
        yield
    finally:
        random.setstate(state)
