"""Text of AsciiDoc as Markdown, from the structure of its lines: sections, lists, delimited blocks, tables, notes.

It is written as HTML, which :mod:`html_files` reads. No file that a document names is opened. All branches of
conditions are kept, since their values are not in the document. Anything that is not AsciiDoc stays text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from recovery.data.corpus.asciidoc_inline import StyledCell, inline, table_rows, with_attributes
from recovery.data.corpus.html_files import read_html
from recovery.data.corpus.html_parts import code, listing

_SECTION = re.compile(r"(?P<marks>={1,6}|#{1,6}) +(?P<title>\S.*)")
_UNDERLINES = {"=": 1, "-": 2, "~": 3, "^": 4, "+": 5}
_DELIMITER = re.compile(r"(?:-{4,}|\.{4,}|={4,}|\*{4,}|_{4,}|\+{4,}|/{4,}|--|[|,:!]={3,}|(?:`{3,}|~{3,})[\w+#.-]*)$")
_ATTRIBUTE = re.compile(r":(?P<name>!?\w[\w-]*!?):(?: +(?P<value>.*))?$")
_CONDITION = re.compile(r"(?:ifdef|ifndef|endif|ifeval)::[^\[\]]*\[(?P<text>.*)\]$")
_UNSEEN = re.compile(r"(?:include|toc|video|audio)::[^\[\]]*\[.*\]$|<<<$|'{3,}$|-{3}$|- - -$|\*{3}$|\* \* \*$")
# Lines below the title of a document: the authors and the revision (as in Asciidoctor).
_AUTHOR = re.compile(r"(?P<name>[^\W\d_][\w'’.-]*(?: +[\w'’.-]+){0,3}|\{[\w-]+\})(?: +<(?P<email>[^<>\s]+)>)?$")
_FULL_NAME = re.compile(r"(?:[^\W\d_a-z][\w'’.-]*|van|von|de[nrl]?|la|di|da|bin|al)(?: +|$)")
_REVISION = re.compile(
    r"(?:[^\d{]{0,20}(?P<number>[^,]{0,40}?),)? *(?!:)(?P<date>[^:]{0,40}?)(?: *,?: *(?P<remark>\S.*)?)?$"
)
_REPLACED = re.compile(r"subs=(?:\"[^\"]*?|[^,\"]*?)(?<![\w-])(?:attributes|normal)\b")  # in code
_ANCHOR = re.compile(r"\[\[[^\[\]]*\]\]$")
_BRACKETS = re.compile(r"\[(?:[\w.#%,\"'{*].*)?\]")
_TITLE = re.compile(r"\.(?P<text>[^\s.].*)$")
_COMMENT = re.compile(r"//(?!/)")
_IMAGE = re.compile(r"image::(?P<source>[^\[\]]*)\[(?P<told>.*)\]$")
_NOTE = re.compile(r"(?P<kind>NOTE|TIP|IMPORTANT|WARNING|CAUTION):\s+(?=\S)")
_ITEM = re.compile(r"\s*(?P<sign>\*{1,6}|-|•|\.{1,6}|\d{1,4}\.|[a-zA-Z]\.|<(?:\d{1,3}|\.)>)\s+(?P<text>\S.*)$")
_TERM = re.compile(r"(?P<term>\s*\S(?:.{0,500}?\S)??)(?P<sign>:{2,4}|;;)(?:\s+(?P<text>\S.*))?$")
_NAME = re.compile(r"--?\w[^`{}]*|\w+(?:[._:/-]+[\w<>]+)*[._][\w<>]+(?:[._:/-]+[\w<>]+)*(?:\(\))?|<[\w-]+>(?:\.{3})?")
_CALLOUT = re.compile(r"<(?:\d{1,3}|\.|!--\d{1,3}--)>$")  # at the end of a line of code
_ALT = re.compile(r'"([^"]*)"|([^,"=]*)(?:,|$)')
_CODE = frozenset("source listing literal".split())
_NOTES = frozenset("note tip important warning caution".split())
_DEEPEST = 16  # blocks within each other; what is deeper is text
_MOST_LISTS = 12
_AHEAD = 40  # lines in which the second item of a list follows
_LONGEST_VALUE = 1_000  # characters


def read_asciidoc(text: str) -> tuple[str, str]:
    """Return the title of a document, "" if it has none, and its text as Markdown."""
    page = _Page()
    page.body([line.expandtabs(8).rstrip() for line in text.split("\n")])
    return read_html(f"<body>{''.join(page.parts)}</body>")


@dataclass
class _BlockHead:
    """The lines above a block that describe it: its attributes and its title."""

    attributes: str = ""
    title: str = ""

    @property
    def style(self) -> str:
        """The first of the attributes, in small letters."""
        return re.split(r"[,.#%]", self.attributes, maxsplit=1)[0].strip().strip('"').lower()

    @property
    def language(self) -> str:
        parts = [part.strip() for part in self.attributes.split(",")]
        language = next((part.partition("=")[2] for part in parts if part.startswith("language=")), "")
        return language.strip('"') or (parts[1] if len(parts) > 1 and self.style in ("source", "") else "")


@dataclass
class _Page:
    """The HTML of a document so far."""

    parts: list[str] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)
    _depth: int = 0

    def body(self, lines: Sequence[str]) -> None:
        """Read the lines of a document, of a delimited block or of a cell."""
        if self._depth >= _DEEPEST:
            self.add("p", "\n".join(lines))
            return
        self._depth += 1
        _Reader(self, lines).read()
        self._depth -= 1

    def inline(self, text: str) -> str:
        return inline(text, self.attributes)

    def add(self, tag: str, text: str) -> None:
        self.parts.append(f"<{tag}>{self.inline(text)}</{tag}>\n")

    def code(self, lines: Sequence[str], language: str = "") -> None:
        margin = min((len(line) - len(line.lstrip(" ")) for line in lines if line), default=0)
        self.parts.append(listing("\n".join(_without_callouts(line[margin:]) for line in lines), language))

    def table(self, rows: Sequence[Sequence[StyledCell]]) -> None:
        self.parts.append("<table>\n")
        for row in rows:
            self.parts.append("<tr>")
            for cell in row:
                tag = "th" if cell.head else "td"
                spans = (("colspan", cell.columns), ("rowspan", cell.rows))
                self.parts.append("".join([f"<{tag}", *(f' {name}="{n}"' for name, n in spans if n > 1), ">"]))
                if cell.style == "a":
                    self.body(cell.lines)
                elif cell.style in ("m", "l") and any(cell.lines):
                    self.add("code", " ".join(cell.lines))
                else:
                    self.parts.append(self.inline("\n".join(cell.lines).strip()))
                self.parts.append(f"</{tag}>")
            self.parts.append("</tr>\n")
        self.parts.append("</table>\n")


class _Reader:
    """Reads some lines into a page."""

    def __init__(self, page: _Page, lines: Sequence[str]) -> None:
        self._page, self._lines, self._number = page, lines, 0
        self._signs: list[str] = []  # of the lists that are open, as their tags
        self._tags: list[str] = []
        self._filled = False  # whether an item has text already
        self._head = _BlockHead()
        self._blank = self._attached = False  # whether a blank line or "+" stands above
        self._delimiters: dict[str, list[int]] = defaultdict(list)
        for number, line in enumerate(lines):
            if _DELIMITER.match(line):
                self._delimiters[line].append(number)

    def read(self) -> None:
        while self._number < len(self._lines):
            line = self._lines[self._number]
            if not line:
                self._blank = True
                self._number += 1
            elif not (self._meta(line) or self._heading(line) or self._delimited(line) or self._item(line)):
                self._paragraph(line)
        self._close()

    def _close(self, level: int = 0) -> None:
        """Close the lists within the first ``level`` ones."""
        while len(self._signs) > level:
            tag = self._tags.pop()
            self._signs.pop()
            self._page.parts.append("</dd></dl>\n" if tag == "dl" else f"</li></{tag}>\n")

    def _begin_block(self) -> _BlockHead:
        """Begin a block that is no item, in the item that it is attached to; return its head."""
        if self._blank and not self._attached and self._filled:
            self._close()
        above, self._head = self._head, _BlockHead()
        self._blank = self._attached = False
        self._filled = True
        if above.title:
            self._page.add("p", above.title)
        return above

    def _meta(self, line: str) -> bool:
        """Handle a line that is not text: an attribute, a comment, a block's head; return whether it is one."""
        following = self._lines[self._number + 1] if self._number + 1 < len(self._lines) else ""
        if line == "+":
            if self._blank and len(self._signs) > 1:
                self._close(len(self._signs) - 1)
            self._attached = True
        elif match := _ATTRIBUTE.match(line):
            self._define(match)
            return True
        elif match := _CONDITION.match(line):
            if match["text"] and line.startswith("if") and not line.startswith("ifeval"):
                self._page.add("p", match["text"])
        elif _COMMENT.match(line) or _UNSEEN.match(line) or _ANCHOR.match(line):
            pass
        elif following and _BRACKETS.fullmatch(line):
            self._head.attributes = ",".join(filter(None, [self._head.attributes, line[1:-1]]))
        elif following and (match := _TITLE.match(line)) and not _ITEM.match(line):
            self._head.title = match["text"]
        elif match := _IMAGE.match(line):
            self._begin_block()
            alt = _ALT.match(match["told"])
            alt_text = escape((alt[1] or alt[2] or "").strip() if alt else "")
            self._page.parts.append(f'<p><img src="{escape(match["source"])}" alt="{alt_text}"></p>\n')
        else:
            return False
        self._number += 1
        return True

    def _define(self, match: re.Match[str]) -> None:
        name, value = match["name"].lower(), match["value"] or ""
        self._number += 1
        while value.endswith("\\") and self._number < len(self._lines) and len(value) < _LONGEST_VALUE:
            value = f"{value[:-1].removesuffix(' +').rstrip()} {self._lines[self._number].strip()}"
            self._number += 1
        if "!" in name:
            self._page.attributes.pop(name.strip("!"), None)
            return
        self._page.attributes[name] = self._expanded(value)

    def _heading(self, line: str) -> bool:
        following = self._lines[self._number + 1] if self._number + 1 < len(self._lines) else ""
        if section := _SECTION.match(line):
            marks = section["marks"]
            level, title, used = len(marks), section["title"].removesuffix(f" {marks}").rstrip(), 1
        elif _underlines(line, following):
            level, title, used = _UNDERLINES[following[0]], line, 2
        else:
            return False
        self._close()
        self._head, self._blank, self._attached = _BlockHead(), False, False
        begins = level == 1 and not self._page.parts
        self._page.add(f"h{level}", title)
        self._number += used
        if begins:
            self._page.attributes["doctitle"] = title
            self._header()
        return True

    def _header(self) -> None:
        """Read the lines below the document's title up to a blank one; those that are no header stay text."""
        end = next((n for n in range(self._number, len(self._lines)) if not self._lines[n]), len(self._lines))
        last = max((n for n in range(self._number, end) if _ATTRIBUTE.match(self._lines[n])), default=-1)
        text: list[str] = []
        authors = revision = False
        while self._number < end:
            line = self._lines[self._number]
            following = self._lines[self._number + 1] if self._number + 1 < end else ""
            if any(kind.match(line) for kind in (_COMMENT, _ATTRIBUTE, _CONDITION, _UNSEEN)) and self._meta(line):
                continue
            if line.startswith("////") and self._delimited(line):
                return
            if not authors and not text and self._read_authors(line, following):
                authors = True
            elif authors and not revision and not text and self._read_revision(line):
                revision = True
            elif _begins_block(line) or self._number > last:
                break
            else:
                text.append(line)
            self._number += 1
        if text:
            self._page.add("p", "\n".join(text))

    def _read_authors(self, line: str, following: str) -> bool:
        """Handle a line of authors; return whether it is one: it has addresses or full names, or a header follows."""
        authors = [_AUTHOR.match(part.strip()) for part in line.split(";") if part.strip()]
        goes_on = bool(_ATTRIBUTE.match(following) or re.match(r"v?\d", following))
        names = [person["name"] for person in authors if person]
        are_full = all(person and (person["email"] or _is_full_name(person["name"])) for person in authors)
        if not all(authors) or not authors or line.endswith(".") or _begins_block(line) or not (are_full or goes_on):
            return False
        author = authors[0]
        parts = names[0].split()
        values = {"author": names[0], "authors": ", ".join(names), "firstname": parts[0], "lastname": parts[-1]}
        self._page.attributes |= {name: self._expanded(value.replace("_", " ")) for name, value in values.items()}
        if author and author["email"]:
            self._page.attributes["email"] = author["email"]
        return True

    def _read_revision(self, line: str) -> bool:
        """Handle the line of the revision; return whether it is one."""
        match = _REVISION.match(line)
        if match is None or not re.search(r"\d|\{", line) or _begins_block(line):
            return False
        number, date = (match["number"] or "").strip(), match["date"].strip()
        if not number and re.match(r"v\d", date):
            number, date = date[1:], ""
        values = {"revnumber": number, "revdate": date, "revremark": match["remark"] or ""}
        self._page.attributes |= {name: self._expanded(value) for name, value in values.items() if value}
        return True

    def _expanded(self, text: str) -> str:
        return with_attributes(text[:_LONGEST_VALUE], self._page.attributes)

    def _delimited(self, line: str) -> bool:
        """Read a block between two equal lines; a line without a second one is left out."""
        if not _DELIMITER.match(line):
            return False
        sign = line[0]
        closing = line if sign not in "`~" else line[: len(line) - len(line.lstrip(sign))]
        places = self._delimiters.get(closing, [])
        at = bisect_right(places, self._number)
        if at == len(places):
            if line == "--" or sign in "`~":
                return False
            self._number += 1
            return True
        inner = self._lines[self._number + 1 : places[at]]
        self._number = places[at] + 1
        if sign != "/":
            self._block(line, inner, self._begin_block())
        return True

    def _block(self, line: str, inner: Sequence[str], above: _BlockHead) -> None:
        sign, page = line[0], self._page
        if len(line) > 3 and line[1] == "=" and sign in "|,:!":
            page.table(table_rows([row for row in inner if not _COMMENT.match(row)], above.attributes, line))
        elif sign in "`~":
            page.code(inner, line.strip("`~"))
        elif above.style in _CODE or (line != "--" and sign in "-."):
            replaced = _REPLACED.search(above.attributes)
            page.code([*map(self._expanded, inner)] if replaced else inner, above.language)
        elif sign == "+":
            text = re.sub(r"</?[a-zA-Z!][^<>]*>", " ", "\n".join(inner)).strip()
            formula = above.style in ("stem", "latexmath", "asciimath")
            page.parts.append(f"<p>{escape(f'${text}$' if formula else text, quote=False)}</p>\n" if text else "")
        elif above.style == "verse":
            self._verse(inner)
        else:
            if above.style in _NOTES:
                page.add("p", above.style.capitalize())
            page.parts.append("<div>")
            page.body(inner)
            page.parts.append("</div>\n")

    def _verse(self, lines: Sequence[str]) -> None:
        self._page.parts.append(f"<p>{'<br>'.join(map(self._page.inline, lines))}</p>\n")

    def _item(self, line: str) -> bool:
        """Begin an item of a list, or a term."""
        item = _ITEM.match(line)
        term = None if item else _TERM.match(line)
        if item is None and term is None:
            return False
        signs, page = self._signs, self._page
        sign, tag, start = _list_kind(item["sign"]) if item else (term["sign"] if term else "", "dl", "")
        if item and (
            (line.startswith("    ") and not signs)
            or (sign == "a." and sign not in signs and not self._has_next_letter(item["sign"]))
        ):
            return False  # code, or "A. Turing"
        if sign in signs:
            self._close(signs.index(sign) + 1)
            page.parts.append("</li>" if item else "</dd>")
        else:
            if len(signs) == _MOST_LISTS:
                return False
            if self._head.title:
                page.add("p", self._head.title)
            signs.append(sign)
            self._tags.append(tag)
            page.parts.append(f"<{tag}{start}>")
        self._head, self._blank, self._attached = _BlockHead(), False, False
        text: str | None = item["text"] if item else None
        self._number += 1
        if term:
            terms, text = [term["term"].strip()], term["text"]
            while not text and (following := self._next_term(sign)):
                terms.append(following["term"].strip())
                text = following["text"]
            # A term that can only be the name of an option or a setting is code.
            names = [code(name) if _NAME.fullmatch(name) else page.inline(name) for name in terms]
            page.parts.append(f"<dt>{', '.join(names)}</dt>")
        page.parts.append("<li>" if item else "<dd>")
        self._filled = bool(text)
        if text:
            page.add("p", "\n".join([re.sub(r"^\[[ xX*]\] ", "", text), *self._continuation()]))
        return True

    def _has_next_letter(self, sign: str) -> bool:
        """Return whether an item with the next letter follows; otherwise "A. Turing" begins a text."""
        following = f"{chr(ord(sign[0]) + 1)}. "
        return any(line.lstrip().startswith(following) for line in self._lines[self._number : self._number + _AHEAD])

    def _next_term(self, sign: str) -> re.Match[str] | None:
        """Consume and return the next line if it is another term for the same text."""
        near = enumerate(self._lines[self._number : self._number + 3], self._number)
        following = next((number for number, line in near if line), None)
        term = None if following is None or _ITEM.match(self._lines[following]) else _TERM.match(self._lines[following])
        if following is None or term is None or term["sign"] != sign:
            return None
        self._number = following + 1
        return term

    def _continuation(self) -> list[str]:
        """Consume and return the lines that continue a paragraph."""
        start, in_list = self._number, bool(self._signs)
        while self._number < len(self._lines):
            line = self._lines[self._number]
            if not line or line == "+" or _DELIMITER.match(line) or _CONDITION.match(line):
                break
            if in_list and (_ITEM.match(line) or _TERM.match(line)):
                break
            following = self._lines[self._number + 1] if self._number + 1 < len(self._lines) else ""
            if following and (_ANCHOR.match(line) or (_BRACKETS.fullmatch(line) and _DELIMITER.match(following))):
                break
            self._number += 1
        return [part.strip() for part in self._lines[start : self._number] if not _COMMENT.match(part)]

    def _paragraph(self, line: str) -> None:
        in_item = bool(self._signs) and not self._filled
        above = self._begin_block()
        start = self._number
        self._number += 1
        continuation = self._continuation()
        lines = self._lines[start : self._number]
        if above.style in _CODE or (line[0] == " " and not in_item and above.style == ""):
            self._page.code(lines, above.language)
        elif above.style == "verse":
            self._verse(lines)
        elif above.style in _NOTES:
            self._page.add("p", f"{above.style.capitalize()}: " + "\n".join([line.strip(), *continuation]))
        else:
            note = _NOTE.match(line)
            first = f"{note['kind'].capitalize()}: {line[note.end() :]}" if note else line.strip()
            self._page.add("p", "\n".join([first, *continuation]))


