"""Fixtures: a browser, running dashboards, and validation of figures."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from dashboard.access import Access
from dashboard.charts import Figure
from dashboard.pages import common
from dashboard.tracker_source import Source
from db import Database, Tracker, queries
from db.records import Overview

SOON = 300_000  # milliseconds, enough for a busy machine
CHROMIUM = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")


def checked(figure: Figure) -> Any:
    """Return a figure as parsed by Plotly's own classes, which reject unknown properties."""
    import plotly.graph_objects

    return plotly.graph_objects.Figure(json.loads(figure.to_json()))


class Request:
    """The part of a request that the pages read, from an address's query."""

    username = None

    def __init__(self, asked: Any = ()) -> None:
        self.query_params = QueryParams(asked)


def words(page: Any, source: Source, **asked: str) -> str:
    """Return the HTML of a page of one text, without its header."""
    return str(common.text_outputs(page.NAME, source, page.text, Request(asked))[2])  # type: ignore[arg-type]


def newest(database: Database) -> Overview:
    """Return the newest experiment with its cycles."""
    found = queries.overview(database, queries.experiments(database)[0].id)
    assert found is not None
    return found


@pytest.fixture
def tracker(address: Path | str) -> Iterator[Tracker]:
    with Tracker(address) as opened:
        yield opened


@pytest.fixture
def source(address: Path | str) -> Source:
    return Source(address)


@pytest.fixture
def one_cycle(seeding: ModuleType, address: Path | str) -> Any:
    return seeding.seed(address, cycles=1, items=6, steps=2)


@pytest.fixture(scope="session")
def browser(require_component: Callable[[bool, str], None]) -> Iterator[Any]:
    """Chromium driven by Playwright; its background network requests are disabled."""
    found = next((path for path in (os.environ.get("CHROMIUM", ""), *CHROMIUM) if path and Path(path).exists()), "")
    require_component(bool(found), "Chromium (apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api")
    quiet = "--disable-background-networking --disable-component-update --disable-sync --no-first-run --disable-quic"
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu", *quiet.split()])
        yield chromium
        chromium.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """``serve(database)`` starts the dashboard in this process and returns its address."""
    import uvicorn

    from dashboard.app import build_app, configured, free_port

    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(database: Path, access: Access | None = None) -> str:
        # Parallel test processes must use different ports.
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        port = free_port("127.0.0.1", 17860 + 50 * worker)
        server = uvicorn.Server(configured(build_app(database, access), "127.0.0.1", port))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        running.append((server, thread))
        while not server.started and thread.is_alive():
            time.sleep(0.05)
        return f"http://127.0.0.1:{port}"

    yield start
    for server, thread in running:
        server.should_exit = server.force_exit = True
        thread.join(10)


class Visit:
    """A browser window that records its requests and script errors."""

    def __init__(
        self, browser: Any, *, width: int = 1280, dark: bool = False, user: tuple[str, str] | None = None
    ) -> None:
        from playwright.sync_api import expect

        self.expect = expect
        expect.set_options(timeout=SOON)
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            http_credentials={"username": user[0], "password": user[1]} if user else None,
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(SOON)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def elsewhere(self, address: str) -> list[str]:
        """Return the requests to other addresses."""
        return [url for url in self.requests if not url.startswith((address, "data:", "blob:"))]

    def width(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth"))

    def is_dark(self) -> bool:
        """Whether light ink stands on dark paper; dark ink must stand on light paper."""
        ink, paper = self.page.evaluate(
            "[getComputedStyle(document.querySelector('h1')).color, getComputedStyle(document.body).backgroundColor]"
            ".map(colour => colour.match(/[0-9]+/g).slice(0, 3).map(Number).reduce((a, b) => a + b))"
        )
        assert (ink > 600 and paper < 120) or (ink < 200 and paper > 690)
        return bool(ink > paper)


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    opened: list[Visit] = []

    def start(**settings: Any) -> Visit:
        opened.append(Visit(browser, **settings))
        return opened[-1]

    yield start
    for one in opened:
        one.context.close()
