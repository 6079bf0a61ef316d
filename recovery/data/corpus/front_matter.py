"""Front matter of Markdown: values in YAML (---), TOML (+++) or JSON (;;;, or an object) above the text."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from recovery.data.corpus.html_parts import one_line
from recovery.data.corpus.text import tidy
from recovery.errors import first_line

_YAML = re.compile(r"---[ \t]*\n(.*?)\n(?:---|\.\.\.)[ \t]*(?:\n|$)", re.DOTALL)
_FENCED = re.compile(r"(?P<mark>\+{3}|;{3})[ \t]*\n(?P<inner>.*?)\n(?P=mark)[ \t]*(?:\n|$)", re.DOTALL)
_KEY = re.compile(r"""(?:([^\W\d][\w.-]*)|"([^"]+)"|'([^']+)')[ \t]*:(?!//)""")
_MORE = re.compile(r"\s|-(?:\s|$)|#|[\]}]")  # the other lines of YAML: indented, of a list, comments, closing ones
_NESTING = re.compile(r"[\[{]|[-?][ \t]+(?=[-?][ \t])")
_DEEPEST = 1_000  # signs of values within values: more are no front matter, and would exhaust the parser's stack
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # ten times as fast
_NONE = ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True)
class FrontMatter:
    """The values that are text, each on one line, by name; the text below; and a remark if it is damaged."""

    values: Mapping[str, str] = field(default_factory=dict)
    below: str = ""
    note: str = ""


def front_matter(text: str) -> FrontMatter:
    """Return what stands above a text, which is tidy.

    Text between two thematic breaks is none. Damaged YAML is read line by line, as far as it can be; damaged TOML and
    JSON stay text. Both are noted.
    """
    if (found := _YAML.match(text)) and _is_yaml(found[1]):
        below = text[found.end() :].strip()
        try:
            return FrontMatter(_texts(_of_yaml(found[1])), below)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            line = f", line {mark.line + 2}" if mark else ""
            note = f"its front matter is no valid YAML{line}: read line by line"
            return FrontMatter(_by_lines(found[1]), below, note)
    if found := _FENCED.match(text):
        kind, load = ("TOML", tomllib.loads) if found["mark"] == "+++" else ("JSON", _of_json)
        return _loaded(kind, load, found["inner"], text, text[found.end() :])
    if re.match(r"\{\s*\"", text):
        end = _end_of_object(text)
        if end is not None and "\n" in text[:end] and re.match(r"\s*[^\s\[{,]", text[end:]):
            return _loaded("JSON", _of_json, text[:end], text, text[end:])
    return FrontMatter(below=text)


def _loaded(kind: str, load: Callable[[str], Any], inner: str, text: str, below: str) -> FrontMatter:
    try:
        return FrontMatter(_texts(load(inner)), below.strip())
    except (ValueError, RecursionError) as error:
        return FrontMatter(below=text, note=f"its front matter is no valid {kind} ({first_line(error)}): kept as text")


def _is_yaml(text: str) -> bool:
    """Return whether each line may be one of front matter, at least one of them with a key."""
    keys = [bool(_KEY.match(line)) for line in text.split("\n") if line and not _MORE.match(line)]
    return any(keys) and all(keys)


def _of_yaml(text: str) -> Any:
    """Return values in YAML, all scalars as they are written: "1.10" is no number, and "No" no truth value."""
    if len(_NESTING.findall(text)) > _DEEPEST:
        raise ValueError("nested too deeply")
    return yaml.load(text, Loader=_LOADER)


def _of_json(text: str) -> Any:
    return json.loads(text if text.lstrip().startswith("{") else f"{{{text}}}")


def _end_of_object(text: str) -> int | None:
    """Return where the JSON object at the top of a text ends, if a line ends there."""
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return end if re.match(r"[ \t]*(?:\n|$)", text[end:]) else None


def _by_lines(text: str) -> dict[str, str]:
    """Return the values of damaged YAML: of each key alone, or what stands behind it."""
    found: dict[str, str] = {}
    for part in re.split(r"\n(?=[^\s#\]}-])", text):
        key = _KEY.match(part)
        if key is None:
            continue
        behind = part[key.end() :]
        try:
            value = _texts({"": _of_yaml(f"x: {behind.lstrip(' ')}")["x"]}).get("", "")
        except (yaml.YAMLError, ValueError, RecursionError, TypeError, KeyError):
            value = one_line(behind.split("\n")[0]).strip("\"'")
        found[next(filter(None, key.groups()))] = value
    return {name: value for name, value in found.items() if value not in _NONE}


def _texts(values: Any) -> dict[str, str]:
    if not isinstance(values, dict):
        raise ValueError("no names with values")
    texts = {str(k): one_line(tidy(str(v))) for k, v in values.items() if not isinstance(v, dict | list | bool | None)}
    return {name: text for name, text in texts.items() if text not in _NONE}
