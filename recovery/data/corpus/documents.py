"""Data classes of a corpus: documents, skipped files with reasons, and the read report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256

from recovery.errors import printable

_NAMED_PER_REASON, _MOST_REMARKS = 8, 20


class UnreadableError(ValueError):
    """A file cannot be used; the message is the reason in the report."""


@dataclass(frozen=True)
class Document:
    """One text. ``id`` is unique in its corpus: the relative path, plus ``#n`` for the n-th record of a file."""

    id: str
    title: str
    text: str
    source: str


@dataclass(frozen=True)
class Skipped:
    """A file, folder or record that was not used, with a short reason."""

    path: str
    reason: str


@dataclass(frozen=True)
class ReadReport:
    """Result of reading a folder. ``notes`` are remarks on files that were used; ``characters`` counts text used.

    ``held_out`` counts whole documents, ``held_out_parts`` paragraphs of documents that are trained on.
    """

    folder: str
    files: int
    documents: int
    held_out: int
    characters: int
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    held_out_parts: int = 0

    def lines(self) -> list[str]:
        """Return the report as printable lines: a summary, the remarks, then the skipped items by reason."""
        parts = counted(self.held_out_parts, "paragraph")
        held = f"{parts} of them" if self.held_out_parts and not self.held_out else f"{self.held_out}"
        also = f" and {parts} of the others" if self.held_out_parts and self.held_out else ""
        head = (
            f"read {counted(self.files, 'file')} in {self.folder}: {counted(self.documents, 'document')} "
            f"to train on, {held}{also} held out, {self.characters:,} characters"
        )
        skipped = few_of_each((item.path, item.reason) for item in self.skipped)
        more = len(self.notes) - _MOST_REMARKS
        remarks = [*self.notes[:_MOST_REMARKS], *([f"and {more} more remarks"] if more > 0 else [])]
        lines = [head, *remarks, *(f"skipped {where}: {reason}" for where, reason in skipped)]
        return [printable(line) for line in lines]


@dataclass(frozen=True)
class Corpus:
    """Training documents and held-out documents; ``hash`` identifies the content of both."""

    documents: tuple[Document, ...]
    held_out: tuple[Document, ...]
    report: ReadReport
    hash: str

    @property
    def hidden(self) -> frozenset[str]:
        """The names (id or file) of documents that are held out as a whole."""
        trained = {name for d in self.documents for name in (d.id, d.source)}
        return frozenset(name for d in self.held_out for name in (d.id, d.source)) - trained


def corpus_hash(kept: Iterable[Document], held: Iterable[Document]) -> str:
    """Return a hash of the training and held-out texts; file names do not affect it."""
    digest = sha256()
    for side, documents in (("train", kept), ("held out", held)):
        for text in sorted(d.text for d in documents):
            digest.update(f"{side}\x1f{len(text)}\x1f{text}\x1e".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def sampled(corpus: Corpus, characters: int = 8_000_000) -> Corpus:
    """Return the corpus with at most about so many ``characters`` of training documents, chosen by their wording.

    Reading sentences and facts takes seconds per million characters: probes and questions are made from this part. The
    last document chosen is cut at the end of a line.
    """
    if sum(len(d.text) for d in corpus.documents) <= characters:
        return corpus
    chosen: dict[str, Document] = {}
    for document in sorted(corpus.documents, key=lambda d: sha256(d.text.encode("utf-8", "surrogatepass")).digest()):
        if len(document.text) > characters:
            end = document.text.rfind("\n", 0, characters)
            document = replace(document, text=document.text[: end if end > 0 else characters])
        chosen[document.id] = document
        characters -= len(document.text)
        if characters <= 0:
            break
    return replace(corpus, documents=tuple(chosen[d.id] for d in corpus.documents if d.id in chosen))


def few_of_each(skipped: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield (where, reason) of skipped items, grouped by reason: the first few of each, then a count."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for where, reason in skipped:
        by_reason[reason].append(where)
    for reason, places in by_reason.items():
        yield from ((where, reason) for where in places[:_NAMED_PER_REASON])
        if len(places) > _NAMED_PER_REASON:
            yield f"{len(places) - _NAMED_PER_REASON:,} more", reason


def counted(count: int, noun: str) -> str:
    """Return "1 page", "2 pages"."""
    return f"{count} {noun}{'s' * (count != 1)}"
