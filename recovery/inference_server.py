"""HTTP client of an inference server (vLLM), with retries and one-line errors.

The key is read from the environment at each request and is never stored, printed or logged.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from recovery.errors import ServerError, UsageError

CONNECTIONS = 64
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 15.0  # seconds between two attempts
_NOTIFY_TIMEOUT = 5.0  # seconds, for requests that need not arrive
_ROUNDING = 1e-3  # nats above 0 that rounding may give a log-probability
_LONGEST_ANSWER = 64 * 2**20  # bytes of a response, unless the caller expects more
_POLL_INTERVAL = 0.25  # seconds between two calls of `progress` while no result arrives
# Status codes of a server that starts, is overloaded or shuts down; any other error is final.
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)

RESUME = "restart it and continue with `recover resume`, or raise --server-wait"

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class NotOffered(ServerError):  # noqa: N818  (the name states the cause)
    """The server does not have this endpoint."""


@dataclass
class InferenceServer:
    """One server at ``address``.

    ``keys`` are environment variables; the first that is set holds the key. ``timeout`` is how long one request may
    take, ``patience`` how long a server may be unavailable before an error is raised, both in seconds. ``returned`` is
    called by the requesting thread when the server responds again after it was unavailable; requests made within that
    call do not call it again. ``advice`` ends the error of a server that stays unavailable. ``waiting`` is called with
    a message when waiting begins, by one of the waiting threads. Thread-safe.
    """

    address: str
    keys: Sequence[str]
    timeout: float = 600.0
    patience: float = 600.0
    returned: Callable[[], None] = lambda: None
    advice: str = RESUME
    waiting: Callable[[str], None] = lambda _line: None
    _client: httpx.Client = field(init=False, repr=False)
    _has_reported_wait: bool = field(init=False, repr=False, default=False)
    _thread: threading.local = field(init=False, repr=False, default_factory=threading.local)

    def __post_init__(self) -> None:
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        self._client = httpx.Client(timeout=httpx.Timeout(self.timeout, connect=10.0), limits=limits)

    def get(self, path: str) -> Any:
        """Send a GET request and return the JSON response."""
        return self._request("GET", path, None, _TRANSIENT)

    def post(
        self,
        path: str,
        body: Any,
        *,
        retried: bool = True,
        given_up: threading.Event | None = None,
        most: int = _LONGEST_ANSWER,
    ) -> Any:
        """Send ``body`` as JSON and return the JSON response of ``most`` bytes; None if the response is not JSON.

        Retry with exponential backoff while the server is unavailable or overloaded, until ``given_up`` is set; without
        ``retried`` an internal error of the server (500) is final. Raise ServerError if ``patience`` is exhausted or
        the request is refused, :class:`NotOffered` if the path does not exist.
        """
        transient = _TRANSIENT if retried else tuple(set(_TRANSIENT) - {500})
        return self._request("POST", path, body, transient, given_up, most)

    def tell(self, path: str, body: Any) -> None:
        """Send a request once with a short timeout; ignore its response and any failure."""
        with contextlib.suppress(httpx.HTTPError):
            self._client.post(self.address + path, json=body, headers=self._headers(), timeout=_NOTIFY_TIMEOUT)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _request(
        self,
        method: str,
        path: str,
        body: Any,
        transient: Sequence[int],
        given_up: threading.Event | None = None,
        most: int = _LONGEST_ANSWER,
    ) -> Any:
        given_up = given_up or threading.Event()
        down_since: float | None = None
        pause = _FIRST_PAUSE
        while True:
            try:
                answer = self._exchange(method, path, body, most)
                problem = f"returned status {answer.status_code}" if answer.status_code in transient else ""
            except httpx.TimeoutException:
                problem = f"did not respond within {self.timeout:g} seconds"
            except httpx.RequestError as error:  # no or a lost connection, or an invalid encoding
                problem = one_line(str(error) or type(error).__name__)
            if not problem:
                break
            now, is_first = time.monotonic(), down_since is None
            down_since = now if down_since is None else down_since
            if given_up.is_set() or now - down_since + pause > self.patience:
                raise ServerError(f"{self.address} {problem}, for {now - down_since:.0f} seconds: {self.advice}")
            if is_first and not self._has_reported_wait:
                self._has_reported_wait = True
                self.waiting(f"{self.address} {problem}: waiting up to {self.patience:g} seconds (--server-wait)")
            given_up.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        self._has_reported_wait = False
        if down_since is not None and not getattr(self._thread, "returning", False):
            self._thread.returning = True  # the requests of `returned` may have to be repeated too
            try:
                self.returned()
            finally:
                self._thread.returning = False
        return self._parse(answer, path)

    def _exchange(self, method: str, path: str, body: Any, most: int) -> httpx.Response:
        """Send a request once and return its response, within ``timeout``: httpx's own timeout is for each part."""
        until, size = time.monotonic() + self.timeout, 0
        parts: list[bytes] = []
        with self._client.stream(method, self.address + path, json=body, headers=self._headers()) as answer:
            for part in answer.iter_bytes():
                size += len(part)
                if size > most:
                    problem = f"returned more than {most:,} bytes: check the server, or a proxy before it"
                    raise ServerError(f"{self.address}{path} {problem}")
                if time.monotonic() > until:
                    raise httpx.ReadTimeout("the response takes too long")
                parts.append(part)
        kind = {"content-type": answer.headers.get("content-type", "")}
        return httpx.Response(answer.status_code, content=b"".join(parts), headers=kind)

    def _parse(self, answer: httpx.Response, path: str) -> Any:
        if answer.status_code in (401, 403):
            raise ServerError(f"{self.address} refuses the key: set {' or '.join(self.keys)} to the server's key")
        if answer.status_code in (404, 405):
            raise NotOffered(f"{self.address} has no {path}: {_reason(answer)}")
        if answer.status_code >= 400:
            raise ServerError(f"{self.address}{path} returned status {answer.status_code}: {_reason(answer)}")
        try:
            return answer.json()
        except (ValueError, RecursionError):
            return None

    def _headers(self) -> dict[str, str]:
        name = next((name for name in self.keys if os.environ.get(name, "").strip()), None)
        if name is None:
            return {}
        key = os.environ[name].strip()  # a secret read from a file often ends with a newline
        if not (key.isascii() and key.isprintable()):
            raise UsageError(f"{name} contains a character that is not allowed in a key: set it to the key alone")
        return {"Authorization": f"Bearer {key}"}


