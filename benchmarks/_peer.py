"""TRL's trainers in the fastest configuration for this machine.

Gradient checkpointing is off, all rows or prompts of a step are one batch unless a benchmark sets otherwise, and matrix
products run in bfloat16 (autocast) if the processor supports it.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from recovery.models.hardware import pick_precision
from recovery.types import Message, Prompt

try:
    from datasets import Dataset
    from trl import DistillationConfig, DistillationTrainer, SFTConfig, SFTTrainer
except ImportError:
    DistillationTrainer = None

SIDES = ("ours",) if DistillationTrainer is None else ("ours", "TRL")
"""The sides that can be compared: TRL's if it is installed."""


def trainer(
    student: str,
    teacher: str,
    conversations: Sequence[Sequence[Message]],
    callback: TrainerCallback,
    *,
    weights: torch.dtype = torch.float32,
    teacher_weights: torch.dtype | None = None,
    lora: Any = None,
    **settings: Any,
) -> Any:
    """Return TRL's trainer of the reverse KL on these prompts, in this order; ``settings`` override its arguments.

    ``weights`` is the data type of both models' weights (autocast handles the rest), ``teacher_weights`` that of the
    teacher's alone, ``lora`` a peft configuration.
    """
    return DistillationTrainer(
        model=AutoModelForCausalLM.from_pretrained(student, dtype=weights),
        teacher_model=AutoModelForCausalLM.from_pretrained(teacher, dtype=teacher_weights or weights),
        args=DistillationConfig(beta=1.0, **_usual(settings)),
        train_dataset=Dataset.from_list([{"prompt": list(talk)} for talk in conversations]),
        processing_class=AutoTokenizer.from_pretrained(student, padding_side="left"),
        callbacks=[callback],
        peft_config=lora,
    )


def text_trainer(model: str, texts: Sequence[str], row: int, **settings: Any) -> Any:
    """Return TRL's trainer of the cross-entropy on texts packed into rows of ``row`` tokens without any padding."""
    return SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        args=SFTConfig(packing=True, packing_strategy="wrapped", max_length=row, **_usual(settings)),
        train_dataset=Dataset.from_list([{"text": text} for text in texts]),
        processing_class=AutoTokenizer.from_pretrained(model),
    )


def _usual(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of either trainer, overridden by ``settings``."""
    return {
        "output_dir": tempfile.mkdtemp(),
        "gradient_checkpointing": False,
        "lr_scheduler_type": "constant",
        "bf16": pick_precision("auto", torch.device("cpu")) == torch.bfloat16,
        "use_cpu": True,
        "shuffle_dataset": False,
        "disable_tqdm": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": settings["max_steps"] + 1,
        **settings,
    }


def single(prompt: Prompt) -> bool:
    """Whether a prompt has a single turn: TRL responds only to the last turn of longer ones."""
    return sum(message["role"] == "user" for message in prompt.messages) == 1


def mean_length(running: Any, batches: int = 1) -> float:
    """Return the mean response length, in tokens, of the trainer's newest step, which took this many batches."""
    return statistics.fmean(running._metrics["train"]["completions/mean_length"][-batches:])


def between_steps(before: Callable[[], None], after: Callable[[], None]) -> TrainerCallback:
    """Return a callback that calls ``before`` at the start and ``after`` at the end of each step of the trainer."""

    class Between(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_args: Any, **_kwargs: Any) -> None:
            before()

        def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
            after()

    return Between()
