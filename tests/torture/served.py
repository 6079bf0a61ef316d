"""A dashboard process with two users on a tracker with three cycles, and visitors that ask as Gradio's client does."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from dashboard.access import add_user
from dashboard.app import free_port
from tests import postgres
from tests.dashboard import hostile_records
from tests.dashboard.web_rules import broken
from tests.db import seeding

ROOT = Path(__file__).resolve().parents[2]
USERS = {"ada": "correct horse battery", "bob": "another good secret"}
PAGES = ("", *"cycle knowledge samples review tokens live geometry compare log ask".split())
START, PATIENCE = 180.0, 120.0  # seconds for a start and for one answer on a busy machine
MOST_MEMORY = 1 << 30  # bytes that a dashboard may hold
_CONFIG = re.compile(r"window\.gradio_config = (.*?);</script>", re.DOTALL)
# What no reply may show: a traceback, or where the server keeps its files.
_PRIVATE = (
    *("Traceback (most recent", 'File "', "site-packages", str(ROOT), str(Path(sys.prefix).resolve())),
    *("scrypt$", "root:x:0"),
)


@dataclass
class Served:
    """A running dashboard: its process, address, tracker, and the file with what it printed."""

    process: subprocess.Popen[bytes]
    address: str
    tracker: Path | str
    log: Path
    experiment: int
    cycles: Sequence[int]
    hostile: Sequence[int]
    """The evaluations of the experiment with hostile texts."""

    @property
    def port(self) -> int:
        """Port of the server."""
        return int(self.address.rpartition(":")[2])

    def memory(self) -> tuple[int, int]:
        """Return resident memory now and at its peak, in bytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        now, most = (int(found) * 1024 for found in re.findall(r"Vm(?:RSS|HWM):\s+(\d+) kB", text)[::-1])
        return now, most

    def faults(self) -> list[str]:
        """Return what is wrong with the process: it ended, does not answer, or holds too much."""
        if self.process.poll() is not None:
            return [f"the dashboard ended with {self.process.returncode}: {self.log.read_text()[-300:]}"]
        try:
            sound = httpx.get(f"{self.address}/health", timeout=PATIENCE).text == "ok"
        except httpx.HTTPError as error:
            return [f"the dashboard does not answer: {error!r}"]
        held = self.memory()[0]
        return ([] if sound else ["its health is bad"]) + ([f"it holds {held >> 20} MiB"] if held > MOST_MEMORY else [])


