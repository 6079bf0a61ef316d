"""Instruction following: prompts with verifiable instructions, asked and judged.

Prompts in IFEval's format (arXiv 2311.07911) are judged by its own checkers (recovery.checkers), strictly and loosely;
a prompt counts when all its instructions hold, an instruction for itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lm_eval.tasks
from lm_eval.tasks._yaml_loader import load_yaml

from evals.asking import Answer, answer, transcript
from evals.harness import EngineLM, run_lm_eval
from evals.knowledge import contains, exact_match
from evals.statistics import score_of
from recovery.chat import ChatFormat
from recovery.checkers import check_prompts, checkers, fixed_draws, judge
from recovery.errors import UsageError
from recovery.loading import Loaded
from recovery.nltk_data import prepare
from recovery.rollouts import Engine
from recovery.types import Check, Item, Message, Prompt, Score, SuiteResult

# IFEval's packaged limit on generated tokens.
IFEVAL_TOKENS = 1280

_REFUSAL = re.compile(
    r"\b(?:can ?not|can['’]t|could not|couldn['’]t|(?:am|['’]m) (?:unable|not able)|will not|won['’]t"
    r"|(?:must|have to) (?:decline|refuse)|refuse to|decline to|not allowed to|not something i can)\b",
    re.IGNORECASE,
)
_REFUSAL_WITHIN = 200  # characters: a refusal says so at once


def evaluate_instructions(
    chat: ChatFormat,
    engine: Engine,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int = 256,
    window: int | None = None,
    seed: int = 0,
    suite: str = "instruction_following",
    progress: Callable[[int], None] | None = None,
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
    return _result(prompts, answers, suite)


def judge_responses(
    prompts: Sequence[Prompt], responses: Sequence[str], *, suite: str = "instruction_following"
) -> SuiteResult:
    """Judge responses made elsewhere, one for each prompt, in order.

    The headline is strict accuracy over the prompts with checks. Details: "prompt_loose", "instruction_strict",
    "instruction_loose" (standard errors clustered by prompt), "id/<instruction id>" (strict). Prompts without checks
    are judged by a simple rule and reported apart: "refusal" (tagged so: the answer declines), "answer" (a reference
    answer, matched word for word; "answer_normalised" and "answer_contains" match more loosely). Prompts with neither
    are not judged. When no prompt has checks, those judged by the simple rules make the headline.
    """
    if len(prompts) != len(responses):
        raise UsageError(f"{len(responses)} responses were given for {len(prompts)} prompts: give one for each")
    check_prompts(prompts)
    return _result(prompts, [Answer(response, 0, True) for response in responses], suite)


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


def evaluate_ifeval(
    loaded: Loaded,
    engine: Engine,
    path: str | Path | None = None,
    *,
    limit: int | None = None,
    max_new_tokens: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> SuiteResult:
    """IFEval through lm-eval's own task, chat template on, over the model in memory; the suite is "ifeval".

    ``path`` is a local file of its prompts; without one lm-eval takes them from the hub. Answers may take
    1,280 tokens as in the packaged task, or what the model's window leaves.
    """
    prepare()
    config = load_yaml(Path(lm_eval.tasks.__file__).parent / "ifeval" / "ifeval.yaml")
    if path is not None:
        read_ifeval(path)
        config |= {
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"train": str(Path(path).resolve())}},
        }
    limit_tokens = min(max_new_tokens or IFEVAL_TOKENS, loaded.max_length)
    config["generation_kwargs"] = {**config["generation_kwargs"], "max_gen_toks": limit_tokens}
    config["process_results"] = _process_results
    lm = EngineLM(loaded, engine, max_gen_toks=limit_tokens, seed=seed, progress=progress)
    run = run_lm_eval(lm, [config], limit=limit, chat=True)
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


def refuses(response: str) -> bool:
    """Does the answer open by declining? A rule of thumb over the common phrases, not a judge."""
    return bool(_REFUSAL.search(response[:_REFUSAL_WITHIN]))


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


def _result(prompts: Sequence[Prompt], answers: Sequence[Answer], suite: str) -> SuiteResult:
    items = [_item(prompt, said) for prompt, said in zip(prompts, answers, strict=True)]
    judged = [item for item in items if item is not None]
    if not judged:
        raise UsageError(f"suite {suite!r}: no prompt has instructions, a reference answer or the tag 'refusal'")
    checked = [item for item in judged if item.extra["rule"] == "checks"]
    if not checked:  # only simple rules: then they are the headline
        judged = [_as_headline(item) for item in judged]
    score = score_of([item.score for item in checked or judged], [item.group for item in checked or judged])
    return SuiteResult(suite, score, tuple(judged), {**_check_details(checked), **_rule_details(judged)})


def _item(prompt: Prompt, said: Answer) -> Item | None:
    extra: dict[str, Any] = {"tokens": said.tokens, "finished": said.finished}
    if not said.fits:
        extra["too_long"] = True
    if prompt.tags:
        extra["tags"] = list(prompt.tags)
    if prompt.checks:
        verdict = judge(prompt, said.text)
        names = _names(prompt.checks)
        extra |= {
            "rule": "checks",
            "loose": all(verdict.loose),
            "loose_verdicts": dict(zip(names, verdict.loose, strict=True)),
            "instructions": [check.instruction for check in prompt.checks],
        }
        verdicts, score = dict(zip(names, verdict.strict, strict=True)), float(all(verdict.strict))
    elif "refusal" in prompt.tags:
        score = float(refuses(said.text))
        verdicts = {"refusal": bool(score)}
        extra |= {"rule": "refusal", "headline": False}
    elif prompt.answer is not None:
        accepted = (prompt.answer,)
        score = float(said.text.split() == prompt.answer.split())
        verdicts = {
            "correct": bool(score),
            "normalised": exact_match(said.text, accepted),
            "contains": contains(said.text, accepted),
        }
        extra |= {"rule": "answer", "headline": False, "answer": prompt.answer}
    else:
        return None
    return Item(prompt.id, transcript(said.asked or prompt.messages), said.text, score, verdicts, extra=extra)


def _names(checks: Sequence[Check]) -> list[str]:
    """Instruction ids, a repeated one numbered."""
    names: list[str] = []
    for check in checks:
        before = sum(name.split(" (")[0] == check.instruction for name in names)
        names.append(check.instruction if not before else f"{check.instruction} ({before + 1})")
    return names


def _as_headline(item: Item) -> Item:
    extra = {name: value for name, value in item.extra.items() if name != "headline"}
    return Item(item.id, item.prompt, item.response, item.score, item.verdicts, item.group, extra)


def _check_details(items: Sequence[Item]) -> dict[str, Score]:
    if not items:
        return {}
    rows = [
        (str(number), instruction, strict, loose)
        for number, item in enumerate(items)
        for instruction, strict, loose in zip(
            item.extra["instructions"],
            item.verdicts.values(),
            item.extra["loose_verdicts"].values(),
            strict=True,
        )
    ]
    groups = [row[0] for row in rows]
    details = {
        "prompt_loose": score_of([float(item.extra["loose"]) for item in items], [item.group for item in items]),
        "instruction_strict": score_of([float(row[2]) for row in rows], groups),
        "instruction_loose": score_of([float(row[3]) for row in rows], groups),
    }
    for instruction in sorted({row[1] for row in rows}):
        of_kind = [row for row in rows if row[1] == instruction]
        details[f"id/{instruction}"] = score_of([float(row[2]) for row in of_kind], [row[0] for row in of_kind])
    return details


def _rule_details(items: Sequence[Item]) -> dict[str, Score]:
    details = {}
    for rule in ("refusal", "answer"):
        if scores := [item.score for item in items if item.extra["rule"] == rule]:
            details[rule] = score_of(scores)
    if answered := [item for item in items if item.extra["rule"] == "answer"]:
        for rule in ("normalised", "contains"):
            details[f"answer_{rule}"] = score_of([float(item.verdicts[rule]) for item in answered])
    return details
