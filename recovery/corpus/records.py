"""JSON Lines, read so that one broken line costs one line: shared by documents, prompts and probes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from recovery.corpus.encodings import NotTextError, decode
from recovery.errors import UsageError

_HALVES = re.compile("[\ud800-\udfff]")


def parse_json_lines(text: str) -> tuple[list[tuple[int, Any]], list[str]]:
    """The values of a JSON Lines text with their line numbers (from 1), and a line for each that is broken."""
    records: list[tuple[int, Any]] = []
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            records.append((number, json.loads(line)))
        except (json.JSONDecodeError, RecursionError) as error:
            problems.append(f"line {number}: not valid JSON ({_short(error)})")
    return records, problems


def read_records(path: Path) -> tuple[list[tuple[int, Any]], list[str]]:
    """The records of a .jsonl file, or of a .json file that holds a list (or an object with one list of objects).

    For .json the number is the record's place in the list, from 1. Raises UsageError where the file cannot be
    read or a .json file is not valid.
    """
    try:
        text = decode(path.read_bytes()).text
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except NotTextError as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    if path.suffix.lower() != ".json":
        return parse_json_lines(text)
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        records, problems = parse_json_lines(text)  # JSON Lines under the wrong name is common
        if records:
            return records, problems
        raise UsageError(f"{path} is not valid JSON: {_short(error)}") from error
    return list(enumerate(_as_list(value), start=1)), []


def json_line(record: Any) -> str:
    """A record as one line of JSON that can be written as UTF-8: half a character, as documents hold, is escaped."""
    return _HALVES.sub(lambda half: f"\\u{ord(half[0]):04x}", json.dumps(record, ensure_ascii=False))


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        lists = [v for v in value.values() if isinstance(v, list) and v and all(isinstance(x, dict) for x in v)]
        if len(lists) == 1 and not {"messages", "conversations", "prompt"} & value.keys():
            return lists[0]
    return [value]


def _short(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return "nested too deeply"
