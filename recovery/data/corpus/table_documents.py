"""Documents from the rows of a table: one text column, with titles and ids if there are columns for them."""

from __future__ import annotations

from typing import Any

from recovery.data.corpus.documents import UnreadableError
from recovery.data.corpus.html_parts import one_line
from recovery.data.corpus.json_lines import CHAT_KEYS
from recovery.data.corpus.readers import (
    TEXT_KEYS,
    Piece,
    Read,
    markdown_text,
    stem,
    with_title,
)
from recovery.data.corpus.tables import LIST, NUMBER, TEXT, Table, TableError

# Names of columns, the first ones first; in capitals or as spreadsheets of German and French authors have them, too.
_TEXTS = (*TEXT_KEYS, "inhalt", "dokument", "artikel", "texte", "contenu")
_TITLES, _KEYS = ("title", "titel", "titre"), ("id", "url")
_LONGEST_KEY = 200  # characters


def table_documents(table: Table, name: str, *, column: str, place: str, limit_mb: float) -> Read:
    """Return the documents of a table.

    ``column`` holds the texts; without one it is guessed. ``name`` is the table's, for titles; ``place`` is how the
    user names it. A text of more than ``limit_mb`` million characters is skipped. Raises UnreadableError if no row can
    be used, or if several columns may hold the texts.
    """
    try:
        chosen, how = (table.require(column, TEXT), "") if column else _guess(table, place)
        return _read(table, name, chosen, how, limit_mb)
    except TableError as error:
        raise UnreadableError(str(error)) from error


def _guess(table: Table, place: str) -> tuple[str, str]:
    """Return the column of the texts, and why it is this one."""
    texts = table.of_kind(TEXT)
    named = [n for n in texts if n in TEXT_KEYS] or table.called(_TEXTS, TEXT)
    found = named or [n for n in texts if n.casefold() not in (*_TITLES, *_KEYS)]
    if len(found) == 1:
        return found[0], " (by its name)" if named else " (the only one with text)"
    if found:
        raise TableError(f"which column holds the texts, {' or '.join(found)}? Name it, as in {place}:{found[0]}")
    if table.called(CHAT_KEYS, LIST):
        raise TableError("chat, not documents (use it as --prompts)")
    raise TableError(f"no column holds text; the columns are {table.text()}")


def _read(table: Table, name: str, column: str, how: str, limit_mb: float) -> Read:
    title = next((n for n in table.called(_TITLES, TEXT) if n != column), None)
    key = next((n for n in table.called(_KEYS, TEXT, NUMBER) if n != column), None)
    read = Read([], [table.note] if table.note else [])
    parts: set[str] = set()
    rows, named = 0, stem(name)
    for number, row in table.rows([n for n in (column, title, key) if n]):
        rows += 1
        text = "" if isinstance(row, str) else row[column] or ""
        if isinstance(row, str):
            read.skipped.append((f"row {number}", row))
        elif not text.strip():
            read.skipped.append((f"row {number}", "no text"))
        elif len(text) > limit_mb * 1e6:
            read.skipped.append((f"row {number}", f"over the limit of {limit_mb:g} million characters a text"))
        else:
            given = one_line(row.get(title or "") or "")
            heading, text = markdown_text(text)
            part = _part(row.get(key or ""), number, parts)
            read.pieces.append(Piece(given or heading or named, with_title(given, text), part))
    if not rows:
        raise UnreadableError("a table without rows")
    if not read.pieces:
        raise UnreadableError(f"none of {rows:,} rows can be used: row 1: {read.skipped[0][1]}")
    others = "".join(f", {what} from {n}" for what, n in (("titles", title), ("ids", key)) if n)
    read.notes.append(f"{len(read.pieces):,} of {rows:,} rows, texts from the column {column}{how}{others}")
    return read


def _part(key: Any, number: int, parts: set[str]) -> str:
    """Return the row's own id, or its number if it has none; marked as a row's number if an earlier row has this id."""
    part = ("" if key is None else one_line(str(key))[:_LONGEST_KEY]) or str(number)
    if part in parts:
        part = f"row {number}"
    while part in parts:  # an earlier row's own id
        part += "'"
    parts.add(part)
    return part
