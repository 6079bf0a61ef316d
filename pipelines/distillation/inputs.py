"""Prompts, context and answers of a distillation, checked against its method. Does not import torch."""

from __future__ import annotations

from pathlib import Path

from recovery.config import DistillConfig
from recovery.data.prompt_files import load_conversations
from recovery.data.prompts import PromptSplits, behaviour_prompts, without_held_out, without_kinds
from recovery.errors import UsageError
from recovery.rewards import can_judge
from recovery.teacher_spec import Context
from recovery.text_files import read_text
from recovery.types import Message, Prompt


def check_inputs(config: DistillConfig, model_folder: Path) -> None:
    """Raise UsageError if the method cannot use the prompts, or lacks a context or answers; reads no documents."""
    prompts = recovery_prompts(config, model_folder)
    usable(config, prompts, context_of(config), [])
    given_answers(config, prompts, [])


def recovery_prompts(config: DistillConfig, model_folder: Path) -> PromptSplits:
    """Return the prompts of a distillation, without the kinds of instruction that it leaves out."""
    prompts = behaviour_prompts(model_folder, config.prompts, config.seed)
    return without_kinds(prompts, config.without_kinds) if config.without_kinds else prompts


def given_answers(config: DistillConfig, prompts: PromptSplits, notes: list[str]) -> tuple[tuple[Message, ...], ...]:
    """Return the conversations to imitate, if the user or the prompts are to provide them."""
    if config.alpha == 1.0 or config.answers != "given":
        return ()
    return tuple(_demonstrations(config, prompts, notes))


def context_of(config: DistillConfig) -> Context | None:
    """Return the context that only the teacher reads, if there is one. Raise UsageError if its file has no text."""
    if config.context == "none":
        return None
    text = read_text(config.context_file).strip() if config.context_file else ""
    return Context.of(config.context, text, config.context_template)


def usable(
    config: DistillConfig, prompts: PromptSplits, context: Context | None, notes: list[str]
) -> tuple[Prompt, ...]:
    """Return the training prompts that the method can use. Raise UsageError if there are none."""
    if not prompts.train:
        raise UsageError(f"there is no behaviour prompt to train on ({prompts.source}): give more with --prompts")
    kept = [p for p in prompts.train if context is None or context.fits(p)]
    if not kept:
        raise UsageError(
            f"no prompt has the text that --context {config.context} gives the teacher: give --context-file, or "
            f"prompts with {'an answer' if config.context == 'answer' else 'a context'} each (--prompts)"
        )
    if config.rewarded:
        kept = [p for p in kept if can_judge(config.reward, p)]
    if not kept:
        raise UsageError(
            f"--reward {config.reward} can judge none of the prompts ({prompts.source}): they need checks or an answer"
        )
    if len(kept) < len(prompts.train):
        unfit = len(prompts.train) - len(kept)
        notes.append(f"{unfit} of {len(prompts.train)} prompts cannot be used by {config.method}")
    return tuple(kept)


def _demonstrations(config: DistillConfig, prompts: PromptSplits, notes: list[str]) -> list[tuple[Message, ...]]:
    """Return conversations that end in the answer to imitate: the user's file, or prompts with a reference answer."""
    if config.data is not None:
        conversations = load_conversations(config.data, notes=notes)
        return without_held_out(conversations, prompts, given=f"--data {config.data}", notes=notes)
    chats = [(*p.messages, Message(role="assistant", content=p.answer)) for p in prompts.train if p.answer is not None]
    if not chats:
        raise UsageError(
            f"--answers given: none of the prompts has an answer ({prompts.source}): give conversations with "
            f"--data FILE, or use a model's completions (--answers teacher)"
        )
    return chats
