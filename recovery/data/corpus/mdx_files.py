"""MDX as Markdown: without its imports, exports, expressions and the tags of its components, whose content stays.

Code, between fences or backticks, is untouched.
"""

from __future__ import annotations

import re
import textwrap

from recovery.data.corpus.markdown import code_lines

_MODULE = re.compile(r"(?:import|export)\b(?=\s*[\w{*\"'])")
_COMMENT, _COMMENT_ENDS = re.compile(r"\{\s{0,9}/\*|<!--"), {"*": re.compile(r"\*/\s{0,9}\}"), "-": re.compile("-->")}
_CODE = re.compile(r"(?<!`)(`+)(?!`)(?:[^`\n]|\n(?!\n)|(?!\1(?!`))`)*?\1(?!`)")
_STRING = re.compile(r"\{\s*(?:\"([^\"\n{}]*)\"|'([^'\n{}]*)'|`([^`\n{}$]*)`)\s*\}")
_TAG = re.compile(r"</?(?:(?P<name>[A-Za-z][\w.:-]*)(?=[\s/>{])|(?=>))")  # not the sign of "< 5 ms"
_TITLE = re.compile(r"\b(?:title|label|summary|header)=(?:\"([^\"]+)\"|'([^']+)'|\{\s*[\"'`]([^\"'`{}]+)[\"'`]\s*\})")
_LONGEST_TAG, _MOST_UNCLOSED = 20_000, 50  # characters of a tag, tags whose end is searched for in vain
_KEPT = "\ue000{}\ue001"  # in place of code, which is put back at the end
_PUT_BACK = re.compile("\ue000([0-9]+)\ue001")


def plain_markdown(text: str) -> str:
    """Return the Markdown of an MDX page."""
    kept: list[str] = []
    text = re.sub("[\ue000\ue001]", "", text)
    lines = text.split("\n")
    code = code_lines(lines)
    shown: list[str] = []
    module = False
    for number, line in enumerate(lines):
        if code[number]:
            kept.append(line.lstrip(" "))
            shown.append(" " * (len(line) - len(line.lstrip(" "))) + _KEPT.format(len(kept) - 1))
            continue
        starts = number == 0 or not lines[number - 1].strip()
        module = bool(line.strip()) and (module or (starts and bool(_MODULE.match(line))))
        if not module:
            shown.append(line)

    def keep(match: re.Match[str]) -> str:
        kept.append(match[0])
        return _KEPT.format(len(kept) - 1)

    text = _uncommented(_CODE.sub(keep, "\n".join(shown)))
    text = _STRING.sub(lambda match: next(part for part in match.groups() if part is not None), text)
    text = _dedented(_untagged(text))
    while (put := _PUT_BACK.sub(lambda match: kept[int(match[1])], text)) != text:
        text = put
    return re.sub(r"\n{3,}", "\n\n", text)


def _uncommented(text: str) -> str:
    parts, start = [], 0
    while begun := _COMMENT.search(text, start):
        ended = _COMMENT_ENDS[begun[0][-1]].search(text, begun.end())
        if not ended:  # nor do others of its kind end
            break
        parts.append(text[start : begun.start()])
        start = ended.end()
    return "".join([*parts, text[start:]])


def _untagged(text: str) -> str:
    """Return a text without tags; a line of tags alone leaves a form feed, and the title of a component."""
    parts, start, unclosed = [], 0, 0
    for match in _TAG.finditer(text):
        if match.start() < start or unclosed == _MOST_UNCLOSED:
            continue
        end = _end(text, match.end())
        if end is None:
            unclosed += 1
            continue
        tag = text[match.start() : end]
        alone = not text[text.rfind("\n", 0, match.start()) + 1 : match.start()].strip()
        parts.append(text[start : match.start()])
        component = (match["name"] or "A")[0].isupper()
        named = _TITLE.search(tag) if component else None
        title = next((part for part in named.groups() if part), "") if named else ""
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
