"""Review in Chromium: from the overview to a decision, by mouse and by keyboard."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from dashboard.access import Access, hash_password
from db import Tracker, open_readonly, queries
from tests.dashboard.conftest import Visit

pytestmark = pytest.mark.browser


KINDS = ("keywords:existence", "punctuation:no_comma", "startend:quotation")
LOST = {"base": 0, "cycle-2/midtrained": 15, "cycle-2/recovered": 4}
"""Number of the 20 prompts of the first kind that each checkpoint fails; it follows all others."""


@pytest.fixture
def reviewed(tmp_path: Path, seeding: ModuleType) -> Path:
    """Two cycles; the second lost one kind of instruction and recovered most of it."""
    path = Path(seeding.seed(tmp_path / "tracker.db", cycles=2, items=60, steps=5).address)
    with Tracker(path) as tracker:
        experiment = queries.experiments(tracker.database)[0].id
        for checkpoint in queries.checkpoints(tracker.database, experiment):
            if checkpoint.name in LOST:
                right = [n % 3 != 0 or n // 3 >= LOST[checkpoint.name] for n in range(60)]
                items = [
                    {"id": f"item-{n}", "prompt": f"Tell me of fox number {n}?", "response": f"Fox {n} is {kept}.",
                     "score": float(kept), "verdicts": {KINDS[n % 3]: kept}}
                    for n, kept in enumerate(right)
                ]  # fmt: skip
                details = {
                    f"id/{kind}": {"value": sum(right[at::3]) / 20, "stderr": 0.05, "n": 20}
                    for at, kind in enumerate(KINDS)
                }
                value = sum(right) / 60
                tracker.add_evaluation(
                    checkpoint.id, "instruction_following", value=value, stderr=0.03, n=60, items=items, details=details
                )
    return path


def decisions(database: Path, cycle: int) -> list[tuple[str, str, str]]:
    opened = open_readonly(database)
    try:
        experiment = queries.experiments(opened)[0]
        row = next(c for c in queries.cycles(opened, experiment.id) if c.number == cycle)
        return [(d.decision, d.who, d.why) for d in queries.decisions(opened, row.id)]
    finally:
        opened.close()


def test_five_clicks_from_the_overview_to_a_rejected_cycle(
    reviewed: Path, serve: Callable[..., str], visit: Callable[..., Visit]
) -> None:
    one = visit()
    one.page.goto(serve(reviewed))
    one.page.locator(".cycles a", has_text="Cycle 2").click()  # 1
    lost = one.page.locator("#types tbody tr").first
    one.expect(lost).to_contain_text("−20.0")  # sorted by remaining loss
    kind = lost.locator("code").inner_text()
    assert kind == "keywords:existence"
    lost.get_by_role("link").click()  # 2
    one.expect(one.page.locator("h1")).to_contain_text("Lost and still lost of keywords:existence: 4 prompts")
    sample = one.page.locator(".sample").first
    one.expect(sample.locator(".answer")).to_have_count(3)
    one.expect(sample.locator(".answer").nth(0).locator(".verdicts .good")).to_have_count(1)
    one.expect(sample.locator(".answer").nth(2).locator(".verdicts .bad")).to_have_count(1)
    one.page.locator(".hero a").click()  # 3
    one.page.get_by_label("Your name").fill("Ada")
    one.page.get_by_label("Reason").fill(f"{kind} is lost")
    one.page.get_by_role("button", name="Reject").click()  # 4
    one.expect(one.page.locator(".prose.said")).to_contain_text("Cycle 2 rejected")
    one.expect(one.page.locator(".prose.said")).to_contain_text("cycle-1/recovered")
    one.expect(one.page.locator("h1 .chip")).to_have_text("rejected")
    assert decisions(reviewed, 2) == [("rejected", "Ada", f"{kind} is lost")]
    assert one.errors == []


@pytest.mark.slow
def test_a_decision_needs_a_name_and_a_reason_and_what_contradicts_is_reported(
    reviewed: Path, serve: Callable[..., str], visit: Callable[..., Visit]
) -> None:
    one = visit()
    one.page.goto(f"{serve(reviewed)}/cycle?cycle=1")
    accept = one.page.get_by_role("button", name="Accept")
    one.page.set_viewport_size({"width": 390, "height": 500})
    accept.evaluate("one => one.scrollIntoView({block: 'end'})")
    accept.click()
    one.expect(one.page.locator(".prose.said")).to_contain_text("Give your name")
    one.expect(one.page.locator(".said .notice")).to_be_in_viewport(ratio=1)
    one.page.get_by_label("Your name").fill("Ada")
    one.page.get_by_role("button", name="Accept").click()
    one.expect(one.page.locator(".prose.said")).to_contain_text("Give a reason")
    one.page.get_by_label("Reason").fill("<img src=x onerror=window.hit=1>")
    one.page.get_by_role("button", name="Reject").click()
    one.expect(one.page.locator(".prose.said")).to_contain_text("builds on cycle 1")
    one.page.get_by_role("button", name="Roll back").click()
    one.expect(one.page.locator(".prose.said")).to_contain_text("Also rolled back: cycle 2")
    one.expect(one.page.locator("#decisions")).to_contain_text("<img src=x onerror=window.hit=1>")
    assert one.page.evaluate("window.hit") is None
    assert [d[0] for d in decisions(reviewed, 2)] == ["rolled_back"]


@pytest.mark.slow
def test_read_only_shows_no_way_to_decide(
    reviewed: Path, serve: Callable[..., str], visit: Callable[..., Visit]
) -> None:
    one = visit()
    one.page.goto(f"{serve(reviewed, Access(read_only=True))}/cycle")
    one.expect(one.page.locator("#types")).to_be_visible()
    one.expect(one.page.get_by_role("button", name="Reject")).to_have_count(0)


@pytest.mark.slow
def test_an_authenticated_person_signs_with_their_own_name(
    reviewed: Path, serve: Callable[..., str], visit: Callable[..., Visit]
) -> None:
    page = visit(user=("ada", "correct horse")).page
    page.goto(f"{serve(reviewed, Access({'ada': hash_password('correct horse')}))}/cycle")
    page.get_by_label("Reason").fill("good")
    assert page.get_by_label("Your name").count() == 0
    page.get_by_role("button", name="Accept").click()
    page.locator(".prose.said", has_text="Cycle 2 accepted").wait_for()
    assert decisions(reviewed, 2) == [("accepted", "ada", "good")]


@pytest.mark.slow
def test_answers_are_filtered_by_address_and_stepped_through_by_keys(
    reviewed: Path, serve: Callable[..., str], visit: Callable[..., Visit]
) -> None:
    one = visit()
    one.page.goto(f"{serve(reviewed)}/samples?cycle=2&show=all")
    one.expect(one.page.locator("h1")).to_contain_text("All: 60 prompts")
    one.page.keyboard.press("j")
    one.page.keyboard.press("j")
    one.expect(one.page.locator(".sample").nth(1)).to_be_focused()
    one.page.keyboard.press("]")
    one.expect(one.page.locator(".steps")).to_contain_text("9 to 16 of 60")
    one.page.go_back()
    one.expect(one.page.locator(".steps")).to_contain_text("1 to 8 of 60")
    one.page.get_by_label("Text").fill("number 17?")
    one.page.get_by_role("button", name="Filter").click()
    one.expect(one.page.locator("h1")).to_contain_text("All: 1 prompt")
    assert "search=number" in one.page.url
    one.page.get_by_label("Type of instruction").select_option("keywords:existence")
    one.page.get_by_role("button", name="Filter").click()
    one.expect(one.page.locator(".notice")).to_contain_text("Nothing matches")
    assert one.errors == []


@pytest.mark.slow
@pytest.mark.parametrize("page", ["cycle", "samples"])
@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_these_pages_in_its_width(
    reviewed: Path, serve: Callable[..., str], visit: Callable[..., Visit], page: str, dark: bool
) -> None:
    one = visit(width=390, dark=dark)
    one.page.goto(f"{serve(reviewed)}/{page}?show=all")
    one.expect(one.page.locator("h1")).to_be_visible()
    one.expect(one.page.locator(".card").first).to_be_visible()
    assert one.width() == 390


@pytest.mark.slow
def test_hostile_answers_are_shown_as_text(
    tmp_path: Path, serve: Callable[..., str], visit: Callable[..., Visit]
) -> None:
    hostile = "<img src=x onerror=window.hit=1><script>window.hit=2</script>${window.hit=3}'\""
    dice = random.Random(0)
    with Tracker(tmp_path / "tracker.db") as tracker:
        experiment = tracker.experiment(hostile, base_model=hostile)
        cycle = tracker.cycle(experiment, 1, documents=hostile)
        parent = None
        for name, kind in (("base", "base"), (hostile, "midtrained"), ("end", "recovered")):
            parent = tracker.add_checkpoint(
                experiment, name, kind, path=hostile, parent_id=parent, cycle_id=None if kind == "base" else cycle
            )
            score = float(kind == "base")
            item = {"id": hostile, "prompt": hostile, "response": hostile + str(dice.random()), "score": score,
                    "verdicts": {hostile: bool(score)}}  # fmt: skip
            tracker.add_evaluation(
                parent, "instruction_following", value=score, stderr=0.1, n=1, items=[item],
                details={f"id/{hostile}": {"value": score, "stderr": 0.1, "n": 1}},
            )  # fmt: skip
    address = serve(tmp_path / "tracker.db")
    one = visit()
    one.page.goto(f"{address}/cycle")
    one.expect(one.page.locator("#types code").first).to_have_text(hostile)
    one.page.locator("#types a").first.click()
    one.expect(one.page.locator(".prompt")).to_have_text(hostile)
    one.expect(one.page.locator(".verdicts").first).to_contain_text("onerror")
    assert one.page.evaluate("window.hit") is None
    assert one.elsewhere(address) == []
