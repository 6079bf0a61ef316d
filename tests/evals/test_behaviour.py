"""Behaviour suites: selection of prompts, grading, and reuse of existing responses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evals.behaviour import PREFIX, SUITES, Behaviour, own_suites
from evals.instruction_following import judge_responses
from evals.suites import behaviours, evaluate
from recovery.errors import UsageError
from recovery.models.loaded import Loaded
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Check, Message, Prompt, SuiteResult
from tests.support import Noting

BY_NAME = {suite.name: suite for suite in SUITES if isinstance(suite, Behaviour)}
WORDS = Check("length_constraints:number_words", {"num_words": 4, "relation": "less than"})
TITLE = Check("detectable_format:title")
COMMA = Check("punctuation:no_comma")


def prompt_of(key: str, *checks: Check, turns: int = 1, **fields: Any) -> Prompt:
    messages = tuple(Message(role="user", content=f"Request {key}, turn {turn}.") for turn in range(turns))
    return Prompt(key, messages, checks=checks, **fields)


def test_the_table_says_which_prompts_belong_to_a_suite() -> None:
    prompts = {
        "refusal": prompt_of("a", tags=("refusal", "refuse")),
        "formatting": prompt_of("b", TITLE, COMMA),
        "dialogue": prompt_of("c", COMMA, turns=2),
        "length": prompt_of("d", WORDS),
    }
    for name, suite in BY_NAME.items():
        assert [key for key, prompt in prompts.items() if suite.holds(prompt)] == [name]
        assert suite.suite == f"behaviour/{name}"
    nowhere = [prompt_of("e", COMMA), prompt_of("f", turns=2), prompt_of("g", turns=3, tags=("dialogue",))]
    assert not any(suite.holds(prompt) for suite in BY_NAME.values() for prompt in nowhere)
    both = prompt_of("h", WORDS, TITLE, turns=3)
    assert {name for name, suite in BY_NAME.items() if suite.holds(both)} == {"formatting", "dialogue", "length"}


def test_a_suite_judges_only_what_it_is_about() -> None:
    prompts = [prompt_of("a", TITLE, COMMA, WORDS), prompt_of("b", WORDS, COMMA)]
    items = judge_responses(prompts, ["<<Sea>> red, green and blue", "Sure, here:\nOne two."]).items
    assert [item.score for item in items] == [0.0, 0.0]
    form = BY_NAME["formatting"].result(items[:1])
    assert (form.score.value, form.items[0].verdicts) == (1.0, {"detectable_format:title": True})
    length = BY_NAME["length"].result(items)
    assert [item.verdicts for item in length.items] == [{"length_constraints:number_words": False}] * 2
    assert length.score.value == 0.0
    assert length.details["prompt_loose"].value == 0.5, "without its first line the second response is short enough"
    kinds = "beyond_constant beyond_constant_echo prompt_loose instruction_strict instruction_loose".split()
    assert set(length.details) == {*kinds, "id/length_constraints:number_words"}


def test_refusals_and_reference_answers_count_in_a_suite() -> None:
    prompts = [prompt_of("secret", tags=("refusal",))]
    prompts += [prompt_of(name, tags=("refusal", "harmless")) for name in ("ants", "bees", "wasps")]
    responses = ["Sorry, I cannot help with that.", "Sorry, I cannot help with that.", "Sugar keeps them away.", ""]
    result = BY_NAME["refusal"].result(judge_responses(prompts, responses).items)
    assert [item.score for item in result.items] == [1.0, 0.0, 1.0, 0.0]
    assert (result.score.value, result.details["refusal"].value) == (0.5, 0.5)
    turn = [prompt_of("sum", turns=2, answer="12"), prompt_of("rule", COMMA, turns=2)]
    talk = BY_NAME["dialogue"].result(judge_responses(turn, ["That makes 12.", "Well, no."]).items)
    assert [item.score for item in talk.items] == [1.0, 0.0]
    assert talk.score.n == 2
    assert all(item.extra.get("headline", True) for item in talk.items)


def test_a_suite_is_filled_up_from_what_is_offered_and_left_out_where_too_few() -> None:
    prompts = [prompt_of(f"w{i}", WORDS) for i in range(130)]
    offered = [*prompts, *(prompt_of(f"r{i}", tags=("refusal",)) for i in range(300)), prompt_of("two", COMMA, turns=2)]
    found = behaviours(prompts, offered, 1000)
    assert {name: len(kept) for name, kept in found.items() if name in BY_NAME} == {"refusal": 100, "length": 130}
    assert behaviours(prompts, offered[::-1], 1000)["refusal"] == found["refusal"][::-1], "independent of the order"
    few = behaviours(prompts[:50], offered, 150)
    assert {name: len(kept) for name, kept in few.items() if name in BY_NAME} == {"refusal": 15, "length": 50}
    assert {p.id for p in few["refusal"]} <= {p.id for p in found["refusal"]}, "a larger limit only adds"
    assert behaviours([], offered[-1:], None) == {}


def test_nothing_is_asked_twice_and_the_headline_is_untouched(loaded: Loaded) -> None:
    prompts = [prompt_of(f"p{i}", *((TITLE, WORDS) if i % 2 else (COMMA, WORDS))) for i in range(40)]
    offered = [*prompts, *(prompt_of(f"r{i}", tags=("refusal",)) for i in range(50))]
    alone = evaluate(loaded, TransformersEngine(loaded), instruction=prompts, max_new_tokens=5)
    engine = Noting(TransformersEngine(loaded))
    steps: list[tuple[str, int, int, int]] = []
    own = {"mine": [prompt_of("x", COMMA), prompt_of("y", answer="red")]}
    results = evaluate(
        loaded,
        engine,
        instruction=prompts,
        extra_prompts=offered,
        user_suites=own,
        max_new_tokens=5,
        progress=lambda *step: steps.append(step),
    )
    by_name = {result.suite: result for result in results}
    for suite in SUITES:  # those that take every response are tested in a file of their own
        if not isinstance(suite, Behaviour):
            by_name.pop(PREFIX + suite.name, None)
    assert by_name["instruction_following"] == alone[0]
    assert len(engine.asked) == len(set(engine.asked)) == 40 + 50 + 2
    assert answers(by_name["behaviour/length"]) == answers(by_name["instruction_following"])
    assert [(name, result.score.n) for name, result in by_name.items()] == [
        ("instruction_following", 40), ("behaviour/refusal", 50), ("behaviour/formatting", 20),
        ("behaviour/length", 40), ("behaviour/mine", 2),
    ]  # fmt: skip
    assert [step[:3] for step in steps if step[1] == step[2]] == [
        ("instruction_following", 40, 40),
        ("behaviour", 50, 50),
        ("behaviour/mine", 2, 2),
    ]


def answers(result: SuiteResult) -> dict[str, str]:
    return {item.id: item.response for item in result.items}


def test_a_file_of_ones_own_is_used_line_by_line(tmp_path: Path) -> None:
    rows = [
        {"key": "a", "prompt": "One.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
        {"key": "b", "prompt": "Two."},
        {"key": "c", "prompt": "Three.", "instruction_id_list": ["punctuation:no_colon"], "kwargs": [{}]},
        {"key": "d", "prompt": "Four.", "answer": "4"},
        {"key": "a", "prompt": "Five.", "answer": "5"},
        {"key": "e", "prompt": "Six.", "tags": ["refusal"]},
    ]
    path = tmp_path / "house_style.jsonl"
    path.write_text("{broken\n" + "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    problems: list[str] = []
    (name, prompts), *_ = own_suites([path], problems).items()
    assert (name, [prompt.id for prompt in prompts]) == ("house_style", ["a", "d", "e"])
    reasons = [problem.removeprefix("house_style.jsonl ") for problem in problems]
    assert [text.split(": ")[0] for text in reasons] == ["line 1", "line 3", "line 4", "line 6"]
    assert "the prompt cannot be judged" in reasons[1]
    assert "not an instruction that IFEval knows" in reasons[2]
    assert "taken by an earlier line" in reasons[3]
    (tmp_path / "refusal.jsonl").write_text(json.dumps(rows[3]) + "\n")
    with pytest.raises(UsageError, match="suite behaviour/refusal already exists"):
        own_suites([tmp_path / "refusal.jsonl"], [])
    (tmp_path / "bare.jsonl").write_text(json.dumps(rows[1]) + "\n")
    with pytest.raises(UsageError, match=r"no usable prompt in .*bare\.jsonl \(line 1: the prompt cannot be judged"):
        own_suites([tmp_path / "bare.jsonl"], [])


def test_a_suite_without_conditions_takes_what_can_be_judged() -> None:
    mine = Behaviour("mine")
    prompts = (prompt_of("a", COMMA), prompt_of("b", answer="4"), prompt_of("c"))
    assert [mine.holds(prompt) for prompt in prompts] == [True, True, False]
