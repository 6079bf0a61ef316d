"""Inline markup of AsciiDoc as HTML: monospaced and stressed text, macros, links, attributes and escapes.

Tables of AsciiDoc as rows of cells of lines.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

from recovery.data.corpus.html_parts import code

_EDGE = r"(?<![\w&;:}])"
_MARKUP = re.compile(
    rf"""
    \\(?P<escaped>[*_`\#^~+{{<\[|(]|(?=[a-z]+:)|(?=[-=]>))
    |(?P<pass>\+{{3}}(?P<passed>.{{1,500}}?)\+{{3}}|pass:[a-z,]{{0,20}}\[(?P<passed_too>[^\]]{{0,500}})\])
    |"`(?P<double>(?=\S)[^`]+)`"|'`(?P<single>(?=\S)[^`]+)`'
    |``(?P<wide>[^`]+)``
    |{_EDGE}(?:\[[^\[\]\n]{{1,60}}\])?`(?P<code>(?=\S)[^`]+)(?<!\s)`(?!\w)
    |\*\*(?P<strong>[^*\n]+)\*\*|__(?P<stress>[^_\n]+)__
    |(?:(?<![\w&;:}}*])\*(?P<bold>(?=[^\s*])[^*]+)(?<!\s)\*(?![\w*]))
    |(?:{_EDGE}_(?P<italic>(?=[^\s_])[^_]+)(?<!\s)_(?!\w))
    |(?:{_EDGE}(?:\[[^\[\]\n]{{1,60}}\])?\#(?P<marked>(?=[^\s\#])[^\#\n]+)(?<!\s)\#(?![\w\#]))
    |(?P<sign>[\^~])(?P<raised>[^\s^~]{{1,40}})(?P=sign)
    |(?<![\w+])\+(?P<plain>(?=[^\s+])[^+\n]+)(?<!\s)\+(?![\w+])
    |\{{(?P<attribute>\w[\w-]*)\}}
    |<<(?P<place>[^<>,\n]+)(?:,(?P<title>[^<>]*))?>>
    |\[\[[\w.-][^\[\]\n]*\]\]
    |\(\(\((?P<terms>[^()]*)\)\)\)|\(\((?P<term>[^()]+)\)\)
    |(?<![\w/])(?P<macro>[a-z][a-z0-9]{{1,20}}):(?P<target>(?!:)[^\s\[\]`"']{{0,300}})
        \[(?P<told>(?:[^\]\\]|\\.){{0,500}})\]
    |[ ]\+(?P<break>\n|\Z)
    """,
    re.VERBOSE | re.DOTALL,
)
_ATTRIBUTES = {
    "empty": "", "blank": "", "sp": " ", "nbsp": " ", "zwsp": "", "wj": "", "apos": "'", "quot": '"', "lsquo": "‘",
    "rsquo": "’", "ldquo": "“", "rdquo": "”", "deg": "°", "plus": "+", "brvbar": "¦", "vbar": "|", "amp": "&",
    "lt": "<", "gt": ">", "startsb": "[", "endsb": "]", "caret": "^", "asterisk": "*", "tilde": "~", "backslash": "\\",
    "backtick": "`", "two-colons": "::", "two-semicolons": ";;", "cpp": "C++", "cxx": "C++", "pp": "++",
}  # fmt: skip
_ADDRESSES = frozenset("http https ftp irc mailto link".split())
_UNSEEN = frozenset("anchor indexterm icon".split())
_SHOWN = frozenset("kbd btn footnote indexterm2 stem latexmath asciimath".split())
_LONGEST_VALUE = 120  # characters of an attribute that is put into text
_NAMED = re.compile(r'(?:^|,)\s*(?!\w+=)"?([^",]*)')


def inline(text: str, attributes: Mapping[str, str]) -> str:
    """Return text with inline markup as HTML."""
    parts, end = [], 0
    for match in _MARKUP.finditer(text):
        parts.append(escape(text[end : match.start()], quote=False))
        parts.append(_html(match, attributes))
        end = match.end()
    return "".join([*parts, escape(text[end:], quote=False)])


def with_attributes(text: str, attributes: Mapping[str, str]) -> str:
    """Return text with the values of its attributes; those without a short value stay."""

    def valued(match: re.Match[str]) -> str:
        value = attributes.get(match[1].lower(), _ATTRIBUTES.get(match[1].lower()))
        return match[0] if value is None or len(value) > _LONGEST_VALUE else value

    return re.sub(r"\{(\w[\w-]*)\}", valued, text)


def _html(match: re.Match[str], attributes: Mapping[str, str]) -> str:
    groups = {name: text for name, text in match.groupdict().items() if text is not None}
    if "escaped" in groups:
        return escape(groups["escaped"], quote=False)
    if "pass" in groups:
        passed = groups.get("passed") or groups.get("passed_too", "")
        return escape(re.sub(r"</?[a-zA-Z][^<>]*>", "", passed), quote=False)
    if inner := groups.get("wide") or groups.get("code"):
        return _code(inner, attributes)
    if inner := groups.get("double"):
        return f"“{inline(inner, attributes)}”"
    if inner := groups.get("single"):
        return f"‘{inline(inner, attributes)}’"
    for name in ("strong", "stress", "bold", "italic", "marked"):
        if name in groups:
            return inline(groups[name], attributes)
    if "raised" in groups:
        tag = "sup" if groups["sign"] == "^" else "sub"
        return f"<{tag}>{inline(groups['raised'], attributes)}</{tag}>"
    if "attribute" in groups:
        return escape(with_attributes(match[0], attributes), quote=False)
    if "macro" in groups:
        return _macro(match, attributes)
    if "break" in groups:
        return "<br>"
    if "place" in groups:
        return inline(groups["title"].strip(), attributes) if groups.get("title") else _label_text(groups["place"])
    return escape(groups.get("plain") or groups.get("term") or "", quote=False)


def _code(text: str, attributes: Mapping[str, str]) -> str:
    literal = re.fullmatch(r"\+(.+)\+", text, re.DOTALL)
    if literal:
        return code(literal[1])
    return code(with_attributes(re.sub(r"\\(?=[*_#{<\[])", "", text), attributes))


def _macro(match: re.Match[str], attributes: Mapping[str, str]) -> str:
    name, target = match["macro"], match["target"]
    argument = match["told"].replace("\\]", "]").strip()
    if name in _UNSEEN or (name == "image" and not target):
        return ""
    if name == "image":
        alt = _NAMED.match(argument)
        return f'<img src="{escape(target)}" alt="{escape(alt[1] if alt else "")}">'
    if name in _SHOWN and not target:
        if name in ("stem", "latexmath", "asciimath"):
            return f"${escape(argument, quote=False)}$"
        return f" ({inline(argument, attributes)})" if name == "footnote" else inline(argument, attributes)
    if name == "menu":
        return escape(" > ".join(filter(None, [target, *re.split(r"\s*(?:>|,)\s*", argument)])), quote=False)
    if name in _ADDRESSES:
        label = re.sub(r",\s*(?:window|role|opts|subject)=.*|\^$", "", argument, flags=re.DOTALL).strip().strip('"')
        address = target if name in ("link", "mailto") else f"{name}:{target}"
        return inline(label, attributes) if label else escape(address, quote=False)
    if name == "xref":
        return inline(argument, attributes) if argument else _label_text(target)
    if re.fullmatch(r"\d\w?", argument):  # of a manual page
        return escape(f"{target}({argument})", quote=False)
    return escape(match[0], quote=False)


def _label_text(label: str) -> str:
    """Return the words of a label."""
    page, _, section = label.strip().partition("#")
    label = section.strip("_") or page.rpartition("/")[2]
    return escape(re.sub(r"[-_]+", " ", label.removesuffix(".adoc")), quote=False)


_BARS = {"|": re.compile(r"(?<!\\)\|"), "!": re.compile(r"(?<!\\)!")}
_SPEC = re.compile(
    r"(?:^|(?<=\s))(?:(?P<columns>\d{1,3})?(?:\.(?P<rows>\d{1,3}))?(?P<sign>[+*]))?(?:[<^>](?:\.[<^>])?|\.[<^>])?"
    r"(?P<style>[aehlmdsv])?$"
)
_COLUMN = re.compile(r"(?:(?P<times>\d{1,3})\*)?[<^>.\d~%]*(?P<style>[aehlmdsv])?")
_MOST, _MOST_ROWS = 1_000, 100  # columns; rows that a cell spans


@dataclass
class StyledCell:
    """A cell: its lines, how many columns and rows it spans, whether it is one of the header, and its style.

    The letter of its style says what it holds: "a" blocks, "m" and "l" code.
    """

    lines: list[str]
    columns: int = 1
    rows: int = 1
    head: bool = False
    style: str = ""


def table_rows(lines: Sequence[str], attributes: str, delimiter: str) -> list[list[StyledCell]]:
    """Return the rows of a table from the lines between its delimiters and the attributes above it."""
    sign = delimiter[0]
    separated = re.search(r'format="?(csv|tsv|dsv)', attributes)
    separator = re.search(r'separator="?(\\t|[^",\s])', attributes)
    if sign in ",:" or separated:
        default = {"csv": ",", "tsv": "\t", "dsv": ":"}[separated[1]] if separated else sign
        csv_delimiter = separator[1].replace("\\t", "\t") if separator else default
        cells = list(_csv_cells(lines, csv_delimiter))
    else:
        bar = _BARS.get(sign, _BARS["|"]) if separator is None else re.compile(re.escape(separator[1]))
        cells = list(_cells(lines, bar))
    styles = _columns(attributes)
    first = next((number for number, (line, _) in enumerate(cells) if line != cells[0][0]), len(cells))
    width = len(styles) or max(1, min(_MOST, sum(cell.columns for _, cell in cells[:first])))
    rows = _arranged([cell for _, cell in cells], width)
    if rows and _has_header(lines, attributes, len(rows[0]), first):
        for cell in rows[0]:
            cell.head = True
    for row in rows:
        if len(row) == len(styles):
            for cell, style in zip(row, styles, strict=True):
                cell.style = cell.style or style
    for cell in (cell for row in rows for cell in row):
        cell.head = cell.head or cell.style == "h"
    return rows


def _has_header(lines: Sequence[str], attributes: str, width: int, first: int) -> bool:
    """Return whether the first row is a header: by an option, or as one line with a blank line below it."""
    if re.search(r"%\w*(?:%\w+)*header|%header|options?=\"?[^\"]*header|opts=\"?[^\"]*header", attributes):
        return True
    first_line = next((number for number, line in enumerate(lines) if line), len(lines))
    below = lines[first_line + 1 : first_line + 3]
    return first_line == 0 and width == first and len(below) == 2 and not below[0] and "noheader" not in attributes


def _columns(attributes: str) -> list[str]:
    """Return the style of each column that the attributes name."""
    match = re.search(r'cols=(?:"([^"]*)"|([^\s,\]]+))', attributes)
    if match is None:
        return []
    styles: list[str] = []
    for part in re.split(r"[,;]", (match[1] or match[2] or "").strip()):
        column = _COLUMN.match(part.strip())
        times = int(column["times"] or 1) if column else 1
        styles += [(column["style"] if column else "") or ""] * min(times, _MOST - len(styles))
    return styles


def _cells(lines: Sequence[str], bar: re.Pattern[str]) -> Iterator[tuple[int, StyledCell]]:
    """Yield each cell with the number of its first line. Spans and style are written before its bar."""
    cell: StyledCell | None = None
    times, cell_start = 1, 0
    for number, line in enumerate(lines):
        *starts, last = bar.split(line)
        for part in starts:
            spec = _SPEC.search(part)
            before = part[: spec.start()] if spec else part
            if cell is not None:
                cell.lines.append(before.rstrip() if cell.lines else before.strip())
                yield from ((cell_start, _copied(cell)) for _ in range(times))
            fields = spec.groupdict() if spec else {}
            count = int(fields.get("columns") or 1)
            times = min(count, _MOST) if fields.get("sign") == "*" else 1
            cell = StyledCell([], 1 if times > 1 else max(1, count), max(1, int(fields.get("rows") or 1)))
            cell.style, cell_start = fields.get("style") or "", number
        if cell is not None:
            cell.lines.append(last.strip() if not cell.lines else last.rstrip())
        elif last.strip():
            cell, cell_start = StyledCell([last.strip()]), number
    if cell is not None:
        yield from ((cell_start, _copied(cell)) for _ in range(times))


def _copied(cell: StyledCell) -> StyledCell:
    return replace(cell, lines=[line.replace("\\|", "|") for line in cell.lines])


def _csv_cells(lines: Sequence[str], delimiter: str) -> Iterator[tuple[int, StyledCell]]:
    try:
        for number, row in enumerate(csv.reader([f"{line}\n" for line in lines if line], delimiter=delimiter)):
            for text in row[:_MOST]:
                yield number, StyledCell(text.strip().split("\n"))
    except csv.Error:
        return


def _arranged(cells: Sequence[StyledCell], width: int) -> list[list[StyledCell]]:
    """Return cells as rows of ``width`` columns; a cell that spans rows occupies columns of the rows below."""
    rows: list[list[StyledCell]] = []
    occupied: list[int] = []  # columns of the next rows that cells above occupy
    room = 0
    for cell in cells:
        while room <= 0:
            room = width - (occupied.pop(0) if occupied else 0)
            if room > 0:
                rows.append([])
        rows[-1].append(cell)
        room -= cell.columns
        cell.columns, cell.rows = min(cell.columns, width), min(cell.rows, _MOST_ROWS)
        for below in range(cell.rows - 1):
            occupied += [0] * (below + 1 - len(occupied))
            occupied[below] += cell.columns
    return rows
