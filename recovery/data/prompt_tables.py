"""Prompts and conversations from the rows of a table, as the records that :mod:`recovery.data.prompt_records` reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recovery.data.corpus.json_lines import CHAT_KEYS, json_text
from recovery.data.corpus.tables import LIST, TEXT, Table, TableError, of_source, open_hub, open_table, splits_of
from recovery.data.sources import TABLE_SUFFIXES, Source
from recovery.errors import UsageError

QUESTION_KEYS = ("prompt", "question", "instruction", "query", "input")
ANSWER_KEYS = ("answer", "output", "response", "completion")
# Further fields of a record; those of the second line are lists, in CSV files as JSON text.
_FIELDS = ("key", "id", "kind", "context", "system", "system_prompt", "input", *ANSWER_KEYS)
_LISTS = ("tags", "instruction_id_list", "kwargs", "tools", "history")


def is_table(source: Source) -> bool:
    """Whether a source is a table: by its suffix, a folder of ``datasets``, or on the hub."""
    path = source.path
    return bool(source.hub) or path.suffix.lower() in TABLE_SUFFIXES or (path.is_dir() and splits_of(path) is not None)


@dataclass(frozen=True)
class Origin:
    """A table, and in words which column of it holds the prompts, for reports."""

    name: str
    column: str


def read_rows(source: Source) -> tuple[Iterator[tuple[int, Any]], Origin]:
    """Return the rows of a table as numbered records, and where they come from.

    In place of a row that cannot be used there is a ValueError with the reason. Raises UsageError if the table cannot
    be read, or if several columns may hold the prompts.
    """
    try:
        if source.hub:
            table, place, column = open_hub(source)
        else:
            path, place, column = of_source(source)
            table = open_table(path)
        chosen, how = (table.require(column, TEXT, LIST), "") if column else _guess(table, place)
    except TableError as error:
        raise UsageError(f"{source.text}: {error}") from error
    known = ("title", "url", *_FIELDS, *_LISTS)
    rest = [name for name in table.of_kind(TEXT) if name != chosen and name.casefold() not in known]
    note = f"; {table.note}" if table.note else ""
    note += f"; not read: {', '.join(rest)}" if rest else ""
    return _records(source, table, chosen), Origin(Path(place).name, f"from the column {chosen}{how}{note}")


def _guess(table: Table, place: str) -> tuple[str, str]:
    """Return the column of the prompts, and why it is this one."""
    named = table.called(CHAT_KEYS, TEXT, LIST)[:1] or table.called(QUESTION_KEYS, TEXT, LIST)
    if named and named[0].casefold() == "instruction":
        named = named[:1]  # its input belongs to it
    others = (*_FIELDS, *_LISTS, "title", "url")
    found = named or [name for name in table.of_kind(TEXT) if name.casefold() not in others]
    if len(found) == 1:
        return found[0], " (by its name)" if named else " (the only one with text)"
    if found:
        raise TableError(f"which column holds the prompts, {' or '.join(found)}? Name it, as in {place}:{found[0]}")
    raise TableError(f"no column holds prompts; the columns are {table.text()}")


def _records(source: Source, table: Table, column: str) -> Iterator[tuple[int, Any]]:
    others = [name for name in table.called((*_FIELDS, *_LISTS)) if name != column]
    number = 0
    try:
        for number, row in table.rows([column, *others]):
            yield number, ValueError(row) if isinstance(row, str) else _record(row, column)
    except TableError as error:
        raise UsageError(f"{source.text}: {error}") from error
    if not number:
        raise UsageError(f"{source.text}: a table without rows")


def _record(row: dict[str, Any], column: str) -> Any:
    value = row.pop(column, None)
    record = {name.casefold(): cell for name, cell in row.items() if cell is not None}
    record |= {name: json_text(record[name]) for name in _LISTS if name in record}
    if not value:
        return ValueError(f"nothing in the column {column}")
    turns = _turns(value)
    if turns is not None:
        return record | {"messages": turns}
    return record | {column.casefold() if column.casefold() in QUESTION_KEYS else "prompt": value}


def _turns(value: Any) -> list[Any] | None:
    """Return the turns of a conversation, also of one that is written as JSON text; None for any other text."""
    if isinstance(value, list):
        return [json_text(turn) for turn in value]
    found = json_text(value)
    if isinstance(found, list) and found and all(isinstance(t, dict) and {"role", "from"} & t.keys() for t in found):
        return found
    return None
