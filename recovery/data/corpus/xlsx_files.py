"""Text of workbooks, as Markdown: each sheet is a section, its used cells are tables.

Values are the stored ones, also of formulas, in the format of their cell; dates are written as 2026-11-28. Formulas
without a stored value are blank, and counted. Hidden sheets and the rows after the first ones of a very long sheet are
left out, with a remark.
"""

from __future__ import annotations

import datetime
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lxml import etree

from recovery.data.corpus.documents import UnreadableError, counted
from recovery.data.corpus.outline import Cell, Outline, cell_text, formulas_without_value, is_number, names_columns
from recovery.data.corpus.sentences import running, split_sentences
from recovery.data.corpus.xml_archives import XmlArchive, local, relation_id

# Display of numbers by the code of their format, such as ``#,##0.00 "km"`` or ``d.m.yyyy``.

# The built-in formats that are not "General", by number; dates as far as their parts matter here.
_BUILT_IN = {
    **{"1": "0", "2": "0.00", "3": "#,##0", "4": "#,##0.00", "9": "0%", "10": "0.00%", "11": "0.00E+00"},
    **{"37": "#,##0", "38": "#,##0", "39": "#,##0.00", "40": "#,##0.00", "48": "0.0E+0"},
    **dict.fromkeys(("14", "15", "27", "30", "31", "36", "50", "51", "52", "53", "54", "57", "58"), "d.m.yyyy"),
    **{"16": "d.m", "17": "m.yyyy", "28": "d.m.yyyy", "29": "d.m.yyyy", "55": "m.yyyy", "56": "d.m.yyyy"},
    **dict.fromkeys(("18", "20", "32", "34"), "h:mm"),
    **dict.fromkeys(("19", "21", "33", "35"), "h:mm:ss"),
    **{"22": "d.m.yyyy h:mm", "45": "mm:ss", "46": "[h]:mm:ss", "47": "mm:ss"},
}
_LITERAL = re.compile(r'"[^"]*"|\\.|_.|\*.')
_BRACKETS = re.compile(r"\[(?:\$([^\]-]*)(?:-[^\]]*)?|[^\]]*)\]")
_ELAPSED = re.compile(r"\[([hms])\1*\](.*)", re.IGNORECASE)
_DIGITS = re.compile(r"[#0?][#0?,.]*|\.[#0?]+")
_SPACED_DIGITS = re.compile(r"[#0?].*[#0?]")  # with other characters between the digits, such as a space
_AM_PM = re.compile(r"am/pm|a/p", re.IGNORECASE)
_MOST_DECIMALS = 15  # digits that a number has


def built_in(number: str) -> str:
    """Return the code of a built-in format."""
    return _BUILT_IN.get(number, "General")


def shown(value: str, code: str, *, since_1904: bool = False) -> str:
    """Return a number as a cell with the format ``code`` shows it."""
    try:
        number = float(value)
    except ValueError:
        return value
    if not math.isfinite(number):
        return ""
    bare = _AM_PM.sub("", _LITERAL.sub("", code))
    if elapsed := _ELAPSED.search(bare):
        sign = "-" if number < 0 else ""
        return sign + _elapsed(round(abs(number) * 86_400), elapsed[1].lower(), elapsed[2].lower())
    if re.search(r"[dmyhs]", _BRACKETS.sub("", bare.replace("General", "")), re.IGNORECASE):
        return _date(number, _BRACKETS.sub("", bare).lower(), since_1904=since_1904)
    return _formatted(number, code)


