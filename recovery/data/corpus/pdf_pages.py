"""The text of a PDF file from those of its pages: without running headers and footers, with sentences across pages."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

_HYPHENATED = re.compile(r"([\w-]{0,60}\w)-\n(\w)")
_NUMBER = re.compile(r"\d+|\b[ivxl]+\b")
_DEEPEST = 3  # lines of a header or a footer
_NEAR, _FEWEST = 4, 3  # pages: within so many, a line stands on at least so many if it is one of a header


def joined_pages(pages: Sequence[str]) -> str:
    """Return the text of all pages; words that were split at the end of a line are whole."""
    bare = _without_running_lines([page.split("\n") for page in pages])
    text = ""
    for page in ("\n".join(lines).strip() for lines in bare):
        broken = text[-1:].isalnum() or text[-1:] in (",", ";", "-")  # and the sentence goes on
        text += ("" if not text or not page else "\n" if broken and page[0].islower() else "\n\n") + page
    return _HYPHENATED.sub(_joined, text)


def _without_running_lines(pages: list[list[str]]) -> list[list[str]]:
    """Return the lines of each page without those that begin or end several pages, apart from their numbers."""
    for edge in (0, -1) * _DEEPEST:
        pages = [_trimmed(lines) for lines in pages]
        places = defaultdict(list)
        for number, lines in enumerate(pages):
            if lines:
                places[_NUMBER.sub("#", lines[edge].strip())].append(number)
        running = {
            number
            for key, found in places.items()
            for number in found
            if sum(abs(other - number) <= _NEAR for other in found) >= _FEWEST and _counts(key, found, pages, edge)
        }
        if edge == 0:
            pages = [lines[1:] if number in running else lines for number, lines in enumerate(pages)]
        else:
            pages = [lines[:-1] if number in running else lines for number, lines in enumerate(pages)]
    return pages


def _trimmed(lines: list[str]) -> list[str]:
    filled = [number for number, line in enumerate(lines) if line.strip()]
    return lines[filled[0] : filled[-1] + 1] if filled else []


def _counts(key: str, found: Sequence[int], pages: Sequence[Sequence[str]], edge: int) -> bool:
    """Return whether lines of a number alone are numbers of pages: no two are the same."""
    return key != "#" or len({pages[number][edge].strip() for number in found}) == len(found)


def _joined(split: re.Match[str]) -> str:
    """Return a word that was split at the end of a line; a compound keeps its hyphen, and so do numbers and names."""
    before, after = split.groups()
    if not (before[-1].islower() and after.islower()):
        return split[0]
    return f"{before}-{after}" if "-" in before else before + after
