"""Responses side by side, with differences from the first one marked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from dashboard.markup import esc

_LONGEST = 4_000_000  # product of two lengths in words; longer responses are shown unmarked


def beside(columns: Iterable[tuple[str, str]]) -> str:
    """Return columns of (title, HTML), which wrap on narrow screens."""
    shown = (f'<div class="answer"><h3>{esc(title)}</h3>{body}</div>' for title, body in columns)
    return f'<div class="answers">{"".join(shown)}</div>'


def answer(text: str, first: str | None = None) -> str:
    """Return a response as HTML; with ``first``, words that differ from it are marked."""
    shown = esc(text) if first is None else _marked(first, text)
    return f"<pre>{shown or '<i>(nothing)</i>'}</pre>"


def _marked(before: str, after: str) -> str:
    one, two = re.findall(r"\s+|[^\s]+", before), re.findall(r"\s+|[^\s]+", after)
    if len(one) * len(two) > _LONGEST:
        return esc(after)
    shown = []
    for operation, _, _, start, end in difflib.SequenceMatcher(None, one, two, autojunk=False).get_opcodes():
        text = esc("".join(two[start:end]))
        shown.append(text if operation == "equal" or not text.strip() else f"<mark>{text}</mark>")
    return "".join(shown)
