"""Inline markup of reStructuredText as HTML: literals, roles, references, substitutions, footnotes and escapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

from recovery.data.corpus.html_parts import one_line
from recovery.data.corpus.text import words

_MARKUP = re.compile(
    r"""
    \\(?P<escaped>.|\Z)
    |(?<![\w`])``(?P<literal>(?=[^\s`])[^`]*(?:`(?!`)[^`]*)*)``(?!`)
    |(?<!\w)(?::(?P<role>\w[\w.+-]{0,40}(?::\w[\w.+-]{0,40}){0,3}):)?`(?P<content>(?=\S)(?:[^`\\]|\\.)+)`
        (?::(?P<behind>\w[\w.+-]{0,40}(?::\w[\w.+-]{0,40}){0,3}):|(?P<link>_{1,2})(?!\w))?
    |(?<![\w*])\*\*(?P<strong>(?=[^\s*])(?:[^*\\]|\\.|\*(?!\*))+)(?<!\s)\*\*(?![\w*])
    |(?<![\w*])\*(?P<stressed>(?=[^\s*])(?:[^*\\]|\\.)+)(?<!\s)\*(?![\w*])
    |(?<![\w|])\|(?P<named>(?=[^\s|])[^|\n]{1,100})(?<!\s)\|_{0,2}(?!\w)
    |\[(?P<note>\#?\w[\w.+-]{0,60}|\#|\*)\]_(?!\w)
    |(?<![\w./+-])(?P<reference>[^\W_](?:[\w.+-]*[^\W_])?)_{1,2}(?=[^\w./+-]|[.-](?:\s|\Z)|\Z)
    """,
    re.VERBOSE | re.DOTALL,
)
_BRACES = re.compile(r"(?<!\\)[{}]")
# Of roles that refer to a page or section without its title, the label, which mostly has the words of the title.
_PLACES = words("ref doc numref any eq cite std:ref std:doc")
_TEXTS = _PLACES | words(
    "abbr dfn term std:term guilabel menuselection emphasis strong title title-reference t sub subscript sup "
    "superscript index download kbd mimetype"
)
_NAMED = {"pep": "PEP ", "rfc": "RFC ", "issue": "#", "ticket": "#", "bug": "#", "pull": "#", "pr": "#", "gh": "#"}
_NAMED |= {"cve": "CVE-", "cwe": "CWE-"}
_LONGEST_LABEL = 80  # characters of what may be the slug of a title


@dataclass
class Names:
    """What a document defines for use in its text, before it is used.

    ``substitutions`` is the HTML of each name, ``targets`` has the names of links, ``titles`` the title by label.
    """

    substitutions: Mapping[str, str] = field(default_factory=dict)
    targets: frozenset[str] = frozenset()
    titles: Mapping[str, str] = field(default_factory=dict)


def key(name: str) -> str:
    """Return the name of a target or a substitution as names are compared: case and white space do not count."""
    return one_line(name).casefold()


def inline(text: str, names: Names) -> str:
    """Return text with inline markup as HTML."""
    parts, end = [], 0
    for match in _MARKUP.finditer(text):
        parts.append(escape(text[end : match.start()], quote=False))
        parts.append(_html(match, names))
        end = match.end()
    return "".join([*parts, escape(text[end:], quote=False)])


def _html(match: re.Match[str], names: Names) -> str:
    kind = match.lastgroup
    if match["escaped"] is not None:  # an escaped space divides markup from a word and is not shown
        return escape(match["escaped"].strip(), quote=False)
    if match["literal"] is not None:
        return code(match["literal"])
    if match["content"] is not None:
        return _interpreted(match, names)
    if kind in ("strong", "stressed"):
        inner = match[kind]
        return inline(inner, names) if "`" in inner or "\\" in inner else escape(inner, quote=False)
    if kind == "named":
        return names.substitutions.get(key(match["named"]), escape(match[0].rstrip("_"), quote=False))
    if kind == "note":
        return f"[{escape(match['note'].lstrip('#') or '#', quote=False)}]"
    known = key(match["reference"]) in names.targets or match[0].endswith("__")
    return escape(match["reference"] if known else match[0], quote=False)


def code(text: str) -> str:
    """Return code as HTML."""
    return f"<code>{escape(one_line(text), quote=False)}</code>"


def unescaped(text: str) -> str:
    """Return text without the backslashes before its characters."""
    return re.sub(r"\\(.|\Z)", lambda found: found[1].strip(), text, flags=re.DOTALL)


def _interpreted(match: re.Match[str], names: Names) -> str:
    """Return what a role shows of its content; without a role a link, or what is code if it looks like it."""
    content, role = match["content"], (match["role"] or match["behind"] or "").lower()
    text, bracket, target = content.rpartition("<") if content.endswith(">") else ("", "", content)
    text, target = text.strip(), target.removesuffix(">") if bracket else content
    shown = unescaped(text or content).strip()
    if match["link"]:
        inner = shown if text or not bracket else target.rstrip("_")
        return inline(inner, Names()) if "`" in inner else escape(inner, quote=False)
    if not role:
        return escape(shown, quote=False) if re.search(r"\s", shown) else code(shown)
    last = role.rpartition(":")[2]
    if role == "math":
        return f"${escape(content, quote=False)}$"
    if text:
        return escape(shown, quote=False) if role in _TEXTS or re.search(r"\s", shown) else code(_short(shown))
    if role in _PLACES:
        return _place(shown, role, names)
    if last in _NAMED:
        sign = _NAMED[last]
        return escape(shown if shown.lower().startswith(sign.lower()) else sign + shown.partition("#")[0], quote=False)
    if last == "menuselection":
        return escape(re.sub(r"\s*-->\s*", " > ", shown).replace("&", ""), quote=False)
    if role in _TEXTS:
        return escape(shown.replace("&", "") if last == "guilabel" else shown.removeprefix("!"), quote=False)
    return code(_BRACES.sub("", shown) if last in ("file", "samp") else _short(shown))


def _short(name: str) -> str:
    """Return a name as its role shows it: "~a.b" is b, "!a" is a."""
    name = name.removeprefix("!")
    if not name.startswith("~"):
        return name.removeprefix(".")
    path, bracket, rest = name[1:].partition("(")
    return path.rpartition(".")[2] + bracket + rest


def _place(label: str, role: str, names: Names) -> str:
    """Return the title of a section that a label names, or the words of the label."""
    label = label.removeprefix("!").removeprefix("~")
    if (title := names.titles.get(key(label))) is not None:
        return title
    if role.endswith("doc"):
        label = label.rstrip("/").rpartition("/")[2]
    if len(label) > _LONGEST_LABEL or re.search(r"\s", label):
        return escape(label, quote=False)
    return escape(one_line(re.sub(r"[-_/:]+", " ", label)) or label, quote=False)
