"""The lines of a PDF page with their places and fonts, and the ruled tables on it, as PDFium finds them."""

from __future__ import annotations

import contextlib
import ctypes
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise, takewhile
from typing import Any

from recovery.data.corpus.documents import UnreadableError
from recovery.data.corpus.outline import FIXED_FONT, Cell, cell_text
from recovery.data.corpus.pdf_glyphs import GlyphNames
from recovery.data.corpus.text import LOST_GLYPH

Rule = tuple[float, float, float]  # where a straight line is, and from where to where it goes
_Scale = tuple[float, float, float, float]  # across and down, then the offsets: (a, d, e, f) of a PDF's matrix
_Box = tuple[float, float, float, float]  # left, bottom, right, top
_LETTERS_MOST = 500_000  # of a page: far more than one can hold
_OBJECTS_MOST = 50_000  # of a page: PDFium takes minutes for the text of a few more
_RULES_MOST = 2000  # a page with more is a drawing
_DEEPEST_FORM = 3
_BOLD = re.compile(r"bold|black|heavy|semibold|demi", re.IGNORECASE)
_FIXED = re.compile(r"mono|courier|typewriter|cmtt|sltt|lmtt|ectt", re.IGNORECASE)
_FIXED_FLAG, _BOLD_FLAG = 1, 1 << 18  # of a font's descriptor
_BOLD_WEIGHT = 600
_HYPHEN = "\x02"  # stands for one at the end of a line
_BULLETS = dict.fromkeys("\uf0b7\uf0a7", "•")  # of the fonts Symbol and Wingdings
_THIN = 3.0  # points: a path as thin as this is a rule
_SHORTEST_RULE = 6.0
_NEAR = 3.0  # points between ends of rules that meet
# Points: a square or round path of this size before a line is the sign of a list, as browsers draw it.
_DOT = (1.5, 6.0)
_DOT_GAP = 24.0  # points: from such a path to the text

_STREAM, _TEXT, _SHOW = re.compile(rb"stream\r?\n"), re.compile(rb"\bBT\s"), re.compile(rb"T[jJ]")
_STRING, _HEX = re.compile(rb"\(([^()]*)"), re.compile(rb"(?:\A|<)([0-9A-Fa-f\s]{8,})")
_NO_DRAWING = re.compile(rb"/Subtype|/Type|/Length1|/N ")  # of a stream's dictionary: a picture, a font, a profile
_DICTIONARY_BYTES, _PIECE_BYTES = 1024, 1 << 20  # bytes: of an object before its stream, and unpacked at once


def check_operators(data: bytes) -> None:
    """Raise UnreadableError for a PDF file that draws more text in one stream than a page may have.

    When PDFium opens a page it keeps some 500 bytes for each operator that shows text and 200 for each letter, before
    they can be counted: a stream of 70 KB can take all memory. The check therefore unpacks the streams in pieces.
    """
    for match in _STREAM.finditer(data):
        head = data[max(0, match.start() - _DICTIONARY_BYTES) : match.start()].rpartition(b"obj")[2]
        if _NO_DRAWING.search(head) and b"/Form" not in head:
            continue
        filters = head.count(b"/FlateDecode")
        end = len(data) if filters else data.find(b"endstream", match.end())
        pieces: Iterable[bytes | memoryview] = [memoryview(data)[match.end() : end]]
        for _ in range(filters):
            pieces = _unpacked(pieces)
        _check_text_size(pieces)


def _check_text_size(pieces: Iterable[bytes | memoryview]) -> None:
    """Count the operators that show text and the bytes of their strings, which may continue in the next piece."""
    operators = letters = 0
    in_string = in_text = False
    for part in pieces:
        piece = bytes(part)
        in_text = in_text or _TEXT.search(piece) is not None
        operators += len(_SHOW.findall(piece))
        ends = piece.find(b")")
        letters += (len(piece) if ends < 0 else ends) if in_string else 0
        letters += sum(map(len, _STRING.findall(piece))) + sum(map(len, _HEX.findall(piece))) // 2
        in_string = piece.rfind(b"(") > piece.rfind(b")") or (in_string and ends < 0)
        if in_text and operators > _OBJECTS_MOST:
            raise UnreadableError(f"a PDF page of more than {_OBJECTS_MOST:,} objects")
        if in_text and letters > _LETTERS_MOST:
            raise UnreadableError(f"a PDF page of more than {_LETTERS_MOST:,} letters")


