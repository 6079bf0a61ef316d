"""Read a folder of documents: use every readable file, and report each skipped file in one line with the reason."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from recovery.data.corpus.documents import Corpus, Document, ReadReport, Skipped
from recovery.data.corpus.holdout import hold_out
from recovery.data.corpus.readers import READERS, Read, UnreadableError, read_file
from recovery.data.corpus.text import text_hash
from recovery.errors import CorpusError

NEVER_DOCUMENTS = frozenset({"questions.jsonl", "probes.jsonl"})
DEFAULT_LIMIT_FILE_MB = 100.0


class EmptyCorpusError(CorpusError):
    """No file in a folder could be used; ``skipped`` holds the reason for each."""

    def __init__(self, message: str, skipped: tuple[Skipped, ...] = ()) -> None:
        super().__init__(message)
        self.skipped = skipped


@dataclass
class _Reading:
    """Accumulated result while a folder is read."""

    documents: list[Document] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seen: dict[str, str] = field(default_factory=dict)
    files: int = 0


def read_corpus(
    folder: Path, *, held_out: float = 0.05, seed: int = 0, limit_file_mb: float = DEFAULT_LIMIT_FILE_MB
) -> Corpus:
    """Read every document below ``folder``.

    ``held_out`` is the fraction of documents held out (see holdout.py); a file of more than ``limit_file_mb``
    megabytes (10^6 bytes) is skipped. Raises CorpusError if the folder is missing or not a folder, and
    EmptyCorpusError if nothing in it can be used.
    """
    folder = Path(folder)
    _require_folder(folder)
    reading = _Reading()
    root = folder.resolve()
    for path in _files(root, root, reading.skipped):
        _take(path, root, reading, limit_file_mb)
    if not reading.documents:
        raise EmptyCorpusError(_nothing(folder, reading.skipped), tuple(reading.skipped))
    kept, held, remarks = hold_out(reading.documents, held_out, seed)
    report = ReadReport(
        folder=str(folder),
        files=reading.files,
        documents=len(kept),
        held_out=len(held),
        characters=sum(len(d.text) for d in kept),
        skipped=tuple(reading.skipped),
        notes=(*reading.notes, *remarks),
    )
    return Corpus(tuple(kept), tuple(held), report, _corpus_hash(kept, held))


def _require_folder(folder: Path) -> None:
    if not folder.exists():
        raise CorpusError(f"no folder {folder}: give a folder that holds your documents")
    if not folder.is_dir():
        raise CorpusError(f"{folder} is a file: give the folder that holds it")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise CorpusError(f"cannot read the folder {folder}: permission denied")


def _files(directory: Path, root: Path, skipped: list[Skipped]) -> Iterator[Path]:
    """Yield the files below ``directory``, sorted by name; symbolic links are never followed."""
    try:
        entries = sorted(os.scandir(directory), key=lambda e: e.name)
    except OSError as error:
        skipped.append(Skipped(_name(directory, root), f"cannot be opened ({error.strerror})"))
        return
    for entry in entries:
        path = Path(entry.path)
        if entry.name.startswith("."):
            skipped.append(Skipped(_name(path, root), "hidden"))
        elif entry.is_symlink():
            skipped.append(Skipped(_name(path, root), _link_reason(path, root)))
        elif entry.is_dir(follow_symlinks=False):
            yield from _files(path, root, skipped)
        elif entry.name in NEVER_DOCUMENTS:
            continue
        else:
            yield path


def _link_reason(path: Path, root: Path) -> str:
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        return "broken symbolic link"
    if target.is_relative_to(root):
        return "symbolic link to a path inside the folder, which is read directly"
    return "symbolic link to a path outside the folder"


def _take(path: Path, root: Path, reading: _Reading, limit_mb: float) -> None:
    name = _name(path, root)
    try:
        read = _read(path, limit_mb)
    except UnreadableError as error:
        reading.skipped.append(Skipped(name, str(error)))
        return
    reading.notes += [f"{name}: {note}" for note in read.notes]
    reading.skipped += [Skipped(name, reason) for reason in read.skipped]
    used = False
    for piece in read.pieces:
        id = f"{name}#{piece.part}" if piece.part else name
        if not piece.text.strip():
            reading.skipped.append(Skipped(id, "no text"))
            continue
        key = text_hash(piece.text)
        if key in reading.seen:
            reading.skipped.append(Skipped(id, f"the same text as {reading.seen[key]}"))
            continue
        reading.seen[key] = id
        reading.documents.append(Document(id, piece.title, piece.text, name))
        used = True
    reading.files += used


def _read(path: Path, limit_mb: float) -> Read:
    if path.suffix.lower() not in READERS:
        raise UnreadableError(f"unsupported type {path.suffix or '(no suffix)'}")
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableError("not a regular file")
        if status.st_size > limit_mb * 1e6:
            raise UnreadableError(f"{status.st_size / 1e6:,.0f} MB, over the limit of {limit_mb:g} MB a file")
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"cannot be read ({error.strerror})") from error
    return read_file(path.name, data)


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path != root else "."


def _nothing(folder: Path, skipped: list[Skipped]) -> str:
    types = " ".join(sorted(READERS))
    if not skipped:
        return f"the folder {folder} is empty: put documents in it ({types})"
    first = "; ".join(f"{s.path}: {s.reason}" for s in skipped[:3])
    more = f"; and {len(skipped) - 3} more" if len(skipped) > 3 else ""
    return f"no readable document in {folder} ({first}{more}): supported are {types}"


def _corpus_hash(kept: list[Document], held: list[Document]) -> str:
    """Return a hash of the training and held-out texts; file names do not affect it."""
    digest = hashlib.sha256()
    for side, documents in (("train", kept), ("held out", held)):
        for text in sorted(d.text for d in documents):
            digest.update(f"{side}\x1f{len(text)}\x1f{text}\x1e".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
