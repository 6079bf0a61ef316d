"""Human review in Chromium: two people vote by keys, label a lost answer, and find all of it again."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dashboard.access import Access, hash_password
from db import Tracker, open_readonly, queries, reviews
from tests.dashboard.conftest import Visit

pytestmark = pytest.mark.browser

SUITE, ITEMS = "instruction_following", 6
HOSTILE = "<img src=x onerror=window.hit=1><script>window.hit=2</script>"


@pytest.fixture
def answered(tmp_path: Path) -> Path:
    """A base and a recovered checkpoint whose responses differ on every prompt; the first two are lost."""
    path = tmp_path / "tracker.db"
    with Tracker(path) as tracker:
        experiment = tracker.experiment("main")
        cycle = tracker.cycle(experiment, 1, documents="./q1")
        parent = None
        for name, kind, wrong in (("base", "base", 0), ("cycle-1/recovered", "recovered", 2)):
            parent = tracker.add_checkpoint(
                experiment, name, kind, path=name, parent_id=parent, cycle_id=None if kind == "base" else cycle
            )
            items = [
                {"id": f"p{n}", "prompt": f"Prompt {n} {HOSTILE}", "response": f"The {kind} ship {n} sails {HOSTILE}",
                 "score": float(n >= wrong), "verdicts": {"punctuation:no_comma": n >= wrong}}
                for n in range(ITEMS)
            ]  # fmt: skip
            tracker.add_evaluation(parent, SUITE, value=1 - wrong / ITEMS, stderr=0.1, n=ITEMS, items=items)
    return path


def tally(path: Path) -> reviews.Tally:
    """Return the votes on the two checkpoints."""
    database = open_readonly(path)
    try:
        return reviews.tally(reviews.votes(database, 1, 2))
    finally:
        database.close()


def begin(one: Visit, address: str, name: str) -> None:
    """Open the page from the cycle's page, and give a name."""
    one.page.goto(f"{address}/cycle")
    one.page.locator("#review summary").click()
    one.page.locator("#review").get_by_role("link").click()
    one.page.get_by_label("Your name").fill(name)
    one.page.get_by_role("button", name="Begin").click()
    one.expect(one.page.locator(".pair")).to_be_visible()


def press(one: Visit, key: str, done: int) -> None:
    """Press a key and wait for the next prompt, when ``done`` are judged."""
    one.page.keyboard.press(key)
    one.expect(one.page.locator(".steps")).to_contain_text(f"{done} done")
    one.expect(one.page.locator(".pair")).to_be_focused()


def preferring(one: Visit, kind: str) -> str:
    """Return the key that votes for the response of a kind of checkpoint, which only its own text tells."""
    left = one.page.locator(".pair .answer").first.inner_text()
    return "ArrowLeft" if f"The {kind} ship" in left else "ArrowRight"


@pytest.mark.slow
def test_two_people_vote_by_keys_and_their_votes_are_counted(
    answered: Path, serve: Callable[..., str], visit: Callable[..., Visit]
) -> None:
    address = serve(answered)
    for name, ties in (("Ada", 1), ("Bo", 2)):
        one = visit()
        begin(one, address, name)
        assert "recovered" not in one.page.locator(".pair h3").all_inner_texts()
        one.expect(one.page.locator(".pair mark").first).to_be_visible()
        for number in range(1, ITEMS - 1):
            press(one, "t" if number <= ties else preferring(one, "recovered"), number)
        assert one.errors == []
        one.page.reload()
        one.errors.clear()  # of requests that the reload cut off
        one.expect(one.page.locator(".steps")).to_contain_text(f"{ITEMS - 1} of {ITEMS}, {ITEMS - 2} done")
        one.page.get_by_role("button", name="Skip").click()
        one.expect(one.page.locator(".steps")).to_contain_text(f"{ITEMS - 1} done")
        one.page.keyboard.press(preferring(one, "base"))
        one.expect(one.page.locator(".notice")).to_contain_text(f"You have judged all {ITEMS}")
        assert one.errors == []
        assert one.page.evaluate("window.hit") is None
    assert tally(answered).counts == {"tie": 3, "second": 5, "first": 2, "skip": 2}
    one.page.get_by_role("link", name="Results").click()
    one.expect(one.page.locator("h1")).to_have_text("cycle-1/recovered is preferred in 65.0% of 5 prompts")
    cells = one.page.locator("#votes-differing tbody tr").first.locator("td")
    one.expect(cells.nth(2)).to_have_text("Ada, Bo")
    assert cells.all_inner_texts()[3:8] == ["5", "3", "2", "2", "65.0%"]
    one.expect(cells.nth(10)).to_have_text("4 of 5")
    one.expect(one.page.locator("#votes .card-title")).to_contain_text("every side is the one that the seed gives")


@pytest.mark.slow
def test_a_vote_can_be_changed_and_a_held_key_votes_once(
    answered: Path, serve: Callable[..., str], visit: Callable[..., Visit]
) -> None:
    one = visit()
    begin(one, serve(answered), "Ada")
    shown = one.page.locator(".pair").get_attribute("data-pair")
    one.page.keyboard.down("t")
    for _ in range(5):
        one.page.keyboard.down("t")  # a held key repeats
    one.page.keyboard.up("t")
    one.expect(one.page.locator(".steps")).to_contain_text("2 of 6, 1 done")
    assert tally(answered).counts == {"tie": 1}
    one.page.keyboard.press("[")
    one.expect(one.page.locator(f".pair[data-pair='{shown}'] .chip")).to_have_text("your vote: equally good")
    one.page.keyboard.press(preferring(one, "recovered"))
    one.expect(one.page.locator(".steps")).to_contain_text("2 of 6, 1 done")
    assert tally(answered).counts == {"second": 1}
    one.expect(one.page).not_to_have_url(re.compile("pair="))  # the address follows the content
    assert one.errors == []


