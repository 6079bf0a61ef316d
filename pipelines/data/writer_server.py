"""A server of chat completions as the writer of mid-training; what it has replied is kept as it comes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from threading import Event

from evals.rewriting import WRITE_TOKENS, Say
from recovery.config import MidtrainConfig
from recovery.errors import ServerError
from recovery.inference_server import InferenceServer, ask_all, served_model
from recovery.rollouts.engine import Progress
from recovery.rollouts.vllm_server_engine import KEYS

_AT_ONCE = 16  # requests
_GLANCE = 5.0  # seconds that a plan waits for a response


def model_now(address: str) -> str:
    """Return the id of the model that a server serves, for a plan: "" if it does not say so at once."""
    with contextlib.closing(InferenceServer(address, KEYS, timeout=_GLANCE, patience=0.0)) as server:
        try:
            return str(served_model(server)["id"])
        except ServerError:
            return ""


def model_at(address: str, config: MidtrainConfig) -> str:
    """Return the id of the model that a server serves. Raise ServerError if it does not respond in time."""
    with contextlib.closing(_server(address, config)) as server:
        return str(served_model(server)["id"])


def writer(address: str, model: str, config: MidtrainConfig, kept: Path, progress: Progress) -> Say:
    """Return a writer that asks a server, except for what is ``kept``: a file to which each reply is added at once."""
    server = _server(address, config)

    def ask(prompt: str, given_up: Event) -> tuple[str, str, int]:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": WRITE_TOKENS,
            "temperature": 0.0,
        }
        response = server.post("/v1/chat/completions", body, given_up=given_up)
        try:
            text = response["choices"][0]["message"]["content"] or ""
            return prompt, str(text), int(response["usage"]["completion_tokens"])
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise ServerError(f"{address}/v1/chat/completions returns no text: is it a chat server?") from error

    def replied(replies: Sequence[tuple[str, str, int]]) -> None:
        if replies:  # before progress, which may end the work
            with kept.open("a", encoding="utf-8") as file:
                # A line break before each ends a line that a killed process left unfinished.
                file.writelines(f"\n{json.dumps(reply)}" for reply in replies)
        progress(len(replies), sum(tokens for *_, tokens in replies))

    def say(prompts: Sequence[str]) -> list[tuple[str, int]]:
        kept.parent.mkdir(parents=True, exist_ok=True)
        known = _replies(kept)
        missing = [prompt for prompt in prompts if prompt not in known]
        if len(missing) < len(prompts):
            progress(len(prompts) - len(missing), 0)
        made = iter(ask_all(ask, missing, _AT_ONCE, replied))
        return [known[prompt] if prompt in known else next(made)[1:] for prompt in prompts]

    return say


def _server(address: str, config: MidtrainConfig) -> InferenceServer:
    return InferenceServer(address, KEYS, timeout=config.server_timeout, patience=config.server_wait)


def _replies(kept: Path) -> dict[str, tuple[str, int]]:
    """Return the texts and numbers of tokens in a file of replies, by prompt; unfinished lines are left out."""
    found: dict[str, tuple[str, int]] = {}
    for line in kept.read_bytes().split(b"\n") if kept.is_file() else ():
        with contextlib.suppress(ValueError, TypeError):
            prompt, text, tokens = json.loads(line)
            found[prompt] = str(text), int(tokens)
    return found
