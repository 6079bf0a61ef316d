"""A text in Markdown, written block by block: headings, paragraphs, lists, and tables of merged cells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise, takewhile, zip_longest
from typing import Any

from recovery.data.corpus.html_parts import one_line, picture
from recovery.data.corpus.sentences import running, split_sentences
from recovery.data.corpus.text import words

# Tables of HTML pages as Markdown: which ones hold data, their header, and cells that span columns and rows.

CELLS = words("td th")
_LONGEST_CELL = 2_000  # characters: a table with a longer cell is used for the layout of a page
_IN_LAYOUTS = ("table", "pre", "hr", "dl", "h1", "h2", "h3", "h4", "h5", "h6")  # elements only such a table contains


@dataclass
class Cell:
    """A cell of a table: its text, how many columns and rows it spans, and whether it is one of a header."""

    text: str
    columns: int
    rows: int
    head: bool


def is_data(table: Any) -> bool:
    """Return whether a table holds data: several columns of short cells and, without a header, no prose.

    Other tables are used for layout, also one with a single text in each row: DocBook puts a note beside its icon so.
    """
    if table.get("role") == "presentation" or next(table.iterdescendants(*_IN_LAYOUTS), None) is not None:
        return False
    rows = [[cell for cell in row if cell.tag in CELLS] for row in table.iterdescendants("tr")]
    longest = max((sum(map(len, cell.itertext())) for row in rows for cell in row), default=0)
    filled_cells = max((sum(map(_has_text, row)) for row in rows if len(row) > 1), default=0)
    if filled_cells < 2 or longest > _LONGEST_CELL:
        return False
    has_header = next(table.iterdescendants("th", "thead"), None) is not None
    return has_header or not any(_holds_prose(cell) for row in rows for cell in row)


def _has_text(cell: Any) -> bool:
    """Return whether a cell of a table has text."""
    return any(map(str.strip, cell.itertext())) or any(map(picture, cell.iterdescendants("img")))


def _holds_prose(cell: Any) -> bool:
    """Return whether a cell of a table holds several paragraphs, lists or sentences."""
    if len(list(islice(cell.iterdescendants("p", "ul", "ol"), 2))) > 1:
        return True
    parts = split_sentences(one_line("".join(cell.itertext())))
    return len(parts) > 1 and any(map(running, parts))


def span(cell: Any, name: str) -> int:
    value = cell.get(name) or ""
    return max(1, int(value)) if re.fullmatch(r"[0-9]{1,4}", value) else 1


def piped(rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table in Markdown, or "" if it has no text. Without a header its first row is empty.

    A title across the whole table is written above it. A new header within it begins another table.
    """
    titles = _titles(rows)
    parts = (_single_table(part) for part in _header_parts(rows[len(titles) :]))
    return "\n\n".join(part for part in (*titles, *parts) if part)


