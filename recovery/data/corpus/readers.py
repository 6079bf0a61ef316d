"""Readers by file type: each converts the bytes of a file to texts, or raises UnreadableError with a reason."""

from __future__ import annotations

import contextlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Any

from recovery.data.corpus.asciidoc_files import read_asciidoc
from recovery.data.corpus.containers import read_epub, read_mail, read_notebook
from recovery.data.corpus.documents import UnreadableError
from recovery.data.corpus.docx_files import read_docx
from recovery.data.corpus.encodings import NotTextError, decode
from recovery.data.corpus.html_files import read_html, read_server_page
from recovery.data.corpus.html_parts import one_line
from recovery.data.corpus.json_lines import CHAT_KEYS, as_list, load_json, parse_json_lines
from recovery.data.corpus.markdown import title_of
from recovery.data.corpus.markdown_files import FrontMatter, front_matter, plain_markdown, without_components
from recovery.data.corpus.odt_files import read_ods, read_odt
from recovery.data.corpus.pdf_glyphs import GlyphNames
from recovery.data.corpus.pdf_layout import check_operators, read_page
from recovery.data.corpus.pdf_pages import document_text
from recovery.data.corpus.pptx_files import read_pptx
from recovery.data.corpus.rst_files import read_rst
from recovery.data.corpus.text import tidy
from recovery.data.corpus.xlsx_files import read_xlsx
from recovery.errors import first_line, printable
from recovery.limits import Overdue, time_limit

TEXT_KEYS = ("text", "content", "body", "document", "markdown", "page_content", "passage", "article")
_TEXT_WORDS = 8  # of a value that is a text itself
_TITLE_KEYS = ("title", "name", "heading", "subject", "topic")
_SERVER_PAGE = ".aspx"
_UNDERLINED = re.compile(r"^(\S.*)\n([=\-~^\"'*#+])\2{2,}[ \t]*$", re.MULTILINE)
# Limits of files that explode when they are opened, far above what documents need.
_LARGEST_UNPACKED = 1_000_000_000  # bytes; pictures are among them
_LARGEST_XML = 100_000_000  # bytes, which need ten times as much memory
_XML = (".xml", ".rels", ".xhtml", ".html", ".htm", ".opf")
_SECONDS, _SECONDS_PER_MB = 30.0, 30.0  # of processor time
_PDF_END = 16_384  # bytes at the end of a PDF file that hold its mark of the end; others may follow
_DOCS_HINT = "pip install 'recovery[docs]'"


@dataclass(frozen=True)
class Piece:
    """One text of a file: ``part`` is empty for the whole file, else a record's number."""

    title: str
    text: str
    part: str = ""


@dataclass
class Read:
    """The texts of one file, remarks on how it was read, and (part, reason) of skipped records, lines or rows."""

    pieces: list[Piece]
    notes: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def read_file(name: str, data: bytes) -> Read:
    """Read the bytes of a file called ``name``; its suffix selects the reader."""
    reader = READERS.get(PurePath(name).suffix.lower())
    if reader is None:
        raise UnreadableError(f"unsupported type {PurePath(name).suffix or '(no suffix)'}")
    if not data.strip():
        raise UnreadableError("empty file")
    return reader(name, data)


def _decoded(data: bytes) -> tuple[str, list[str]]:
    try:
        decoded = decode(data)
    except NotTextError as error:
        raise UnreadableError(str(error)) from error
    return decoded.text, [decoded.note] if decoded.note else []


def stem(name: str) -> str:
    """Return the name of a file as a title."""
    name = printable(name)
    return re.sub(r"[-_\s]+", " ", PurePath(name).stem).strip() or name


def _plain(name: str, data: bytes) -> Read:
    """Read plain text as written; an underlined first line is the title."""
    text, notes = _decoded(data)
    text = tidy(text)
    heading = _UNDERLINED.match(text)
    return Read([Piece(heading[1].strip() if heading else stem(name), text)], notes)


def _markdown(name: str, data: bytes, plain: Callable[[str], str] = without_components) -> Read:
    text, notes = _decoded(data)
    front = front_matter(tidy(text))
    with _limited(data):
        title, text = _titled(front, plain(front.below).strip())
    return Read([Piece(title or stem(name), text)], [*notes, *filter(None, [front.note])])


