"""The real dashboard in a process of its own, asked as a browser asks it: over HTTP, through Gradio's queue."""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 120
_TICKS = os.sysconf("SC_CLK_TCK")
Query = Sequence[tuple[str, object]]


class Served:
    """A process that says "at http://..." when it answers, and ends with this block."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if found := re.search(r"http://([\d.]+):(\d+)", line):
                self.host, self.port = found[1], int(found[2])
                return
        raise RuntimeError(f"{' '.join(command)} ended: {''.join(self.said)}")

    @property
    def address(self) -> str:
        """Where it answers."""
        return f"http://{self.host}:{self.port}"

    def cpu_seconds(self) -> float:
        """What the process has taken of the processor so far, user and system."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory_mb(self) -> tuple[float, float]:
        """Resident memory now and at most, in megabytes (10^6 bytes)."""
        told = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        now, most = (int(re.search(rf"{name}:\s+(\d+) kB", told)[1]) for name in ("VmRSS", "VmHWM"))  # type: ignore[index]
        return now * 1024 / 1e6, most * 1024 / 1e6

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def dashboard(workspace: Path, port: int) -> Served:
    """`recover dashboard` over a workspace."""
    return Served(["-m", "recovery", "dashboard", "--workspace", str(workspace), "--port", str(port)])


EMPTY = """
import gradio, sys, uvicorn
from fastapi import FastAPI
with gradio.Blocks(analytics_enabled=False) as page:
    words = gradio.HTML()
    page.load(lambda: "<h1>Nothing else</h1>", outputs=words)
application = gradio.mount_gradio_app(FastAPI(), page, path="/", ssr_mode=False)
class Announced(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(f"at http://127.0.0.1:{sys.argv[1]}", flush=True)
Announced(uvicorn.Config(application, port=int(sys.argv[1]), log_level="warning")).run()
"""


def empty_page(port: int) -> Served:
    """A Gradio page that shows one line: what no page of ours can be faster than."""
    return Served(["-c", EMPTY, str(port)])


@dataclass(frozen=True)
class Answer:
    """What a page's function sent first, seconds from the question until then and until all was there, and bytes."""

    first: float
    seconds: float
    size: int
    outputs: list[Any]

    @property
    def text(self) -> str:
        """Every piece of HTML in it."""
        return "".join(output for output in self.outputs if isinstance(output, str))


class Place(Protocol):
    """Where a dashboard answers."""

    @property
    def host(self) -> str:
        """Its address."""

    @property
    def port(self) -> int:
        """Its port."""


@dataclass
class Visitor:
    """A browser's session: opens pages, then ticks; what a page keeps of it stays with the server."""

    served: Place
    session: str = field(default_factory=lambda: secrets.token_hex(6))
    known: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)

    def load(self, path: str, query: Query = ()) -> Answer:
        """What the page at ``path`` shows when it opens, asked for as ``?query``: its words, then its figures."""
        told = self.ask(path, "load", query)
        if "then" not in self._known(path):
            return told
        drawn = self.ask(path, "then", query)
        return Answer(told.first, told.seconds + drawn.seconds, told.size + drawn.size, told.outputs)

    def tick(self, path: str, query: Query = ()) -> Answer:
        """What the page's timer brings."""
        return self.ask(path, "tick", query)

    def _known(self, path: str) -> dict[str, dict[str, Any]]:
        if path not in self.known:
            self.known[path] = _functions(self.served, path)
        return self.known[path]

    def ask(self, path: str, event: str, query: Query = ()) -> Answer:
        """What one function of the page brings: that of "load", "then" or "tick"."""
        what = self._known(path)[event]
        body = {
            "data": [None] * len(what["inputs"]),
            "event_data": None,
            "fn_index": what["id"],
            "trigger_id": what["targets"][0][0],
            "session_hash": self.session,
        }
        started = time.perf_counter()
        connection = http.client.HTTPConnection(self.served.host, self.served.port, timeout=300)
        try:
            address = f"/gradio_api/queue/join?{urlencode(list(query))}"
            connection.request("POST", address, json.dumps(body), {"content-type": "application/json"})
            connection.getresponse().read()
            connection.request("GET", f"/gradio_api/queue/data?session_hash={self.session}")
            answer = _answer(connection.getresponse(), started)
        finally:
            connection.close()
        if answer is None:
            raise RuntimeError(f"/{path}?{urlencode(list(query))} ended with an error")
        return answer


def _functions(served: Place, path: str) -> dict[str, dict[str, Any]]:
    """The functions of a page that a browser calls by itself: by "load", "then" and "tick"."""
    connection = http.client.HTTPConnection(served.host, served.port, timeout=60)
    connection.request("GET", f"/{path}")
    page = connection.getresponse().read().decode()
    connection.close()
    config = json.loads(re.search(r"window\.gradio_config = (.*?);</script>", page, re.DOTALL)[1])  # type: ignore[index]
    own = set(config["page"][path]["dependencies"])
    functions = [one for one in config["dependencies"] if one["id"] in own and one["backend_fn"]]
    return {one["targets"][0][1]: one for one in functions if one["targets"]}


def _answer(response: http.client.HTTPResponse, started: float) -> Answer | None:
    """Read the stream of events until the answer is complete; None where the page's function failed."""
    first, size = 0.0, 0
    outputs: list[Any] = []
    for line in response:
        if not line.startswith(b"data: "):
            continue
        message = json.loads(line[6:])
        size += len(line)
        sent = message.get("output", {}).get("data")
        if sent is not None and not outputs:
            first, outputs = time.perf_counter() - started, sent
        if message["msg"] == "process_completed":
            return Answer(first, time.perf_counter() - started, size, outputs) if message["success"] else None
    return None
