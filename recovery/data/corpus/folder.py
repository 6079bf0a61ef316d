"""Read documents (a folder, a file, a dataset): everything readable is used, everything skipped is reported."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from recovery.data.corpus.containers import GZIP, members, unpacked, unsupported
from recovery.data.corpus.documents import Corpus, Document, ReadReport, Skipped, UnreadableError, corpus_hash
from recovery.data.corpus.holdout import LEAST, PART, Before, NearDuplicates, hold_out
from recovery.data.corpus.html_parts import one_line
from recovery.data.corpus.json_lines import CHAT_KEYS
from recovery.data.corpus.readers import READERS, TEXT_KEYS, Piece, Read, markdown_text, read_file, stem, with_title
from recovery.data.corpus.tables import (
    LIST,
    NUMBER,
    TEXT,
    Table,
    TableError,
    of_source,
    open_hub,
    open_table,
    splits_of,
)
from recovery.data.corpus.text import hash_of, normalise, paragraphs, tidy, without_lost
from recovery.data.sources import TABLE_SUFFIXES, ZIP, Source, parse
from recovery.disk import near
from recovery.errors import CorpusError, UsageError, printable
from recovery.workspace import is_workspace

# Documents from the rows of a table: one text column, with titles and ids if there are columns for them.

# Names of columns in order of preference, also in German and French; case is ignored.
_TEXTS = (*TEXT_KEYS, "inhalt", "dokument", "artikel", "texte", "contenu")
_TITLES, _KEYS = ("title", "titel", "titre"), ("id", "url")
_LONGEST_KEY = 200  # characters


def _guess_column(table: Table, place: str) -> tuple[str, str]:
    """Return the column of the texts, and the reason for the choice."""
    texts = table.of_kind(TEXT)
    by_name = [n for n in texts if n in TEXT_KEYS] or table.called(_TEXTS, TEXT)
    options = by_name or [n for n in texts if n.casefold() not in (*_TITLES, *_KEYS)]
    if len(options) == 1:
        return options[0], " (by its name)" if by_name else " (the only one with text)"
    if options:
        raise TableError(
            f"which column holds the texts, {' or '.join(options)}? Name it, as in {place}:{options[0]}; a table of "
            f"facts has none: save it as .xlsx, whose sheets are read as tables"
        )
    if table.called(CHAT_KEYS, LIST):
        raise TableError("chat, not documents (use it as --prompts)")
    raise TableError(f"no column holds text; the columns are {table.text()}")


def _read_table(table: Table, name: str, column: str, reason: str, limit_mb: float) -> Read:
    title = next((n for n in table.called(_TITLES, TEXT) if n != column), None)
    key = next((n for n in table.called(_KEYS, TEXT, NUMBER) if n != column), None)
    read = Read([], [table.note] if table.note else [])
    parts: set[str] = set()
    rows, fallback_title = 0, stem(name)
    for number, row in table.rows([n for n in (column, title, key) if n]):
        rows += 1
        text = "" if isinstance(row, str) else row[column] or ""
        if isinstance(row, str):
            read.skipped.append((f"row {number}", row))
        elif not text.strip():
            read.skipped.append((f"row {number}", "no text"))
        elif len(text) > limit_mb * 1e6:
            read.skipped.append((f"row {number}", f"over the limit of {limit_mb:g} million characters a text"))
        else:
            row_title = one_line(row.get(title or "") or "")
            heading, text = markdown_text(text)
            part = _part(row.get(key or ""), number, parts)
            read.pieces.append(Piece(row_title or heading or fallback_title, with_title(row_title, text), part))
    if not rows:
        raise UnreadableError("a table without rows")
    if not read.pieces:
        raise UnreadableError(f"none of {rows:,} rows can be used: row 1: {read.skipped[0][1]}")
    other_columns = "".join(f", {role} from {n}" for role, n in (("titles", title), ("ids", key)) if n)
    read.notes.append(f"{len(read.pieces):,} of {rows:,} rows, texts from the column {column}{reason}{other_columns}")
    return read


def _part(key: Any, number: int, parts: set[str]) -> str:
    """Return the row's own id, or its number if it has none; marked as a row's number if an earlier row has this id."""
    part = ("" if key is None else one_line(str(key))[:_LONGEST_KEY]) or str(number)
    if part in parts:
        part = f"row {number}"
    while part in parts:  # an earlier row's own id
        part += "'"
    parts.add(part)
    return part


# Also those of a single file: reviews.probes.jsonl.
_NEVER_DOCUMENTS = re.compile(r"(?:.+\.)?(questions|probes|rewritten)\.jsonl(?:\.gz)?")
DEFAULT_LIMIT_FILE_MB = 100.0

Split = tuple[Sequence[Document], Sequence[Document]]  # training and held-out documents


@dataclass
class _Reading:
    """Accumulated result while documents are read.

    ``place`` is the user's name of the source, ``column`` the column named for tables, or empty; ``tables`` counts the
    tables read; ``nearly`` maps near-duplicates to the first similar document. They are left out with ``skip_near``.
    """

    limit_mb: float
    skip_near: bool = False
    place: str = ""
    column: str = ""
    tables: int = 0
    documents: list[Document] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seen: dict[str, str] = field(default_factory=dict)
    near: NearDuplicates = field(default_factory=NearDuplicates)
    nearly: dict[str, str] = field(default_factory=dict)
    files: int = 0


def read_corpus(
    folder: Path,
    *,
    held_out: float = 0.05,
    seed: int = 0,
    limit_file_mb: float = DEFAULT_LIMIT_FILE_MB,
    skip_near: bool = False,
    before: Iterable[Split] = (),
) -> Corpus:
    """Read every document below ``folder``, of a single file, or of a dataset: see :mod:`recovery.data.sources`.

    ``held_out`` is the fraction of documents held out (see holdout.py); a file of more than ``limit_file_mb``
    megabytes (10^6 bytes) is skipped, and so is a table's text of more characters; ``skip_near`` also skips
    near-duplicates, which are otherwise counted. Documents linked to those of ``before``, the splits of earlier cycles,
    keep their side. Raises CorpusError if there is no such folder or file, or if nothing can be used.
    """
    source = parse(folder)
    reading = _Reading(limit_file_mb, skip_near)
    if source.hub:
        table, reading.place, reading.column = open_hub(source)
        _add_source(reading.place, lambda: _documents(table, reading.place, reading), reading)
    else:
        _read_path(source, reading)
    if reading.documents and reading.column and not reading.tables:
        raise CorpusError(f"{source.text}: there is no table with a column {reading.column!r} of texts")
    if not reading.documents:
        raise CorpusError(_empty_message(source, reading.skipped))
    earlier_split = _earlier_split(reading, before)
    kept, held, remarks = hold_out(reading.documents, held_out, seed, reading.near.groups(), earlier_split)
    report = ReadReport(
        folder=str(source.path.parent) if source.path.is_file() and not _is_archive(source.path) else source.text,
        files=reading.files,
        documents=len(kept),
        held_out=sum(not d.id.endswith(PART) for d in held),
        characters=sum(len(d.text) for d in kept),
        skipped=tuple(reading.skipped),
        notes=(*reading.notes, *_near_duplicate_notes(reading), *remarks),
        held_out_parts=sum(len(paragraphs(d.text)) for d in held if d.id.endswith(PART)),
    )
    return Corpus(tuple(kept), tuple(held), report, corpus_hash(kept, held))


def _earlier_split(reading: _Reading, splits: Iterable[Split]) -> Before:
    """Return the split of earlier corpora, as far as it affects the documents that were read."""
    names: list[tuple[str, int]] = []
    parts: set[str] = set()
    trained: set[str] = set()
    for document, held in ((d, held) for split in splits for held, side in enumerate(split) for d in side):
        normal = normalise(document.text)
        if held and document.id.endswith(PART):
            parts.update(map(normalise, paragraphs(document.text)))
            continue
        if not held:
            trained.update(map(normalise, paragraphs(document.text)))
        name = f"\0{len(names)}"  # which no document has
        reading.near.find(name, document.text, normal)
        names += [(name, held), *([(reading.seen[key], held)] if (key := hash_of(normal)) in reading.seen else [])]
    groups = reading.near.groups()
    decided: dict[str, bool] = {}
    for name, held in names:
        first = groups.get(name, name)
        decided[first] = decided.get(first, False) or bool(held)
    return Before(decided, frozenset(parts), frozenset(trained - parts))


def check_source(name: str | Path) -> None:
    """Raise CorpusError if documents are neither here nor a dataset's name on the hub, or are an empty folder."""
    source = parse(name)
    if not source.hub:
        _require(source.path)
        if source.path.is_dir() and not any(files for _, _, files in os.walk(source.path)):
            raise CorpusError(_empty_message(source, []))


