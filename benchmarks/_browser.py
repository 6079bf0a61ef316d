"""Time until a page first shows its text and its figures in Chromium, by the browser's own clock."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLACES = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run", "--disable-quic")  # fmt: skip
PATIENCE = 60_000  # milliseconds

# Records when the page's text and figure appear: in the frame after the one in which they are inserted.
WATCH = """(() => {
    const shown = window.firstShown = {words: null, figure: null};
    const wanted = {words: 'h1', figure: '.js-plotly-plot .scatterlayer .trace'};
    const look = () => {
        for (const [name, selector] of Object.entries(wanted)) {
            if (shown[name] === null && document.querySelector(selector)) {
                shown[name] = 0;
                requestAnimationFrame(() => setTimeout(() => { shown[name] = performance.now(); }));
            }
        }
    };
    new MutationObserver(look).observe(document, {childList: true, subtree: true});
})();"""


@dataclass(frozen=True)
class Shown:
    """Milliseconds from the start of the navigation, None if a page has no figure; CPU seconds of the page."""

    words: float
    figure: float | None
    processor: float


def found() -> str | None:
    """Return the path of Chromium's executable, None if it is not installed."""
    return next((path for path in (os.environ.get("CHROMIUM", ""), *PLACES) if path and Path(path).exists()), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """Start a browser, and close it on exit."""
    from playwright.sync_api import sync_playwright  # optional: needed only by the tests and this module

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found(), args=list(QUIET))
        yield browser
        browser.close()


def visits(browser: Any, addresses: Sequence[str], *, figure: bool, first: bool) -> list[Shown]:
    """Open each address: with an empty browser cache if ``first``, else with a filled one."""
    shown: list[Shown] = []
    context = _context(browser)
    if not first:
        for address in addresses[:2]:  # Chromium caches compiled code only from the second visit on
            _visit(context, address, figure)
    for address in addresses:
        if first:
            context.close()
            context = _context(browser)
        shown.append(_visit(context, address, figure))
    context.close()
    return shown


def _context(browser: Any) -> Any:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE)
    context.add_init_script(WATCH)
    return context


def _visit(context: Any, address: str, figure: bool) -> Shown:
    page = context.new_page()
    page.goto(address, wait_until="commit")
    page.wait_for_function("window.firstShown?.words > 0")
    if figure:
        page.wait_for_function("window.firstShown.figure > 0")
    times = page.evaluate("window.firstShown")
    client = context.new_cdp_session(page)
    client.send("Performance.enable", {"timeDomain": "threadTicks"})
    metrics = {one["name"]: one["value"] for one in client.send("Performance.getMetrics")["metrics"]}
    page.close()
    return Shown(times["words"], times["figure"] or None, metrics.get("ProcessTime", 0.0))
