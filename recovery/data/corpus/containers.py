"""Files that hold pages or texts of another format: zip and gzip archives, letters, Jupyter notebooks, EPUB books."""

from __future__ import annotations

import codecs
import contextlib
import email
import gzip
import io
import json
import posixpath
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email import policy
from email.message import MIMEPart
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from recovery.data.corpus.documents import UnreadableError, counted
from recovery.data.corpus.encodings import NotTextError, decode
from recovery.data.corpus.html_files import read_html
from recovery.data.corpus.html_parts import one_line
from recovery.data.corpus.outline import Outline, fence
from recovery.data.corpus.xml_archives import XmlArchive, inside
from recovery.data.sources import TABLE_SUFFIXES, ZIP
from recovery.errors import printable

# Zip archives of documents, as wikis export them, and single files packed by gzip.
#
# Nothing is unpacked to the disk. A member has the limits of a file; an archive with the archives in it has one limit
# in all. An archive that unpacks to far more than its size was made to exhaust the memory.

GZIP = ".gz"
_MOST_MEMBERS = 100_000
_LARGEST_UNPACKED = 1_000_000_000  # bytes that are read of an archive
_RATIO, _SMALL = 200, 10_000_000  # exports pack to a tenth; bytes that are harmless at any ratio
_LEVELS = 2  # Notion exports archives in an archive
_OUTSIDE = re.compile(r"/|[A-Za-z]:|(?:.*/)?\.\.(?:/|$)")  # absolute, of a Windows drive, or with a part ".."

Members = Iterator[tuple[str, Callable[[], bytes]]]


@dataclass
class _Room:
    """The bytes that may still be read of an archive."""

    size: int


def members(file: Path | bytes, limit_mb: float, is_read: Callable[[str], bool]) -> Members:
    """Yield the name of each file in a zip archive, sorted, and a function that returns its bytes.

    The function raises UnreadableError with the reason for a member that is not read: a type that ``is_read`` rejects,
    over ``limit_mb`` megabytes, hidden, encrypted, damaged, a link, a name that leads out of the archive or is
    repeated. Files of an archive within the archive have its name and a "/" before theirs. Raise UnreadableError if the
    file is not a zip archive.
    """
    yield from _members(file, limit_mb, is_read, _Room(_LARGEST_UNPACKED), _LEVELS)


