"""Text of reStructuredText as Markdown, from the structure of its lines, including what only Sphinx understands.

It is written as HTML, which :mod:`html_files` reads: what a list, a table or a definition becomes is decided there.

This is no use of docutils, for four reasons. Nearly all directives and roles of real documentation are Sphinx's or of
a project's own, of which docutils knows none, so that the rules in :mod:`rst_directives` would be needed anyway.
What docutils cannot parse it replaces by a message; here it stays text. A reader that not everybody has would make
two corpora of the same folder. And nothing has to be forbidden: no directive here opens a file or prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from recovery.data.corpus import rst_directives
from recovery.data.corpus.html_files import read_html
from recovery.data.corpus.html_parts import one_line
from recovery.data.corpus.rst_inline import Names, code, inline, key, unescaped
from recovery.data.corpus.rst_tables import (
    TextCell,
    begins_grid,
    begins_simple,
    grid_end,
    grid_rows,
    simple_end,
    simple_rows,
)

_RULE = re.compile(r"([!-/:-@\[-`{-~])\1+")
_BULLET = re.compile(r"[-*+•‣⁃](?: +|$)")
_NUMBER = re.compile(r"\(?(?:(?P<value>\d{1,9})|#|[a-zA-Z]|[ivx]{2,6}|[IVX]{2,6})[.)](?: +|$)")
_FIRST_NUMBER = re.compile(r"\(?(?:\d|[#aAiI][.)])")  # "Q." begins a question
_FIELD = re.compile(r":(?![: ])(?P<name>(?:[^:\\]|\\.|:(?![ `]|$)){1,200})(?<! ):(?: +|$)")
_ARGUMENT = r"(?:[ =](?:<[^<>]*>|[\w./-]+)|\[=?[^\[\]]*\])?"
_OPTION = re.compile(rf"(?P<names>--?\w[\w-]*{_ARGUMENT}(?:, --?\w[\w-]*{_ARGUMENT})*)(?:  +|$)")
_EXPLICIT = re.compile(r"\.\.(?: +|$)|__ ")
_DIRECTIVE = re.compile(r"\.\. +(?P<name>\w[\w.+:-]*?) ?::(?: +(?P<rest>.*)|$)")
_FOOTNOTE = re.compile(r"\.\. +\[(?P<mark>[#*]|#?\w[\w.+ -]*)\](?: +|$)")
_TARGET = re.compile(r"^ *\.\. +_(?P<name>`[^`\n]+`|(?:[^:\\\n]|\\.|:(?=\S))+):(?: |$)", re.MULTILINE)
_SUBSTITUTION = re.compile(
    r"^ *\.\. +\|(?P<name>[^|\n]{1,100})\| +(?P<kind>replace|unicode|image)::[ ]*(?P<text>.*(?:\n +\S.*)*)",
    re.MULTILINE,
)
_LABEL = re.compile(r"\.\. _(?P<label>`[^`]+`|[^:`]+):$")
_HEX = re.compile(r"(?:0x|U\+|\\?u)([0-9a-fA-F]{1,6})|&#x([0-9a-fA-F]{1,6});")
_FENCE = re.compile(r"(`{3,}|~{3,})[\w+#.-]*")
_SIGNS = (_BULLET, _NUMBER, _FIELD, _EXPLICIT, re.compile(r"\||>>>|\+-"))  # of other blocks than definitions
_DEEPEST = 24  # blocks within each other; what is deeper is text
_LONGEST_SUBSTITUTION = 120  # characters: more would grow with each use
_SHORTEST_RULE = 4  # of an underline that is shorter than its title


def read_rst(text: str) -> tuple[str, str]:
    """Return the title of a document, "" if it has none, and its text as Markdown."""
    lines = [line.expandtabs(8).rstrip() for line in text.split("\n")]
    page = Page(_names(lines))
    page.body(lines)
    return read_html(f"<body>{''.join(page.parts)}</body>")


def _names(lines: Sequence[str]) -> Names:
    """Return what a document defines."""
    text = "\n".join(lines)
    targets = {key(unescaped(match["name"].strip("`"))) for match in _TARGET.finditer(text)}
    targets |= {key(title) for title, below in pairwise(lines) if title and _RULE.fullmatch(below)}
    titles = {key(label): title for label, title in _labelled(lines)}
    found = {}
    for match in _SUBSTITUTION.finditer(text):
        told = _substituted(match["kind"], match["text"])
        if len(told) <= _LONGEST_SUBSTITUTION:
            found[key(match["name"])] = told
    shown = {key(label): inline(title, Names(found)) for label, title in titles.items()}
    return Names(found, frozenset(targets), shown)


def _labelled(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each label that stands directly above a heading, and its title."""
    labels: list[str] = []
    for number, line in enumerate(lines):
        if match := _LABEL.fullmatch(line):
            labels.append(match["label"].strip("`"))
        elif line and labels and not _RULE.fullmatch(line):  # a line above the title
            title = line.strip() if number + 1 < len(lines) and _RULE.fullmatch(lines[number + 1]) else ""
            yield from ((label, title) for label in labels if 0 < len(title) <= _LONGEST_SUBSTITUTION)
            labels.clear()