def _unpacked(parts: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Yield the content of a packed stream in pieces, up to damaged data: PDFium shows what precedes the damage."""
    unpacker = zlib.decompressobj()
    with contextlib.suppress(zlib.error):
        for part in parts:
            while not unpacker.eof and (piece := unpacker.decompress(part, _PIECE_BYTES)):
                yield piece
                part = unpacker.unconsumed_tail


@dataclass(frozen=True)
class Style:
    """The font of a word."""

    size: float
    bold: bool
    fixed: bool


@dataclass(frozen=True)
class Word:
    """Characters without white space, and their bounding box in points; the origin is at the lower left."""

    text: str
    left: float
    bottom: float
    right: float
    top: float
    style: Style

    @property
    def middle(self) -> tuple[float, float]:
        return (self.left + self.right) / 2, (self.bottom + self.top) / 2


@dataclass(frozen=True)
class Line:
    """Words on one line, from left to right."""

    words: tuple[Word, ...]

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)

    @property
    def left(self) -> float:
        return self.words[0].left

    @property
    def right(self) -> float:
        return max(word.right for word in self.words)

    @property
    def base(self) -> float:
        return self.words[0].bottom

    @property
    def style(self) -> Style:
        """The font size of the longest word; bold and fixed only if all words with letters are."""
        longest = max(self.words, key=lambda word: len(word.text))
        lettered = [word.style for word in self.words if any(c.isalnum() for c in word.text)] or [longest.style]
        return Style(longest.style.size, all(s.bold for s in lettered), all(s.fixed for s in lettered))


@dataclass(frozen=True)
class Grid:
    """A ruled table: the edges of its columns and rows, and its vertical and horizontal rules."""

    across: tuple[float, ...]
    down: tuple[float, ...]  # from the top
    uprights: tuple[Rule, ...]
    levels: tuple[Rule, ...]

    def holds(self, word: Word) -> bool:
        x, y = word.middle
        return self.across[0] <= x <= self.across[-1] and self.down[-1] <= y <= self.down[0]

    def rows(self, lines: Sequence[Line]) -> list[list[Cell]]:
        """Return the rows of cells with the text of the lines; cells without a rule between them are joined."""
        texts: dict[tuple[int, int], list[str]] = {}
        bold: dict[tuple[int, int], bool] = {}
        for line in lines:
            for word in line.words:
                x, y = word.middle
                column = next((n for n, edge in enumerate(self.across[1:]) if x <= edge), len(self.across) - 2)
                row = next((n for n, edge in enumerate(self.down[1:]) if y >= edge), len(self.down) - 2)
                at = self._start(row, column)
                texts.setdefault(at, []).append(word.text)
                bold[at] = bold.get(at, True) and word.style.bold
        rows = [
            [
                Cell(_joined_text(texts.get(at, [])), self._size(at, 1), self._size(at, 0), False)
                for at in ((row, column) for column in range(len(self.across) - 1))
                if self._start(*at) == at
            ]
            for row in range(len(self.down) - 1)
        ]
        first = next((number for number, cells in enumerate(rows) if any(cell.text for cell in cells)), 0)
        if all(is_bold for (row, _), is_bold in bold.items() if row == first) and not all(bold.values()):
            rows[first] = [replace(cell, head=True) for cell in rows[first]]
        return [cells for cells in rows if any(cell.text for cell in cells)]

    def _start(self, row: int, column: int) -> tuple[int, int]:
        """Return the first row and column of the cell that holds this place of the grid."""
        while column and not self._ruled(self.uprights, self.across[column], self.down[row], self.down[row + 1]):
            column -= 1
        while row and not self._ruled(self.levels, self.down[row], self.across[column], self.across[column + 1]):
            row -= 1
        return row, column

    def _size(self, at: tuple[int, int], axis: int) -> int:
        """Return how many rows (axis 0) or columns (axis 1) a cell spans that begins at a row and column."""
        ends = (len(self.down) - 1, len(self.across) - 1)
        places = ((end, at[1]) if axis == 0 else (at[0], end) for end in range(at[axis], ends[axis]))
        return sum(1 for _ in takewhile(lambda place: self._start(*place) == at, places))

    @staticmethod
    def _ruled(rules: Sequence[Rule], at: float, one: float, other: float) -> bool:
        middle = (one + other) / 2
        return any(abs(place - at) <= _NEAR and low - 1 <= middle <= high + 1 for place, low, high in rules)


@dataclass
class Page:
    """What is on a page: lines in the order in which they were drawn, and tables."""

    lines: list[Line]
    grids: list[Grid] = field(default_factory=list)


def read_page(page: Any, names: GlyphNames) -> Page:
    """Return the lines and the ruled tables of a page of pypdfium2. ``names`` are those of the file's glyphs."""
    import pypdfium2.raw as pdfium

    objects = list(islice(_objects(pdfium, page), _OBJECTS_MOST + 1))
    if len(objects) > _OBJECTS_MOST:
        raise UnreadableError(f"a PDF page of more than {_OBJECTS_MOST:,} objects")
    text = page.get_textpage()
    if (count := text.count_chars()) > _LETTERS_MOST:
        raise UnreadableError(f"a PDF page of {count:,} letters")
    lines = [Line(tuple(part)) for words in _lines(pdfium, text, count, names) for part in _split_rows(words)]
    paths = list(_paths(pdfium, objects))
    return Page(_with_dots(lines, [box for box, _ in paths]), list(_grids(*_rules(paths))))


def _lines(pdfium: Any, text: Any, count: int, names: GlyphNames) -> Iterator[list[Word]]:
    """Yield the words of each line, with the hyphens at line ends that PDFium removes."""
    styles: dict[int, Style] = {}
    box = pdfium.FS_RECTF()
    words: list[Word] = []
    letters, style = "", Style(0, False, False)
    places: list[_Box] = []

    def end_word() -> None:
        nonlocal letters, places
        if letters:
            sides = list(zip(*places, strict=True))
            words.append(Word(letters, min(sides[0]), min(sides[1]), max(sides[2]), max(sides[3]), style))
        letters, places = "", []

    for number in range(count):
        letter = _letter(pdfium, text, number, names)
        if letter in "\r\n":
            end_word()
            if words:
                yield words
            words = []
            continue
        if letter.isspace():
            end_word()
            continue
        pdfium.FPDFText_GetLooseCharBox(text, number, box)
        if not letters:
            style = _style(pdfium, text, number, styles)
        letters += "-" if letter == _HYPHEN else letter
        places.append((box.left, box.bottom, box.right, box.top))
        if letter == _HYPHEN:
            end_word()
            yield words
            words = []
    end_word()
    yield words


def _split_rows(words: Sequence[Word]) -> Iterator[list[Word]]:
    """Yield the words of a line, split before a word that is lower and left of the one before it.

    PDFium joins a row of a table in larger letters to the row above.
    """
    part: list[Word] = []
    for word in words:
        size = min(word.style.size, part[-1].style.size) if part else 0.0
        if part and word.left < part[-1].left and part[-1].bottom - word.bottom > size / 2:
            yield part
            part = []
        part.append(word)
    if part:
        yield part


def _letter(pdfium: Any, text: Any, number: int, names: GlyphNames) -> str:
    """Return the text of a glyph, ``LOST_GLYPH`` if the file gives none.

    Without a character PDFium gives the glyph's code in its font. That is often the character as well, if it is one.
    """
    code = pdfium.FPDFText_GetUnicode(text, number)
    letter = chr(code)
    if pdfium.FPDFText_HasUnicodeMapError(text, number) == 1:
        named = names.text(_font(pdfium, text, number)[0], code)
        return named or (LOST_GLYPH if _is_meaningless(letter) or letter.isspace() else letter)
    if letter in "\x02\ufffe\u00ad" and pdfium.FPDFText_IsHyphen(text, number) == 1:
        return _HYPHEN
    return LOST_GLYPH if _is_meaningless(letter) else _BULLETS.get(letter, letter)


def _is_meaningless(letter: str) -> bool:
    """Return whether a character has no meaning: control, private use, unassigned, surrogate, or replacement."""
    if letter in _BULLETS or letter.isspace():
        return False
    return letter == "\ufffd" or unicodedata.category(letter) in ("Cc", "Cn", "Co", "Cs")


def _font(pdfium: Any, text: Any, number: int) -> tuple[str, int]:
    """Return the name of a character's font, with the prefix of a subset, and the flags of its descriptor."""
    name, flags = ctypes.create_string_buffer(256), ctypes.c_int()
    pdfium.FPDFText_GetFontInfo(text, number, name, len(name), flags)
    return name.value.decode("utf-8", "replace"), flags.value


def _style(pdfium: Any, text: Any, number: int, styles: dict[int, Style]) -> Style:
    """Return the font of a character; it is queried once for each text object."""
    key = ctypes.cast(pdfium.FPDFText_GetTextObject(text, number), ctypes.c_void_p).value or 0
    if key not in styles or not key:
        name, flags = _font(pdfium, text, number)
        font = name.partition("+")[2] or name
        box = pdfium.FS_RECTF()
        pdfium.FPDFText_GetLooseCharBox(text, number, box)
        matrix = pdfium.FS_MATRIX()
        has_matrix = pdfium.FPDFText_GetMatrix(text, number, matrix)
        scale = (matrix.c**2 + matrix.d**2) ** 0.5 if has_matrix else 1.0
        size = pdfium.FPDFText_GetFontSize(text, number) * (scale or 1.0)
        bold = bool(flags & _BOLD_FLAG or _BOLD.search(font))
        bold |= pdfium.FPDFText_GetFontWeight(text, number) >= _BOLD_WEIGHT
        fixed = bool(flags & _FIXED_FLAG or FIXED_FONT.search(font) or _FIXED.search(font))
        styles[key] = Style(round(size * 2) / 2, bold, fixed)
    return styles[key]


def _objects(pdfium: Any, holder: Any, scale: _Scale = (1.0, 1.0, 0.0, 0.0), depth: int = 0) -> Iterator[Any]:
    """Yield the objects of a page, and of the forms on it, each with its scale and offset.

    Not by PdfPage.get_objects, whose time grows with the square of their number.
    """
    count = pdfium.FPDFFormObj_CountObjects if depth else pdfium.FPDFPage_CountObjects
    get = pdfium.FPDFFormObj_GetObject if depth else pdfium.FPDFPage_GetObject
    a, d, e, f = scale
    for number in range(count(holder)):
        object = get(holder, number)
        yield object, scale
        if depth < _DEEPEST_FORM and pdfium.FPDFPageObj_GetType(object) == pdfium.FPDF_PAGEOBJ_FORM:
            m = pdfium.FS_MATRIX()
            pdfium.FPDFPageObj_GetMatrix(object, m)
            yield from _objects(pdfium, object, (m.a * a, m.d * d, m.e * a + e, m.f * d + f), depth + 1)


def _paths(pdfium: Any, objects: Sequence[tuple[Any, _Scale]]) -> Iterator[tuple[_Box, bool]]:
    """Yield the rectangle around each path of a page, and whether the path is a rectangle itself."""
    sides = [ctypes.c_float() for _ in range(4)]
    for path, (a, d, e, f) in objects:
        if pdfium.FPDFPageObj_GetType(path) == pdfium.FPDF_PAGEOBJ_PATH and pdfium.FPDFPageObj_GetBounds(path, *sides):
            left, right = sorted((sides[0].value * a + e, sides[2].value * a + e))
            bottom, top = sorted((sides[1].value * d + f, sides[3].value * d + f))
            yield (left, bottom, right, top), pdfium.FPDFPath_CountSegments(path) in (4, 5)


def _with_dots(lines: Sequence[Line], paths: Iterable[_Box]) -> list[Line]:
    """Return the lines, with a bullet before those that have a dot drawn before them."""
    dots = [box for box in paths if all(_DOT[0] <= side <= _DOT[1] for side in (box[2] - box[0], box[3] - box[1]))]

    def with_dot(line: Line) -> Line:
        first = line.words[0]
        for left, bottom, right, top in dots:
            if first.bottom <= (bottom + top) / 2 <= first.top and 0 < first.left - right <= _DOT_GAP:
                return Line((replace(first, text="\u2022", left=left, right=right), *line.words))
        return line

    return [with_dot(line) for line in lines] if 0 < len(dots) <= _RULES_MOST else list(lines)


def _rules(paths: Iterable[tuple[_Box, bool]]) -> tuple[list[Rule], list[Rule]]:
    """Return the vertical and the horizontal rules of a page, including the edges of rectangles."""
    uprights: list[Rule] = []
    levels: list[Rule] = []
    for (left, bottom, right, top), is_box in paths:
        if right - left <= _THIN < top - bottom:
            uprights.append(((left + right) / 2, bottom, top))
        elif top - bottom <= _THIN < right - left:
            levels.append(((bottom + top) / 2, left, right))
        elif min(right - left, top - bottom) > _THIN and is_box:
            uprights += [(left, bottom, top), (right, bottom, top)]
            levels += [(bottom, left, right), (top, left, right)]
    kept = [list({rule for rule in rules if rule[2] - rule[1] >= _SHORTEST_RULE}) for rules in (uprights, levels)]
    return (kept[0], kept[1]) if len(kept[0]) + len(kept[1]) <= _RULES_MOST else ([], [])


def _grids(uprights: list[Rule], levels: list[Rule]) -> Iterator[Grid]:
    """Yield the tables that touching rules form, with at least two columns and two rows."""
    remaining = [(True, rule) for rule in uprights] + [(False, rule) for rule in levels]
    while remaining:
        group, pending = [], [remaining.pop()]
        while pending:
            current = pending.pop()
            group.append(current)
            touching = [other for other in remaining if _touch(current, other)]
            remaining = [other for other in remaining if other not in touching]
            pending += touching
        level_rules = [rule for upright, rule in group if not upright]
        upright_rules = [rule for upright, rule in group if upright]
        across, down = _places(upright_rules, level_rules), _places(level_rules, upright_rules)[::-1]
        if len(across) > 2 and len(down) > 2:
            yield Grid(tuple(across), tuple(down), tuple(upright_rules), tuple(level_rules))


def _touch(one: tuple[bool, Rule], other: tuple[bool, Rule]) -> bool:
    (upright, (at, low, high)), (upright_too, (at_too, low_too, high_too)) = one, other
    if upright == upright_too:  # one goes on where the other ends
        return abs(at - at_too) <= _NEAR and low <= high_too + _NEAR and low_too <= high + _NEAR
    return low - _NEAR <= at_too <= high + _NEAR and low_too - _NEAR <= at <= high_too + _NEAR


def _places(rules: Sequence[Rule], crossing: Sequence[Rule]) -> list[float]:
    """Return the sorted places of rules and the ends of the rules that cross them; near places are merged."""
    if not rules or not crossing:
        return []
    ends = (min(rule[1] for rule in crossing), max(rule[2] for rule in crossing))
    places = sorted([*(rule[0] for rule in rules), *ends])
    return places[:1] + [high for low, high in pairwise(places) if high - low > _NEAR]


def _joined_text(words: Sequence[str]) -> str:
    """Return the text of a cell, with hyphenated words joined."""
    return cell_text(re.sub(r"([^\W\d_])- (?=[^\W\d_A-Z])", r"\1", " ".join(words)))
