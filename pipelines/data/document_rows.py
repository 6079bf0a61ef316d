"""Documents and conversations as packed rows of tokens; documents longer than a row are split at paragraph ends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from recovery.batching import Row, pack
from recovery.data.corpus.documents import Document
from recovery.data.corpus.text import WIDE_ENDS, paragraphs
from recovery.lazy_import import lazily
from recovery.models.chat_template import ChatFormat
from recovery.models.control_tokens import ControlTokens, adds_bos
from recovery.types import Message
from recovery.workspace import Checkpoint

_DOCUMENT_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<eos>", "</s>", "<｜end▁of▁sentence｜>")
_TITLE_SHARE = 0.25
_RARE = "\u16a0\U0001f70d\U00013000\ua66e"  # of four scripts: what knows these encodes by bytes

Encode = Callable[[str], list[int]]


def end_of_document_id(tokenizer: Any) -> int | None:
    """Return the pre-training end-of-document token, often not the end-of-turn token in chat models."""
    known = tokenizer.get_added_vocab()
    token_id = next((known[token] for token in _DOCUMENT_ENDS if token in known), None)
    return tokenizer.eos_token_id if token_id is None else token_id


def unknown_characters(documents: Iterable[Document], tokenizer: Any) -> tuple[int, int, str]:
    """Return how many characters of the documents a tokenizer drops or makes unknown, their total, and the commonest.

    White space is not counted. Most tokenizers encode any character by its bytes and know all of them.
    """

    def missed(text: str) -> list[str]:
        encoding = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        known = bytearray(len(text))
        for token, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token != tokenizer.unk_token_id:
                known[begin:end] = b"\1" * (end - begin)
        return [c for c, one in zip(text, known, strict=True) if not one and not c.isspace()]

    if not missed(_RARE):  # it knows every character: the documents need not be encoded
        return 0, 0, ""
    lost, total = Counter[str](), 0
    for document in documents:
        lost.update(missed(document.text))
        total += sum(not character.isspace() for character in document.text)
    return lost.total(), total, "".join(character for character, _ in lost.most_common(5))


def document_rows(documents: Iterable[Document], tokenizer: Any, max_length: int) -> Iterator[list[int]]:
    """Yield the token ids of the documents as rows of at most ``max_length`` tokens.

    A long document is split into several rows, between paragraphs where possible, then between sentences; each row
    after the first repeats the title. The last row of a document ends with the end-of-document token, if there is
    one; rows start with the beginning-of-sequence token if the tokenizer adds one by default. Special tokens spelt
    out in the text are encoded as plain text. Raises ValueError if ``max_length`` is too short.
    """
    begin = [tokenizer.bos_token_id] if adds_bos(tokenizer) else []
    end = end_of_document_id(tokenizer)
    tail = [] if end is None else [end]
    room = max_length - len(begin) - len(tail)
    if room < 8:
        raise ValueError(f"rows of {max_length} tokens are too short to hold text")

    encode = ControlTokens(tokenizer).plain
    for document in documents:
        windows = [w for w in _windows(document, encode, room) if w]
        yield from (begin + ids + (tail if i == len(windows) - 1 else []) for i, ids in enumerate(windows))


def _windows(document: Document, encode: Encode, room: int) -> Iterator[list[int]]:
    ids = encode(document.text)
    if len(ids) <= room:
        yield ids
        return
    title = f"{document.title}\n\n"
    title_tokens = len(encode(title))
    if title_tokens > _TITLE_SHARE * room:
        title, title_tokens = "", 0
    first = True
    for text in _chunks(document.text, encode, room - title_tokens):
        row = encode(text if first or not title else title + text)
        first = False
        # Joined pieces can have slightly more tokens than their sum: the excess becomes a row of its own.
        yield from (row[start : start + room] for start in range(0, len(row), room))


def _chunks(text: str, encode: Encode, room: int) -> Iterator[str]:
    """Yield chunks filled greedily with paragraphs; long ones are split into sentences, long sentences into words."""
    room -= max(1, room // 64)
    return (chunk.strip("\n") for chunk in _filled(_pieces(text, encode, room), room))


def _pieces(text: str, encode: Encode, room: int) -> Iterator[tuple[str, int]]:
    """Yield paragraphs, parts of them if they are too long, each with its number of tokens."""
    for block in paragraphs(text):
        block += "\n\n"
        if (size := len(encode(block))) <= room:
            yield block, size
            continue
        for sentence in re.split(rf"(?<=[.!?\n])(?=\s)|(?<=[{WIDE_ENDS}])", block):
            if (size := len(encode(sentence))) <= room:
                yield sentence, size
            else:
                words = re.findall(r"\s*\S+\s*$|\s*\S+", sentence)
                parts = _filled(((word, len(encode(word))) for word in words), room)
                yield from ((part, len(encode(part))) for part in parts)


def _filled(pieces: Iterable[tuple[str, int]], room: int) -> Iterator[str]:
    """Yield texts of consecutive pieces, each with its size, of at most ``room`` in all or of one piece."""
    text, used = "", 0
    for piece, size in pieces:
        if text and used + size > room:
            yield text
            text, used = "", 0
        text += piece
        used += size
    if text:
        yield text


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
