"""Sentences of running text, verbatim, from which questions are built."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from recovery.data.corpus.documents import Document
from recovery.data.corpus.languages import languages
from recovery.data.corpus.markdown import BREAK, ITEM, begins_table, code_lines, ends_paragraph
from recovery.data.corpus.sentence_filter import leans, running, usable
from recovery.data.corpus.text import (
    SENTENCE_ENDS,
    WIDE_ENDS,
    begins_like_a_sentence,
    heading_of,
    normalise,
    share,
    word_count,
    words,
)

_ABBREVIATIONS = words(
    "mr mrs ms dr prof sr jr st vs etc e.g i.e eg ie cf al inc ltd co corp no nos vol fig figs sec ch pp p ed eds "
    "approx dept est gen gov lt col sgt capt rev hon jan feb mar apr jun jul aug sep sept oct nov dec u.s u.k a.m p.m "
    "гг ул им см рис стр др проф акад тыс руб напр π.χ δηλ κ.λπ σελ αρ"
)
# The spaces before a sentence, and its first letter; after the full stop of Chinese or Japanese no space is needed.
_CLOSING, _OPENING = "\"')\\]*_`”»」』）", "\"'(\\[*_`“„«¿¡"
_BOUNDARY = re.compile(
    rf"(?<=[{SENTENCE_ENDS}])[{_CLOSING}]*(?P<gap>\s+)(?=[{_OPENING}]*(?P<first>[^\W_]))"
    rf"|(?<=[{WIDE_ENDS}])[{_CLOSING}]*(?P<none>\s*)(?=[^\s{_CLOSING}{WIDE_ENDS}])"
)
_GAP = rf"(?:\s+|(?<=[{WIDE_ENDS}]))"
_OPENER = re.compile(r"(?:The|A|An|It|In|If|On|At|To|This|That|They|We|You|He|She|When|For|After|Before|No|All)\b")
_PROSE = re.compile(  # not the name of an entry
    rf"[{SENTENCE_ENDS}{WIDE_ENDS}:;,：；，、]\s*$|[^\W\dA-Z_]\. [^\W\da-z_]|^\s*(?:[-*+•>|#]|\d+[.)])\s"
)
_LONGEST_ENTRY, _LONGEST_NAME = 10, 60  # words, characters
_LONGEST_PARAGRAPH = 5_000  # characters
_TERM = re.compile(r"[^:\n]{1,100}:\s+(?=[A-Z])")  # before its definition
_PAGES = (".html", ".htm", ".epub", ".rst", ".adoc", ".asciidoc")
_PARAGRAPHS = re.compile(r"(\n[ \t]*\n)")
_MARKUP = (
    (re.compile(r"!\[([^\]]*)\]\([^)]*\)"), r"\1"),  # image
    (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),  # link
    (re.compile(r":[\w:+.-]+:`~?([^`<]+?)(?:\s*<[^`>]*>)?`"), r"\1"),  # reStructuredText role
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?"), r"\1"),  # reStructuredText link
    (re.compile(r"``?([^`]+)``?"), r"\1"),
    (re.compile(r"(?<![\w*.\"'“])(\*{1,3}|_(?!_))(?=\S)(.+?)(?<=\S)\1(?![\w*])"), r"\2"),
    (re.compile(r"(?<![\w.\"'“])(_{2,3})(?!\w+\1)(?=\S)(.+?)(?<=\S)\1(?!\w)"), r"\2"),  # __name__ is a name
    (re.compile(r"\[(?:\^[\w-]+|\d+|#)\]_?"), ""),  # footnote mark
)


_TAG = re.compile(r"(``?[^`\n]+``?)|</?[a-zA-Z][^<>]*>")  # a tag in backticks is content, not markup
_MARKED = re.compile(r"[<\[`*_]")  # every pattern of markup needs one of these


@dataclass(frozen=True)
class Sentence:
    """A sentence, joined to the one before it if it depends on that.

    ``raw`` is verbatim, with markup and line breaks, ``plain`` without; ``heading`` is the nearest heading and ``lead``
    the verbatim title and headings above the sentence. ``alone`` is True if the sentence is self-contained.
    """

    document: str
    title: str
    heading: str
    lead: str
    raw: str
    plain: str
    alone: bool = True

    @property
    def key(self) -> str:
        """The normal form, which decides the ``side`` of the sentence."""
        return normalise(self.plain)


def side(sentence: Sentence) -> str:
    """Return "probe" or "question": the use of a sentence, decided by its wording alone.

    Probes are for evaluation and document questions for training, so no sentence is used for both.
    """
    return "probe" if share(sentence.plain, "side") < 0.5 else "question"


def _unmarked(raw: str) -> str:
    """Return a text without inline markup, if it is not too long."""
    if len(raw) > _LONGEST_PARAGRAPH or not _MARKED.search(raw):
        return raw
    raw = _TAG.sub(lambda match: match[1] or "", raw)
    for pattern, replacement in _MARKUP:
        raw = pattern.sub(replacement, raw)
    return raw


def plain_text(raw: str) -> str:
    """Return ``raw`` on one line without inline markup. The markup of a paragraph far too long for one stays."""
    # The patterns take time in the square of the length, of brackets alone.
    whole = len(raw) <= _LONGEST_PARAGRAPH
    raw = _unmarked(raw) if whole else "".join(map(_unmarked, _PARAGRAPHS.split(raw)))
    raw = re.sub(r"(?<=\w)-\n\s*(?=\w)", "-", raw)  # a compound split at a line break
    return re.sub(r"\s+", " ", raw).strip()


def sentences(documents: Sequence[Document], *, characters: int = 5_000_000, alone: bool = True) -> list[Sentence]:
    """Return the sentences of the documents, each wording once, in order: only self-contained ones if ``alone``.

    Of more than ``characters`` characters, a sample of whole documents, chosen by their wording, is read; it has far
    more sentences than are needed.
    """
    found: dict[str, Sentence] = {}
    for document in _sample(documents, characters):
        for sentence in _of(document):
            if sentence.alone or not alone:
                found.setdefault(sentence.key, sentence)
    return list(found.values())


def _sample(documents: Sequence[Document], characters: int) -> Sequence[Document]:
    if sum(len(d.text) for d in documents) <= characters:
        return documents
    chosen: set[str] = set()
    for document in sorted(documents, key=lambda d: share(d.text[:2000], "sample")):
        chosen.add(document.id)
        characters -= len(document.text)
        if characters <= 0:
            break
    return [d for d in documents if d.id in chosen]


def _of(document: Document) -> Iterator[Sentence]:
    place = _Place(document.title)
    blocks = _blocks(document.text)
    terms = document.source.lower().endswith(_PAGES)
    for (block, code), (following, _) in zip(blocks, [*blocks[1:], ("", False)], strict=True):
        if code:
            continue
        for part in _items(place.enter(block, following), terms=terms):
            for raw in (_verbatim(joined, part) for joined in glued(split_sentences(part))):
                if running(plain := plain_text(raw)):
                    location = (document.id, document.title, place.name, place.lead)
                    yield Sentence(*location, raw, plain, usable(plain))


def _blocks(text: str) -> list[tuple[str, bool]]:
    """Return the blocks of a text, each with whether it is fenced code; headings and fences need no blank line."""
    found: list[tuple[str, bool]] = []
    block: list[str] = []
    inside = False
    lines = text.split("\n")
    for line, code in zip(lines, code_lines(lines), strict=True):
        if block and (code != inside or (not code and _divides(line, block[0]))):
            found.append(("\n".join(block), inside))
            block = []
        inside = code
        if code or line.strip(" \t"):
            block.append(line)
    return [*found, ("\n".join(block), inside)] if block else found


def _divides(line: str, first: str) -> bool:
    """Return whether a line is blank, or a heading: in code and other markup it is a comment."""
    if not line.strip(" \t"):
        return True
    return heading_of(line) is not None and not first.startswith(("<", "$", ">>>", ".. ", "    ", "\t"))


@dataclass
class _Place:
    """Position in a document: the title, headings and entry above the next sentence."""

    title: str
    heading: str = ""
    top: str = ""
    above: str = ""
    entry: str = ""
    depth: int = 0

    @property
    def name(self) -> str:
        """The nearest heading or entry on one line; a long signature without its arguments."""
        if not self.entry:
            return self.heading
        name = plain_text(self.entry.split("\n")[0])
        return name if len(name) <= _LONGEST_NAME else name.split("(")[0]

    @property
    def lead(self) -> str:
        """Title, heading and entry, verbatim."""
        parts = dict.fromkeys((self.top or self.title, self.above, self.entry))
        return "".join(f"{part}\n\n" for part in parts if part)

    def enter(self, block: str, following: str) -> str:
        """Update the position from the headings of a block, and return the rest of the block."""
        title, body = _split_heading(block)
        if title is not None:
            self.heading, self.above, self.entry = title, block[: len(block) - len(body)].strip("\n"), ""
            self.top = self.top or self.above
        if _indent(body) <= self.depth:
            self.entry = ""
        entry, text = _split_entry(body, following)
        if entry:
            self.entry, self.depth = entry, _indent(entry)
        return text


def _verbatim(joined: str, text: str) -> str:
    """Return joined sentences as in the text, with its original white space between them."""
    if joined in text:
        return joined
    found = re.search(_GAP.join(map(re.escape, joined.split())), text)
    return found[0] if found else joined


def _indent(block: str) -> int:
    return len(block) - len(block.lstrip(" "))


def _split_entry(block: str, following: str) -> tuple[str, str]:
    """Return a reference entry (a name or signature above an indented text) and its text in the same block."""
    lines = block.split("\n")
    deeper = [n for n, line in enumerate(lines) if _indent(line) > _indent(lines[0])]
    head, body = (lines[: deeper[0]], lines[deeper[0] :]) if deeper else (lines, [])
    indented = len(deeper) == len(body) and _indent(body[0] if body else following) > _indent(block)
    if not indented or any(_PROSE.search(line) or word_count(line) > _LONGEST_ENTRY for line in head):
        return "", block
    return "\n".join(head), "\n".join(body).strip()


def _split_heading(block: str) -> tuple[str | None, str]:
    """Return the heading at the top of a block (Markdown or underlined), or None, and the rest."""
    lines = block.split("\n")
    if (heading := heading_of(lines[0])) is not None:
        return plain_text(heading), "\n".join(lines[1:])
    if len(lines) > 1 and re.fullmatch(r"([=\-~^\"'*#+])\1{2,}\s*", lines[1]):
        return plain_text(lines[0]), "\n".join(lines[2:])
    return None, block


def _items(block: str, *, terms: bool) -> list[str]:
    """Return the paragraphs and list items of a block; nothing for code, tables and directives.

    With ``terms``, items are without the term before a definition, which is an element of its own in HTML.
    """
    if re.match(r"(?: {4}|\t)", block) or block.lstrip().startswith(("|", "+-", ".. ", ">>>", "<", "$")):
        return []
    lines = block.split("\n")
    starts, in_list = [0], bool(ITEM.match(lines[0]))
    for number in range(1, len(lines)):
        if ends_paragraph(lines, number, in_list=in_list):
            starts.append(number)
            in_list = in_list or bool(ITEM.match(lines[number]))
    found = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        if not begins_table(lines, start):
            marker = BREAK.fullmatch(lines[start]) or ITEM.match(lines[start])
            first = lines[start][marker.end() if marker else 0 :]
            part = "\n".join([first, *lines[start + 1 : end]])
            found.append(_untermed(part) if marker and terms else part)
    return [part for part in found if part.strip()]


def _untermed(item: str) -> str:
    """Return a list item without the term before its first sentence, if that is self-contained only without it."""
    term = _TERM.match(item)
    if not term or _begins_usable(item) or not _begins_usable(item[term.end() :]):
        return item
    return item[term.end() :]


def _begins_usable(text: str) -> bool:
    return usable(plain_text(next(iter(glued(split_sentences(text))), "")))


@cache
def _abbreviations() -> frozenset[str]:
    """Return the words whose full stop ends no sentence, of all languages."""
    return _ABBREVIATIONS.union(*(language.abbreviations for language in languages().values()))


def split_sentences(text: str) -> list[str]:
    """Split ``text`` after full stops, question and exclamation marks that end a sentence."""
    parts, start = [], 0
    for match in _BOUNDARY.finditer(text):
        if match["first"] and not begins_like_a_sentence(match["first"]):
            continue
        head = text[start : match.start("none" if match["gap"] is None else "gap")]
        last = re.search(r"(?<![\w.])([\w.]+)\.[\"')\]]*$", head)
        initial = last and _initial(last[1]) and not _OPENER.match(text[match.end() :])
        if last and (last[1].lower() in _abbreviations() or initial):
            continue
        parts.append(head.strip())
        start = match.end()
    parts.append(text[start:].strip())
    return [p for p in parts if p]


def _initial(word: str) -> bool:
    """Return whether a word is one capital, or one letter of another script: Russian abbreviates with small ones."""
    return len(word) == 1 and (word.isupper() or (word.islower() and not word.isascii()))


def glued(parts: list[str]) -> list[str]:
    """Join each sentence that depends on the one before to it."""
    whole: list[str] = []
    for part in parts:
        if whole and leans(plain_text(part)):
            whole[-1] = f"{whole[-1]} {part}"
        else:
            whole.append(part)
    return whole
