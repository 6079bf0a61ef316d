"""Take the picture of the README: the dashboard's overview on a workspace, e.g. that of `recover demo`.

python docs/write_picture.py WORKSPACE [FILE]. Needs Chromium (`make chromium`).
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).resolve().parent / "images" / "overview.png"


def take(workspace: str, picture: Path) -> None:
    """Serve the dashboard on a free port, wait for its figures, and keep what the window shows."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "recovery", "dashboard", "--workspace", workspace, "--port", port]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        address = next(found[0] for line in server.stdout if (found := re.search(r"http://[\d.]+:\d+\S*", line)))
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 1060})
            page.goto(address)
            page.wait_for_selector(".js-plotly-plot .plot-container, .plot-container", timeout=60_000)
            page.wait_for_timeout(1500)
            picture.parent.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=str(picture))
            browser.close()
        server.terminate()


if __name__ == "__main__":
    take(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else PICTURE)
