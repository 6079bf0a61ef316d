"""Zip archives of documents, as wikis export them, and single files packed by gzip.

Nothing is unpacked to the disk. A member has the limits of a file; what is read of an archive, with the archives in it,
has one in all. An archive that unpacks to far more than its size was made to exhaust the memory.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from recovery.data.corpus.documents import UnreadableError
from recovery.data.sources import TABLE_SUFFIXES, ZIP
from recovery.errors import printable

GZIP = ".gz"
_MOST_MEMBERS = 100_000
_LARGEST_UNPACKED = 1_000_000_000  # bytes that are read of an archive
_RATIO, _SMALL = 200, 10_000_000  # an export packs to a tenth; bytes that harm nothing, however well they are packed
_LEVELS = 2  # Notion exports archives in an archive
_OUTSIDE = re.compile(r"/|[A-Za-z]:|(?:.*/)?\.\.(?:/|$)")  # absolute, of a Windows drive, or with a part ".."

Members = Iterator[tuple[str, Callable[[], bytes]]]


@dataclass
class _Left:
    """How many bytes may still be read of an archive."""

    size: int


def members(file: Path | bytes, limit_mb: float, is_read: Callable[[str], bool]) -> Members:
    """Yield the name of each file in a zip archive, sorted, and a function that returns its bytes.

    The function raises UnreadableError with the reason for a member that is not to be read: one of another type by
    ``is_read``, over ``limit_mb`` megabytes, hidden, encrypted, damaged, a link, with a name that leads out of the
    archive or that an earlier one has. The files of an archive within the archive follow its name and a "/".
    Raise UnreadableError for what is no zip archive.
    """
    yield from _members(file, limit_mb, is_read, _Left(_LARGEST_UNPACKED), _LEVELS)


def unpacked(data: bytes, limit_mb: float) -> bytes:
    """Return what gzip has packed. Raise UnreadableError if it is damaged, too large or far larger than its packing."""
    most = int(limit_mb * 1e6)
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            # One byte more than may be read tells a larger file; a damaged end is found only behind it.
            found = stream.read(min(most, max(_SMALL, _RATIO * len(data))) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableError(f"damaged gzip file ({type(error).__name__})") from error
    _check_size(len(found), len(data), limit_mb)
    return found


def _members(file: Path | bytes, limit_mb: float, is_read: Callable[[str], bool], left: _Left, levels: int) -> Members:
    try:
        archive = zipfile.ZipFile(io.BytesIO(file) if isinstance(file, bytes) else file)
    except OSError as error:
        raise UnreadableError(f"cannot be read ({error.strerror or error})") from error
    except Exception as error:  # damaged structures fail in many ways
        raise UnreadableError(f"damaged ZIP ({type(error).__name__})") from error
    with archive:
        found = [(_name_of(info), info) for info in archive.infolist() if not info.is_dir()]
        if len(found) > _MOST_MEMBERS:
            raise UnreadableError(f"an archive of more than {_MOST_MEMBERS:,} files: unpack it, and give the folder")
        seen: set[str] = set()
        for name, info in sorted(found, key=lambda one: one[0].split("/")):
            shown = printable(name)
            reason = _refusal(name, info, limit_mb, name in seen)
            seen.add(name)
            nested = name.lower().endswith(ZIP)
            if not reason and nested and levels > 1:
                try:
                    inner = _contents(archive, info, left)
                    for below, read in _members(inner, limit_mb, is_read, left, levels - 1):
                        yield f"{shown}/{below}", read
                except UnreadableError as error:
                    yield shown, partial(_refuse, str(error))
                continue
            if not reason and nested:
                reason = "a zip archive in an archive in an archive: unpack it"
            if not reason and not is_read(name):
                reason = unsupported(name)
            yield shown, partial(_refuse, reason) if reason else partial(_contents, archive, info, left)


def unsupported(name: str) -> str:
    """Return the reason why a file is of no type that is read, by its name."""
    path = PurePosixPath(name)
    if PurePosixPath(name.lower().removesuffix(GZIP)).suffix in TABLE_SUFFIXES:
        return "a packed table: unpack it"
    suffixes = "".join(path.suffixes[-2:]) if path.suffix.lower() == GZIP else path.suffix
    return f"unsupported type {suffixes or '(no suffix)'}"


def _name_of(info: zipfile.ZipInfo) -> str:
    """Return the name of a member with "/" between folders; many programs write UTF-8 without saying so."""
    name = info.filename
    if not info.flag_bits & 0x800:
        with contextlib.suppress(UnicodeError):
            name = name.encode("cp437").decode("utf-8")
    name = name.replace("\\", "/")
    return name if _OUTSIDE.match(name) else PurePosixPath(name).as_posix()


def _refusal(name: str, info: zipfile.ZipInfo, limit_mb: float, again: bool) -> str:
    """Return why a member is not read, "" if it is."""
    kind = stat.S_IFMT(info.external_attr >> 16)
    if _OUTSIDE.match(name):
        return "a name that leads out of the archive"
    if any(part.startswith(".") or part == "__MACOSX" for part in name.split("/")):
        return "hidden"
    if again:
        return "a second file of this name in the archive"
    if kind not in (0, stat.S_IFREG):
        return "symbolic link" if kind == stat.S_IFLNK else "not a regular file"
    if info.flag_bits & 1:
        return "protected by a password"
    try:
        _check_size(info.file_size, info.compress_size, limit_mb)
    except UnreadableError as error:
        return str(error)
    return ""


def _check_size(size: int, packed: int, limit_mb: float) -> None:
    if size > limit_mb * 1e6:
        raise UnreadableError(f"unpacks to over the limit of {limit_mb:g} MB a file")
    if size > max(_SMALL, _RATIO * packed):
        raise UnreadableError(f"unpacks to over {_RATIO} times its size")


def _contents(archive: zipfile.ZipFile, info: zipfile.ZipInfo, left: _Left) -> bytes:
    """Return the bytes of a member; zipfile reads no more than are declared."""
    if info.file_size > left.size:
        raise UnreadableError(f"an archive of over {_LARGEST_UNPACKED / 1e6:,.0f} MB of documents: unpack it")
    left.size -= info.file_size
    try:
        return archive.read(info)
    except NotImplementedError as error:
        raise UnreadableError("packed by a method that is not supported") from error
    except Exception as error:  # damaged data fails in each of the libraries that unpack
        raise UnreadableError(f"damaged in the archive ({type(error).__name__})") from error


def _refuse(reason: str) -> bytes:
    raise UnreadableError(reason)
