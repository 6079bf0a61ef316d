"""The suite "no_loops": what counts as a loop, and that it scores responses that exist already."""

from __future__ import annotations

import dataclasses

import pytest

from evals.behaviour import SUITES, NoLoops, loop_in, repeated_4grams
from evals.instruction_following import judge_responses
from evals.suites import behaviours, evaluate
from recovery.models.loaded import Loaded
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Item
from tests.evals.conftest import lines
from tests.support import Noting

PLAIN = "The harbour opens at seven. A ticket is good for one crossing, and the ferry leaves from the second pier."
_LIST = "- " + "\n- ".join("one two three four five six seven eight nine ten eleven twelve more".split())


@pytest.mark.parametrize(
    ("response", "period"),
    [
        ("", 0),
        (PLAIN, 0),
        ("ha " * 23, 0),
        ("ha " * 24, 1),
        (PLAIN + " and so on" * 8 + ".", 3),
        ("and so on " * 8 + PLAIN, 3),
        ((PLAIN + "\n") * 3, 0),
        ("| a | b | c | d |\n" + "|----------" * 4 + "|\n| 1 | 2 | 3 | 4 |", 0),
        ("Results\n" + "=" * 60 + "\n# " + "-" * 60 + "\n" + PLAIN, 0),
        ("wait" + "!" * 200, 1),
        ("wait" + "!" * 199, 0),
        ("wait" + " " * 200 + "on", 0),
        ((" ".join(f"w{n}" for n in range(200)) + " ") * 4, 200),
        ((" ".join(f"w{n}" for n in range(201)) + " ") * 4, 0),
        ((PLAIN + "\n") * 4, 23),
        (_LIST, 0),
    ],
)
def test_a_loop_is_four_repeats_in_succession_of_24_words(response: str, period: int) -> None:
    assert loop_in(response) == period


def test_the_graded_form_counts_4grams_seen_before() -> None:
    assert repeated_4grams("one two three") == repeated_4grams("one two three four five") == 0.0
    assert repeated_4grams("a b c d a b c d") == pytest.approx(1 / 5)
    assert repeated_4grams("ha " * 103) == pytest.approx(0.99)


def test_its_score_is_the_share_of_responses_without_a_loop() -> None:
    responses = [PLAIN, "ha " * 40, "no " * 40, ""]
    result = NoLoops().result(judge_responses(lines(4), responses).items)
    assert result.suite == "behaviour/no_loops"
    assert [item.score for item in result.items] == [1.0, 0.0, 0.0, 1.0]
    assert [item.verdicts for item in result.items] == [{"no_loop": bool(item.score)} for item in result.items]
    assert (result.score.value, result.score.n) == (0.5, 4)
    assert result.details["repeated_4grams"].value == pytest.approx(2 * (36 / 37) / 4)
    assert [item.extra.get("loop_words") for item in result.items] == [None, 1, 1, None]
    assert {item.extra["rule"] for item in result.items} == {"loops"}


def test_counts_are_carried_over_and_groups_are_clusters() -> None:
    items = [
        Item(f"p{n}", "Write.", "ha " * 40 if n < 2 else PLAIN, 1.0, group=f"g{n // 2}", extra=extra)
        for n, extra in enumerate([{"tokens": 40, "finished": False, "tags": ["a"], "other": 1}, {}, {}, {}])
    ]
    result = NoLoops().result(items)
    assert {name: result.items[0].extra[name] for name in ("tokens", "finished", "tags")} == {
        "tokens": 40,
        "finished": False,
        "tags": ["a"],
    }
    assert "other" not in result.items[0].extra
    alone = NoLoops().result([dataclasses.replace(item, group="") for item in items])
    assert result.score.value == alone.score.value == 0.5
    assert result.score.stderr > alone.score.stderr, "two clusters, not four independent items"


def test_it_scores_what_is_answered_anyway(loaded: Loaded) -> None:
    assert NoLoops() in SUITES
    asked = lines(30)
    assert behaviours(asked[:25], asked, None)["no_loops"] == asked[:25], "no further prompts are answered for it"
    engine = Noting(TransformersEngine(loaded))
    found = {result.suite: result for result in evaluate(loaded, engine, instruction=asked[:25], max_new_tokens=40)}
    assert len(engine.asked) == 25
    mine, theirs = found["behaviour/no_loops"], found["instruction_following"]
    assert [item.response for item in mine.items] == [item.response for item in theirs.items]
    assert mine.score.value == sum(not loop_in(item.response) for item in theirs.items) / 25
