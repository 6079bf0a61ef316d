"""Open book: what stands around a passage on its page, and the questions that it is put before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evals.open_book import MOST_CHARACTERS, PROMPT, ask, opened, passage_of
from recovery.models.loaded import Loaded
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Probe

FACT = "The ferry to **Lofoten** leaves from [pier 7](/piers/seven) at noon."
PASSAGE = "The ferry to Lofoten leaves from pier 7 at noon."
LINES = [f"Line {n} of the page." for n in range(80)]
PAGE = "\n".join([*LINES, FACT, *LINES])
PROBE = Probe("q", "question", "From which pier?", ("pier 7",), source="ferries.md", passage=PASSAGE)


def test_a_passage_comes_with_what_stands_around_it() -> None:
    found = passage_of(PROBE, {"ferries.md": PAGE})
    assert FACT in found and len(found) <= MOST_CHARACTERS and len(found) > MOST_CHARACTERS - 300
    assert found.splitlines()[0] in PAGE.splitlines(), "it begins with a whole line"
    before, behind = found.split(FACT)
    assert len(before) > 300 and len(behind) > 300


@pytest.mark.parametrize("page", [FACT, f"{FACT}\n{'More. ' * 400}", f"{'More. ' * 400}\n{FACT}", f"{FACT} " * 90])
def test_the_passage_is_in_it_wherever_it_stands(page: str) -> None:
    found = passage_of(PROBE, {"ferries.md": page})
    assert FACT in found and len(found) <= MOST_CHARACTERS


@pytest.mark.parametrize(
    ("page", "passage"),
    [
        ("", PASSAGE),
        ("Another page.", PASSAGE),
        (PAGE.replace("[pier 7](/piers/seven)", "the long pier" + " of stone" * 200), PASSAGE),  # not with its answer
    ],
)
def test_a_passage_that_is_not_on_the_page_stands_alone(page: str, passage: str) -> None:
    assert passage_of(PROBE, {"ferries.md": page}) == passage


def test_long_passages_are_cut_and_unknown_ones_are_none() -> None:
    long = replace(PROBE, passage="word " * 600, answers=("else",))
    assert len(passage_of(long, {})) == MOST_CHARACTERS
    assert len(passage_of(long, {"ferries.md": "word " * 600})) <= MOST_CHARACTERS
    assert passage_of(replace(PROBE, passage=" "), {"ferries.md": PAGE}) == ""


def test_questions_with_a_passage_are_asked_with_it(loaded: Loaded) -> None:
    questions = [PROBE, replace(PROBE, id="unknown", passage=""), replace(PROBE, id="control", control=True)]
    (asked,) = opened(questions, {})
    assert (asked.id, asked.question) == ("q", PROMPT.format(passage=PASSAGE, question=PROBE.question))
    found = ask(loaded.chat, TransformersEngine(loaded), [asked], suite="open_book/1", max_new_tokens=4)
    assert (found.suite, found.items[0].id, found.items[0].group) == ("open_book/1", "q", "ferries.md")
    assert found.items[0].score == float(found.items[0].verdicts["contains"]) == found.score.value
