"""An option that would have no effect is refused if it was typed; a recipe may hold its setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines.cli.stage_options import check_given
from recovery.config import DistillConfig, EvalConfig, MidtrainConfig, Recipe, build, build_cycle
from recovery.errors import UsageError
from tests.cli.conftest import Refused

CYCLE = {"docs": ("docs",)}
IDLE: tuple[tuple[type[Any] | None, dict[str, Any], dict[str, Any], str], ...] = (
    (None, {"gate_samples": 9}, {"gate": ("ifeval >= 0.5",)}, "--gate-samples 9 is of a gate"),
    (None, {"gate_extend": 0}, {"gate": ("ifeval >= 0.5",)}, "--gate-extend 0 is of a gate"),
    (None, {"gate_alpha": 0.1}, {"gate": ("standard",)}, "--gate-alpha 0.1 is of a gate"),
    (None, {"gate": ("standard",), "trial": True}, {"trial": False}, "--gate standard decides nothing of a trial"),
    (None, {"ifeval_tokens": 9}, {"ifeval": "hub"}, "--ifeval-tokens 9 is about IFEval's own"),
    (None, {"augment_share": 0.5, "augment": 0}, {"augment": 4}, "--augment-share 0.5 is about augmented"),
    (None, {"knowledge_teacher": "none", "knowledge_share": 0.3}, {"knowledge_teacher": "midtrained"}, "excludes one"),
    (None, {"tuning": "full", "lora_rank": 8}, {"tuning": "lora"}, "--lora-rank 8 is of a LoRA"),
    (EvalConfig, {"ifeval_tokens": 9}, {"ifeval": "hub"}, "name their file, or 'hub', with --ifeval"),
    (MidtrainConfig, {"replay_prompts": 9, "replay": 0.0}, {"project": True}, "set its share, as in --replay 0.3"),
    (MidtrainConfig, {"augment_questions": 0.2, "augment": 0}, {"augment": 4}, "as in --augment 4"),
    (MidtrainConfig, {"tuning": "full", "lora_alpha": 8}, {"tuning": "auto"}, "--lora-alpha 8 is of a LoRA"),
    (DistillConfig, {"knowledge_share": 0.3}, {"knowledge_teacher": "midtrained"}, "--knowledge-teacher, e.g."),
    (DistillConfig, {"earlier_share": 0.3}, {"knowledge_teacher": "midtrained"}, "--earlier-share 0.3 is about"),
    (DistillConfig, {"ema_decay": 0.9}, {"method": "sdft"}, "needs --teacher ema, not base"),
    (DistillConfig, {"ratio_cap": 3.0}, {"engine": "vllm"}, "with another --engine, or with such a teacher set"),
    (DistillConfig, {"ratio_cap": 2.0}, {"batch_epochs": 2}, "--ratio-cap 2.0 corrects for completions of another"),
    (DistillConfig, {"ratio_cap": 0.0, "samples_per_prompt": 4}, {"lam": 0.5}, "--ratio-cap 0.0 corrects"),
    (
        DistillConfig,
        {"ratio_cap": 3.0, "engine": "vllm", "temperature": 0.7},
        {"temperature": 1.0},
        "at --temperature 1",
    ),
    (DistillConfig, {"samples_per_prompt": 8, "method": "sft"}, {"method": "rejection-sft"}, "--alpha 0 has none"),
    (DistillConfig, {"ratio_cap": 3.0, "engine": "vllm", "alpha": 0.0}, {"alpha": 0.5}, "of which there is none"),
    (DistillConfig, {"tuning": "full", "lora_rank": 8}, {"tuning": "lora"}, "--lora-rank 8 is of a LoRA"),
)


@pytest.mark.parametrize(("kind", "given", "more", "words"), IDLE, ids=[", ".join(line[1]) for line in IDLE])
def test_an_option_without_effect_is_refused_if_it_was_typed(
    kind: type[Any] | None, given: dict[str, Any], more: dict[str, Any], words: str
) -> None:
    def built(flags: dict[str, Any], *recipes: Recipe) -> Any:
        return build_cycle(CYCLE | flags, *recipes) if kind is None else build(kind, flags, *recipes)

    with pytest.raises(UsageError, match=words):
        check_given(given, built(given))
    check_given(given | more, built(given | more))
    check_given({}, built(given))


def test_the_commands_refuse_them(docs: Path, tiny_model: Path, refused: Refused) -> None:
    for line in (
        "cycle --docs docs --gate-extend 2",
        "cycle --docs docs --trial --gate standard",
        "midtrain --docs docs --replay-prompts 9",
        "train --teacher base --ema-decay 0.9",
        "distill --student base --ratio-cap 3.0",
        "distill --student base --knowledge-share 0.4",
        "eval base --ifeval-tokens 9",
    ):
        assert " ".join(line.split()[-2:]) in refused(*line.split(), "--model", tiny_model, "--dry-run")
