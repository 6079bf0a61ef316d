"""OpenDocument texts and spreadsheets as Markdown.

Of texts: headings, lists, tables, notes and text boxes; not what a tracked change deleted, comments, tables of
contents, headers and footers. Spreadsheets are written like workbooks (:mod:`xlsx_files`): cells as they are displayed,
dates as 2026-11-28. Cells with a formula that has no stored value are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from recovery.data.corpus.documents import UnreadableError
from recovery.data.corpus.html_parts import one_line
from recovery.data.corpus.outline import (
    CODE_STYLE,
    FIXED_FONT,
    Cell,
    Outline,
    cell_text,
    formulas_without_value,
    raised,
)
from recovery.data.corpus.xlsx_files import Row, Sheet, sheets_text
from recovery.data.corpus.xml_archives import XmlArchive, attribute, local

_UNSEEN = (
    "tracked-changes annotation annotation-end table-of-content illustration-index table-index object-index user-index "
    "alphabetical-index bibliography sequence-decls forms desc title"
).split()
_WITHIN = ("section", "list-item", "list-header", "text-box", "numbered-paragraph", "index-body", "frame")
_RAISED = re.compile(r"super\b|0*[1-9]\d*%")
_CODE = "code"  # the name of any style of code
_VALUES = ("value", "string-value", "date-value", "time-value", "boolean-value")  # of a cell without a displayed text
_LONGEST_RUN = 1_000  # spaces, columns or rows that one element stands for
_MOST_CELLS = 200  # columns of a table
_MOST_DEEP = 100  # elements within each other


def read_odt(data: bytes, fallback_title: str) -> tuple[str, str, list[str]]:
    """Return the title of a text, the text and remarks. ``fallback_title`` is used if it has none."""
    root, title, reading = open_document(XmlArchive(data, "ODT"))
    reading.read(root.find("{*}body/{*}text"))
    return title or fallback_title, reading.outline.text, formulas_without_value(reading.blanks)


def open_document(archive: XmlArchive) -> tuple[Any, str, Reading]:
    """Return the content of an OpenDocument file, its title or "", and the reader of its paragraphs."""
    manifest = archive.xml_or_none("META-INF/manifest.xml")
    if manifest is not None and next(manifest.iter("{*}encryption-data"), None) is not None:
        raise UnreadableError("protected by a password")
    root = archive.xml("content.xml")
    meta = archive.xml_or_none("meta.xml")
    title = "" if meta is None else one_line(meta.findtext("{*}meta/{*}title") or "")
    styles = archive.xml_or_none("styles.xml")
    roots = [root, *([] if styles is None else [styles])]
    return root, title, Reading(_numbered(roots), _named_styles(roots), _raised_styles(roots))


def _numbered(roots: list[Any]) -> set[tuple[str, int]]:
    """Return the levels of the styles of lists that have numbers, by name and depth."""
    return {
        (attribute(style, "name"), int(attribute(level, "level", "1")) - 1)
        for root in roots
        for style in root.iterfind(".//{*}list-style")
        for level in style.iterfind("{*}list-level-style-number")
        if attribute(level, "num-format")
    }


def _named_styles(roots: list[Any]) -> dict[str, str]:
    """Return the display name of each style; an automatic style has that of the style it is derived from."""
    styles = [style for root in roots for style in root.iterfind("*/{*}style")]
    name_of = partial(attribute, name="name")
    display_names = {name_of(style): attribute(style, "display-name") or name_of(style) for style in styles}
    parents = {name_of(style): attribute(style, "parent-style-name") for style in roots[0].iterfind("*/{*}style")}
    names = {name: display_names.get(parent, parent) for name, parent in parents.items() if parent}
    names = {name: style.replace("_20_", " ") for name, style in {**display_names, **names}.items()}
    fixed = {name for style in filter(_is_fixed, styles) for name in (name_of(style), display_names[name_of(style)])}
    return {name: _CODE if name in fixed or style in fixed else style for name, style in names.items()}


def _is_fixed(style: Any) -> bool:
    """Return whether a style has a fixed-width font, as code has."""
    fonts = style.find("{*}text-properties")
    return fonts is not None and any(FIXED_FONT.search(attribute(fonts, name)) for name in ("font-name", "font-family"))


def _raised_styles(roots: list[Any]) -> set[str]:
    """Return the styles of superscripts: position "super 58%", or a share of the height of a line."""
    texts = [text for root in roots for text in root.iterfind("*/{*}style/{*}text-properties")]
    return {attribute(text.getparent(), "name") for text in texts if _RAISED.match(attribute(text, "text-position"))}


@dataclass
class Reading:
    """The text as far as it was read. ``_later`` are the notes and boxes of a paragraph, which follow it.

    ``blanks`` counts the cells whose formula has no stored value.
    """

    numbered: set[tuple[str, int]]
    styles: dict[str, str]
    raised: set[str]
    outline: Outline = field(default_factory=Outline)
    blanks: int = 0
    _later: list[Any] = field(default_factory=list)

    def read(self, element: Any, depth: int = 0) -> None:
        """Add the blocks of an element."""
        for child in element if element is not None and depth <= _MOST_DEEP else ():
            name = local(child)
            if name == "h":
                self.outline.heading(self._words(child), int(attribute(child, "outline-level", "1")))
            elif name == "p":
                self._paragraph(child)
            elif name == "list":
                self._list(child, "", 0)
            elif name == "table":
                self.outline.table(list(self._rows(child)))
            elif name in _WITHIN:
                self.read(child, depth + 1)
            self._finish(depth)

    def _paragraph(self, element: Any) -> None:
        style, words = attribute(element, "style-name"), self._words(element)
        name = self.styles.get(style, style.replace("_20_", " "))
        if CODE_STYLE.search(name):
            self.outline.code_line(words)
        elif name == "Title":
            self.outline.heading(words, 1)
        else:
            self.outline.paragraph(words)

    def _finish(self, depth: int) -> None:
        later, self._later = self._later, []
        for element in later:
            self.read(element, depth + 1)

    def _list(self, element: Any, style: str, depth: int) -> None:
        style = attribute(element, "style-name") or style
        for item in element:
            first = local(item) == "list-item"
            for child in item:
                if local(child) == "list" and depth < _MOST_DEEP:
                    self._list(child, style, depth + 1)
                elif local(child) == "h":
                    self.outline.heading(self._words(child), int(attribute(child, "outline-level", "1")))
                elif local(child) == "p" and (words := self._words(child)).strip():
                    if first:
                        start = int(attribute(item, "start-value", "1"))
                        number = self.outline.next_number(depth, start) if (style, depth) in self.numbered else None
                        self.outline.item(words, depth, number)
                    else:
                        self.outline.paragraph(words)
                    first = False
            self._finish(depth)

    def _words(self, element: Any, depth: int = 0) -> str:
        """Return the text of a paragraph; its notes and boxes are set aside."""
        parts = [element.text or ""]
        for child in element if depth < _MOST_DEEP else ():
            name = local(child)
            if name == "s":
                parts.append(" " * min(int(attribute(child, "c", "1")), _LONGEST_RUN))
            elif name in ("tab", "line-break"):
                parts.append("\t" if name == "tab" else "\n")
            elif name == "note":
                self._later += child.iterfind("{*}note-body")
            elif name == "frame":
                self._later += child.iterfind("{*}text-box")
            elif name == "ruby":
                base = child.find("{*}ruby-base")
                parts.append("" if base is None else self._words(base, depth + 1))
            elif name == "span" and attribute(child, "style-name") in self.raised:
                parts.append(raised(self._words(child, depth + 1), "".join(parts[-1:])))
            elif name not in _UNSEEN:
                parts.append(self._words(child, depth + 1))
            parts.append(child.tail or "")
        return "".join(parts)

    def _rows(self, table: Any, *, head: bool = False) -> Iterator[list[Cell]]:
        for child in table:
            name = local(child)
            if name == "table-header-rows":
                yield from self._rows(child, head=True)
            elif name in ("table-rows", "table-row-group"):
                yield from self._rows(child)
            elif name == "table-row":
                row = list(self._cells(child, head))
                yield from [row] * (min(int(attribute(child, "number-rows-repeated", "1")), 10) if any(row) else 1)

    def _cells(self, row: Any, head: bool) -> Iterator[Cell]:
        room = _MOST_CELLS
        for cell in row:
            repeated = min(int(attribute(cell, "number-columns-repeated", "1")), room)
            if local(cell) != "table-cell" or room <= 0:
                continue
            text = self.cell(cell)
            columns, rows = (int(attribute(cell, f"number-{what}-spanned", "1")) for what in ("columns", "rows"))
            room -= repeated
            yield from [Cell(text, min(columns, _MOST_CELLS), rows, head)] * repeated

    def cell(self, cell: Any) -> str:
        """Return the text of a cell of a table, or its stored value if it shows no text."""
        values = (attribute(cell, name) for name in _VALUES)
        text = cell_text("; ".join(self._paragraphs(cell))) or next(filter(None, values), "")
        self.blanks += not text and bool(attribute(cell, "formula")) and not attribute(cell, "value-type")
        return text

    def _paragraphs(self, cell: Any, depth: int = 0) -> Iterator[str]:
        """Yield the texts of the paragraphs of a cell, also of those in its lists and tables."""
        for child in cell:
            if local(child) in ("p", "h"):
                if words := one_line(self._words(child)):
                    yield words
            elif local(child) not in _UNSEEN and depth < _MOST_DEEP:
                yield from self._paragraphs(child, depth + 1)


_MOST_REPEATED = 10_001  # rows or columns that one element stands for: more than are read
_MOST_REPEATED_CHARACTERS = 1_000_000  # characters that repeated rows and cells add to a sheet
_AROUND = ("table-header-rows", "table-rows", "table-row-group", "table-header-columns")


def read_ods(data: bytes, fallback_title: str) -> tuple[str, str, list[str]]:
    """Return the title of a spreadsheet, its text and remarks. ``fallback_title`` is used if it has none."""
    archive = XmlArchive(data, "ODS")
    root, title, reading = open_document(archive)
    hidden_styles = {
        attribute(style, "name")
        for style in root.iterfind("*/{*}style")
        if any(attribute(properties, "display") == "false" for properties in style.iterfind("{*}table-properties"))
    }
    tables = root.findall("{*}body/{*}spreadsheet/{*}table")
    visible = [table for table in tables if attribute(table, "style-name") not in hidden_styles]
    sheets = ((attribute(table, "name"), _sheet(table, reading)) for table in visible)
    return sheets_text(title or fallback_title, sheets, len(visible), len(tables) - len(visible), "ODS")


def _sheet(table: Any, reading: Reading) -> Sheet:
    sheet, number, room = Sheet(), 1, _MOST_REPEATED_CHARACTERS
    for element in _rows(table):
        row, blank, column = Row(), list[int](), 1
        for cell in element:
            column_repeats = int(attribute(cell, "number-columns-repeated", "1"))
            blanks = reading.blanks
            text = reading.cell(cell) if local(cell) == "table-cell" else ""
            text = attribute(cell, "date-value").replace("T", " ") or text
            copies = min(column_repeats - 1, _MOST_REPEATED, room // (len(text) or 1))
            room -= copies * len(text)
            columns = range(column, column + 1 + copies)
            if text:
                row |= dict.fromkeys(columns, text)
                sheet.cut |= copies < column_repeats - 1
            elif reading.blanks > blanks:
                blank += columns
            across, down = (int(attribute(cell, f"number-{what}-spanned", "1")) for what in ("columns", "rows"))
            if across > 1 or down > 1:
                sheet.spans[number, column] = (across, down)
            column += column_repeats
        row_repeats = int(attribute(element, "number-rows-repeated", "1"))
        size = sum(map(len, row.values()))
        copies = min(row_repeats - 1, _MOST_REPEATED, room // (size or 1)) if row or blank else 0
        room -= copies * size
        sheet.cut |= bool(row) and copies < row_repeats - 1
        for at in range(1 + copies):
            if not sheet.add(number + at, row, blank):
                break
        number += row_repeats
    return sheet


def _rows(table: Any) -> Iterator[Any]:
    for child in table:
        if local(child) == "table-row":
            yield child
        elif local(child) in _AROUND:
            yield from _rows(child)
