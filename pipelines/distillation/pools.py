"""Pools of a distillation: prompts that fit, document rows, and completions to imitate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from pipelines.data.augment import text_documents
from pipelines.data.document_rows import row_length, text_rows
from pipelines.data.mixing import shuffled
from pipelines.distillation.batch_builder import Pools
from pipelines.distillation.resolve import ResolvedDistillation
from pipelines.distillation.teaching import longest_scored, shortest_window
from pipelines.runtime.generation import answered_before, fitting, last_request
from pipelines.runtime.model_loading import FrozenModel
from pipelines.runtime.stage import Stage
from recovery.batching import Row
from recovery.config import DistillConfig
from recovery.data.corpus import Document
from recovery.errors import UsageError
from recovery.losses.objective import DOCUMENTS, EARLIER_DOCUMENTS, LABEL
from recovery.models.loaded import Loaded
from recovery.rewards import judged
from recovery.rng import RandomStream
from recovery.rollouts.engine import Sampling, window_with
from recovery.teachers import Teacher
from recovery.types import Message, Prompt


def build_pools(
    resolved: ResolvedDistillation,
    loaded: Loaded,
    given: Sequence[tuple[Message, ...]],
    teachers: Mapping[str, Teacher] = MappingProxyType({}),
    engine: object = None,
    say: Callable[[str], None] = lambda _text: None,
) -> Pools:
    """Return what fits the windows of student, ``engine`` and ``teachers``; ``say`` gets a line about what does not."""
    config = resolved.config
    window, longest = window_with(engine, loaded.max_length), longest_scored(teachers, loaded)
    room = window - min(config.max_new_tokens, window // 2)
    most = shortest_window(teachers, loaded)
    if most < window:  # an engine ends a completion at its window, no teacher can score more than its own
        room = max(0, min(room, most - config.max_new_tokens))
    fit = fitting(loaded.chat, resolved.train, room, config.max_new_tokens)
    if len(fit) < len(resolved.train):
        left = len(resolved.train) - len(fit)
        say(f"{left:,} of {len(resolved.train):,} prompts left out: they have more than {room:,} tokens")
    behaviour = [p for p in fit if _context_fits(resolved, loaded, p, longest)]
    scored = resolved.knowledge is not None
    questions = fitting(loaded.chat, resolved.questions, room, config.max_new_tokens) if scored else []
    earlier = fitting(loaded.chat, resolved.earlier_questions, room, config.max_new_tokens) if scored else []
    if not behaviour and config.alpha > 0:
        raise UsageError(
            f"every prompt, with its context, is longer than the {room} tokens that leave room for an answer: lower "
            f"--max-new-tokens, or give shorter prompts with --prompts"
        )
    imitated = _whole(loaded, given, most, say)
    documents = _document_rows(resolved, loaded) if config.document_loss else ()
    return Pools(behaviour, questions, earlier, imitated, documents)


def _whole(
    loaded: Loaded, given: Sequence[tuple[Message, ...]], longest: int, say: Callable[[str], None]
) -> list[tuple[Message, ...]]:
    """Return the conversations of at most ``longest`` tokens: a cut one would teach to end in mid-sentence, or nothing.

    Raise UsageError if none is left.
    """
    kept = [messages for messages in given if len(loaded.chat.conversation(messages)[0]) <= longest]
    if long := len(given) - len(kept):
        left = f"{long:,} of {len(given):,} conversations to imitate left out: they have more than {longest:,} tokens"
        if not kept:
            raise UsageError(f"{left}, which is what the model takes: give shorter ones")
        say(left)
    return kept


def _document_rows(resolved: ResolvedDistillation, loaded: Loaded) -> list[Row]:
    """Return document text as packed rows, each with the name of what scores it."""
    config, length = resolved.config, row_length(resolved.student, resolved.config.row_length)
    by_teacher: dict[str, list[Document]] = {}
    for number, own in resolved.corpora.items():
        texts = text_documents(own) if config.document_texts else ()
        by_teacher.setdefault(_scorer(resolved, number), []).extend([*own.documents, *texts])
    return [
        dataclasses.replace(row, teacher=teacher)
        for teacher, documents in by_teacher.items()
        for row in text_rows(loaded.tokenizer, length, documents)
    ]


def _scorer(resolved: ResolvedDistillation, number: int) -> str:
    """Return the name, used in rows, of what scores the document text of a cycle: its own tokens, or a teacher."""
    if not resolved.config.document_teacher:
        return LABEL
    return DOCUMENTS if number == resolved.cycle else EARLIER_DOCUMENTS


def _context_fits(resolved: ResolvedDistillation, loaded: Loaded, prompt: Prompt, longest: int) -> bool:
    """Whether the prompt with its context and all completions is one of the teacher's rows, of ``longest`` tokens."""
    if resolved.context is None:
        return True
    messages, before = last_request(prompt.messages)
    ids = loaded.chat.prompt_ids(resolved.context.messages(prompt, messages))
    return len(ids) + resolved.config.max_new_tokens * (before + 1) <= longest


def given_completions(
    stage: Stage, frozen: FrozenModel, resolved: ResolvedDistillation
) -> tuple[list[tuple[Message, ...]], int]:
    """Return the off-policy conversations, the user's or sampled from a frozen model, and the tokens sampled."""
    config = resolved.config
    if config.alpha == 1.0:
        return [], 0
    if config.answers == "given":
        return list(resolved.given), 0
    source = (resolved.teacher or resolved.clean) if config.answers == "teacher" else resolved.student
    answered, sampled_tokens = answered_before(
        stage,
        frozen,
        source,
        # A file's first prompts may all be of one kind; steps draw theirs in this order.
        shuffled(resolved.train, config.seed, RandomStream.BEHAVIOUR_PROMPTS, config.prompts_before or 0),
        Sampling(config.max_new_tokens, config.temperature, seed=config.seed),
        count=math.ceil(config.steps / config.batch_epochs * config.prompts_per_step * (1 - config.alpha)),
        each=config.samples_per_prompt if config.answers == "rejection" else 1,
        most=_sampling_budget(config),
    )
    ended = bool(answered)
    if config.answers == "rejection" and resolved.reward is not None:
        reward, limit = resolved.reward, config.reward_timeout
        answered = [a for a in answered if judged(reward, a.prompt, a.answer, limit) >= config.keep_above]
    if not answered:
        larger = "--max-new-tokens" if config.max_tokens is None else "--max-new-tokens or --max-tokens"
        lower = "lower --keep-above, or " if ended else ""
        why = "" if ended else f", since none ended within {config.max_new_tokens:,} tokens"
        raise UsageError(f"no answer of {source.name} was kept{why}: {lower}raise {larger}")
    return [a.messages for a in answered], sampled_tokens


def _sampling_budget(config: DistillConfig) -> int | None:
    """Return the share of --max-tokens for responses that are sampled before the first step, so that the rest suffices
    to train each about once: responses are sampled, trained and, unless they are only imitated, scored.
    """
    uses = 2 if config.imitates else 3
    share = (config.prompts_per_step - config.on_policy_prompts_per_step) / config.rows_per_step
    return None if config.max_tokens is None else round(config.max_tokens * share / uses)
