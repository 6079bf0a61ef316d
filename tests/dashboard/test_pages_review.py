"""The Review page without a browser: every state, what is refused, and text that stays text."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from types import ModuleType
from typing import Any

import gradio as gr
import pytest
from fastapi.testclient import TestClient

from dashboard import formatting
from dashboard.access import Access
from dashboard.app import build_app
from dashboard.pages import review
from dashboard.tracker_source import Source
from db import Tracker, queries, reviews
from tests.dashboard.conftest import Request

SUITE = "instruction_following"


def show(source: Source, access: Access | None = None, **query: str) -> tuple[str, bool, bool]:
    """Return the HTML of the page, and whether it takes votes and labels."""
    outputs = review._show(source, access or Access(), Request(query))  # type: ignore[arg-type]
    return outputs[2] + outputs[3] + outputs[6], outputs[4]["visible"], outputs[5]["visible"]


def enter(source: Source, token: str, word: str, access: Access | None = None, **query: str) -> str:
    """Press a button; return the HTML of the page."""
    outputs = review._enter(source, access or Access(), Request(query), token, word, "")  # type: ignore[arg-type]
    return "".join(output for output in outputs if isinstance(output, str))


def token(html: str) -> str:
    return html.split('data-pair="')[1].split('"')[0]


@pytest.fixture
def source(address: Path | str, seeding: ModuleType) -> Source:
    seeding.seed(address, cycles=2, items=40)
    return Source(address)


def tally(source: Source) -> reviews.Tally:
    experiment = queries.experiments(source.database())[0].id
    base, *_, end = queries.checkpoints(source.database(), experiment)
    return reviews.tally(reviews.votes(source.database(), base.id, end.id))


@pytest.mark.differs
def test_a_vote_is_recorded_and_the_next_prompt_shown(source: Source) -> None:
    assert "Give your name above" in show(source)[0] and show(source)[1:] == (False, False)
    html, votes, labels = show(source, reviewer="Ada")
    assert (votes, labels) == (True, False) and "base and cycle-2/recovered" in html
    after = enter(source, token(html), "tie", reviewer="Ada")
    assert token(after) != token(html) and "1 done" in after
    assert tally(source).counts == {"tie": 1}
    assert token(show(source, reviewer="Bo")[0]) == token(html), "all reviewers begin with the same prompt"


@pytest.mark.differs
def test_a_lost_answer_is_labelled_and_counted(source: Source) -> None:
    html, votes, labels = show(source, reviewer="Ada", view="lost")
    assert (votes, labels) == (False, True) and "cycle-2/recovered" in html
    assert "1 done" in enter(source, token(html), "checker", reviewer="Ada", view="lost")
    assert "Is fine: the check is wrong" in show(source, view="results")[0]


def test_votes_and_labels_are_downloaded_with_their_texts(source: Source) -> None:
    enter(source, token(show(source, reviewer="=Ada")[0]), "left", reviewer="=Ada")
    enter(source, token(show(source, reviewer="Bo", view="lost")[0]), "other", reviewer="Bo", view="lost")
    results = show(source, view="results")[0]
    with TestClient(build_app(source.url), base_url="http://127.0.0.1:7860") as client:
        addresses = [unescape(found) for found in re.findall(r'href="(download/(?:votes|labels)[^"]*)"', results)]
        assert len(addresses) == 4
        read = {address: client.get(f"/{address}") for address in addresses}
        assert all(answer.status_code == 200 for answer in read.values())
        (vote,) = read[next(one for one in addresses if "votes.json" in one)].json()
        (label,) = read[next(one for one in addresses if "labels.json" in one)].json()
        assert vote["choice"] == vote["on_left"] and vote["reviewer"] == "=Ada" and vote["seed"] >= 0
        assert (label["label"], label["first_response"]) == ("other", "THE FOX IS RED.")
        assert "'=Ada" in read[next(one for one in addresses if "votes.csv" in one)].text, "no formula"
        for wrong in ("votes.csv?first=no&second=base", "notes.csv?first=base&second=base", "votes.csv"):
            assert client.get(f"/download/{wrong}").status_code in (404, 422)


def test_what_cannot_be_recorded_says_so(source: Source) -> None:
    html = show(source, reviewer="Ada")[0]
    one, other = token(html).split("-")
    for wrong in ("", "x", f"{one}", f"{one}-{one}", f"{other}-{one}", "1-999999999", "1-99999999999999999999"):
        assert "Not recorded" in enter(source, wrong, "tie", reviewer="Ada"), wrong
    assert "a review needs the reviewer" in enter(source, token(html), "tie")
    assert "is not a vote" in enter(source, token(html), "format", reviewer="Ada")
    assert "is not a label" in enter(source, token(html), "left", reviewer="Ada", view="lost")
    assert "Read only" in enter(source, token(html), "tie", Access(read_only=True), reviewer="Ada", view="compare")
    assert tally(source).counts == {}


def test_a_note_is_kept_if_its_label_was_not_recorded(source: Source) -> None:
    def note_after(pair: str, access: Access | None = None) -> Any:
        asked = Request({"reviewer": "Ada", "view": "lost"})
        return review._enter(source, access or Access(), asked, pair, "format", "my note")[-1]  # type: ignore[arg-type]

    pair = token(show(source, reviewer="Ada", view="lost")[0])
    assert note_after("1-999999999") == note_after(pair, Access(read_only=True)) == gr.skip()
    assert note_after(pair) == ""


def test_votes_on_responses_of_an_earlier_evaluation_do_not_count(source: Source) -> None:
    enter(source, token(show(source, reviewer="Ada")[0]), "left", reviewer="Ada")
    assert tally(source).counts.total() == 1
    with Tracker(source.url) as tracker:
        end = queries.checkpoints(tracker.database, queries.experiments(tracker.database)[0].id)[-1]
        items = [{"id": "item-0", "prompt": "Another?", "response": "Another.", "score": 1.0}]
        tracker.add_evaluation(end.id, SUITE, value=1.0, stderr=0.0, n=1, items=items)
    html = show(source, view="results")[0]
    assert tally(source).counts.total() == 0 and "No votes yet" in html
    assert "1 vote is about responses of earlier evaluations" in html


def test_an_address_that_names_nothing_shows_the_defaults(source: Source) -> None:
    wrong = {"first": "no", "second": "no", "suite": "no", "show": "no", "view": "no", "pair": "9-9", "reviewer": "Ada"}
    assert show(source, **wrong)[0] == show(source, reviewer="Ada")[0]
    turned = show(source, first="cycle-2/recovered", second="base", reviewer="Ada")[0]
    assert turned == show(source, reviewer="Ada")[0], "the older checkpoint is the one compared with"
    same = show(source, first="cycle-2/recovered", second="cycle-2/recovered", reviewer="Ada")[0]
    assert "cycle-2/recovered" in same and token(same)
    assert "No such experiment" in show(source, experiment="no")[0]


def test_without_two_evaluations_there_is_nothing_to_review(tmp_path: Path) -> None:
    source = Source(tmp_path / "tracker.db")
    assert "No experiment here yet" in show(source)[0]
    with Tracker(tmp_path / "tracker.db") as tracker:
        experiment = tracker.experiment("main")
        for name, suite in (("base", SUITE), ("end", "behaviour/refusal")):
            made = tracker.add_checkpoint(experiment, name, "external", path=name)
            assert "Nothing to review yet" in show(source)[0]
            items = [{"id": "p", "prompt": "p", "response": "same", "score": 1.0}]
            tracker.add_evaluation(made, suite, value=1, stderr=0, n=1, items=items)
        assert "Nothing to review yet" in show(source)[0], "no suite that both have"
        tracker.add_evaluation(made, SUITE, value=1, stderr=0, n=1, items=items)
        assert "There are no prompts with two different responses" in show(source, reviewer="Ada")[0]
        assert "There are no answers that passed" in show(source, reviewer="Ada", view="lost")[0]


def test_both_sides_of_a_difference_are_marked() -> None:
    one, other = formatting.both("the <b>red</b> fox runs", "the blue fox runs fast")
    assert one == "<pre>the <mark>&lt;b&gt;red&lt;/b&gt;</mark> fox runs</pre>"
    assert other == "<pre>the <mark>blue</mark> fox runs <mark>fast</mark></pre>"
    assert formatting.both("", "same same")[0] == "<pre><i>(nothing)</i></pre>"
    numbered = [" ".join(f"{at}{mark}" for at in range(900)) for mark in ".)"]
    assert all(one.count("<mark>") == 1 for one in formatting.both(*numbered))  # cubic in equal spaces, if they counted
    long = "word " * 3000
    assert "<mark>" not in "".join(formatting.both(long, long + "<i>"))