def markdown_text(text: str) -> tuple[str, str]:
    """Return (title or "", text) of Markdown as written; of the front matter only title and description are kept."""
    front = front_matter(tidy(text))
    return _titled(front, front.below)


def _titled(front: FrontMatter, text: str) -> tuple[str, str]:
    """Return (title or "", text) of Markdown below its front matter: the title, where it has none, and description."""
    title, description = front.values.get("title", ""), front.values.get("description", "")
    heading = title_of(text)
    if title and not heading and (text or description):
        text = f"# {title}\n\n{text}"
    if description and description not in one_line(text):  # it summarises the page, often better than its first lines
        head = re.match(r"(?:#\s.+|\S.*\n=+)\n*", text)
        at = head.end() if head else 0
        text = f"{text[:at].rstrip()}\n\n{description}\n\n{text[at:]}".strip()
    return title or heading, text


def _html(name: str, data: bytes) -> Read:
    text, notes = _decoded(data)
    title, text = read_server_page(text) if name.lower().endswith(_SERVER_PAGE) else read_html(text)
    if not tidy(text):
        raise UnreadableError("no text in the HTML")
    return Read([_below_title(name, title, text)], notes)


def _marked_up(name: str, data: bytes, read: Callable[[str], tuple[str, str]]) -> Read:
    """Read text with the markup of another language than Markdown; without a text of its own it is as written."""
    text, notes = _decoded(data)
    text = tidy(text)
    with _limited(data):
        title, markdown = read(text)
    return Read([Piece(title or stem(name), tidy(markdown) or text)], notes)


def _below_title(name: str, title: str, text: str) -> Piece:
    """Return a text with its title as a heading, unless that is near its start; without a title the file's name is."""
    title, text = tidy(title), tidy(text)
    has_title = title.casefold() in text[:300].replace("`", "").casefold()
    return Piece(title or stem(name), text if has_title else f"# {title}\n\n{text}")


def with_title(title: str, body: str) -> str:
    """Return the text with a metadata title as its first line, unless the title is already near the start."""
    return f"{title}\n\n{body}" if title and title.casefold() not in body[:300].casefold() else body


def _json(name: str, data: bytes) -> Read:
    text, notes = _decoded(data)
    try:
        value = load_json(text)
    except (json.JSONDecodeError, RecursionError) as error:
        records, problems = parse_json_lines(text)  # JSON Lines in a .json file is common
        if sum(isinstance(record, dict) for _, record in records) > max(1, len(problems)):
            return _record_texts(name, records, notes, problems, single=False)
        reason = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        raise UnreadableError(f"not valid JSON ({reason})") from error
    documents = _wrapped(value) if isinstance(value, dict) else value
    records = documents if isinstance(documents, list) else [value]
    return _record_texts(name, list(enumerate(records, start=1)), notes, [], single=records is not documents)


def _wrapped(value: dict[str, Any]) -> list[Any] | None:
    """Return the documents in an object that holds nothing else but short values about them; None if it is one."""
    records, others = as_list(value), [v for v in value.values() if isinstance(v, (dict, list))]
    with_text = all(any(isinstance(record.get(key), str) for key in TEXT_KEYS) for record in records)
    has_own_text = "question" in value or any(value.get(key) for key in TEXT_KEYS)
    has_own_text |= any(isinstance(v, str) and len(v.split()) >= _TEXT_WORDS for v in value.values())
    return records if len(others) == 1 and records is others[0] and with_text and not has_own_text else None


def _json_lines(name: str, data: bytes) -> Read:
    text, notes = _decoded(data)
    records, problems = parse_json_lines(text)
    return _record_texts(name, records, notes, problems, single=False)


