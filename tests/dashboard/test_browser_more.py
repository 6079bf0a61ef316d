"""Tokens, Geometry and Compare pages in Chromium."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from db import Tracker
from tests.dashboard.conftest import Visit

pytestmark = pytest.mark.browser
HOSTILE = "<img src=x onerror=window.hit=1><script>window.hit=2</script>${window.hit=3}{{7*7}}'\""
LONG = "an-answer-without-a-single-place-to-break-" * 6


def filled(path: Path, seeding: ModuleType, spoil: str = "") -> Path:
    """Two seeds of a comparison of two methods."""
    with Tracker(path) as tracker:
        for seed in (0, 1):
            experiment = tracker.experiment(f"compare/ab12{spoil}/seed-{seed}")
            for method in ("opd", "sft"):
                seeding.add_distillation(
                    tracker, experiment, f"{method}{spoil}", method=method, seed=seed, length=60, spoil=spoil
                )
    return path


@pytest.fixture
def database(tmp_path: Path, seeding: ModuleType) -> Path:
    return filled(tmp_path / "tracker.db", seeding)


def test_a_token_shows_its_figures_to_keyboard_and_mouse(
    database: Path, serve: Callable[[Path], str], visit: Callable[..., Visit]
) -> None:
    address = serve(database)
    one = visit()
    one.page.goto(f"{address}/tokens")
    all_tokens = one.page.locator(".rollout > .token")
    one.expect(all_tokens).to_have_count(60)
    all_tokens.nth(8).focus()
    tip = all_tokens.nth(8).get_by_role("tooltip")
    one.expect(tip).to_be_visible()
    one.expect(tip).to_contain_text("token 9 of 60")
    one.page.keyboard.press("Tab")
    one.expect(tip).to_be_hidden()
    one.expect(all_tokens.nth(9).get_by_role("tooltip")).to_contain_text("Student")
    one.expect(all_tokens.nth(9).get_by_role("tooltip")).to_be_visible()
    all_tokens.last.hover()
    box = all_tokens.last.get_by_role("tooltip").bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 1280
    assert one.elsewhere(address) == [] and one.errors == []


@pytest.mark.slow
def test_from_the_largest_divergence_to_its_token_and_back(
    database: Path, serve: Callable[[Path], str], visit: Callable[..., Visit]
) -> None:
    one = visit()
    one.page.goto(f"{serve(database)}/tokens")
    rows = one.page.locator(".furthest tbody tr")
    one.expect(rows).to_have_count(20)
    value = rows.nth(6).locator("b").inner_text()
    rows.nth(6).get_by_role("link").click()
    one.expect(one.page.locator(".chosen-token")).to_contain_text(f"{value} nats")
    one.expect(one.page.locator(".rollout [aria-current]")).to_be_visible()
    assert "step=" in one.page.url and "token=" in one.page.url
    one.page.go_back()
    one.expect(one.page.locator(".tabs", has_text="Steps").locator("[aria-current]")).to_contain_text("last, step 12")
    assert one.errors == []


@pytest.mark.slow
def test_stages_are_compared_through_the_form(
    database: Path, serve: Callable[[Path], str], visit: Callable[..., Visit]
) -> None:
    one = visit()
    one.page.goto(f"{serve(database)}/compare")
    one.expect(one.page.locator("#compared .js-plotly-plot .scatterlayer .trace")).to_have_count(4)
    one.page.locator("summary").click()
    for box in (0, 3):
        one.page.get_by_role("checkbox").nth(box).uncheck()
    one.page.locator("select[name=metric]").select_option("entropy")
    one.page.get_by_role("button", name="Compare").click()
    one.expect(one.page.locator("#compared .js-plotly-plot .scatterlayer .trace")).to_have_count(2)
    one.expect(one.page.locator("h1")).to_contain_text("2 stages side by side")
    assert one.page.url.count("stage=") == 2 and "metric=entropy" in one.page.url
    assert one.errors == []


@pytest.mark.slow
def test_geometry_grows_by_a_stage_for_each_link(
    database: Path, serve: Callable[[Path], str], visit: Callable[..., Visit]
) -> None:
    one = visit()
    one.page.goto(f"{serve(database)}/geometry")
    planes = one.page.locator(".planes .js-plotly-plot")
    one.expect(planes).to_have_count(2)
    one.expect(one.page.locator(".measures .js-plotly-plot")).to_have_count(4)
    one.page.get_by_role("link", name="Remove sft").click()
    one.expect(planes).to_have_count(1)
    one.page.get_by_role("link", name="Add sft").click()
    one.expect(planes).to_have_count(2)
    assert one.errors == []


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_phone_shows_every_page_in_its_width(
    tmp_path: Path, seeding: ModuleType, serve: Callable[[Path], str], visit: Callable[..., Visit], dark: bool
) -> None:
    address = serve(filled(tmp_path / "tracker.db", seeding, LONG))
    one = visit(width=390, dark=dark)
    for page in ("tokens", "geometry", "compare", "log"):
        one.page.goto(f"{address}/{page}")
        one.expect(one.page.locator("h1")).to_be_visible()
        assert (one.width(), one.is_dark()) == (390, dark), page
    one.page.goto(f"{address}/tokens")
    token = one.page.locator(".rollout > .token").nth(4)
    token.focus()
    box = token.get_by_role("tooltip").bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390
    assert one.width() == 390


@pytest.mark.slow
def test_hostile_text_is_shown_as_text(
    tmp_path: Path, seeding: ModuleType, serve: Callable[[Path], str], visit: Callable[..., Visit]
) -> None:
    address = serve(filled(tmp_path / "tracker.db", seeding, HOSTILE))
    one = visit()
    one.page.goto(f"{address}/tokens")
    one.expect(one.page.locator(".rollout")).to_contain_text(HOSTILE)
    one.expect(one.page.locator("pre.prompt")).to_contain_text("{{7*7}}")
    for page, figures in (("geometry", 7), ("compare", 1)):
        one.page.goto(f"{address}/{page}")
        one.expect(one.page.locator(".card:visible .js-plotly-plot .scatterlayer")).to_have_count(figures)
        one.expect(one.page.locator(".prose.evidence")).to_contain_text(HOSTILE)
    assert one.page.locator(".summary img, .evidence img").count() == 0
    assert one.page.evaluate("window.hit") is None
    assert one.elsewhere(address) == [] and one.errors == []
