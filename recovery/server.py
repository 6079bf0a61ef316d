"""Talking to a vLLM server: patient with one that restarts, plain about one that refuses.

The key is read from the environment at each use and never kept, shown or written anywhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from recovery.errors import ServerError, UsageError

CONNECTIONS = 64
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 15.0  # seconds between two tries
# What a server says while it starts, is overloaded or goes down; anything else it means.
_PASSING = (408, 425, 429, 500, 502, 503, 504)


class NotOffered(ServerError):  # noqa: N818  (what it says is more than that it is an error)
    """The server has no such endpoint: it was started without it."""


def is_address(name: str) -> bool:
    """Whether a name means a server."""
    return name.startswith(("http://", "https://"))


def check_address(address: str, flag: str) -> str:
    """The address of a server, without a slash at its end. Raises UsageError where it is none, or holds a key."""
    parts = urlsplit(address)
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is no number
        usable = False
    if not usable:
        raise UsageError(f"{flag} {address!r} is no address: give one such as http://127.0.0.1:8000")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(f"{flag}: an address holds no key or user: put the key into the environment (VLLM_API_KEY)")
    return address.rstrip("/").removesuffix("/v1")


@dataclass
class VllmServer:
    """One server at ``address``.

    ``keys`` are environment variables, the first that is set holds the key. ``timeout`` is how long one request may
    take, ``patience`` how long a server may be gone before that is an error, both in seconds. ``returned`` is called,
    by the thread that asked, when it answers again after it was gone. Any number of threads may ask.
    """

    address: str
    keys: Sequence[str]
    timeout: float = 600.0
    patience: float = 600.0
    returned: Callable[[], None] = lambda: None
    _client: httpx.Client = field(init=False, repr=False)

    def __post_init__(self) -> None:
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        self._client = httpx.Client(timeout=httpx.Timeout(self.timeout, connect=10.0), limits=limits)

    def get(self, path: str) -> Any:
        """The JSON of a page."""
        return self._asked("GET", path, None, _PASSING)

    def post(self, path: str, body: Any, *, retried: bool = True) -> Any:
        """The JSON that is answered to ``body``; None where the answer is not JSON.

        Tries again, with longer and longer pauses, while the server is gone or overloaded; where not ``retried`` an
        error of the server's own (500) is final. Raises ServerError, in one line, when ``patience`` is used up or the
        request is refused, :class:`NotOffered` where there is no such path.
        """
        return self._asked("POST", path, body, _PASSING if retried else tuple(set(_PASSING) - {500}))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _asked(self, method: str, path: str, body: Any, passing: Sequence[int]) -> Any:
        gone_since: float | None = None
        pause = _FIRST_PAUSE
        while True:
            try:
                answer = self._client.request(method, self.address + path, json=body, headers=self._headers())
                problem = f"answers {answer.status_code}" if answer.status_code in passing else ""
            except httpx.TimeoutException:
                problem = f"did not answer within {self.timeout:g} seconds"
            except httpx.TransportError as error:
                problem = str(error) or type(error).__name__
            if not problem:
                break
            now = time.monotonic()
            gone_since = now if gone_since is None else gone_since
            if now - gone_since + pause > self.patience:
                raise ServerError(
                    f"{self.address} {problem}, for {now - gone_since:.0f} seconds: start it again and go on with "
                    f"`recover resume`, or give it longer (--server-wait)"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        if gone_since is not None:
            self.returned()
        return self._read(answer, path)

    def _read(self, answer: httpx.Response, path: str) -> Any:
        if answer.status_code in (401, 403):
            raise ServerError(f"{self.address} refuses the key: set {' or '.join(self.keys)} to the one it was given")
        if answer.status_code in (404, 405):
            raise NotOffered(f"{self.address} has no {path}: {_reason(answer)}")
        if answer.status_code >= 400:
            raise ServerError(f"{self.address}{path} answers {answer.status_code}: {_reason(answer)}")
        try:
            return answer.json()
        except ValueError:
            return None

    def _headers(self) -> dict[str, str]:
        key = next((os.environ[name] for name in self.keys if os.environ.get(name)), None)
        return {} if key is None else {"Authorization": f"Bearer {key}"}


def served_model(server: VllmServer) -> dict[str, Any]:
    """The model a server serves, as it describes it ("id", "root", "max_model_len"); adapters are passed over.

    Raises ServerError where it serves none.
    """
    listed = server.get("/v1/models")
    models = listed.get("data", []) if isinstance(listed, dict) else []
    for model in models:
        if isinstance(model, dict) and model.get("id") and model.get("parent") is None:
            return model
    raise ServerError(f"{server.address} names no model at /v1/models: is it a vLLM server?")


def _reason(answer: httpx.Response) -> str:
    """What the server says about an error, as one line."""
    try:
        told = answer.json()
    except ValueError:
        told = answer.text
    for name in ("error", "message", "detail"):
        if isinstance(told, dict) and name in told:
            told = told[name]
    return " ".join(str(told).split())[:300]
