"""Responses side by side, with differences from the first one marked."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from dashboard.markup import esc

_MOST = 100_000  # pairs of equal words, which the time of a comparison grows with; above, responses are shown unmarked
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
    if sum(count * counts[word] for word, count in Counter(one).items()) > _MOST:
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
