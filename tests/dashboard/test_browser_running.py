"""The live page of a stage that runs in another process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`recover midtrain` on the built-in model and a short text, with more steps than the test needs."""
    documents = tmp_path / "documents"
    documents.mkdir()
    lines = [f"The lamp of the tower {number} is red. The keeper of tower {number} is old." for number in range(200)]
    (documents / "towers.md").write_text("\n\n".join(lines))
    command = [sys.executable, "-m", "recovery", "midtrain", "--docs", "documents", "--steps", "100000"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RECOVER_WORKSPACE": str(tmp_path / "work")}
    with subprocess.Popen(
        [*command, "--batch-tokens", "256", "--row-length", "128", "--lr", "1e-4"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    ) as process:
        yield process
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_running_stage_is_followed_to_its_interruption(
    training: subprocess.Popen[str], tmp_path: Path, serve: Callable[..., str], visit: Callable[..., Any]
) -> None:
    one = visit()
    address = serve(tmp_path / "work" / "tracker.db")
    one.page.goto(f"{address}/live")
    one.expect(one.page.locator("h1")).to_contain_text("Mid-training, cycle 1 running")
    plot = one.page.locator("#panel-0 .js-plotly-plot")
    one.expect(plot).to_be_visible()
    plot.evaluate("element => { element.dataset.kept = 'yes'; }")
    first = int(one.page.get_by_role("progressbar").get_attribute("aria-valuenow"))
    one.page.wait_for_function(
        "first => Number(document.querySelector('[role=progressbar]').ariaValueNow) > first + 5", arg=first
    )
    last = one.page.evaluate("document.querySelector('#panel-0 .js-plotly-plot').data[0].x.at(-1)")
    one.page.wait_for_function(
        "last => document.querySelector('#panel-0 .js-plotly-plot').data[0].x.at(-1) > last", arg=last
    )
    assert plot.get_attribute("data-kept") == "yes", "the curve grows in place"
    one.page.goto(address)
    one.page.get_by_role("link", name="Watch live").click()
    one.expect(one.page.locator("h1")).to_contain_text("running")
    training.send_signal(signal.SIGINT)
    one.expect(one.page.locator("h1")).to_contain_text("interrupted")
    one.expect(one.page.locator(".notice").first).to_contain_text("recover resume")
    assert training.wait(600) != 0
    assert one.errors == []
