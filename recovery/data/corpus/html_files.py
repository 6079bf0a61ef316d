"""Text of HTML pages, as Markdown: headings, lists, tables, code and powers keep their structure.

Scripts, styles, menus and footers are left out, and so are the addresses of links. Nothing is fetched. The page is
walked without recursion, so that the depth of its elements is not limited.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import unescape
from itertools import islice
from typing import Any

from lxml import etree, html

from recovery.data.corpus.html_parts import BLOCKS, clear_furniture, is_unseen, main_part, one_line, picture
from recovery.data.corpus.outline import CELLS, Cell, cell_text, is_data, piped, span
from recovery.data.corpus.sentences import running, split_sentences
from recovery.data.corpus.text import LOST_CONTROL, SENTENCE_ENDS, WIDE_ENDS, marked, paragraphs, words

_SPACED_BLOCKS = words("article blockquote dd div dl figure h1 h2 h3 h4 h5 h6 ol p pre section table td th ul")
_LEVELS = {f"h{level}": level for level in range(1, 7)}
_CODE = words("code samp tt")
_POWERS = words("sub sup")
_LISTS = words("dl ol ul")
# Added by browsers: quotation marks, and brackets around a reading ("rt"), which stands above its word.
_SIGNS = {"q": ('"', '"'), "rt": ("(", ")")}
_REFERENCE = re.compile(r"&#(?:0*(\d{1,3})|[xX]0*([0-9a-fA-F]{1,2}));")
_EVENTS = ("start", "end", "comment", "pi")
_DEEPEST = 4  # elements within each other that mark a text
_DEEPEST_MARGIN = 40  # spaces before what is in a list
_ITEM = "\x1e"  # before an item of a list in a cell
_LANGUAGE = re.compile(r"(?:^|\s)(?:lang(?:uage)?-|brush:\s*(?!java;|plain|text|none))([\w+#.-]{1,20})(?:[\s;]|$)")
_FIELD = re.compile(r"<mso:(WikiField|PublishingPageContent|CanvasContent1)\b[^<>]*>([^<]*)</mso:\1>")
_BRUSH = "data-syntaxhighlighter-params"  # of Confluence, whose brush is Java if none is chosen
_ENDS = f"{SENTENCE_ENDS}{WIDE_ENDS}:"
_POWER = re.compile(r"[-+−]?[\w.,]+[-+−]?")
# Text in &lt; and &gt;, with the option before it: unmarked it would be a tag in Markdown, and lost.
_ESCAPED = re.compile(r"(?<![\w.=/-])(?:[\w./-]*=)?</?[A-Za-z][^<>`@:]{0,60}>")
_PROSE = 0.3  # share of the words of preformatted text in sentences; code, with its comments, mostly has less


def read_html(text: str) -> tuple[str, str]:
    """Return the title of a page and its text, each "" if there is none."""
    text = re.sub(r"^\s*<\?xml[^>]*\?>", "", text)  # lxml rejects a str that declares an encoding
    text = _REFERENCE.sub(_control_character, marked(text))
    try:
        tree = html.document_fromstring(text, parser=html.HTMLParser(huge_tree=True))
    except (etree.ParserError, ValueError):
        return "", ""
    clear_furniture(tree)
    page, part, skipped = _Page(), main_part(tree), None
    walk = etree.iterwalk(part, events=_EVENTS)
    for event, node in walk:
        if event == "start":
            if page.enter(node):
                page.add(node.text)
            else:
                walk.skip_subtree()
                skipped = node
            continue
        if event == "end" and node is not skipped:
            page.leave(node)
        if node is not part:
            page.add(node.tail)
    return one_line(tree.findtext("head/title") or "") or page.title, page.finish()


def read_server_page(text: str) -> tuple[str, str]:
    """Return the title and the text of an ASP.NET page (.aspx), without directives and code.

    SharePoint stores the text of a page of its own as fields of a comment, each as escaped HTML.
    """
    fields = [unescape(field[2]) for field in _FIELD.finditer(text)]
    parts, at = [], 0
    while (begin := text.find("<%", at)) >= 0 and (end := text.find("%>", begin)) >= 0:
        parts.append(text[at:begin])
        at = end + 2
    page = "".join([*parts, text[at:], *(f"<div>{field}</div>" for field in fields)])
    # A page with a master page has only contents; without <body> they would belong to the head after a script.
    return read_html(page if re.search("<html", page, re.IGNORECASE) else f"<body>{page}")


def _control_character(match: re.Match[str]) -> str:
    """Return the character of a reference to a control character: "&#146;" is "’", as in browsers."""
    code = int(match[1]) if match[1] else int(match[2], 16)
    if 0x80 <= code <= 0x9F:
        return bytes([code]).decode("cp1252", "ignore") or LOST_CONTROL
    return LOST_CONTROL if marked(chr(code)) == LOST_CONTROL else match[0]


@dataclass
class _Page:
    """The text of a page so far. ``title`` is its first heading of level 1.

    ``_inline`` is the text since the last break; ``_breaks`` counts the breaks. ``_marks`` holds the start of each open
    element that marks its text, ``_codes`` the number of those that are code. ``_level`` is the level of the open
    heading; ``_naming`` is set within a term. ``_gap`` is the number of line ends before the next block, ``_marker``
    the sign of the list item that it begins with, ``_term`` a term whose definition has not begun. ``_blocks`` counts
    the blocks since the last item began.
    """

    title: str = ""
    _parts: list[str] = field(default_factory=list)
    _inline: list[str] = field(default_factory=list)
    _breaks: int = 0
    _marks: list[tuple[int, int] | None] = field(default_factory=list)
    _codes: int = 0
    _level: int = 0
    _naming: bool = False
    _lists: list[int | None] = field(default_factory=list)
    _indents: list[int] = field(default_factory=list)
    _indent: int = 0
    _gap: int = 0
    _marker: str = ""
    _term: str = ""
    _blocks: int = 0
    _rows: list[list[Cell]] | None = None
    _cell: int = 0

    def add(self, text: str | None) -> None:
        """Add the text or the tail of a node."""
        if text:
            text = re.sub(r"\s+", " ", text)
            self._inline.append(text if self._codes else _ESCAPED.sub(r"`\g<0>`", text))

    def finish(self) -> str:
        """Return the text of the whole page."""
        self._end_block()
        return "".join(self._parts)

    def enter(self, node: Any) -> bool:
        """Handle the start of an element; return whether its content is to be read."""
        tag = node.tag
        if is_unseen(node):
            if tag in BLOCKS:
                self._break(1)
            return False
        if tag == "pre":
            self._break(2)
            self._add_code(node)
            return False
        if tag == "math":
            self._add_formula(node)
            return False
        if tag in ("img", "svg"):
            self._add_picture(node)
            return False
        if tag == "br":
            self._inline.append(" " if self._on_a_line() else "\n")
        elif tag in _SIGNS:
            self._inline.append(_added_sign(node, 0))
        elif tag in _CODE or tag in _POWERS:
            self._marks.append((self._breaks, len(self._inline)) if len(self._marks) < _DEEPEST else None)
            self._codes += tag in _CODE
        elif self._rows is not None:
            self._enter_in_table(tag, self._rows)
        elif tag in BLOCKS:
            self._open(node)
        return True

    def leave(self, node: Any) -> None:
        """Handle the end of an element."""
        tag = node.tag
        if tag in _SIGNS:
            self._inline.append(_added_sign(node, 1))
        elif tag in _CODE or tag in _POWERS:
            self._mark(node)
        elif self._rows is not None:
            self._leave_in_table(node, self._rows)
        elif tag in _LEVELS:
            self._flush()
            self._level = 0
        elif tag == "dt":
            self._term, self._naming = one_line(self._take()).removesuffix(":") or self._term, False
        elif tag in _LISTS:
            self._end_block()
            self._lists.pop()
            self._break(2)
        elif tag in ("li", "dd"):
            self._flush()
            self._indent -= self._indents.pop()
            self._marker = ""
            self._break(1)
        elif tag in BLOCKS:
            self._break(2 if tag in _SPACED_BLOCKS else 1)

    def _open(self, node: Any) -> None:
        tag = node.tag
        if tag in _LEVELS:
            self._break(2)
            self._level = _LEVELS[tag]
        elif tag == "table" and is_data(node):
            self._end_block()
            self._rows = []
        elif tag in _LISTS:
            self._open_list(node)
        elif tag == "li":
            number = self._lists[-1] if self._lists else None
            sign = "- " if number is None else f"{number}. "
            self._begin_item(sign)
            self._push(len(sign))
            if number is not None:
                self._lists[-1] = number + 1
        elif tag == "dt":
            self._begin_item("- ")
            self._naming = True
        elif tag == "dd":
            self._break(2)
            self._push(0 if node.getparent().tag in ("dd", "li") else 2)  # lxml closes none before the next one
        else:
            self._break(2 if tag in _SPACED_BLOCKS else 1)

    def _open_list(self, node: Any) -> None:
        self._break(1 if self._lists else 2)
        start = node.get("start") or "1"
        ordered = node.tag == "ol"
        self._lists.append((int(start) if re.fullmatch(r"[0-9]{1,9}", start) else 1) if ordered else None)
        if len(self._lists) == 1:
            self._blocks = 0

    def _begin_item(self, sign: str) -> None:
        self._end_block()
        if self._blocks:  # after an item of several blocks a blank line, so that its last one ends there
            self._gap = 1 if self._blocks == 1 else 2
        self._blocks = 0
        self._marker = self._margin() + sign

    def _push(self, width: int) -> None:
        self._indents.append(width)
        self._indent += width

    def _margin(self) -> str:
        return " " * min(self._indent, _DEEPEST_MARGIN)

    def _on_a_line(self) -> bool:
        return bool(self._level) or self._naming or self._rows is not None

    def _break(self, gap: int) -> None:
        """End the current block; ``gap`` is 1 for a new line and 2 for a blank one."""
        if self._on_a_line():
            self._inline.append(" ")
            return
        self._flush()
        if not self._marker:  # an item begins on the line of its sign
            self._gap = max(self._gap, gap)

    def _take(self) -> str:
        """Return and clear the text since the last break."""
        text = re.sub(r"[^\S\n]+", " ", "".join(self._inline))
        self._inline.clear()
        self._breaks += 1
        return re.sub(r" ?\n ?", "\n", text).strip()

    def _flush(self) -> None:
        text = self._take()
        if not text:
            return
        if self._level:
            text, level = one_line(text), self._level
            if level == 1:
                self.title = self.title or text.replace("`", "")
            self._write_apart(f"{'#' * level} {text}", margin="")
        else:
            term, self._term = self._term, ""
            self._write(f"{term}: {text}" if term else text, self._margin())

    def _end_block(self) -> None:
        """End the current block, and a term without a definition."""
        self._flush()
        if self._term:
            term, self._term = self._term, ""
            self._write(term, self._margin())

    def _write_apart(self, text: str, margin: str) -> None:
        """Write a block that needs its own lines: a heading, preformatted text or a table."""
        self._end_block()
        self._marker, self._gap = "", 2
        self._write(text, margin)
        self._gap = 2
        self._blocks += 1  # a blank line has to follow

    def _write(self, text: str, margin: str) -> None:
        first, *rest = text.split("\n")
        lines = [(self._marker or margin) + first, *(margin + line if line else "" for line in rest)]
        self._parts.append("\n" * (self._gap if self._parts else 0) + "\n".join(lines))
        self._gap, self._marker = 1, ""
        self._blocks += 1

    def _add_code(self, node: Any) -> None:
        code = re.sub(r"\A(?:[ \t]*\n)+", "", _lines(node)).rstrip()
        in_a_cell = any(parent.tag in CELLS for parent in islice(node.iterancestors(), 4))
        if not code or (in_a_cell and re.fullmatch(r"[\d\s]*", code)):  # line numbers beside the code
            return
        self._write_apart(code if _is_prose(node, code) else _fenced(code, _language(node)), self._margin())

    def _add_formula(self, node: Any) -> None:
        is_block = node.get("display") == "block"
        if is_block:
            self._break(2)
        self.add(formula(node))
        if is_block:
            self._break(2)

    def _add_picture(self, node: Any) -> None:
        """Add the text for an image, with spaces where words would stick to it."""
        text = picture(node)
        if text:
            before = "".join(self._inline[-1:])[-1:]
            self.add(f"{' ' * before.isalnum()}{text}{' ' * (node.tail or 'x')[0].isalnum()}")

    def _mark(self, node: Any) -> None:
        """Write the text of a marking element: code between backticks, powers and indices after a sign."""
        mark = self._marks.pop()
        self._codes -= node.tag in _CODE
        if mark is None:
            return
        breaks, at = mark
        at = at if breaks == self._breaks else 0  # a block within it has ended
        text = "".join(self._inline[at:])
        before = self._inline[at - 1][-1:] if at else ""
        del self._inline[at:]
        self._inline.append(_code(text) if node.tag in _CODE else _raised(node, text, before))

    def _enter_in_table(self, tag: str, rows: list[list[Cell]]) -> None:
        if tag == "tr":
            rows.append([])
        elif tag in CELLS:
            self._cell = len(self._inline)
        elif tag in BLOCKS:
            self._inline.append(_ITEM if tag == "li" else " ")

    def _leave_in_table(self, node: Any, rows: list[list[Cell]]) -> None:
        if node.tag in CELLS and rows:
            parts = "".join(self._inline[self._cell :]).split(_ITEM)
            del self._inline[self._cell :]
            text = cell_text("; ".join(part for part in map(one_line, parts) if part))
            head = node.tag == "th" or node.getparent().getparent().tag == "thead"
            rows[-1].append(Cell(text, span(node, "colspan"), span(node, "rowspan"), head))
        elif node.tag == "table":
            self._rows = None
            self._flush()  # the caption, which is above the table wherever it is written
            if table := piped(rows):
                self._write_apart(table, self._margin())
        elif node.tag in BLOCKS:
            self._inline.append(" ")


def _added_sign(node: Any, side: int) -> str:
    """Return the sign on one side of an element, unless the page writes it itself."""
    before = node.getprevious()
    is_written = node.getparent().tag == "rp" or (before is not None and before.tag == "rp")
    return "" if is_written else _SIGNS[node.tag][side]


def _lines(node: Any) -> str:
    """Return preformatted text as it is; a block within it is one of its lines."""
    parts: list[str] = []
    walk = etree.iterwalk(node, events=_EVENTS)
    for event, child in walk:
        if event == "start":
            if is_unseen(child):
                walk.skip_subtree()
            else:
                parts.append(("\n" if child.tag == "br" else "") + (child.text or ""))
        elif child is not node:
            ends = event == "end" and child.tag in BLOCKS and not (parts and parts[-1].endswith("\n"))
            parts.append(("\n" if ends else "") + (child.tail or ""))
    return "".join(parts)


def _is_prose(node: Any, code: str) -> bool:
    """Return whether preformatted text is running text, as in RFCs and archives of letters: several sentences."""
    # Pygments colours code without naming its language.
    coloured = any("highlight" in (element.get("class") or "") for element in (node, node.getparent()))
    if coloured or node.find("code") is not None or _language(node):
        return False
    parts = [part for block in paragraphs(code) for part in split_sentences(block)]
    capitalised = [part for part in parts if not part[0].islower() and part[0].isalpha()]
    lengths = [len(part.split()) for part in capitalised if part[-1] in _ENDS and running(part)]
    return len(lengths) > 1 and sum(lengths) >= _PROSE * len(code.split())


def _language(node: Any) -> str:
    matches = (_LANGUAGE.search(f"{tag.get('class') or ''} {tag.get(_BRUSH) or ''}") for tag in (node, *node[:1]))
    return next((match[1] for match in matches if match), "")


def _fenced(code: str, language: str) -> str:
    sign = "~" if "```" in code else "`"
    fence = sign * max([3, *(len(run) + 1 for run in re.findall(rf"{sign}{{3,}}", code))])
    return f"{fence}{language}\n{code}\n{fence}"


def _code(text: str) -> str:
    inner = text.strip()
    if not inner or (inner.startswith("`") and inner.endswith("`")):
        return text
    marked = f"`` {inner} ``" if "`" in inner else f"`{inner}`"
    return f"{' ' * text[0].isspace()}{marked}{' ' * text[-1].isspace()}"


def _raised(node: Any, text: str, before: str) -> str:
    """Return a power or an index that stands behind ``before``, with a sign if it would be misread without one."""
    inner = one_line(text)
    if not inner or not before.strip():
        return text
    if node.tag == "sub":
        if inner[0].isdigit() or not before.isalnum() or " " in inner:  # H2O
            return text
        return f"_{inner}" if inner.isalnum() else f"_({inner})"
    link = node.getparent().tag == "a" or node.find("a") is not None
    if link or inner.startswith("["):  # a note
        return inner if inner.startswith("[") else f"[{inner}]"
    ending = not re.search(r"\d", inner) and (re.search(r"[^\W\d_]{2}", inner) or (before.isdigit() and inner in "aeo"))
    if ending or not re.search(r"\w", inner):  # 1st, 2e, a sign
        return text
    return f"^{inner}" if _POWER.fullmatch(inner) else f"^({inner})"


# Formulas of MathML in HTML pages, as text: their TeX if they have it, else a line such as (a + b)/c^2.

_STYLE = re.compile(r"\{\\displaystyle\s(.*)\}")  # Wikipedia's
_ATOM = re.compile(r"[-+−]?[\w.,]+|\S")
_RELATIONS = frozenset("= < > ≤ ≥ ≠ ≈ ≡ ∼ ∈ → ⇒".split())
_UNWRITTEN = "\u2061\u2062\u2063\u2064"  # signs for the application of a function and the like
_SCRIPTS = {"msub": "_", "munder": "_", "msup": "^", "mover": "^"}
_LONGEST = 5_000  # characters and elements


def formula(node: Any) -> str:
    """Return the text of a formula."""
    notes = (note for note in node.iter("annotation") if "tex" in (note.get("encoding") or ""))
    tex = one_line(next((note.text or "" for note in notes), "") or node.get("alttext") or "")
    if tex:
        styled = _STYLE.fullmatch(tex)
        return f"${one_line(styled[1]) if styled else tex}$"
    plain = "".join(node.itertext())
    if len(plain) > _LONGEST or next(islice(node.iter(), _LONGEST, None), None) is not None:
        return one_line(plain)  # composing copies the text of each level: quadratic time
    levels: list[list[str]] = [[]]
    for event, part in etree.iterwalk(node, events=("start", "end")):
        if event == "start":
            levels.append([])
        else:
            text = _formula_text(part, levels.pop())
            levels[-1].append(text)
    return one_line("".join(levels[0]))


def _formula_text(node: Any, parts: Sequence[str]) -> str:
    """Return the text of one element of a formula, given the texts of its parts."""
    tag, text = node.tag, (node.text or "").strip(f" \t\n\r{_UNWRITTEN}")
    if tag in ("annotation", "annotation-xml", "mphantom"):
        return ""
    if tag == "mo":
        return f" {text} " if text in _RELATIONS else text
    if tag == "mtext":
        return node.text or ""
    if tag in _SCRIPTS and len(parts) == 2:
        return parts[0] + _script(_SCRIPTS[tag], parts[1])
    if tag in ("msubsup", "munderover") and len(parts) == 3:
        return parts[0] + _script("_", parts[1]) + _script("^", parts[2])
    if tag == "mfrac" and len(parts) == 2:
        return f"{_bracketed(parts[0])}/{_bracketed(parts[1])}"
    if tag == "msqrt":
        return f"√{_bracketed(''.join(parts))}"
    if tag == "mroot" and len(parts) == 2:
        return f"{_bracketed(parts[0])}^(1/{parts[1].strip()})"
    if tag in ("mtable", "mtr"):
        return ("; " if tag == "mtable" else ", ").join(parts)
    if tag == "mfenced":
        return f"{node.get('open') or '('}{', '.join(parts)}{node.get('close') or ')'}"
    return text + "".join(parts)


def _script(sign: str, text: str) -> str:
    return f"{sign}{_bracketed(text)}" if text.strip() else ""


def _bracketed(text: str) -> str:
    text = text.strip()
    return text if _ATOM.fullmatch(text) else f"({text})"
