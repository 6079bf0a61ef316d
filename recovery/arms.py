"""Experiment arms: presets of a whole cycle, mid-training and the stage that follows it. Does not import torch.

Recovery is one arm; the others are baselines, most of them cheaper. An arm only overrides values of the stages'
configurations that all arms share; :mod:`pipelines.experiments.arm_cycle` runs one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recovery.config.midtrain import WRITER_FILE
from recovery.errors import UsageError

NONE, DISTILL, INTERPOLATE = "none", "distill", "interpolate"


@dataclass(frozen=True)
class Arm:
    """One arm: ``midtrain`` are settings of mid-training, ``settings`` those of the stage that follows.

    ``follow`` is "none", "distill" (any method; ``settings`` override its preset) or "interpolate". The
    ``knowledge_teacher`` "midtrained" of a distillation is the checkpoint of this cycle's mid-training. With
    ``equal_flops``, the mid-training is as long as the whole cycle in the record of the arm of that name and the same
    seed, in floating-point operations.
    """

    name: str
    title: str
    source: str
    midtrain: Mapping[str, Any] = field(default_factory=dict)
    follow: str = NONE
    settings: Mapping[str, Any] = field(default_factory=dict)
    equal_flops: str = ""

    @property
    def needs_questions(self) -> bool:
        """Whether mid-training uses questions among texts that came with the documents."""
        return bool(self.midtrain.get("writer_questions"))

    @property
    def needs_texts(self) -> bool:
        """Whether a stage uses texts that came with the documents."""
        return self.midtrain.get("writer") == WRITER_FILE or bool(self.settings.get("document_texts"))


_TWO = {"method": "opd", "knowledge_teacher": "midtrained", "knowledge_share": 0.3}
# Questions have short answers: half of the prompts over 90 steps sample a quarter more tokens than 30% over 60.
_QUESTIONS = _TWO | {"blend": 0.8, "knowledge_share": 0.5, "steps": 90}
# Texts in many wordings take most of the tokens. More and smaller steps answered more in a trial (docs/log.md).
_TEXTS = {"augment": 4, "augment_share": 0.8, "writer": WRITER_FILE, "batch_tokens": 1024}
# With the writer's questions, in mid-training and in the recovery.
_ASKING_TEXTS = _TEXTS | {"writer_questions": True, "augment_questions": 0.3}
_WRITER_QUESTIONS = _QUESTIONS | {"writer_questions": True}
# The two halves of IFEval's families of instructions, with 409 and 425 of its 834 instructions.
FORMAT_KINDS = ("change_case", "detectable_format", "keywords")
LENGTH_KINDS = ("combination", "detectable_content", "language", "length_constraints", "punctuation", "startend")
_OPD = "Thinking Machines, On-Policy Distillation (2025)"
_ALL = (
    Arm("documents", "mid-training alone", "continued pre-training"),
    Arm(
        "unaugmented",
        "mid-training alone, without other wordings and questions",
        "what augmentation adds, arXiv 2508.09494",
        {"augment": 0, "writer": None, "writer_questions": False},
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
    Arm(
        "replay-equal-flops",
        "30% replay of the clean model's answers, as long as a whole cycle of kl-replay-recovery",
        "replay as above, at the operations of a mid-training and its recovery together",
        {"replay": 0.3},
        equal_flops="kl-replay-recovery",
    ),
    Arm(
        "lora",
        "LoRA of rank 32 alone, at a peak rate of 1e-4",
        "LoRA Learns Less and Forgets Less, arXiv 2405.09673",
        {"tuning": "lora", "lr": 1e-4},
    ),
    *(
        Arm(
            f"lora-{rate}{'-rank-128' if rank != 32 else ''}",
            f"LoRA of rank {rank} alone, at a peak rate of {rate}",
            "about ten times the rate of full fine-tuning: LoRA Without Regret (2025)",
            {"tuning": "lora", "lr": float(rate), "lora_rank": rank, "lora_alpha": 2 * rank},
        )
        for rank in (32, 128)
        for rate in ("1e-3", "4e-3")
    ),
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
        "SFT on the clean model's own answers that end within --max-new-tokens, afterwards",
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
        "blend-recovery",
        "recovery with two teachers, from weights between the cycle's start and mid-trained",
        "WiSE-FT, arXiv 2109.01903, then " + _OPD,
        follow=DISTILL,
        settings=_TWO | {"blend": 0.6},
    ),
    Arm(
        "blend-questions-recovery",
        "recovery with two teachers, from 80% of mid-training's change; half of the prompts are questions, 90 steps",
        "WiSE-FT, arXiv 2109.01903, then " + _OPD,
        follow=DISTILL,
        settings=_QUESTIONS,
    ),
    Arm(
        "questions-recovery",
        "recovery with two teachers from the mid-trained model itself; half of the prompts are questions, 60 steps",
        "the start beside questions-blend-recovery; " + _OPD,
        follow=DISTILL,
        settings=_TWO | {"knowledge_share": 0.5, "steps": 60},
    ),
    Arm(
        "questions-blend-recovery",
        "questions-recovery, from 80% of mid-training's change",
        "WiSE-FT, arXiv 2109.01903; the rest as questions-recovery",
        follow=DISTILL,
        settings=_TWO | {"knowledge_share": 0.5, "steps": 60, "blend": 0.8},
    ),
    Arm(
        "keep-older-recovery",
        "blend-questions-recovery, with older versions of a document kept beside the newer ones",
        "what replacing them changes: docs/corpus.md; the rest as blend-questions-recovery",
        {"older_versions": "keep"},
        DISTILL,
        _QUESTIONS,
    ),
    Arm(
        "writer",
        "mid-training alone, with the texts that a capable model wrote about the documents",
        "Active Reading, arXiv 2508.09494",
        _TEXTS,
    ),
    Arm(
        "writer-recovery",
        "a capable model's texts, then recovery with two teachers from 80% of the change; half of the prompts are "
        "questions, 90 steps",
        "the texts as above, WiSE-FT, arXiv 2109.01903, then " + _OPD,
        _TEXTS,
        DISTILL,
        _QUESTIONS,
    ),
    Arm(
        "writer-questions-recovery",
        "a capable model's texts, and its questions in both stages: with answers in mid-training, asked of the "
        "mid-trained teacher in a recovery from 80% of the change; half of the prompts are questions, 90 steps",
        "questions with answers beside documents: arXiv 2402.12847; the rest as writer-recovery",
        _ASKING_TEXTS,
        DISTILL,
        _WRITER_QUESTIONS,
    ),
    Arm(
        "writer-documents-recovery",
        "writer-questions-recovery, and 30% of the recovery's tokens are the documents and the texts, scored by the "
        "teachers of their questions",
        "document text in a recovery: docs/corpus.md; the rest as writer-questions-recovery",
        _ASKING_TEXTS,
        DISTILL,
        _WRITER_QUESTIONS | {"document_loss": 0.3, "document_teacher": True, "document_texts": True},
    ),
    Arm(
        "replay-recovery",
        "30% replay, then recovery with two teachers",
        "less to recover: replay as above, then " + _OPD,
        {"replay": 0.3},
        DISTILL,
        _TWO,
    ),
    Arm(
        "kl-replay-recovery",
        "30% replay by KL, then recovery with two teachers; half of the prompts are questions",
        "less to recover, so that less is lost in it: kl-replay, then " + _OPD,
        {"replay": 0.3, "replay_loss": "kl"},
        DISTILL,
        _TWO | {"knowledge_share": 0.5},
    ),
    Arm(
        "kl-replay-lora-recovery",
        "kl-replay-recovery with LoRA in both stages: the defaults of a model that full fine-tuning does not fit",
        "LoRA Without Regret (2025), its ten-fold rate; the rest as kl-replay-recovery",
        {"replay": 0.3, "replay_loss": "kl", "tuning": "lora"},
        DISTILL,
        _TWO | {"knowledge_share": 0.5, "tuning": "lora"},
    ),
    Arm(
        "half-rate-recovery",
        "kl-replay-recovery with half the rate in mid-training",
        "what limits a recovery: docs/log.md, 1 December; the rest as kl-replay-recovery",
        {"replay": 0.3, "replay_loss": "kl", "lr": 2e-4},
        DISTILL,
        _TWO | {"knowledge_share": 0.5},
    ),
    Arm(
        "kl-replay-writer-recovery",
        "30% replay by KL with a capable model's texts and questions in mid-training, then recovery with two teachers; "
        "half of the prompts are questions",
        "the texts of writer-questions-recovery, the rest as kl-replay-recovery",
        _ASKING_TEXTS | {"replay": 0.3, "replay_loss": "kl"},
        DISTILL,
        _TWO | {"knowledge_share": 0.5, "writer_questions": True},
    ),
    Arm(
        "rows",
        "mid-training alone, of the embeddings only the rows of the documents' tokens",
        "drift of the other rows: Biś, Podkorytov and Liu, NAACL 2021; arXiv 2502.08441",
        {"embeddings": "documents"},
    ),
    Arm(
        "rows-recovery",
        "the rows of the documents' tokens alone, then recovery with two teachers and without embeddings",
        "rows as above, then " + _OPD,
        {"embeddings": "documents"},
        DISTILL,
        _TWO | {"embeddings": "none"},
    ),
    Arm(
        "recovery-chat",
        "the same recovery on ordinary chat prompts alone, without verifiable instructions",
        _OPD,
        follow=DISTILL,
        settings=_TWO | {"prompts": "composer:chat"},
    ),
    Arm(
        "without-format-recovery",
        "blend-questions-recovery, with no prompt that asks for a format, for upper or lower case or for keywords",
        "whether behaviour comes back that no prompt asks for: arXiv 2605.22731; the rest as blend-questions-recovery",
        follow=DISTILL,
        settings=_QUESTIONS | {"without_kinds": FORMAT_KINDS},
    ),
    Arm(
        "without-length-recovery",
        "blend-questions-recovery, with prompts of the other half alone: none asks for a length, a language, "
        "punctuation, a beginning or ending, placeholders or two answers",
        "as without-format-recovery",
        follow=DISTILL,
        settings=_QUESTIONS | {"without_kinds": LENGTH_KINDS},
    ),
)
ARMS: Mapping[str, Arm] = {arm.name: arm for arm in _ALL}
"""Every arm by name, the simplest first."""


def arm_named(name: str) -> Arm:
    """Return the arm called ``name``. Raise UsageError, suggesting the nearest name, if there is none."""
    if name in ARMS:
        return ARMS[name]
    near = difflib.get_close_matches(name, ARMS, 1)
    hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(ARMS)}"
    raise UsageError(f"there is no arm {name!r}: {hint} (`recover methods arms` lists them)")
