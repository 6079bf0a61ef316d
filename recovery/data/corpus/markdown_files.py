"""MDX as Markdown: without its imports, exports, expressions and the tags of its components, whose content stays.

In a page of plain Markdown only unmistakable MDX is removed: ECMAScript's forms of modules, and tags of components that
are closed. HTML, placeholders ("<Name>") and type arguments ("List<String>") stay, and so does the content of Notion's
callouts. Code, between fences or backticks, is untouched.
"""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from recovery.data.corpus.html_parts import one_line
from recovery.data.corpus.markdown import code_lines, parse
from recovery.data.corpus.text import tidy
from recovery.errors import first_line

_MODULE = re.compile(r"(?:import|export)\b(?=\s*[\w{*\"'])")
_SURE_MODULE = re.compile(
    r"import\s+(?:[\w*{][^\n;'\"]{0,500}\sfrom\s+)?(?:\"[^\"\n]+\"|'[^'\n]+')\s*;?\s*$"
    r"|import\s+(?:type\s+)?\{\s*$"
    r"|export\s+(?:const|let|var)\s+(?:[\w$]+\s*[:=]|[{\[])|export\s+(?:default\s+)?(?:async\s+)?(?:function|class)\b[^.]*[({]"
    r"|export\s+default\s+(?:\w+;?\s*$|[({])|export\s+(?:\{|\*\s+(?:as\s|from\s))"
)
_MAYBE_COMPONENTS = re.compile(r"</?[A-Z]|^(?:import|export)\b|<aside\b|\{\s?/\*", re.MULTILINE)
_OPENED, _CLOSED = re.compile(r"(?<!\w)<([A-Z][\w.]*)(?=[\s/>{])|<(?=>)"), re.compile(r"</([A-Z][\w.]*)\s*>|</(?=>)")
_CALLOUT = re.compile(
    r"^[ \t]*<aside\b[^<>]*>[ \t]*(?:\n[ \t]*<img\b[^<>]*>[ \t]*(?=\n))?|[ \t]*</aside>[ \t]*$", re.MULTILINE
)  # of Notion, with its icon
_COMMENT, _COMMENT_ENDS = re.compile(r"\{\s{0,9}/\*|<!--"), {"*": re.compile(r"\*/\s{0,9}\}"), "-": re.compile("-->")}
_JSX_COMMENT = re.compile(r"\{\s{0,9}/\*")
_CODE = re.compile(r"(?<!`)(`+)(?!`)(?:[^`\n]|\n(?!\n)|(?!\1(?!`))`)*?\1(?!`)")
_STRING = re.compile(r"\{\s*(?:\"([^\"\n{}]*)\"|'([^'\n{}]*)'|`([^`\n{}$]*)`)\s*\}")
_TAG = re.compile(r"</?(?:(?P<name>[A-Za-z][\w.:-]*)(?=[\s/>{])|(?=>))")  # not the sign of "< 5 ms"
_TITLE = re.compile(
    r"\b(?:title|label|summary|header|alt)=(?:\"([^\"]+)\"|'([^']+)'|\{\s*[\"'`]([^\"'`{}]+)[\"'`]\s*\})"
)
_LONGEST_MODULE = 100  # lines
_LONGEST_TAG, _MOST_UNCLOSED = 20_000, 50  # characters of a tag; tags without an end
_PLACEHOLDER = "\ue000{}\ue001"  # stands for code, which is restored at the end
_PUT_BACK = re.compile("\ue000([0-9]+)\ue001")


def plain_markdown(text: str) -> str:
    """Return the Markdown of an MDX page."""
    return _without(text, sure=False)


def without_components(text: str) -> str:
    """Return a page of Markdown without parts of MDX, and without the tags of Notion's callouts."""
    if not _MAYBE_COMPONENTS.search(text):
        return text
    lines = text.split("\n")
    outside = (line for line, code in zip(lines, code_lines(lines, mdx=True), strict=True) if not code)
    return _without(text, sure=True) if _MAYBE_COMPONENTS.search(_CODE.sub("", "\n".join(outside))) else text


def _without(text: str, *, sure: bool) -> str:
    code_texts: list[str] = []
    text = re.sub("[\ue000\ue001]", "", text)
    lines = text.split("\n")
    code = code_lines(lines, mdx=True)
    components = _components(text) if sure else None
    if components is not None:
        _add_indented_code(text, code, components)
    visible: list[str] = []
    module_ends = 0
    for number, line in enumerate(lines):
        if code[number]:
            code_texts.append(line.lstrip(" "))
            visible.append(" " * (len(line) - len(line.lstrip(" "))) + _PLACEHOLDER.format(len(code_texts) - 1))
            continue
        if number >= module_ends and (number == module_ends or not lines[number - 1].strip()):
            module_ends = _end_of_module(lines, number, sure)
        if number >= module_ends:
            visible.append(line)

    def keep(match: re.Match[str]) -> str:
        code_texts.append(match[0])
        return _PLACEHOLDER.format(len(code_texts) - 1)

    text = _CODE.sub(keep, "\n".join(visible))
    text = _without_comments(_CALLOUT.sub("", text) if sure else text, _JSX_COMMENT if sure else _COMMENT)
    if not sure or components or len(visible) < len(lines):
        text = _STRING.sub(lambda match: next(part for part in match.groups() if part is not None), text)
        text = _dedented(_without_tags(text, components)).replace("\ue001\ue000", "\ue001 \ue000")
    while (restored := _PUT_BACK.sub(lambda match: code_texts[int(match[1])], text)) != text:
        text = restored
    return re.sub(r"\n{3,}", "\n\n", text)