def ask_all(
    ask: Callable[[_Item, threading.Event], _Answer],
    items: Sequence[_Item],
    at_once: int,
    progress: Callable[[Sequence[_Answer]], None] = lambda _answers: None,
) -> list[_Answer]:
    """Call ``ask`` for each item in ``at_once`` threads and return the results in order.

    ``progress`` is called with each result as it arrives, and with an empty list several times a second while none
    does; an exception it raises ends the work. The first error, or Ctrl-C, ends the work at once: the event passed to
    ``ask`` is set, and threads that still wait for a server are abandoned.
    """
    given_up = threading.Event()
    pending: queue.SimpleQueue[tuple[int, _Item]] = queue.SimpleQueue()
    results_queue: queue.SimpleQueue[tuple[int, _Answer | BaseException]] = queue.SimpleQueue()
    for numbered in enumerate(items):
        pending.put(numbered)

    def work() -> None:
        while not given_up.is_set():
            try:
                index, item = pending.get_nowait()
            except queue.Empty:
                return
            try:
                results_queue.put((index, ask(item, given_up)))
            except BaseException as error:  # raised below, in the calling thread
                results_queue.put((index, error))

    for _ in range(min(at_once, len(items))):
        threading.Thread(target=work, daemon=True).start()
    results: dict[int, _Answer] = {}
    try:
        while len(results) < len(items):
            try:
                index, answer = results_queue.get(timeout=_POLL_INTERVAL)
            except queue.Empty:
                progress([])
                continue
            if isinstance(answer, BaseException):
                raise answer
            results[index] = answer
            progress([answer])
    finally:
        given_up.set()
    return [results[index] for index in range(len(items))]


def log_probability(value: Any) -> float:
    """Return a log-probability (nats) of a response. Raise ValueError if it cannot be one: NaN, infinite, above 0."""
    number = float(value)
    if not (math.isfinite(number) and number <= _ROUNDING):
        raise ValueError(f"{number} is no log-probability")
    return number


@contextlib.contextmanager
def response_of(address: str) -> Iterator[None]:
    """Name the server in every ServerError about its response."""
    try:
        yield
    except ServerError as error:
        raise ServerError(f"{address}: {error}") from error


def one_line(text: str) -> str:
    """Return a server's message as one line of at most 300 characters."""
    return " ".join(text.split())[:300]


def window_of(value: Any) -> int | None:
    """Return a number of tokens from a server's description; None if it is not a positive integer."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def check_model(answer: Any, model: str) -> None:
    """Raise ServerError if a response is from another model than requested."""
    served = answer.get("model") if isinstance(answer, dict) else None
    if served is not None and served != model:
        raise ServerError(
            f"the model {one_line(str(served))!r} answered, not {model!r}: check the server, or a proxy before it"
        )


def served_model(server: InferenceServer) -> dict[str, Any]:
    """Return the server's description of its model ("id", "root", "max_model_len"), ignoring adapters.

    Raise ServerError if it serves none.
    """
    try:
        listed = server.get("/v1/models")
    except NotOffered as error:
        raise ServerError(f"{error}: is it a vLLM server?") from error
    models = listed.get("data") if isinstance(listed, dict) else None
    for model in models if isinstance(models, list) else []:
        if isinstance(model, dict) and model.get("id") and model.get("parent") is None:
            return model
    raise ServerError(f"{server.address} lists no model at /v1/models: is it a vLLM server?")


def _reason(answer: httpx.Response) -> str:
    """Return the server's error message as one line."""
    try:
        reason = answer.json()
    except (ValueError, RecursionError):
        reason = answer.reason_phrase if answer.text.lstrip().startswith("<") else answer.text  # a page in HTML
    for name in ("error", "message", "detail"):
        if isinstance(reason, dict) and name in reason:
            reason = reason[name]
    return one_line(str(reason))
