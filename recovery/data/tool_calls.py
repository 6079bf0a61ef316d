"""Tools and recorded tool calls of chat records, in the form that chat templates take (the function format)."""

from __future__ import annotations

import json
from typing import Any

from recovery.data.corpus.json_lines import json_text
from recovery.types import Message, tools_of


def read_tools(value: Any) -> list[dict[str, Any]]:
    """Return the tools of a record: JSON schemas as a list, or as JSON text. Raise ValueError if they are none."""
    return _functions(value, "tools", "parameters")


def read_calls(value: Any) -> list[dict[str, Any]]:
    """Return the tool calls of an assistant's turn, arguments as an object. Raise ValueError if they are none."""
    return _functions(value, "tool_calls", "arguments")


def signature(message: Message) -> str:
    """Return what a message has beyond its content, as text: its tool calls, the tools of the conversation."""
    parts = {"calls": message.get("tool_calls"), "tools": tools_of([message])}
    return json.dumps(parts, sort_keys=True, ensure_ascii=False) if any(parts.values()) else ""


def _functions(value: Any, field: str, part: str) -> list[dict[str, Any]]:
    """Return the functions of a list, each under the key "function", as OpenAI's format has them.

    ``part`` of each, which may be JSON text, becomes an object.
    """
    value = json_text(value)
    if not value:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{field} is not a list")
    found = []
    for item in map(json_text, value):
        wrapped = item if isinstance(item, dict) and "function" in item else {"type": "function", "function": item}
        function = json_text(wrapped["function"])
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError(f"{field} has an entry without the name of a function")
        found.append({**wrapped, "function": {**function, part: json_text(function.get(part)) or {}}})
    return found
