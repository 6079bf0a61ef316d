"""Reasoning in a response: ``<think>`` blocks, and the channels of gpt-oss (OpenAI's harmony format)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# The marks of thinking, which templates look for in the assistant's turns. Some tokenizers declare them special.
THINKING = ("<think>", "</think>")
_BEGIN, _END = THINKING
_EMPTY = re.compile(r"\s*<think>\s*</think>\s*")
_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
# gpt-oss writes `<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>`.
_CHANNEL, _MESSAGE = "<|channel|>", "<|message|>"
_PART_ENDS = (_CHANNEL, "<|start|>", "<|end|>")


def strip_thinking(text: str) -> str:
    """Remove ``<think>`` blocks, also one opened by the template (only its end is left) or never closed."""
    text = _THOUGHT.sub("", text)
    if _END in text:
        text = text.rsplit(_END, 1)[1]
    return text.split(_BEGIN, 1)[0]


def thought_in(text: str) -> str:
    """Return the thinking before the answer in a response, whether it or the template opened it; "" if none ended."""
    before, end, _ = text.partition(_END)
    return before.split(_BEGIN)[-1].strip() if end else ""


def empty_thought(text: str) -> int:
    """Return the length of the empty ``<think>`` block with which a text begins; 0 for none."""
    found = _EMPTY.match(text)
    return found.end() if found else 0


def with_thought(thought: str, answer: str) -> str:
    """Return a response that thinks and answers, as templates take it in the content of a turn."""
    return f"{_BEGIN}\n{thought}\n{_END}\n\n{answer}"


def within_thought(content: str) -> str:
    """Return an assistant's turn as it goes on behind a prompt that ends in ``<think>`` and a new line."""
    if _END in content:
        return content.split(_BEGIN, 1)[-1].lstrip("\n")
    return f"\n{_END}\n\n{content}"  # else the answer would be a part of the thinking


def shows_reasoning(text: str) -> bool:
    """Whether a text, with its special tokens, has marks of reasoning."""
    return any(mark in text for mark in (*THINKING, _CHANNEL))


@dataclass(frozen=True)
class Opening:
    """What a template writes of a response, in a conversation of one question and a plain answer.

    ``prompt`` opens the response; ``turn`` is what follows in the answered conversation, "" if that begins otherwise.
    """

    prompt: str
    turn: str

    @property
    def opens_thought(self) -> bool:
        """Whether the response begins within a thought (DeepSeek-R1, QwQ, Qwen3-Thinking)."""
        return self.prompt.rfind(_BEGIN) > self.prompt.rfind(_END)

    @property
    def closes_thought(self) -> bool:
        """Whether the response begins behind a thought: thinking is switched off."""
        return self.prompt.rstrip().endswith(_END)

    @property
    def thinks(self) -> bool:
        """Whether the template knows ``<think>`` blocks and expects one."""
        return self.opens_thought or _BEGIN in self.turn


@dataclass(frozen=True)
class Channels:
    """The tokens of a vocabulary that divide a response into channels."""

    channel: int
    message: int
    ends: frozenset[int]

    @classmethod
    def of(cls, vocabulary: Mapping[str, int]) -> Channels | None:
        """Return them; None for a vocabulary without."""
        if _CHANNEL not in vocabulary or _MESSAGE not in vocabulary:
            return None
        ends = frozenset(vocabulary[token] for token in _PART_ENDS if token in vocabulary)
        return cls(vocabulary[_CHANNEL], vocabulary[_MESSAGE], ends)

    def final(self, ids: Sequence[int], decode: Callable[[list[int]], str]) -> list[int]:
        """Return the tokens of the last text on the channel "final": none if there is only reasoning so far, all if
        nothing names a channel.
        """
        begins = [place for place, token in enumerate(ids) if token == self.channel]
        for begin in reversed(begins):
            head = next((place for place in range(begin, len(ids)) if ids[place] == self.message), None)
            if head is not None and decode(list(ids[begin + 1 : head])).strip().startswith("final"):
                return list(itertools.takewhile(lambda token: token not in self.ends, ids[head + 1 :]))
        return [] if begins else list(ids)
