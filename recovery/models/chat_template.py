"""Chat templates: convert messages to token ids and response masks, and response ids to text.

Student and teacher read the same ids, unless the teacher has another tokenizer; template arguments (such as
``enable_thinking``) are set once, for both. A control token that a message spells is text, not control: see
:mod:`recovery.models.control_tokens`.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jinja2.exceptions import TemplateError

from recovery.errors import ModelError, first_line
from recovery.models.control_tokens import TURN_ENDS, ControlTokens, adds_bos, turn_ends
from recovery.types import Message, Sampled, tools_of

# Reasoning in a response: ``<think>`` blocks, and the channels of gpt-oss (OpenAI's harmony format).

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


def within_thought(content: str) -> str:
    """Return an assistant's turn as it continues a prompt that ends in ``<think>`` and a new line."""
    if _END in content:
        return content.split(_BEGIN, 1)[-1].lstrip("\n")
    return f"\n{_END}\n\n{content}"  # otherwise the answer would be part of the thinking


def shows_reasoning(text: str) -> bool:
    """Whether a text, with its special tokens, has marks of reasoning."""
    return any(mark in text for mark in (*THINKING, _CHANNEL))


@dataclass(frozen=True)
class Opening:
    """The text of a response that a template writes, in a conversation of one question and a plain answer.

    ``prompt`` opens the response; ``turn`` follows it in the answered conversation, "" if that begins differently.
    """

    prompt: str
    turn: str

    @property
    def opens_thought(self) -> bool:
        """Whether the response begins within a thought (DeepSeek-R1, QwQ, Qwen3-Thinking)."""
        return self.prompt.rfind(_BEGIN) > self.prompt.rfind(_END)

    @property
    def closes_thought(self) -> bool:
        """Whether the response begins after a thought: thinking is switched off."""
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
        """Return the channels of a vocabulary, or None."""
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


# For base models without a template: plain turns, the end-of-text token ends a response.
PLAIN_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}Assistant: {{ m['content'] }}{{ eos_token }}\n"
    "{% else %}{{ 'User' if m['role'] == 'user' else m['role'] | capitalize }}: {{ m['content'] }}\n\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)

# Names that a template with support for tools writes out; others leave them out or refuse.
_TOOL: dict[str, Any] = {"name": "probe_tool", "description": "", "parameters": {"type": "object", "properties": {}}}
_CALL: dict[str, Any] = {"name": "probe_call", "arguments": {"probe_key": "probe_value"}}
_CALL_ID = "probe1234"  # has the only length that Mistral's templates accept
_CALLED: tuple[Message, ...] = (
    Message(role="user", content="a"),
    Message(role="assistant", content="", tool_calls=[{"id": _CALL_ID, "type": "function", "function": _CALL}]),
    Message(role="tool", content="probe_result", name="probe_call", tool_call_id=_CALL_ID),
)

# The date that templates get as today (Llama 3.2, SmolLM3, gpt-oss). With the clock's date, a stage resumed on another
# day would train on other tokens, and results of two days could not be compared. It is Llama 3.2's own default.
_TODAY = datetime(2024, 7, 26)