def _record_texts(
    name: str, records: list[tuple[int, Any]], notes: list[str], problems: list[str], single: bool
) -> Read:
    pieces = []
    skipped = [(part, reason) for part, _, reason in (problem.partition(": ") for problem in problems)]
    for number, value in records:
        title, text = _record_text(value)
        if _is_probe(value):
            skipped.append((f"record {number}", "a probe, not a document"))
        elif text is None:
            skipped.append((f"record {number}", "chat, not a document (use it as --prompts)"))
        elif not text.strip():
            skipped.append((f"record {number}", "no text"))
        else:
            title = title or stem(name)
            pieces.append(Piece(title, tidy(text), "" if single else str(number)))
    if not pieces:
        raise UnreadableError("; ".join(map(": ".join, skipped[:3])) or "no text")
    return Read(pieces, notes, skipped)


def _is_probe(value: Any) -> bool:
    """Return whether a JSON value is a question with its accepted answers and no text of its own but a passage."""
    if not isinstance(value, dict) or not isinstance(value.get("question"), str):
        return False
    answers = value.get("answers")
    texts = [value.get(key) for key in (*TEXT_KEYS, "context") if key != "passage"]
    return (
        isinstance(answers, list)
        and all(isinstance(answer, str | int | float) for answer in answers)
        and not any(isinstance(text, str) and text.strip() for text in texts)
    )


def _record_text(value: Any) -> tuple[str, str | None]:
    """Return (title, text) of a JSON value; text is None for a chat record, which is not a document."""
    if isinstance(value, str):
        return "", value
    if not isinstance(value, dict):
        return "", _flat(value)
    if any(isinstance(value.get(key), list) for key in CHAT_KEYS):
        return "", None
    title = next((one_line(v) for key in _TITLE_KEYS if isinstance(v := value.get(key), str) and v.strip()), "")
    for key in TEXT_KEYS:
        if isinstance(body := value.get(key), str) and body.strip():
            return title, with_title(title, body)
    values = [value[key] for key in TEXT_KEYS if key in value]
    if values and all(body is None or (isinstance(body, str) and not body.strip()) for body in values):
        return title, ""  # what else it has describes a text that is missing
    return title, _flat(value)


def _flat(value: Any) -> str:
    """Return a JSON value without a text field as lines "path: value", one per leaf, in the order of the file."""
    lines: list[str] = []
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, dict):
            stack.extend((f"{path}.{key}" if path else str(key), v) for key, v in reversed(list(item.items())))
        elif isinstance(item, list):
            stack.extend((path, v) for v in reversed(item))
        elif item is not None and str(item).strip():
            lines.append(f"{path}: {item}" if path else str(item))
    return "\n".join(lines)


def _pdf(name: str, data: bytes) -> Read:
    try:
        import pypdfium2
    except ImportError as error:
        raise UnreadableError(f"reading PDF needs {_DOCS_HINT}") from error
    if b"%%EOF" not in data[-_PDF_END:]:  # PDFium would read what is there
        raise UnreadableError("damaged PDF (cut short: it has no end)")
    try:
        check_operators(data)
        with _limited(data), pypdfium2.PdfDocument(data) as document:
            names = GlyphNames(data)
            text = tidy(document_text([read_page(document[number], names) for number in range(len(document))]))
            title = tidy(one_line(document.get_metadata_value("Title")))
    except pypdfium2.PdfiumError as error:
        if error.err_code == pypdfium2.raw.FPDF_ERR_PASSWORD:
            raise UnreadableError("PDF protected by a password") from error
        raise UnreadableError(f"damaged PDF ({first_line(error)})") from error
    if not text:
        raise UnreadableError("no text in the PDF (scanned pages?)")
    return Read([Piece(title or stem(name), with_title(title, text))])


@contextlib.contextmanager
def _limited(data: bytes) -> Iterator[None]:
    """Raise UnreadableError if a library takes far longer than a file of this size needs: such files may never end."""
    seconds = _SECONDS + _SECONDS_PER_MB * len(data) / 1e6
    try:
        with time_limit(seconds, of_processor=True):
            yield
    except Overdue as error:
        raise UnreadableError(f"not read after {seconds:,.0f} seconds of processor time") from error


@contextlib.contextmanager
def _damaged(kind: str) -> Iterator[None]:
    """Raise UnreadableError for what fails: damage shows in zipfile, lxml, email, or at what a file does not have."""
    try:
        yield
    except UnreadableError:
        raise
    except NotTextError as error:
        raise UnreadableError(str(error)) from error
    except Exception as error:
        raise UnreadableError(f"{kind} ({type(error).__name__})") from error