def _substituted(kind: str, text: str) -> str:
    if kind == "replace":
        return inline(one_line(text), Names())
    if kind == "image":
        alt = re.search(r"^ +:alt: *(.*)", text, re.MULTILINE)
        return escape(one_line(alt[1]), quote=False) if alt else ""
    parts = [_HEX.sub(_character, part) for part in text.split(" .. ")[0].split()]
    return escape(" ".join(parts), quote=False)


def _character(match: re.Match[str]) -> str:
    value = int(match[1] or match[2], 16)
    return chr(value) if value <= 0x10FFFF and not 0xD800 <= value <= 0xDFFF else match[0]


@dataclass
class Page:
    """The HTML of a document as far as it was read. ``_styles`` are the underlines in the order of their levels."""

    names: Names
    parts: list[str] = field(default_factory=list)
    _styles: list[str] = field(default_factory=list)
    _depth: int = 0

    def body(self, lines: Sequence[str]) -> None:
        """Read lines that have a common margin."""
        if self._depth >= _DEEPEST:
            self.add("p", self.inline("\n".join(lines)))
            return
        self._depth += 1
        number = 0
        while number < len(lines):
            if not lines[number]:
                number += 1
                continue
            number = next(end for read in _READERS if (end := read(self, lines, number)) is not None)
        self._depth -= 1

    def inline(self, text: str) -> str:
        """Return running text as HTML."""
        return inline(text, self.names)

    def add(self, tag: str, inner: str) -> None:
        """Add an element."""
        self.parts.append(f"<{tag}>{inner}</{tag}>\n")

    def within(self, tag: str, lines: Sequence[str]) -> None:
        """Add an element with blocks in it."""
        self.parts.append(f"<{tag}>")
        self.body(lines)
        self.parts.append(f"</{tag}>\n")

    def code(self, lines: Sequence[str], language: str = "") -> None:
        """Add code as it is."""
        named = f' class="language-{language}"' if re.fullmatch(r"[\w+#.-]{1,20}", language) else ""
        text = escape("\n".join(dedented(lines)), quote=False)
        self.parts.append(f"<pre><code{named}>\n{text}\n</code></pre>\n")

    def table(self, rows: Sequence[Sequence[TextCell]], caption: str = "") -> None:
        """Add a table."""
        self.parts.append(f"<table>{f'<caption>{self.inline(caption)}</caption>' if caption else ''}\n")
        for row in rows:
            self.parts.append("<tr>")
            for cell in row:
                self._cell(cell)
            self.parts.append("</tr>\n")
        self.parts.append("</table>\n")

    def _cell(self, cell: TextCell) -> None:
        tag = "th" if cell.head else "td"
        spans = (("colspan", cell.columns), ("rowspan", cell.rows))
        self.parts.append("".join([f"<{tag}", *(f' {name}="{n}"' for name, n in spans if n > 1), ">"]))
        self.body(dedented(cell.lines))
        self.parts.append(f"</{tag}>")

    def heading(self, title: str, style: str) -> None:
        """Add a heading; the first style of a document is that of its highest level."""
        if style not in self._styles:
            self._styles.append(style)
        self.add(f"h{min(6, self._styles.index(style) + 1)}", self.inline(title))