def _components(text: str) -> frozenset[str]:
    """Return the names of components with an opening and a closing tag, or a self-closing one; "" is <>."""
    paired = set(_OPENED.findall(text)) & set(_CLOSED.findall(text))
    self_closing, unclosed = [], 0
    for match in _OPENED.finditer(text):
        if match[1] and match[1] not in paired and unclosed < _MOST_UNCLOSED:
            end = _tag_end(text, match.end())
            unclosed += end is None
            self_closing += [match[1]] if end and text[end - 2] == "/" else []
    return frozenset(paired | set(self_closing))


def _add_indented_code(text: str, code: list[bool], components: frozenset[str]) -> None:
    """Mark the indented code of Markdown; within components it is text."""
    lines = text.split("\n")
    if not any(line.startswith(("    ", "\t")) and not inside for line, inside in zip(lines, code, strict=True)):
        return
    blocks = {t.map[0]: t.map[1] for t in parse(text).tokens if t.type == "code_block" and t.map}
    depth = 0
    for number, line in enumerate(lines):
        if number in blocks and depth <= 0:
            code[number : blocks[number]] = [True] * (blocks[number] - number)
        if not code[number]:
            depth += sum(name in components for name in _OPENED.findall(line)) - len(re.findall(r"/>", line))
            depth -= sum(name in components for name in _CLOSED.findall(line))


def _end_of_module(lines: list[str], number: int, sure: bool) -> int:
    """Return the number of the line below the import or export that line ``number`` begins, or ``number``."""
    if not (_SURE_MODULE if sure else _MODULE).match(lines[number]):
        return number
    depth = 0
    for last in range(number, min(len(lines), number + _LONGEST_MODULE) if sure else number):
        depth += sum(char in "{([" for char in lines[last]) - sum(char in "})]" for char in lines[last])
        if depth <= 0:
            return last + 1
    return next((last for last in range(number, len(lines)) if not lines[last].strip()), len(lines))


def _without_comments(text: str, comment: re.Pattern[str]) -> str:
    parts, start = [], 0
    while begun := comment.search(text, start):
        ended = _COMMENT_ENDS[begun[0][-1]].search(text, begun.end())
        if not ended:  # later ones are not closed either
            break
        parts.append(text[start : begun.start()])
        start = ended.end()
    return "".join([*parts, text[start:]])


def _without_tags(text: str, components: frozenset[str] | None) -> str:
    """Return a text without tags, or only without those of the given ``components``. A component on a line of its own
    leaves a form feed, and its title if it has one.
    """
    parts, start, unclosed = [], 0, 0
    for match in _TAG.finditer(text):
        if match.start() < start or unclosed == _MOST_UNCLOSED:
            continue
        generic = text[match.start() - 1 : match.start()].isalnum() and text[match.start() + 1] != "/"  # List<String>
        if components is not None and (generic or (match["name"] or "") not in components):
            continue
        end = _tag_end(text, match.end())
        if end is None:
            unclosed += 1
            continue
        tag = text[match.start() : end]
        line_ends = text.find("\n", end)
        is_own_line = not text[text.rfind("\n", 0, match.start()) + 1 : match.start()].strip()
        is_own_line &= not text[end : line_ends if line_ends >= 0 else None].strip() or components is None
        parts.append(text[start : match.start()])
        component = (match["name"] or "A")[0].isupper()
        title_match = _TITLE.search(tag) if component else None
        title = next(filter(None, title_match.groups()), "") if title_match else ""
        parts.append(f"\f\n{title}\n\f" if title else "\f" if component and is_own_line else "")
        start = end
    return "".join([*parts, text[start:]])


def _tag_end(text: str, at: int) -> int | None:
    """Return where a tag ends, after the first ">" outside of strings and expressions; None if it has no end."""
    depth, quote = 0, ""
    for place in range(at, min(len(text), at + _LONGEST_TAG)):
        char = text[place]
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'`" and (depth or text[place - 1] == "="):
            quote = char
        elif char in "{}":
            depth += 1 if char == "{" else -1
        elif char == ">" and depth <= 0 and text[place - 1 : place + 1] != "=>":
            return place + 1
    return None


