"""The default settings of the commands, each with its evidence; docs/defaults.md is its table.

They are the last of the recipes: flags, ``--recipe``, a method's preset and the model's own recommendations go before
them. What is not listed here is a field's own default. A class such as ``MidtrainConfig()`` has only those: what
changes the course of a training is off there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REAL = "real model"  # SmolLM2-135M-Instruct on real documents: docs/real.md
MINIATURE = "miniature"  # two million parameters, a fictional world: docs/horizon.md
LITERATURE = "literature"
NONE = "none"

ORIGIN = "the defaults"
# The peak rates of full fine-tuning are 4e-4 in mid-training and 1e-4 in a recovery at the 135 million parameters that
# they were measured with, and fall with the number of parameters: rate(N) = usual * min(12, (8e9 / N)^0.6).
RATED_AT, RATE_POWER, LARGEST_RATE_FACTOR = 8e9, 0.6, 12.0
# A LoRA adapter takes ten times the rate of full fine-tuning: LoRA Without Regret (2025).
LORA_FACTOR = 10
USUAL_RATES = {"midtrain": 3.45e-5, "distill": 8.6e-6}


@dataclass(frozen=True)
class Default:
    """A default value, the kind of its evidence, and what was seen."""

    value: Any
    evidence: str
    reason: str


_EVERY = "every recorded run"
_ONE_BY_ONE = "as many different prompts as completions, in every recorded run"
_WHOLE = "after replay by KL, instructions are at 1.00, 0.98 and 0.93 of base after three cycles"
# Per table of a recipe; [cycle.STAGE] holds what differs within whole cycles.
DEFAULTS: Mapping[str, Mapping[str, Default]] = {
    "midtrain": {
        "epochs": Default(2.8, REAL, "what recorded runs with 30% replay read"),
        "augment": Default(
            4, REAL, "13 of 60 questions about held-out facts are answered with it, 3 without (one seed)"
        ),
        "augment_share": Default(0.55, REAL, _EVERY),
        "augment_questions": Default(0.15, REAL, f"{_EVERY}; after documents alone 4% of answers end"),
        "replay": Default(
            0.3, REAL, "keeps 0.90 of the instructions beyond constant replies (two seeds); none 0.18 (three)"
        ),
        "replay_loss": Default(
            "kl", REAL, "beside answers: keeps 0.90 (0.97) and learns 19% (15%) of held-out facts; arXiv 2605.26097"
        ),
        "max_new_tokens": Default(128, REAL, "measured with 112"),
    },
    "distill": {
        "steps": Default(60, REAL, _WHOLE),
        "samples_per_prompt": Default(1, REAL, _ONE_BY_ONE),
        "max_new_tokens": Default(128, REAL, "measured with 112"),
        "knowledge_share": Default(0.5, REAL, _WHOLE),
        "near_miss_share": Default(
            0.0,
            REAL,
            "on Qwen2.5-Coder-0.5B 0.15 gave back a part of the declining; its price in answers is open (one seed)",
        ),
        "until": Default(0.0, REAL, "off in every recorded run: a test takes 1,000 prompts"),
        "plateau": Default(0, REAL, "off in every recorded run"),
    },
    "cycle.distill": {
        # Drawn from all corpora alike, questions about the newest documents would become fewer with each cycle.
        "earlier_share": Default(0.5, MINIATURE, "over twenty cycles earlier corpora are kept; no real run had it"),
    },
}
# Defaults that are rules, or a field's own, and steer a training: value, evidence, reason. In the same table of docs.
OTHERS: Mapping[str, tuple[str, str, str]] = {
    "tuning": ("full where the optimizer fits in memory, else LoRA", REAL, "all recorded runs but three are full"),
    "rate of full fine-tuning": (
        "4e-4 and 1e-4 at 135 million parameters, less by rule",
        REAL,
        "2e-4 in mid-training closes 0.28 of the gap, 4e-4 0.75 (one seed)",
    ),
    "rate of LoRA": (
        "ten times that",
        REAL,
        "closes 0.39 of the gap after mid-training and 0.31 after the recovery (one seed), beside no other rate",
    ),
    "rank of LoRA": ("32", LITERATURE, "LoRA Without Regret (2025)"),
    "knowledge teacher": (
        "the mid-trained model",
        REAL,
        "trained facts in another form: 0.26 answered, 0.13 with the clean model alone (one seed)",
    ),
    "start of a recovery": ("the mid-trained model itself", REAL, _WHOLE),
    "documents of earlier cycles": ("half of the documents' tokens", REAL, _EVERY),
    "loss of a recovery": ("reverse KL on the model's own answers", REAL, _EVERY),
    "prompts": ("built in, with instructions that can be checked", REAL, "chat alone brings back 41% of the loss"),
    "gate": ("none; `standard` if asked for", NONE, "its error is simulated: benchmarks/results/verdicts.md"),
}


def tables() -> dict[str, dict[str, Any]]:
    """Return the values as the tables of a recipe."""
    return {table: {key: one.value for key, one in found.items()} for table, found in DEFAULTS.items()}
