"""Text of EPUB books, as Markdown: the pages of the book in their order, each as an HTML page."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from recovery.data.corpus.documents import UnreadableError
from recovery.data.corpus.encodings import decode
from recovery.data.corpus.html_files import read_html
from recovery.data.corpus.outline import Outline
from recovery.data.corpus.xml_archives import XmlArchive, inside

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
