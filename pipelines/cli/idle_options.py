"""Options that would have no effect beside the other settings.

Only what a user typed is refused: recipes and model folders may hold settings that wait for others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recovery.config import CycleConfig, DistillConfig, EvalConfig, MidtrainConfig
from recovery.errors import UsageError
from recovery.settings import flag_of

# Names of settings, whether they act, and what to do if they do not, to follow the flag and its value.
_Rule = tuple[tuple[str, ...], bool, str]


def check_given(given: Mapping[str, Any], config: Any) -> None:
    """Raise UsageError for the first option ``given`` that has no effect in the configuration made from it."""
    for names, acts, remedy in _rules(config):
        idle = () if acts else [name for name in names if name in given]
        for name in idle:
            raise UsageError(f"{flag_of(type(config), name)} {given[name]} {remedy}")


def _rules(config: Any) -> Iterator[_Rule]:
    if isinstance(config, CycleConfig):
        teacher = config.knowledge_teacher is not None and config.distill.scores_completions
        yield ("gate_samples", "gate_extend", "gate_alpha"), bool(config.gate), "is of a gate: give it a rule (--gate)"
        yield _augmented(config.midtrain)
        yield _asked(teacher, "the method, or --knowledge-teacher none, excludes one: omit either")
        yield _adapter(config.midtrain.tuning, config.distill.tuning)
        yield _responses(config.eval)
    elif isinstance(config, MidtrainConfig):
        remedy = "is about chat that base answers: set its share, as in --replay 0.3, and omit --replay-data"
        yield ("replay_prompts",), config.samples_replay, remedy
        yield _augmented(config)
        yield _adapter(config.tuning)
    elif isinstance(config, DistillConfig):
        yield _asked(config.knowledge_teacher is not None, "name one with --knowledge-teacher, e.g. midtrained")
        yield ("ema_decay",), config.teaching.kind == "ema", f"needs --teacher ema, not {config.teacher}"
        yield ("ratio_cap",), config.uses_importance_weights, _uncorrected(config)
        repeated = config.alpha > 0 or config.answers == "rejection"
        yield ("samples_per_prompt",), repeated, "is of the student's own completions, and --alpha 0 has none: omit it"
        yield _adapter(config.tuning)
    elif isinstance(config, EvalConfig):
        yield _responses(config)


def _augmented(config: MidtrainConfig) -> _Rule:
    remedy = "is about augmented text: set the number of paraphrases, as in --augment 4"
    return ("augment_share", "augment_questions"), config.augment > 0, remedy


def _asked(teacher: bool, remedy: str) -> _Rule:
    return ("knowledge_share", "earlier_share"), teacher, f"is about questions of a knowledge teacher: {remedy}"


def _uncorrected(config: DistillConfig) -> str:
    if not config.scores_completions or config.divergence == "sampled":
        return "bounds the weights of own completions in a teacher's divergence, of which there is none: omit it"
    hot = "" if config.temperature == 1 else f" (at --temperature 1, not {config.temperature:g})"
    return (
        f"corrects for completions of another engine{hot}, or, with a teacher of another tokenizer, of older weights: "
        "omit it, or sample with another --engine, or with such a teacher set --batch-epochs above 1"
    )


def _adapter(*tunings: str) -> _Rule:
    remedy = "is of a LoRA adapter, which --tuning full does not make: omit one or the other"
    return ("lora_rank", "lora_alpha"), set(tunings) != {"full"}, remedy


def _responses(config: EvalConfig) -> _Rule:
    remedy = "is about IFEval's own prompts: name their file, or 'hub', with --ifeval"
    return ("ifeval_tokens",), config.ifeval is not None, remedy
