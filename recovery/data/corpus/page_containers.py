"""Files that hold pages or texts of another format: letters, Jupyter notebooks, EPUB books.

Text of letters (.eml): the subject is the title, the text is the plain part, or else the HTML part as Markdown.

Names, addresses and dates are left out; so are attachments, which are counted, and what stands below the signature's
line ("-- ").

Text of Jupyter notebooks, as Markdown: their Markdown cells as written, and their code between fences.

Outputs are left out: most are pictures, addresses in memory, progress bars or tables that are cut off.

Text of EPUB books, as Markdown: the pages of the book in their order, each as an HTML page.
"""

from __future__ import annotations

import codecs
import email
import json
import posixpath
import re
from email import policy
from email.message import MIMEPart
from typing import Any

from recovery.data.corpus.documents import UnreadableError
from recovery.data.corpus.encodings import decode
from recovery.data.corpus.html_files import read_html
from recovery.data.corpus.outline import Outline, fence
from recovery.data.corpus.xml_archives import XmlArchive, inside

_MARKS = re.compile(rb"\A(?:%s)+" % codecs.BOM_UTF8)
_SIGNATURE = re.compile(r"^-- ?$", re.MULTILINE)
_HEADERS = ("subject", "from", "to", "date", "received", "message-id", "mime-version", "content-type")


def read_mail(data: bytes) -> tuple[str, str, list[str]]:
    """Return the subject of a letter, its text and remarks."""
    letter = email.message_from_bytes(_MARKS.sub(b"", data), policy=policy.default)
    if not any(name in letter for name in _HEADERS):
        raise UnreadableError("not a letter: it has no headers")
    title = " ".join(str(letter["subject"] or "").split())
    plain, page = letter.get_body(("plain",)), letter.get_body(("html",))
    text = _SIGNATURE.split(_content(plain), maxsplit=1)[0] if plain is not None else ""
    if not text.strip() and page is not None:
        text = read_html(_content(page))[1]
    bodies = (plain, page)
    others = [part for part in letter.walk() if not part.is_multipart() and part not in bodies]
    files = sum(part.get_content_disposition() == "attachment" or part.get_filename() is not None for part in others)
    return title, text, [f"{files} attachment{'s' * (files > 1)} left out"] if files else []


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
    """Return the text of a notebook of any version. Raise UnreadableError if it is none."""
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
    found = [part.get(key) for part in parts if isinstance(part, dict) for key in ("language", "name")]
    named = [name for name in found if isinstance(name, str) and _LANGUAGE.fullmatch(name)]
    return re.sub(r"^i?python\d*$", "python", named[0].lower()) if named else "python"


def _block(cell: dict[str, Any], language: str) -> str:
    kind = cell.get("cell_type")
    text = _source(cell.get("source", cell.get("input")))
    if not text.strip():
        return ""
    if kind == "code":
        own = cell.get("language")
        return fence(text.strip("\n"), own if isinstance(own, str) and _LANGUAGE.fullmatch(own) else language)
    if kind == "heading":  # before version 4
        level = cell.get("level")
        depth = level if isinstance(level, int) and 1 <= level <= 6 else 1
        return f"{'#' * depth} {' '.join(text.split())}"
    about = cell.get("metadata")
    format = about.get("format", about.get("raw_mimetype")) if isinstance(about, dict) else None
    if kind == "markdown" or (kind == "raw" and format in _TEXT_TYPES):
        return _EMBEDDED.sub(lambda match: match[1] or "", text).strip("\n")
    return ""


def _source(value: Any) -> str:
    """Return the source of a cell, which is a text or its lines."""
    if isinstance(value, list):
        return "".join(line for line in value if isinstance(line, str))
    return value if isinstance(value, str) else ""


_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
_PAGES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml", "text/x-oeb1-document")
# An empty element of XHTML, which HTML would take for the start of one that reaches to the end of the page.
_EMPTY = re.compile(
    r"<(?!(?:br|hr|img|col|wbr|input|link|meta|area|base|embed|param|source|track)\b)([\w:-]+)([^<>]*)/>"
)
_NO_TITLE = re.compile(r"(?:cover|title ?page|untitled|unknown|\W*)", re.IGNORECASE)


def read_epub(data: bytes, named: str) -> tuple[str, str, list[str]]:
    """Return the title of a book, its text and remarks. ``named`` is the title of one without a title."""
    archive = XmlArchive(data, "EPUB")
    roots = archive.xml(_CONTAINER).iterfind("{*}rootfiles/{*}rootfile")
    package = next(root.get("full-path") for root in roots)
    root, folder = archive.xml(package), posixpath.dirname(package)
    locked = _encrypted(archive)
    items = {item.get("id"): item for item in root.iterfind("{*}manifest/{*}item")}
    outline, missing, shut = Outline(), 0, 0
    title = " ".join((root.findtext("{*}metadata/{*}title") or "").split())
    title = named if _NO_TITLE.fullmatch(title) else title
    outline.heading(title, 1)
    begun = len(outline.text)
    for reference in root.iterfind("{*}spine/{*}itemref"):
        item = items.get(reference.get("idref"))
        if item is None or item.get("media-type") not in _PAGES or "nav" in (item.get("properties") or "").split():
            continue
        name = inside(folder, item.get("href") or "")
        shut += name in locked
        missing += name not in archive
        if name in archive and name not in locked:
            outline.block(_page(archive.read(name)))
    if len(outline.text) <= begun:
        raise UnreadableError("EPUB protected by DRM" if shut else "no text in the EPUB")
    notes = [f"{n} page{'s' * (n > 1)} {what}" for n, what in ((shut, "protected by DRM"), (missing, "missing")) if n]
    return title, outline.text, notes


def _encrypted(archive: XmlArchive) -> set[str]:
    """Return the names of the parts that are encrypted; mostly fonts, unless the book is protected."""
    root: Any = archive.xml_or_none(_ENCRYPTION)
    found = [] if root is None else root.iterfind(".//{*}CipherReference")
    return {inside("", reference.get("URI") or "") for reference in found}


def _page(data: bytes) -> str:
    text = decode(data).text if data.strip() else ""
    return read_html(_EMPTY.sub(r"<\1\2></\1>", text))[1]
