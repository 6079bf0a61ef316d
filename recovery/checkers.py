"""Verifiable instructions, judged by IFEval's own checkers as lm-eval ships them, unmodified.

Where the checkers draw at random (the language detector; a letter, where a prompt names none that can be used), the
draw is fixed by the prompt's id, so that a verdict depends on the prompt and the response alone.
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

from recovery.errors import UsageError
from recovery.nltk_data import prepare
from recovery.types import Prompt


@dataclass(frozen=True)
class Verdict:
    """How one response met one prompt's instructions, in their order.

    ``strict`` takes the response as it stands; ``loose`` also with its first or last line or its asterisks left out.
    """

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]


def judge(prompt: Prompt, response: str) -> Verdict:
    """The checkers' verdict, strict and loose, for every instruction. An empty response follows none."""
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


def satisfies(prompt: Prompt, response: str, *, loose: bool = False) -> bool:
    """Does ``response`` meet every instruction of ``prompt``? True where it has none."""
    verdict = judge(prompt, response)
    return all(verdict.loose if loose else verdict.strict)


def check_prompts(prompts: Sequence[Prompt]) -> None:
    """Make sure every check can be judged: sentence data is there, ids are known, arguments are accepted.

    Raises UsageError naming the first prompt that could not be judged.
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
    """lm-eval's IFEval module, imported late: its import asks nltk for data, which must be settled by then."""
    prepare()
    return importlib.import_module("lm_eval.tasks.ifeval.utils")


@contextmanager
def fixed_draws(key: str) -> Iterator[None]:
    """Fix what the checkers draw from global generators by the prompt's id, and leave no trace behind."""
    langdetect.DetectorFactory.seed = 0
    state = random.getstate()
    random.seed(f"ifeval {key}")
    try:
        yield
    finally:
        random.setstate(state)
