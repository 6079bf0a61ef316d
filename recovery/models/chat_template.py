"""Chat templates: convert messages to token ids and response masks, and response ids to text.

Student and teacher read the same ids, so template arguments (such as ``enable_thinking``) are set once, here, for
both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2.exceptions import TemplateError

from recovery.errors import ModelError
from recovery.types import Message

# Tokens that end an assistant turn in common chat formats; a model often lists only one of its own.
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<turn|>", "<|end|>", "<|return|>")

# For base models without a template: plain turns, the end-of-text token ends a response.
PLAIN_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}Assistant: {{ m['content'] }}{{ eos_token }}\n"
    "{% else %}{{ 'User' if m['role'] == 'user' else m['role'] | capitalize }}: {{ m['content'] }}\n\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)

_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)


@dataclass(frozen=True)
class ChatFormat:
    """Chat format of one model.

    ``end_ids`` are all tokens that end a response; ``template_args`` are passed to the chat template at every
    call; ``plain`` is set if the model has no template and ``PLAIN_TEMPLATE`` is used.
    """

    tokenizer: Any
    end_ids: frozenset[int]
    pad_id: int
    template_args: Mapping[str, Any] = field(default_factory=dict)
    plain: bool = False

    @classmethod
    def of(
        cls, tokenizer: Any, generation_config: Any = None, template_args: Mapping[str, Any] | None = None
    ) -> ChatFormat:
        """Create the format from a tokenizer and the model's generation configuration, if any.

        Raise ModelError if no token can end a response.
        """
        ends = set(_as_ids(getattr(generation_config, "eos_token_id", None))) | set(_as_ids(tokenizer.eos_token_id))
        vocabulary = tokenizer.get_vocab()
        ends |= {vocabulary[token] for token in TURN_ENDS if token in vocabulary}
        if not ends:
            raise ModelError(
                "the tokenizer has no end token, so no response could end: set eos_token in tokenizer_config.json"
            )
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(ends)
        plain = not getattr(tokenizer, "chat_template", None)
        return cls(tokenizer, frozenset(ends), int(pad), dict(template_args or {}), plain)

    def render(self, messages: Sequence[Message], *, generation_prompt: bool = False) -> str:
        """Return the conversation as text, with the opening of the assistant's turn if ``generation_prompt``.

        For a template that refuses system messages (Gemma's) they are merged into the first user turn.
        """
        try:
            return self._apply(messages, generation_prompt)
        except TemplateError as error:
            folded = _fold_system(messages)
            if folded == list(messages):
                raise ModelError(f"the chat template refuses this conversation: {error}") from error
            return self._apply(folded, generation_prompt)

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the token ids of a conversation up to the start of the assistant's response."""
        return self.encode(self.render(messages, generation_prompt=True))

    def conversation(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """Return the token ids of a conversation and the mask of the assistant's tokens, end tokens included.

        Every assistant turn is marked; if the template rewrites earlier turns when later ones follow (thinking is
        dropped from the history), only the last one is, in the context of its generation.
        """
        pieces = self._turns(messages)
        ids: list[int] = []
        mask: list[bool] = []
        for text, marked in pieces:
            piece = self.encode(text)
            ids += piece
            mask += self._until_end(piece) if marked else [False] * len(piece)
        return ids, mask

    def text(self, response_ids: Sequence[int]) -> str:
        """Return the answer in a response: cut at the first end token, without special tokens and thinking.

        A response that ends within its thinking has no answer: the empty string.
        """
        kept: list[int] = []
        for token in response_ids:
            if token in self.end_ids:
                break
            kept.append(int(token))
        return strip_thinking(self.tokenizer.decode(kept, skip_special_tokens=True)).strip()

    def raw_text(self, ids: Sequence[int]) -> str:
        """Decode tokens, keeping special ones; an incomplete character becomes the replacement character."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text without special tokens added."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _apply(self, messages: Sequence[Message], generation_prompt: bool) -> str:
        template = {"chat_template": PLAIN_TEMPLATE} if self.plain else {}
        return str(
            self.tokenizer.apply_chat_template(
                list(messages),
                tokenize=False,
                add_generation_prompt=generation_prompt,
                **template,
                **self.template_args,
            )
        )

    def _turns(self, messages: Sequence[Message]) -> list[tuple[str, bool]]:
        done, pieces = "", []
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            opening = self.render(messages[:index], generation_prompt=True)
            closed = self.render(messages[: index + 1])
            if not opening.startswith(done):
                return self._last_turn(messages)
            if not closed.startswith(opening):
                closed = opening + message["content"] + self._end_text()
            pieces += [(opening[len(done) :], False), (closed[len(opening) :], True)]
            done = closed
        return pieces or [(self.render(messages), False)]

    def _last_turn(self, messages: Sequence[Message]) -> list[tuple[str, bool]]:
        last = max(i for i, m in enumerate(messages) if m["role"] == "assistant")
        opening = self.render(messages[:last], generation_prompt=True)
        closed = self.render(messages[: last + 1])
        if not closed.startswith(opening):
            closed = opening + messages[last]["content"] + self._end_text()
        return [(opening, False), (closed[len(opening) :], True)]

    def _end_text(self) -> str:
        vocabulary = self.tokenizer.get_vocab()
        turn_end = next((token for token in TURN_ENDS if vocabulary.get(token) in self.end_ids), None)
        return turn_end or str(self.tokenizer.convert_ids_to_tokens(min(self.end_ids)))

    def _until_end(self, ids: Sequence[int]) -> list[bool]:
        end = next((i for i, token in enumerate(ids) if token in self.end_ids), len(ids) - 1)
        return [i <= end for i in range(len(ids))]


def strip_thinking(text: str) -> str:
    """Remove ``<think>`` blocks, also one opened by the template (only its end is left) or never closed."""
    text = _THOUGHT.sub("", text)
    if "</think>" in text:
        text = text.rsplit("</think>", 1)[1]
    return text.split("<think>", 1)[0]


def _as_ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(v) for v in value] if isinstance(value, list | tuple | set) else [int(value)]


def _fold_system(messages: Sequence[Message]) -> list[Message]:
    system = "\n\n".join(m["content"] for m in messages if m["role"] == "system")
    rest = [Message(role=m["role"], content=m["content"]) for m in messages if m["role"] != "system"]
    if not system or not rest or rest[0]["role"] != "user":
        return list(messages)
    rest[0] = Message(role="user", content=f"{system}\n\n{rest[0]['content']}")
    return rest
