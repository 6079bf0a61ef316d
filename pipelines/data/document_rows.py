"""Documents and conversations as packed rows of tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from recovery.batching import Row, pack
from recovery.data.corpus.documents import Document
from recovery.data.corpus.rows import document_rows
from recovery.lazy_import import lazily
from recovery.models.chat_template import ChatFormat
from recovery.types import Message
from recovery.workspace import Checkpoint

transformers = lazily("transformers")


def text_rows(tokenizer: Any, length: int, documents: Sequence[Document]) -> list[Row]:
    """Return documents as packed rows of at most ``length`` tokens; all tokens are targets."""
    if not documents:
        return []
    return pack(((ids, [True] * len(ids)) for ids in document_rows(documents, tokenizer, length)), length)


def chat_rows(
    chat: ChatFormat,
    model: Checkpoint,
    conversations: Sequence[tuple[Message, ...]],
    length: int,
    cut: Collection[int] = (),
    *,
    notes: list[str] | None = None,
) -> list[Row]:
    """Return conversations as packed rows; rows are longer if a conversation is, up to the model's positions.

    ``cut`` are the indices of those whose last message was cut off: nothing says that it ends there. ``notes`` receives
    how many were left out because they are longer.
    """
    longest = _positions(model) or 2048
    marked = [chat.conversation(messages) for messages in conversations]
    marked = [_before_the_end(*row) if index in cut else row for index, row in enumerate(marked)]
    kept = [(ids, mask) for ids, mask in marked if len(ids) <= longest and any(mask)]
    if notes is not None and (long := sum(len(ids) > longest for ids, _ in marked)):
        notes.append(f"{long:,} of {len(marked):,} conversations left out: they have more than {longest:,} tokens")
    return pack(kept, max([length, *(len(ids) for ids, _ in kept)]))


def _before_the_end(ids: list[int], mask: list[bool]) -> tuple[list[int], list[bool]]:
    """Return a conversation without its last marked token, which ends the last turn, and what follows it."""
    end = max((index for index, marked in enumerate(mask) if marked), default=0)
    return ids[:end], mask[:end]


def row_length(student: Checkpoint, wanted: int) -> int:
    """Return ``wanted`` tokens, or the model's number of positions if that is lower."""
    return min(wanted, _positions(student) or wanted)


def _positions(model: Checkpoint) -> int | None:
    """Return the model's number of positions, if its configuration states one."""
    config = transformers.AutoConfig.from_pretrained(model.weights).get_text_config()
    return int(getattr(config, "max_position_embeddings", 0) or getattr(config, "n_positions", 0)) or None
