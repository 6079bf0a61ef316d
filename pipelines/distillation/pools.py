"""Pools of a distillation: prompts that fit, document rows, and completions to imitate."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipelines.data.document_rows import row_length, rows_of
from pipelines.distillation.batch_builder import Pools
from pipelines.distillation.resolve import ResolvedDistillation
from pipelines.runtime.generation import (
    clean_answers,
    fitting,
    record_sampled_tokens,
)
from pipelines.runtime.model_loading import load_frozen
from pipelines.runtime.session import Session
from pipelines.runtime.stage import Stage
from recovery.batching import Row
from recovery.config import DistillConfig
from recovery.errors import UsageError
from recovery.models.loading import Loaded
from recovery.rewards import judged
from recovery.rollouts import Sampling
from recovery.types import Message, Prompt
from recovery.workspace import Checkpoint


def build_pools(
    config: DistillConfig, resolved: ResolvedDistillation, loaded: Loaded, given: Sequence[tuple[Message, ...]]
) -> Pools:
    room = loaded.max_length - min(config.max_new_tokens, loaded.max_length // 2)
    fit = fitting(loaded.chat, resolved.train, room)
    behaviour = [p for p in fit if _context_fits(config, resolved, loaded, p)]
    questions = fitting(loaded.chat, resolved.questions, room) if resolved.knowledge is not None else []
    if not behaviour and config.alpha > 0:
        raise UsageError(
            f"every prompt, with its context, is longer than the {room} tokens that leave room for an answer: lower "
            f"--max-new-tokens, or give shorter prompts with --prompts"
        )
    documents: list[Row] = []
    if config.document_loss:
        length = row_length(resolved.student, config.row_length)
        documents = rows_of(loaded.tokenizer, length, *resolved.corpora.values())
    return Pools(behaviour, questions, given, documents)


def _context_fits(config: DistillConfig, resolved: ResolvedDistillation, loaded: Loaded, prompt: Prompt) -> bool:
    """Whether the prompt with its context and a completion fit into the teacher's context window."""
    if resolved.context is None:
        return True
    ids = loaded.chat.prompt_ids(resolved.context.messages(prompt, prompt.messages))
    return len(ids) + config.max_new_tokens <= loaded.max_length


def given_completions(
    session: Session, stage: Stage, config: DistillConfig, resolved: ResolvedDistillation, student: Checkpoint
) -> tuple[list[tuple[Message, ...]], int]:
    """Return the off-policy conversations, the user's or sampled from a frozen model, and the tokens sampled."""
    if config.alpha == 1.0:
        return [], 0
    if config.answers == "given":
        return list(resolved.given), 0
    source = (resolved.teacher or session.base) if config.answers == "teacher" else student
    loaded = load_frozen(session.verified(source), config)
    wanted = math.ceil(config.steps / config.batch_epochs * config.prompts_per_step * (1 - config.alpha))
    prompts = fitting(loaded.chat, resolved.train, loaded.max_length // 2)[:wanted]
    repeated = [p for p in prompts for _ in range(config.samples_per_prompt if config.answers == "rejection" else 1)]
    sampling = Sampling(config.max_new_tokens, config.temperature, seed=config.seed)
    answered = clean_answers(stage, source, loaded, repeated, sampling, config)
    sampled_tokens = record_sampled_tokens(stage, loaded, answered)
    if config.answers == "rejection" and resolved.reward is not None:
        answered = [a for a in answered if judged(resolved.reward, a.prompt, a.answer) >= config.keep_above]
    if not answered:
        raise UsageError(f"no answer of {source.name} was kept: lower --keep-above, or raise --max-new-tokens")
    return [a.messages for a in answered], sampled_tokens
