"""Checks of teachers with another tokenizer, before weights are loaded: settings, templates, shared tokens."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from pipelines.distillation.resolve import ResolvedDistillation
from pipelines.runtime.generation import open_turns
from recovery.config import DistillConfig
from recovery.errors import UsageError
from recovery.losses.config import WHOLE_VOCABULARY
from recovery.models.chat_loading import load_chat
from recovery.models.chat_template import ChatFormat
from recovery.teachers import CrossTokenizer, check_same_tokens, same_tokens
from recovery.types import Message, Prompt
from recovery.workspace import Checkpoint


def other_tokenizers(resolved: ResolvedDistillation, student: ChatFormat) -> list[str]:
    """Return a note for each teacher with another tokenizer than the student's.

    Raise UsageError for settings that need the student's tokens, ModelError if such a teacher's tokens cannot be
    compared, or if its chat template cannot render the prompts.
    """
    config, notes = resolved.config, []
    for teacher, prompts in _teachers(resolved):
        if teacher.weights == resolved.student.weights:
            continue
        theirs = load_chat(str(teacher.weights), config.template_args, adapter=teacher.adapter)
        if same_tokens(student.tokenizer, theirs.tokenizer):
            continue
        _check_settings(config, resolved, teacher)
        cross = CrossTokenizer(student, theirs, teacher.name, sys.maxsize)
        for messages in _forms(prompts):
            cross.prompt_ids(messages)
        notes.append(
            f"the teacher {teacher.name} has another tokenizer, with {len(cross.shared):,} of the student's "
            f"{cross.tokens:,} tokens: responses are aligned by the text that tokens spell"
        )
    if config.anchor and resolved.clean.weights != resolved.student.weights:
        clean = load_chat(str(resolved.clean.weights), config.template_args, adapter=resolved.clean.adapter)
        names = {"student_name": resolved.student.name, "teacher_name": f"{resolved.clean.name}, the anchor"}
        check_same_tokens(student.tokenizer, clean.tokenizer, **names)
    return notes


def _teachers(resolved: ResolvedDistillation) -> Iterator[tuple[Checkpoint, Sequence[Prompt]]]:
    """Yield each frozen teacher with the prompts that it may score."""
    yield from ((teacher, resolved.train) for teacher in resolved.teachers)
    if resolved.knowledge is not None:
        yield resolved.knowledge, resolved.asked
    asked = (*resolved.train, *resolved.asked)
    for tag, teacher in resolved.experts.items():
        yield teacher, [prompt for prompt in asked if tag in prompt.tags]


def _check_settings(config: DistillConfig, resolved: ResolvedDistillation, teacher: Checkpoint) -> None:
    """Raise UsageError if a setting needs the student's tokens of a teacher that has others."""
    problem = ""
    if config.divergence not in WHOLE_VOCABULARY:
        problem = f"--divergence {config.divergence} cannot compare: use {' or '.join(WHOLE_VOCABULARY)}"
    elif config.continuation:
        problem = "--continuation cannot use: omit it"
    elif config.alpha < 1.0:
        problem = f"--alpha {config.alpha:g} excludes: only the student's own completions are aligned; set --alpha 1"
    elif config.temperature != 1.0:
        problem = f"--temperature {config.temperature:g} excludes: merged spans are estimated at 1; set --temperature 1"
    elif teacher in resolved.document_teachers:
        problem = "--document-teacher excludes: only the student's own completions are aligned; omit it"
    elif teacher in resolved.teachers and len(resolved.teachers) > 1:
        problem = "several weighted teachers cannot have: name one --teacher"
    if problem:
        raise UsageError(f"the teacher {teacher.name} has another tokenizer than the student, which {problem}")


def _forms(prompts: Sequence[Prompt]) -> Iterator[list[Message]]:
    """Yield the conversations to be completed, with placeholders for earlier responses: one of each form."""
    seen: set[tuple[object, ...]] = set()
    for prompt in prompts:
        history: list[Message] = []
        for turn in open_turns(prompt.messages):
            history += turn
            form = tuple((m["role"], "tool_calls" in m, bool(m.get("tools"))) for m in history)
            if form not in seen:
                seen.add(form)
                yield list(history)
            history.append(Message(role="assistant", content="..."))
