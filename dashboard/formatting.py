"""Formatting of numbers, durations and times for readers, and of two answers with their differences."""

from __future__ import annotations

import difflib
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from dashboard.markup import esc
from db import cycle_answers
from db.records import Score, interval_of, is_share

DASH = "–"


def percent(value: float | None, digits: int = 1) -> str:
    """Format a share as a percentage."""
    return DASH if value is None else f"{100 * value:.{digits}f}%"


def points(difference: float | None) -> str:
    """Format a difference of shares in percentage points, with its sign."""
    return DASH if difference is None else cycle_answers.points(difference)


def share(score: Score | None, digits: int = 1) -> str:
    """Format a score as a percentage."""
    return percent(score.value if score else None, digits)


def value(score: Score | None, suite: str) -> str:
    """Format a suite's score: a share as a percentage, else a number."""
    return share(score) if score is None or is_share(suite, score) else number(score.value)


def interval(score: Score | None, suite: str = "") -> str:
    """Format the 95% interval of a score, of a share in percent, and its number of items.

    ``suite`` is needed if the score may not be a share.
    """
    if score is None:
        return "not measured"
    low, high = interval_of(suite, score) or (None, None)
    if low is None or high is None:
        bounds = ""
    elif is_share(suite, score):
        bounds = f"{100 * low:.1f} to {100 * high:.1f}, "
    else:
        bounds = f"{number(low)} to {number(high)}, "
    return f"{bounds}n = {score.n:,}"


def asked(numbers: Sequence[int]) -> str:
    """Format the numbers of items of several scores: one number if all are equal."""
    return " / ".join(f"{n:,}" for n in (numbers[:1] if len(set(numbers)) == 1 else numbers)) or DASH


def probability(value: float | None) -> str:
    """Format a p-value."""
    return DASH if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def number(value: float | None) -> str:
    """Format a metric's value in about five characters."""
    if value is None:
        return DASH
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.2f}M"
    if size >= 10_000:
        return f"{value / 1e3:.1f}k"
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.4f}" if size >= 0.001 or value == 0 else f"{value:.1e}"


def count(value: float) -> str:
    """Format a large integer with a unit: k, M or B."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def duration(seconds: float | None) -> str:
    """Format a duration in its two largest units."""
    if seconds is None:
        return DASH
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    minutes, seconds_left = divmod(rounded, 60)
    if minutes < 60:
        return f"{minutes} min {seconds_left} s" if seconds_left and minutes < 10 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} days"


def ago(moment: float, now: float | None = None) -> str:
    """Format the time since a moment."""
    passed = (time.time() if now is None else now) - moment
    return "just now" if passed < 5 else f"{duration(passed)} ago"


def memory(size: float) -> str:
    """Format an amount of memory in MiB or GiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def short_path(path: str) -> str:
    """Return the end of a long path: ``/home/me/work/corpora/q1`` as ``…/corpora/q1``."""
    pieces = path.split("/")
    return path if len(pieces) <= 3 else "…/" + "/".join(pieces[-2:])


# Responses side by side, with differences from the first one marked.

_MOST_PAIRS = 100_000  # of equal words: the time of a comparison grows with them; above, nothing is marked
_WORD = re.compile(r"\s*\S+|\s+$")  # with the space before it: spaces alone would all be equal


def beside(columns: Iterable[tuple[str, str]]) -> str:
    """Return columns of (title, HTML), which wrap on narrow screens."""
    shown = (f'<div class="answer"><h3>{esc(title)}</h3>{body}</div>' for title, body in columns)
    return f'<div class="answers">{"".join(shown)}</div>'


def answer(text: str, first: str | None = None) -> str:
    """Return a response as HTML; with ``first``, words that differ from it are marked."""
    return _shown(esc(text) if first is None else _marked(first, text)[1])


def both(one: str, other: str) -> tuple[str, str]:
    """Return two responses as HTML; in each, the words that the other does not have there are marked."""
    before, after = _marked(one, other)
    return _shown(before), _shown(after)


def _shown(html: str) -> str:
    return f"<pre>{html or '<i>(nothing)</i>'}</pre>"


def _marked(before: str, after: str) -> tuple[str, str]:
    one, two = _WORD.findall(before), _WORD.findall(after)
    counts = Counter(two)
    if sum(count * counts[word] for word, count in Counter(one).items()) > _MOST_PAIRS:
        return esc(before), esc(after)
    codes = difflib.SequenceMatcher(None, one, two, autojunk=False).get_opcodes()
    return (
        "".join(_part(one[begin:end], operation == "equal") for operation, begin, end, _, _ in codes),
        "".join(_part(two[begin:end], operation == "equal") for operation, _, _, begin, end in codes),
    )


def _part(words: Sequence[str], equal: bool) -> str:
    text = "".join(words)
    marked = text.lstrip()
    if equal or not marked:
        return esc(text)
    return f"{esc(text[: -len(marked)])}<mark>{esc(marked)}</mark>"
