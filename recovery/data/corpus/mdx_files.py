"""MDX as Markdown: without its imports, exports, expressions and the tags of its components, whose content stays.

In a page of plain Markdown only what is surely MDX goes: ECMAScript's own forms of modules, and tags of components that
are closed. HTML, placeholders ("<Name>") and type arguments ("List<String>") stay. So do Notion's callouts, without
their tags. Code, between fences or backticks, is untouched.
"""

from __future__ import annotations

import re
import textwrap

from recovery.data.corpus.markdown import code_lines, parse

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
_LONGEST_TAG, _MOST_UNCLOSED = 20_000, 50  # characters of a tag, tags whose end is searched for in vain
_KEPT = "\ue000{}\ue001"  # in place of code, which is put back at the end
_PUT_BACK = re.compile("\ue000([0-9]+)\ue001")


def plain_markdown(text: str) -> str:
    """Return the Markdown of an MDX page."""
    return _without(text, sure=False)


def without_components(text: str) -> str:
    """Return a page of Markdown without what is MDX or Notion's in it."""
    if not _MAYBE_COMPONENTS.search(text):
        return text
    lines = text.split("\n")
    outside = (line for line, code in zip(lines, code_lines(lines, mdx=True), strict=True) if not code)
    return _without(text, sure=True) if _MAYBE_COMPONENTS.search(_CODE.sub("", "\n".join(outside))) else text


def _without(text: str, *, sure: bool) -> str:
    kept: list[str] = []
    text = re.sub("[\ue000\ue001]", "", text)
    lines = text.split("\n")
    code = code_lines(lines, mdx=True)
    named = _components(text) if sure else None
    if named is not None:
        _add_indented_code(text, code, named)
    shown: list[str] = []
    module_ends = 0
    for number, line in enumerate(lines):
        if code[number]:
            kept.append(line.lstrip(" "))
            shown.append(" " * (len(line) - len(line.lstrip(" "))) + _KEPT.format(len(kept) - 1))
            continue
        if number >= module_ends and (number == module_ends or not lines[number - 1].strip()):
            module_ends = _end_of_module(lines, number, sure)
        if number >= module_ends:
            shown.append(line)

    def keep(match: re.Match[str]) -> str:
        kept.append(match[0])
        return _KEPT.format(len(kept) - 1)

    text = _CODE.sub(keep, "\n".join(shown))
    text = _uncommented(_CALLOUT.sub("", text) if sure else text, _JSX_COMMENT if sure else _COMMENT)
    if not sure or named or len(shown) < len(lines):
        text = _STRING.sub(lambda match: next(part for part in match.groups() if part is not None), text)
        text = _dedented(_untagged(text, named)).replace("\ue001\ue000", "\ue001 \ue000")
    while (put := _PUT_BACK.sub(lambda match: kept[int(match[1])], text)) != text:
        text = put
    return re.sub(r"\n{3,}", "\n\n", text)


def _components(text: str) -> frozenset[str]:
    """Return the names of components with a tag at their begin and at their end, or a tag that is both; "" is <>."""
    both = set(_OPENED.findall(text)) & set(_CLOSED.findall(text))
    found, unclosed = [], 0
    for match in _OPENED.finditer(text):
        if match[1] and match[1] not in both and unclosed < _MOST_UNCLOSED:
            end = _end(text, match.end())
            unclosed += end is None
            found += [match[1]] if end and text[end - 2] == "/" else []
    return frozenset(both | set(found))


def _add_indented_code(text: str, code: list[bool], named: frozenset[str]) -> None:
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
            depth += sum(name in named for name in _OPENED.findall(line)) - len(re.findall(r"/>", line))
            depth -= sum(name in named for name in _CLOSED.findall(line))


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


def _uncommented(text: str, comment: re.Pattern[str]) -> str:
    parts, start = [], 0
    while begun := comment.search(text, start):
        ended = _COMMENT_ENDS[begun[0][-1]].search(text, begun.end())
        if not ended:  # nor do others of its kind end
            break
        parts.append(text[start : begun.start()])
        start = ended.end()
    return "".join([*parts, text[start:]])


def _untagged(text: str, named: frozenset[str] | None) -> str:
    """Return a text without tags, only those of ``named`` components if there are any; a line of tags alone leaves a
    form feed, and the title of a component.
    """
    parts, start, unclosed = [], 0, 0
    for match in _TAG.finditer(text):
        if match.start() < start or unclosed == _MOST_UNCLOSED:
            continue
        typed = text[match.start() - 1 : match.start()].isalnum() and text[match.start() + 1] != "/"  # List<String>
        if named is not None and (typed or (match["name"] or "") not in named):
            continue
        end = _end(text, match.end())
        if end is None:
            unclosed += 1
            continue
        tag = text[match.start() : end]
        line_ends = text.find("\n", end)
        alone = not text[text.rfind("\n", 0, match.start()) + 1 : match.start()].strip()
        alone &= not text[end : line_ends if line_ends >= 0 else None].strip() or named is None
        parts.append(text[start : match.start()])
        component = (match["name"] or "A")[0].isupper()
        titled = _TITLE.search(tag) if component else None
        title = next((part for part in titled.groups() if part), "") if titled else ""
        parts.append(f"\f\n{title}\n\f" if title else "\f" if component and alone else "")
        start = end
    return "".join([*parts, text[start:]])


def _end(text: str, at: int) -> int | None:
    """Return where a tag ends: behind the ">" that is in no text and no expression; None if nowhere."""
    depth, quote = 0, ""
    for here in range(at, min(len(text), at + _LONGEST_TAG)):
        char = text[here]
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'`" and (depth or text[here - 1] == "="):
            quote = char
        elif char in "{}":
            depth += 1 if char == "{" else -1
        elif char == ">" and depth <= 0 and text[here - 1 : here + 1] != "=>":
            return here + 1
    return None


def _dedented(text: str) -> str:
    """Return a text in which what stands within components is not indented: that would be code in Markdown."""
    return "\n\n".join(textwrap.dedent(part).strip("\n") if part.strip() else "" for part in text.split("\f"))
