"""Tables drawn with characters in reStructuredText: grid tables and simple tables, as rows of cells of lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_RULE = re.compile(r"=+(?: +=+)+")
_ENDS = re.compile(r"=[= ]*")
_SPANS = re.compile(r"-[- ]*")
_GRID = re.compile(r"\+(?:[-=]+\+)+")
_HEAD = re.compile(r"\+(?:=+\+)+")
_LARGEST = 500_000  # characters of a grid table, cells of a simple one
_MOST_STEPS = 20  # to find the cells of a grid table, for each of its characters


@dataclass
class TextCell:
    """A cell of a table: its lines, how many columns and rows it spans, and whether it is one of the header."""

    lines: list[str]
    columns: int = 1
    rows: int = 1
    head: bool = False


def begins_simple(line: str) -> bool:
    """Return whether a line is the upper border of a simple table: of one with several columns."""
    return bool(_RULE.fullmatch(line))


def begins_grid(line: str) -> bool:
    """Return whether a line is the upper border of a grid table."""
    return bool(_GRID.fullmatch(line))


def simple_end(lines: Sequence[str], start: int) -> int | None:
    """Return the number of the line behind a simple table, None if it has no lower border."""
    borders = 0
    for number in range(start + 1, len(lines)):
        if _ENDS.fullmatch(lines[number]):
            borders += 1
            if borders == 2 or number + 1 == len(lines) or not lines[number + 1]:
                return number + 1
        elif not lines[number].strip() and borders == 0 and not _goes_on(lines, number):
            return None
    return None


def _goes_on(lines: Sequence[str], number: int) -> bool:
    """Return whether the lower border of a table without a header may follow; it is not looked for far away."""
    return any(_ENDS.fullmatch(line) for line in lines[number : number + 200])


def simple_rows(lines: Sequence[str]) -> list[list[TextCell]] | None:
    """Return the rows of a simple table: a row begins with text in its first column. None if it is enormous."""
    edges = [match.start() for match in re.finditer("=+", lines[0])]
    if len(edges) * len(lines) > _LARGEST:
        return None
    heads = next((number for number in range(1, len(lines) - 1) if _ENDS.fullmatch(lines[number])), 0)
    rows: list[list[TextCell]] = []
    fresh = True
    for number, line in enumerate(lines[1:-1], start=1):
        if _ENDS.fullmatch(line):
            fresh = True
        elif _SPANS.fullmatch(line) and rows and "--" in line:
            rows[-1] = _joined(rows[-1], line, edges)
            fresh = True
        elif not line.strip():
            for cell in rows[-1] if rows else ():
                cell.lines.append("")
        else:
            texts = _cut(line, edges)
            if fresh or texts[0].strip() or not rows:
                rows.append([TextCell([], head=number < heads) for _ in edges])
            fresh = False
            for cell, text in zip(rows[-1], texts, strict=False):
                cell.lines.append("" if text.strip() == "\\" else text.rstrip())
    return rows


def _cut(line: str, edges: Sequence[int]) -> list[str]:
    """Return the parts of a line in the columns; a word that is too long for its column moves the next one."""
    cuts = [0]
    for edge in edges[1:]:
        at = max(edge, cuts[-1])
        if at < len(line) and line[at - 1 : at].strip() and line[cuts[-1] : at].strip():
            at = next((n for n in range(at, len(line)) if line[n] == " "), len(line))
            at += len(line[at:]) - len(line[at:].lstrip())
        cuts.append(at)
    return [line[start:end] for start, end in zip(cuts, [*cuts[1:], len(line)], strict=True)]


def _joined(row: list[TextCell], rule: str, edges: Sequence[int]) -> list[TextCell]:
    """Return a row of which the dashes below say which columns are one cell."""
    starts = [match.start() for match in re.finditer("-+", rule)]
    found: list[TextCell] = []
    for cell, edge in zip(row, edges, strict=False):
        if edge in starts or not found:
            found.append(cell)
            continue
        last = found[-1]
        last.columns += 1
        width = edge - edges[edges.index(edge) - 1]
        pairs = zip(last.lines, cell.lines, strict=False)
        last.lines = [f"{one.ljust(width)}{other}".rstrip() if other else one for one, other in pairs]
    return found


def grid_end(lines: Sequence[str], start: int) -> int:
    """Return the number of the line behind a grid table."""
    end = start
    while end < len(lines) and lines[end].startswith(("+", "|")):
        end += 1
    return end


def grid_rows(lines: Sequence[str]) -> list[list[TextCell]] | None:
    """Return the rows of a grid table, or None if its lines are no table."""
    width = max(map(len, lines))
    if width * len(lines) > _LARGEST or not _GRID.fullmatch(lines[-1]):
        return None
    lines = [line.ljust(width) for line in lines]
    head = next((number for number, line in enumerate(lines) if number and _HEAD.fullmatch(line.rstrip())), 0)
    boxes = _boxes(lines, width)
    if not boxes:
        return None
    tops = sorted({box[0] for box in boxes})
    lefts = sorted({box[1] for box in boxes})
    rows: list[list[TextCell]] = [[] for _ in tops]
    for top, left, bottom, right in sorted(boxes):
        inner = [line[left + 1 : right].removeprefix(" ").rstrip() for line in lines[top + 1 : bottom]]
        columns = sum(left <= other < right for other in lefts)
        spanned = sum(top <= other < bottom for other in tops)
        rows[tops.index(top)].append(TextCell(inner, columns, spanned, top < head))
    return rows


def _boxes(lines: Sequence[str], width: int) -> list[tuple[int, int, int, int]] | None:
    """Return (top, left, bottom, right) of each cell; None if the corners do not close."""
    found: list[tuple[int, int, int, int]] = []
    steps = _MOST_STEPS * width * len(lines)
    open_corners, done = [(0, 0)], set()
    while open_corners:
        corner = open_corners.pop()
        if corner in done or corner[0] == len(lines) - 1 or corner[1] == width - 1:
            continue
        done.add(corner)
        box, used = _box(lines, *corner, steps)
        steps -= used
        if steps < 0:
            return None
        if box is None:
            continue
        top, left, bottom, right = box
        found.append(box)
        open_corners += [(top, right), (bottom, left)]
    covered = sum((bottom - top) * (right - left) for top, left, bottom, right in found)
    return found if covered == (len(lines) - 1) * (len(lines[0].rstrip()) - 1) else None


def _box(lines: Sequence[str], top: int, left: int, most: int) -> tuple[tuple[int, int, int, int] | None, int]:
    """Return the smallest box with this corner, and how many characters were looked at: about ``most``."""
    steps = 0
    for right in range(left + 1, len(lines[top])):
        steps += 1
        if lines[top][right] not in "-=+":
            break
        if lines[top][right] != "+":
            continue
        for bottom in range(top + 1, len(lines)):
            steps += 1
            if steps > most:
                return None, steps
            if lines[bottom][right] not in "|+" or lines[bottom][left] not in "|+":
                break
            if lines[bottom][left] == lines[bottom][right] == "+":
                steps += right - left
                if not lines[bottom][left : right + 1].strip("-=+"):
                    return (top, left, bottom, right), steps
    return None, steps
