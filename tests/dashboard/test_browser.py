"""Overview and live page in Chromium. Assertions retry until they hold; tests do not wait for internals."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from db import Tracker
from tests.dashboard.conftest import Visit

pytestmark = pytest.mark.browser


def test_the_overview_works_without_a_network(
    seeded: Any, serve: Callable[[Path], str], visit: Callable[..., Visit]
) -> None:
    address = serve(seeded.address)
    one = visit()
    one.page.goto(address)
    one.expect(one.page.locator("h1")).to_contain_text("Cycle 3: knowledge +95 points")
    one.expect(one.page.locator("#tradeoff .js-plotly-plot .point")).to_have_count(7)
    one.expect(one.page.locator("#trajectory .js-plotly-plot .point")).to_have_count(14)
    one.expect(one.page.locator(".cycles tbody tr")).to_have_count(3)
    fonts = one.page.evaluate("document.fonts.ready.then(fonts => [...fonts].map(font => font.status))")
    assert "loaded" in fonts
    assert one.elsewhere(address) == []
    assert one.errors == []


def test_pages_have_addresses_and_back_works(
    seeded: Any, serve: Callable[[Path], str], visit: Callable[..., Visit]
) -> None:
    address = serve(seeded.address)
    one = visit()
    one.page.goto(address)
    one.expect(one.page.locator("h1")).to_contain_text("Cycle 3")
    one.page.get_by_role("link", name="Live", exact=True).click()
    one.expect(one.page.locator("h1")).to_contain_text("Recovery, cycle 3")
    assert "/live" in one.page.url
    one.page.locator(".recent a", has_text="Mid-training").last.click()
    one.expect(one.page.locator("h1")).to_contain_text("Mid-training, cycle 1")
    one.page.go_back()
    one.expect(one.page.locator("h1")).to_contain_text("Recovery, cycle 3")
    one.page.go_back()
    one.expect(one.page.locator("h1")).to_contain_text("Cycle 3: knowledge")
    assert one.errors == []


def test_the_live_page_follows_a_stage_that_runs(
    tmp_path: Path, seeding: ModuleType, serve: Callable[[Path], str], visit: Callable[..., Visit]
) -> None:
    seeded = seeding.seed(tmp_path / "tracker.db", cycles=1, items=2, running=True)
    address = serve(seeded.address)
    one = visit()
    one.page.goto(f"{address}/live")
    progress = one.page.get_by_role("progressbar")
    one.expect(progress).to_have_attribute("aria-valuenow", "34")
    plot = one.page.locator("#panel-0 .js-plotly-plot")
    one.expect(plot).to_be_visible()
    plot.evaluate("element => { element.dataset.kept = 'yes'; }")
    dice = random.Random(0)
    for step in (35, 36):
        seeded.running.log(step, seeding.distill_metrics(step, 80, dice))
    seeded.tracker.flush()
    one.expect(progress).to_have_attribute("aria-valuenow", "36")
    one.page.wait_for_function("document.querySelector('#panel-0 .js-plotly-plot').data[0].x.at(-1) === 36")
    assert plot.get_attribute("data-kept") == "yes"  # updated in place, not rebuilt
    seeded.running.finish("recovered")
    one.expect(one.page.locator("h1")).to_contain_text("finished")
    seeded.tracker.close()
    assert one.errors == []


@pytest.mark.slow
@pytest.mark.parametrize("page", ["", "live"])
@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_everything_in_its_width(
    seeded: Any, serve: Callable[[Path], str], visit: Callable[..., Visit], page: str, dark: bool
) -> None:
    one = visit(width=390, dark=dark)
    one.page.goto(f"{serve(seeded.address)}/{page}")
    one.expect(one.page.locator("h1")).to_be_visible()
    one.expect(one.page.locator(".js-plotly-plot").first).to_be_visible()
    assert (one.width(), one.is_dark()) == (390, dark)


@pytest.mark.slow
def test_hostile_text_is_shown_as_text(
    tmp_path: Path, serve: Callable[[Path], str], visit: Callable[..., Visit]
) -> None:
    hostile = "<img src=x onerror=window.hit=1><script>window.hit=2</script>${window.hit=3}{{7*7}}'\""
    with Tracker(tmp_path / "tracker.db") as tracker:
        experiment = tracker.experiment(hostile, base_model=hostile)
        base = tracker.add_checkpoint(experiment, "base", "base", path=hostile)
        tracker.add_evaluation(base, "instruction_following", value=0.5, stderr=0.1, n=9)
        tracker.cycle(experiment, 1, documents=hostile)
        stage = tracker.start_stage(experiment, "distill")
        stage.log(1, {hostile: 1.0})
        stage.fail(hostile)
        tracker.experiment("second")
    address = serve(tmp_path / "tracker.db")
    one = visit()
    for page in ("/", "/live"):
        one.page.goto(address + page + "?experiment=%3Cimg%20src%3Dx%3E")
        one.expect(one.page.locator(".notice")).to_contain_text("There is none named <img src=x>")
    one.page.goto(address)
    one.expect(one.page.locator(".prose.summary")).to_contain_text("Experiment second")
    one.page.get_by_role("listbox", name="Experiment").or_(one.page.get_by_label("Experiment")).first.click()
    one.page.get_by_role("option").filter(has_text="onerror").click()
    one.expect(one.page.locator(".eyebrow")).to_contain_text(hostile)
    one.expect(one.page.locator(".prose.cycles")).to_contain_text("{{7*7}}")
    one.page.get_by_role("link", name="Live", exact=True).click()
    one.expect(one.page.locator(".notice")).to_contain_text("${window.hit=3}")
    one.expect(one.page.locator(".panels .card").first).to_be_visible()
    assert one.page.evaluate("window.hit") is None
    assert one.elsewhere(address) == []


@pytest.mark.slow
def test_an_empty_workspace_fills_by_itself(
    tmp_path: Path, seeding: ModuleType, serve: Callable[[Path], str], visit: Callable[..., Visit]
) -> None:
    one = visit()
    one.page.goto(serve(tmp_path / "tracker.db"))
    one.expect(one.page.locator(".notice")).to_contain_text("recover demo")
    seeding.seed(tmp_path / "tracker.db", cycles=1, items=2, steps=5)
    one.expect(one.page.locator("h1")).to_contain_text("Cycle 1: knowledge")
    one.expect(one.page.locator("#tradeoff .js-plotly-plot")).to_be_visible()
    assert one.errors == []


@pytest.mark.slow
def test_the_keyboard_reaches_every_page(
    seeded: Any, serve: Callable[[Path], str], visit: Callable[..., Visit]
) -> None:
    one = visit()
    one.page.goto(serve(seeded.address))
    one.expect(one.page.locator("h1")).to_be_visible()
    one.page.keyboard.press("Tab")
    assert one.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    one.page.keyboard.press("Enter")
    assert one.page.url.endswith("#content")
    one.page.goto(one.page.url.removesuffix("#content"))
    one.expect(one.page.locator("h1")).to_be_visible()
    for _ in range(12):
        one.page.keyboard.press("Tab")
        if one.page.evaluate("document.activeElement.textContent") == "Live":
            break
    one.page.keyboard.press("Enter")
    one.expect(one.page.locator("h1")).to_contain_text("Recovery, cycle 3")
