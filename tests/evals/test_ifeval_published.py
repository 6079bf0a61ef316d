"""IFEval's published prompts with the rollout engine, compared with lm-eval's own model class."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM

from evals.lm_eval_tasks import evaluate_ifeval, load_ifeval, quiet
from recovery.miniature.package import materialise
from recovery.models.loading import load_model
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import SuiteResult

PROMPTS = os.environ.get("RECOVER_IFEVAL_PROMPTS", "")

METRICS = {
    "prompt_level_strict_acc": None,
    "prompt_level_loose_acc": "prompt_loose",
    "inst_level_strict_acc": "instruction_strict",
    "inst_level_loose_acc": "instruction_loose",
}


def by_hflm(model: Path, tokens: int, limit: int | None) -> tuple[dict[str, float], list[str]]:
    """Return lm-eval's scores and responses with its own backend."""
    task = load_ifeval(PROMPTS)
    task["ifeval"].set_config(key="generation_kwargs", value={"max_gen_toks": tokens}, update=True)
    # float32 on both sides: in lower precision the padding of a batch can change a greedy response
    lm = HFLM(pretrained=str(model), dtype="float32", device="cpu", batch_size=64)
    with quiet():
        found: Any = evaluate(
            lm, {"tasks": task}, limit=limit, bootstrap_iters=0, log_samples=True, apply_chat_template=True
        )
    figures = {name: found["results"]["ifeval"][f"{name},none"] for name in METRICS}
    return figures, [sample["filtered_resps"][0] for sample in found["samples"]["ifeval"]]


def by_us(model: Path, tokens: int, limit: int | None) -> SuiteResult:
    loaded = load_model(model, precision="float32", device="cpu")
    task = load_ifeval(PROMPTS)
    return evaluate_ifeval(loaded, TransformersEngine(loaded), task, limit=limit, max_new_tokens=tokens)


@pytest.mark.slow
@pytest.mark.skipif(not PROMPTS, reason="RECOVER_IFEVAL_PROMPTS names no file of IFEval's prompts")
@pytest.mark.parametrize(
    ("kind", "tokens", "limit"), [("llama", 16, None), ("miniature", 64, 120)], ids=["all prompts", "the miniature"]
)
def test_the_figures_are_lm_evals_own(
    make_tiny: Callable[..., Path], tmp_path: Path, kind: str, tokens: int, limit: int | None
) -> None:
    if kind == "miniature":
        model = materialise(tmp_path / kind)
    else:  # a window that fits every prompt: lm-eval truncates longer prompts on the left, this project skips them
        model = make_tiny(kind, tmp_path / kind, max_position_embeddings=2048)
    ours, (figures, answers) = by_us(model, tokens, limit), by_hflm(model, tokens, limit)
    assert ours.score.n == (limit or 541) and 0 < ours.score.value < 1
    assert [item.response.strip() for item in ours.items] == [answer.strip() for answer in answers]
    for name, detail in METRICS.items():
        score = ours.score if detail is None else ours.details[detail]
        assert score.value == pytest.approx(figures[name], abs=1e-12), name
