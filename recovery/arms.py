"""Whole ways through a cycle: how the documents are learnt, and what is done about what that costs. No torch here.

A recovery is one of them; the others are its rivals, most of them cheaper. An arm only sets values of the stages'
configurations over those that all arms share; :mod:`pipelines.arms` runs one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recovery.errors import UsageError

NONE, DISTILL, INTERPOLATE = "none", "distill", "interpolate"


@dataclass(frozen=True)
class Arm:
    """One way: ``midtrain`` are settings of mid-training, ``settings`` those of the stage that follows.

    ``follow`` is "none", "distill" (any method; its preset comes before ``settings``) or "interpolate". The
    ``knowledge_teacher`` "midtrained" of a distillation is what this cycle's mid-training has made.
    """

    name: str
    title: str
    source: str
    midtrain: Mapping[str, Any] = field(default_factory=dict)
    follow: str = NONE
    settings: Mapping[str, Any] = field(default_factory=dict)


_TWO = {"method": "opd", "knowledge_teacher": "midtrained"}
_OPD = "Thinking Machines, On-Policy Distillation (2025)"
_ALL = (
    Arm("documents", "documents alone", "continued pre-training"),
    Arm(
        "unaugmented",
        "documents alone, without other wordings and questions",
        "what augmentation adds, arXiv 2508.09494",
        {"augment": 0, "writer": None},
    ),
    Arm(
        "replay",
        "30% replay of the clean model's answers",
        "chat among the documents: Thinking Machines, On-Policy Distillation (2025)",
        {"replay": 0.3},
    ),
    Arm(
        "kl-replay",
        "30% replay by KL to the clean model on its own answers",
        "arXiv 2605.26097",
        {"replay": 0.3, "replay_loss": "kl"},
    ),
    # The rate of LoRA is its own; one that was set is that of the full weights the other arms train.
    Arm("lora", "LoRA alone", "LoRA Learns Less and Forgets Less, arXiv 2405.09673", {"tuning": "lora", "lr": None}),
    Arm(
        "interpolate",
        "weights between base and mid-trained",
        "WiSE-FT, arXiv 2109.01903",
        follow=INTERPOLATE,
        settings={"origin": "base"},
    ),
    Arm(
        "interpolate-start",
        "weights between the cycle's start and mid-trained",
        "WiSE-FT, arXiv 2109.01903, cycle by cycle",
        follow=INTERPOLATE,
        settings={"origin": "start"},
    ),
    Arm(
        "own-answers",
        "SFT on the clean model's own answers afterwards",
        "Kim and Rush, arXiv 1606.07947",
        follow=DISTILL,
        settings={"method": "sequence-kd", "knowledge_teacher": None},
    ),
    Arm(
        "one-teacher",
        "recovery with one teacher, the clean model",
        _OPD,
        follow=DISTILL,
        settings={"method": "opd", "knowledge_teacher": None},
    ),
    Arm("recovery", "recovery with two teachers", _OPD, follow=DISTILL, settings=_TWO),
    Arm(
        "recovery-chat",
        "the same recovery on ordinary chat prompts alone, without verifiable instructions",
        _OPD,
        follow=DISTILL,
        settings=_TWO | {"prompts": "composer:chat"},
    ),
)
ARMS: dict[str, Arm] = {arm.name: arm for arm in _ALL}


def arms() -> dict[str, Arm]:
    """Every arm by name, the simplest first."""
    return dict(ARMS)


def arm_named(name: str) -> Arm:
    """The arm of a name. Raises UsageError with the nearest name where there is none."""
    if name in ARMS:
        return ARMS[name]
    near = difflib.get_close_matches(name, ARMS, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(ARMS)}"
    raise UsageError(f"there is no arm {name!r}: {hint} (`recover methods arms` lists them)")