def _elapsed(seconds: int, unit: str, smaller: str) -> str:
    """Return a duration in the unit in brackets ("h", "m", "s") and the ``smaller`` ones that the format names."""
    if unit == "s":
        return str(seconds)
    if unit == "m":
        return f"{seconds // 60}:{seconds % 60:02}" if "s" in smaller else str(seconds // 60)
    minutes = f":{seconds // 60 % 60:02}" if "m" in smaller else ""
    rest = f":{seconds % 60:02}" if "s" in smaller else ""
    return f"{seconds // 3600}{minutes}{rest}"


def _general(number: float) -> str:
    if number == int(number) and abs(number) < 1e15:
        return str(int(number))
    return f"{number:.11g}"


def _formatted(number: float, code: str) -> str:
    sections = _sections(code)
    section = sections[0]
    if number < 0 and len(sections) > 1:
        section, number = sections[1], -number
    elif number == 0 and len(sections) > 2:
        section = sections[2]
    texts: list[str] = []  # literal texts; placeholders protect them, since they may look like digits or brackets

    def placeholder(text: str) -> str:
        texts.append(text)
        return chr(0xE000 + len(texts) - 1)

    def literal(match: re.Match[str]) -> str:
        return "" if match[0][0] in "_*" else placeholder(match[0].strip('"') if match[0][0] == '"' else match[0][1:])

    section = _BRACKETS.sub(lambda match: placeholder(match[1]) if match[1] else "", _LITERAL.sub(literal, section))
    digits, spaced = _DIGITS.search(section), _SPACED_DIGITS.search(section)
    if "General" in section or "E" in section or "/" in section or len(texts) > 99:
        text = section.replace("General", _general(number)) if "General" in section else _general(number)
    elif not digits:
        text = section if section.strip() else "" if len(sections) > 1 else _general(number)
        text = _general(number) if "@" in text else text
    else:
        number *= 100 ** section.count("%")
        if spaced and not _DIGITS.fullmatch(spaced[0]):
            text = section[: spaced.start()] + _spaced_digits(number, spaced[0]) + section[spaced.end() :]
        else:
            text = section[: digits.start()] + _digits(number, digits[0]) + section[digits.end() :]
    return re.sub("[\ue000-\ue063]", lambda match: texts[ord(match[0]) - 0xE000], text).strip()


def _sections(code: str) -> list[str]:
    """Return the formats of a code: of positive numbers and, if given, of negative ones, zero and texts."""
    parts, start = [], 0
    for match in re.finditer(r'"[^"]*"|\\.|_.|\*.|;', code):
        if match[0] == ";":
            parts.append(code[start : match.start()])
            start = match.end()
    return [*parts, code[start:]]


def _spaced_digits(number: float, pattern: str) -> str:
    """Return a number in a pattern with other characters between the digits, filled from the right."""
    whole, dot, decimals = pattern.partition(".")
    if not re.fullmatch("[#0?]*", decimals):
        return _general(number)
    head, dot, tail = _digits(abs(number), f"0{dot}{decimals}").partition(".")
    digits, parts = list(head), list[str]()
    for at in range(len(whole) - 1, -1, -1):
        if at == 0:  # the first digit takes all that remain
            parts.append("".join(digits) or ("0" if whole[at] == "0" else ""))
        elif whole[at] in "#0?":
            parts.append(digits.pop() if digits else "0" if whole[at] == "0" else "")
        elif whole[at] != ",":
            parts.append(whole[at])
    return ("-" if number < 0 else "") + "".join(reversed(parts)).strip() + dot + tail


def _digits(number: float, pattern: str) -> str:
    if not number and set(pattern) == {"?"}:
        return ""  # places for alignment alone
    number /= 1000 ** (len(pattern) - len(pattern.rstrip(",")))
    whole, _, decimals = pattern.rstrip(",").partition(".")
    most = min(sum(sign in "0#?" for sign in decimals), _MOST_DECIMALS)
    least = min(decimals.count("0"), most)
    grouped = "," if "," in whole else ""
    # Rounded half up from the 15 digits that a cell holds: 2.675 is shown as 2.68.
    text = f"{float(f'{number:.15g}') + math.copysign(10.0 ** -(most + 6), number):{grouped}.{most}f}"
    if most > least:
        head, _, tail = text.partition(".")
        tail = tail[:least] + tail[least:].rstrip("0")
        text = f"{head}.{tail}" if tail else head
    lead = whole.count("0")
    if lead > 1 and not grouped and number >= 0:  # 00042
        head, dot, tail = text.partition(".")
        text = head.zfill(lead) + dot + tail
    return "0" if text in ("-0", "") else text


def _date(number: float, code: str, *, since_1904: bool) -> str:
    """Return the date, the time or both that ``code`` shows, in the unambiguous order of ISO 8601."""
    days = number + 1462 if since_1904 else number
    if not 0 <= days < 2_958_466:  # up to the year 9999
        return _general(number)
    start = datetime.datetime(1899, 12, 30 if days >= 60 else 31)  # there was no 29 February 1900, but Excel has it
    moment = start + datetime.timedelta(seconds=round(days * 86_400))
    times = "h" in code or "s" in code
    months = "m" in re.sub(r"h+[^a-z]*m+|m+[^a-z]*s+", "", code)
    date = ""
    if "y" in code:
        date = moment.strftime("%Y-%m-%d" if "d" in code else "%Y-%m" if months else "%Y")
    elif "d" in code:
        date = moment.strftime("%Y-%m-%d" if months else "%A")
    elif months:
        date = moment.strftime("%B")
    time = moment.strftime("%H:%M:%S" if moment.second else "%H:%M") if times else ""
    if date and time == "00:00":
        time = ""
    return f"{date} {time}".strip() or _general(number)


_MOST_ROWS, _MOST_COLUMNS = 10_000, 200  # that are read of a sheet
_PLACE = re.compile(r"\$?([A-Z]{1,3})\$?([0-9]{1,7})")
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")

Row = dict[int, str]  # the texts of the filled cells by column


@dataclass
class Sheet:
    """The filled rows of a sheet by number, and how many columns and rows merged cells span, by (row, column).

    ``blank`` are the columns of each of these rows whose formula has no stored value, ``blanks`` counts all of them.
    ``cut`` says whether there are more rows or columns than are read.
    """

    rows: dict[int, Row] = field(default_factory=dict)
    spans: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    blank: dict[int, list[int]] = field(default_factory=dict)
    blanks: int = 0
    cut: bool = False

    def add(self, number: int, row: Row, blank: Sequence[int]) -> bool:
        """Add a row, unless it has no text or the sheet is full. Return whether there was room for it.

        ``blank`` are its columns of formulas without a value.
        """
        cells = {column: text for column, text in row.items() if column <= _MOST_COLUMNS}
        full = len(self.rows) >= _MOST_ROWS
        self.cut |= len(cells) < len(row) or (full and bool(row))
        self.blanks += 0 if full else len(blank)
        if cells and not full:
            self.rows[number] = cells
            self.blank[number] = [column for column in blank if column <= _MOST_COLUMNS]
        return not full

    def shape(self, number: int) -> Row:
        """Return a row with a number in place of each formula without a value, which most of them would give."""
        return {**self.rows[number], **dict.fromkeys(self.blank.get(number, ()), "0")}


@dataclass(frozen=True)
class _Book:
    """What the cells of all sheets refer to: the shared texts, and the formats of numbers by style."""

    texts: Sequence[str]
    formats: Sequence[str]
    since_1904: bool


def read_xlsx(data: bytes, fallback: str) -> tuple[str, str, list[str]]:
    """Return the title of a workbook, its text and remarks. ``fallback`` is used if it has none."""
    archive = XmlArchive(data, "XLSX")
    main = archive.of_type("officeDocument")
    root, related = archive.xml(main), archive.related(main)
    properties, shared = root.find("{*}workbookPr"), archive.xml_or_none(archive.of_type("sharedStrings", main))
    book = _Book(
        [] if shared is None else [_rich(item) for item in shared.iterfind("{*}si")],
        _formats(archive.xml_or_none(archive.of_type("styles", main))),
        properties is not None and properties.get("date1904") in ("1", "true"),
    )
    sheets = [sheet for sheet in root.iterfind("{*}sheets/{*}sheet") if relation_id(sheet) in related]
    visible = [sheet for sheet in sheets if sheet.get("state") in (None, "visible")]
    parts = [(sheet.get("name") or "", related[relation_id(sheet)]) for sheet in visible]
    # Sheets of another type are charts.
    contents = ((name, _read_sheet(archive, part.name, book)) for name, part in parts if part.type == "worksheet")
    return sheets_text(archive.office_title() or fallback, contents, len(visible), len(sheets) - len(visible), "XLSX")


def sheets_text(
    title: str, sheets: Iterable[tuple[str, Sheet]], visible_count: int, hidden_count: int, kind: str
) -> tuple[str, str, list[str]]:
    """Return the title of a workbook, the text of its sheets, each with its name, and remarks.

    Raises UnreadableError if no cell has text.
    """
    outline, notes, blanks, filled = Outline(), list[str](), 0, False
    outline.heading(title, 1)
    for name, sheet in sheets:
        blanks += sheet.blanks
        if not sheet.rows:
            continue
        filled = True
        if visible_count > 1:
            outline.heading(name, 2)
        for block in _blocks(sheet):
            _write_block(block, sheet, outline, 3 if visible_count > 1 else 2)
        if sheet.cut:
            notes.append(f"of the sheet {name} the first {_MOST_ROWS:,} rows and {_MOST_COLUMNS} columns are read")
    if not filled:
        raise UnreadableError("; ".join([f"no cell of the {kind} has text", *formulas_without_value(blanks)]))
    notes += formulas_without_value(blanks)
    if hidden_count:
        notes.append(f"{counted(hidden_count, 'hidden sheet')} left out")
    return title, outline.text, notes


def _rich(item: Any) -> str:
    """Return a text with parts of several fonts, without the phonetic reading of Japanese."""
    parts = [t.text or "" for t in item.iterfind("{*}t")] + [t.text or "" for t in item.iterfind("{*}r/{*}t")]
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), "".join(parts))