# A probe of the text that a template writes around a response.
_ASKED = Message(role="user", content="a")
_ANSWERED = Message(role="assistant", content="b")


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
    _left_out: dict[tuple[bool, bool], str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls, tokenizer: Any, generation_config: Any = None, template_args: Mapping[str, Any] | None = None
    ) -> ChatFormat:
        """Create the format from a tokenizer and the model's generation configuration, if any.

        Raise ModelError if no token can end a response.
        """
        ends = set(_as_ids(getattr(generation_config, "eos_token_id", None))) | set(_as_ids(tokenizer.eos_token_id))
        vocabulary = tokenizer.get_vocab()
        ends |= {vocabulary[token] for token in turn_ends(vocabulary)}
        if not ends:
            raise ModelError(
                "the tokenizer has no end token, so no response could end: set eos_token in tokenizer_config.json"
            )
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(ends)
        plain = not getattr(tokenizer, "chat_template", None)
        return cls(tokenizer, frozenset(ends), int(pad), dict(template_args or {}), plain)

    def render(self, messages: Sequence[Message], *, generation_prompt: bool = False) -> str:
        """Return the conversation as text, with the opening of the assistant's turn if ``generation_prompt``.

        For a template that refuses system messages (Gemma's) they are merged into the first user turn. Raise ModelError
        if the template refuses the conversation, or leaves out its tools or tool calls.
        """
        return self.control.unmark(self._marked(messages, generation_prompt))

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the token ids of a conversation up to the start of the assistant's response."""
        return self.control.encode(self._marked(messages, True))

    def begun(self, messages: Sequence[Message]) -> tuple[str, list[int]]:
        """Return a conversation up to the last message, which begins the assistant's response, as text and as ids."""
        marked = self._marked(messages[:-1], True) + self.control.mark(messages[-1]["content"], THINKING)
        return self.control.unmark(marked), self.control.encode(marked)

    def conversation(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """Return the token ids of a conversation and the mask of the assistant's tokens, end tokens included.

        Text of the template before an answer, such as an empty ``<think>`` block, is not marked. Every assistant
        turn is marked unless it is ``recorded``; if the template rewrites earlier turns when later ones follow
        (thinking is dropped from the history), only the last one is, in the context of its generation. So is a turn
        that was ``sampled``, in its own tokens if this model has them. Raise ModelError if the template refuses the
        conversation, or leaves out an answer.
        """
        if (sampled := messages[-1].get("sampled")) is not None:
            if self._has_sampled(messages, sampled):
                return self._as_sampled(sampled)
            messages = self._thinking_aloud(messages, sampled)
        pieces = self._turns(messages)
        ids: list[int] = []
        mask: list[bool] = []
        rendered = ""
        for piece, (text, answer) in zip(self._encoded([text for text, _ in pieces]), pieces, strict=True):
            ids += piece
            if answer is None:
                mask += [False] * len(piece)
            else:
                # A token that also holds the beginning of the answer is marked.
                start = common_prefix(ids, self.control.encode(rendered + text[:answer])) - len(mask) if answer else 0
                mask += self._until_end(piece, max(0, start))
            rendered += text
        return ids, mask

    def _has_sampled(self, messages: Sequence[Message], sampled: Sampled) -> bool:
        """Return whether a sampled response has this model's prompt and tokens."""
        ids = sampled["ids"]
        ended = not sampled["finished"] or (bool(ids) and ids[-1] in self.end_ids)
        matches = self.prompt_ids(messages[:-1]) == sampled["context"] and self.raw_text(ids) == sampled["text"]
        return ended and matches

    def _as_sampled(self, sampled: Sampled) -> tuple[list[int], list[bool]]:
        end = [] if sampled["finished"] else [int(self.tokenizer.convert_tokens_to_ids(self.turn_end))]
        response = [*sampled["ids"], *end]
        return [*sampled["context"], *response], [False] * len(sampled["context"]) + [True] * len(response)

    def _thinking_aloud(self, messages: Sequence[Message], sampled: Sampled) -> Sequence[Message]:
        """Return a conversation with another model's thinking in its last turn, if this model's template expects it."""
        thought, last = thought_in(sampled["text"]), messages[-1]
        if not thought or not self._opening.thinks:
            return messages
        # Templates expect thinking and answer in this form in the content of a turn.
        return [*messages[:-1], {**last, "content": f"{_BEGIN}\n{thought}\n{_END}\n\n{last['content']}"}]

    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each of consecutive texts, in the context of those before it.

        Encoded separately a text may have other ids: SentencePiece puts a space before it.
        """
        separately = [self.control.encode(text) for text in texts]
        if list(itertools.chain.from_iterable(separately)) == self.control.encode("".join(texts)):
            return separately
        pieces: list[list[int]] = []
        previous: list[int] = []
        for piece, done in zip(separately, itertools.accumulate(texts), strict=True):
            encoded = self.control.encode(done)
            pieces.append(encoded[len(previous) :] if encoded[: len(previous)] == previous else piece)
            previous = encoded
        return pieces

    def text(self, response_ids: Sequence[int], *, begun: bool = False) -> str:
        """Return the answer in a response: cut at the first end token, without special tokens, thinking and gpt-oss's
        other channels.

        A response that ends within its thinking has no answer: the empty string. ``begun`` says that the prompt holds
        the first words of the response, so that it does not begin within thinking.
        """
        response = list(itertools.takewhile(lambda token: token not in self.end_ids, map(int, response_ids)))
        if self._channels is not None:
            response = self._channels.final(response, self._decoded)
        text = self._decoded(response)
        if self.opens_thought and not begun and THINKING[1] not in text:
            return ""
        return strip_thinking(text).strip()

    def reasons(self, response_ids: Sequence[int]) -> bool:
        """Whether a response may have reasoning that :meth:`text` leaves out.

        The template's turn with its answer then differs from the response, and would teach to answer without reasoning.
        """
        if self._opening.closes_thought:
            return False
        expected = self.opens_thought or shows_reasoning(self._opening.turn)
        return expected or shows_reasoning(self.raw_text(response_ids))

    @property
    def opens_thought(self) -> bool:
        """Whether the template opens a response within a thought, so that the answer follows ``</think>``."""
        return self._opening.opens_thought

    @functools.cached_property
    def _opening(self) -> Opening:
        """The template's text of a response; empty if it refuses a conversation of one question."""
        try:
            asked, opened = self.render([_ASKED]), self.render([_ASKED], generation_prompt=True)
            answered = self.render([_ASKED, _ANSWERED])
        except ModelError:
            return Opening("", "")
        return Opening(opened.removeprefix(asked), answered[len(opened) :] if answered.startswith(opened) else "")

    @functools.cached_property
    def _channels(self) -> Channels | None:
        return Channels.of(self.tokenizer.get_vocab())

    @functools.cached_property
    def _special_marks(self) -> dict[int, str]:
        """The marks of thinking that the tokenizer declares special, by their ids."""
        vocabulary = self.tokenizer.get_vocab()
        marks = {vocabulary[mark]: mark for mark in THINKING if mark in vocabulary}
        return {token: mark for token, mark in marks.items() if not self._plain_text([token])}

    def _decoded(self, ids: Sequence[int]) -> str:
        """Decode tokens without special ones, except marks of thinking, which separate it from the answer."""
        marks = self._special_marks
        if marks.keys().isdisjoint(ids):
            return self._plain_text(ids)
        groups = itertools.groupby(ids, lambda token: marks.get(token, ""))
        return "".join(mark * len(list(piece)) if mark else self._plain_text(piece) for mark, piece in groups)

    def _plain_text(self, ids: Iterable[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def raw_text(self, ids: Sequence[int]) -> str:
        """Decode tokens, keeping special ones; an incomplete character becomes the replacement character."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, which spells no control tokens, without special tokens added."""
        return self.control.plain(text)

    @functools.cached_property
    def control(self) -> ControlTokens:
        """The control tokens of the tokenizer, with all that end a response."""
        return ControlTokens(self.tokenizer, self.end_ids)

    def check_tools(self, messages: Sequence[Message]) -> None:
        """Raise ModelError for tools or tool calls that the template would silently leave out; fast, nothing is
        rendered but once.
        """
        key = bool(tools_of(messages)), any(m["role"] == "tool" or "tool_calls" in m for m in messages)
        if key not in self._left_out:
            self._left_out[key] = self._leaves_out(*key) if any(key) else ""
        if what := self._left_out[key]:
            raise ModelError(
                f"the model's chat template has no place for the {what} of a conversation: use a model whose template "
                f"takes them, or leave out these conversations"
            )

    def check_answers(self) -> None:
        """Raise ModelError for a template that leaves out the assistant's answers, so that none can be imitated."""
        self._answer(self._marked([_ASKED], True), [_ASKED, _ANSWERED])

    def _leaves_out(self, offered: bool, called: bool) -> str:
        """Return what the template does not write out, or "", from a conversation with or without tools and calls."""
        messages = list(_CALLED if called else _CALLED[:1])
        names = {"probe_call": "tool calls", "probe_value": "tool calls", "probe_result": "results of tools"}
        names = names if called else {}
        if offered:
            messages[0] = {**messages[0], "tools": [{"type": "function", "function": _TOOL}]}
            names = {"probe_tool": "tools"} | names
        try:
            text = self._apply(messages, True)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError):  # the errors that templates raise
            return " or ".join(dict.fromkeys(names.values()))
        return next((what for name, what in names.items() if name not in text), "")

    def _marked(self, messages: Sequence[Message], generation_prompt: bool = False) -> str:
        """Return the conversation as text, with marks in place of the control tokens that its messages spell."""
        self.check_tools(messages)
        try:
            return self._apply(messages, generation_prompt)
        except TemplateError as error:
            folded = _fold_system(messages)
            if folded == list(messages):
                reason = self.control.unmark(str(error))
                raise ModelError(f"the chat template refuses this conversation: {reason}") from error
            return self._marked(folded, generation_prompt)  # it has no system message, so it is not folded again
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # a template can cause any error
            raise ModelError(f"the chat template fails: {self.control.unmark(first_line(error))}") from error

    def _apply(self, messages: Sequence[Message], generation_prompt: bool) -> str:
        template: dict[str, Any] = {"strftime_now": _TODAY.strftime}
        if self.plain:
            template["chat_template"] = PLAIN_TEMPLATE
        if tools := tools_of(messages):
            template["tools"] = self.control.mark_all(tools)
        ours = ("tools", "recorded", "sampled")
        turns = [self._turn({key: value for key, value in message.items() if key not in ours}) for message in messages]
        text = self.tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=generation_prompt, **template, **self.template_args
        )
        return f"{self._begin}{text}"

    @functools.cached_property
    def _begin(self) -> str:
        """The token that begins every text of a model without a template, if its tokenizer adds one; others' templates
        write it out.
        """
        return self.tokenizer.bos_token if self.plain and adds_bos(self.tokenizer) else ""

    def _turn(self, message: dict[str, Any]) -> dict[str, Any]:
        marked: dict[str, Any] = self.control.mark_all(message, THINKING if message["role"] == "assistant" else ())
        return marked | {"role": message["role"]}

    def _turns(self, messages: Sequence[Message]) -> list[tuple[str, int | None]]:
        """Return a conversation as consecutive texts: of an answer with the place in it where the assistant's own text
        begins, of anything else with None.
        """
        done, pieces = "", list[tuple[str, int | None]]()
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            opening = self._marked(messages[:index], True)
            if not opening.startswith(done):
                last = max(i for i, m in enumerate(messages) if m["role"] == "assistant")
                opening = self._marked(messages[:last], True)
                return [(opening, None), self._answer(opening, messages[: last + 1])]
            pieces += [(opening[len(done) :], None), self._answer(opening, messages[: index + 1])]
            done = opening + pieces[-1][0]
        return pieces or [(self._marked(messages), None)]

    def _answer(self, opening: str, messages: Sequence[Message]) -> tuple[str, int | None]:
        """Return the last turn as it is generated after ``opening``, and where in it the assistant's own text begins.

        Text of the template before it is the same for another answer, and is not a label: imitating an empty thought
        would teach not to think.
        """
        last = messages[-1]
        turn = self._closed(opening, messages)[len(opening) :]
        if last.get("recorded"):
            return turn, None
        other: Message = {**last, "content": "1" if last["content"].lstrip().startswith("0") else "0"}
        other_turn = self._closed(opening, [*messages[:-1], other])[len(opening) :]
        if turn == other_turn and "tool_calls" not in last:
            raise ModelError(
                f"the chat template of {self.tokenizer.name_or_path} leaves out the assistant's answers, so none can "
                f"be imitated: correct chat_template.jinja there, or use another model"
            )
        begin = 0 if turn == other_turn else common_prefix(turn, other_turn)
        if thought_in(last["content"]):  # thinking in the user's data, which is imitated with its marks
            begin = len(turn[:begin].partition(THINKING[0])[0])
        elif empty := _EMPTY.match(turn[begin:]):
            begin += empty.end()
        return turn, begin if turn[:begin].strip() else 0  # white space is how the model begins an answer

    def _closed(self, opening: str, messages: Sequence[Message]) -> str:
        """Return the conversation with its last turn, as it is generated after ``opening``."""
        closed = self._marked(messages)
        if closed.startswith(opening):
            return closed
        if "tool_calls" in messages[-1]:
            raise ModelError(
                "the model's chat template writes an assistant's tool call differently from how it opens the turn, so "
                "the call cannot be imitated: set --template-arg, or leave out these conversations"
            )
        content = messages[-1]["content"]
        continuation = within_thought(content) if self.opens_thought else content
        return opening + self.control.mark(continuation, THINKING) + self.turn_end

    @property
    def turn_end(self) -> str:
        """The token that ends an assistant's turn, as text."""
        vocabulary = self.tokenizer.get_vocab()
        turn_end = next((token for token in TURN_ENDS if vocabulary.get(token) in self.end_ids), None)
        return turn_end or str(self.tokenizer.convert_ids_to_tokens(min(self.end_ids)))

    def _until_end(self, ids: Sequence[int], begin: int) -> list[bool]:
        end = next((i for i, token in enumerate(ids) if i >= begin and token in self.end_ids), len(ids) - 1)
        return [begin <= i <= end for i in range(len(ids))]


def common_prefix(*rows: Sequence[Any]) -> int:
    """Return how many entries at the beginning are the same in all rows."""
    columns = zip(*rows, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda column: all(one == column[0] for one in column), columns))


def _as_ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(v) for v in value] if isinstance(value, list | tuple | set) else [int(value)]


def _fold_system(messages: Sequence[Message]) -> list[Message]:
    system = "\n\n".join(m["content"] for m in messages if m["role"] == "system")
    turns = [m for m in messages if m["role"] != "system"]
    if not system or not turns or turns[0]["role"] != "user":
        return list(messages)
    # The first message of all, often the system's, holds the tools.
    first: Message = {**messages[0], **turns[0], "content": f"{system}\n\n{turns[0]['content']}"}
    return [first, *turns[1:]]
