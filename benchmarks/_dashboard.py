"""Client of a dashboard process that sends requests as a browser does: over HTTP, through Gradio's queue."""

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
_TICKS = os.sysconf("SC_CLK_TCK")
Query = Sequence[tuple[str, object]]


class Served:
    """A server process that prints "at http://..." when it is ready; stopped when the context exits."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.output: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)
            if found := re.search(r"http://([\d.]+):(\d+)", line):
                self.host, self.port = found[1], int(found[2])
                return
        raise RuntimeError(f"{' '.join(command)} ended: {''.join(self.output)}")

    @property
    def address(self) -> str:
        """URL of the server."""
        return f"http://{self.host}:{self.port}"

    def cpu_seconds(self) -> float:
        """Return the CPU time of the process so far, user and system."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory_mb(self) -> tuple[float, float]:
        """Return resident memory, current and peak, in megabytes (10^6 bytes)."""
        text = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        now, most = (int(re.search(rf"{name}:\s+(\d+) kB", text)[1]) for name in ("VmRSS", "VmHWM"))  # type: ignore[index]
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
    """Start `recover dashboard` on a workspace."""
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
    """Start a Gradio page that shows one line: the lower bound for the dashboard's pages."""
    return Served(["-c", EMPTY, str(port)])


@dataclass(frozen=True)
class Answer:
    """Response of a page function: seconds until the last output, bytes, and the first outputs."""

    seconds: float
    size: int
    outputs: list[Any]

    @property
    def text(self) -> str:
        """All HTML outputs, joined."""
        return "".join(output for output in self.outputs if isinstance(output, str))


class Place(Protocol):
    """Address of a dashboard server."""

    @property
    def host(self) -> str:
        """Host name or address."""

    @property
    def port(self) -> int:
        """Port number."""


@dataclass
class Visitor:
    """A browser session that opens pages and sends timer ticks; the server holds its state."""

    served: Place
    session: str = field(default_factory=lambda: secrets.token_hex(6))
    known: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)

    def load(self, path: str, query: Query = ()) -> Answer:
        """Open the page at ``path`` with ``?query``: load its text, then its figures."""
        text = self.ask(path, "load", query)
        if "then" not in self._known(path):
            return text
        drawn = self.ask(path, "then", query)
        return Answer(text.seconds + drawn.seconds, text.size + drawn.size, text.outputs)

    def tick(self, path: str, query: Query = ()) -> Answer:
        """Call the function of the page's timer."""
        return self.ask(path, "tick", query)

    def _known(self, path: str) -> dict[str, dict[str, Any]]:
        if path not in self.known:
            self.known[path] = _functions(self.served, path)
        return self.known[path]

    def ask(self, path: str, event: str, query: Query = ()) -> Answer:
        """Call one function of the page: that of "load", "then" or "tick"."""
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
    """Return the functions of a page that a browser calls automatically, by event: "load", "then", "tick"."""
    connection = http.client.HTTPConnection(served.host, served.port, timeout=60)
    connection.request("GET", f"/{path}")
    page = connection.getresponse().read().decode()
    connection.close()
    config = json.loads(re.search(r"window\.gradio_config = (.*?);</script>", page, re.DOTALL)[1])  # type: ignore[index]
    own = set(config["page"][path]["dependencies"])
    functions = [one for one in config["dependencies"] if one["id"] in own and one["backend_fn"]]
    return {one["targets"][0][1]: one for one in functions if one["targets"]}


def _answer(response: http.client.HTTPResponse, started: float) -> Answer | None:
    """Read the event stream until the response is complete; return None if the page's function failed."""
    size, outputs = 0, list[Any]()
    for line in response:
        if not line.startswith(b"data: "):
            continue
        message = json.loads(line[6:])
        size += len(line)
        sent = message.get("output", {}).get("data")
        if sent is not None and not outputs:
            outputs = sent
        if message["msg"] == "process_completed":
            return Answer(time.perf_counter() - started, size, outputs) if message["success"] else None
    return None