def _formats(root: Any) -> list[str]:
    """Return the format of numbers of each style of cells: its code."""
    if root is None:
        return []
    custom = {form.get("numFmtId"): form.get("formatCode") or "" for form in root.iterfind("{*}numFmts/{*}numFmt")}
    ids = [style.get("numFmtId") or "0" for style in root.iterfind("{*}cellXfs/{*}xf")]
    return [custom.get(id) or built_in(id) for id in ids]


def _read_sheet(archive: XmlArchive, name: str, book: _Book) -> Sheet:
    """Read a sheet row by row, so that a long one needs no more memory than its first rows."""
    sheet, number = Sheet(), 0
    nodes = etree.iterparse(
        io.BytesIO(archive.read(name)),
        events=("start", "end"),
        tag=("{*}worksheet", "{*}row", "{*}mergeCell"),
        resolve_entities=False,
        no_network=True,
    )
    for event, node in nodes:
        if event == "start":
            if node.getroottree().docinfo.internalDTD is not None:
                raise UnreadableError("XLSX with a document type definition, which is not safe to read")
        elif local(node) == "row":
            number = int(node.get("r") or number + 1)
            if not (sheet.cut and len(sheet.rows) >= _MOST_ROWS):  # merged cells are listed after all rows
                sheet.add(number, *_row(node, book))
            node.clear()
            while node.getprevious() is not None:
                del node.getparent()[0]
        elif local(node) == "mergeCell":
            first, _, last = (node.get("ref") or "").partition(":")
            start, end = _place(first), _place(last)
            if start and end:
                sheet.spans[start] = (end[1] - start[1] + 1, end[0] - start[0] + 1)
    return sheet


