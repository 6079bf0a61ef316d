"""Text of Word documents, as Markdown: headings, lists, tables, code, footnotes and text boxes keep their structure.

Words that a revision inserted are read, those that it deleted are not, nor is what is struck out or hidden. Headers,
footers, comments, pictures and tables of contents are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from recovery.data.corpus.html_tables import Cell
from recovery.data.corpus.office_formulas import office_formula
from recovery.data.corpus.outline import CODE_STYLE, FIXED_FONT, Outline, cell_text, raised
from recovery.data.corpus.xml_archives import XmlArchive, attribute, local

_LEFT_OUT = frozenset("del moveFrom pPr rPr tbl delText instrText delInstrText Fallback rt".split())
# Content controls and their like hold paragraphs as well as words.
_AROUND = frozenset("sdt sdtContent customXml ins moveTo smartTag AlternateContent Choice".split())
_MARKS = {"tab": "\t", "cr": "\n", "noBreakHyphen": "-"}
_FONTS = {  # of Word's symbols: the last byte of each character, and what it shows
    "symbol": (
        "a3b3b1b06db4b8b9bba5d7574453616267646568716c707273746677d6acaeabdeb7",
        "≤≥±°µ×÷≠≈∞⋅ΩΔΣαβγδεηθλπρστφω√←→↔⇒•",
    ),
    "wingdings": ("fcfbfea8e0df", "✓✗☑☐→←"),
}
_SYMBOLS = {font: dict(zip(bytes.fromhex(codes), signs, strict=True)) for font, (codes, signs) in _FONTS.items()}
_NOTES = {"footnoteReference": "footnotes", "endnoteReference": "endnotes"}
_HEADING = re.compile(r"heading ([1-9])", re.IGNORECASE)
_CONTENTS = re.compile(r"toc(?: \d| heading)|table of figures", re.IGNORECASE)
_LIST_NAME = re.compile(r"list(?: bullet| number)? ([2-5])", re.IGNORECASE)
_BODY = 9  # the level of an outline that is none
_OFF = ("0", "false", "off")
_MOST_DEEP = 60  # tables, boxes and notes within each other
_LONGEST_LOOK = 20  # styles that each is based on another


@dataclass(frozen=True)
class _Style:
    """A style of paragraphs: its level if it is one of headings, and the list that its paragraphs are items of.

    ``code`` is set if it is one of code, by its name or its font.
    """

    name: str = ""
    code: bool = False
    level: int | None = None
    list: tuple[str, int] | None = None


def read_docx(data: bytes) -> tuple[str, str]:
    """Return the title from the properties of a DOCX file, "" without one, and its text."""
    archive = XmlArchive(data, "DOCX")
    main = archive.of_type("officeDocument")
    reading = _Reading(
        _styles(archive.xml_or_none(archive.of_type("styles", main))),
        _Lists(archive.xml_or_none(archive.of_type("numbering", main))),
        {kind: _by_id(archive.xml_or_none(archive.of_type(kind, main))) for kind in _NOTES.values()},
    )
    reading.read(archive.xml(main).find("{*}body"))
    return archive.office_title(), reading.outline.text


def _by_id(root: Any) -> dict[str, Any]:
    return {} if root is None else {attribute(note, "id"): note for note in root}


def _styles(root: Any) -> dict[str, _Style]:
    found = {} if root is None else {attribute(s, "styleId"): s for s in root.iterfind("{*}style")}
    return {id: _style(style, found) for id, style in found.items()}


def _style(style: Any, known: dict[str, Any]) -> _Style:
    """Return a style with what it has from those that it is based on."""
    own = _value(style, "{*}name")
    level, listed, code = None, None, False
    for _ in range(_LONGEST_LOOK):
        name, properties = _value(style, "{*}name"), style.find("{*}pPr")
        heading = _HEADING.fullmatch(name)
        told = "" if properties is None else _value(properties, "{*}outlineLvl")
        if level is None and (heading or told.isdigit() or name.lower() == "title"):
            level = int(heading[1]) if heading else 1 if name.lower() == "title" else int(told) + 1
        listed = listed or _item_of(properties)
        font = style.find("{*}rPr/{*}rFonts")
        code |= bool(CODE_STYLE.search(name)) or (
            font is not None and bool(FIXED_FONT.search(attribute(font, "ascii")))
        )
        style = known.get(_value(style, "{*}basedOn"))
        if style is None:
            break
    deeper = _LIST_NAME.fullmatch(own)
    if listed and deeper and not listed[1]:  # each of these styles has a list of its own
        listed = (listed[0], int(deeper[1]) - 1)
    return _Style(own, code, level if level and level <= _BODY else None, listed)


def _value(element: Any, path: str) -> str:
    found = element.find(path)
    return "" if found is None else attribute(found, "val")


def _item_of(properties: Any) -> tuple[str, int] | None:
    """Return the list and the level of a paragraph or style by its properties, None if they name none."""
    numbered = None if properties is None else properties.find("{*}numPr")
    if numbered is None:
        return None
    depth = _value(numbered, "{*}ilvl")
    return _value(numbered, "{*}numId"), int(depth) if depth.isdigit() else 0


class _Lists:
    """The lists of a document, and how far the numbers of each have been counted."""

    def __init__(self, root: Any) -> None:
        numbered = [] if root is None else list(root.iterfind("{*}num"))
        kinds = {} if root is None else {attribute(a, "abstractNumId"): a for a in root.iterfind("{*}abstractNum")}
        self._of = {attribute(one, "numId"): _value(one, "{*}abstractNumId") for one in numbered}
        self._own = {attribute(one, "numId"): one for one in numbered}
        self._levels = {
            (id, int(attribute(level, "ilvl", "0"))): level
            for id, kind in kinds.items()
            for level in kind.iterfind("{*}lvl")
        }
        self._counts: dict[tuple[str, int], int] = {}
        self._begun: set[tuple[str, int]] = set()

    def number(self, list_: str, depth: int) -> int | None:
        """Count an item and return its number, None if it has a bullet."""
        kind = self._of.get(list_, "")
        level = self._levels.get((kind, depth), self._levels.get((kind, 0)))
        if level is None or _value(level, "{*}numFmt") in ("bullet", "none"):
            return None
        given = self._own[list_].iterfind("{*}lvlOverride")
        starts = [_value(one, "{*}startOverride") for one in given if attribute(one, "ilvl") == str(depth)]
        first = next((start for start in starts if start.isdigit()), "")
        if first and (list_, depth) not in self._begun:
            self._counts.pop((kind, depth), None)
        self._begun.add((list_, depth))
        first = first or _value(level, "{*}start")
        start = int(first) if first.isdigit() else 1
        self._counts = {at: last for at, last in self._counts.items() if at[0] != kind or at[1] <= depth}
        self._counts[kind, depth] = self._counts.get((kind, depth), start - 1) + 1
        return self._counts[kind, depth]


@dataclass
class _Reading:
    """The text as far as it was read. ``_later`` are the notes and boxes of a paragraph, which follow it."""

    styles: dict[str, _Style]
    lists: _Lists
    notes: dict[str, dict[str, Any]]
    outline: Outline = field(default_factory=Outline)
    _later: list[Any] = field(default_factory=list)

    def read(self, element: Any, depth: int = 0) -> None:
        """Add the blocks of an element."""
        for child in element if depth < _MOST_DEEP else ():
            name = local(child)
            if name == "p":
                self._paragraph(child)
            elif name == "tbl":
                self._table(child, depth)
            elif name in _AROUND:
                self.read(child, depth + 1)
            later, self._later = self._later, []
            for one in later:
                self.read(one, depth + 1)

    def _paragraph(self, element: Any) -> None:
        words = self._words(element)
        properties = element.find("{*}pPr")
        id = "" if properties is None else _value(properties, "{*}pStyle")
        style = self.styles.get(id, _Style())
        own = "" if properties is None else _value(properties, "{*}outlineLvl")
        level = int(own) + 1 if own.isdigit() and int(own) < _BODY else style.level
        item = _item_of(properties) or style.list
        if style.code:
            self.outline.code_line(words)
        elif _CONTENTS.fullmatch(style.name) or not words.strip():
            return
        elif level is not None:
            self.outline.heading(words, level)
        elif item is not None and item[0] != "0":
            self.outline.item(words, item[1], self.lists.number(*item))
        else:
            self.outline.paragraph(words)

    def _table(self, table: Any, depth: int) -> None:
        rows = list(_within(table, "tr"))
        cells = [list(_within(row, "tc")) for row in rows]
        if all(len(row) < 2 for row in cells):  # a frame around text
            for row in cells:
                for cell in row:
                    self.read(cell, depth + 1)
        else:
            self.outline.table(list(self._rows(rows, cells)))

    def _rows(self, rows: list[Any], cells: list[list[Any]]) -> Iterator[list[Cell]]:
        """Yield the rows of a table; a cell that spans several rows is in the first of them."""
        open_cells: dict[int, Cell] = {}
        for number, (row, parts) in enumerate(zip(rows, cells, strict=True)):
            mark = row.find("{*}trPr/{*}tblHeader")
            head = (mark is not None and attribute(mark, "val") not in _OFF) or (number == 0 and _is_bold(row))
            line, column = [], 0
            for part in parts:
                columns, merged = _value(part, "{*}tcPr/{*}gridSpan"), part.find("{*}tcPr/{*}vMerge")
                width = int(columns) if columns.isdigit() else 1
                above = open_cells.get(column)
                if merged is not None and attribute(merged, "val") != "restart" and above is not None:
                    above.rows += 1
                else:
                    cell = Cell(cell_text(" ".join(self._texts(part))), width, 1, head)
                    open_cells.pop(column, None)
                    if merged is not None:
                        open_cells[column] = cell
                    line.append(cell)
                column += width
            yield line

    def _texts(self, cell: Any, depth: int = 0) -> Iterator[str]:
        """Yield the texts of the paragraphs of a cell, also of those in tables within it."""
        for child in cell:
            if local(child) == "p":
                if words := self._words(child).strip():
                    yield words
            elif (local(child) in _AROUND or local(child) in ("tbl", "tr", "tc")) and depth < _MOST_DEEP:
                yield from self._texts(child, depth + 1)

    def _words(self, element: Any, depth: int = 0) -> str:
        """Return the text of a paragraph; its notes and boxes are set aside."""
        parts: list[str] = []
        for child in element if depth < _MOST_DEEP else ():
            name = local(child)
            if name in _LEFT_OUT or (name == "r" and _is_unseen(child)):
                continue
            if name == "t":
                parts.append(child.text or "")
            elif name == "br":  # one that begins a page or a column breaks no line of its own
                parts.append("\n" if attribute(child, "type", "textWrapping") == "textWrapping" else "")
            elif name == "sym":
                parts.append(_symbol(child))
            elif name in ("oMath", "oMathPara"):
                parts.append(office_formula(child))
            elif name in ("drawing", "pict"):
                self._later += child.iterfind(".//{*}txbxContent")
            elif name in _NOTES:
                note = self.notes[_NOTES[name]].get(attribute(child, "id"))
                self._later += [] if note is None else [note]
            elif name == "r" and _value(child, "{*}rPr/{*}vertAlign") == "superscript":
                parts.append(raised(self._words(child, depth + 1), "".join(parts[-1:])))
            else:
                parts.append(_MARKS.get(name) or self._words(child, depth + 1))
        return "".join(parts)


def _symbol(element: Any) -> str:
    """Return an inserted symbol; nothing if its font is not known."""
    code, table = attribute(element, "char"), _SYMBOLS.get(attribute(element, "font").lower())
    if not re.fullmatch("[0-9A-Fa-f]{1,4}", code):
        return ""
    number = int(code, 16)
    if table is not None:
        return table.get(number & 0xFF, "")
    return "" if 0xD800 <= number < 0xF900 or number < 32 else chr(number)


def _is_unseen(run: Any) -> bool:
    """Return whether words are struck out or hidden."""
    marks = [run.find(f"{{*}}rPr/{{*}}{name}") for name in ("strike", "dstrike", "vanish")]
    return any(mark is not None and attribute(mark, "val") not in _OFF for mark in marks)


def _is_bold(row: Any) -> bool:
    """Return whether all words of a row are bold, as those of a header are."""
    runs = [run for run in row.iterfind(".//{*}r") if run.find("{*}t") is not None]
    marks = [run.find("{*}rPr/{*}b") for run in runs]
    return bool(marks) and all(mark is not None and attribute(mark, "val") not in _OFF for mark in marks)


def _within(element: Any, name: str) -> Iterator[Any]:
    """The children of a name, also those in content controls."""
    for child in element:
        if local(child) == name:
            yield child
        elif local(child) in _AROUND:
            yield from _within(child, name)
