"""Instruction following: generation and scoring for prompts with verifiable instructions.

Prompts in IFEval's format (arXiv 2311.07911) are scored by its own checkers (recovery.data.checkers), strict and
loose. A prompt is correct if all its instructions are followed; instructions are also scored individually.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.generation import answer
from evals.grading import graded
from recovery.data.checkers import check_prompts
from recovery.data.corpus.json_lines import read_records
from recovery.errors import UsageError
from recovery.models.chat_template import ChatFormat
from recovery.rollouts.engine import Engine, Progress
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
    """Generate greedy responses to ``prompts`` and score them as :func:`evals.grading.judge_responses` does.

    The checks are validated before anything is generated. In a conversation of several requests the model responds to
    each in turn, and the checks apply to its last response.
    """
    check_prompts(prompts)
    conversations = [prompt.messages for prompt in prompts]
    answers = answer(
        chat, engine, conversations, max_new_tokens=max_new_tokens, window=window, seed=seed, progress=progress
    )
    return graded(prompts, answers, suite)


def read_ifeval(path: str | Path) -> list[Prompt]:
    """Read prompts from a file in IFEval's format: key, prompt, instruction_id_list, kwargs; one object per line."""
    records, problems = read_records(Path(path))
    if problems:
        where, _, reason = problems[0].partition(": ")
        raise UsageError(f"{path}, {where}: not an IFEval prompt ({reason})")
    prompts = []
    for number, record in records:
        try:
            prompts.append(prompt_of(record))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{path}, line {number}: not an IFEval prompt ({type(error).__name__}: {error})"
            ) from error
    if not prompts:
        raise UsageError(f"{path} contains no IFEval prompts")
    return prompts


def prompt_of(record: Mapping[str, Any]) -> Prompt:
    """Convert an IFEval record to a prompt. Raises KeyError, TypeError or ValueError for an invalid record."""
    ids, kwargs = record["instruction_id_list"], record["kwargs"]
    if len(ids) != len(kwargs):
        raise ValueError(f"{len(ids)} instructions but {len(kwargs)} kwargs")
    checks = tuple(
        Check(instruction, {name: value for name, value in arguments.items() if value is not None})
        for instruction, arguments in zip(ids, kwargs, strict=True)
    )
    return Prompt(str(record["key"]), (Message(role="user", content=record["prompt"]),), checks=checks)
