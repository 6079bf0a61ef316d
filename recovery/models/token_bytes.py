"""The bytes that each token of a tokenizer spells, by which tokens of different tokenizers are compared.

Two forms are known, told apart by the tokenizer's decoder: byte-level BPE, which writes each byte as one printable
character (GPT-2, Llama 3, Qwen, SmolLM), and SentencePiece, which writes spaces as "▁" and bytes as <0x0A> (Llama 2,
Gemma).
"""

from __future__ import annotations

import json
import re
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from recovery.errors import ModelError

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"


def token_bytes(tokenizer: Any, name: str) -> list[bytes | None]:
    """Return what each token spells, in order of the ids; None for an id without a token.

    Added tokens, such as <|im_end|>, spell their own text. Raise ModelError if the tokenizer, called ``name`` in the
    message, has neither form.
    """
    kinds = _kinds(json.loads(tokenizer.backend_tokenizer.to_str()).get("decoder") if tokenizer.is_fast else None)
    added = {number: token.content for number, token in tokenizer.added_tokens_decoder.items()}
    vocabulary = tokenizer.get_vocab()
    found: list[bytes | None] = [None] * (max(vocabulary.values()) + 1)
    if "ByteLevel" in kinds:
        alphabet = {character: byte for byte, character in bytes_to_unicode().items()}
    elif kinds & {"ByteFallback", "Metaspace"}:
        alphabet = None
    else:
        raise ModelError(
            f"the tokens of {name} cannot be compared with another tokenizer's: it is neither a byte-level BPE nor a "
            f"SentencePiece tokenizer with a tokenizer.json; use a teacher of the student's model family"
        )
    for token, number in vocabulary.items():
        if number in added:
            found[number] = added[number].encode()
        elif alphabet is not None:
            found[number] = b"".join(bytes([alphabet[c]]) if c in alphabet else c.encode() for c in token)
        else:
            byte = _BYTE.fullmatch(token)
            found[number] = bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE, " ").encode()
    return found


def _kinds(decoder: Any) -> set[str]:
    """Return the types of a decoder and of its parts."""
    if not isinstance(decoder, dict):
        return set()
    return {str(decoder.get("type"))}.union(*(_kinds(part) for part in decoder.get("decoders", ())))
