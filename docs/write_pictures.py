"""Take the screenshots of the README and the docs: every page of the dashboard on a workspace.

Run: python docs/write_pictures.py WORKSPACE [NAME ...], e.g. on the workspace of `recover demo`. Needs Chromium
(`make chromium`). A workspace with several experiments: "real?experiment=real/corpora/seed-0" takes that one's page.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).resolve().parent / "images"
# name -> (address, selector to wait for, height of the window in pixels)
PICTURES = {
    "overview": ("", ".js-plotly-plot .plot-container", 1060),
    "real": (
        "",
        ".js-plotly-plot .plot-container",
        900,
    ),  # a real model's workspace; only if named
    "cycle": ("cycle?cycle=2", "#types td", 1060),
    "knowledge": ("knowledge?cycle=2", ".asked", 1060),
    "samples": ("samples?cycle=2", ".sample", 1060),
    "review": ("review?view=lost", ".pair", 720),
    "tokens": ("tokens", "h1", 1060),
    "live": ("live", ".js-plotly-plot .plot-container", 1060),
    "geometry": ("geometry", ".js-plotly-plot .plot-container", 900),
    "compare": ("compare", ".js-plotly-plot .plot-container", 900),
    "phone": ("", ".js-plotly-plot .plot-container", 844),
}
CUT = {"real": (113, 830)}  # vertical range in pixels: the part above shows a local path
PHONE = 390  # width in pixels; taken in dark mode


def take(workspace: str, names: Sequence[str]) -> None:
    """Serve the dashboard and save a screenshot of each page in a window 1280 pixels wide."""
    command = [
        sys.executable,
        "-m",
        "recovery",
        "dashboard",
        "--workspace",
        workspace,
        "--read-only",
        "--port",
        "17900",
    ]
    if (chromium := shutil.which("chromium")) is None:
        raise SystemExit("Chromium is missing: `make chromium` installs it")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        address = next(found[0] for line in server.stdout if (found := re.search(r"http://[\d.]+:\d+", line)))
        try:
            with sync_playwright() as play:
                browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                for asked in names:
                    name, _, query = asked.partition("?")
                    size = {"width": PHONE if name == "phone" else 1280, "height": PICTURES[name][2]}
                    scheme = "dark" if name == "phone" else "light"
                    _picture(browser.new_page(viewport=size, color_scheme=scheme), address, name, query)
                browser.close()
        finally:  # otherwise leaving the block would wait for it
            server.terminate()


def _picture(page: Page, address: str, name: str, query: str) -> None:
    path, wanted, _ = PICTURES[name]
    page.goto(f"{address}/{path}" + (f"?{query}" if query else ""))
    page.wait_for_selector(wanted, timeout=60_000)
    page.wait_for_timeout(1500)
    FOLDER.mkdir(parents=True, exist_ok=True)
    top, bottom = CUT.get(name, (0, PICTURES[name][2]))
    width = page.viewport_size["width"] if page.viewport_size else 1280
    clip = {"x": 0, "y": top, "width": width, "height": bottom - top}
    page.screenshot(path=str(FOLDER / f"{name}.png"), clip=clip)  # type: ignore[arg-type]
    page.close()


if __name__ == "__main__":
    take(sys.argv[1], sys.argv[2:] or [name for name in PICTURES if name not in CUT])
