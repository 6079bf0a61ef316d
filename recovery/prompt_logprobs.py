"""Log-probabilities of given tokens from a vLLM server (``prompt_logprobs`` of a completion).

The server returns the most likely entries at each position and the entry of the token that was sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

from recovery.errors import ServerError, first_line
from recovery.inference_server import InferenceServer, ask_all, check_model, log_probability, response_of

_PROMPTS, _REQUESTS = 16, 8  # prompts per request, and concurrent requests
_FIXED_BYTES, _ENTRY_BYTES = 2**20, 512  # of a response, and of one entry in it: more than vLLM sends
_MOST = 1.01  # the largest sum of probabilities that rounding explains


@dataclass(frozen=True)
class Entries:
    """Token ids and log-probabilities at one position, most likely first, and the log-probability of the target."""

    ids: list[int]
    logprobs: list[float]
    target: float


@dataclass(frozen=True)
class ServerScores:
    """Scores of given tokens by the ``model`` of a server. ``window``: its positions; a row has one token more."""

    server: InferenceServer
    model: str
    window: int

    def of(self, rows: Sequence[Sequence[int]]) -> list[list[Entries]]:
        """Return the two likeliest entries of each token of each row, from its second token on."""
        positions = ask_positions(self.server, self.model, rows, 2)
        with response_of(self.server.address):
            return [
                [entries(position, token, 2) for position, token in zip(of_row[1:], row[1:], strict=True)]
                for row, of_row in zip(rows, positions, strict=True)
            ]


def scores_of(server: InferenceServer, model: str, row: Sequence[int], window: int) -> ServerScores | None:
    """Return the scores of a server whose prompts and samples share ``window`` tokens, tried on a ``row``; None if it
    returns no log-probabilities of given tokens.
    """
    scores = ServerScores(server, model, window - 2)  # a request must sample at least one token
    try:
        scores.of([row])
    except ServerError:
        return None
    return scores


def ask_positions(server: InferenceServer, model: str, rows: Sequence[Sequence[int]], count: int) -> list[list[Any]]:
    """Return what a server says at every position of each row, ``count`` entries; several requests at once."""

    def ask(part: Sequence[Sequence[int]], given_up: Event) -> list[list[Any]]:
        body = {
            "model": model,
            "prompt": [list(row) for row in part],
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": count,
            "return_token_ids": True,
        }
        most = _FIXED_BYTES + _ENTRY_BYTES * (count + 2) * sum(map(len, part))
        answer = server.post("/v1/completions", body, given_up=given_up, most=most)
        with response_of(server.address):
            check_model(answer, model)
            return parse_positions(answer, part)

    parts = [rows[start : start + _PROMPTS] for start in range(0, len(rows), _PROMPTS)]
    return [of_row for part in ask_all(ask, parts, _REQUESTS) for of_row in part]


def parse_positions(answer: Any, prompts: Sequence[Sequence[int]]) -> list[list[Any]]:
    """Return the log-probabilities at each position of each prompt, in order; None at the first position.

    Raise ServerError if a result is missing or belongs to other tokens than were sent.
    """
    try:
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        positions = [list(choice["prompt_logprobs"]) for choice in choices]
        prompt_ids = [choice.get("prompt_token_ids") for choice in choices]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ServerError("the server's response has no prompt_logprobs: serve it with vLLM") from error
    if [len(row) for row in positions] != [len(prompt) for prompt in prompts]:
        raise ServerError("the server's response has another number of tokens than were sent: serve it with vLLM")
    if any(ids is not None and ids != list(prompt) for ids, prompt in zip(prompt_ids, prompts, strict=True)):
        raise ServerError("the server read other tokens than were sent: check for a proxy that changes requests")
    return positions


def entries(position: Any, target: int, count: int) -> Entries:
    """Return ``count`` entries at one position, including the target token.

    The server returns the ``count`` most likely tokens and, if it is not one of them, the target, which then replaces
    the least likely. All other tokens are one bucket of the divergence. Raise ServerError if an entry is missing, or
    if the entries are no distribution.
    """
    try:
        raw = {int(token): entry["logprob"] for token, entry in position.items()}
        logprob = float(raw[target])
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ServerError(f"the server's response has no log-probability of token {target}") from error
    try:
        logprobs = {token: log_probability(value) for token, value in raw.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise ServerError(f"the server's scores are not sound: {first_line(error)}; check the served model") from error
    if (total := math.fsum(map(math.exp, logprobs.values()))) > _MOST:
        raise ServerError(f"the server's probabilities at a token sum to {total:.3g}: check the served model")
    del logprobs[target]
    others = sorted(logprobs.items(), key=lambda item: (-item[1], item[0]))[: count - 1]
    if len(others) < count - 1:
        raise ServerError(f"the server returned {len(others) + 1} entries at a token, not {count}")
    chosen = sorted([(target, logprob), *others], key=lambda item: -item[1])
    return Entries([token for token, _ in chosen], [value for _, value in chosen], logprob)
