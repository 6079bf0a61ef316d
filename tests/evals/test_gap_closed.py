"""Answers corrected for guessing, and the gap closed: by hand, and where they are not defined."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evals.answer_matching import contained, contains
from evals.open_book import Answered, corrected, gap_closed

TOWNS = ("Oslo", "Bergen", "Moss", "Alta", "Hamar", "Molde", "Bodø", "Narvik")


def asked(respond: Callable[[int], str], count: int = 40) -> dict[str, Answered]:
    """Questions with eight answers in turn, two a page, and the responses to them."""
    return {f"q{n}": Answered(respond(n), (TOWNS[n % 8],), f"page {n // 2}") for n in range(count)}


def right(n: int) -> str:
    return f"It is {TOWNS[n % 8]}."


def silent(n: int) -> str:
    return "I do not know."


def test_every_response_is_compared_as_one_is() -> None:
    responses = ["It is Oslo.", "vitamin A", "an A", "", "1,500 m", "Bodø, Oslo"]
    answers = [["Oslo"], ["A", "vitamin A"], ["1500"], ["..."], []]
    assert contained(responses, answers) == [[contains(text, of) for text in responses] for of in answers]


def test_guesses_are_taken_off_by_hand() -> None:
    found = corrected([
        Answered("Oslo", ("Oslo",)),  # right; one of the two others says so, too
        Answered("Oslo", ("Bergen",)),  # wrong; nobody says so
        Answered("Moss", ("Moss", "the town of Moss")),
    ])  # fmt: skip
    assert found.tolist() == pytest.approx([1 - 1 / 2, 0.0, 1.0])
    # a question with the same answer is no guess: its own answer is right here
    assert corrected([Answered("Oslo", ("Oslo",)), Answered("Oslo", ("OSLO",)), Answered("", ("Moss",))])[0] == 1.0
    assert corrected([Answered("Oslo", ("Oslo",))]).tolist() == [1.0]


@pytest.mark.parametrize("reply", ["Oslo", " ".join(TOWNS), "", "I do not know."])
def test_one_answer_to_everything_gains_nothing(reply: str) -> None:
    constant = asked(lambda n: reply)
    assert corrected(list(constant.values())).max() <= 0 or reply == "Oslo"
    assert corrected(list(constant.values())).mean() == pytest.approx(0.0, abs=1e-12)
    found = gap_closed([[constant]], [asked(silent)], [asked(right)])
    assert found is not None and found.value == pytest.approx(0.0, abs=1e-12)


def test_the_gap_is_the_share_of_what_the_page_gives() -> None:
    base = asked(lambda n: right(n) if n % 10 == 0 else "Tromsø")
    after = asked(lambda n: right(n) if n % 10 < 4 else "Tromsø")
    opened = asked(lambda n: right(n) if n % 10 < 7 else "Tromsø")
    found = gap_closed([[after]], [base], [opened])
    assert found is not None and not found.undefined
    assert (found.base, found.after, found.open_book) == pytest.approx((0.1, 0.4, 0.7), abs=0.02)
    assert found.value == pytest.approx((found.after - found.base) / (found.open_book - found.base))
    assert found.low is not None and found.high is not None and found.low < 0.5 < found.high
    whole = gap_closed([[opened]], [base], [opened])
    assert whole is not None and (whole.value, whole.low, whole.high) == pytest.approx((1.0, 1.0, 1.0))


@pytest.mark.parametrize("opened", [silent, lambda n: right(n) if n % 12 == 0 else "no", lambda n: "Oslo"])
def test_where_the_page_helps_too_little_it_is_not_defined(opened: Callable[[int], str]) -> None:
    found = gap_closed([[asked(right)]], [asked(silent)], [asked(opened)])
    assert found is not None
    assert found.value is None and found.low is None and "above 10 are needed" in found.undefined
    assert found.after == pytest.approx(1.0)


def test_corpora_are_pooled_and_guessing_is_corrected_in_each() -> None:
    one, two = asked(lambda n: right(n) if n % 2 else ""), asked(silent)
    found = gap_closed([[one, two]], [asked(silent)] * 2, [asked(right)] * 2)
    assert found is not None and found.n == 80 and found.value == pytest.approx(0.25)
    fewer = {key: value for key, value in one.items() if key != "q1"}
    part = gap_closed([[fewer]], [asked(silent)], [asked(right)])
    assert part is not None and part.n == 39
    assert gap_closed([[{}]], [asked(silent)], [asked(right)]) is None


def test_seeds_are_crossed_with_pages() -> None:
    seeds = [[asked(lambda n, share=share: right(n) if n % 10 < share else "")] for share in (2, 5, 8)]
    found = gap_closed(seeds, [asked(silent)], [asked(right)])
    alone = gap_closed(seeds[1:2], [asked(silent)], [asked(right)])
    assert found is not None and alone is not None
    assert found.value == pytest.approx(0.5, abs=0.03) and alone.value == pytest.approx(0.5, abs=0.03)
    assert found.high is not None and alone.high is not None and found.high > alone.high
    assert np.isfinite([found.low, found.high]).all()
