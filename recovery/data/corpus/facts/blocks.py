"""Parser for the blocks of a Markdown document that can hold facts: tables, list items and paragraphs with headings.

Fenced code, comments and HTML blocks are ignored. Short table rows are padded, long ones cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from recovery.data.corpus.documents import Document
from recovery.data.corpus.facts.grammar import noun_of
from recovery.data.corpus.facts.templates import code_like
from recovery.data.corpus.markdown import begins_table, code_lines
from recovery.data.corpus.sentences import split_sentences
from recovery.data.corpus.text import heading_of, share, words

MOST_ROWS = 200  # of one table, so that it does not dominate the corpus
_COMMENT = re.compile(r"\{/\*.*?\*/\}|<!--.*?-->", re.DOTALL)
_ITEM = re.compile(r"^(\s*)(?:[-*+•]|\d+[.)])\s+(.*)$")
_CODE = re.compile(r"(`+)(.+?)\1")
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\([^()\s]*(?:\([^()]*\)[^()\s]*)*(?:\s+\"[^\"]*\")?\)")
_WITH_VALUES = words("option setting parameter argument property prop variable field flag attribute directive key")
_WORD = re.compile(r"[a-z][\w.-]*")
_NAME = re.compile(r"`[^`]+`|[A-Z][A-Z\d_]{3,}")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_EMPHASIS = re.compile(r"\*{1,3}|(?<!\w)_{1,3}(?=\S)|(?<=\S)_{1,3}(?!\w)|~~")


@dataclass(frozen=True)
class Table:
    """A table; its cells have no markup except backticks. ``intro`` is the paragraph before it."""

    heading: str
    intro: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """A section that is about one named thing; ``within`` is the name of the section that holds it, if that is too.

    ``noun`` says what kind of thing it is, by the plural in the heading or title above. A plain word as the name is no
    ``code``: whether it is one shows what follows.
    """

    name: str
    within: str = ""
    noun: str = ""
    code: bool = True


@dataclass(frozen=True)
class ListItem:
    """A list item with the texts of its nested items. ``intro`` is the paragraph before the list.

    ``parts`` are its paragraphs, and ``within`` is the first one of the item that holds it.
    """

    heading: str
    intro: str
    text: str
    below: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    within: str = ""
    section: Section | None = None


@dataclass(frozen=True)
class Paragraph:
    """Running text on one line."""

    heading: str
    text: str
    section: Section | None = None


Block = Table | ListItem | Paragraph


@dataclass
class _Item:
    """An item as read so far: how deep its sign stands, its paragraphs, the number of the item that holds it, and the
    paragraph before its list.
    """

    depth: int
    parts: list[str]
    holder: int | None
    intro: str


@dataclass
class _State:
    """State of the parser: the headings and intro above, and the lines and items not yet yielded as blocks.

    ``apart`` is set behind a blank line within a list, and ``latest`` is the item whose text goes on.
    """

    title: str
    heading: str = ""
    intro: str = ""
    lines: list[str] = field(default_factory=list)
    items: list[_Item] = field(default_factory=list)
    apart: bool = False
    latest: int = 0
    above: list[tuple[int, str, bool]] = field(default_factory=list)
    section: Section | None = None

    def enter(self, level: int, heading: str) -> None:
        """Begin the section below a heading."""
        text = inline(heading)
        name = text.replace("`", "")
        self.heading, self.intro = ("" if name == self.title else name), ""
        above = [entry for entry in self.above if entry[0] < level]
        named = _is_name(text)
        self.above = [*above, (level, name, named)]
        holder = next((other for _, other, is_name in reversed(above) if is_name), "")
        nouns = (noun_of(other, plural=True) for other in (*(entry[1] for entry in reversed(above)), self.title))
        noun = next((noun for noun in nouns if noun in _WITH_VALUES), "")  # `STATIC_ROOT` is no static file
        self.section = Section(name, holder, noun, named) if named or _WORD.fullmatch(name) else None

    def begin_item(self, depth: int, text: str) -> None:
        """Begin an item of a list, which the last one less deep holds."""
        holder = self._holder(depth)
        above = [] if holder is None else self.items[holder].parts[1:]
        intro = inline(above[-1]) if above and above[-1].endswith(":") else self.intro
        self.items.append(_Item(depth, [text], holder, intro))
        self.apart, self.latest = False, len(self.items) - 1

    def go_on(self, line: str) -> None:
        """Take a line of an item; behind a blank line, that of the last one less deep."""
        if self.apart:
            holder = self._holder(len(line.expandtabs(4)) - len(line.expandtabs(4).lstrip()))
            self.apart, self.latest = False, len(self.items) - 1 if holder is None else holder
            self.items[self.latest].parts.append("")
        parts = self.items[self.latest].parts
        parts[-1] = f"{parts[-1]} {line.strip()}".lstrip()

    def _holder(self, depth: int) -> int | None:
        number = len(self.items) - 1 if self.items else None
        while number is not None and self.items[number].depth >= depth:
            number = self.items[number].holder  # what is between them is as deep
        return number

    def flush(self) -> Iterator[Block]:
        """Yield the paragraph or list that ends here."""
        if self.lines:
            text = inline(" ".join(self.lines))
            self.lines = []
            if text:
                self.intro = text
                yield Paragraph(self.heading, text, self.section)
        yield from self._listed()

    def _listed(self) -> Iterator[Block]:
        items, self.items = self.items, []
        texts = [inline(" ".join(item.parts)) for item in items]
        for number, item in enumerate(items):
            below = []
            for deeper in range(number + 1, len(items)):
                if items[deeper].depth <= item.depth:
                    break
                below.append(texts[deeper])
            parts = tuple(map(inline, item.parts))
            within = "" if item.holder is None else inline(items[item.holder].parts[0])
            yield ListItem(self.heading, item.intro, texts[number], tuple(below), parts, within, self.section)


def blocks(document: Document) -> list[Block]:
    """Return the blocks of a document in order."""
    state = _State(document.title)
    found: list[Block] = []
    lines = _visible(document.text)
    number = 0
    while number < len(lines):
        line = lines[number]
        if begins_table(lines, number):
            found += state.flush()
            end = number + 2
            while end < len(lines) and "|" in lines[end] and lines[end].strip():
                end += 1
            found += _table(state, lines[number], lines[number + 2 : end])
            number = end
            continue
        found += _take(state, line)
        number += 1
    return found + list(state.flush())


def inline(raw: str) -> str:
    """Return text on one line without links, emphasis and tags; code keeps one pair of backticks."""
    raw = _LINK.sub(r"\1", raw.replace("\\|", "|"))
    parts, end = [], 0
    for match in _CODE.finditer(raw):
        parts += [_bare(raw[end : match.start()]), f"`{match[2].strip()}`"]
        end = match.end()
    parts.append(_bare(raw[end:]))
    return re.sub(r"\s+", " ", "".join(parts)).strip()


def sentences_in(text: str) -> list[str]:
    """Return the sentences of a text, also split before inline code, which has no initial capital."""
    return [part for whole in split_sentences(text) for part in re.split(r"(?<=[\w`)][.!?])\s+(?=`)", whole)]


def cells(line: str) -> list[str]:
    """Return the cells of a row; a bar in code or after a backslash is not a separator."""
    line = line.strip().removeprefix("|")
    line = line[:-1] if line.endswith("|") and not line.endswith("\\|") else line
    parts, current, code = [], "", False
    for match in re.finditer(r"\\\||`+|\||[^\\`|]+|\\", line):
        token = match[0]
        code ^= token.startswith("`")
        if token == "|" and not (code and "`" in line[match.end() :]):
            parts.append(current)
            current, code = "", False
        else:
            current += token
    return [inline(part) for part in [*parts, current]]


def _is_name(heading: str) -> bool:
    """Return whether a heading is the name of one thing: code alone, or a word like it."""
    return bool(_NAME.fullmatch(heading)) or (code_like(heading) and not heading[0].isdigit())


def _bare(text: str) -> str:
    return _EMPHASIS.sub("", _TAG.sub("", text))


def _visible(text: str) -> list[str]:
    """Return the lines outside code fences and comments; code leaves blank lines."""
    lines = text.split("\n")
    shown = ("" if code else line for line, code in zip(lines, code_lines(lines), strict=True))
    return _COMMENT.sub("", "\n".join(shown)).split("\n")


def _take(state: _State, line: str) -> list[Block]:
    """Consume one line and return the blocks that it completes."""
    if (heading := heading_of(line)) is not None:
        done = list(state.flush())
        state.enter(len(line) - len(line.lstrip("#")), heading)
        return done
    line = re.sub(r"^\s*(?:>\s?)+", "", line)
    if not line.strip():
        state.apart = True
        return list(state.flush()) if state.lines else []
    if item := _ITEM.match(line):
        done = list(state.flush()) if state.lines else []
        state.begin_item(len(item[1].expandtabs(4)), item[2])
        return done
    if line.lstrip().startswith("<"):
        return list(state.flush())
    if state.items and line.startswith((" ", "\t")):
        state.go_on(line)
        return []
    done = list(state.flush()) if state.items else []
    if not line.startswith(("    ", "\t")):
        state.lines.append(line.strip())
    return done


def _table(state: _State, head: str, body: list[str]) -> list[Block]:
    header = tuple(cells(head))
    if len(body) > MOST_ROWS:  # by the first cell, so that rows about the same thing stay together
        body = sorted(body, key=lambda line: share(line.strip().removeprefix("|").split("|")[0], "row"))
        body = body[:MOST_ROWS]
    rows = tuple(tuple((cells(line) + [""] * len(header))[: len(header)]) for line in body)
    if len(header) < 2 or not rows:
        return []
    return [Table(state.heading, state.intro, header, rows)]
