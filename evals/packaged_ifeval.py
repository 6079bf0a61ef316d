"""lm-eval's packaged IFEval task, run on the model in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lm_eval.tasks
from lm_eval.tasks._yaml_loader import load_yaml

from evals.instruction_following import graded, prompt_of, read_ifeval
from evals.lm_eval_tasks import load_tasks, on_local_data
from recovery.data.checkers import check_prompts, checkers, fixed_draws
from recovery.data.nltk_data import prepare
from recovery.errors import UsageError
from recovery.lazy_import import lazily
from recovery.types import SuiteResult

if TYPE_CHECKING:
    from recovery.models.loaded import Loaded
    from recovery.rollouts.engine import Engine, Progress

# It imports torch, without which a file of prompts is read and refused.
lm_eval_adapter = lazily("evals.lm_eval_adapter")

# IFEval's packaged limit on generated tokens.
IFEVAL_TOKENS = 1280


def load_ifeval(path: str | Path | None = None) -> dict[str, Any]:
    """Load lm-eval's own IFEval task with the prompts of a local file, or by default those of the hub.

    Raises a one-line UsageError if they cannot be loaded.
    """
    prepare()
    config = load_yaml(Path(lm_eval.tasks.__file__).parent / "ifeval" / "ifeval.yaml")
    if path is not None:
        check_prompts(read_ifeval(path))  # reject unknown instructions (as of IFBench) before generation
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
    """Run the task of :func:`load_ifeval` with the chat template on the model in memory; the suite is "ifeval".

    Responses are limited to 1,280 tokens as in the packaged task, or to the model's window.
    """
    tokens = min(max_new_tokens or IFEVAL_TOKENS, loaded.max_length)
    task["ifeval"].set_config(key="generation_kwargs", value={"max_gen_toks": tokens}, update=True)
    lm = lm_eval_adapter.EngineLM(loaded, engine, max_gen_toks=tokens, seed=seed, progress=progress)
    run = lm_eval_adapter.run_lm_eval(lm, task, limit=limit, chat=True)
    samples = run["samples"]["ifeval"]
    answers = [replace(lm.answers[s["arguments"][0][0]], text=str(s["filtered_resps"][0])) for s in samples]
    result = graded([prompt_of(sample["doc"]) for sample in samples], answers, "ifeval")
    theirs = float(run["results"]["ifeval"]["prompt_level_strict_acc,none"])
    if abs(theirs - result.score.value) > 1e-9:
        raise UsageError(f"lm-eval's IFEval accuracy is {theirs}, ours {result.score.value}: its task has changed")
    return result


def _process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """Score a response as the packaged task does, with the checkers' random draws fixed per prompt."""
    with fixed_draws(str(doc["key"])):
        judged: dict[str, Any] = checkers().process_results(doc, results)
    return judged
