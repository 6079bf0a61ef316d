"""The text of a PDF file as Markdown, from the lines of its pages: headings, paragraphs, lists, code and tables."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from recovery.data.corpus.outline import Cell, Outline, cell_text
from recovery.data.corpus.pdf_layout import Grid, Line, Page, Word

_HYPHENATED = re.compile("([\\w-]{0,60}\\w)[-\u200b]\n(\\w)")  # U+200B: a place where a word may be broken
_NUMBER, _DIGITS = re.compile(r"\d+|\b[ivxl]+\b"), re.compile(r"\d+")
_DEEPEST = 3  # lines of a header or a footer
_NEAR, _FEWEST = 4, 3  # a running line is on at least _FEWEST of the pages within _NEAR
_OFTEN = 0.2  # share of the pages with a header at the same height
_LEADERS = re.compile(r"(?:\. ?){5,}[ ]*(?:\d+|[ivxlc]+)$")  # of a line in a table of contents
_PAGE = re.compile(r"\d+|[ivxlc]+")
_BULLET = re.compile(r"(?:[•◦▪▫‣●○■□–—∙·*\uf0b7\uf0a7]|o(?= [A-Z]))\s+(?=\S)")
_NUMBERED = re.compile(r"(\d{1,3})[.)]\s+(?=\S)")
_LARGER = 1.12  # a heading's letters, times those of the text
_LONGEST_HEADING = 16  # words
_PARAGRAPH_GAP = 1.75  # letters' heights from line to line, at least, where a paragraph ends
_COLUMN_GAP = 1.6  # letters' heights between the columns of a table without rules
_FEWEST_ROWS, _LONGEST_ROW = 3, 3  # of such a table; lines
_CLOSE = 1.3  # letters' heights between lines of one paragraph
_SAME = 3.0  # points: lines that begin at the same place


def document_text(pages: Sequence[Page]) -> str:
    """Return the text of all pages, without running headers, footers and tables of contents."""
    bare = [_without_contents(lines) for lines in _without_running_lines([_level_lines(page.lines) for page in pages])]
    writer = _Writer(*_styles(chain.from_iterable(bare)))
    for page, lines in zip(pages, bare, strict=True):
        writer.page(lines, page.grids)
    return writer.text


def _without_running_lines(pages: Sequence[Sequence[Line]]) -> list[list[Line]]:
    """Return the lines of each page without those at the top or bottom of several pages, page numbers ignored."""
    rows = [_rows(lines) for lines in pages]
    removed: list[set[int]] = [set() for _ in pages]
    heights: Counter[int] = Counter()
    for edge in (0, -1) * _DEEPEST:
        places = defaultdict(list)
        for number, page in enumerate(rows):
            if page:
                places[_NUMBER.sub("#", page[edge][0])].append(number)
        running: set[int] = set()
        for key, found in places.items():
            if key == "#" and len({rows[page][edge][0] for page in found}) < len(found):  # not page numbers
                continue
            for number in found:
                near = (other for other in found if abs(other - number) <= _NEAR)
                if sum(_counts_pages(number, other, rows, edge) for other in near) >= _FEWEST:
                    running.add(number)
        for number in running:
            _, numbers = rows[number].pop(edge)
            removed[number] |= numbers
            heights[_height(pages[number], numbers)] += 1
    frequent = {height for height, count in heights.items() if count >= max(_FEWEST, len(pages) * _OFTEN)}
    for number, page in enumerate(rows):  # headers that differ by section are at the same height
        for edge in (0, -1):
            if page and _height(pages[number], page[edge][1]) in frequent:
                removed[number] |= page.pop(edge)[1]
    return [[line for at, line in enumerate(lines) if at not in out] for lines, out in zip(pages, removed, strict=True)]


def _level_lines(lines: Sequence[Line]) -> list[Line]:
    """Return the lines, with consecutive ones at the same height joined: PDFium breaks lines at wide gaps."""
    merged: list[Line] = []
    for line in lines:
        if merged and abs(merged[-1].base - line.base) < 1 and merged[-1].right < line.left:
            merged[-1] = Line((*merged[-1].words, *line.words))
        else:
            merged.append(line)
    return merged


def _height(lines: Sequence[Line], numbers: set[int]) -> int:
    return round(lines[min(numbers)].base)


def _without_contents(lines: Sequence[Line]) -> list[Line]:
    """Return the lines without those of a table of contents: leaders or, beside such lines, a gap before a number."""
    remaining = [line for line in lines if not _LEADERS.search(line.text)]
    if len(lines) - len(remaining) < _FEWEST:
        return remaining
    return [line for line in remaining if len(_parts(line)) < 2 or not _PAGE.fullmatch(line.words[-1].text)]


def _rows(lines: Sequence[Line]) -> list[tuple[str, set[int]]]:
    """Return the text at each height and the numbers of its lines, from the top of a page."""
    at_height: dict[int, list[int]] = defaultdict(list)
    for number, line in enumerate(lines):
        at_height[round(line.base)].append(number)
    rows = []
    for height in sorted(at_height, reverse=True):
        numbers = sorted(at_height[height], key=lambda number: lines[number].left)
        rows.append((" ".join(lines[number].text for number in numbers), set(numbers)))
    return rows


def _counts_pages(page: int, other_page: int, rows: Sequence[Sequence[tuple[str, set[int]]]], edge: int) -> bool:
    """Return whether the numbers in a line of two pages are equal or count pages, unlike numbers in a table."""
    first, second = ([int(number) for number in _DIGITS.findall(rows[at][edge][0])] for at in (page, other_page))
    steps = {b - a for a, b in zip(first, second, strict=False)}
    return len(first) == len(second) and steps <= {0, other_page - page}


def _styles(lines: Iterable[Line]) -> tuple[float, list[tuple[float, bool]]]:
    """Return the size of the running text, and the sizes of headings, with whether they are bold, from the largest."""
    letters: Counter[float] = Counter()
    styles: Counter[tuple[float, bool]] = Counter()
    for line in lines:
        for word in line.words:
            if not word.style.fixed:
                letters[word.style.size] += len(word.text)
        styles[line.style.size, line.style.bold] += 1
    body = letters.most_common(1)[0][0] if letters else 0.0
    return body, sorted((style for style in styles if style[0] >= body * _LARGER), reverse=True)


@dataclass
class _Writer:
    """Writes the blocks of a document; ``_open`` are the lines of the current block, which may continue."""

    body: float
    sizes: list[tuple[float, bool]]
    _outline: Outline = field(default_factory=Outline)
    _open: list[Line] = field(default_factory=list)
    _kind: str = ""  # of the open lines: "text", "code", "item", "heading <level>"
    _items: list[float] = field(default_factory=list)  # where the open items of a list begin
    _table: tuple[int, list[list[Cell]]] | None = None  # columns, rows

    @property
    def text(self) -> str:
        self._end()
        return _HYPHENATED.sub(_joined, self._outline.text)

    def page(self, lines: Sequence[Line], grids: Sequence[Grid]) -> None:
        """Add a page. A table is written at its first line; an unfinished paragraph continues from the page before."""
        tables = _tables(lines, grids)
        grids = list(tables)
        written_grids: set[int] = set()
        number, is_first = 0, True
        while number < len(lines):
            line = lines[number]
            if (at := _grid_of(line, grids)) is not None:
                if at not in written_grids:
                    self._rows(len(grids[at].across) - 1, tables[grids[at]])
                    written_grids.add(at)
                number += 1
            elif unruled := _unruled_table(lines, number, grids):
                cells = [[Cell(cell_text(text), 1, 1, False) for text in row] for row, _ in unruled]
                self._rows(max(map(len, cells)), cells)
                number += sum(count for _, count in unruled)
            else:
                self._line(line, lines[number + 1] if number + 1 < len(lines) else None, is_first)
                number += 1
            is_first = False

    def _rows(self, columns: int, rows: list[list[Cell]]) -> None:
        """Add rows of a table, which continues on the next page if that has as many columns."""
        if self._table is None or self._table[0] != columns or self._open:
            self._end()
            self._table = (columns, [])
        written = self._table[1]
        written.extend(rows[1:] if written and rows and rows[0] == written[0] else rows)

    def _line(self, line: Line, below: Line | None, is_first: bool) -> None:
        above = self._open[-1] if self._open else None
        level = self._level(line, above, below)
        bullet = None if level or line.style.fixed else _BULLET.match(line.text) or _NUMBERED.match(line.text)
        code = line.style.fixed and not self._is_inline_code(line, above, below)
        kind = f"heading {level}" if level else "code" if code else "item" if bullet else "text"
        if above is not None and not bullet and self._continues(kind, above, line, is_first):
            self._open.append(line)
            return
        self._end()
        self._open, self._kind = [line], kind
        if kind == "item":
            self._items = [*(at for at in self._items if at < line.left - _SAME), line.left]
        elif not (self._items and line.left > self._items[0] + _SAME):
            self._items = []

    def _is_inline_code(self, line: Line, above: Line | None, below: Line | None) -> bool:
        """Return whether a line of code is part of a paragraph: text is close above it, and no code below."""
        if above is None or self._kind not in ("text", "item") or above.text[-1:] == ":":
            return False
        is_single = below is None or not below.style.fixed
        return is_single and 0 < above.base - line.base < _CLOSE * max(line.style.size, above.style.size)

    def _continues(self, kind: str, above: Line, line: Line, is_first_line: bool) -> bool:
        """Return whether a line belongs to the block of the one above."""
        height = max(above.style.size, line.style.size, 1.0)
        if is_first_line:  # the sentence goes on
            text = above.text
            is_unfinished = text[-1:].isalnum() or text[-1:] in (",", ";", "-")
            return kind == "text" and self._kind in ("text", "item") and is_unfinished and line.text[:1].islower()
        drop = above.base - line.base
        if kind == "code" and self._kind == "code":
            return -1 < drop < height * 3
        next_column = drop < -height * 2  # to the top of the next column
        if next_column:
            return kind == "text" and self._kind in ("text", "item") and line.text[:1].islower()
        is_near = drop < height * _PARAGRAPH_GAP
        if kind.startswith("heading"):
            return kind == self._kind and drop < height * 2 and len(self._open) < 3
        if self._kind == "item":
            return is_near and kind == "text" and line.left > self._items[-1] + 1
        indented = height * 0.8 < line.left - above.left < height * 3 and above.text[-1:] in ".:!?)"
        return is_near and kind == self._kind == "text" and not indented

    def _level(self, line: Line, above: Line | None, below: Line | None) -> int:
        """Return the level of a heading: by the size of its letters, or below all others if it is bold; else 0."""
        style, text = line.style, line.text
        if (style.fixed and not style.bold) or len(line.words) > _LONGEST_HEADING or sum(map(str.isalpha, text)) < 2:
            return 0
        if (style.size, style.bold) in self.sizes:
            return self.sizes.index((style.size, style.bold)) + 1
        if not style.bold or style.fixed or style.size < self.body - 0.5 or text[-1] in ".,;:" or _BULLET.match(text):
            return 0
        is_apart = above is None or above.base - line.base > style.size * 1.5 or above.base < line.base
        has_text_below = below is not None and below.base < line.base and abs(below.left - line.left) <= _SAME
        return len(self.sizes) + 1 if is_apart and has_text_below and below and not below.style.bold else 0

    def _end(self) -> None:
        """Write the open block."""
        lines, self._open = self._open, []
        if self._table is not None:
            rows, self._table = self._table[1], None
            self._outline.table(rows)
        if not lines:
            return
        if self._kind.startswith("heading"):
            self._outline.heading(_flowing(lines), int(self._kind.split()[1]))
        elif self._kind == "code":
            _write_code(self._outline, lines)
        elif self._kind == "item":
            self._item(lines)
        else:
            self._outline.paragraph("\n".join(line.text for line in lines))

    def _item(self, lines: Sequence[Line]) -> None:
        text = _flowing(lines)
        numbered = _NUMBERED.match(text)
        bullet = numbered or _BULLET.match(text)
        number = int(numbered[1]) if numbered else None
        self._outline.item(text[bullet.end() :] if bullet else text, len(self._items) - 1, number)


def _flowing(lines: Sequence[Line]) -> str:
    """Return the text of lines as one line, with hyphenated words joined."""
    return _HYPHENATED.sub(_joined, "\n".join(line.text for line in lines)).replace("\n", " ")


def _write_code(outline: Outline, lines: Sequence[Line]) -> None:
    """Add lines of code, indented as they are on the page, with the gaps between their words."""
    margin, last = min(line.left for line in lines), lines[0]
    for line in lines:
        first = line.words[0]
        wide = max((first.right - first.left) / max(len(first.text), 1), 0.1)
        if last.base - line.base > line.style.size * _PARAGRAPH_GAP:
            outline.code_line("")
        text = " " * min(round((line.left - margin) / wide), 60)
        end = line.left
        for word in line.words:
            text += " " * max(round((word.left - end) / wide), 1 if text.strip() else 0) + word.text
            end = word.right
        outline.code_line(text)
        last = line


def _tables(lines: Sequence[Line], grids: Sequence[Grid]) -> dict[Grid, list[list[Cell]]]:
    """Return the rows of the grids that are tables; a grid with one text in each row only frames the page."""
    by_grid: dict[int, list[Line]] = {}
    for line in lines:
        if (at := _grid_of(line, grids)) is not None:
            by_grid.setdefault(at, []).append(line)
    rows = {grids[at]: grids[at].rows(grid_lines) for at, grid_lines in by_grid.items()}
    return {grid: body for grid, body in rows.items() if any(sum(bool(cell.text) for cell in row) > 1 for row in body)}


def _grid_of(line: Line, grids: Sequence[Grid]) -> int | None:
    return next((number for number, grid in enumerate(grids) if grid.holds(line.words[0])), None)


def _unruled_table(lines: Sequence[Line], first: int, grids: Sequence[Grid]) -> list[tuple[list[str], int]]:
    """Return the rows of a table without rules that begins at the line ``first``, with their lines; [] if none does.

    Its columns are aligned on several lines, after gaps wider than those between words. A single text close below a
    cell that is not in the first column continues that cell.
    """
    rows: list[tuple[list[str], int]] = []
    columns: list[list[Word]] = []  # the texts of the first row
    for number in range(first, len(lines)):
        line = lines[number]
        parts = _parts(line)
        if line.style.fixed or _grid_of(line, grids) is not None or _BULLET.match(line.text):
            break
        if len(parts) < 2:
            below = [n for n, column in enumerate(columns) if n and abs(line.left - column[0].left) <= _SAME]
            close = 0 < lines[number - 1].base - line.base <= _CLOSE * max(line.style.size, 1.0) + 0.1
            if not (rows and below and close):
                break
            row, count = rows[-1]
            if count == _LONGEST_ROW:  # a paragraph beside its term
                return _if_table(rows[:-1])
            row[below[0]] = _HYPHENATED.sub(_joined, f"{row[below[0]]}\n{line.text}").replace("\n", " ").strip()
            rows[-1] = (row, count + 1)
            continue
        columns = columns or parts
        row = [""] * len(columns)
        for part in parts:
            if (at := next((n for n, column in enumerate(columns) if _aligned(part, column)), None)) is None:
                return _if_table(rows)
            row[at] = " ".join([*row[at].split(), *(word.text for word in part)])
        rows.append((row, 1))
    return _if_table(rows)


def _if_table(rows: list[tuple[list[str], int]]) -> list[tuple[list[str], int]]:
    return rows if len(rows) >= _FEWEST_ROWS or (len(rows) > 1 and min(len(row) for row, _ in rows) > 2) else []


def _aligned(words: Sequence[Word], other_words: Sequence[Word]) -> bool:
    """Return whether two texts are aligned at their left, right or centre."""
    left, right = words[0].left - other_words[0].left, words[-1].right - other_words[-1].right
    return min(abs(left), abs(right), abs(left + right) / 2) <= _SAME


def _parts(line: Line) -> list[list[Word]]:
    """Return the words of a line between wide gaps."""
    parts = [[line.words[0]]]
    for word in line.words[1:]:
        if word.left - parts[-1][-1].right > _COLUMN_GAP * max(word.style.size, 1.0):
            parts.append([])
        parts[-1].append(word)
    return parts


def _joined(split: re.Match[str]) -> str:
    """Return a word that was split at the end of a line; a compound keeps its hyphen, and so do numbers and names."""
    before, after = split.groups()
    if not (before[-1].islower() and after.islower()):
        return split[0]
    return f"{before}-{after}" if "-" in before else before + after