def _dedented(text: str) -> str:
    """Return a text without the indentation within components, which would be code in Markdown."""
    return "\n\n".join(textwrap.dedent(part).strip("\n") if part.strip() else "" for part in text.split("\f"))


# Front matter of Markdown: values in YAML (---), TOML (+++) or JSON (;;;, or an object) above the text.

_YAML = re.compile(r"---[ \t]*\n(.*?)\n(?:---|\.\.\.)[ \t]*(?:\n|$)", re.DOTALL)
_FENCED = re.compile(r"(?P<mark>\+{3}|;{3})[ \t]*\n(?P<inner>.*?)\n(?P=mark)[ \t]*(?:\n|$)", re.DOTALL)
_KEY = re.compile(r"""(?:([^\W\d][\w.-]*)|"([^"]+)"|'([^']+)')[ \t]*:(?!//)""")
_MORE = re.compile(r"\s|-(?:\s|$)|#|[\]}]")  # other lines of YAML: indented, list entries, comments, closing brackets
_NESTING = re.compile(r"[\[{]|[-?][ \t]+(?=[-?][ \t])")
_DEEPEST = 1_000  # signs of nested values: more would exhaust the parser's stack
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # ten times as fast
_NONE = ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True)
class FrontMatter:
    """The values that are text, each on one line, by name; the text below; and a remark if it is damaged."""

    values: Mapping[str, str] = field(default_factory=dict)
    below: str = ""
    note: str = ""


def front_matter(text: str) -> FrontMatter:
    """Return the front matter of a tidy text.

    Text between two thematic breaks is no front matter. Damaged YAML is read line by line as far as possible; damaged
    TOML and JSON stay text. Both are noted.
    """
    if (match := _YAML.match(text)) and _is_yaml(match[1]):
        below = text[match.end() :].strip()
        try:
            return FrontMatter(_texts(_load_yaml(match[1])), below)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            line = f", line {mark.line + 2}" if mark else ""
            note = f"its front matter is no valid YAML{line}: read line by line"
            return FrontMatter(_by_lines(match[1]), below, note)
    if match := _FENCED.match(text):
        kind, load = ("TOML", tomllib.loads) if match["mark"] == "+++" else ("JSON", _load_json)
        return _front_matter_by(kind, load, match["inner"], text, text[match.end() :])
    if re.match(r"\{\s*\"", text):
        end = _end_of_object(text)
        if end is not None and "\n" in text[:end] and re.match(r"\s*[^\s\[{,]", text[end:]):
            return _front_matter_by("JSON", _load_json, text[:end], text, text[end:])
    return FrontMatter(below=text)


def _front_matter_by(kind: str, load: Callable[[str], Any], inner: str, text: str, below: str) -> FrontMatter:
    try:
        return FrontMatter(_texts(load(inner)), below.strip())
    except (ValueError, RecursionError) as error:
        return FrontMatter(below=text, note=f"its front matter is no valid {kind} ({first_line(error)}): kept as text")


def _is_yaml(text: str) -> bool:
    """Return whether all lines may be front matter, and at least one has a key."""
    keys = [bool(_KEY.match(line)) for line in text.split("\n") if line and not _MORE.match(line)]
    return any(keys) and all(keys)


def _load_yaml(text: str) -> Any:
    """Return values in YAML with all scalars as texts: "1.10" is not a number, "No" not a truth value."""
    if len(_NESTING.findall(text)) > _DEEPEST:
        raise ValueError("nested too deeply")
    return yaml.load(text, Loader=_LOADER)


def _load_json(text: str) -> Any:
    return json.loads(text if text.lstrip().startswith("{") else f"{{{text}}}")


def _end_of_object(text: str) -> int | None:
    """Return where the JSON object at the top of a text ends, if a line ends there."""
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return end if re.match(r"[ \t]*(?:\n|$)", text[end:]) else None


def _by_lines(text: str) -> dict[str, str]:
    """Return the values of damaged YAML, each parsed alone or, if that fails, the rest of its line."""
    values: dict[str, str] = {}
    for part in re.split(r"\n(?=[^\s#\]}-])", text):
        key = _KEY.match(part)
        if key is None:
            continue
        rest_of_entry = part[key.end() :]
        try:
            value = _texts({"": _load_yaml(f"x: {rest_of_entry.lstrip(' ')}")["x"]}).get("", "")
        except (yaml.YAMLError, ValueError, RecursionError, TypeError, KeyError):
            value = one_line(rest_of_entry.split("\n")[0]).strip("\"'")
        values[next(filter(None, key.groups()))] = value
    return {name: value for name, value in values.items() if value not in _NONE}


def _texts(values: Any) -> dict[str, str]:
    if not isinstance(values, dict):
        raise ValueError("no names with values")
    texts = {str(k): one_line(tidy(str(v))) for k, v in values.items() if not isinstance(v, dict | list | bool | None)}
    return {name: text for name, text in texts.items() if text not in _NONE}
