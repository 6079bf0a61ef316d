"""Writes documents into a folder, reads it, and says what was read and skipped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import TypeVar

from recovery.data.corpus.documents import Corpus
from recovery.data.corpus.folder import read_corpus

T = TypeVar("T")


def texts(corpus: Corpus) -> set[str]:
    return {d.text for d in (*corpus.documents, *corpus.held_out)}


def skipped(corpus: Corpus) -> dict[str, str]:
    return {s.path: s.reason for s in corpus.report.skipped}


def read(folder: Path, **files: str | bytes) -> Corpus:
    """Write files (``a__md`` is a.md) and read the folder without held-out documents."""
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_corpus(folder, held_out=0)


def read_in_time(read: Callable[[str], T], document: str, ordinary: str) -> T:
    """Return what is read of a document that could take quadratic time, which would be many times that of as
    much ``ordinary`` text. Its time is compared with that, so that a slow or busy machine changes nothing.
    """

    def timed(text: str) -> tuple[T, float]:
        begun = process_time()
        return read(text), process_time() - begun

    read(ordinary)  # imports
    usual = timed(ordinary * (len(document) // len(ordinary)))[1]
    found, seconds = timed(document)
    assert seconds < 10 * usual + 1
    return found
