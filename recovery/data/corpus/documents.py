"""Data classes of a corpus: documents, skipped files with reasons, and the read report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from recovery.errors import printable

_NAMED_PER_REASON = 8


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
    """Result of reading a folder. ``notes`` are remarks on files that were used; ``characters`` counts text used."""

    folder: str
    files: int
    documents: int
    held_out: int
    characters: int
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the report as printable lines: a summary, the remarks, then the skipped items by reason."""
        head = (
            f"read {self.files} file{'s' * (self.files != 1)} in {self.folder}: {self.documents} documents "
            f"to train on, {self.held_out} held out, {self.characters:,} characters"
        )
        skipped = few_of_each((item.path, item.reason) for item in self.skipped)
        lines = [head, *_first(self.notes), *(f"skipped {where}: {reason}" for where, reason in skipped)]
        return [printable(line) for line in lines]


@dataclass(frozen=True)
class Corpus:
    """Training documents and held-out documents; ``hash`` identifies the content of both."""

    documents: tuple[Document, ...]
    held_out: tuple[Document, ...]
    report: ReadReport
    hash: str


def few_of_each(skipped: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield (where, reason) of skipped items by reason; of many with the same one the first few, then a count."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for where, reason in skipped:
        by_reason[reason].append(where)
    for reason, places in by_reason.items():
        yield from ((where, reason) for where in places[:_NAMED_PER_REASON])
        if len(places) > _NAMED_PER_REASON:
            yield f"{len(places) - _NAMED_PER_REASON:,} more", reason


def _first(remarks: tuple[str, ...], limit: int = 20) -> list[str]:
    more = [f"and {len(remarks) - limit} more remarks"] if len(remarks) > limit else []
    return [*remarks[:limit], *more]