def dedented(lines: Sequence[str]) -> list[str]:
    """Return lines without the margin that they have in common."""
    margin = min((_indent(line) for line in lines if line), default=0)
    return [line[margin:] for line in lines]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def block_end(lines: Sequence[str], start: int) -> int:
    """Return the number of the line behind the indented and blank lines from ``start`` on."""
    end = start
    while end < len(lines) and (not lines[end] or lines[end][0] == " "):
        end += 1
    return end


def _below(lines: Sequence[str], number: int, width: int) -> tuple[list[str], int]:
    """Return the lines of an item whose sign is ``width`` wide, without the sign, and the number of the next line."""
    end = block_end(lines, number + 1)
    rest = lines[number + 1 : end]
    margin = min([width, *(_indent(line) for line in rest if line)])
    return [lines[number][width:], *(line[margin:] for line in rest)], end


# Each reader of a block returns the number of the line behind it, or None if another block begins in this line.


def _quote(page: Page, lines: Sequence[str], number: int) -> int | None:
    if lines[number][0] != " ":
        return None
    end = block_end(lines, number)
    page.within("blockquote", dedented(lines[number:end]))
    return end


def _explicit(page: Page, lines: Sequence[str], number: int) -> int | None:
    """Read a directive or a footnote. Comments, targets and definitions of substitutions are not shown."""
    line = lines[number]
    if not _EXPLICIT.match(line):
        return None
    end = block_end(lines, number + 1)
    if line == ".." and (number + 1 == len(lines) or not lines[number + 1]):
        return number + 1
    rest = lines[number + 1 : end]
    if directive := _DIRECTIVE.match(line):
        rst_directives.read(page, directive["name"], directive["rest"] or "", dedented(rest))
    elif footnote := _FOOTNOTE.match(line):
        mark = footnote["mark"].lstrip("#") or "#"
        page.body([f"[{mark}] {line[footnote.end() :]}", *dedented(rest)])
    return end


def _doctest(page: Page, lines: Sequence[str], number: int) -> int | None:
    if not lines[number].startswith(">>>"):
        return None
    end = next((n for n in range(number, len(lines)) if not lines[n]), len(lines))
    page.code(lines[number:end])
    return end


def _fence(page: Page, lines: Sequence[str], number: int) -> int | None:
    """Read fenced code, which is Markdown's: some write it here, too."""
    fence = _FENCE.fullmatch(lines[number])
    if fence is None:
        return None
    last = next((n for n in range(number + 1, min(len(lines), number + 500)) if lines[n] == fence[1]), None)
    if last is None:
        return None
    page.code(lines[number + 1 : last], fence[0][len(fence[1]) :])
    return last + 1


def _heading(page: Page, lines: Sequence[str], number: int) -> int | None:
    line, below = lines[number], lines[number + 1 : number + 3]
    if (over := _RULE.fullmatch(line)) and len(below) > 1 and below[0] and below[1] == line:
        page.heading(below[0].strip(), over[1] * 2)
        return number + 3
    if over and len(line) >= _SHORTEST_RULE and (not below or not below[0]):
        return number + 1  # a transition
    under = _RULE.fullmatch(below[0]) if below else None
    if over or under is None or len(below[0]) < min(_SHORTEST_RULE, len(line)):
        return None
    page.heading(line, under[1])
    return number + 2


def _simple_table(page: Page, lines: Sequence[str], number: int) -> int | None:
    end = simple_end(lines, number) if begins_simple(lines[number]) else None
    if end is not None:
        _add_table(page, simple_rows(lines[number:end]), lines[number:end])
    return end


def _add_table(page: Page, rows: Sequence[Sequence[TextCell]] | None, lines: Sequence[str]) -> None:
    if rows:
        page.table(rows)
    else:
        page.code(lines)


def _grid_table(page: Page, lines: Sequence[str], number: int) -> int | None:
    if not begins_grid(lines[number]):
        return None
    end = grid_end(lines, number)
    _add_table(page, grid_rows(lines[number:end]), lines[number:end])
    return end


def _bullets(page: Page, lines: Sequence[str], number: int) -> int | None:
    return _list(page, lines, number, _BULLET, "ul") if _BULLET.match(lines[number]) else None


def _numbered(page: Page, lines: Sequence[str], number: int) -> int | None:
    first = _NUMBER.match(lines[number])
    if first is None or not _FIRST_NUMBER.match(lines[number]):
        return None
    below = lines[number + 1] if number + 1 < len(lines) else ""
    if below and below[0] != " " and not _NUMBER.match(below):
        return None  # "A. Turing" begins a paragraph
    return _list(page, lines, number, _NUMBER, "ol", f' start="{first["value"] or 1}"')