@contextlib.contextmanager
def dashboard(folder: Path, tracker: str | None = None) -> Iterator[Served]:
    """Fill a tracker (a file of the folder, or a PostgreSQL address) and serve it until the end of the block."""
    folder.mkdir(parents=True)
    for name, password in USERS.items():
        add_user(folder / "users", name, password)
    address: Path | str = tracker or folder / "tracker.db"
    _, hostile = hostile_records.fill(address)
    seeded = seeding.seed(address)  # after the hostile one: it is shown if none is named
    settings = {"format": 1, "model": hostile_records.MODEL, "experiment": hostile_records.NAME}
    (folder / "workspace.json").write_text(json.dumps(settings), encoding="utf-8")  # so that its reports are this one's
    log, port = folder / "log", free_port("127.0.0.1", 21000 + os.getpid() % 2000)
    command = [sys.executable, "-m", "recovery", "dashboard", "--workspace", str(folder), "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} | ({"RECOVER_DATABASE": tracker} if tracker else {})
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--ask", "--auth-file", str(folder / "users")], stdout=out, stderr=out, env=environment
        )
    try:
        until = time.monotonic() + START
        while (found := re.search(r"http://[\d.]+:\d+", log.read_text())) is None:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the dashboard did not start: {log.read_text()[-1000:]}")
            time.sleep(0.1)
        yield Served(process, found[0], address, log, seeded.experiment, seeded.cycles, hostile)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def dashboards(report: Callable[[str], None]) -> Iterator[dict[str, Served]]:
    """Start a dashboard on each kind of database that is here."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dashboard-"))).resolve()
        running = {"SQLite": stack.enter_context(dashboard(folder / "sqlite"))}
        if (programs := postgres.programs()) is None:
            report("dashboard: PostgreSQL is not installed here")
        else:
            address = stack.enter_context(postgres.running(programs)).create()
            running["PostgreSQL"] = stack.enter_context(dashboard(folder / "postgresql", address))
        yield running


@dataclass
class Visitor:
    """A signed-in user with one session; ``faults`` collects what was wrong with the replies."""

    served: Served
    name: str = "ada"
    session: str = field(default_factory=lambda: secrets.token_hex(6))
    faults: list[str] = field(default_factory=list)
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.served.address, auth=(self.name, USERS[self.name]), timeout=PATIENCE)

    def __enter__(self) -> Visitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request and check its reply; status 499 stands for a connection that the server closed.

        ``raw`` is the target as it is sent: httpx resolves "..", and takes "//" for another server.
        """
        if raw := more.pop("raw", ""):
            more["extensions"] = {"target": raw.encode()}
        try:
            reply = self.http.request(method, path, **more)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            return httpx.Response(499)
        self.faults += [f"{method} {path[:150]}: {fault}" for fault in wrong(reply)]
        return reply

    def config(self, page: str) -> dict[str, Any]:
        """Return Gradio's description of a page."""
        found = _CONFIG.search(self.ask("GET", f"/{page}").text)
        assert found is not None
        described: dict[str, Any] = json.loads(found[1])
        return described

    def functions(self, page: str) -> list[dict[str, Any]]:
        """Return the functions of a page that run on the server, each with the types of what it takes and returns."""
        described = self.config(page)
        types = {one["id"]: one["type"] for one in described["components"]}
        own = set(described["page"][page]["dependencies"])
        return [
            one | {"takes": [types[key] for key in one["inputs"]], "returns": [types[key] for key in one["outputs"]]}
            for one in described["dependencies"]
            if one["id"] in own and one["backend_fn"]
        ]

    def call(self, function: Mapping[str, Any], data: Sequence[Any], query: Mapping[str, str]) -> list[Any]:
        """Call a function of a page and return its first outputs; none if it failed or was refused."""
        body = {"data": list(data), "fn_index": function["id"], "session_hash": self.session, "event_data": None}
        body["trigger_id"] = function["targets"][0][0] if function["targets"] else None
        joined = self.ask("POST", "/gradio_api/queue/join", params=dict(query), json=body)
        return self._outputs() if joined.status_code == 200 else []

    def _outputs(self) -> list[Any]:
        outputs: list[Any] = []
        address = f"/gradio_api/queue/data?session_hash={self.session}"
        with self.http.stream("GET", address) as stream:
            for line in _lines(stream):
                if not line.startswith("data: "):
                    continue
                self.faults += [f"a page's function: {fault}" for fault in told(line)]
                message = json.loads(line[6:])
                outputs = outputs or (message.get("output") or {}).get("data") or []
                if message["msg"] in ("process_completed", "unexpected_error"):
                    return outputs if message.get("success") else []
        return outputs

    def load(self, page: str, query: Mapping[str, str]) -> list[tuple[str, Any]]:
        """Open a page: call the functions that run by themselves; return (type, value) of their outputs."""
        shown: list[tuple[str, Any]] = []
        for function in self.functions(page):
            if function["targets"] and function["targets"][0][1] in ("load", "then"):
                outputs = self.call(function, [None] * len(function["inputs"]), query)
                if not outputs:
                    self.faults.append(f"/{page} {dict(query)!s:.150}: its function failed")
                shown += zip(function["returns"], outputs, strict=False)
        return shown


def _lines(stream: httpx.Response) -> Iterator[str]:
    """Yield the lines of a stream as a browser does; httpx ends one at every separator that Unicode has."""
    left = b""
    for chunk in stream.iter_bytes():
        *whole, left = (left + chunk).split(b"\n")
        yield from (line.decode() for line in whole)


def told(text: str) -> list[str]:
    """Return what a reply shows that it must not."""
    return [f"it shows {word!r}: {text[max(0, text.find(word) - 60) :][:160]!r}" for word in _PRIVATE if word in text]


def wrong(reply: httpx.Response) -> list[str]:
    """Return what is wrong with a reply: private text, or a rule that holds for all and is broken."""
    return (told(reply.text) if "javascript" not in reply.headers.get("content-type", "") else []) + broken(reply)
