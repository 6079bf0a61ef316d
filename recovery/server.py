"""Talking to a vLLM server: patient with one that restarts, plain about one that refuses.

The key is read from the environment at each use and never kept, shown or written anywhere.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from recovery.errors import ServerError, UsageError

CONNECTIONS = 64
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 15.0  # seconds between two tries
_FAREWELL = 5.0  # seconds for what need not arrive
_BETWEEN_LOOKS = 0.25  # seconds between two calls of `progress` while no answer comes
# What a server says while it starts, is overloaded or goes down; anything else it means.
_PASSING = (408, 425, 429, 500, 502, 503, 504)


_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class NotOffered(ServerError):  # noqa: N818  (what it says is more than that it is an error)
    """The server has no such endpoint: it was started without it."""


def is_address(name: str) -> bool:
    """Whether a name means a server."""
    return name.startswith(("http://", "https://"))


def check_address(address: str, flag: str) -> str:
    """The address of a server, without a slash at its end. Raises UsageError where it is none, or holds a key."""
    if any(mark in address for mark in "@?#"):  # not shown: what stands there may be secret
        raise UsageError(f"{flag}: an address holds no key or user: put the key into the environment (VLLM_API_KEY)")
    parts = urlsplit(address)
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is no number
        usable = False
    if not usable:
        raise UsageError(f"{flag} {address!r} is no address: give one such as http://127.0.0.1:8000")
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

    def post(self, path: str, body: Any, *, retried: bool = True, given_up: threading.Event | None = None) -> Any:
        """The JSON that is answered to ``body``; None where the answer is not JSON.

        Tries again, with longer and longer pauses, while the server is gone or overloaded and nobody has ``given_up``;
        where not ``retried`` an error of the server's own (500) is final. Raises ServerError, in one line, when
        ``patience`` is used up or the request is refused, :class:`NotOffered` where there is no such path.
        """
        return self._asked("POST", path, body, _PASSING if retried else tuple(set(_PASSING) - {500}), given_up)

    def tell(self, path: str, body: Any) -> None:
        """Send what need not arrive: once, with little time, whatever is answered."""
        with contextlib.suppress(httpx.HTTPError):
            self._client.post(self.address + path, json=body, headers=self._headers(), timeout=_FAREWELL)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _asked(
        self, method: str, path: str, body: Any, passing: Sequence[int], given_up: threading.Event | None = None
    ) -> Any:
        given_up = given_up or threading.Event()
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
            if given_up.is_set() or now - gone_since + pause > self.patience:
                raise ServerError(
                    f"{self.address} {problem}, for {now - gone_since:.0f} seconds: start it again and go on with "
                    f"`recover resume`, or give it longer (--server-wait)"
                )
            given_up.wait(pause)
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
        name = next((name for name in self.keys if os.environ.get(name, "").strip()), None)
        if name is None:
            return {}
        key = os.environ[name].strip()  # a secret read from a file often ends in a line break
        if not (key.isascii() and key.isprintable()):
            raise UsageError(f"{name} holds a character that no key has: set it to the key alone")
        return {"Authorization": f"Bearer {key}"}


def ask_all(
    ask: Callable[[_Item, threading.Event], _Answer],
    items: Sequence[_Item],
    at_once: int,
    progress: Callable[[Sequence[_Answer]], None] = lambda _answers: None,
) -> list[_Answer]:
    """What ``ask`` answers to each item, in order, by ``at_once`` threads.

    ``progress`` is given each answer as it comes, and nothing several times a second while none does: what it raises
    ends the work. The first error, or a Ctrl-C, ends it at once: the event that ``ask`` is given is then set, and
    whoever still waits for a server is left behind.
    """
    given_up = threading.Event()
    waiting: queue.SimpleQueue[tuple[int, _Item]] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, _Answer | BaseException]] = queue.SimpleQueue()
    for numbered in enumerate(items):
        waiting.put(numbered)

    def work() -> None:
        while not given_up.is_set():
            try:
                index, item = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((index, ask(item, given_up)))
            except BaseException as error:  # raised below, by the thread that waits for it
                done.put((index, error))

    for _ in range(min(at_once, len(items))):
        threading.Thread(target=work, daemon=True).start()
    found: dict[int, _Answer] = {}
    try:
        while len(found) < len(items):
            try:
                index, answer = done.get(timeout=_BETWEEN_LOOKS)
            except queue.Empty:
                progress([])
                continue
            if isinstance(answer, BaseException):
                raise answer
            found[index] = answer
            progress([answer])
    finally:
        given_up.set()
    return [found[index] for index in range(len(items))]


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
