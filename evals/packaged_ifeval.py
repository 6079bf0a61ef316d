"""IFEval as lm-eval packages it, over the model in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lm_eval.tasks
from lm_eval.tasks._yaml_loader import load_yaml

from evals.harness import EngineLM, run_lm_eval
from evals.ifeval import prompt_of, read_ifeval
from evals.judging import judge_responses
from evals.tasks import load_tasks, on_local_data
from recovery.checkers import check_prompts, checkers, fixed_draws
from recovery.errors import UsageError
from recovery.loading import Loaded
from recovery.nltk_data import prepare
from recovery.rollouts import Engine, Progress
from recovery.types import SuiteResult

# IFEval's packaged limit on generated tokens.
IFEVAL_TOKENS = 1280


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
        [prompt_of(sample["doc"]) for sample in samples],
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
