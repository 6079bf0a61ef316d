"""Directives and field lists of reStructuredText as HTML: what docutils, Sphinx and its extensions show of them.

What no rule knows is shown with all of its text: its arguments are a paragraph above its content.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import takewhile
from typing import TYPE_CHECKING

from recovery.data.corpus.html_parts import one_line
from recovery.data.corpus.rst_inline import code, unescaped
from recovery.data.corpus.rst_tables import TextCell
from recovery.data.corpus.text import words

if TYPE_CHECKING:
    from recovery.data.corpus.rst_files import Page

# For the index, menus and builders, or for another file: none of them is shown, or none of it is in this file.
_UNSEEN = words(
    "toctree contents index highlight highlightlang currentmodule sectionauthor moduleauthor codeauthor meta raw "
    "include literalinclude sectnum section-numbering header footer default-role role tabularcolumns testsetup "
    "testcleanup title date target-notes default-domain inheritance-diagram bibliography todolist youtube video"
)
_CODE = words(
    "code code-block sourcecode testcode testoutput doctest parsed-literal ipython prompt productionlist graphviz "
    "digraph graph mermaid uml plantuml autosummary terminal console jupyter-execute jupyter-input jupyter-output"
)
_WRAPPERS = words(
    "only ifconfig container compound rst-class cssclass tabs tab-set grid hlist glossary highlights epigraph "
    "pull-quote"
)
_NOTES = {
    name: name.capitalize() for name in "note tip hint important warning caution danger attention error todo".split()
} | {"seealso": "See also"}
_VERSIONS = {
    "versionadded": "New in version",
    "version-added": "New in version",
    "versionchanged": "Changed in version",
    "version-changed": "Changed in version",
    "versionremoved": "Removed in version",
    "version-removed": "Removed in version",
    "deprecated": "Deprecated since version",
    "version-deprecated": "Deprecated since version",
    "deprecated-removed": "Deprecated since version",
}
_OBJECTS = words(
    "function method class classmethod staticmethod attribute property data exception decorator decoratormethod option "
    "cmdoption program-option envvar confval setting object describe type macro member struct union enum enumerator "
    "var variable constant fixture hook command opcode pdbcommand coroutinefunction coroutinemethod awaitablefunction "
    "awaitablemethod abstractmethod autofunction automethod autoclass autoexception autodata autoattribute "
    "autoproperty autodecorator automodule interface trait event signal sig state control templatetag templatefilter "
    "fieldlookup filter test global directive concept template alias"
)
_MARKS = words("setting signal sig state control event templatetag templatefilter fieldlookup")  # only for links
_SHOWN_OPTIONS = {"type": "Type", "default": "Default", "value": "Value", "required": "Required", "choices": "Choices"}
_OPTION = re.compile(r":(?P<name>[A-Za-z][\w -]*):(?: +(?P<text>.*)|$)")
_TYPED = {  # fields about a parameter: the words above them
    "param": "Parameters", "parameter": "Parameters", "arg": "Parameters", "argument": "Parameters",
    "key": "Parameters", "keyword": "Parameters", "kwarg": "Parameters", "kwparam": "Parameters",
    "raises": "Raises", "raise": "Raises", "except": "Raises", "exception": "Raises", "throws": "Raises",
    "var": "Variables", "ivar": "Variables", "cvar": "Variables",
}  # fmt: skip
_ALONE = {"return": "Returns", "returns": "Returns", "rtype": "Return type", "yield": "Yields", "yields": "Yields"}
_METADATA = words("orphan tocdepth nocomments nosearch no-search")  # for Sphinx, at the top of a file
_MOST_COLUMNS = 1_000


@dataclass
class _Directive:
    """A directive. ``head`` is the text beside its name and directly below, ``content`` what follows its options."""

    name: str
    head: list[str]
    options: dict[str, str]
    content: list[str]

    @property
    def all(self) -> list[str]:
        return [*self.head, "", *self.content]


def read(page: Page, name: str, first: str, below: list[str]) -> None:
    """Add what a directive shows: ``first`` is the text beside its name, ``below`` the lines under it."""
    directive = _parsed(name, first, below)
    last = directive.name
    if last in _UNSEEN or (last in _MARKS and not any(directive.content)):
        return
    if last in _CODE:
        _add_code(page, directive)
    elif last in _VERSIONS:
        _add_version(page, directive)
    elif last in _NOTES:
        page.add("p", _NOTES[last])
        page.within("div", directive.all)
    elif last in _WRAPPERS:
        page.within("div", directive.content)
    elif last in ("image", "figure"):
        _add_image(page, directive)
    elif last == "math":
        page.add("p", f"${escape(one_line(' '.join(directive.all)), quote=False)}$")
    elif last in ("list-table", "csv-table", "table"):
        _add_table(page, directive)
    elif last == "module":
        page.add("p", page.inline(directive.options.get("synopsis", "")))
        page.body(directive.content)
    elif last in _OBJECTS or (":" in name and directive.head[0]):
        _add_object(page, directive)
    else:
        page.within("div", directive.all)


def _parsed(name: str, first: str, below: list[str]) -> _Directive:
    last = name.lower().rpartition(":")[2]
    head, options = [first] if first else [], {}
    number = 0
    while number < len(below) and below[number] and (option := _OPTION.match(below[number])) is None:
        head.append(below[number])
        number += 1
    latest = ""
    while number < len(below) and below[number]:
        if option := _OPTION.match(below[number]):
            latest = option["name"].lower()
            options[latest] = option["text"] or ""
        elif latest:
            options[latest] = f"{options[latest]}\n{below[number].strip()}".strip()
        number += 1
    content = below[number:]
    margin = min((len(line) - len(line.lstrip(" ")) for line in content if line), default=0)
    return _Directive(last, head or [""], options, [line[margin:] for line in content])


def _add_code(page: Page, directive: _Directive) -> None:
    if caption := directive.options.get("caption"):
        page.add("p", page.inline(caption))
    language, *lines = directive.head
    if directive.name == "parsed-literal" or (directive.name in ("productionlist", "prompt") and not directive.content):
        language, lines = "", directive.head
    lines = [*lines, *directive.content]
    if any(lines):
        page.code(lines, language)


def _add_version(page: Page, directive: _Directive) -> None:
    """Add the version of a change, in the words of Sphinx, and what it says of it."""
    texts = " ".join(directive.head).split()
    told = f"{_VERSIONS[directive.name]} {texts[0] if texts else ''}".strip()
    rest = texts[1:]
    if directive.name == "deprecated-removed" and rest:
        told, rest = f"{told}, will be removed in version {rest[0]}", rest[1:]
    first = list(takewhile(bool, dedented_start(directive.content)))
    if not rest and first and _is_running(first):
        rest = " ".join(first).split()
        following = dedented_start(directive.content)[len(first) :]
    else:
        following = directive.content
    page.add("p", page.inline(f"{told}: {' '.join(rest)}" if rest else f"{told}."))
    if any(following):
        page.within("div", following)


def dedented_start(lines: Sequence[str]) -> list[str]:
    """Return lines without the blank ones at the top."""
    start = next((number for number, line in enumerate(lines) if line), len(lines))
    return list(lines[start:])


def _is_running(lines: Sequence[str]) -> bool:
    """Return whether lines are a paragraph: none is indented, or begins a list, code or another directive."""
    if lines[-1].endswith("::") or any(line.startswith(" ") for line in lines):
        return False
    return not re.match(r"(?:[*+-]|\.\.|\d+\.)(?: |$)|>>>|\+-|==|:[\w ]+:(?: |$)", lines[0])


def _add_image(page: Page, directive: _Directive) -> None:
    """Add the text for an image and what stands below it."""
    source = escape(directive.head[0])
    alt = escape(one_line(directive.options.get("alt", "")))
    page.parts.append(f'<p><img src="{source}" alt="{alt}"></p>\n')
    page.body(directive.content)


def _add_object(page: Page, directive: _Directive) -> None:
    """Add the description of a function, an option, ...: its signatures are terms, what is said of it a definition."""
    signatures = [line for line in "\n".join(directive.head).replace("\\\n", " ").split("\n") if line.strip()]
    names = [name for one in signatures for name in (re.split(r",\s+(?=-)", one) if one.startswith("-") else [one])]
    page.parts.append(f"<dl><dt>{', '.join(code(unescaped(name)) for name in names)}</dt><dd>")
    shown = [(word, directive.options[name]) for name, word in _SHOWN_OPTIONS.items() if directive.options.get(name)]
    page.body(directive.content)
    if shown:
        page.add("ul", "".join(f"<li>{word}: {page.inline(text)}</li>" for word, text in shown))
    page.parts.append("</dd></dl>\n")


def _add_table(page: Page, directive: _Directive) -> None:
    caption = " ".join(directive.head)
    if directive.name == "table":
        if caption:
            page.add("p", page.inline(caption))
        page.body(directive.content)
        return
    heads = directive.options.get("header-rows", "0")
    count = int(heads) if re.fullmatch(r"[0-9]{1,4}", heads) else 0
    if directive.name == "csv-table":
        rows = _csv_rows(directive)
        count += "header" in directive.options
    else:
        rows = _list_rows(directive.content)
    if rows is None:
        page.within("div", directive.all)
        return
    cells = [[TextCell(text, head=number < count) for text in row] for number, row in enumerate(rows)]
    page.table(cells, caption)


def _csv_rows(directive: _Directive) -> list[list[list[str]]] | None:
    """Return the cells of a table that is written as CSV, each as lines; None if it cannot be read."""
    delimiter = {"tab": "\t", "space": " "}.get(sign := directive.options.get("delim", ","), sign)
    quote = directive.options.get("quote", '"')
    if len(delimiter) != 1 or len(quote) != 1:
        return None
    header = directive.options.get("header", "")
    try:
        lines = [*header.split("\n"), *directive.content] if header else directive.content
        ended = [f"{line}\n" for line in lines]
        found = list(csv.reader(ended, delimiter=delimiter, quotechar=quote, skipinitialspace=True))
    except csv.Error:
        return None
    return [[cell.split("\n") for cell in row] for row in found if row]


def _list_rows(lines: Sequence[str]) -> list[list[list[str]]] | None:
    """Return the cells of a table that is written as a list of lists, each as lines; None if it is none."""
    rows: list[list[list[str]]] = []
    inner = 0  # the column of the signs of cells
    for line in lines:
        row = re.match(r"[-*+]( +)[-*+](?: +|$)", line)
        cell = re.match(rf" {{{inner}}}[-*+](?: +|$)", line) if inner else None
        if row:
            inner = 1 + len(row[1])
            rows.append([[" " * row.end() + line[row.end() :]]])
        elif cell and len(rows[-1]) < _MOST_COLUMNS:
            rows[-1].append([" " * cell.end() + line[cell.end() :]])
        elif rows and (not line or line.startswith(" ")):
            rows[-1][-1].append(line)
        elif line:
            return None
    return rows or None


def read_fields(page: Page, fields: Sequence[tuple[str, list[str]]]) -> None:
    """Add a list of fields: those about parameters are lists of their own, as in Sphinx."""
    types = {name.partition(" ")[2]: " ".join(text) for name, text in fields if name.startswith(("type ", "vartype "))}
    above = None
    for name, text in fields:
        kind, _, rest = name.partition(" ")
        if (kind in ("type", "vartype") and rest) or name in _METADATA or not any(text):
            continue
        group = _TYPED.get(kind, "") if rest else ""
        if group != above:
            page.parts.append("" if above is None else "</dl>\n")
            if group:
                page.add("p", f"{group}:")
            page.parts.append("<dl>")
            above = group
        page.add("dt", _parameter(page, rest, types) if group else _ALONE.get(name, page.inline(name)))
        page.within("dd", text)
    page.parts.append("" if above is None else "</dl>\n")


def _parameter(page: Page, text: str, types: Mapping[str, str]) -> str:
    """Return the name of a parameter as HTML, with its type, which stands before it or in a field of its own."""
    before, _, name = text.rpartition(" ")
    typed = types.get(name) or before
    return f"{code(unescaped(name.lstrip('*')))}{f' ({page.inline(unescaped(typed))})' if typed else ''}"