def _list(page: Page, lines: Sequence[str], number: int, sign: re.Pattern[str], tag: str, start: str = "") -> int:
    page.parts.append(f"<{tag}{start}>")
    while number < len(lines) and (marker := sign.match(lines[number])):
        item, number = _below(lines, number, marker.end())
        page.within("li", item)
    page.parts.append(f"</{tag}>\n")
    return number


def _fields(page: Page, lines: Sequence[str], number: int) -> int | None:
    found: list[tuple[str, list[str]]] = []
    while number < len(lines) and (name := _FIELD.match(lines[number])):
        rest, number = _below(lines, number, name.end())
        found.append((name["name"], [rest[0], *dedented(rest[1:])]))
    if not found:
        return None
    rst_directives.read_fields(page, found)
    return number


def _options(page: Page, lines: Sequence[str], number: int) -> int | None:
    before = len(page.parts)
    while number < len(lines) and (option := _OPTION.match(lines[number])):
        rest, end = _below(lines, number, option.end())
        if not any(rest):
            break
        page.add("dt", ", ".join(map(code, option["names"].split(", "))))
        page.within("dd", [rest[0], *dedented(rest[1:])])
        number = end
    if len(page.parts) == before:
        return None
    page.parts.insert(before, "<dl>")
    page.parts.append("</dl>\n")
    return number


def _line_block(page: Page, lines: Sequence[str], number: int) -> int | None:
    """Read lines that stay lines. Those of a table of Markdown have bars at both ends."""
    end = number
    while end < len(lines) and (lines[end].startswith("| ") or lines[end] == "|"):
        end += 1
    if end == number:
        return None
    piped = all(line.endswith("|") for line in lines[number:end])
    shown = [page.inline(line if piped else line[1:].strip()) for line in lines[number:end]]
    page.add("p", "<br>".join(shown))
    return end


def _definitions(page: Page, lines: Sequence[str], number: int) -> int | None:
    """Read terms, each with an indented text directly below it."""
    before = len(page.parts)
    while number + 1 < len(lines) and lines[number] and lines[number][0] != " " and lines[number + 1][:1] == " ":
        if lines[number].endswith("::") or any(sign.match(lines[number]) for sign in _SIGNS):
            break
        term, *kinds = re.split(r" : ", lines[number])
        page.add("dt", " ".join([page.inline(term), *(f"({page.inline(kind)})" for kind in kinds)]))
        end = block_end(lines, number + 1)
        page.within("dd", dedented(lines[number + 1 : end]))
        number = end
    if len(page.parts) == before:
        return None
    page.parts.insert(before, "<dl>")
    page.parts.append("</dl>\n")
    return number


def _paragraph(page: Page, lines: Sequence[str], number: int) -> int:
    end = number + 1
    while end < len(lines) and lines[end] and lines[end][0] != " " and not _DIRECTIVE.match(lines[end]):
        end += 1
    text = "\n".join(lines[number:end])
    if not text.endswith("::"):
        page.add("p", page.inline(text))
        return end
    shown = text[:-2].rstrip() if text == "::" or text[-3:-2] in (" ", "\n") else text[:-1]
    if shown.strip():
        page.add("p", page.inline(shown))
    return _literal(page, lines, end)


def _literal(page: Page, lines: Sequence[str], start: int) -> int:
    """Read the code that "::" announces: indented lines, or lines that begin with the same sign."""
    first = next((n for n in range(start, len(lines)) if lines[n]), len(lines))
    end = block_end(lines, start)
    if first < len(lines) and end <= first and (sign := lines[first][0]) in "!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~":
        end = first
        while end < len(lines) and lines[end].startswith(sign):
            end += 1
        if _EXPLICIT.match(lines[first]):
            return start
    if any(lines[start:end]):
        page.code(lines[start:end])
    return end


_Reader = Callable[[Page, Sequence[str], int], int | None]
_READERS: tuple[_Reader, ...] = (
    _quote,
    _explicit,
    _doctest,
    _fence,
    _heading,
    _simple_table,
    _grid_table,
    _bullets,
    _numbered,
    _fields,
    _options,
    _line_block,
    _definitions,
    _paragraph,
)
