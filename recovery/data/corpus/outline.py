"""A text in Markdown, written block by block: headings, paragraphs, lists and tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from recovery.data.corpus.html_parts import one_line
from recovery.data.corpus.html_tables import Cell, piped

_DEEPEST_HEADING, _DEEPEST_ITEM = 6, 8
_LONGEST_NAME, _FEW = 8, 3  # words of a header, and of one above a column of longer texts
CODE_STYLE = re.compile(r"\b(?:code|listing|preformatted|verbatim|macro)\b|sourcecode", re.IGNORECASE)
FIXED_FONT = re.compile(r"\b(?:courier|consolas|menlo|monaco|inconsolata)\b|\bmono(?:space)?\b", re.IGNORECASE)
_NUMBER = re.compile(r"[-+(]?\W?\d")


@dataclass
class Outline:
    """The blocks of a text as far as they were written.

    ``_items`` are the depths of the open items and the widths of their signs, ``_numbers`` the last numbers of numbered
    ones by depth, ``_code`` the lines of a block of code that has not ended.
    """

    _blocks: list[str] = field(default_factory=list)
    _items: list[tuple[int, int]] = field(default_factory=list)
    _code: list[str] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All blocks, with blank lines between them."""
        self._end_code()
        return "\n\n".join(self._blocks)

    def heading(self, text: str, level: int) -> None:
        """Add a heading; nothing without text."""
        if text := one_line(text):
            self._add(f"{'#' * min(level, _DEEPEST_HEADING)} {text}")

    def paragraph(self, text: str) -> None:
        """Add a paragraph, with its line breaks."""
        if text.strip():
            self._add("\n".join(line.strip() for line in text.strip().split("\n")))

    def table(self, rows: Sequence[Sequence[Cell]]) -> None:
        """Add a table; one column alone is paragraphs. If no header is marked, the first row may be one."""
        if max((sum(cell.columns for cell in row) for row in rows), default=0) < 2:
            for row in rows:
                self.paragraph("".join(cell.text for cell in row))
            return
        if not any(cell.head for row in rows for cell in row) and names_columns([[c.text for c in r] for r in rows]):
            rows = [[replace(cell, head=True) for cell in rows[0]], *rows[1:]]
        if table := piped(rows):
            self._add(table)

    def block(self, text: str) -> None:
        """Add Markdown as it is; nothing without text."""
        if text.strip():
            self._add(text.strip("\n"))

    def code_line(self, text: str) -> None:
        """Add a line of code; those that follow each other are one block."""
        self._code.append(text.rstrip())

    def item(self, text: str, depth: int = 0, number: int | None = None) -> None:
        """Add an item of a list; one without a number has a bullet."""
        if not (text := one_line(text)):
            return
        self._end_code()
        above = [(at, width) for at, width in self._items if at < depth][:_DEEPEST_ITEM]
        self._numbers = {at: last for at, last in self._numbers.items() if at < depth}
        if number is not None:
            self._numbers[depth] = number
        sign = "- " if number is None else f"{number}. "
        line = " " * sum(width for _, width in above) + sign + text
        if self._items:
            self._blocks[-1] += f"\n{line}"
        else:
            self._blocks.append(line)
        self._items = [*above, (depth, len(sign))]

    def next_number(self, depth: int, first: int = 1) -> int:
        """Return the number of the next numbered item of the open list, ``first`` if it is the first one."""
        return self._numbers.get(depth, first - 1) + 1

    def _add(self, block: str) -> None:
        self._end_code()
        self._blocks.append(block)
        self._items, self._numbers = [], {}

    def _end_code(self) -> None:
        lines, self._code = self._code, []
        if any(lines):
            self._add(fence("\n".join(lines).strip("\n"), ""))


def names_columns(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row of a table, of which nothing marks it, is its header.

    It is short names alone. Of two columns they may also be the first of several pairs of a name and its value, unless
    all that stands below one of them is of another kind: numbers, or texts of several words.
    """
    head, below = rows[0], rows[1:]
    if not below or not all(map(_is_name, head)):
        return False
    columns = [
        [row[at] for row in below if at < len(row) and row[at]] for at in range(len(head))
    ]  # a blank says nothing
    return len(head) > 2 or any(
        column
        and (all(map(_is_number, column)) or (len(column) > 1 and min(map(_words, column)) > _FEW >= _words(name)))
        for name, column in zip(head, columns, strict=True)
    )


def _is_name(text: str) -> bool:
    return bool(text) and not _is_number(text) and text[-1] not in ".!?" and _words(text) <= _LONGEST_NAME


def _is_number(text: str) -> bool:
    return bool(_NUMBER.match(text))


def _words(text: str) -> int:
    return len(text.split())


def cell_text(text: str) -> str:
    """Return a text as it is written in a cell of a table."""
    return one_line(text).replace("|", "\\|")


def formulas_without_value(count: int) -> list[str]:
    """Return the remark on cells that a program wrote without calculating them; none without such cells."""
    many = count > 1
    told = f"{count:,} cell{'s' * many} hold{'s' * (not many)} {'' if many else 'a '}formula{'s' * many}"
    return [f"{told} without a stored value, blank here: open and save the file in a spreadsheet"] if count else []


def fence(code: str, language: str) -> str:
    """Return code between fences that it does not contain."""
    mark = "`" * 3
    while mark in code:
        mark += "`"
    return f"{mark}{language}\n{code}\n{mark}"


def raised(text: str, before: str) -> str:
    """Return a superscript behind a text: a number with the sign of a power, without which it would be misread."""
    power = re.fullmatch(r"[-+−]?\d+", text) and before[-1:].isalnum()
    return f"^{text}" if power else text
