"""A teacher with another tokenizer: it reads the same conversation and response in its own template and tokens.

Responses are aligned by the bytes that tokens spell: a span is the shortest run of the student's tokens that spells
the same bytes as a run of the teacher's. The end of a turn is a span of its own, although both sides spell it
differently. The teacher's tokens of a response are those that its tokenizer chooses for the text; bytes that are no
UTF-8, such as a character that was cut off, become its tokens of single bytes. Where the templates differ in the
whitespace before a response (a space after "assistant", a line break within the prompt), each side has its own.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from transformers.convert_slow_tokenizer import bytes_to_unicode

from recovery.errors import ModelError
from recovery.models.chat_template import ChatFormat
from recovery.types import Message

# The bytes that each token of a tokenizer spells, by which tokens of different tokenizers are compared. Two forms are
# known, distinguished by the tokenizer's decoder: byte-level BPE, which writes each byte as one printable character
# (GPT-2, Llama 3, Qwen, SmolLM), and SentencePiece, which writes spaces as "▁" and bytes as <0x0A> (Llama 2, Gemma).

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
    spellings: list[bytes | None] = [None] * (max(vocabulary.values()) + 1)
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
            spellings[number] = added[number].encode()
        elif alphabet is not None:
            spellings[number] = b"".join(bytes([alphabet[c]]) if c in alphabet else c.encode() for c in token)
        else:
            byte = _BYTE.fullmatch(token)
            spellings[number] = bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE, " ").encode()
    return spellings


def _kinds(decoder: Any) -> set[str]:
    """Return the types of a decoder and of its parts."""
    if not isinstance(decoder, dict):
        return set()
    return {str(decoder.get("type"))}.union(*(_kinds(part) for part in decoder.get("decoders", ())))


_NOT_UTF8 = re.compile("([\udc80-\udcff])")  # bytes as `surrogateescape` decodes them
# A text before a response, so that SentencePiece adds its space there and not to the response.
_GUARD = "\n"
_PROBE = "probe"

Span = tuple[int, int, int, int]


class Spelled(NamedTuple):
    """The teacher's input, its prompt and then the response, and spans of (begin, end) in the student's response and
    (begin, end) in ``ids``.
    """

    ids: list[int]
    spans: list[Span]


def common_spans(student: Sequence[bytes], teacher: Sequence[bytes]) -> list[Span]:
    """Return the shortest spans of two tokenizations that spell the same bytes, in order: (begin, end) of both.

    Tokens after the last common boundary, or after the first byte that differs, are in no span. A token of no bytes
    belongs to the span before it.
    """
    student_text, teacher_text = b"".join(student), b"".join(teacher)
    differs = (at for at, (mine, theirs) in enumerate(zip(student_text, teacher_text, strict=False)) if mine != theirs)
    limit = next(differs, min(len(student_text), len(teacher_text)))
    ends = [_ends(side) for side in (student, teacher)]
    boundaries = sorted(at for at in ends[0].keys() & ends[1].keys() if 0 < at <= limit)
    places = [(0, 0), *((ends[0][at], ends[1][at]) for at in boundaries)]
    return [(begin[0], end[0], begin[1], end[1]) for begin, end in itertools.pairwise(places)]


def _ends(tokens: Sequence[bytes]) -> dict[int, int]:
    """Return the number of tokens up to each byte at which one ends."""
    return {at: number for number, at in enumerate(itertools.accumulate(map(len, tokens)), 1)}


@dataclass(frozen=True, eq=False)
class CrossTokenizer:
    """The student's and the teacher's tokens. ``name`` is the teacher's in messages, ``window`` its longest input.

    Raises:
        ModelError: the bytes of one side's tokens are unknown, or the teacher has no chat template.
    """

    student: ChatFormat
    teacher: ChatFormat
    name: str
    window: int

    def __post_init__(self) -> None:
        if self.teacher.plain:
            raise ModelError(
                f"the teacher {self.name} has another tokenizer and no chat template, so it cannot read the prompts: "
                f"use an instruct model, or add chat_template.jinja to its folder"
            )
        _ = self._student_bytes, self._teacher_bytes

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the teacher's ids of a conversation up to its response. Raise ModelError if its template refuses."""
        try:
            return self.teacher.prompt_ids(messages)
        except ModelError as error:
            raise ModelError(f"the teacher {self.name} cannot read a prompt: {error}") from error

    def spelled(self, messages: Sequence[Message], response: Sequence[int]) -> Spelled:
        """Return the teacher's input for a response of the student, with the spans that both sides spell alike.

        Tokens beyond the teacher's window are left out.
        """
        prompt = self.prompt_ids(messages)
        ended = bool(response) and response[-1] in self.student.end_ids
        answer = response[: len(response) - ended]
        spellings = _spelling(self._student_bytes, answer)
        leads_differ = self._replace_lead(spellings)
        ids = self._encode(self._marked(answer, spellings))
        spans = common_spans(spellings, _spelling(self._teacher_bytes, ids))
        complete = not spellings or (bool(spans) and (spans[-1][1], spans[-1][3]) == (len(spellings), len(ids)))
        if ended and complete:
            spans.append((len(spellings), len(response), len(ids), len(ids) + 1))
            ids.append(self._end_of(response[-1]))
        if leads_differ:
            # The spans with the first one, whose tokens spell different whitespace, as part of the second. It is thus
            # never compared token by token. A single span is left out.
            spans = [(spans[0][0], spans[1][1], spans[0][2], spans[1][3]), *spans[2:]] if len(spans) > 1 else []
        start = len(prompt)
        kept = [(a, b, c + start, d + start) for a, b, c, d in spans if d + start <= self.window]
        return Spelled([*prompt, *ids][: self.window], kept)

    def _replace_lead(self, spellings: list[bytes]) -> bool:
        """Replace the whitespace that the student's template has before a response by the teacher's, in the first
        token; return whether they differ.
        """
        mine, theirs = self._leads
        if mine == theirs or not spellings or not spellings[0].startswith(mine):
            return False
        spellings[0] = theirs + spellings[0][len(mine) :]
        return True

    def outcomes(self, student_size: int, teacher_size: int) -> tuple[list[int], list[int], int]:
        """Return the outcome of each of the student's tokens, of each of the teacher's, and the number of outcomes, for
        heads of these sizes.

        Tokens that spell the same are one outcome. A token of one side alone counts as the longest shared token that it
        begins with. The end of a turn is one outcome, with all end tokens that only one side has. Tokens without any
        shared beginning, and padding of the heads, are the last outcome.
        """
        shared = self.shared
        numbers = {spelled: number for number, spelled in enumerate(sorted(shared))}
        other = len(numbers) + 1
        sides = []
        for table, ends, size in (
            (self._student_bytes, self._ends[0], student_size),
            (self._teacher_bytes, self._ends[1], teacher_size),
        ):
            outcomes = [_outcome(spelled, numbers, other) for spelled in table[:size]] + [other] * (size - len(table))
            for token in ends:
                outcomes[token] = other - 1
            sides.append(outcomes)
        return sides[0], sides[1], other + 1

    @functools.cached_property
    def shared(self) -> set[bytes]:
        """What tokens of both sides spell, without the ends of a turn."""
        sides = []
        for table, ends in zip((self._student_bytes, self._teacher_bytes), self._ends, strict=True):
            sides.append({spelled for token, spelled in enumerate(table) if spelled and token not in ends})
        return sides[0] & sides[1]

    @functools.cached_property
    def tokens(self) -> int:
        """Number of the student's tokens."""
        return sum(spelled is not None for spelled in self._student_bytes)

    @functools.cached_property
    def _student_bytes(self) -> list[bytes | None]:
        return token_bytes(self.student.tokenizer, "the student")

    @functools.cached_property
    def _teacher_bytes(self) -> list[bytes | None]:
        return token_bytes(self.teacher.tokenizer, f"the teacher {self.name}")

    @functools.cached_property
    def _leads(self) -> tuple[bytes, bytes]:
        return _lead(self.student), _lead(self.teacher)

    @functools.cached_property
    def _ends(self) -> tuple[set[int], set[int]]:
        """The tokens of each side whose outcome is the end of a turn: all ends but those that both sides have."""
        student, teacher = self._end_texts(self.student), self._end_texts(self.teacher)
        turns = {self.student.turn_end, self.teacher.turn_end}
        both = {text for text in student.keys() & teacher.keys() if text not in turns}
        return {student[text] for text in student.keys() - both}, {teacher[text] for text in teacher.keys() - both}

    def _end_of(self, token: int) -> int:
        """Return the teacher's token for an end token of the student."""
        text = self.student.tokenizer.convert_ids_to_tokens(token)
        ends: Mapping[str, int] = self._end_texts(self.teacher)
        return ends.get(text, ends[self.teacher.turn_end])

    @staticmethod
    def _end_texts(chat: ChatFormat) -> dict[str, int]:
        return {str(chat.tokenizer.convert_ids_to_tokens(token)): token for token in sorted(chat.end_ids)}

    def _marked(self, answer: Sequence[int], spellings: Sequence[bytes]) -> str:
        """Return the text of a response for the teacher. The student's control tokens become the teacher's of the same
        name; other tokens become text (see :mod:`recovery.models.control_tokens`).
        """
        parts = []
        for control, run in itertools.groupby(
            zip(answer, spellings, strict=True), lambda pair: pair[0] in self.student.control
        ):
            text = b"".join(spelled for _, spelled in run).decode("utf-8", errors="surrogateescape")
            parts.append(text if control else self.teacher.control.mark(text))
        return "".join(parts)

    def _encode(self, marked: str) -> list[int]:
        """Return the teacher's tokens of a text, up to the first byte that it has no token for."""
        ids: list[int] = []
        for piece in _NOT_UTF8.split(marked):
            if not _NOT_UTF8.match(piece):
                ids += self._encode_text(piece) if piece else []
                continue
            byte = self._single_bytes.get(piece.encode("utf-8", errors="surrogateescape"))
            if byte is None:
                break
            ids.append(byte)
        return ids

    def _encode_text(self, marked: str) -> list[int]:
        control = self.teacher.control
        ids = control.encode(marked)
        spelled = b"".join(_spelling(self._teacher_bytes, ids))
        if spelled == control.unmark(marked).encode() or not spelled.startswith(b" "):
            return ids
        guarded = control.encode(_GUARD + marked)
        read = itertools.accumulate(_spelling(self._teacher_bytes, guarded))
        cut = next((number for number, spelled in enumerate(read, 1) if spelled.lstrip(b" ") == _GUARD.encode()), 0)
        return guarded[cut:]

    @functools.cached_property
    def _single_bytes(self) -> dict[bytes, int]:
        table = self._teacher_bytes
        return {spelled: token for token, spelled in enumerate(table) if spelled is not None and len(spelled) == 1}


def _spelling(table: Sequence[bytes | None], ids: Sequence[int]) -> list[bytes]:
    """Return the bytes of each token; empty for an id without a token, such as padding of the head."""
    return [(table[token] if token < len(table) else None) or b"" for token in ids]


def _lead(chat: ChatFormat) -> bytes:
    """Return the whitespace that a template has between the opening of a turn and the response."""
    asked = Message(role="user", content=_PROBE)
    try:
        opening = chat.render([asked], generation_prompt=True)
        closed = chat.render([asked, Message(role="assistant", content=_PROBE)])
    except ModelError:  # a template for conversations of another form
        return b""
    lead, found, _ = closed[len(opening) :].partition(_PROBE)
    return lead.encode() if closed.startswith(opening) and found and not lead.strip() else b""


def _outcome(spelled: bytes | None, numbers: Mapping[bytes, int], other: int) -> int:
    """Return the outcome of what a token spells: its own, or that of its longest beginning that has one."""
    for end in range(len(spelled or b""), 0, -1):
        outcome = numbers.get((spelled or b"")[:end])
        if outcome is not None:
            return outcome
    return other