def _place(reference: str) -> tuple[int, int] | None:
    """Return the row and the column of a reference such as "B7", from 1; None if it is invalid."""
    match = _PLACE.fullmatch(reference)
    if not match:
        return None
    column = 0
    for letter in match[1]:
        column = column * 26 + ord(letter) - ord("A") + 1
    return int(match[2]), column


def _row(node: Any, book: _Book) -> tuple[Row, list[int]]:
    """Return the texts of a row, and its columns with formulas that have no stored value."""
    row, blank, column = {}, [], 0
    for cell in node.iterfind("{*}c"):
        place = _place(cell.get("r") or "")
        column = place[1] if place else column + 1
        if text := cell_text(_value(cell, book)):
            row[column] = text
        elif cell.find("{*}f") is not None:
            value = cell.find("{*}v")  # empty for the text "", as of =IF(A1>0,"late","")
            if value is None or not (value.text or cell.get("t") == "str"):
                blank.append(column)
    return row, blank


def _value(cell: Any, book: _Book) -> str:
    """Return the text of a cell as it is displayed; "" for an error."""
    kind, value = cell.get("t") or "n", cell.findtext("{*}v") or ""
    if kind == "inlineStr":
        inner = cell.find("{*}is")
        return "" if inner is None else _rich(inner)
    if kind == "s":
        return book.texts[int(value)] if value.isdigit() and int(value) < len(book.texts) else ""
    if kind == "b":
        return {"1": "TRUE", "0": "FALSE"}.get(value, "")
    if kind == "d":
        return value.removesuffix("T00:00:00")
    if kind != "n" or not value:
        return "" if kind == "e" else _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)
    style = int(cell.get("s") or 0)
    return shown(value, book.formats[style] if style < len(book.formats) else "General", since_1904=book.since_1904)


