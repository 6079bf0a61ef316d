"""Inline markup of AsciiDoc as HTML: monospaced and stressed text, macros, links, attributes and escapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

from recovery.data.corpus.html_parts import code

_EDGE = r"(?<![\w&;:}])"
_MARKUP = re.compile(
    rf"""
    \\(?P<escaped>[*_`\#^~+{{<\[|(]|(?=[a-z]+:)|(?=[-=]>))
    |(?P<pass>\+{{3}}(?P<passed>.{{1,500}}?)\+{{3}}|pass:[a-z,]{{0,20}}\[(?P<passed_too>[^\]]{{0,500}})\])
    |"`(?P<double>(?=\S)[^`]+)`"|'`(?P<single>(?=\S)[^`]+)`'
    |``(?P<wide>[^`]+)``
    |{_EDGE}(?:\[[^\[\]\n]{{1,60}}\])?`(?P<code>(?=\S)[^`]+)(?<!\s)`(?!\w)
    |\*\*(?P<strong>[^*\n]+)\*\*|__(?P<stress>[^_\n]+)__
    |(?:(?<![\w&;:}}*])\*(?P<bold>(?=[^\s*])[^*]+)(?<!\s)\*(?![\w*]))
    |(?:{_EDGE}_(?P<italic>(?=[^\s_])[^_]+)(?<!\s)_(?!\w))
    |(?:{_EDGE}(?:\[[^\[\]\n]{{1,60}}\])?\#(?P<marked>(?=[^\s\#])[^\#\n]+)(?<!\s)\#(?![\w\#]))
    |(?P<sign>[\^~])(?P<raised>[^\s^~]{{1,40}})(?P=sign)
    |(?<![\w+])\+(?P<plain>(?=[^\s+])[^+\n]+)(?<!\s)\+(?![\w+])
    |\{{(?P<attribute>\w[\w-]*)\}}
    |<<(?P<place>[^<>,\n]+)(?:,(?P<title>[^<>]*))?>>
    |\[\[[\w.-][^\[\]\n]*\]\]
    |\(\(\((?P<terms>[^()]*)\)\)\)|\(\((?P<term>[^()]+)\)\)
    |(?<![\w/])(?P<macro>[a-z][a-z0-9]{{1,20}}):(?P<target>(?!:)[^\s\[\]`"']{{0,300}})
        \[(?P<told>(?:[^\]\\]|\\.){{0,500}})\]
    |[ ]\+(?P<break>\n|\Z)
    """,
    re.VERBOSE | re.DOTALL,
)
_ATTRIBUTES = {
    "empty": "", "blank": "", "sp": " ", "nbsp": " ", "zwsp": "", "wj": "", "apos": "'", "quot": '"', "lsquo": "‘",
    "rsquo": "’", "ldquo": "“", "rdquo": "”", "deg": "°", "plus": "+", "brvbar": "¦", "vbar": "|", "amp": "&",
    "lt": "<", "gt": ">", "startsb": "[", "endsb": "]", "caret": "^", "asterisk": "*", "tilde": "~", "backslash": "\\",
    "backtick": "`", "two-colons": "::", "two-semicolons": ";;", "cpp": "C++", "cxx": "C++", "pp": "++",
}  # fmt: skip
_ADDRESSES = frozenset("http https ftp irc mailto link".split())
_UNSEEN = frozenset("anchor indexterm icon".split())
_SHOWN = frozenset("kbd btn footnote indexterm2 stem latexmath asciimath".split())
_LONGEST_VALUE = 120  # characters of an attribute that is put into text
_NAMED = re.compile(r'(?:^|,)\s*(?!\w+=)"?([^",]*)')


def inline(text: str, attributes: Mapping[str, str]) -> str:
    """Return text with inline markup as HTML."""
    parts, end = [], 0
    for match in _MARKUP.finditer(text):
        parts.append(escape(text[end : match.start()], quote=False))
        parts.append(_html(match, attributes))
        end = match.end()
    return "".join([*parts, escape(text[end:], quote=False)])


def attribute(name: str, attributes: Mapping[str, str]) -> str | None:
    """Return the value of an attribute, None if the document defines none that is short."""
    value = attributes.get(name.lower(), _ATTRIBUTES.get(name.lower()))
    return value if value is not None and len(value) <= _LONGEST_VALUE else None


def _html(match: re.Match[str], attributes: Mapping[str, str]) -> str:
    found = {name: text for name, text in match.groupdict().items() if text is not None}
    if "escaped" in found:
        return escape(found["escaped"], quote=False)
    if "pass" in found:
        return escape(
            re.sub(r"</?[a-zA-Z][^<>]*>", "", found.get("passed") or found.get("passed_too", "")), quote=False
        )
    if inner := found.get("wide") or found.get("code"):
        return _code(inner, attributes)
    if inner := found.get("double"):
        return f"“{inline(inner, attributes)}”"
    if inner := found.get("single"):
        return f"‘{inline(inner, attributes)}’"
    for name in ("strong", "stress", "bold", "italic", "marked"):
        if name in found:
            return inline(found[name], attributes)
    if "raised" in found:
        tag = "sup" if found["sign"] == "^" else "sub"
        return f"<{tag}>{inline(found['raised'], attributes)}</{tag}>"
    if "attribute" in found:
        value = attribute(found["attribute"], attributes)
        return escape(match[0] if value is None else value, quote=False)
    if "macro" in found:
        return _macro(match, attributes)
    if "break" in found:
        return "<br>"
    if "place" in found:
        return inline(found["title"].strip(), attributes) if found.get("title") else _place(found["place"])
    return escape(found.get("plain") or found.get("term") or "", quote=False)


def _code(text: str, attributes: Mapping[str, str]) -> str:
    literal = re.fullmatch(r"\+(.+)\+", text, re.DOTALL)
    if literal:
        return code(literal[1])
    text = re.sub(r"\\(?=[*_#{<\[])", "", text)
    return code(re.sub(r"\{(\w[\w-]*)\}", lambda name: _valued(name, attributes), text))


def _valued(name: re.Match[str], attributes: Mapping[str, str]) -> str:
    value = attribute(name[1], attributes)
    return name[0] if value is None else value


def _macro(match: re.Match[str], attributes: Mapping[str, str]) -> str:
    name, target = match["macro"], match["target"]
    told = match["told"].replace("\\]", "]").strip()
    if name in _UNSEEN or (name == "image" and not target):
        return ""
    if name == "image":
        alt = _NAMED.match(told)
        return f'<img src="{escape(target)}" alt="{escape(alt[1] if alt else "")}">'
    if name in _SHOWN and not target:
        if name in ("stem", "latexmath", "asciimath"):
            return f"${escape(told, quote=False)}$"
        return f" ({inline(told, attributes)})" if name == "footnote" else inline(told, attributes)
    if name == "menu":
        return escape(" > ".join(filter(None, [target, *re.split(r"\s*(?:>|,)\s*", told)])), quote=False)
    if name in _ADDRESSES:
        shown = re.sub(r",\s*(?:window|role|opts|subject)=.*|\^$", "", told, flags=re.DOTALL).strip().strip('"')
        address = target if name in ("link", "mailto") else f"{name}:{target}"
        return inline(shown, attributes) if shown else escape(address, quote=False)
    if name == "xref":
        return inline(told, attributes) if told else _place(target)
    if re.fullmatch(r"\d\w?", told):  # of a manual page
        return escape(f"{target}({told})", quote=False)
    return escape(match[0], quote=False)


def _place(label: str) -> str:
    """Return the words of a label."""
    page, _, section = label.strip().partition("#")
    label = section.strip("_") or page.rpartition("/")[2]
    return escape(re.sub(r"[-_]+", " ", label.removesuffix(".adoc")), quote=False)
