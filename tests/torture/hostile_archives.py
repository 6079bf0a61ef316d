"""Hostile archives: documents, exports of wikis and evidence bundles are zip files, packages are wheels and tarballs,
tables are packed, a text may be packed by gzip.

All other archives are no documents, whatever they are called.
"""

from __future__ import annotations

import bz2
import contextlib
import functools
import gzip
import io
import lzma
import random
import stat
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping

import pyarrow as pa

from db.json_values import json_safe
from db.reviews import shown_left
from evals.acceptance import judge_all
from evals.acceptance_rules import parse_rule
from evals.measurement import evidence_of
from pipelines.reports.bundle import pack
from tests.torture.hostile_files import (
    GOOD,
    Case,
    arrow,
    beside,
    docx,
    docx_parts,
    file,
    flipped,
    paragraphs,
    parquet,
)
from tests.torture.numbers import spoiled
from tests.torture.zip_fields import mutations

NAMES = (
    "../../secret.txt", "/etc/passwd", "..\\..\\secret.txt", "C:\\x.xml", "word/../../../x.xml", ".", "word/", "/",
    "a\0b.xml", "x" * 65_000, "\x1b[2J\n.xml", "\u202ex.xml", "word/document.xml/x", "WORD/DOCUMENT.XML", "\u00e9.xml",
)  # fmt: skip
TARGETS = ("../../../secret.txt", "/../secret.txt", "file:///etc/passwd", "http://127.0.0.1:9/x", "", "#", "word")
_LINK = (stat.S_IFLNK | 0o777) << 16
Entry = tuple["str | zipfile.ZipInfo", bytes]


def archives(rng: random.Random, large: bool) -> Iterator[Case]:
    """Yield the cases; ``large`` ones have a hundred thousand entries."""
    whole = docx(paragraphs(GOOD))
    for what, data in mutations(whole, "word/document.xml"):
        yield Case(f"docx, {what}", file("a.docx", data))
    yield from _office(100_000 if large else 2_000)
    yield from _called()
    yield from _exports(rng, 200_000 if large else 2_000)
    yield from _tables(rng)
    yield from _bundles(rng, 100_000 if large else 20_000)
    yield from _packages()


