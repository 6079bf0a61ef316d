"""Instruction following: prompts with verifiable instructions, asked and judged.

Prompts in IFEval's format (arXiv 2311.07911) are judged by its own checkers (recovery.checkers), strictly and loosely;
a prompt counts when all its instructions hold, an instruction for itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.asking import answer
from evals.judging import judged
from recovery.chat import ChatFormat
from recovery.checkers import check_prompts
from recovery.errors import UsageError
from recovery.rollouts import Engine, Progress
from recovery.types import Check, Message, Prompt, SuiteResult


def evaluate_instructions(
    chat: ChatFormat,
    engine: Engine,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int = 256,
    window: int | None = None,
    seed: int = 0,
    suite: str = "instruction_following",
    progress: Progress | None = None,
) -> SuiteResult:
    """Ask ``prompts`` greedily and judge the answers; see :func:`judge_responses` for what is reported.

    Everything that judging needs is checked before anything is generated. In a conversation of several
    requests the model answers each in turn, and the checks apply to its last answer.
    """
    check_prompts(prompts)
    conversations = [prompt.messages for prompt in prompts]
    answers = answer(
        chat,
        engine,
        conversations,
        max_new_tokens=max_new_tokens,
        window=window,
        seed=seed,
        progress=progress,
    )
    return judged(prompts, answers, suite)


def read_ifeval(path: str | Path) -> list[Prompt]:
    """Prompts from a file in IFEval's format: key, prompt, instruction_id_list, kwargs; one object a line."""
    prompts = []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read IFEval prompts from {path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prompts.append(prompt_of(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{path}, line {number}: not an IFEval prompt ({type(error).__name__}: {error})"
            ) from error
    if not prompts:
        raise UsageError(f"{path} holds no IFEval prompts")
    return prompts


def prompt_of(record: Mapping[str, Any]) -> Prompt:
    """A record of IFEval's as a prompt. Raises what a record that is none brings: KeyError, TypeError, ValueError."""
    ids, kwargs = record["instruction_id_list"], record["kwargs"]
    if len(ids) != len(kwargs):
        raise ValueError(f"{len(ids)} instructions but {len(kwargs)} kwargs")
    checks = tuple(
        Check(instruction, {name: value for name, value in arguments.items() if value is not None})
        for instruction, arguments in zip(ids, kwargs, strict=True)
    )
    return Prompt(str(record["key"]), (Message(role="user", content=record["prompt"]),), checks=checks)
