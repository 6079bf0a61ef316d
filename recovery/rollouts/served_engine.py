"""Answers of a model as it is served: conversations go to a server's own chat endpoint, and text comes back.

Template, tokens, ends of a turn and weights are the server's; they are compared with ours before
(:mod:`recovery.rollouts.served_checks`). Any server with OpenAI's form of a chat will do.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from transformers import AutoConfig

from recovery.errors import ServerError
from recovery.inference_server import (
    InferenceServer,
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

KEYS = ("RECOVER_SERVED_KEY", "RECOVER_ENGINE_KEY", "OPENAI_API_KEY", "VLLM_API_KEY")
_AT_ONCE = 8  # requests, where a server does not say how many it answers at once
_OWNERS = {"llamacpp": "llama.cpp", "vllm": "vLLM", "sglang": "SGLang", "library": "Ollama"}


@dataclass(frozen=True)
class AskedChat(ChatFormat):
    """A chat format that keeps which conversation its prompts are of: a server is asked in messages, not in tokens."""

    asked: dict[tuple[int, ...], Sequence[Message]] = field(default_factory=dict, repr=False, compare=False)

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the token ids of a conversation, which is kept."""
        ids = super().prompt_ids(messages)
        self.asked[tuple(ids)] = list(messages)
        return ids


def without_weights(folder: Path, adapter: Path | None, template_args: Mapping[str, Any]) -> Loaded:
    """Return the model in a folder with its chat format and no weights: those that answer are a server's."""
    chat = load_chat(str(folder), template_args, adapter=adapter)
    parts = {part.name: getattr(chat, part.name) for part in dataclasses.fields(ChatFormat)}
    made = outline(AutoConfig.from_pretrained(folder))
    made.chat, made.tokenizer, made.path = AskedChat(**parts), chat.tokenizer, str(folder)
    return made


@dataclass(frozen=True)
class Described:
    """What a server says of its model. ``file`` is where it has it, ``quantisation`` its type of file."""

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
        meta = listed.get("meta") if isinstance(listed.get("meta"), dict) else {}
        props = _offered(server, "/props")
        versions = _offered(server, "/version") or _offered(server, "/api/version")
        owner = str(listed.get("owned_by", ""))
        return cls(
            model=str(listed["id"]),
            runtime=_OWNERS.get(owner, owner or "unknown"),
            build=str(props.get("build_info") or versions.get("version") or "").replace(
                "b0-unknown", ""
            ),  # xllamacpp's
            file=str(props.get("model_path") or listed.get("root") or ""),
            quantisation=str(props.get("model_ftype") or (meta or {}).get("ftype") or "").lower(),
            template=str(props.get("chat_template") or ""),
            window=window_of(listed.get("max_model_len")) or window_of((meta or {}).get("n_ctx")),
            slots=window_of(props.get("total_slots")) or _AT_ONCE,
            parameters=window_of((meta or {}).get("n_params")),
        )


def _offered(server: InferenceServer, path: str) -> Mapping[str, Any]:
    """Return what an endpoint answers; nothing if the server does not have it."""
    try:
        found = server.get(path)
    except ServerError:
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class ServedEngine:
    """An engine for the conversations of ``chat``, of the model that a server ``described`` when it was compared.

    Completions have no log-probabilities. Raise ServerError for an answer that the server cut short, and if it comes
    back with another model after it was gone.
    """

    server: InferenceServer
    described: Described
    chat: AskedChat
    part_size: ClassVar[int] = 32  # completions that are stored at once: what a server that goes down costs

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
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        """Return one completion per prompt, in order."""

        def report(completions: Sequence[Completion]) -> None:
            if progress is not None:
                progress(len(completions), sum(len(one.ids) for one in completions))

        def ask(prompt: Sequence[int], given_up: threading.Event) -> Completion:
            return self._one(prompt, sampling, given_up)

        return ask_all(ask, prompts, self.described.slots, report)

    def _one(self, prompt: Sequence[int], sampling: Sampling, given_up: threading.Event) -> Completion:
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
            # Otherwise what the server was started with would silently apply; who does not know one of them ignores it.
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repeat_penalty": 1.0,
            "repetition_penalty": 1.0,
            "cache_prompt": False,  # llama.cpp rounds otherwise on a prompt whose beginning it has kept
        }
        messages = self.chat.asked.get(tuple(prompt))
        if messages is None or tools_of(messages):
            return "/v1/completions", body | {"prompt": list(prompt)}
        if self.chat.template_args:
            body["chat_template_kwargs"] = dict(self.chat.template_args)
        return "/v1/chat/completions", body | {"messages": as_sent(messages)}

    def _check_same(self) -> None:
        found = dataclasses.replace(Described.of(self.server), build=self.described.build)
        if found != self.described:
            raise ServerError(
                f"{self.server.address} came back with another model, {found.model} instead of {self.described.model}: "
                f"start it with the former one and repeat the command, which goes on from the answers it has"
            )


def as_sent(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return a conversation in OpenAI's form."""
    return [{"role": one["role"], "content": one["content"]} for one in messages]
