"""What costs nothing: does a server read conversations as this model was trained to?

Compared are the token ids of rendered conversations, of the added tokens and of ordinary text, as far as a server tells
them (llama.cpp: /apply-template and /tokenize; vLLM: /tokenize; others: the number of a prompt's tokens), and whether
each end token ends an answer: it is forced by a bias on its logit. No answer is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recovery.errors import ModelError, ServerError
from recovery.inference_server import InferenceServer, NotOffered, one_line
from recovery.models.chat_template import ChatFormat
from recovery.rollouts.served_engine import Described, as_sent
from recovery.types import Message, tools_of

_FORCED = 100.0  # OpenAI's largest bias on a logit
_SHOWN = 8  # tokens around a difference
_TEXT = "The ferry of 7:15 costs  12.50 €;\n\n* ünïcode 🚢 don't   stop\t1234567 x=3.14\n"
_TOOL = {
    "type": "function",
    "function": {
        "name": "ferry_times",
        "description": "Times of the ferry.",
        "parameters": {"type": "object", "properties": {"pier": {"type": "string"}}, "required": ["pier"]},
    },
}
CONVERSATIONS: Mapping[str, Sequence[Message]] = {
    "one turn": [Message(role="user", content=_TEXT.strip())],
    "several turns": [
        Message(role="user", content="Where is the ferry?"),
        Message(role="assistant", content="At pier 3."),
        Message(role="user", content="And when does it leave?"),
    ],
    "a system turn": [
        Message(role="system", content="Answer in one sentence."),
        Message(role="user", content="Where is the ferry?"),
    ],
    "tools": [Message(role="user", content="When does the ferry leave pier 3?", tools=[_TOOL])],
}


@dataclass(frozen=True)
class Checked:
    """What differs, one line each, and what could not be compared."""

    differences: tuple[str, ...]
    unknown: tuple[str, ...]


def check_served(server: InferenceServer, described: Described, chat: ChatFormat) -> Checked:
    """Compare a server with the chat format of the model that it should serve. Raise ServerError if it is gone."""
    asking = _Asking(server, described, chat)
    differences: list[str] = []
    unknown: list[str] = []
    render = asking.renderer()
    for name, messages in CONVERSATIONS.items():
        try:
            ours = chat.prompt_ids(messages)
        except ModelError:  # the template has no such conversations
            continue
        try:
            theirs = render(messages)
        except ServerError as error:
            differences.append(f"{name}: it refuses the conversation ({one_line(str(error))})")
            continue
        if isinstance(theirs, int):
            found = "" if theirs == len(ours) else f"a prompt of {theirs} tokens, not {len(ours)}"
        else:
            found = _difference(chat, ours, theirs)
        differences += [f"{name}: {found}"] if found else []
    tokenize = asking.tokenizer()
    if tokenize is None:
        unknown.append("its tokens: it has no /tokenize; of conversations the number of tokens was compared")
    else:
        differences += _tokens(chat, tokenize)
    missing, told = asking.ends()
    differences += missing
    unknown += [] if told else ["its end tokens: it takes no logit_bias"]
    return Checked(tuple(dict.fromkeys(differences)), tuple(unknown))


def _tokens(chat: ChatFormat, tokenize: Callable[[str], list[int]]) -> list[str]:
    """Return what differs in the tokens of ordinary text and of the added tokens."""
    ours = chat.encode(_TEXT)
    found = _difference(chat, ours, tokenize(_TEXT))
    lines = [f"ordinary text: {found}"] if found else []
    added = {str(token): number for number, token in sorted(chat.tokenizer.added_tokens_decoder.items())}
    together = set(tokenize("a" + "a".join(added) + "a"))
    absent = [token for token, number in added.items() if number not in together]
    if absent:
        more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        lines.append(f"added tokens that its tokenizer lacks: {', '.join(absent[:5])}{more}")
    return lines


def _difference(chat: ChatFormat, ours: Sequence[int], theirs: Sequence[int]) -> str:
    """Return where two sequences of tokens part, in words; nothing if they do not."""
    if list(ours) == list(theirs):
        return ""
    bos = chat.tokenizer.bos_token_id
    if bos is not None and list(theirs[:2]) == [bos, bos] and list(ours[:2]) != [bos, bos]:
        return f"it begins twice, with {chat.tokenizer.bos_token!r} {chat.tokenizer.bos_token!r}"
    at = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    one, other = (chat.tokenizer.decode(list(ids[at : at + _SHOWN])) for ids in (ours, theirs))
    return f"{one!r} is read as {other!r}, from token {at + 1} on ({len(ours)} tokens, there {len(theirs)})"


@dataclass(frozen=True)
class _Asking:
    """Requests to a server that sample nothing."""

    server: InferenceServer
    described: Described
    chat: ChatFormat

    def renderer(self) -> Callable[[Sequence[Message]], list[int] | int]:
        """Return how this server tells the tokens of a conversation, or only their number."""
        first = CONVERSATIONS["several turns"]
        try:
            if _works(self._rendered_by_llama_cpp, first):
                return self._rendered_by_llama_cpp
        except ServerError:  # it has the endpoint, and its template fails
            return self._rendered_by_llama_cpp
        return self._rendered_by_vllm if _works(self._rendered_by_vllm, first, ServerError) else self._counted

    def tokenizer(self) -> Callable[[str], list[int]] | None:
        """Return how this server tells the tokens of a text; None if it does not."""
        ways = (self._tokenized_by_llama_cpp, self._tokenized_by_vllm)
        return next((way for way in ways if _works(way, "a", ServerError)), None)

    def ends(self) -> tuple[list[str], bool]:
        """Return which end tokens do not end an answer, and whether the server can tell."""
        names = self.chat.tokenizer.convert_ids_to_tokens
        plain = self.chat.encode("Z")[0]  # an answer of its own accord hardly has it twice
        try:
            content, reason = self._forced(plain)
        except ServerError:  # it refuses the bias
            return [], False
        if reason == "stop" or content.strip() != self.chat.tokenizer.decode([plain, plain]).strip():
            return [], False
        going_on = [end for end in sorted(self.chat.end_ids) if self._forced(end)[1] != "stop"]
        return [f"{names(end)} does not end an answer" for end in going_on], True

    def _forced(self, token: int) -> tuple[str, str]:
        body = {"max_tokens": 2, "temperature": 0.0, "logit_bias": {str(token): _FORCED}}
        answer = self._asked(CONVERSATIONS["several turns"], body)
        return str(answer["choices"][0]["message"].get("content") or ""), str(answer["choices"][0]["finish_reason"])

    def _asked(self, messages: Sequence[Message], body: Mapping[str, Any]) -> Any:
        whole = {"model": self.described.model, "messages": as_sent(messages), **self._template(messages), **body}
        answer = self.server.post("/v1/chat/completions", whole)
        if not (isinstance(answer, dict) and answer.get("choices")):
            raise ServerError(f"{self.server.address} answers in another form than OpenAI's")
        return answer

    def _template(self, messages: Sequence[Message]) -> dict[str, Any]:
        tools, given = tools_of(messages), self.chat.template_args
        return ({"tools": tools} if tools else {}) | ({"chat_template_kwargs": dict(given)} if given else {})

    def _rendered_by_llama_cpp(self, messages: Sequence[Message]) -> list[int]:
        body = {"messages": as_sent(messages), **self._template(messages)}
        prompt = self.server.post("/apply-template", body, retried=False)["prompt"]
        content = {"content": prompt, "add_special": True, "parse_special": True}
        return [int(token) for token in self.server.post("/tokenize", content)["tokens"]]

    def _rendered_by_vllm(self, messages: Sequence[Message]) -> list[int]:
        body = {"model": self.described.model, "messages": as_sent(messages), "add_generation_prompt": True}
        return [int(token) for token in self.server.post("/tokenize", body | self._template(messages))["tokens"]]

    def _counted(self, messages: Sequence[Message]) -> int:
        return int(self._asked(messages, {"max_tokens": 1})["usage"]["prompt_tokens"])

    def _tokenized_by_llama_cpp(self, text: str) -> list[int]:
        body = {"content": text, "add_special": False, "parse_special": True}
        return [int(token) for token in self.server.post("/tokenize", body)["tokens"]]

    def _tokenized_by_vllm(self, text: str) -> list[int]:
        body = {"model": self.described.model, "prompt": text, "add_special_tokens": False}
        return [int(token) for token in self.server.post("/tokenize", body)["tokens"]]


def _works(way: Callable[[Any], list[int]], asked: Any, lacking: type[ServerError] = NotOffered) -> bool:
    """Whether a server answers a request in this way; an error of the type ``lacking`` says that it does not."""
    try:
        return bool(way(asked))
    except (lacking, KeyError, TypeError, ValueError):
        return False