def _begins_block(line: str) -> bool:
    return any(kind.match(line) for kind in (_DELIMITER, _BRACKETS, _TITLE, _ITEM, _TERM, _NOTE, _IMAGE, _SECTION))


def _is_full_name(name: str) -> bool:
    return len(name.split()) > 1 and not _FULL_NAME.sub("", name)


def _without_callouts(line: str) -> str:
    if not _CALLOUT.search(line):
        return line
    while match := _CALLOUT.search(line):
        line = line[: match.start()].rstrip()
    sign = next((sign for sign in ("//", "#", "--", ";;") if line.endswith(f" {sign}")), "")
    return line.removesuffix(sign).rstrip()


def _underlines(title: str, line: str) -> bool:
    """Return whether a line is the underline of a title: it is about as long."""
    if not line or line[0] not in _UNDERLINES or line.strip(line[0]) or len(line) < 2:
        return False
    return abs(len(line) - len(title)) <= 2 and title[0] != " " and bool(re.search(r"\w", title))


def _list_kind(sign: str) -> tuple[str, str, str]:
    """Return the sign that identifies an item's list, the tag of the list and its ``start`` attribute."""
    if sign[0] in "*-•":
        return sign, "ul", ""
    number = re.match(r"\d+", sign)
    if number:
        return "1.", "ol", f' start="{number[0]}"'
    if sign[0] == "<":
        return "<1>", "ol", ""
    return ("a." if sign[0] != "." else sign), "ol", ""
