"""A document of headings, paragraphs, tables and quoted texts, written as Markdown or as one HTML file.

All content is escaped: markup in a model's response or in a user's documents is shown, never interpreted. Only quoted
texts, which stand alone, keep characters that turn the direction of a line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from jinja2 import Environment, PackageLoader, select_autoescape


@dataclass(frozen=True)
class Heading:
    """A heading of level 1, 2 or 3."""

    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of plain text."""

    text: str


@dataclass(frozen=True)
class Table:
    """Cells as text; columns after the first are numbers, aligned to the right, unless they are ``prose``."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    prose: bool = False


@dataclass(frozen=True)
class Quote:
    """Verbatim text under a label."""

    label: str
    text: str


Block = Heading | Paragraph | Table | Quote


def to_markdown(blocks: Sequence[Block]) -> str:
    """Return the document as GitHub's Markdown."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def to_html(title: str, blocks: Sequence[Block], figures: Sequence[tuple[str, str]] = ()) -> str:
    """Return the document as one self-contained HTML file.

    ``figures`` are (caption, trusted HTML), placed after the first paragraph; they alone are not escaped.
    """
    environment = Environment(loader=PackageLoader("pipelines"), autoescape=select_autoescape(default=True))
    environment.filters["undirected"] = undirected
    named = [(type(block).__name__.lower(), block) for block in blocks]
    cut = next((i for i, (kind, _) in enumerate(named) if kind == "paragraph"), -1) + 1
    return environment.get_template("report.html.jinja").render(
        title=title, head=named[:cut], body=named[cut:], figures=figures
    )


def undirected(text: str) -> str:
    """Return a text without characters that change the direction of the text beside it in the same line.

    Marks of right-to-left scripts stay.
    """
    return re.sub("[\u202a-\u202e\u2066-\u2069]", "\N{REPLACEMENT CHARACTER}", text)


def printable(text: str) -> str:
    """Return a text without characters that XML does not allow or that a terminal would interpret."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _markdown(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {_inline(text)}"
        case Paragraph(text):
            return _inline(text)
        case Quote(label, text):
            fence = "`" * max(3, 1 + max((len(list(run)) for char, run in groupby(text) if char == "`"), default=0))
            return f"**{_inline(label)}**\n\n{fence}\n{text}\n{fence}"
        case Table(columns, rows, prose):
            escaped = [[_inline(cell) for cell in row] for row in (columns, *rows)]
            return "\n".join(
                table_lines(escaped[0], escaped[1:], ["---"] + ["---" if prose else "---:"] * (len(columns) - 1))
            )


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]], marks: Sequence[str] = ()) -> list[str]:
    """Return the lines of a Markdown table; its cells are not escaped. ``marks`` align the columns."""
    return [f"| {' | '.join(row)} |" for row in (head, marks or ["---"] * len(head), *rows)]


def _inline(text: str) -> str:
    """Escape the characters that have a meaning in Markdown or HTML."""
    escaped = re.sub(r"([\\`*\[\]<>#|&~$])", r"\\\1", " ".join(undirected(text).split()))
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\_", escaped)  # not special inside a word