def zipped(entries: Iterable[Entry], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip file; two entries may have one name."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in entries:
            archive.writestr(name, data, method)
    return buffer.getvalue()


def entry(name: str, mode: int = 0) -> zipfile.ZipInfo:
    """Return an entry with its name as it is: the constructor cuts it at NUL and turns separators round."""
    entry = zipfile.ZipInfo()
    entry.filename, entry.external_attr = name, mode
    return entry


def _office(many: int) -> Iterator[Case]:
    """DOCX files whose entries have other names, kinds and numbers than they should."""
    parts = docx_parts(paragraphs(GOOD))
    main = "word/document.xml"
    for name in NAMES:
        data = zipped([*parts.items(), (entry(name), b"<x/>")])
        yield Case(f"docx with {name!r:.30}", beside(file("a.docx", data)))
    for target in TARGETS:
        for mode in ("", " TargetMode='External'"):
            links = parts["_rels/.rels"].replace(b'"word/document.xml"', f'"{target}"{mode}'.encode())
            yield Case(f"docx of {target!r}{mode}", file("a.docx", zipped((parts | {"_rels/.rels": links}).items())))
    others = {name: data for name, data in parts.items() if name != main}
    made: dict[str, Iterable[Entry]] = {
        "of a link": [*others.items(), (entry(main, _LINK), b"../../secret.txt")],
        "of a link to a folder": [(entry("word", _LINK), b".."), *parts.items()],
        "of a folder": [*others.items(), (f"{main}/", b"")],
        "of a document twice": [*parts.items(), (main, docx_parts(paragraphs("Another."))[main])],
        "of types twice": [("[Content_Types].xml", b"<Types/>"), *parts.items()],
        "without a document": others.items(),
        "without types": [one for one in parts.items() if one[0] != "[Content_Types].xml"],
        "of nothing": [],
        "within a docx": [*others.items(), (main, docx(paragraphs(GOOD)))],
        "beside a docx": [*parts.items(), ("word/a.docx", docx(paragraphs(GOOD)))],
        "of an empty document": (parts | {main: b""}).items(),
    }
    for what, entries in made.items():
        yield Case(f"docx {what}", file("a.docx", zipped(entries)))
    for method, name in ((zipfile.ZIP_BZIP2, "bzip2"), (zipfile.ZIP_LZMA, "lzma"), (zipfile.ZIP_STORED, "nothing")):
        yield Case(f"docx packed by {name}", file("a.docx", zipped(parts.items(), method)))
        yield Case(f"docx of spaces packed by {name}", file("a.docx", functools.partial(_spaces, parts, main, method)))
    crowd = [(f"word/{number}.xml", b"<x/>") for number in range(many)]
    yield Case("docx of many entries", file("a.docx", lambda: zipped([*parts.items(), *crowd])))
    yield Case("docx of many entries of one name", file("a.docx", lambda: zipped([*parts.items(), *crowd[:1] * many])))


def _spaces(parts: Mapping[str, bytes], main: str, method: int) -> bytes:
    spaces = parts[main].replace(b"The ferry", b" " * 50_000_000)
    return zipped({**parts, main: spaces}.items(), method)


def _kinds(name: str, data: bytes) -> dict[str, bytes]:
    """Return a file in each kind of archive."""
    inner = zipped([(name, data)])
    for _ in range(9):
        inner = zipped([("inner.zip", inner)])
    deep = gzip.compress(data)
    for _ in range(9):
        deep = gzip.compress(deep)
    return {
        "zip": zipped([(name, data), ("../../secret.txt", data)]),
        "zip.zip": inner,
        "tar": _tar([(name, data)]),
        "tar.gz": gzip.compress(_tar([("../../secret.txt", data)])),
        "gz": gzip.compress(data),
        "gz.gz": deep,
        "bz2": bz2.compress(data),
        "xz": lzma.compress(data),
        "zst": pa.Codec("zstd").compress(data, asbytes=True),
    }


def _called() -> Iterator[Case]:
    """Archives called what they are, alone and beside a good file, and called documents."""
    for suffix, data in _kinds("a.md", GOOD.encode()).items():
        yield Case(f"archive.{suffix}", beside(file(f"a.{suffix}", data)))
        yield Case(f"archive.{suffix} itself", file(f"a.{suffix}", data), target=f"a.{suffix}")
        for called in (".txt", ".jsonl", ".csv", ".parquet", ".docx", ".pdf", ".arrow"):
            yield Case(f"{suffix} called {called}", beside(file(f"a{called}", data)))
    bomb = lambda: gzip.compress(b" " * 300_000_000, 1)  # noqa: E731
    for called in (".csv", ".jsonl", ".parquet"):
        yield Case(f"gz of spaces called {called}", beside(file(f"a{called}", bomb)))


def _exports(rng: random.Random, many: int) -> Iterator[Case]:
    """Zip archives of pages, alone and beside a good file, and texts packed by gzip."""
    pages: list[Entry] = [("OPS/a.md", GOOD.encode()), ("OPS/b.html", b"<p>The crane lifts nine tons.</p>")]
    for what, data in mutations(zipped(pages), "OPS/a.md"):
        yield Case(f"export, {what}", beside(file("a.zip", data)))
        yield Case(f"export, {what}, itself", file("a.zip", data), target="a.zip")
    for name in NAMES:
        data = zipped([*pages, (entry(f"{name:.65000}.md"), b"Not in its place."), (entry(name), GOOD.encode())])
        yield Case(f"export with {name!r:.30}", beside(file("a.zip", data)))
    inner = zipped(pages)
    crowd: list[Entry] = [(f"{number}.md", b"A boat.") for number in range(many)]
    links = [(entry(name, _LINK), b"../../secret.txt") for name in ("l.md", "OPS")]
    devices = [(entry("d.md", stat.S_IFCHR << 16), b"x"), (entry("p.md", stat.S_IFIFO << 16), b"")]
    made: dict[str, Callable[[], bytes]] = {
        "of links": lambda: zipped([*pages, *links]),
        "of devices": lambda: zipped([*pages, *devices]),
        "of a page twice": lambda: zipped([*pages, *pages]),
        "of a page that is a folder": lambda: zipped([("OPS/a.md/", b""), *pages, ("OPS/a.md/c.md", b"A boat.")]),
        "in an export": lambda: zipped([("a.zip", inner), *pages, ("b.zip", inner[:-20]), ("c.zip", b"PK")]),
        "in exports": lambda: functools.reduce(lambda data, _: zipped([("a.zip", data), *pages]), range(9), inner),
        "of spaces": lambda: zipped([*pages, ("s.txt", b" " * 50_000_000)]),
        "of many spaces": lambda: zipped([(f"{n}.txt", b" " * 9_000_000) for n in range(150)]),
        "of exports of spaces": lambda: zipped(
            [(f"{n}.zip", zipped([("s.md", b" " * 9_000_000)])) for n in range(150)]
        ),
        "of many pages": lambda: zipped(crowd),
        "of many pages of one name": lambda: zipped(crowd[:1] * many),
        "of documents": lambda: zipped(
            [("a.docx", docx(paragraphs(GOOD))), ("b.epub", inner), ("c.parquet", parquet())]
        ),
    }
    for what, make in made.items():
        yield Case(f"export {what}", beside(file("a.zip", make)))
        yield Case(f"export {what} itself", file("a.zip", make), target="a.zip")
    packed = gzip.compress(GOOD.encode())
    for what, data in {
        "cut": packed[: rng.randrange(1, len(packed))],
        "flipped": flipped(packed, rng, 3),
        "with another behind it": packed * 2,
        "with more behind it": packed + b"\0" * 99 + b"x",
        "empty": gzip.compress(b""),
        "without a text": gzip.compress(b"\x00\x01\x02"),
        "and nothing": b"",
    }.items():
        yield Case(f"text by gzip, {what}", beside(file("a.md.gz", data)))
    yield Case("text by gzip, of spaces", beside(file("a.md.gz", lambda: gzip.compress(b" " * 300_000_000, 1))))


def _tables(rng: random.Random) -> Iterator[Case]:
    """Tables packed by each method, whole, cut and with flipped bytes."""
    made: dict[str, Callable[[str], bytes]] = {".parquet": parquet, ".arrow": arrow}
    for suffix, make in made.items():
        for codec in ("gzip", "brotli", "snappy", "zstd", "lz4") if suffix == ".parquet" else ("zstd", "lz4"):
            data = make(codec)
            yield Case(f"{codec}{suffix}", file(f"a{suffix}", data))
            yield Case(f"{codec} cut{suffix}", file(f"a{suffix}", data[: rng.randrange(1, len(data))]))
            for number in range(3):
                yield Case(f"{codec} flipped {number}{suffix}", file(f"a{suffix}", flipped(data, rng, 3)))


def _bundles(rng: random.Random, many: int) -> Iterator[Case]:
    """Evidence bundles, which `recover report --verify` reads."""
    decision = json_safe(judge_all([parse_rule("ifeval >= 0.9*base")], evidence_of({}, 1)))
    judgement = {"cycle": 1, "evaluations": {}, "decision": decision}
    vote = {"seed": 0, "reviewer": "ada", "item": "1", "on_left": shown_left(0, "ada", "1")}
    files = {"evaluations.json": {}, "cycle.json": {"votes": [vote], "labels": []}, "judgement.json": judgement}
    whole = pack(files, {})

    def case(what: str, data: bytes | Callable[[], bytes]) -> Case:
        return Case(f"bundle {what}", file("a.zip", data), "bundle", "a.zip")

    yield case("whole", whole)
    for what, data in mutations(whole, "judgement.json"):
        yield case(what, data)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        found: Mapping[str, bytes] = {name: archive.read(name) for name in archive.namelist()}
    for name in NAMES:
        yield case(f"with {name!r:.30}", zipped([*found.items(), (entry(name), b"{}")], zipfile.ZIP_STORED))
        yield case(f"with {name!r:.30} in its manifest", pack(files | {name: {}}, {}))
    for number in range(30):
        with contextlib.suppress(ValueError):  # what is no JSON is not packed
            name = rng.choice(sorted(files))
            yield case(f"spoiled {number}, {name}", pack(files | {name: spoiled(files[name], rng)}, {}))
    yield case("packed", zipped(found.items()))
    yield case("twice the same", zipped([*found.items(), *found.items()], zipfile.ZIP_STORED))
    yield case("of a link", zipped([*found.items(), (entry("a.json", _LINK), b"/etc/passwd")], zipfile.ZIP_STORED))
    yield case("of many", lambda: zipped([(f"a/{n}.json", b"{}") for n in range(many)], zipfile.ZIP_STORED))
    for what, text in {"deep": b"[" * 100_000, "no text": b"\xff", "NaN": b"NaN", "digits": b"9" * 100_000}.items():
        yield case(f"manifest {what}", zipped([("manifest.json", text)], zipfile.ZIP_STORED))
    for suffix, data in _kinds("manifest.json", b"{}").items():
        yield case(f"that is a {suffix}", data)


def _tar(members: Iterable[tuple[str, bytes]], links: Iterable[tuple[str, bytes, str]] = ()) -> bytes:
    """Return a tarball; a link is its name, its type and where it leads."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tarball:
        for name, kind, target in links:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            tarball.addfile(member)
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tarball.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _packages() -> Iterator[Case]:
    """Packages with names and links that lead out of the folder into which a part of them is unpacked."""
    good = ("package/a.md", GOOD.encode())
    bad = b"Not in its place."
    names = ("package/../../../stray", "/tmp/stray", "../stray", "package//../stray", "package/./a/../../../stray")
    for name in names:
        yield Case(f"wheel with {name}", file("a.whl", zipped([good, (entry(name), bad)])), "package", "a.whl")
        yield Case(f"tarball with {name}", file("a.tgz", _tar([good, (name, bad)])), "package", "a.tgz")
    for what, kind in {"link": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE}.items():
        for target in ("../../secret.txt", "/etc/passwd", ".."):
            data = _tar([good, ("package/out/stray", bad)], [("package/out", kind, target)])
            yield Case(f"tarball with a {what} to {target}", file("a.tgz", data), "package", "a.tgz")
    device = _tar([good], [("package/pipe", tarfile.FIFOTYPE, ""), ("package/device", tarfile.CHRTYPE, "")])
    yield Case("tarball with devices", file("a.tgz", device), "package", "a.tgz")
    linked = zipped([good, (entry("package/out", _LINK), b"../../secret.txt")])
    yield Case("wheel with a link", file("a.whl", linked), "package", "a.whl")
