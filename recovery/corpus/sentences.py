"""Sentences of running text, kept as they stand in the document, for questions to be made of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from recovery.corpus.documents import Document
from recovery.corpus.text import normalise, paragraphs, share, words

_ABBREVIATIONS = words(
    "mr mrs ms dr prof sr jr st vs etc e.g i.e eg ie cf al inc ltd co corp no nos vol fig figs sec ch pp p ed eds "
    "approx dept est gen gov lt col sgt capt rev hon jan feb mar apr jun jul aug sep sept oct nov dec u.s u.k a.m p.m"
)
_BOUNDARY = re.compile(r"(?<=[.!?])[\"')\]*_`]*(\s+)(?=[\"'(\[*_`]*[A-Z0-9])")
_PRONOUN = re.compile(
    r"[\"'(]*(?:It|They|He|She|This|That|These|Those|Its|Their|His|Her|Such|Both|Here|There|Then|Also|But|And|So|"
    r"However|Otherwise|Instead|Thus|Therefore|Hence|Similarly|Note|Accordingly)\b"
)
_OPENER = re.compile(r"(?:The|A|An|It|In|If|On|At|To|This|That|They|We|You|He|She|When|For|After|Before|No|All)\b")
_MARKUP = (
    (re.compile(r"!\[([^\]]*)\]\([^)]*\)"), r"\1"),  # image
    (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),  # link
    (re.compile(r":[\w:+.-]+:`~?([^`<]+?)(?:\s*<[^`>]*>)?`"), r"\1"),  # reStructuredText role
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?"), r"\1"),  # reStructuredText link
    (re.compile(r"``?([^`]+)``?"), r"\1"),
    (re.compile(r"(?<![\w*])(\*{1,3}|_{1,3})(?=\S)(.+?)(?<=\S)\1(?![\w*])"), r"\2"),
    (re.compile(r"</?[a-zA-Z][^<>]*>"), ""),
    (re.compile(r"\[(?:\^[\w-]+|\d+|#)\]_?"), ""),  # footnote mark
)


@dataclass(frozen=True)
class Sentence:
    """A sentence, with the one before it where it begins with a pronoun.

    ``raw`` is verbatim, with markup and line ends, ``plain`` without; ``heading`` stands above it, and ``lead``
    is the verbatim text that a reader of the document would have seen of title and heading.
    """

    document: str
    title: str
    heading: str
    lead: str
    raw: str
    plain: str

    @property
    def key(self) -> str:
        """The normal form that decides on which side the sentence is (see ``side``)."""
        return normalise(self.plain)


def side(sentence: Sentence) -> str:
    """ "probe" or "question": which of the two a sentence may become, by its wording alone.

    Probes measure and document questions train, so no sentence may serve for both.
    """
    return "probe" if share(sentence.plain, "side") < 0.5 else "question"


def plain_text(raw: str) -> str:
    """``raw`` on one line without inline markup."""
    for pattern, replacement in _MARKUP:
        raw = pattern.sub(replacement, raw)
    return re.sub(r"\s+", " ", raw).strip()


def sentences(documents: Sequence[Document], *, characters: int = 5_000_000) -> list[Sentence]:
    """The usable sentences of the documents, each wording once, in their order.

    Of more than ``characters`` characters a sample of whole documents, chosen by their wording, is read: it holds
    far more sentences than anybody asks about.
    """
    found: dict[str, Sentence] = {}
    for document in _sample(documents, characters):
        for sentence in _of(document):
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
    heading, top, above = "", "", ""
    in_fence = False
    for block in paragraphs(document.text):
        fences = len(re.findall(r"^\s*(?:```|~~~)", block, flags=re.MULTILINE))
        if fences or in_fence:
            in_fence ^= bool(fences % 2)
            continue
        title, body = _split_heading(block)
        if title is not None:
            heading, above = title, block[: len(block) - len(body)].strip("\n")
            top = top or above
        lead = "".join(f"{part}\n\n" for part in dict.fromkeys((top or document.title, above)) if part)
        for part in _items(body):
            for raw in glued(split_sentences(part)):
                if usable(plain := plain_text(raw)):
                    yield Sentence(document.id, document.title, heading, lead, raw, plain)


def _split_heading(block: str) -> tuple[str | None, str]:
    """A heading at the top of a block (Markdown or underlined), and what follows it."""
    lines = block.split("\n")
    if match := re.match(r"#{1,6}\s+(.+?)\s*#*$", lines[0]):
        return plain_text(match[1]), "\n".join(lines[1:])
    if len(lines) > 1 and re.fullmatch(r"([=\-~^\"'*#+])\1{2,}\s*", lines[1]):
        return plain_text(lines[0]), "\n".join(lines[2:])
    return None, block


def _items(block: str) -> list[str]:
    """The list items of a block, or the block itself; code, tables and directives give nothing."""
    if re.match(r"(?: {4}|\t)", block) or block.lstrip().startswith(("|", "+-", ".. ", ">>>", "<", "$")):
        return []
    if re.match(r"\s*(?:[-*+•]|\d+[.)])\s", block):
        return [item for item in re.split(r"(?:^|\n)\s*(?:[-*+•]|\d+[.)])\s+", block) if item.strip()]
    return [block.strip()]


def split_sentences(text: str) -> list[str]:
    """``text`` cut after full stops, question and exclamation marks that end a sentence."""
    parts, start = [], 0
    for match in _BOUNDARY.finditer(text):
        head = text[start : match.start(1)]
        last = re.search(r"([\w.]+)\.[\"')\]]*$", head)
        initial = last and re.fullmatch(r"[A-Z]", last[1]) and not _OPENER.match(text[match.end(1) :])
        if last and (last[1].lower() in _ABBREVIATIONS or initial):
            continue
        parts.append(head.strip())
        start = match.end(1)
    parts.append(text[start:].strip())
    return [p for p in parts if p]


def glued(parts: list[str]) -> list[str]:
    """Sentences that begin with a pronoun joined to the one before, which says what they are about."""
    whole: list[str] = []
    for part in parts:
        if whole and _PRONOUN.match(plain_text(part)):
            whole[-1] = f"{whole[-1]} {part}"
        else:
            whole.append(part)
    return whole


def usable(plain: str) -> bool:
    """A whole sentence of running text, neither a fragment nor code."""
    if _PRONOUN.match(plain):
        return False
    if not 6 <= len(plain.split()) <= 45 or plain[-1] not in ".!\"')" or not re.match(r"[\"'(]?[A-Z0-9]", plain):
        return False
    letters = sum(c.isalpha() or c.isspace() for c in plain)
    return letters / len(plain) > 0.78 and not re.search(r"https?://|[{}<>=|\\]|\w\(|\.\.\.|__|::", plain)
