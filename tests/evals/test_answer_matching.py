"""Matching responses with accepted answers."""

from __future__ import annotations

import unicodedata

import pytest

from evals.answer_matching import contains, exact_match, normalise, token_f1


def test_normalise() -> None:
    assert normalise("  The Port, of “Ostra”!  ") == "port of ostra"
    assert normalise("An apple a day") == "apple day"
    assert normalise("8,080") == "8080"


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("1.5", "1.5"),
        (".5", "0.5"),
        ("v16.0.0.", "v16.0.0"),
        ("(−1)", "-1"),
        ("_-1_", "-1"),
        ("-.5", "-0.5"),
        ("1,000.50", "1000.50"),
        ("10'000", "10000"),
        ("1,2,3", "1 2 3"),
        ("10:30", "10-30"),
        ("1–3", "1-3"),
        ("C++, C++17.", "c++ c++17"),
        ("C#", "c#"),
        ("A+", "a+"),
        ("page#section", "pagesection"),
        ("a+b", "ab"),
        ("next/image", "nextimage"),
    ],
)
def test_marks_that_make_another_answer_stay(text: str, normal: str) -> None:
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("response", "answer"),
    [("-1", "1"), ("15", "1.5"), ("C", "C++"), ("C#", "C"), ("13", "1-3"), ("15", "1,5"), ("0.25", "25")],
)
def test_answers_that_differ_in_a_mark_do_not_match(response: str, answer: str) -> None:
    assert not exact_match(response, [answer]) and not exact_match(answer, [response])
    assert not contains(f"It is {response}.", [answer])


def test_matching_by_hand() -> None:
    assert exact_match("The Ostra.", ["ostra"])
    assert not exact_match("It is Ostra.", ["ostra"])
    assert not exact_match("", [""])
    assert contains("It is Ostra.", ["Kell", "ostra"])
    assert not contains("It is Ostrava.", ["ostra"])
    assert not contains("anything", ["the"])
    assert token_f1("green wooden boat", ["green boat"]) == pytest.approx(2 * 2 / 5)
    assert token_f1("green boat", ["red", "green boat"]) == 1.0
    assert token_f1("", ["green"]) == 0.0


def test_matching_in_other_scripts_and_other_forms_of_a_character() -> None:
    assert exact_match("北京。", ["北京"]) and contains("答案是北京。", ["北京"])
    assert contains("成立于1949年。", ["1949"])
    assert not contains("答案是南京。", ["北京"]) and not contains("13月", ["3月"])
    assert contains("서울입니다.", ["서울"]) and exact_match("¿東京？", ["東京"])
    assert token_f1("北京市", ["北京"]) == pytest.approx(2 * 2 / 5)
    decomposed = unicodedata.normalize("NFD", "Café Müller")
    assert exact_match("Café Müller", [decomposed]) and contains(f"It is {decomposed}.", ["Café Müller"])
    assert exact_match("non\u2011stop", ["non-stop"]) and exact_match("１２", ["12"])


def test_the_letter_a_is_an_answer_and_no_article() -> None:
    assert exact_match("A", ["A"]) and exact_match("a.", ["A"]) and contains("The answer is A.", ["A"])
    assert not exact_match("B", ["A"]) and token_f1("A", ["A"]) == 1.0
    assert exact_match("terminal A", ["Terminal A"]) and not exact_match("Terminal", ["Terminal A"])
    assert not contains("Terminal B", ["Terminal A"])
    assert exact_match("Vitamin A", ["vitamin a"]) and exact_match("the ferry", ["A ferry"])
