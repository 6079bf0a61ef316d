"""Verifiable instructions, judged by IFEval's own checkers, unmodified, from lm-eval.

Some checkers are random (the language detector; the choice of a letter where a prompt gives no valid one). They are
seeded by the prompt's id, so that a verdict depends only on the prompt and the response.
"""

from __future__ import annotations

import functools
import importlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import langdetect

from recovery.data.nltk_data import prepare
from recovery.errors import UsageError
from recovery.types import Prompt


@dataclass(frozen=True)
class Verdict:
    """Whether one response follows each of its prompt's instructions, in order.

    ``strict`` judges the response as it is; ``loose`` also variants without its first line, last line or asterisks.
    """

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]


def judge(prompt: Prompt, response: str) -> Verdict:
    """Return the strict and loose verdict for every instruction. An empty response follows none."""
    utils = checkers()
    example = utils.InputExample(
        key=0,
        instruction_id_list=[check.instruction for check in prompt.checks],
        prompt=prompt.text,
        kwargs=[dict(check.kwargs) for check in prompt.checks],
    )
    with fixed_draws(prompt.id):
        strict = utils.test_instruction_following_strict(example, response).follow_instruction_list
    with fixed_draws(prompt.id):
        loose = utils.test_instruction_following_loose(example, response).follow_instruction_list
    return Verdict(tuple(map(bool, strict)), tuple(map(bool, loose)))


def check_prompts(prompts: Sequence[Prompt]) -> None:
    """Verify that every check can be judged: sentence data exists, ids are known, arguments are accepted.

    Raises UsageError naming the first prompt that cannot be judged.
    """
    registry = checkers().instructions_registry.INSTRUCTION_DICT
    for prompt in prompts:
        for check in prompt.checks:
            if check.instruction not in registry:
                raise UsageError(f"prompt {prompt.id!r}: {check.instruction!r} is not an instruction that IFEval knows")
            kwargs = {name: value for name, value in check.kwargs.items() if value}
            try:
                with fixed_draws(prompt.id):
                    registry[check.instruction](check.instruction).build_description(**kwargs)
            except (TypeError, ValueError, AttributeError) as error:
                raise UsageError(f"prompt {prompt.id!r}: bad arguments for {check.instruction}: {error}") from error


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