def _titles(rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Return the texts of the first rows that are one cell across the whole table, if there are others below."""
    width = max((sum(cell.columns for cell in row) for row in rows if len(row) > 1), default=1)
    titles = list(takewhile(lambda row: len(row) == 1 and row[0].columns >= width > 1, rows))
    return [row[0].text for row in titles]


def _header_parts(rows: Sequence[Sequence[Cell]]) -> Iterator[Sequence[Sequence[Cell]]]:
    """Yield the parts of a table, each with another header than the part above."""
    starts, header = [0], None
    for number, row in enumerate(rows):
        heads = [cell.text for cell in row if cell.text] if all(cell.head for cell in row) else []
        if len(heads) > 1:
            header = header or heads
            below = rows[number + 1 : number + 2]
            new = heads != header and below and not all(cell.head for cell in below[0])
            if new and not all(cell.head for cell in rows[number - 1]):
                starts.append(number)
                header = heads
    for start, end in pairwise([*starts, len(rows)]):
        yield rows[start:end]


def _single_table(rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table with one header. Rows of heads that repeat it are left out."""
    if not any(cell.text for row in rows for cell in row):
        return ""
    heads = _heads(rows)
    lines = list(_expanded(rows, heads))
    section_names = [name for line in lines[1:heads] if (name := _names(line))]  # the first part of the table
    column_heads = [line for number, line in enumerate(lines[:heads]) if number == 0 or not _names(line)]
    header = [" ".join(dict.fromkeys(filter(None, column))) for column in zip_longest(*column_heads, fillvalue="")]
    head_lines = {tuple(line) for line in (header, *lines[:heads])}
    below = [(row, line) for row, line in zip(rows[heads:], lines[heads:], strict=True) if any(c.text for c in row)]
    body = [[name, *[""] * (len(header) - 1)] for name in section_names]
    body += [line for row, line in below if not all(cell.head for cell in row) or tuple(line) not in head_lines]
    width = max(map(len, [header, *body]))
    table = [header + [""] * (width - len(header)), ["---"] * width, *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in table)


def _heads(rows: Sequence[Sequence[Cell]]) -> int:
    """Return the number of header rows; a table of only heads has one, its first row with text."""
    first = next(number for number, row in enumerate(rows) if any(cell.text for cell in row))
    if not all(cell.head for cell in rows[first] if cell.text):
        return 0
    below = range(first + 1, len(rows))
    return next((number for number in below if not all(cell.head for cell in rows[number])), first + 1)


def _names(line: Sequence[str]) -> str:
    """Return the one text of a row, which names the rows below it, or "" if there are others."""
    texts = {*line} - {""}
    return texts.pop() if len(texts) == 1 else ""


def _expanded(rows: Sequence[Sequence[Cell]], heads: int) -> Iterator[list[str]]:
    """Yield the cells of each row, one per column; a cell that spans several rows is repeated in each.

    In a header of several rows (``heads``), a cell that spans several columns is repeated in each, too.
    """
    heads = heads if heads > 1 else 0
    written_size = sum(len(cell.text) + 3 for row in rows for cell in row)
    expanded_size = sum(
        (len(cell.text) * (cell.columns if number < heads else 1) + 3 * cell.columns) * min(cell.rows, len(rows))
        for number, row in enumerate(rows)
        for cell in row
    )
    if expanded_size > 20 * written_size + 10_000:  # spans of a few bytes could make a table of gigabytes
        yield from ([cell.text for cell in row] for row in rows)
        return
    above: dict[int, tuple[int, list[str]]] = {}  # by column: the number of further rows, and the cells
    for number, row in enumerate(rows):
        before, above = above, {}
        line: list[str] = []
        remaining, last = list(reversed(row)), max(before, default=-1)
        while remaining or len(line) <= last:
            at = len(line)
            if at in before:
                more, cells = before[at]
            elif remaining:
                cell = remaining.pop()
                more, cells = cell.rows, [cell.text, *[cell.text if number < heads else ""] * (cell.columns - 1)]
            else:
                more, cells = 1, [""]
            if more > 1:
                above[at] = (more - 1, cells)
            line += cells
        yield line


_DEEPEST_HEADING, _DEEPEST_ITEM = 6, 8
_LONGEST_NAME, _FEW = 8, 3  # words of a header, and of one above a column of longer texts
CODE_STYLE = re.compile(r"\b(?:code|listing|preformatted|verbatim|macro)\b|sourcecode", re.IGNORECASE)
FIXED_FONT = re.compile(r"\b(?:courier|consolas|menlo|monaco|inconsolata)\b|\bmono(?:space)?\b", re.IGNORECASE)
_NUMBER = re.compile(r"[-+(]?\W?\d")


@dataclass
class Outline:
    """The blocks of a text so far.

    ``_items`` are the depths of the open items and the widths of their signs, ``_numbers`` the last item numbers by
    depth, ``_code`` the lines of a block of code that has not ended.
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
        """Add a heading, unless it is empty."""
        if text := one_line(text):
            self._add(f"{'#' * min(level, _DEEPEST_HEADING)} {text}")

    def paragraph(self, text: str) -> None:
        """Add a paragraph, with its line breaks."""
        if text.strip():
            self._add("\n".join(line.strip() for line in text.strip().split("\n")))

    def table(self, rows: Sequence[Sequence[Cell]]) -> None:
        """Add a table; a single column becomes paragraphs. If no header is marked, the first row may be one."""
        if max((sum(cell.columns for cell in row) for row in rows), default=0) < 2:
            for row in rows:
                self.paragraph("".join(cell.text for cell in row))
            return
        if not any(cell.head for row in rows for cell in row) and names_columns([[c.text for c in r] for r in rows]):
            rows = [[replace(cell, head=True) for cell in rows[0]], *rows[1:]]
        if table := piped(rows):
            self._add(table)

    def block(self, text: str) -> None:
        """Add Markdown as it is, unless it is empty."""
        if text.strip():
            self._add(text.strip("\n"))

    def code_line(self, text: str) -> None:
        """Add a line of code; consecutive lines are one block."""
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
    """Return whether the first row of a table without a marked header is its header.

    Its cells must be short names. With two columns the row could also be a pair of a name and its value, unless all
    cells below one of the names are of another kind: numbers, or texts of several words.
    """
    names, below = rows[0], rows[1:]
    if not below or not all(map(_is_name, names)):
        return False
    columns = [[row[at] for row in below if at < len(row) and row[at]] for at in range(len(names))]
    return len(names) > 2 or any(
        column
        and (all(map(is_number, column)) or (len(column) > 1 and min(map(_words, column)) > _FEW >= _words(name)))
        for name, column in zip(names, columns, strict=True)
    )


def _is_name(text: str) -> bool:
    return bool(text) and not is_number(text) and text[-1] not in ".!?" and _words(text) <= _LONGEST_NAME


def is_number(text: str) -> bool:
    """Return whether a text begins like a number."""
    return bool(_NUMBER.match(text))


def _words(text: str) -> int:
    return len(text.split())


def cell_text(text: str) -> str:
    """Return a text as it is written in a cell of a table."""
    return one_line(text).replace("|", "\\|")


def formulas_without_value(count: int) -> list[str]:
    """Return the remark on formulas that were saved without a calculated value; [] if ``count`` is 0."""
    subject = f"{count:,} cells hold formulas" if count > 1 else f"{count:,} cell holds a formula"
    return [f"{subject} without a stored value, blank here: open and save the file in a spreadsheet"] if count else []


def fence(code: str, language: str) -> str:
    """Return code between fences that it does not contain."""
    mark = "`" * 3
    while mark in code:
        mark += "`"
    return f"{mark}{language}\n{code}\n{mark}"


def raised(text: str, before: str) -> str:
    """Return a superscript after a text; a number gets "^", since it would be misread as further digits."""
    power = re.fullmatch(r"[-+−]?\d+", text) and before[-1:].isalnum()
    return f"^{text}" if power else text