def _read_path(source: Source, reading: _Reading) -> None:
    _require(source.path)
    path, reading.place, reading.column = of_source(source)
    if _is_archive(path):
        # Files are named as in a folder, without the archive: the next export has another name.
        _take_members(path, "", reading)
        reading.notes = [f"{printable(path.name)}/{note}" for note in reading.notes]
        reading.skipped = [Skipped(f"{printable(path.name)}/{s.path}".rstrip("/"), s.reason) for s in reading.skipped]
        return
    if not path.is_dir() or splits_of(path) is not None:
        absolute = path.absolute()  # not resolved: the target of a link may have no suffix
        _add_source(printable(absolute.name), lambda: _read(absolute, reading), reading)
        return
    root = path.resolve()
    for file in _files(root, root, reading.skipped):
        if _is_archive(file):
            _take_members(file, _name(file, root), reading)
        else:
            _add_source(_name(file, root), partial(_read, file, reading), reading)


def _is_archive(path: Path) -> bool:
    return path.suffix.lower() == ZIP and path.is_file()


def _take_members(file: Path, name: str, reading: _Reading) -> None:
    """Add the files of a zip archive like those of a folder ``name``; those in its root, if that is empty."""

    def documents(member: str, contents: Callable[[], bytes]) -> Read:
        if _NEVER_DOCUMENTS.fullmatch(PurePosixPath(member).name):
            raise UnreadableError("no document by its name")
        return _read_bytes(PurePosixPath(member).name, contents(), reading.limit_mb)

    try:
        for member, contents in members(file, reading.limit_mb, _is_read):
            full_name = f"{name}/{member}" if name else member
            _add_source(full_name, partial(documents, member, contents), reading)
    except UnreadableError as error:
        reading.skipped.append(Skipped(name, str(error)))


