"""Paired comparisons: lost and won items counted by hand, and Holm's correction over the types."""

from __future__ import annotations

import pytest

from evals.paired_tests import Judged, by_type, compare, corrected, judged


def items(*scores: float) -> dict[str, Judged]:
    return {f"i{n}": Judged(score) for n, score in enumerate(scores)}


def test_what_was_lost_and_won_is_counted_on_the_items_that_both_answered() -> None:
    first = items(1, 1, 1, 0, 0, 1)
    second = items(1, 0, 0, 1, 0)  # the sixth item is missing
    found = compare("suite", first, second)
    assert found is not None
    assert (found.n, found.lost, found.won) == (5, 2, 1)
    assert (found.first, found.second, found.difference) == (0.6, 0.4, pytest.approx(-0.2))
    assert found.low <= found.difference <= found.high
    assert found.p_value == pytest.approx(1.0)  # 2 against 1 of 3 discordant pairs
    assert compare("suite", first, {"other": Judged(1)}) is None


def test_a_clear_loss_is_distinguished_from_chance() -> None:
    found = compare("suite", items(*[1] * 40), items(*[0] * 10, *[1] * 30))
    assert found is not None and found.p_value == pytest.approx(2 * 0.5**10)
    assert found.high < 0


def test_graded_scores_have_no_mcnemar() -> None:
    found = compare("f1", items(0.5, 0.7), items(0.6, 0.7))
    assert found is not None and (found.lost, found.won, found.p_value) == (None, None, None)
    assert corrected([found])[0].p_adjusted is None


def test_types_are_ordered_by_what_was_lost_and_corrected_together() -> None:
    def one(comma: bool, title: bool) -> Judged:
        return Judged(float(comma and title), "", {"no_comma": comma, "no_comma (2)": True, "title": title})

    first = {f"i{n}": one(True, True) for n in range(12)}
    second = {f"i{n}": one(False, n > 0) for n in range(12)}
    comma, title = by_type(first, second)
    assert (comma.name, comma.n, comma.lost) == ("no_comma", 24, 12)  # a repeated instruction counts as one more
    assert (title.name, title.lost, title.won) == ("title", 1, 0)
    assert comma.p_value == pytest.approx(2 * 0.5**12) and comma.p_adjusted == pytest.approx(4 * 0.5**12)
    assert title.p_adjusted == pytest.approx(1.0)


def test_only_what_the_headline_counts_is_compared() -> None:
    rows = [("a", 1.0, "g", {"x": 1}, {}), ("b", None, "", {}, {}), ("c", 0.0, "", {}, {"headline": False})]
    assert judged(rows) == {"a": Judged(1.0, "g", {"x": True})}


def test_items_that_share_a_document_are_no_independent_trials() -> None:
    """All losses are in two of eight documents: McNemar's test, which ignores the clusters, is significant."""
    first = {f"{d}-{n}": Judged(1.0, f"d{d}") for d in range(8) for n in range(20)}
    second = {f"{d}-{n}": Judged(float(d % 4 > 0), f"d{d}") for d in range(8) for n in range(20)}
    found = compare("domain", first, second)
    alone = compare("domain", *({key: Judged(one.score) for key, one in side.items()} for side in (first, second)))
    assert found is not None and found.p_value is not None and alone is not None and alone.p_value is not None
    assert alone.p_value < 1e-9 and found.p_value > 0.05 and found.high >= 0.0
    assert (found.lost, found.won) == (alone.lost, alone.won) == (40, 0)


@pytest.mark.parametrize(("before", "after"), [(1.0, 0.0), (0.0, 1.0)], ids=["lost", "won"])
def test_a_change_in_every_document_is_no_chance(before: float, after: float) -> None:
    sides = [
        {f"{d}-{n}": Judged(changed if n < 5 + d % 3 else 0.0, f"d{d}") for d in range(8) for n in range(10)}
        for changed in (before, after)
    ]
    found = compare("domain", *sides)
    assert found is not None and found.p_value is not None and found.p_value < 1e-3
