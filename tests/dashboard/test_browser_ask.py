"""The Ask page in Chromium: a real prompt to two real checkpoints, by keyboard and on a narrow screen."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dashboard.access import Access
from tests.dashboard.conftest import Visit

pytestmark = pytest.mark.browser
LATER = 900_000  # milliseconds: a subprocess loads torch and models
HOSTILE = "Write two words about <img src=x onerror=window.hit=1> ${window.hit=2}'\" --json"


@pytest.mark.slow
def test_a_prompt_is_put_to_two_checkpoints_and_stays_text(
    small_workspace: Path, serve: Callable[..., str], visit: Callable[..., Visit]
) -> None:
    address = serve(small_workspace / "tracker.db", Access(ask_seconds=900))
    one = visit()
    one.page.goto(address)
    one.page.locator(".bar summary", has_text="More").click()
    one.page.locator(".bar nav a", has_text="Ask").click()
    one.expect(one.page.get_by_label("base", exact=True)).to_be_checked()
    one.expect(one.page.get_by_label("cycle-1/midtrained")).to_be_checked()
    one.page.get_by_role("button", name="Ask", exact=True).click()
    one.expect(one.page.locator(".notice")).to_contain_text("Give a prompt")
    one.page.get_by_label("Maximum tokens per answer").fill("24")
    one.page.get_by_label("Prompt").fill(HOSTILE)
    one.page.get_by_label("Prompt").press("Enter")
    one.expect(one.page.locator(".progress")).to_be_visible()
    answers = one.page.locator(".sample .answer")
    one.expect(answers).to_have_count(2, timeout=LATER)
    one.expect(answers.nth(0).locator("h3")).to_have_text("base")
    one.expect(answers.nth(1).locator("h3")).to_have_text("cycle-1/midtrained")
    assert all(answers.nth(n).locator("pre").inner_text().strip() for n in (0, 1))
    boxes = [answers.nth(n).bounding_box() for n in (0, 1)]
    assert boxes[0] and boxes[1] and boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"]
    one.expect(one.page.locator(".sample .prompt")).to_have_text(HOSTILE)
    assert one.page.evaluate("window.hit") is None
    assert one.elsewhere(address) == [] and one.errors == []


@pytest.mark.slow
def test_a_phone_shows_it_in_its_width_and_says_what_went_wrong(
    small_workspace: Path, tmp_path: Path, serve: Callable[..., str], visit: Callable[..., Visit]
) -> None:
    copy = shutil.copytree(small_workspace, tmp_path / "copy")
    with (copy / "checkpoints/cycle-1/midtrained/config.json").open("a") as stream:
        stream.write(" ")
    one = visit(width=390, dark=True)
    one.page.goto(f"{serve(copy / 'tracker.db', Access(ask_seconds=900))}/ask")
    one.page.get_by_label("Prompt").fill("word " * 40)
    one.page.get_by_label("base", exact=True).uncheck()
    one.page.get_by_role("button", name="Ask", exact=True).click()
    notice = one.page.locator(".notice")
    one.expect(notice).to_contain_text("has changed since it was registered", timeout=LATER)
    assert one.width() == 390


@pytest.mark.slow
def test_without_asking_for_it_the_page_is_not_there(
    small_workspace: Path, serve: Callable[..., str], visit: Callable[..., Visit]
) -> None:
    address = serve(small_workspace / "tracker.db")
    one = visit()
    one.page.goto(f"{address}/cycle")
    one.expect(one.page.locator(".bar nav a", has_text="Review")).to_be_visible()
    one.expect(one.page.locator("a", has_text="Ask")).to_have_count(0)
    answer = one.page.goto(f"{address}/ask")
    assert answer is not None and answer.status == 404
