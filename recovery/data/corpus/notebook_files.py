"""Text of Jupyter notebooks, as Markdown: their Markdown cells as written, and their code between fences.

Outputs are left out: most are pictures, addresses in memory, progress bars or tables that are cut off.
"""

from __future__ import annotations

import json
import re
from typing import Any

from recovery.data.corpus.documents import UnreadableError
from recovery.data.corpus.outline import fence

_LANGUAGE = re.compile(r"[\w+#.-]{1,20}")
_EMBEDDED = re.compile(r"!\[([^\]]*)\]\((?:data|attachment):[^)]*\)|<img\b[^>]*\bsrc=[\"']?data:[^>]*>", re.IGNORECASE)
_TEXT_TYPES = ("text/markdown", "text/x-markdown", "text/restructuredtext", "text/x-rst", "text/plain")


def read_notebook(text: str) -> str:
    """Return the text of a notebook of any version. Raise UnreadableError if it is none."""
    try:
        book = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UnreadableError("not a notebook: no valid JSON") from error
    if not isinstance(book, dict):
        raise UnreadableError("not a notebook: no object with cells")
    sheets = book["worksheets"] if isinstance(book.get("worksheets"), list) else [book]  # before version 4
    cells = [sheet["cells"] for sheet in sheets if isinstance(sheet, dict) and isinstance(sheet.get("cells"), list)]
    if not cells:
        raise UnreadableError("not a notebook: no list of cells")
    language = _language(book)
    blocks = [_block(cell, language) for part in cells for cell in part if isinstance(cell, dict)]
    return "\n\n".join(block for block in blocks if block)


def _language(book: dict[str, Any]) -> str:
    """Return the language of the kernel, "python" if none is named."""
    about = book.get("metadata")
    parts = [about.get(key) for key in ("kernelspec", "language_info")] if isinstance(about, dict) else []
    found = [part.get(key) for part in parts if isinstance(part, dict) for key in ("language", "name")]
    named = [name for name in found if isinstance(name, str) and _LANGUAGE.fullmatch(name)]
    return re.sub(r"^i?python\d*$", "python", named[0].lower()) if named else "python"


def _block(cell: dict[str, Any], language: str) -> str:
    kind = cell.get("cell_type")
    text = _source(cell.get("source", cell.get("input")))
    if not text.strip():
        return ""
    if kind == "code":
        own = cell.get("language")
        return fence(text.strip("\n"), own if isinstance(own, str) and _LANGUAGE.fullmatch(own) else language)
    if kind == "heading":  # before version 4
        level = cell.get("level")
        depth = level if isinstance(level, int) and 1 <= level <= 6 else 1
        return f"{'#' * depth} {' '.join(text.split())}"
    about = cell.get("metadata")
    format = about.get("format", about.get("raw_mimetype")) if isinstance(about, dict) else None
    if kind == "markdown" or (kind == "raw" and format in _TEXT_TYPES):
        return _EMBEDDED.sub(lambda match: match[1] or "", text).strip("\n")
    return ""


def _source(value: Any) -> str:
    """Return the source of a cell, which is a text or its lines."""
    if isinstance(value, list):
        return "".join(line for line in value if isinstance(line, str))
    return value if isinstance(value, str) else ""
