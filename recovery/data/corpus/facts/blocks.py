"""Parser for the blocks of a Markdown document that can hold facts: tables, list items and paragraphs with headings.

Fenced code, comments and HTML blocks are ignored. Short table rows are padded, long ones cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from recovery.data.corpus.documents import Document
from recovery.data.corpus.markdown import begins_table, code_lines
from recovery.data.corpus.sentences import split_sentences
from recovery.data.corpus.text import heading_of, share

MOST_ROWS = 200  # of one table, so that it does not dominate the corpus
_COMMENT = re.compile(r"\{/\*.*?\*/\}|<!--.*?-->", re.DOTALL)
_ITEM = re.compile(r"^(\s*)(?:[-*+•]|\d+[.)])\s+(.*)$")
_CODE = re.compile(r"(`+)(.+?)\1")
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\([^()\s]*(?:\([^()]*\)[^()\s]*)*(?:\s+\"[^\"]*\")?\)")
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
class ListItem:
    """A list item with the texts of its nested items. ``intro`` is the paragraph before the list."""

    heading: str
    intro: str
    text: str
    below: tuple[str, ...] = ()


@dataclass(frozen=True)
class Paragraph:
    """Running text on one line."""

    heading: str
    text: str


Block = Table | ListItem | Paragraph


@dataclass
class _State:
    """State of the parser: the current heading and intro, and the lines and items not yet yielded as blocks."""

    title: str
    heading: str = ""
    intro: str = ""
    lines: list[str] = field(default_factory=list)
    items: list[tuple[int, str]] = field(default_factory=list)

    def flush(self) -> Iterator[Block]:
        """Yield the paragraph or list that ends here."""
        if self.lines:
            text = inline(" ".join(self.lines))
            self.lines = []
            if text:
                self.intro = text
                yield Paragraph(self.heading, text)
        yield from self._listed()

    def _listed(self) -> Iterator[Block]:
        items, self.items = self.items, []
        texts = [(depth, inline(text)) for depth, text in items]
        for number, (depth, text) in enumerate(texts):
            below = []
            for deeper, other in texts[number + 1 :]:
                if deeper <= depth:
                    break
                below.append(other)
            yield ListItem(self.heading, self.intro, text, tuple(below))


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
        name = inline(heading).replace("`", "")
        state.heading, state.intro = ("" if name == state.title else name), ""
        return done
    line = re.sub(r"^\s*(?:>\s?)+", "", line)
    if not line.strip():
        return list(state.flush()) if state.lines else []
    if item := _ITEM.match(line):
        done = list(state.flush()) if state.lines else []
        state.items.append((len(item[1].expandtabs(4)), item[2]))
        return done
    if line.lstrip().startswith("<"):
        return list(state.flush())
    if state.items and line.startswith((" ", "\t")):
        depth, text = state.items[-1]
        state.items[-1] = (depth, f"{text} {line.strip()}")
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