def _require(path: Path) -> None:
    if not path.exists():
        kind = "file" if path.suffix else "folder or file"
        raise CorpusError(f"there is no {kind} {path}: {near(path) or 'give what holds your documents'}")
    if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
        raise CorpusError(f"cannot read the folder {path}: permission denied")
    if path.is_dir() and is_workspace(path):
        raise CorpusError(f"{path} is a workspace of recover: give a folder of your documents alone, or its subfolder")


def _files(directory: Path, root: Path, skipped: list[Skipped]) -> Iterator[Path]:
    """Yield the files and datasets below ``directory``, sorted by name; symbolic links are never followed."""
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
        elif entry.is_dir(follow_symlinks=False) and is_workspace(path):  # it holds held-out texts of these documents
            skipped.append(Skipped(_name(path, root), "a workspace of recover"))
        elif entry.is_dir(follow_symlinks=False):
            try:
                splits = splits_of(path)
            except UsageError as error:
                skipped.append(Skipped(_name(path, root), str(error)))
                continue
            if splits:
                reason = f"a dataset with the splits {', '.join(splits)}: give one alone, as in {path}:{splits[0]}"
                skipped.append(Skipped(_name(path, root), reason))
            else:
                yield from (_files(path, root, skipped) if splits is None else (path,))
        elif match := _NEVER_DOCUMENTS.fullmatch(entry.name):
            if directory != root or entry.name != f"{match[1]}.jsonl":
                reason = f"no document by its name: only {match[1]}.jsonl directly in the folder is used"
                skipped.append(Skipped(_name(path, root), reason))
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


def _add_source(name: str, read: Callable[[], Read], reading: _Reading) -> None:
    """Add the texts of a file or dataset called ``name``, or the reason why it cannot be read."""
    try:
        _add(name, read(), reading)
    except UnreadableError as error:
        reading.skipped.append(Skipped(name, str(error)))


