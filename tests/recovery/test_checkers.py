"""Hand-written answers with known verdicts for each of IFEval's 25 instructions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from recovery.data.checkers import check_prompts, checkers, judge
from recovery.errors import UsageError
from recovery.rewards import all_checks, verifiable
from recovery.types import Check, Message, Prompt

FIRST = "length_constraints:nth_paragraph_first_word"

GARDEN = "The garden lies behind the house and is full of flowers in summer."
CAPITALS = {"capital_frequency": 2}

# instruction, its arguments, an answer that follows it, one that does not
KINDS: list[tuple[str, dict[str, Any], str, str]] = [
    ("keywords:existence", {"keywords": ["lamp", "stairs"]}, "The LAMP by the stairs is lit.", "The lamp is lit."),
    ("keywords:frequency", {"keyword": "tea", "frequency": 2, "relation": "at least"}, "Tea, then tea.", "Tea."),
    ("keywords:frequency", {"keyword": "tea", "frequency": 2, "relation": "less than"}, "Tea.", "Tea, then tea."),
    ("keywords:forbidden_words", {"forbidden_words": ["rain"]}, "The rainbow is out.", "The Rain has stopped."),
    ("keywords:letter_frequency", {"letter": "z", "let_frequency": 3, "let_relation": "at least"}, "Zzz.", "Zoo."),
    ("keywords:letter_frequency", {"letter": "e", "let_frequency": 2, "let_relation": "less than"}, "A fox.", "Eel."),
    (
        "language:response_language",
        {"language": "de"},
        "Der Garten liegt hinter dem Haus und ist im Sommer voller Blumen.",
        GARDEN,
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "less than"},
        "Dr. Hill came. He left.",
        "He came. He saw. He left.",
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "at least"},
        "He came. He saw! Did he leave?",
        "He came, e.g. for tea. He left.",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One.\n***\nTwo.", "One.\n\nTwo."),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "One two three.", "One two."),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "One two.", "One two three."),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "meanwhile"},
        "It rained.\n\nMeanwhile, the cat slept.",
        "Meanwhile, it rained.\n\nThe cat slept.",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "See [name] at [place].", "See [name] soon."),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Come.\nP.S. Bread.", "Come.\nPS bread."),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Come.\nP.P.S Bread.", "Come.\nP.S. Bread."),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* bread\n- milk", "* bread\n* milk\n* salt"),
    ("detectable_format:constrained_response", {}, "My answer is yes.", "Certainly."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*One* or *two*.", "*One* or two."),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        "SECTION 1\nBread.\nSECTION 2\nMilk.",
        "SECTION 1\nBread and milk.",
    ),
    ("detectable_format:json_format", {}, '```json\n{"colour": "red"}\n```', "colour: red"),
    ("detectable_format:title", {}, "<<A short walk>>\nWe left at noon.", "# A short walk\nWe left at noon."),
    ("combination:two_responses", {}, "Go by ferry.\n******\nGo by train.", "Go by ferry.\n******\nGo by ferry."),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Name a colour."},
        "Name a colour. Red.",
        "Red. Name a colour.",
    ),
    ("startend:end_checker", {"end_phrase": "That is all."}, "We left at noon. That is all.", "That is all. Bye."),
    ("startend:quotation", {}, '"We left at noon."', "'We left at noon.'"),
    ("change_case:capital_word_frequency", CAPITALS | {"capital_relation": "at least"}, "RED FAST fox", "The RED fox"),
    ("change_case:capital_word_frequency", CAPITALS | {"capital_relation": "less than"}, "The RED fox", "RED FAST fox"),
    ("change_case:english_capital", {}, GARDEN.upper(), GARDEN.replace("house", "HOUSE")),
    ("change_case:english_lowercase", {}, GARDEN.lower(), GARDEN),
    ("punctuation:no_comma", {}, "Bread and milk and salt.", "Bread, milk and salt."),
]


def make_prompt(text: str, *checks: Check, id: str = "p", **fields: Any) -> Prompt:
    return Prompt(id, (Message(role="user", content=text),), checks=checks, **fields)


@pytest.mark.parametrize(("instruction", "kwargs", "right", "wrong"), KINDS)
def test_kinds_by_hand(instruction: str, kwargs: dict[str, Any], right: str, wrong: str) -> None:
    prompt = make_prompt("Name a colour.", Check(instruction, kwargs))
    check_prompts([prompt])
    assert judge(prompt, right).strict == (True,)
    assert judge(prompt, wrong).strict == (False,)
    assert judge(prompt, "").strict == (False,)
    for response in (right, wrong, f"\n\n{right}"):
        verdict = judge(prompt, response)
        assert instruction == FIRST or verdict.repaired == verdict.strict, "others are judged as published"


def test_every_kind_has_a_case() -> None:
    registry = checkers().instructions_registry.INSTRUCTION_DICT
    assert {kind[0] for kind in KINDS} == set(registry)
    assert len(registry) == 25


def test_loose_forgives_a_first_line_and_asterisks() -> None:
    prompt = make_prompt("Say it.", Check("startend:quotation"), Check("punctuation:no_comma"))
    verdict = judge(prompt, 'Sure, here it is:\n"We left at noon."')
    assert verdict.strict == (False, False)
    assert verdict.loose == (True, True)
    assert judge(prompt, '"We left."').strict == (True, True)
    assert judge(prompt, "We left.").strict == (False, True)
    assert judge(make_prompt("Say anything."), "anything").strict == ()


def test_random_draws_do_not_depend_on_order_or_global_random_state() -> None:
    letter = [
        make_prompt(
            "Use it.",
            Check("keywords:letter_frequency", {"letter": "!", "let_frequency": 2, "let_relation": "at least"}),
            id=str(i),
        )
        for i in range(20)
    ]
    response = "a quick brown fox jumps over the lazy dog twice and again and again"
    random.seed(1)
    before = random.getstate()
    verdicts = [judge(prompt, response).strict for prompt in letter]
    assert random.getstate() == before
    random.seed(2)
    assert [judge(prompt, response).strict for prompt in reversed(letter)] == verdicts[::-1]
    assert {(True,), (False,)} == set(verdicts)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (Check("keywords:presence"), "not an instruction"),
        (Check("punctuation:no_comma", {"marks": 2}), "bad arguments"),
        (Check("keywords:frequency", {"keyword": "a", "relation": "about"}), "bad arguments"),
        (Check("combination:repeat_prompt"), "bad arguments"),
    ],
)
def test_checks_that_cannot_be_judged_are_reported(check: Check, message: str) -> None:
    with pytest.raises(UsageError, match=f"'p'.*{message}|{message}"):
        check_prompts([make_prompt("Say it.", Check("startend:quotation")), make_prompt("Say it.", check)])


@pytest.mark.parametrize(
    ("response", "number", "word", "strict", "repaired"),
    [
        ("\n\nalpha one\n\nbeta two", 1, "alpha", False, True),  # a leading blank line
        ("alpha one\n\nbeta two", 1, "alpha", True, True),
        ("alpha one\n\n\n\nbeta two", 2, "beta", False, True),  # a blank chunk in the middle
        ("alpha one\n\n \t\n\nbeta two", 2, "beta", False, True),  # spaces between two blank lines
        ("alpha one\n\n\nbeta two", 2, "beta", True, True),  # three line ends are one blank chunk less
        ("alpha one\n\nbeta two\n\n\n\n", 2, "beta", True, True),
        ("\n\nalpha one\n\nbeta two", 2, "alpha", True, False),  # the second chunk, but the first paragraph
        ("\n\nalpha one", 1, "alpha", False, False),  # one paragraph of two
        ("", 1, "alpha", False, False),
        ("\n\n\n\n", 1, "alpha", False, False),
    ],
)
def test_the_named_paragraph_is_counted_without_blank_chunks_beside_the_published_verdict(
    response: str, number: int, word: str, strict: bool, repaired: bool
) -> None:
    check = Check(FIRST, {"num_paragraphs": 2, "nth_paragraph": number, "first_word": word})
    prompt = Prompt("p", (Message(role="user", content="Two paragraphs."),), checks=(check,))
    verdict = judge(prompt, response)
    assert (verdict.strict, verdict.repaired) == ((strict,), (repaired,))
    assert verifiable(prompt, response) == all_checks(prompt, response) == float(repaired)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("keywords:existence", {"keywords": ["**bold"]}),
        ("keywords:frequency", {"keyword": "(", "frequency": 1, "relation": "at least"}),
        ("keywords:forbidden_words", {"forbidden_words": ["[x"]}),
        ("detectable_content:postscript", {"postscript_marker": "*P"}),
        ("detectable_format:multiple_sections", {"section_spliter": "**", "num_sections": 2}),
    ],
)
def test_an_argument_that_is_no_regular_expression_is_refused_before_anything_is_generated(
    kind: str, arguments: dict[str, Any]
) -> None:
    prompt = Prompt("p", (Message(role="user", content="Say it."),), checks=(Check(kind, arguments),))
    with pytest.raises(UsageError, match=f"prompt 'p': bad arguments for {kind}"):
        check_prompts([prompt])