def _check_unpacked(data: bytes, kind: str) -> None:
    """Raise UnreadableError if an archive unpacks to too much; more than it declares is never read."""
    if not data.startswith(b"PK"):
        return
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = archive.infolist()
    for sizes, most in (
        ([part.file_size for part in parts], _LARGEST_UNPACKED),
        ([part.file_size for part in parts if part.filename.lower().endswith(_XML)], _LARGEST_XML),
    ):
        if sum(sizes) > most:
            raise UnreadableError(f"a {kind} file that unpacks to {sum(sizes) / 1e6:,.0f} MB")


def _docx(_: str, data: bytes) -> Read:
    with _damaged("damaged DOCX"):
        _check_unpacked(data, "DOCX")
        with _limited(data):
            title, text, notes = read_docx(data, _embedded)
    title, text = tidy(title), tidy(text)
    if not text:
        raise UnreadableError("; ".join(["no text in the DOCX", *notes]))
    return Read([Piece(title or one_line(text.split("\n", 1)[0]).lstrip("# ")[:80], with_title(title, text))], notes)


def _embedded(name: str, data: bytes) -> tuple[str, list[str]]:
    """Return the text and remarks of a document within a DOCX; of a DOCX without those within it."""
    suffix = PurePath(name).suffix.lower()
    if data.startswith(b"{\\rtf"):
        raise UnreadableError("RTF, which is not read")
    with _damaged("damaged"):
        if data.startswith(b"PK"):
            _check_unpacked(data, "DOCX")
            _, text, notes = read_docx(data)
        elif suffix in (".mht", ".mhtml"):
            _, text, notes = read_mail(data)
        else:
            text, notes = _decoded(data)
            page = suffix in (".htm", ".html", ".xhtml") or text.lstrip().startswith("<")
            text = read_html(text)[1] if page else text
    return tidy(text), notes


def _notebook(name: str, data: bytes) -> Read:
    text, notes = _decoded(data)
    title, text = markdown_text(read_notebook(text))
    if not text:
        raise UnreadableError("no text in the notebook")
    return Read([Piece(title or stem(name), text)], notes)


def _archived(kind: str, read: Callable[[bytes, str], tuple[str, str, list[str]]]) -> Callable[[str, bytes], Read]:
    """Return the reader of a type of archives; the title begins the text."""

    def reader(name: str, data: bytes) -> Read:
        with _damaged(f"damaged {kind}"):
            _check_unpacked(data, kind)
            with _limited(data):
                title, text, notes = read(data, stem(name))
        if tidy(text) in ("", f"# {title}"):
            raise UnreadableError(f"no text in the {kind}")
        return Read([_below_title(name, title, text)], notes)

    return reader


def _mail(name: str, data: bytes) -> Read:
    with _damaged("damaged letter"), _limited(data):
        title, text, notes = read_mail(data)
    if not tidy(text):
        raise UnreadableError("no text in the letter")
    return Read([_below_title(name, title, text)], notes)


READERS: dict[str, Callable[[str, bytes], Read]] = {
    **dict.fromkeys((".txt", ".text"), _plain),
    **dict.fromkeys((".md", ".markdown"), _markdown),
    ".rst": partial(_marked_up, read=read_rst),
    **dict.fromkeys((".adoc", ".asciidoc"), partial(_marked_up, read=read_asciidoc)),
    **dict.fromkeys((".html", ".htm", _SERVER_PAGE), _html),
    ".json": _json,
    ".jsonl": _json_lines,
    ".pdf": _pdf,
    ".docx": _docx,
    ".mdx": partial(_markdown, plain=plain_markdown),
    ".ipynb": _notebook,
    **dict.fromkeys((".pptx", ".pptm", ".ppsx"), _archived("PPTX", read_pptx)),
    **dict.fromkeys((".xlsx", ".xlsm"), _archived("XLSX", read_xlsx)),
    ".odt": _archived("ODT", read_odt),
    ".ods": _archived("ODS", read_ods),
    ".epub": _archived("EPUB", read_epub),
    ".eml": _mail,
}
