"""Text of Word documents, as Markdown: headings, lists, tables, code, footnotes and text boxes keep their structure.

Words inserted by a revision are read; deleted, struck-out and hidden ones are not. Headers, footers, comments, pictures
and tables of contents are left out. Fields without a stored result and unreadable embedded documents are counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from recovery.data.corpus.documents import UnreadableError, counted
from recovery.data.corpus.outline import CODE_STYLE, FIXED_FONT, Cell, Outline, cell_text, raised
from recovery.data.corpus.xml_archives import XmlArchive, attribute, local, office_formula, relation_id

_SKIPPED = frozenset("del moveFrom pPr rPr tbl delText instrText delInstrText rt".split())
# Elements such as content controls, which hold paragraphs or words.
_CONTAINERS = frozenset("sdt sdtContent customXml ins moveTo smartTag AlternateContent Choice Fallback".split())
_MARKS = {"tab": "\t", "cr": "\n", "noBreakHyphen": "-"}
_FONTS = {  # of Word's symbols: the last bytes of the characters, and their glyphs
    "symbol": (
        "a3b3b1b06db4b8b9bba5d7574453616267646568716c707273746677d6acaeabdeb7",
        "≤≥±°µ×÷≠≈∞⋅ΩΔΣαβγδεηθλπρστφω√←→↔⇒•",
    ),
    "wingdings": ("fcfbfea8e0df", "✓✗☑☐→←"),
}
_SYMBOLS = {font: dict(zip(bytes.fromhex(codes), signs, strict=True)) for font, (codes, signs) in _FONTS.items()}
# Fields that are left out or show nothing: entries of indices, numbers of pages, the table of contents.
_UNSHOWN_FIELDS = frozenset(
    "xe tc ta rd set ask private toc toa index page numpages section sectionpages advance nextif skipif next "
    "formcheckbox formdropdown macrobutton gotobutton".split()
)
_NOTES = {"footnoteReference": "footnotes", "endnoteReference": "endnotes"}
_HEADING = re.compile(r"heading ([1-9])", re.IGNORECASE)
_CONTENTS = re.compile(r"toc(?: \d| heading)|table of figures", re.IGNORECASE)
_LIST_NAME = re.compile(r"list(?: bullet| number)? ([2-5])", re.IGNORECASE)
_BODY = 9  # the outline level of body text
_OFF_VALUES = ("0", "false", "off")
_MOST_DEEP = 60  # tables, boxes and notes within each other
_LONGEST_LOOK = 20  # length of a chain of styles based on each other
_MOST_EMBEDDED = 20_000_000  # characters of embedded documents, which may be packed in each other

Embedded = Callable[[str, bytes], tuple[str, list[str]]]  # text and remarks of a document by its name and bytes


@dataclass(frozen=True)
class _Style:
    """A style of paragraphs: its ``level`` for headings, and the ``list`` and level for items.

    ``code`` is set for code, by the style's name or font.
    """

    name: str = ""
    code: bool = False
    level: int | None = None
    list: tuple[str, int] | None = None


def read_docx(data: bytes, embedded: Embedded | None = None) -> tuple[str, str, list[str]]:
    """Return the title from the properties of a DOCX file, "" without one, its text and remarks.

    ``embedded`` reads documents within it (w:altChunk), or raises UnreadableError; without it they are left out.
    """
    archive = XmlArchive(data, "DOCX")
    main = archive.of_type("officeDocument")
    body = _with_parts(archive, main).find("{*}body")
    notes: dict[str, dict[str, Any]] = {kind: {} for kind in _NOTES.values()}
    for kind in notes:
        if name := archive.of_type(kind, main):
            notes[kind] = {attribute(note, "id"): note for note in _with_parts(archive, name)}
    styles, lists = (archive.xml_or_none(archive.of_type(part, main)) for part in ("styles", "numbering"))
    reading = _Reading(_styles(styles), _Lists(lists), notes, archive, embedded)
    reading.read(body)
    return archive.office_title(), reading.outline.text, reading.remarks


def _with_parts(archive: XmlArchive, name: str) -> Any:
    """Return the root of a part; references to embedded documents get the name of their file as an attribute."""
    root = archive.xml(name)
    chunks = list(root.iter("{*}altChunk"))
    related = archive.related(name) if chunks else {}
    for chunk in chunks:
        part = related.get(relation_id(chunk))
        chunk.set("part", "" if part is None else part.name)
    return root


def _styles(root: Any) -> dict[str, _Style]:
    found = {} if root is None else {attribute(s, "styleId"): s for s in root.iterfind("{*}style")}
    return {id: _style(style, found) for id, style in found.items()}


def _style(style: Any, known: dict[str, Any]) -> _Style:
    """Return a style with the properties of the styles that it is based on."""
    own_name = _value(style, "{*}name")
    level, list_item, code = None, None, False
    for _ in range(_LONGEST_LOOK):
        name, properties = _value(style, "{*}name"), style.find("{*}pPr")
        heading = _HEADING.fullmatch(name)
        outline_level = "" if properties is None else _value(properties, "{*}outlineLvl")
        if level is None and (heading or outline_level.isdigit() or name.lower() == "title"):
            level = int(heading[1]) if heading else 1 if name.lower() == "title" else int(outline_level) + 1
        list_item = list_item or _list_item(properties)
        font = style.find("{*}rPr/{*}rFonts")
        fixed = font is not None and FIXED_FONT.search(attribute(font, "ascii"))
        code |= bool(CODE_STYLE.search(name) or fixed)
        style = known.get(_value(style, "{*}basedOn"))
        if style is None:
            break
    deeper = _LIST_NAME.fullmatch(own_name)
    if list_item and deeper and not list_item[1]:  # such a style has its own list, whose only level is 0
        list_item = (list_item[0], int(deeper[1]) - 1)
    return _Style(own_name, code, level if level and level <= _BODY else None, list_item)


def _value(element: Any, path: str) -> str:
    child = element.find(path)
    return "" if child is None else attribute(child, "val")


def _list_item(properties: Any) -> tuple[str, int] | None:
    """Return the list and the level of a paragraph or style from its properties, or None."""
    numbered = None if properties is None else properties.find("{*}numPr")
    if numbered is None:
        return None
    depth = _value(numbered, "{*}ilvl")
    return _value(numbered, "{*}numId"), int(depth) if depth.isdigit() else 0


class _Lists:
    """The lists of a document, with the last number of each level."""

    def __init__(self, root: Any) -> None:
        numbered = [] if root is None else list(root.iterfind("{*}num"))
        kinds = {} if root is None else {attribute(a, "abstractNumId"): a for a in root.iterfind("{*}abstractNum")}
        self._kinds = {attribute(num, "numId"): _value(num, "{*}abstractNumId") for num in numbered}
        self._nums = {attribute(num, "numId"): num for num in numbered}
        self._levels = {
            (id, int(attribute(level, "ilvl", "0"))): level
            for id, kind in kinds.items()
            for level in kind.iterfind("{*}lvl")
        }
        self._counts: dict[tuple[str, int], int] = {}
        self._restarted: set[tuple[str, int]] = set()

    def number(self, list_: str, depth: int) -> int | None:
        """Count an item and return its number, None if it has a bullet."""
        kind = self._kinds.get(list_, "")
        level = self._levels.get((kind, depth), self._levels.get((kind, 0)))
        if level is None or _value(level, "{*}numFmt") in ("bullet", "none"):
            return None
        overrides = self._nums[list_].iterfind("{*}lvlOverride")
        starts = [_value(node, "{*}startOverride") for node in overrides if attribute(node, "ilvl") == str(depth)]
        first = next((start for start in starts if start.isdigit()), "")
        if first and (list_, depth) not in self._restarted:
            self._counts.pop((kind, depth), None)
        self._restarted.add((list_, depth))
        first = first or _value(level, "{*}start")
        start = int(first) if first.isdigit() else 1
        self._counts = {at: last for at, last in self._counts.items() if at[0] != kind or at[1] <= depth}
        self._counts[kind, depth] = self._counts.get((kind, depth), start - 1) + 1
        return self._counts[kind, depth]


@dataclass
class _Reading:
    """The text so far.

    ``_pending`` are the notes and boxes of a paragraph, which follow it. ``_unended`` are the words of paragraphs whose
    end a revision deleted: the next paragraph continues them. ``_fields`` are the open fields: the instruction of each,
    and ``_pieces`` at the start of its result, -1 before that. ``_documents`` are the texts of embedded documents by
    name, ``_inner_remarks`` the remarks on them, ``_left_out`` the reasons why others are not read.
    """

    styles: dict[str, _Style]
    lists: _Lists
    notes: dict[str, dict[str, Any]]
    archive: XmlArchive
    embedded: Embedded | None
    outline: Outline = field(default_factory=Outline)
    _pending: list[Any] = field(default_factory=list)
    _unended: str = ""
    _fields: list[tuple[list[str], int]] = field(default_factory=list)
    _pieces: int = 0
    _blank: int = 0
    _documents: dict[str, str] = field(default_factory=dict)
    _left_out: dict[str, str] = field(default_factory=dict)
    _inner_remarks: list[str] = field(default_factory=list)

    @property
    def remarks(self) -> list[str]:
        """Remarks on what the text lacks."""
        remarks = []
        if self._blank:
            fields, are = ("fields have", "are") if self._blank > 1 else ("field has", "is")
            fields_text = f"{self._blank} {fields} no stored result and {are} blank"
            remarks.append(f"{fields_text}: update the fields in Word and save it again")
        if count := len(self._left_out):
            reason = next(": ".join(entry) for entry in self._left_out.items())
            remarks.append(f"{counted(count, 'embedded document')} left out ({reason})")
        return remarks + self._inner_remarks

    def read(self, element: Any, depth: int = 0) -> None:
        """Add the blocks of an element."""
        for child in element if depth < _MOST_DEEP else ():
            name = local(child)
            if name == "p":
                self._paragraph(child)
            elif name == "tbl":
                self._end_paragraph()
                self._table(child, depth)
            elif name == "altChunk":
                self._end_paragraph()
                self.outline.block(self._document(child))
            elif name in _CONTAINERS:
                self.read(_branch(child), depth + 1)
            if not self._unended:
                pending, self._pending = self._pending, []
                for note in pending:
                    self.read(note, depth + 1)
        if local(element) not in _CONTAINERS:
            self._end_paragraph()

    def _end_paragraph(self) -> None:
        """End a paragraph whose end was deleted and that no other paragraph continues."""
        self.outline.paragraph(self._unended)
        self._unended = ""

    def _document(self, chunk: Any) -> str:
        """Return the text of an embedded document, or "" if it was read before or is unreadable."""
        name = attribute(chunk, "part")
        if name in self._documents:
            return ""
        file_name = name.rpartition("/")[2] or "without a name"
        try:
            if self.embedded is None or name not in self.archive:
                raise UnreadableError("not in the file" if self.embedded else "in an embedded document")
            text, remarks = self.embedded(name, self.archive.read(name))
            if sum(map(len, self._documents.values())) + len(text) > _MOST_EMBEDDED:
                raise UnreadableError(f"over {_MOST_EMBEDDED:,} characters")
        except UnreadableError as error:
            self._left_out[file_name] = str(error)
            return ""
        self._documents[name] = text
        self._inner_remarks += [f"{file_name}: {remark}" for remark in remarks]
        return text

    def _paragraph_words(self, element: Any) -> str:
        """Return the words of a paragraph, with those of paragraphs it continues; "" if its own end was deleted."""
        words, self._unended = self._unended + self._words(element), ""
        marks = element.find("{*}pPr/{*}rPr")
        if marks is not None and any(local(mark) in ("del", "moveFrom") for mark in marks):
            words, self._unended = "", words
        return words

    def _paragraph(self, element: Any) -> None:
        words = self._paragraph_words(element)
        properties = element.find("{*}pPr")
        id = "" if properties is None else _value(properties, "{*}pStyle")
        style = self.styles.get(id, _Style())
        own_level = "" if properties is None else _value(properties, "{*}outlineLvl")
        level = int(own_level) + 1 if own_level.isdigit() and int(own_level) < _BODY else style.level
        item = _list_item(properties) or style.list
        if self._unended:
            return
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
        rows = [row for row in _children(table, "tr") if row.find("{*}trPr/{*}del") is None]
        cells = [list(_children(row, "tc")) for row in rows]
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
            head = (mark is not None and attribute(mark, "val") not in _OFF_VALUES) or (number == 0 and _is_bold(row))
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
        """Yield the texts of the paragraphs of a cell, also of those in tables and documents within it."""
        for child in cell:
            if local(child) == "p":
                if words := self._paragraph_words(child).strip():
                    yield words
            elif local(child) == "altChunk":
                yield from filter(None, [self._document(child)])
            elif (local(child) in _CONTAINERS or local(child) in ("tbl", "tr", "tc")) and depth < _MOST_DEEP:
                yield from self._texts(_branch(child), depth + 1)
        if local(cell) == "tc" and self._unended:
            yield self._unended.strip()
            self._unended = ""

    def _words(self, element: Any, depth: int = 0) -> str:
        """Return the text of a paragraph; its notes and boxes are set aside."""
        parts: list[str] = []
        for child in element if depth < _MOST_DEEP else ():
            name = local(child)
            if name in ("fldChar", "instrText", "fldSimple"):
                self._field(child, name)
            if name in _SKIPPED or (name == "r" and _is_unseen(child)):
                continue
            if name == "t":
                parts.append(child.text or "")
                self._pieces += bool(child.text)
            elif name == "br":  # a page or column break is no line break
                parts.append("\n" if attribute(child, "type", "textWrapping") == "textWrapping" else "")
            elif name == "sym":
                parts.append(_symbol(child))
                self._pieces += 1
            elif name in ("oMath", "oMathPara"):
                parts.append(office_formula(child))
                self._pieces += 1
            elif name in ("drawing", "pict", "object"):
                self._pending += _text_boxes(child)
                self._pieces += 1
            elif name in _NOTES:
                note = self.notes[_NOTES[name]].get(attribute(child, "id"))
                self._pending += [] if note is None else [note]
            elif name == "AlternateContent":
                parts.append(self._words(_branch(child), depth + 1))
            elif name == "r" and _value(child, "{*}rPr/{*}vertAlign") == "superscript":
                parts.append(raised(self._words(child, depth + 1), "".join(parts[-1:])))
            else:
                parts.append(_MARKS.get(name) or self._words(child, depth + 1))
                if name == "fldSimple":
                    self._end_field()
        return "".join(parts)

    def _field(self, element: Any, name: str) -> None:
        """Handle a part of a field: its instruction, then its result, if there is one."""
        kind = attribute(element, "fldCharType")
        if name == "fldSimple":
            self._fields.append(([attribute(element, "instr")], self._pieces))
        elif name == "fldChar" and kind == "begin":
            self._fields.append(([], -1))
        elif self._fields and name == "instrText":
            self._fields[-1][0].append(element.text or "")
        elif self._fields and kind == "separate":
            self._fields[-1] = (self._fields[-1][0], self._pieces)
        elif self._fields and kind == "end":
            self._end_field()

    def _end_field(self) -> None:
        instructions, before = self._fields.pop() if self._fields else ([], -1)
        instruction = "".join(instructions).split()
        is_shown = bool(instruction) and instruction[0].lower() not in _UNSHOWN_FIELDS
        is_shown &= all(at >= 0 for _, at in self._fields)  # else it is within another field's instruction
        self._blank += is_shown and before in (-1, self._pieces)


def _branch(element: Any) -> Any:
    """Return the form of an AlternateContent to read: the first one with readable text. Return others unchanged."""
    if local(element) != "AlternateContent":
        return element
    for form in element:
        texts = (node for node in form.iter("{*}t", "{*}sym") if "drawingml" not in node.tag)  # of Word's own
        if any(node.text or local(node) == "sym" for node in texts):
            return form
    return next(iter(element), element)


def _text_boxes(element: Any) -> Iterator[Any]:
    """Yield the text boxes of a drawing; a box within a box is read with the outer one's paragraphs."""
    remaining = [element]
    while remaining:
        node = remaining.pop()
        if local(node) == "txbxContent":
            yield node
        else:
            remaining += reversed(_branch(node))


def _symbol(element: Any) -> str:
    """Return an inserted symbol, or "" if it has no character."""
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
    return any(mark is not None and attribute(mark, "val") not in _OFF_VALUES for mark in marks)


def _is_bold(row: Any) -> bool:
    """Return whether all words of a row are bold, as those of a header are."""
    runs = [run for run in row.iterfind(".//{*}r") if run.find("{*}t") is not None]
    marks = [run.find("{*}rPr/{*}b") for run in runs]
    return bool(marks) and all(mark is not None and attribute(mark, "val") not in _OFF_VALUES for mark in marks)


def _children(element: Any, name: str) -> Iterator[Any]:
    """Yield the children of a name, also those in content controls."""
    for child in element:
        if local(child) == name:
            yield child
        elif local(child) in _CONTAINERS:
            yield from _children(_branch(child), name)
