"""Text of Word documents, as Markdown: headings, lists and tables keep their structure.

Words that a revision inserted are read, those that it deleted are not. Text within drawings is left out.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from typing import Any

_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_ALTERNATIVES = "{http://schemas.openxmlformats.org/markup-compatibility/2006}AlternateContent"
_LEFT_OUT = {_ALTERNATIVES, *(_WORD + name for name in ("del", "moveFrom", "drawing", "pict", "pPr", "rPr", "tbl"))}
# Content controls and their like hold paragraphs as well as words.
_AROUND = {_WORD + name for name in ("sdt", "sdtContent", "customXml", "ins", "moveTo", "smartTag")}
_MARKS = {_WORD + "tab": "\t", _WORD + "cr": "\n", _WORD + "noBreakHyphen": "-"}
_HEADING = re.compile(r"heading ([1-6])", re.IGNORECASE)


def read_docx(data: bytes) -> tuple[str, list[str]]:
    """Return the title from the properties of a DOCX file, "" without one, and its blocks of text."""
    import docx

    document = docx.Document(io.BytesIO(data))
    named = {style.style_id: _HEADING.fullmatch(style.name or "") for style in document.styles}
    levels = {key: int(found.group(1)) for key, found in named.items() if found}
    return _one_line(document.core_properties.title or ""), list(_blocks(document.element.body, levels))


def _blocks(element: Any, levels: Mapping[str, int]) -> Iterator[str]:
    for child in element:
        if child.tag == _WORD + "p":
            yield _paragraph(child, levels)
        elif child.tag == _WORD + "tbl":
            yield "\n".join(" | ".join(_cells(row)) for row in _within(child, "tr"))
        elif child.tag in _AROUND:
            yield from _blocks(child, levels)


def _paragraph(element: Any, levels: Mapping[str, int]) -> str:
    words = _words(element)
    if not words.strip():
        return ""
    style = element.find(f"{_WORD}pPr/{_WORD}pStyle")
    level = None if style is None else levels.get(style.get(_WORD + "val"))
    if level is not None:
        return f"{'#' * level} {_one_line(words)}"
    return f"- {words}" if element.find(f"{_WORD}pPr/{_WORD}numPr") is not None else words


def _cells(row: Any) -> Iterator[str]:
    """The text of each cell of a row; a cell that spans several columns is there once."""
    for cell in _within(row, "tc"):
        yield _one_line(" ".join(_words(paragraph) for paragraph in _within(cell, "p")))


def _within(element: Any, name: str) -> Iterator[Any]:
    """The children of a name, also those in content controls."""
    for child in element:
        if child.tag == _WORD + name:
            yield child
        elif child.tag in _AROUND:
            yield from _within(child, name)


def _words(element: Any) -> str:
    parts = []
    for child in element:
        if child.tag in _LEFT_OUT:
            continue
        if child.tag == _WORD + "t":
            parts.append(child.text or "")
        elif child.tag == _WORD + "br":  # one that begins a page or a column breaks no line of its own
            parts.append("\n" if child.get(_WORD + "type") in (None, "textWrapping") else "")
        else:
            parts.append(_MARKS.get(child.tag) or _words(child))
    return "".join(parts)


def _one_line(text: str) -> str:
    return " ".join(text.split())