def _add(name: str, read: Read, reading: _Reading) -> None:
    """Add texts, without those that were read before."""
    reading.notes += [f"{name}: {note}" for note in read.notes]
    reading.skipped += [Skipped(f"{name} {part}", reason) for part, reason in read.skipped]
    used, controls, glyphs = False, 0, 0
    for piece in read.pieces:
        id = f"{name}#{piece.part}" if piece.part else name
        text, *lost = without_lost(piece.text)
        controls, glyphs = controls + lost[0], glyphs + lost[1]
        if not text:
            reading.skipped.append(Skipped(id, "no text"))
            continue
        normal = normalise(text)
        key = hash_of(normal)
        if (first := reading.seen.get(key)) is not None:
            reading.skipped.append(Skipped(id, f"the same text as {_earlier_name(first, name)}"))
            continue
        reading.seen[key] = id
        if (first := reading.near.find(id, text, normal)) is not None:
            if reading.skip_near:
                reading.skipped.append(Skipped(id, f"nearly the same text as {_earlier_name(first, name)}"))
                continue
            reading.nearly[id] = first
        reading.documents.append(Document(id, without_lost(tidy(piece.title))[0], text, name))
        used = True
    reading.files += used
    for count, what in ((controls, "control character{}"), (glyphs, "glyph{} that the PDF gives no character for")):
        if count:
            reading.notes.append(f"{name}: dropped {count:,} {what.format('s' * (count > 1))}")


def _earlier_name(first: str, name: str) -> str:
    """Return an earlier text's name for a remark on the file ``name``; within a file always the same, to be counted."""
    return "an earlier one of the file" if first.startswith(f"{name}#") else first


def _near_duplicate_notes(reading: _Reading) -> list[str]:
    """Return the remark on near-duplicates that were used."""
    count = len(reading.nearly)
    if not count:
        return []
    examples = "; ".join(f"{id} and {first}" for id, first in islice(reading.nearly.items(), 3))
    examples += f"; and {count - 3:,} more" if count > 3 else ""
    return [
        f"{count:,} document{'s are' if count > 1 else ' is'} nearly the same as an earlier one, with {LEAST:.0%} of "
        f"all sequences of five words in common ({examples}): --near-duplicates skip leaves such out"
    ]


def _read(path: Path, reading: _Reading) -> Read:
    is_table = path.is_dir() or path.suffix.lower() in TABLE_SUFFIXES
    if not is_table and not _is_read(path.name):
        raise UnreadableError(unsupported(path.name))
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) and not path.is_dir():
            raise UnreadableError("not a regular file")
        if is_table:
            return _documents(open_table(path), path.name, reading)
        if status.st_size > reading.limit_mb * 1e6:
            size = f"{status.st_size / 1e6:,.0f} MB"
            raise UnreadableError(f"{size}, over the limit of {reading.limit_mb:g} MB a file")
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"cannot be read ({error.strerror})") from error
    return _read_bytes(path.name, data, reading.limit_mb)


def _is_read(name: str) -> bool:
    return PurePosixPath(name.lower().removesuffix(GZIP)).suffix in READERS


def _read_bytes(name: str, data: bytes, limit_mb: float) -> Read:
    """Read a file that may be packed by gzip."""
    packed = name.lower().endswith(GZIP)
    return read_file(name[: -len(GZIP)], unpacked(data, limit_mb)) if packed else read_file(name, data)


def _documents(table: Table, name: str, reading: _Reading) -> Read:
    """Return the documents of a table called ``name``, from the column that the user names, or else a guessed one.

    Raises UnreadableError if no row can be used, or if several columns may hold the texts.
    """
    column, how = (table.require(reading.column, TEXT), "") if reading.column else _guess_column(table, reading.place)
    read = _read_table(table, name, column, how, reading.limit_mb)
    reading.tables += 1
    return read


def _name(path: Path, root: Path) -> str:
    return printable(path.relative_to(root).as_posix()) if path != root else "."


def _empty_message(source: Source, skipped: list[Skipped]) -> str:
    types = " ".join(sorted({*READERS, *TABLE_SUFFIXES, ZIP}))
    if not skipped:
        kind = "archive" if _is_archive(source.path) else "folder"
        return f"the {kind} {source.text} is empty: put documents in it ({types})"
    is_single_file = source.path.is_file() and skipped[0].path == printable(source.path.name)
    if source.hub or is_single_file or splits_of(source.path) is not None:
        return f"{source.text} cannot be used as documents: {skipped[0].reason}"
    first = "; ".join(f"{s.path}: {s.reason}" for s in skipped[:3])
    more = f"; and {len(skipped) - 3} more" if len(skipped) > 3 else ""
    return f"no readable document in {source.text} ({first}{more}): supported are {types}"
