"""Answers of a model as it is served: conversations go to a server's own chat endpoint, and text comes back.

Template, tokens, ends of a turn and weights are the server's; they are compared with ours before
(:func:`check_served`). Any server with OpenAI's form of a chat will do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from transformers import AutoConfig

from recovery.errors import EngineError, ModelError, ServerError
from recovery.inference_server import (
    InferenceServer,
    NotOffered,
    ask_all,
    check_model,
    one_line,
    response_of,
    served_model,
    window_of,
)
from recovery.models.chat_loading import load_chat
from recovery.models.chat_template import ChatFormat
from recovery.models.loaded import Loaded
from recovery.models.loading import outline
from recovery.rollouts.engine import Completion, Progress, Sampling
from recovery.types import Message, tools_of

# llama.cpp's server on a GGUF file, in a process of its own that ends with this one.

PACKAGE = "xllamacpp"
SLOTS = 4  # answers that it samples at once; they share the server's threads
_LONGEST_CONTEXT = 8192  # tokens of a slot: a model's whole window may take more memory than its weights


@contextlib.contextmanager
def started(file: Path, window: int, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve a file on 127.0.0.1 for the block; yield the address and the process. ``window`` is a slot's, in tokens.

    Raise EngineError, with llama.cpp's reason, if it cannot be served.
    """
    numbers = (SLOTS * min(window, _LONGEST_CONTEXT), SLOTS, port)
    command = [sys.executable, "-m", "recovery.rollouts.llama_cpp_process", str(file), *map(str, numbers)]
    with tempfile.TemporaryFile("w+") as log:
        # It ends when its input does: also if this process is killed.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            lines = (line.strip() for line in process.stdout)
            address = next((line for line in lines if line.startswith("http")), "")
            if not address:
                log.seek(0)
                raise EngineError(f"llama.cpp cannot serve {file}: {_reason(log.read())}")
            threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()  # nobody reads the rest
            yield address, process
        finally:
            process.kill()
            process.communicate()


