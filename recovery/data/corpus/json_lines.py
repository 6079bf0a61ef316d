"""JSON Lines with one error per invalid line: shared by documents, prompts and probes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recovery.data.corpus.encodings import NotTextError, decode
from recovery.data.corpus.text import SURROGATES
from recovery.errors import UsageError, first_line

# The fields of a record that hold a conversation.
CHAT_KEYS = ("messages", "conversations", "conversation")
_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")


def load_json(text: str) -> Any:
    """Return the value of a JSON text. Raise JSONDecodeError, or RecursionError, if it is invalid.

    An escaped half of a surrogate pair is refused, since no tokenizer accepts it and no file can hold it.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise json.JSONDecodeError(first_line(error), text, 0) from error
    half = _ESCAPED.search(text)
    if half and SURROGATES.search(json.dumps(value, ensure_ascii=False)):
        raise json.JSONDecodeError("half of a surrogate pair, which is no character,", text, half.start())
    return value


def parse_json_lines(text: str) -> tuple[list[tuple[int, Any]], list[str]]:
    """Return the values of a JSON Lines text with line numbers from 1, and an error message per invalid line."""
    records: list[tuple[int, Any]] = []
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            records.append((number, load_json(line)))
        except (json.JSONDecodeError, RecursionError) as error:
            problems.append(f"line {number}: not valid JSON ({_short(error)})")
    return records, problems


def read_records(path: Path) -> tuple[list[tuple[int, Any]], list[str]]:
    """Return the records of a .jsonl file, or of a .json file with a list (or an object with one list of objects).

    For .json the number is the record's position in the list, from 1. Raises UsageError if the file cannot be read
    or a .json file is invalid.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for, a device may never end
            raise UsageError(f"cannot read {path}: it is not a regular file")
        text = decode(path.read_bytes()).text
        if path.suffix.lower() == ".json":
            return list(enumerate(as_list(load_json(text)), start=1)), []
        return parse_json_lines(text)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except NotTextError as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    except MemoryError as error:
        size = path.stat().st_size / 2**20
        raise UsageError(f"cannot read {path}: its {size:,.0f} MiB need more memory than there is; split it") from error
    except (json.JSONDecodeError, RecursionError) as error:
        records, problems = parse_json_lines(text)  # JSON Lines in a .json file is common
        if records:
            return records, problems
        raise UsageError(f"{path} is not valid JSON: {_short(error)}") from error


def as_list(value: Any) -> list[Any]:
    """Return the records of a JSON value: a list, the one list of objects in an object, or the value alone."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        lists = [v for v in value.values() if isinstance(v, list) and v and all(isinstance(x, dict) for x in v)]
        if len(lists) == 1 and not {"messages", "conversations", "prompt"} & value.keys():
            return lists[0]
    return [value]


def json_text(value: Any) -> Any:
    """Return the list or the object that a text holds as JSON; any other value as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return load_json(value)
        except (json.JSONDecodeError, RecursionError):
            return value
    return value


def json_line(record: Any) -> str:
    """Return a record as one line of JSON that is valid UTF-8: lone surrogates are escaped."""
    return SURROGATES.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(record, ensure_ascii=False))


def write_json_lines(path: Path, records: Iterable[Any]) -> None:
    """Write records, one a line; create the folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json_line(record)}\n" for record in records), encoding="utf-8")


def _short(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return "nested too deeply"