def unpacked(data: bytes, limit_mb: float) -> bytes:
    """Return what gzip has packed. Raise UnreadableError if it is damaged, too large or far larger than its packing."""
    limit = int(limit_mb * 1e6)
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            # Reading one byte past the limit reveals a larger file, and damage at the end of an allowed one.
            content = stream.read(min(limit, max(_SMALL, _RATIO * len(data))) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableError(f"damaged gzip file ({type(error).__name__})") from error
    _check_size(len(content), len(data), limit_mb)
    return content


def _members(file: Path | bytes, limit_mb: float, is_read: Callable[[str], bool], room: _Room, levels: int) -> Members:
    try:
        archive = zipfile.ZipFile(io.BytesIO(file) if isinstance(file, bytes) else file)
    except OSError as error:
        raise UnreadableError(f"cannot be read ({error.strerror or error})") from error
    except Exception as error:  # damaged structures fail in many ways
        raise UnreadableError(f"damaged ZIP ({type(error).__name__})") from error
    with archive:
        entries = [(_name_of(info), info) for info in archive.infolist() if not info.is_dir()]
        if len(entries) > _MOST_MEMBERS:
            raise UnreadableError(f"an archive of more than {_MOST_MEMBERS:,} files: unpack it, and give the folder")
        seen: set[str] = set()
        for name, info in sorted(entries, key=lambda entry: entry[0].split("/")):
            shown = printable(name)
            reason = _reason_to_skip(name, info, limit_mb, name in seen)
            seen.add(name)
            nested = name.lower().endswith(ZIP)
            if not reason and nested and levels > 1:
                try:
                    inner = _member_bytes(archive, info, room)
                    for below, read in _members(inner, limit_mb, is_read, room, levels - 1):
                        yield f"{shown}/{below}", read
                except UnreadableError as error:
                    yield shown, partial(_refuse, str(error))
                continue
            if not reason and nested:
                reason = "a zip archive in an archive in an archive: unpack it"
            if not reason and not is_read(name):
                reason = unsupported(name)
            yield shown, partial(_refuse, reason) if reason else partial(_member_bytes, archive, info, room)


def unsupported(name: str) -> str:
    """Return the reason why a file cannot be read, by its name."""
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


def _reason_to_skip(name: str, info: zipfile.ZipInfo, limit_mb: float, is_repeated: bool) -> str:
    """Return the reason why a member is not read, or ""."""
    kind = stat.S_IFMT(info.external_attr >> 16)
    if _OUTSIDE.match(name):
        return "a name that leads out of the archive"
    if any(part.startswith(".") or part == "__MACOSX" for part in name.split("/")):
        return "hidden"
    if is_repeated:
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


def _member_bytes(archive: zipfile.ZipFile, info: zipfile.ZipInfo, room: _Room) -> bytes:
    """Return the bytes of a member; zipfile reads no more than are declared."""
    if info.file_size > room.size:
        raise UnreadableError(f"an archive of over {_LARGEST_UNPACKED / 1e6:,.0f} MB of documents: unpack it")
    room.size -= info.file_size
    try:
        return archive.read(info)
    except NotImplementedError as error:
        raise UnreadableError("packed by a method that is not supported") from error
    except Exception as error:  # damaged data fails in each of the libraries that unpack
        raise UnreadableError(f"damaged in the archive ({type(error).__name__})") from error


def _refuse(reason: str) -> bytes:
    raise UnreadableError(reason)


_MARKS = re.compile(rb"\A(?:%s)+" % codecs.BOM_UTF8)
_SIGNATURE = re.compile(r"^-- ?$", re.MULTILINE)
_HEADERS = ("subject", "from", "to", "date", "received", "message-id", "mime-version", "content-type")


def read_mail(data: bytes) -> tuple[str, str, list[str]]:
    """Return the subject of a letter (.eml), its text and remarks.

    The text is the plain part, or else the HTML part as Markdown, up to the signature ("-- "). Names, addresses and
    dates are left out; so are attachments, which are counted.
    """
    letter = email.message_from_bytes(_MARKS.sub(b"", data), policy=policy.default)
    if not any(name in letter for name in _HEADERS):
        raise UnreadableError("not a letter: it has no headers")
    title = one_line(str(letter["subject"] or ""))
    plain, page = letter.get_body(("plain",)), letter.get_body(("html",))
    text = _SIGNATURE.split(_content(plain), maxsplit=1)[0] if plain is not None else ""
    if not text.strip() and page is not None:
        text = read_html(_content(page))[1]
    bodies = (plain, page)
    others = [part for part in letter.walk() if not part.is_multipart() and part not in bodies]
    files = sum(part.get_content_disposition() == "attachment" or part.get_filename() is not None for part in others)
    return title, text, [f"{counted(files, 'attachment')} left out"] if files else []


def _content(part: MIMEPart) -> str:
    """Return the text of a part, by its declared encoding or, if that is wrong, a guessed one."""
    data = part.get_payload(decode=True)
    data = data if isinstance(data, bytes) else b""
    charset = part.get_content_charset("utf-8")
    try:
        text = data.decode(charset)
    except (LookupError, UnicodeDecodeError):
        text = decode(data).text if data.strip() else ""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if part.get_param("format") == "flowed":  # RFC 3676: a space at the end of a line joins it to the next one
        text = re.sub(r"^ ", "", re.sub(r"(?<!^--) \n(?!>)", " ", text, flags=re.MULTILINE), flags=re.MULTILINE)
    return text


_LANGUAGE = re.compile(r"[\w+#.-]{1,20}")
_EMBEDDED = re.compile(r"!\[([^\]]*)\]\((?:data|attachment):[^)]*\)|<img\b[^>]*\bsrc=[\"']?data:[^>]*>", re.IGNORECASE)
_TEXT_TYPES = ("text/markdown", "text/x-markdown", "text/restructuredtext", "text/x-rst", "text/plain")


def read_notebook(text: str) -> str:
    """Return the Markdown and the code (between fences) of a Jupyter notebook of any version, without its outputs.

    Most outputs are pictures, addresses in memory, progress bars or truncated tables. Raise UnreadableError for a file
    that is no notebook.
    """
    try:
        book = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UnreadableError("not a notebook: no valid JSON") from error
    if not isinstance(book, dict):
        raise UnreadableError("not a notebook: no object with cells")
    sheets = book["worksheets"] if isinstance(book.get("worksheets"), list) else [book]  # before version 4
    cells = [sheet["cells"] for sheet in sheets if isinstance(sheet, dict) and isinstance(sheet.get("cells"), list)]
    if not cells:
        raise UnreadableError("not a notebook: no list of cells")
    language = _language(book)
    blocks = [_block(cell, language) for part in cells for cell in part if isinstance(cell, dict)]
    return "\n\n".join(block for block in blocks if block)


def _language(book: dict[str, Any]) -> str:
    """Return the language of the kernel, "python" if none is named."""
    about = book.get("metadata")
    parts = [about.get(key) for key in ("kernelspec", "language_info")] if isinstance(about, dict) else []
    candidates = [part.get(key) for part in parts if isinstance(part, dict) for key in ("language", "name")]
    names = [name for name in candidates if isinstance(name, str) and _LANGUAGE.fullmatch(name)]
    return re.sub(r"^i?python\d*$", "python", names[0].lower()) if names else "python"


def _block(cell: dict[str, Any], language: str) -> str:
    kind = cell.get("cell_type")
    text = _source(cell.get("source", cell.get("input")))
    if not text.strip():
        return ""
    if kind == "code":
        lang = cell.get("language")
        return fence(text.strip("\n"), lang if isinstance(lang, str) and _LANGUAGE.fullmatch(lang) else language)
    if kind == "heading":  # before version 4
        level = cell.get("level")
        depth = level if isinstance(level, int) and 1 <= level <= 6 else 1
        return f"{'#' * depth} {one_line(text)}"
    about = cell.get("metadata")
    format = about.get("format", about.get("raw_mimetype")) if isinstance(about, dict) else None
    if kind == "markdown" or (kind == "raw" and format in _TEXT_TYPES):
        return _EMBEDDED.sub(lambda match: match[1] or "", text).strip("\n")
    return ""


def _source(value: Any) -> str:
    """Return the source of a cell, stored as a text or as lines."""
    if isinstance(value, list):
        return "".join(line for line in value if isinstance(line, str))
    return value if isinstance(value, str) else ""


_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
_PAGES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml", "text/x-oeb1-document")
# An empty element of XHTML: HTML would read it as an opening tag without an end.
_EMPTY = re.compile(
    r"<(?!(?:br|hr|img|col|wbr|input|link|meta|area|base|embed|param|source|track)\b)([\w:-]+)([^<>]*)/>"
)
_NO_TITLE = re.compile(r"(?:cover|title ?page|untitled|unknown|\W*)", re.IGNORECASE)


def read_epub(data: bytes, fallback_title: str) -> tuple[str, str, list[str]]:
    """Return the title of a book, its text (its HTML pages in order, as Markdown) and remarks.

    ``fallback_title`` is used if it has none.
    """
    archive = XmlArchive(data, "EPUB")
    roots = archive.xml(_CONTAINER).iterfind("{*}rootfiles/{*}rootfile")
    package = next(root.get("full-path") for root in roots)
    root, folder = archive.xml(package), posixpath.dirname(package)
    encryption: Any = archive.xml_or_none(_ENCRYPTION)  # mostly of fonts, unless the book is protected
    encrypted = [] if encryption is None else encryption.iterfind(".//{*}CipherReference")
    locked = {inside("", reference.get("URI") or "") for reference in encrypted}
    items = {item.get("id"): item for item in root.iterfind("{*}manifest/{*}item")}
    outline, missing, closed, binary = Outline(), 0, 0, 0
    title = one_line(root.findtext("{*}metadata/{*}title") or "")
    title = fallback_title if _NO_TITLE.fullmatch(title) else title
    outline.heading(title, 1)
    title_length = len(outline.text)
    for reference in root.iterfind("{*}spine/{*}itemref"):
        item = items.get(reference.get("idref"))
        if item is None or item.get("media-type") not in _PAGES or "nav" in (item.get("properties") or "").split():
            continue
        name = inside(folder, item.get("href") or "")
        closed += name in locked
        missing += name not in archive
        if name in archive and name not in locked:
            data = archive.read(name)
            try:
                text = decode(data).text if data.strip() else ""
            except NotTextError:
                binary += 1
                continue
            outline.block(read_html(_EMPTY.sub(r"<\1\2></\1>", text))[1])
    if len(outline.text) <= title_length:
        raise UnreadableError("EPUB protected by DRM" if closed else "no text in the EPUB")
    unread = ((closed, "protected by DRM"), (missing, "missing"), (binary, "left out: binary, not text"))
    notes = [f"{counted(n, 'page')} {what}" for n, what in unread if n]
    return title, outline.text, notes
