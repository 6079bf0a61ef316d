"""Writes documents into a folder, reads it, and says what was read and skipped."""

from __future__ import annotations

from pathlib import Path

from recovery.data.corpus import Corpus, read_corpus


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
