"""Answers beside each other, what differs from the first one's marked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from dashboard.markup import esc

_LONGEST = 4_000_000  # products of two lengths in words; longer answers are shown as they are


def beside(columns: Iterable[tuple[str, str]]) -> str:
    """Columns of (title, HTML), which wrap where there is no room."""
    shown = (f'<div class="answer"><h3>{esc(title)}</h3>{body}</div>' for title, body in columns)
    return f'<div class="answers">{"".join(shown)}</div>'


def answer(text: str, first: str | None = None) -> str:
    """An answer as HTML; with ``first`` the words are marked that it does not have in their place."""
    shown = esc(text) if first is None else _marked(first, text)
    return f"<pre>{shown or '<i>(nothing)</i>'}</pre>"


def _marked(before: str, after: str) -> str:
    one, two = re.findall(r"\s+|[^\s]+", before), re.findall(r"\s+|[^\s]+", after)
    if len(one) * len(two) > _LONGEST:
        return esc(after)
    shown = []
    for what, _, _, start, end in difflib.SequenceMatcher(None, one, two, autojunk=False).get_opcodes():
        text = esc("".join(two[start:end]))
        shown.append(text if what == "equal" or not text.strip() else f"<mark>{text}</mark>")
    return "".join(shown)