def _blocks(sheet: Sheet) -> Iterator[list[int]]:
    """Yield the row numbers of each table or text. An empty row ends a text; it ends a table if the next row has
    other columns or only names.
    """
    block: list[int] = []
    rows: list[Row] = []
    single = True  # each row of the block is one cell
    for number in sheet.rows:
        row = sheet.shape(number)
        if block:
            after_gap = number > block[-1] + 1
            if (single and len(row) > 1) or (after_gap and (single or _begins_table(row, rows))):
                yield block
                block, rows, single = [], [], True
        block.append(number)
        rows.append(row)
        single &= len(row) == 1
    if block:
        yield block


def _begins_table(row: Row, above: Sequence[Row]) -> bool:
    """Return whether a row after an empty one begins another table than the rows above."""
    columns = set().union(*above)
    names = not any(map(is_number, row.values())) and any(any(map(is_number, other.values())) for other in above)
    return len(row) == 1 or not set(row) <= columns or names


def _write_block(block: Sequence[int], sheet: Sheet, outline: Outline, level: int) -> None:
    rows = [sheet.rows[number] for number in block]
    if all(len(row) == 1 for row in rows):
        for row in rows:
            outline.paragraph("".join(row.values()).replace("\\|", "|"))
    elif _is_prose(rows):
        _write_records(rows, outline, level)
    else:
        outline.table(list(_table(block, sheet)))


def _table(block: Sequence[int], sheet: Sheet) -> Iterator[list[Cell]]:
    """Yield the rows of a table. The first row is the header if it has only texts; so is the second one if a name in
    the first row spans several columns.
    """
    rows = [sheet.rows[number] for number in block]
    columns = sorted(set().union(*rows))
    covered: set[tuple[int, int]] = set()
    heads = int(names_columns([[sheet.shape(number).get(column, "") for column in columns] for number in block]))
    wide = any(sheet.spans.get((block[0], column), (1, 1))[0] > 1 for column in rows[0])
    if wide and len(rows) > 2 and len(rows[0]) > 1 and not any(map(is_number, [*rows[0].values(), *rows[1].values()])):
        heads = 2
    for at, number in enumerate(block):
        line = []
        for column in columns:
            if (number, column) in covered:
                continue
            across, down = sheet.spans.get((number, column), (1, 1))
            within = [other for other in columns if column <= other < column + across]
            below = [row for row in block[at : at + down] if row < number + down]
            covered |= {(row, spanned) for row in below for spanned in within} if across > 1 or down > 1 else set()
            line.append(Cell(rows[at].get(column, ""), max(1, len(within)), max(1, len(below)), at < heads))
        yield line


def _is_prose(rows: Sequence[Row]) -> bool:
    """Return whether a table with a header holds prose: at least every second row has a cell of several sentences."""
    prose_rows = sum(any(map(_has_sentences, row.values())) for row in rows[1:])
    return len(rows) > 1 and 2 * prose_rows >= len(rows) - 1 and not any(map(is_number, rows[0].values()))


def _has_sentences(text: str) -> bool:
    parts = split_sentences(text) if " " in text else []
    return len(parts) > 1 and sum(map(running, parts)) > 1


def _write_records(rows: Sequence[Row], outline: Outline, level: int) -> None:
    """Add each row as a section: its first text is the heading, each other cell a paragraph; short ones are named."""
    header = rows[0]
    for row in rows[1:]:
        texts = {column: text.replace("\\|", "|") for column, text in sorted(row.items())}
        first = next((c for c, text in texts.items() if not is_number(text) and not _has_sentences(text)), None)
        if first is not None:
            outline.heading(texts.pop(first), level)
        for column, text in texts.items():
            name = header.get(column, "")
            outline.paragraph(f"{name}: {text}" if name and not _has_sentences(text) else text)
