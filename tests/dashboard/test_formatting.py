"""Formatting of numbers, durations and times."""

from __future__ import annotations

import pytest

from dashboard import formatting
from db.records import Score


def test_shares_and_differences() -> None:
    assert (formatting.percent(0.957), formatting.percent(None)) == ("95.7%", "–")
    shown = [formatting.points(value) for value in (0.21, -0.214, 0.0001, -0.0, None)]
    assert shown == ["+21.0", "−21.4", "±0", "±0", "–"]


def test_intervals_say_on_how_many_items_they_rest() -> None:
    assert formatting.interval(Score(0.9, 0.01, 1000)) == "87.9 to 91.8, n = 1,000"
    assert formatting.interval(Score(1.0, 0.0, 60)) == "94.0 to 100.0, n = 60"
    assert formatting.interval(Score(0.9, None, 3)) == "n = 3"
    assert formatting.interval(None) == "not measured"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0, "0.0000"),
        (0.00012, "1.2e-04"),
        (0.0123, "0.0123"),
        (3.14159, "3.14"),
        (512.4, "512"),
        (12_345.0, "12.3k"),
        (2.5e6, "2.50M"),
        (-3.14159, "-3.14"),
    ],
)
def test_metrics(value: float | None, shown: str) -> None:
    assert formatting.number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (78, "1 min 18 s"),
        (120, "2 min"),
        (1900, "31 min"),
        (7380, "2 h 3 min"),
        (3600.0, "1 h"),
        (400_000, "4 days"),
        (None, "–"),
    ],
)
def test_durations(seconds: float | None, shown: str) -> None:
    assert formatting.duration(seconds) == shown


def test_moments_counts_and_memory() -> None:
    assert (formatting.ago(98, now=100), formatting.ago(10, now=100)) == ("just now", "1 min 30 s ago")
    assert [formatting.count(value) for value in (950, 1500, 2.5e6, 3e9)] == ["950", "1.5k", "2.5M", "3.0B"]
    assert (formatting.memory(3 * 2**30), formatting.memory(5 * 2**20)) == ("3.0 GiB", "5 MiB")


def test_a_long_path_is_shown_by_its_end() -> None:
    assert formatting.short_path("/home/me/work/corpora/q1") == "…/corpora/q1"
    assert formatting.short_path("corpora/q1") == "corpora/q1"
    assert formatting.short_path("") == ""
