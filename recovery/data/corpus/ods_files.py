"""Text of OpenDocument spreadsheets, as Markdown: in the form of workbooks (:mod:`xlsx_files`).

Cells are read as they are shown, dates as 2026-11-28.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from recovery.data.corpus.odt_files import Reading, reading_of
from recovery.data.corpus.xlsx_files import Row, Sheet, written
from recovery.data.corpus.xml_archives import XmlArchive, attribute, local

_MOST_REPEATED = 10_001  # rows or columns that one element stands for: more than are read
_MOST_AGAIN = 1_000_000  # characters of a sheet that repeated rows and cells add
_AROUND = ("table-header-rows", "table-rows", "table-row-group", "table-header-columns")


def read_ods(data: bytes, named: str) -> tuple[str, str, list[str]]:
    """Return the title of a spreadsheet, its text and remarks. ``named`` is the title of one without a title."""
    archive = XmlArchive(data, "ODS")
    root, title, reading = reading_of(archive)
    unseen = {
        attribute(style, "name")
        for style in root.iterfind("*/{*}style")
        if any(attribute(one, "display") == "false" for one in style.iterfind("{*}table-properties"))
    }
    tables = root.findall("{*}body/{*}spreadsheet/{*}table")
    seen = [table for table in tables if attribute(table, "style-name") not in unseen]
    sheets = ((attribute(table, "name"), _sheet(table, reading)) for table in seen)
    return written(title or named, sheets, len(seen), len(tables) - len(seen), "ODS")


def _sheet(table: Any, reading: Reading) -> Sheet:
    sheet, number, room = Sheet(), 1, _MOST_AGAIN
    for element in _rows(table):
        row, blank, column = Row(), list[int](), 1
        for cell in element:
            wide = int(attribute(cell, "number-columns-repeated", "1"))
            blanks = reading.blanks
            text = reading.cell(cell) if local(cell) == "table-cell" else ""
            text = attribute(cell, "date-value").replace("T", " ") or text
            again = min(wide - 1, _MOST_REPEATED, room // (len(text) or 1))
            room -= again * len(text)
            columns = range(column, column + 1 + again)
            if text:
                row |= dict.fromkeys(columns, text)
                sheet.cut |= again < wide - 1
            elif reading.blanks > blanks:
                blank += columns
            across, down = (int(attribute(cell, f"number-{what}-spanned", "1")) for what in ("columns", "rows"))
            if across > 1 or down > 1:
                sheet.spans[number, column] = (across, down)
            column += wide
        repeated = int(attribute(element, "number-rows-repeated", "1"))
        size = sum(map(len, row.values()))
        again = min(repeated - 1, _MOST_REPEATED, room // (size or 1)) if row or blank else 0
        room -= again * size
        sheet.cut |= bool(row) and again < repeated - 1
        for at in range(1 + again):
            if not sheet.add(number + at, row, blank):
                break
        number += repeated
    return sheet


def _rows(table: Any) -> Iterator[Any]:
    for child in table:
        if local(child) == "table-row":
            yield child
        elif local(child) in _AROUND:
            yield from _rows(child)
