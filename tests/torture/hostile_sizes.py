"""Hostile files by their size: lines of up to 10^9 characters, and files that explode when they are opened.

They are made while they are written, so that the cases themselves take no memory.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.office_files import OFFICE, cell, relations, rows, spreadsheet, workbook
from tests.torture.hostile_files import GOOD, Case, beside, docx, file, paragraphs, pdf

LONGEST = 1_000_000_000
_CHUNK = 1 << 20
_ANSWERS = '"answers": ["b"], "form": "question"'


def sizes(large: bool) -> Iterator[Case]:
    """Yield the cases; those that are not ``large`` have the same names and reach the same limits on files."""
    yield from _lines("long", 200_000_000 if large else 5_000_000)
    yield from _longest(LONGEST if large else 150_000_000)
    yield from _asked("longest", LONGEST if large else 1_000_000)
    yield from _bombs(500_000_000 if large else 30_000_000)


def _line(before: str, unit: str, count: int, after: str = "") -> Callable[[Path], object]:
    """Return what writes ``count`` times a unit between two texts, a part at a time."""

    def write(path: Path) -> None:
        at_once = max(1, _CHUNK // len(unit))
        part = (unit * at_once).encode()
        with path.open("wb") as stream:
            stream.write(before.encode())
            for _ in range(count // at_once):
                stream.write(part)
            stream.write((unit * (count % at_once) + after).encode())

    return write


def _as(name: str, line: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: line(folder / name)


def _lines(name: str, length: int) -> Iterator[Case]:
    """One line of ``length`` bytes in each type of text."""
    lines = {
        ".txt": _line("", "a", length),
        ".md": _line("# ", "word ", length // 5),
        ".html": _line("<p>", "a", length),
        ".csv": _line("text\n", "a", length),
        ".json": _line('{"text": "', "a", length, '"}'),
        ".jsonl": _line('{"text": "', "word ", length // 5, '"}'),
    }
    for suffix, line in lines.items():
        yield Case(f"{name} line{suffix}", _as(f"a{suffix}", line), room=length)
    yield from _asked(name, length)


def _asked(name: str, length: int) -> Iterator[Case]:
    """One prompt and one probe of ``length`` characters."""
    for kind, field in (("prompts", "prompt"), ("probes", "question")):
        line = _line(f'{{{_ANSWERS}, "{field}": "', "a", length, '"}')
        yield Case(f"{name} line as {kind}", _as("a.jsonl", line), kind, "a.jsonl", length)


def _longest(length: int) -> Iterator[Case]:
    """One line of ``length`` characters, alone and beside a good file: over the limit on a file."""
    for suffix, line in {".txt": _line("", "a", length), ".jsonl": _line('{"text": "', "a", length, '"}')}.items():
        write = _as(f"a{suffix}", line)
        yield Case(f"longest line{suffix}", beside(write), room=length)
        yield Case(f"longest line{suffix} itself", write, target=f"a{suffix}", room=length)


def _bombs(many: int) -> Iterator[Case]:
    """Files that explode when they are opened: to ``many`` bytes."""
    office: dict[str, Callable[[], bytes]] = {
        "spaces": lambda: docx(paragraphs(" " * many)),
        "text": lambda: docx(paragraphs(GOOD * (many // len(GOOD)))),
        "tags": lambda: docx("<w:p><w:r><w:t>a</w:t></w:r></w:p>" * (many // 35)),
        "tables": lambda: docx(_nested_tables(200)),
        "docx": lambda: docx(*_embedded(docx(paragraphs(GOOD * (many // len(GOOD)))))),
        "docx in docx": lambda: docx(*_embedded(docx(*_embedded(docx(*_embedded(docx(paragraphs(GOOD)))))))),
        "other parts": lambda: docx(paragraphs(GOOD), {"word/x.xml": b" " * many}),
    }
    for name, made in office.items():
        yield Case(f"docx of {name}", file("a.docx", made))
    merged = rows((GOOD, 1), after='<mergeCells><mergeCell ref="A1:XFD1048576"/></mergeCells>')
    yield Case("xlsx of one merged range", file("a.xlsx", workbook(("A", merged))))
    last = rows((GOOD, 1), first=1_048_576, after='<dimension ref="A1:XFD1048576"/>')
    yield Case("xlsx of an empty million of rows", file("a.xlsx", workbook(("A", last))))
    for inner in ("<text:p>a</text:p>", ""):
        yield Case(f"ods of one cell a billion times {inner:.1}", file("a.ods", spreadsheet(cell(inner, 10**9), 10**9)))
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 9))
    yield Case("docx of entities", file("a.docx", docx(paragraphs("&l8;"), doctype=f'<!ENTITY l0 "ha">{laughs}')))
    outer = f'<!ENTITY x SYSTEM "file://{Path(__file__).resolve()}">'
    yield Case("docx of a file outside", file("a.docx", docx(paragraphs("&x;"), doctype=outer)))
    yield Case("html of entities", file("a.html", f"<!DOCTYPE a [{laughs}]><p>&l8;</p>{GOOD}".encode()))
    streams: dict[str, Callable[[], bytes]] = {
        "one stream": lambda: pdf(b"BT /F1 12 Tf (" + b"a " * (many // 2) + b") Tj ET"),
        "operators": lambda: pdf(b"BT /F1 12 Tf " + b"(a) Tj " * (many // 70) + b"ET"),
        "nested filters": lambda: pdf(zlib.compress(zlib.compress(b" " * many)), filters="[/FlateDecode /FlateDecode]"),
    }
    for name, made in streams.items():
        yield Case(f"pdf of {name}", file("a.pdf", made))
    yield Case("parquet of one text", file("a.parquet", lambda: _parquet_of(["a" * 1000] * (many // 1000))))
    yield Case("parquet of one cell", file("a.parquet", lambda: _parquet_of(["a" * many])))


def _embedded(inner: bytes) -> tuple[str, dict[str, bytes]]:
    """Return the body and the parts of a DOCX file that shows another one a hundred times."""
    parts = {f"word/{number}.docx": inner for number in range(100)}
    links = relations(*(("aFChunk", f"{number}.docx") for number in range(100)))
    chunks = (f'<w:altChunk xmlns:r="{OFFICE}" r:id="r{number}"/>' for number in range(1, 101))
    return "".join(chunks), {"word/_rels/document.xml.rels": links.encode(), **parts}


def _nested_tables(depth: int) -> str:
    inner = "<w:tbl><w:tr><w:tc><w:p/>", "<w:p/></w:tc></w:tr></w:tbl>"
    return inner[0] * depth + paragraphs(GOOD) + inner[1] * depth


def _parquet_of(texts: list[str]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), buffer, compression="zstd")
    return buffer.getvalue()
