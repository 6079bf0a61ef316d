"""Instruction following: prompts with verifiable instructions, asked and judged.

Prompts in IFEval's format (arXiv 2311.07911) are judged by its own checkers (recovery.checkers), strictly and loosely;
a prompt counts when all its instructions hold, an instruction for itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lm_eval.tasks
from lm_eval.tasks._yaml_loader import load_yaml

from evals.asking import answer
from evals.harness import EngineLM, run_lm_eval
from evals.judging import judge_responses, judged
from evals.tasks import load_tasks, on_local_data
from recovery.chat import ChatFormat
from recovery.checkers import check_prompts, checkers, fixed_draws
from recovery.errors import UsageError
from recovery.loading import Loaded
from recovery.nltk_data import prepare
from recovery.rollouts import Engine, Progress
from recovery.types import Check, Message, Prompt, SuiteResult

# IFEval's packaged limit on generated tokens.
IFEVAL_TOKENS = 1280


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
            prompts.append(_prompt(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{path}, line {number}: not an IFEval prompt ({type(error).__name__}: {error})"
            ) from error
    if not prompts:
        raise UsageError(f"{path} holds no IFEval prompts")
    return prompts


def load_ifeval(path: str | Path | None = None) -> dict[str, Any]:
    """lm-eval's own IFEval task with its prompts: those of a local file, or without one those of the hub.

    Raises UsageError, in one line, where they cannot be had.
    """
    prepare()
    config = load_yaml(Path(lm_eval.tasks.__file__).parent / "ifeval" / "ifeval.yaml")
    if path is not None:
        check_prompts(read_ifeval(path))  # what the checkers do not know (IFBench's kinds) is told before it is asked
        config |= on_local_data(config, Path(path).resolve())
    config["process_results"] = _process_results
    return load_tasks([config])


def evaluate_ifeval(
    loaded: Loaded,
    engine: Engine,
    task: Mapping[str, Any],
    *,
    limit: int | None = None,
    max_new_tokens: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> SuiteResult:
    """IFEval as :func:`load_ifeval` gives it, chat template on, over the model in memory; the suite is "ifeval".

    Answers may take 1,280 tokens as in the packaged task, or what the model's window leaves.
    """
    tokens = min(max_new_tokens or IFEVAL_TOKENS, loaded.max_length)
    task["ifeval"].set_config(key="generation_kwargs", value={"max_gen_toks": tokens}, update=True)
    lm = EngineLM(loaded, engine, max_gen_toks=tokens, seed=seed, progress=progress)
    run = run_lm_eval(lm, task, limit=limit, chat=True)
    samples = run["samples"]["ifeval"]
    result = judge_responses(
        [_prompt(sample["doc"]) for sample in samples],
        [str(s["filtered_resps"][0]) for s in samples],
        suite="ifeval",
    )
    theirs = float(run["results"]["ifeval"]["prompt_level_strict_acc,none"])
    if abs(theirs - result.score.value) > 1e-9:
        raise UsageError(f"lm-eval's IFEval accuracy is {theirs}, ours {result.score.value}: its task has changed")
    return result


def _process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """What the packaged task does with an answer, its draws fixed as for every other prompt."""
    with fixed_draws(str(doc["key"])):
        judged: dict[str, Any] = checkers().process_results(doc, results)
    return judged


def _prompt(record: Mapping[str, Any]) -> Prompt:
    ids, kwargs = record["instruction_id_list"], record["kwargs"]
    if len(ids) != len(kwargs):
        raise ValueError(f"{len(ids)} instructions but {len(kwargs)} kwargs")
    checks = tuple(
        Check(instruction, {name: value for name, value in arguments.items() if value is not None})
        for instruction, arguments in zip(ids, kwargs, strict=True)
    )
    return Prompt(str(record["key"]), (Message(role="user", content=record["prompt"]),), checks=checks)
