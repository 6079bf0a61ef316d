"""The blocks of a Markdown document that can hold facts: tables, list items and paragraphs with headings.

Code, comments and HTML blocks are ignored. Short table rows are padded, long ones cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from recovery.data.corpus.documents import Document
from recovery.data.corpus.facts.fact import noun_of
from recovery.data.corpus.facts.templates import code_like
from recovery.data.corpus.markdown import References, inline, parse
from recovery.data.corpus.sentences import split_sentences
from recovery.data.corpus.text import share, words

MOST_ROWS = 200  # of one table, so that it does not dominate the corpus
_WITH_VALUES = words("option setting parameter argument property prop variable field flag attribute directive key")
_WORD = re.compile(r"[a-z][\w.-]*")
_NAME = re.compile(r"`[^`]+`|[A-Z][A-Z\d_]{3,}")


@dataclass(frozen=True)
class Table:
    """A table; its cells have no markup except backticks. ``intro`` is the paragraph before it."""

    heading: str
    intro: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """A section about one named thing. ``within`` is the name of the section that holds it, if that has a name too.

    ``noun`` is the kind of thing, by the plural in the heading or title above. ``code`` is False for a name that is a
    plain word: the text below it then decides whether it names an entry.
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
    """An item as read so far: its paragraphs, the number of the item that holds it, and the paragraph before its list.

    ``last`` is the number of the last item within it.
    """

    holder: int | None
    intro: str
    parts: list[str] = field(default_factory=list)
    last: int = 0


@dataclass
class _State:
    """The headings and the paragraph above, the items of the current list, and the numbers of its open items."""

    title: str
    heading: str = ""
    intro: str = ""
    items: list[_Item] = field(default_factory=list)
    open: list[int] = field(default_factory=list)
    above: list[tuple[int, str, bool]] = field(default_factory=list)
    section: Section | None = None

    def enter(self, level: int, text: str) -> None:
        """Begin the section below a heading."""
        name = text.replace("`", "")
        self.heading, self.intro = ("" if name == self.title else name), ""
        above = [entry for entry in self.above if entry[0] < level]
        is_named = bool(_NAME.fullmatch(text)) or (code_like(text) and not text[0].isdigit())  # of one thing
        self.above = [*above, (level, name, is_named)]
        holder = next((label for _, label, is_name in reversed(above) if is_name), "")
        nouns = (noun_of(label, plural=True) for label in (*(entry[1] for entry in reversed(above)), self.title))
        noun = next((noun for noun in nouns if noun in _WITH_VALUES), "")  # `STATIC_ROOT` is no static file
        self.section = Section(name, holder, noun, is_named) if is_named or _WORD.fullmatch(name) else None

    def begin_item(self) -> None:
        """Begin an item, which the innermost open one holds."""
        holder = self.open[-1] if self.open else None
        above = [] if holder is None else self.items[holder].parts[1:]
        intro = above[-1] if above and above[-1].endswith(":") else self.intro
        self.open.append(len(self.items))
        self.items.append(_Item(holder, intro))

    def end_item(self) -> Iterator[ListItem]:
        """End the innermost open item; yield the list if it was the last one open."""
        self.items[self.open.pop()].last = len(self.items) - 1
        if not self.open:
            yield from self._listed()

    def text(self, text: str) -> Iterator[Paragraph]:
        """Take a paragraph; yield it if no item holds it."""
        if self.open and text:
            self.items[self.open[-1]].parts.append(text)
        elif text:
            self.intro = text
            yield Paragraph(self.heading, text, self.section)

    def _listed(self) -> Iterator[ListItem]:
        items, self.items = self.items, []
        texts = [" ".join(item.parts) for item in items]
        for number, item in enumerate(items):
            if item.parts:
                below = tuple(filter(None, texts[number + 1 : item.last + 1]))
                within = next(iter(items[item.holder].parts), "") if item.holder is not None else ""
                yield ListItem(self.heading, item.intro, texts[number], below, tuple(item.parts), within, self.section)


def blocks(document: Document) -> list[Block]:
    """Return the blocks of a document in order."""
    state = _State(document.title)
    blocks_found: list[Block] = []
    parsed = parse(document.text)
    for number, token in enumerate(parsed.tokens):
        if token.type == "table":
            blocks_found += _table(state, parsed.references, *token.meta["lines"])
        elif token.type == "list_item_open":
            state.begin_item()
        elif token.type == "list_item_close":
            blocks_found += state.end_item()
        elif token.type == "inline":
            text = inline(token.content, parsed.references)
            if text and (level := parsed.level(number - 1)):
                state.enter(level, text)
            else:
                blocks_found += state.text(text)
    return blocks_found


def sentences_in(text: str) -> list[str]:
    """Return the sentences of a text, also split before inline code, which has no initial capital."""
    return [part for sentence in split_sentences(text) for part in re.split(r"(?<=[\w`)][.!?])\s+(?=`)", sentence)]


def cells(line: str, references: References | None = None) -> list[str]:
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
            current += "|" if token == "\\|" else token
    return [inline(part, references) for part in [*parts, current]]


def _table(state: _State, references: References, head: str, *body: str) -> list[Table]:
    header = tuple(cells(head, references))
    if len(body) > MOST_ROWS:  # by the first cell, so that rows about the same thing stay together
        body = tuple(sorted(body, key=lambda line: share(line.strip().removeprefix("|").split("|")[0], "row")))
    rows = tuple(tuple((cells(line, references) + [""] * len(header))[: len(header)]) for line in body[:MOST_ROWS])
    if len(header) < 2 or not rows:
        return []
    intro = next(reversed(state.items[state.open[-1]].parts), state.intro) if state.open else state.intro
    return [Table(state.heading, intro, header, rows)]
