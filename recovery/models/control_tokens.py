"""Control tokens: those that a tokenizer reads as structure (the ends and openings of turns and texts), not as words.

Text that spells one, such as ``<|im_end|>`` in a question about chat templates, is only text: it is tokenised as any
other. In a conversation the chat template writes both markers and text into one string. There the spelled tokens of
the text are replaced by *marks* (characters that no text can hold) before the template sees them, and the string is
encoded by a copy of the tokenizer in which the control tokens have other names: what the template wrote gets these
names, what the marks stand for gets its own spelling back, and no longer is a token. A string without marks is encoded
by the tokenizer itself.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from tokenizers import Tokenizer

from recovery.errors import ModelError

# Tokens that end an assistant turn in common chat formats; a model often lists only one of its own.
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<turn|>", "<|end|>", "<|return|>")

_PRIVATE, _NUMBERS = 0xF0000, 0x100000  # planes of private characters, 65,534 each
_ALL = 65_534
# Drawn in every process, so that no text can contain it. Token ids do not depend on it.
_SECRET = "".join(chr(_PRIVATE + secrets.randbelow(_ALL)) for _ in range(6))
_MARK = re.compile(f"{_SECRET}(.)", re.DOTALL)
_CUT = re.compile("|".join(map("".join, itertools.pairwise(_SECRET))))  # matches a whole mark and any part of one


def turn_ends(vocabulary: Collection[str]) -> list[str]:
    """Return the tokens of a vocabulary that end an assistant turn.

    With ``<|return|>`` (gpt-oss), ``<|end|>`` ends only a part of it, such as the analysis.
    """
    return [one for one in TURN_ENDS if one in vocabulary and not (one == "<|end|>" and "<|return|>" in vocabulary)]


def adds_bos(tokenizer: Any) -> bool:
    """Whether the tokenizer begins every text with its beginning-of-sequence token by default."""
    bos = tokenizer.bos_token_id
    return bos is not None and list(tokenizer("a")["input_ids"])[:1] == [bos]


class ControlTokens:
    """The control tokens of a tokenizer: its special tokens, the known ends of a turn, and the ids ``also``.

    An added token that the tokenizer does not declare special (``<think>`` and ``<tool_call>`` of Qwen3) is an ordinary
    token.
    """

    def __init__(self, tokenizer: Any, also: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        wanted = {*also, *tokenizer.all_special_ids}
        added: Mapping[int, Any] = tokenizer.added_tokens_decoder
        self._ids = {
            token.content: number
            for number, token in added.items()
            if token.content and (token.special or number in wanted or token.content in TURN_ENDS)
        }
        # The unknown token also stands for characters that the vocabulary lacks, in any text.
        self._controls = frozenset(self._ids.values()) - {tokenizer.unk_token_id}
        self._names = {token: f"{_SECRET}{chr(_NUMBERS + place)}" for place, token in enumerate(self._ids)}
        self._tokens = list(self._ids)
        self._lengths = sorted({len(token) for token in self._ids}, reverse=True)
        firsts = "".join(sorted({re.escape(token[0]) for token in self._ids}))
        self._first = re.compile(f"[{firsts}]" if firsts else "(?!)")
        # Their spelling is compared after normalisation, by the tokenizer: a search of the text would miss some.
        self._normalised = any(added[number].normalized for number in self._controls)

    def __contains__(self, token: int) -> bool:
        return token in self._controls

    def mark(self, text: str, kept: Collection[str] = ()) -> str:
        """Return a text with marks for the control tokens that it spells, but for those ``kept``."""
        return self._replaced(text, lambda token: token if token in kept else self._names[token])

    def mark_all(self, value: Any, kept: Collection[str] = ()) -> Any:
        """Return a JSON value with marks in all its texts."""
        if isinstance(value, str):
            return self.mark(value, kept)
        if isinstance(value, Mapping):
            return {self.mark_all(key, kept): self.mark_all(item, kept) for key, item in value.items()}
        return [self.mark_all(item, kept) for item in value] if isinstance(value, list | tuple) else value

    def unmark(self, text: str) -> str:
        """Return a text with every mark as what it stands for. Raise ModelError if one was cut."""
        if not _CUT.search(text):
            return text
        plain = _MARK.sub(lambda mark: self._token(mark[1]), text)
        if _CUT.search(plain):
            raise ModelError(
                "the chat template changes the text of a message that spells a control token, so the two cannot be "
                "told apart: remove the token's spelling from the text"
            )
        return plain

    def encode(self, marked: str) -> list[int]:
        """Return the ids of a text without special tokens added: marks are text, control tokens outside them control.

        Raise ModelError if the tokenizer cannot keep them apart.
        """
        if not self._normalised and not _CUT.search(marked):
            return list(self._tokenizer(marked, add_special_tokens=False)["input_ids"])
        self.unmark(marked)  # refuses marks that are cut
        swapped: list[str] = []
        for place, piece in enumerate(_MARK.split(marked)):
            if place % 2:
                swapped.append(self._token(piece))
            else:
                swapped.append(self._replaced(piece, self._names.__getitem__))
        return list(self._renamed.encode("".join(swapped), add_special_tokens=False).ids)

    def plain(self, text: str) -> list[int]:
        """Return the ids of a text in which nothing is a control token. Raise ModelError if that cannot be."""
        ids = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
        if self._controls.isdisjoint(ids):
            return list(ids)
        # The text spells a control token that is not declared special.
        return list(self._renamed.encode(text, add_special_tokens=False).ids)

    def _token(self, number: str) -> str:
        """Return what the mark with this last character stands for; nothing for the end of a mark that was cut."""
        place = ord(number) - _NUMBERS
        return self._tokens[place] if 0 <= place < len(self._tokens) else _SECRET

    def _replaced(self, text: str, other: Callable[[str], str]) -> str:
        """Return a text with ``other`` of each control token, the longest at the first place."""
        parts, done = [], 0
        for found in self._first.finditer(text):
            at = found.start()
            if at < done:
                continue
            token = next((t for n in self._lengths if (t := text[at : at + n]) in self._ids), None)
            if token is not None:
                parts += [text[done:at], other(token)]
                done = at + len(token)
        return "".join([*parts, text[done:]]) if parts else text

    @functools.cached_property
    def _renamed(self) -> Tokenizer:
        """The tokenizer with its control tokens under names that no text can hold."""
        example = self._tokens[0]
        refused = ModelError(
            f"a text spells a control token such as {example!r}, which this tokenizer cannot read as text: save it as "
            f"a fast tokenizer (tokenizer.json), or remove the spelling from the text"
        )
        if not getattr(self._tokenizer, "is_fast", False):
            raise refused
        found = _rename(json.loads(self._tokenizer.backend_tokenizer.to_str()), self._names)
        try:
            renamed = Tokenizer.from_str(json.dumps(found))
        except Exception as error:  # the library has no class of its own for a definition that it refuses
            raise refused from error
        for token, number in self._ids.items():
            if renamed.token_to_id(self._names[token]) != number:
                raise refused
            if not self._controls.isdisjoint(renamed.encode(token, add_special_tokens=False).ids):
                raise refused
        return renamed


def _rename(definition: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the definition in tokenizer.json with other names for some tokens."""
    for token in definition["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = definition["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(token, token): number for token, number in vocabulary.items()}
    else:
        model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
    if "merges" in model:
        merges = (pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"])
        model["merges"] = [pair for pair in merges if not {*pair, "".join(pair)} & names.keys()]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return definition | {"post_processor": None, "truncation": None, "padding": None}
