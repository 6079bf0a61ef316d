"""The tokenizer of a GGUF file, restored to its original form, and llama.cpp's names of pre-tokenizers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from recovery.errors import ModelError, first_line
from recovery.models.control_tokens import turn_ends
from recovery.models.gguf_files.header import END_TOKENS, Header

# Pre-tokenizers by llama.cpp's names. transformers uses GPT-2's for names it does not know; those in _DIGITS split off
# every digit first.
_DIGITS = frozenset(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"))
_TOKEN_KEYS = {"unk_token": "unknown_token", "pad_token": "padding_token"}
_LIKE_GPT2 = frozenset(("gpt-2", "mpt", "olmo", "jais", "phi-2"))
# llama.cpp looks a whole piece up in the vocabulary before it applies merges, for these names.
_WHOLE_PIECES = frozenset(("llama-bpe", "llama3", "llama-v3"))
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _by_words(numbers: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(_WORDS % numbers), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
_SINGLE_DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _GPT2])
# Those that can be written; llama.cpp has further names for the same splits.
PRE_TOKENIZERS: dict[str, tuple[pre_tokenizers.PreTokenizer, bool]] = {
    "gpt-2": (_GPT2, False),
    "smollm": (_SINGLE_DIGITS, False),
    "qwen2": (_by_words(r"\p{N}"), False),
    "llama-bpe": (_by_words(r"\p{N}{1,3}"), True),
    "dbrx": (_by_words(r"\p{N}{1,3}"), False),
}
"""Pre-tokenizer of each name, and whether whole pieces are looked up in the vocabulary before merges are applied."""


def read_tokenizer(header: Header, say: Callable[[str], None] = lambda text: None) -> Any:
    """Read the tokenizer with its chat template and special tokens. Raise ModelError if its kind is unknown.

    ``say`` receives a warning if its pre-tokenizer is unknown, so that tokens may differ from the original's.
    """
    try:
        # From a temporary folder: a tokenizer.json next to the file would be used instead of the file's.
        with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
            (Path(folder) / "model.gguf").symlink_to(header.path.resolve())
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, gguf_file="model.gguf")
    except Exception as error:  # a damaged file can cause any error in transformers
        raise ModelError(f"{header.path}: its tokenizer cannot be read: {first_line(error)}") from error
    tokenizer = _without_added_tokens(header, tokenizer)
    _set_pre_tokenizer(header, tokenizer, say)
    if header.metadata.get("tokenizer.ggml.add_bos_token") and tokenizer.bos_token is not None:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokenizer.bos_token} $A",
            pair=f"{tokenizer.bos_token} $A $B",
            special_tokens=[(tokenizer.bos_token, tokenizer.bos_token_id)],
        )
    return tokenizer


def _without_added_tokens(header: Header, tokenizer: Any) -> Any:
    """Remove tokens that are not in the file: transformers adds <|endoftext|> to Llama 3's."""
    count = int(header.metadata["tokenizer.ggml.tokens"])
    if len(tokenizer) <= count:
        return tokenizer
    core = json.loads(tokenizer.backend_tokenizer.to_str())
    core["added_tokens"] = [token for token in core["added_tokens"] if token["id"] < count]
    token_names = {
        name: str(getattr(tokenizer, name))
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        if header.metadata.get(f"tokenizer.ggml.{_TOKEN_KEYS.get(name, name)}_id") is not None
    }
    backend = Tokenizer.from_str(json.dumps(core))
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=tokenizer.chat_template, **token_names)


def end_ids(header: Header, tokenizer: Any) -> list[int]:
    """Return the tokens that end a response: those the file names, and the turn ends in its chat template."""
    vocabulary, template = tokenizer.get_vocab(), str(tokenizer.chat_template)
    declared = [header.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in END_TOKENS]
    ends = [int(token) for token in declared if token is not None]
    ends += [vocabulary[end] for end in turn_ends(vocabulary) if end in template]
    return list(dict.fromkeys(ends))


def _set_pre_tokenizer(header: Header, tokenizer: Any, say: Callable[[str], None]) -> None:
    backend = tokenizer.backend_tokenizer
    name = header.metadata.get("tokenizer.ggml.pre", "")
    if name in _WHOLE_PIECES:
        backend.model.ignore_merges = True
    if not isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):
        return  # supported by transformers, or not byte-pair encoding
    if name in _DIGITS:
        backend.pre_tokenizer = _SINGLE_DIGITS
    elif name not in _LIKE_GPT2:
        say(f"{header.path.name} has the unknown pre-tokenizer {name or 'none'!r}: using GPT-2's, tokens may differ")
