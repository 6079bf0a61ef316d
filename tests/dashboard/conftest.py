"""Fixtures: a browser, running dashboards, and validation of figures."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboard.access import Access
from dashboard.charts import Figure

SOON = 300_000  # milliseconds, enough for a busy machine
CHROMIUM = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")


def checked(figure: Figure) -> Any:
    """Return a figure as parsed by Plotly's own classes, which reject unknown properties."""
    import plotly.graph_objects

    return plotly.graph_objects.Figure(json.loads(figure.to_json()))


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

    def __init__(self, browser: Any, *, width: int = 1280, dark: bool = False) -> None:
        from playwright.sync_api import expect

        self.expect = expect
        expect.set_options(timeout=SOON)
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
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


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    opened: list[Visit] = []

    def start(**settings: Any) -> Visit:
        opened.append(Visit(browser, **settings))
        return opened[-1]

    yield start
    for one in opened:
        one.context.close()