def _reason(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    named = [line for line in lines if any(word in line.lower() for word in ("error", "failed", "unknown", "needs"))]
    return (named or lines or ["it ended without a word"])[0][-300:]


KEYS = ("RECOVER_SERVED_KEY", "RECOVER_ENGINE_KEY", "OPENAI_API_KEY", "VLLM_API_KEY")
_AT_ONCE = 8  # requests, where a server does not say how many it answers at once
_OWNERS = {"llamacpp": "llama.cpp", "vllm": "vLLM", "sglang": "SGLang", "library": "Ollama"}


@dataclass(frozen=True)
class AskedChat(ChatFormat):
    """A chat format that remembers the conversation of each prompt: a server takes messages, not tokens."""

    asked: dict[tuple[int, ...], Sequence[Message]] = field(default_factory=dict, repr=False, compare=False)

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the token ids of a conversation, and remember the conversation."""
        ids = super().prompt_ids(messages)
        self.asked[tuple(ids)] = list(messages)
        return ids


def without_weights(folder: Path, adapter: Path | None, template_args: Mapping[str, Any]) -> Loaded:
    """Return the model in a folder with its chat format but without weights, since a server has them."""
    chat = load_chat(str(folder), template_args, adapter=adapter)
    parts = {part.name: getattr(chat, part.name) for part in dataclasses.fields(ChatFormat)}
    loaded = outline(AutoConfig.from_pretrained(folder))
    loaded.chat, loaded.tokenizer, loaded.path = AskedChat(**parts), chat.tokenizer, str(folder)
    return loaded


@dataclass(frozen=True)
class Described:
    """A server's description of its model. ``file`` is its path there, ``quantisation`` the file's type."""

    model: str
    runtime: str
    build: str = ""
    file: str = ""
    quantisation: str = ""
    template: str = ""
    window: int | None = None
    slots: int = _AT_ONCE
    parameters: int | None = None

    @classmethod
    def of(cls, server: InferenceServer) -> Described:
        """Ask a server. Raise ServerError if it lists no model, or does not respond."""
        listed = served_model(server)
        meta = found if isinstance(found := listed.get("meta"), dict) else {}
        props = _optional_endpoint(server, "/props")
        versions = _optional_endpoint(server, "/version") or _optional_endpoint(server, "/api/version")
        owner = str(listed.get("owned_by", ""))
        build = str(props.get("build_info") or versions.get("version") or "")
        return cls(
            model=str(listed["id"]),
            runtime=_OWNERS.get(owner, owner or "unknown"),
            build=build.replace("b0-unknown", ""),  # xllamacpp's
            file=str(props.get("model_path") or listed.get("root") or ""),
            quantisation=str(props.get("model_ftype") or meta.get("ftype") or "").lower(),
            template=str(props.get("chat_template") or ""),
            window=window_of(listed.get("max_model_len")) or window_of(meta.get("n_ctx")),
            slots=window_of(props.get("total_slots")) or _AT_ONCE,
            parameters=window_of(meta.get("n_params")),
        )


def _optional_endpoint(server: InferenceServer, path: str) -> Mapping[str, Any]:
    """Return the response of an endpoint; empty if the server does not have it."""
    try:
        properties = server.get(path)
    except ServerError:
        return {}
    return properties if isinstance(properties, dict) else {}


@dataclass(frozen=True)
class ServedEngine:
    """An engine for the conversations of ``chat``, answered by the model that a server ``described``.

    Completions have no log-probabilities. Raise ServerError for an answer that the server cut short, and if the server
    returns with another model after it was unavailable.
    """

    server: InferenceServer
    described: Described
    chat: AskedChat
    # Completions are stored one by one as they arrive: requested in parts, the server's slots would be idle at the end
    # of each part.
    keeps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.server.returned = self._check_same

    @property
    def name(self) -> str:
        """Name of the engine in records, and in the key of the completions that are kept."""
        return f"{self.described.runtime} {self.described.build} {self.described.quantisation}".strip()

    @property
    def window(self) -> int | None:
        """Tokens of a prompt with its answer, if the server says so."""
        return self.described.window

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        progress: Progress | None = None,
        keep: Callable[[int, Completion], None] = lambda _number, _completion: None,
    ) -> list[Completion]:
        """Return one completion per prompt, in order; ``keep`` is called with the number of each as it arrives."""

        def report(answers: Sequence[tuple[int, Completion]]) -> None:
            for number, completion in answers:
                keep(number, completion)
            if progress is not None:
                progress(len(answers), sum(len(one.ids) for _, one in answers))

        def ask(number: int, given_up: threading.Event) -> tuple[int, Completion]:
            return number, self._complete(prompts[number], sampling, given_up)

        return [one for _, one in ask_all(ask, range(len(prompts)), self.described.slots, report)]

    def _complete(self, prompt: Sequence[int], sampling: Sampling, given_up: threading.Event) -> Completion:
        path, body = self._request(prompt, sampling)
        answer = self.server.post(path, body, given_up=given_up)
        with response_of(self.server.address):
            check_model(answer, self.described.model)
            try:
                (choice,) = answer["choices"]
                text = str(choice["text"] if "text" in choice else choice["message"].get("content") or "")
                finished, used = choice["finish_reason"] == "stop", (answer.get("usage") or {}).get("completion_tokens")
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ServerError(f"it answers in another form than OpenAI's: {one_line(str(answer))}") from error
            if not finished and used is not None and used < sampling.max_new_tokens:
                raise ServerError(
                    f"it cut an answer after {used} of {sampling.max_new_tokens} tokens: start it with a longer "
                    f"context, and without a limit on answers"
                )
        ids = self.chat.encode(text)[: sampling.max_new_tokens - finished]
        ids += [self.chat.tokenizer.convert_tokens_to_ids(self.chat.turn_end)] if finished else []
        return Completion(ids, [0.0] * len(ids), finished)

    def _request(self, prompt: Sequence[int], sampling: Sampling) -> tuple[str, dict[str, Any]]:
        """Return the endpoint and the request: a conversation in messages, or with tools in our tokens, since a server
        takes a tool call out of the text.
        """
        body = {
            "model": self.described.model,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p if sampling.temperature > 0 else 1.0,
            "seed": sampling.seed,
            # Otherwise the server's own settings would silently apply. A server ignores those it does not know.
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repeat_penalty": 1.0,
            "repetition_penalty": 1.0,
            "cache_prompt": False,  # llama.cpp rounds differently with a cached prefix
        }
        messages = self.chat.asked.get(tuple(prompt))
        if messages is None or tools_of(messages):
            return "/v1/completions", body | {"prompt": list(prompt)}
        if self.chat.template_args:
            body["chat_template_kwargs"] = dict(self.chat.template_args)
        return "/v1/chat/completions", body | {"messages": as_sent(messages)}

    def _check_same(self) -> None:
        new = dataclasses.replace(Described.of(self.server), build=self.described.build)
        if new != self.described:
            raise ServerError(
                f"{self.server.address} came back with another model, {new.model} instead of {self.described.model}: "
                f"start it with the former one and repeat the command, which goes on from the answers it has"
            )


def as_sent(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return a conversation in OpenAI's form."""
    return [{"role": one["role"], "content": one["content"]} for one in messages]


# Checks, without sampling an answer, that a server reads conversations as this model was trained to.
#
# They compare the token ids of rendered conversations, of the added tokens and of ordinary text, as far as a server
# returns them (llama.cpp: /apply-template and /tokenize; vLLM: /tokenize; others: the number of a prompt's tokens), and
# whether each end token, forced by a bias on its logit, ends an answer.

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
    """The differences found, and what could not be compared, one line each."""

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
            difference = "" if theirs == len(ours) else f"a prompt of {theirs} tokens, not {len(ours)}"
        else:
            difference = _difference(chat, ours, theirs)
        differences += [f"{name}: {difference}"] if difference else []
    tokenize = asking.tokenizer()
    if tokenize is None:
        unknown.append("its tokens: it has no /tokenize; of conversations the number of tokens was compared")
    else:
        differences += _tokens(chat, tokenize)
    missing, can_force = asking.ends()
    differences += missing
    unknown += [] if can_force else ["its end tokens: it takes no logit_bias"]
    return Checked(tuple(dict.fromkeys(differences)), tuple(unknown))


def _tokens(chat: ChatFormat, tokenize: Callable[[str], list[int]]) -> list[str]:
    """Return the differences in the tokens of ordinary text and in the added tokens."""
    ours = chat.encode(_TEXT)
    difference = _difference(chat, ours, tokenize(_TEXT))
    lines = [f"ordinary text: {difference}"] if difference else []
    added = {str(token): number for number, token in sorted(chat.tokenizer.added_tokens_decoder.items())}
    known_ids = set(tokenize("a" + "a".join(added) + "a"))
    missing = [token for token, number in added.items() if number not in known_ids]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        lines.append(f"added tokens that its tokenizer lacks: {', '.join(missing[:5])}{more}")
    return lines


def _difference(chat: ChatFormat, ours: Sequence[int], theirs: Sequence[int]) -> str:
    """Return a description of the first difference of two token sequences; "" if they are equal."""
    if list(ours) == list(theirs):
        return ""
    bos = chat.tokenizer.bos_token_id
    if bos is not None and list(theirs[:2]) == [bos, bos] and list(ours[:2]) != [bos, bos]:
        return f"it begins twice, with {chat.tokenizer.bos_token!r} {chat.tokenizer.bos_token!r}"
    at = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    our_text, their_text = (chat.tokenizer.decode(list(ids[at : at + _SHOWN])) for ids in (ours, theirs))
    return f"{our_text!r} is read as {their_text!r}, from token {at + 1} on ({len(ours)} tokens, there {len(theirs)})"


@dataclass(frozen=True)
class _Asking:
    """Requests to a server that sample nothing."""

    server: InferenceServer
    described: Described
    chat: ChatFormat

    def renderer(self) -> Callable[[Sequence[Message]], list[int] | int]:
        """Return the function that gets a conversation's tokens, or only their number, from this server."""
        first = CONVERSATIONS["several turns"]
        try:
            if _is_supported(self._rendered_by_llama_cpp, first):
                return self._rendered_by_llama_cpp
        except ServerError:  # it has the endpoint, and its template fails
            return self._rendered_by_llama_cpp
        return self._rendered_by_vllm if _is_supported(self._rendered_by_vllm, first, ServerError) else self._counted

    def tokenizer(self) -> Callable[[str], list[int]] | None:
        """Return the function that gets the tokens of a text from this server; None if it has no endpoint for it."""
        ways = (self._tokenized_by_llama_cpp, self._tokenized_by_vllm)
        return next((way for way in ways if _is_supported(way, "a", ServerError)), None)

    def ends(self) -> tuple[list[str], bool]:
        """Return one line for each end token that does not end an answer, and whether the server could be tested."""
        names = self.chat.tokenizer.convert_ids_to_tokens
        plain = self.chat.encode("Z")[0]  # twice in a row only if the bias works
        try:
            content, reason = self._answer_with_bias(plain)
        except ServerError:  # it refuses the bias
            return [], False
        if reason == "stop" or content.strip() != self.chat.tokenizer.decode([plain, plain]).strip():
            return [], False
        going_on = [end for end in sorted(self.chat.end_ids) if self._answer_with_bias(end)[1] != "stop"]
        return [f"{names(end)} does not end an answer" for end in going_on], True

    def _answer_with_bias(self, token: int) -> tuple[str, str]:
        body = {"max_tokens": 2, "temperature": 0.0, "logit_bias": {str(token): _FORCED}}
        answer = self._chat(CONVERSATIONS["several turns"], body)
        return str(answer["choices"][0]["message"].get("content") or ""), str(answer["choices"][0]["finish_reason"])

    def _chat(self, messages: Sequence[Message], body: Mapping[str, Any]) -> Any:
        request = {"model": self.described.model, "messages": as_sent(messages), **self._template(messages), **body}
        answer = self.server.post("/v1/chat/completions", request)
        if not (isinstance(answer, dict) and answer.get("choices")):
            raise ServerError(f"{self.server.address} answers in another form than OpenAI's")
        return answer

    def _template(self, messages: Sequence[Message]) -> dict[str, Any]:
        tools, arguments = tools_of(messages), self.chat.template_args
        return ({"tools": tools} if tools else {}) | ({"chat_template_kwargs": dict(arguments)} if arguments else {})

    def _rendered_by_llama_cpp(self, messages: Sequence[Message]) -> list[int]:
        body = {"messages": as_sent(messages), **self._template(messages)}
        prompt = self.server.post("/apply-template", body, retried=False)["prompt"]
        content = {"content": prompt, "add_special": True, "parse_special": True}
        return [int(token) for token in self.server.post("/tokenize", content)["tokens"]]

    def _rendered_by_vllm(self, messages: Sequence[Message]) -> list[int]:
        body = {"model": self.described.model, "messages": as_sent(messages), "add_generation_prompt": True}
        return [int(token) for token in self.server.post("/tokenize", body | self._template(messages))["tokens"]]

    def _counted(self, messages: Sequence[Message]) -> int:
        return int(self._chat(messages, {"max_tokens": 1})["usage"]["prompt_tokens"])

    def _tokenized_by_llama_cpp(self, text: str) -> list[int]:
        body = {"content": text, "add_special": False, "parse_special": True}
        return [int(token) for token in self.server.post("/tokenize", body)["tokens"]]

    def _tokenized_by_vllm(self, text: str) -> list[int]:
        body = {"model": self.described.model, "prompt": text, "add_special_tokens": False}
        return [int(token) for token in self.server.post("/tokenize", body)["tokens"]]


def _is_supported(way: Callable[[Any], list[int]], asked: Any, lacking: type[ServerError] = NotOffered) -> bool:
    """Return whether a server supports this kind of request. An error of type ``lacking`` means that it does not."""
    try:
        return bool(way(asked))
    except (lacking, KeyError, TypeError, ValueError):
        return False
