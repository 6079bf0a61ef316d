"""The blocks of Markdown that lines tell: fenced code, tables, and what ends a paragraph without a blank line."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Fences may stand in quotes and begin list items. Within backticks no backtick follows: "```npm i``` installs it".
_FENCE = re.compile(r"(?P<before>[ \t]*(?:>[ \t]*)*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*)(?P<mark>`{3,}(?=[^`]*$)|~{3,})")
_MOST_UNCLOSED = 50  # kinds of fences that are searched for in vain, each through the rest of the text
_MOST_DEEPER = 3  # spaces by which a closing fence may be indented more than the opening one
# One column alone needs two dashes: "|-" divides the rows of a MediaWiki table.
_TABLE_RULE = re.compile(
    r"^\s*(?:\|\s*)?:?(?:-{2,}:?\s*|-:?\s*(?=\|\s*[:-]))(?:\|\s*:?-+:?\s*)*(?:\|\s*)?$"
)  # each part begins with another character, so that long runs take linear time
ITEM = re.compile(r"\s*(?:[-*+•]|\d+[.)])(?:\s+|$)")
_FIRST_ITEM = re.compile(r"\s*(?:[-*+•]|1[.)])\s+\S")
_QUOTE = re.compile(r" {0,3}>(?!>>)")
BREAK = re.compile(r" {0,3}(?:-{3,}|\*{3,}|_{3,})\s*")


def code_lines(lines: Sequence[str]) -> list[bool]:
    """Return for each line whether it belongs to fenced code, fences included.

    The rules are those of CommonMark, but a fence that is never closed reaches to the next blank line only, since the
    rest of such a page is mostly text, and a closing fence may be indented less than the opening one. A line of tildes
    below a text is the underline of a heading (reStructuredText).
    """
    found = [False] * len(lines)
    unclosed: set[tuple[str, int, int]] = set()  # character, length and depth; no fence like one is searched for
    number = 0
    while number < len(lines):
        end = number
        if opened := _opens(lines, number):
            end = _end(lines, number, opened, unclosed)
            found[number : end + 1] = [True] * (end + 1 - number)
        number = end + 1
    return found


def _opens(lines: Sequence[str], number: int) -> re.Match[str] | None:
    fence = _FENCE.match(lines[number])
    above = lines[number - 1].strip() if number else ""
    if fence and above and lines[number].strip().strip("~") == "":
        # As in docutils: an underline shorter than its title has at least four characters.
        return fence if len(fence["mark"]) < min(4, len(above)) else None
    return fence


def _end(lines: Sequence[str], start: int, opened: re.Match[str], unclosed: set[tuple[str, int, int]]) -> int:
    """Return the number of the last line of the code that is opened in line ``start``."""
    mark, quoted = opened["mark"], ">" in opened["before"]
    deepest = _width(opened["before"]) + _MOST_DEEPER
    hopeless = any(c == mark[0] and n <= len(mark) and depth >= deepest for c, n, depth in unclosed)
    searched = quoted or not (hopeless or len(unclosed) == _MOST_UNCLOSED)
    for number in range(start + 1, len(lines)) if searched else ():
        line = lines[number]
        if quoted and not line.lstrip().startswith(">"):
            return number - 1  # the end of the quote
        rest = line.lstrip(" \t>" if quoted else " \t")
        closing = rest.startswith(mark) and not rest.strip(f"{mark[0]} \t")
        if closing and _width(line[: len(line) - len(rest)]) <= deepest:
            return number
    if quoted:
        return len(lines) - 1
    if searched:
        unclosed.add((mark[0], len(mark), deepest))
    return next((n for n in range(start, len(lines)) if not lines[n].strip()), len(lines)) - 1


def _width(before: str) -> int:
    return len(before.expandtabs(4))


def fenced(blocks: Sequence[str]) -> list[bool]:
    """Return for each of the ``paragraphs`` of a text whether it is inside of fenced code or has a fence."""
    lines = [line for block in blocks for line in [*block.split("\n"), ""]]
    code = iter(code_lines(lines))
    return [any([next(code) for _ in [*block.split("\n"), ""]][:-1]) for block in blocks]


def begins_table(lines: Sequence[str], number: int) -> bool:
    """Return whether a line is the header of a table: the next one has the dashes below it."""
    if number + 1 >= len(lines) or "|" not in lines[number] or "|" not in lines[number + 1]:
        return False
    return bool(_TABLE_RULE.match(lines[number + 1]))


def ends_paragraph(lines: Sequence[str], number: int, *, in_list: bool = False) -> bool:
    """Return whether a line begins a list item, quote, table or thematic break directly below other lines.

    Below a paragraph a numbered list begins with 1, as in CommonMark: "in\\n1986. It ..." is text. So is a single
    line with a bullet in the middle of a sentence: "a sum of\\n+ 500 dollars".
    """
    line = lines[number]
    if (ITEM if in_list else _FIRST_ITEM).match(line) and (in_list or _begins_list(lines, number)):
        return True
    if BREAK.fullmatch(line):
        return True
    if _QUOTE.match(line) and not _QUOTE.match(lines[number - 1]):
        return True
    return begins_table(lines, number)


def _begins_list(lines: Sequence[str], number: int) -> bool:
    """Return whether an item directly below text begins a list: the text has ended, or another item follows."""
    above = lines[number - 1].rstrip()
    return above.endswith((":", ".", ";", "!", "?", "*", ")")) or any(ITEM.match(line) for line in lines[number + 1 :])