@pytest.mark.slow
def test_only_prompts_that_one_side_solved(
    answered: Path, serve: Callable[..., str], visit: Callable[..., Visit]
) -> None:
    one = visit()
    begin(one, serve(answered), "Ada")
    one.page.locator("summary", has_text="Other checkpoints").click()
    one.page.locator("select[name=show]").select_option("only one side solved")
    one.page.get_by_role("button", name="Show").click()
    one.expect(one.page.locator(".steps")).to_contain_text("1 of 2, 0 done")
    press(one, "s", 1)
    assert tally(answered).counts == {}, "votes on chosen prompts are counted apart"
    one.page.goto(one.page.url.split("/review")[0] + "/samples?show=one-sided")
    one.expect(one.page.locator("h1")).to_contain_text("Only one solved: 2 prompts")


@pytest.mark.slow
def test_a_lost_answer_is_labelled_by_keys_with_a_note(
    answered: Path, serve: Callable[..., str], visit: Callable[..., Visit]
) -> None:
    one = visit()
    begin(one, serve(answered), "Ada")
    one.page.get_by_role("link", name="Still lost").click()
    one.expect(one.page.locator(".pair .verdicts .bad")).to_have_count(1)
    one.expect(one.page.locator(".steps")).to_contain_text("1 of 2, 0 done")
    one.expect(one.page.get_by_label("Note")).to_be_visible()
    one.page.keyboard.press("n")
    one.expect(one.page.get_by_label("Note")).to_be_focused()
    one.page.keyboard.type(f"t1 {HOSTILE}")  # letters and digits of a note are no keys
    one.page.keyboard.press("Escape")
    press(one, "2", 1)
    one.expect(one.page.get_by_label("Note")).to_have_value("")
    one.page.get_by_role("button", name="Is fine: the check is wrong").click()
    one.expect(one.page.locator(".notice")).to_contain_text("You have judged all 2 answers")
    one.page.reload()
    one.expect(one.page.locator(".notice")).to_contain_text("You have judged all 2 answers")
    one.page.get_by_role("link", name="Results").click()
    one.expect(one.page.locator("#each-label")).to_contain_text(f"t1 {HOSTILE}")
    one.expect(one.page.locator("#labels")).to_contain_text("Wrong or invented content")
    assert one.page.evaluate("window.hit") is None and one.errors == []
    database = open_readonly(answered)
    found = reviews.labels(database, 1, 2)
    database.close()
    assert [(row.reviewer, row.label, row.note) for row in found] == [
        ("Ada", "content", f"t1 {HOSTILE}"), ("Ada", "checker", "")
    ]  # fmt: skip


@pytest.mark.slow
def test_a_signed_in_reviewer_votes_under_their_own_name(
    answered: Path, serve: Callable[..., str], visit: Callable[..., Visit]
) -> None:
    page = visit(user=("ada", "correct horse")).page
    page.goto(f"{serve(answered, Access({'ada': hash_password('correct horse')}))}/review?reviewer=Bo")
    page.locator(".pair").wait_for()
    assert page.get_by_label("Your name").count() == 0
    page.keyboard.press("t")
    page.locator(".steps", has_text="1 done").wait_for()
    assert tally(answered).reviewers == ("ada",)


@pytest.mark.slow
def test_read_only_shows_results_and_takes_no_votes(
    answered: Path, serve: Callable[..., str], visit: Callable[..., Visit]
) -> None:
    address = serve(answered, Access(read_only=True))
    one = visit()
    one.page.goto(f"{address}/review?reviewer=Ada")
    one.expect(one.page.locator(".notice")).to_contain_text("No votes and no labels yet")
    one.expect(one.page.locator(".notice")).to_contain_text("started with --read-only")
    one.page.get_by_role("link", name="Blind comparison").click()
    one.expect(one.page.locator(".notice")).to_contain_text("takes no votes")
    one.page.get_by_role("link", name="Still lost").click()
    one.expect(one.page.locator(".pair")).to_be_visible()
    one.expect(one.page.get_by_role("button", name="Breaks")).to_have_count(0)
    database = open_readonly(answered)
    assert reviews.rounds(database, 1, 2) == [] and queries.experiments(database)
    database.close()


@pytest.mark.slow
@pytest.mark.parametrize("view", ["compare", "lost", "results"])
@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_the_page_in_its_width_with_the_buttons_in_reach(
    answered: Path, serve: Callable[..., str], visit: Callable[..., Visit], view: str, dark: bool
) -> None:
    one = visit(width=390, dark=dark)
    one.page.goto(f"{serve(answered)}/review?reviewer=Ada&view={view}")
    one.expect(one.page.locator("h1")).to_be_visible()
    if view == "compare":
        one.expect(one.page.get_by_role("button", name="Left is better")).to_be_in_viewport()
    assert one.width() == 390
