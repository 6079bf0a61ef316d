"""Zip archives of documents and files packed by gzip: read like a folder, with limits, everything left out named."""

from __future__ import annotations

import gzip
import io
import stat
import zipfile
from pathlib import Path

import pytest

from recovery.data.corpus import containers
from recovery.data.corpus.folder import read_corpus
from recovery.data.corpus.revisions import moved, whole_texts
from recovery.errors import CorpusError
from tests.corpus_reading import read, skipped
from tests.torture.hostile_archives import entry, zipped
from tests.torture.hostile_files import docx, paragraphs

PAGE = b"<html><head><title>Pier rota</title></head><body><p>The pier rota holds for %d days.</p></body></html>"
_LINK = (stat.S_IFLNK | 0o777) << 16


def _pages(days: int) -> bytes:
    return zipped([("OPS/rota_1.html", PAGE % days), ("OPS/Home.md", b"# Home\n\nThe harbour office opens at seven.")])


def test_an_archive_in_a_folder_is_read_like_a_folder_of_its_name(tmp_path: Path) -> None:
    members = [
        ("OPS/", b""),
        ("OPS/rota_1.html", PAGE % 7),
        ("OPS/Home.md", b"# Home\n\nThe harbour office opens at seven."),
        ("OPS/plan.docx", docx(paragraphs("The crane lifts nine tons."))),
        ("OPS/log.txt.gz", gzip.compress(b"The log is kept by the shift lead.")),
        ("OPS/attachments/photo.png", b"\x89PNG"),
        ("OPS/site.css", b"p {}"),
        ("OPS/prices.csv", b"text\nOne.\n"),
        ("OPS/bad.pdf", b"%PDF-1.4"),
        ("OPS/probes.jsonl", b"{}"),
        ("OPS/.DS_Store", b"x"),
        ("__MACOSX/OPS/Home.md", b"x"),
    ]
    corpus = read(tmp_path, export__zip=zipped(members))
    assert {d.id: d.title for d in corpus.documents} == {
        "export.zip/OPS/Home.md": "Home",
        "export.zip/OPS/log.txt.gz": "log",
        "export.zip/OPS/plan.docx": "The crane lifts nine tons.",
        "export.zip/OPS/rota_1.html": "Pier rota",
    }
    assert corpus.report.files == 4
    assert skipped(corpus) == {
        "export.zip/OPS/attachments/photo.png": "unsupported type .png",
        "export.zip/OPS/site.css": "unsupported type .css",
        "export.zip/OPS/prices.csv": "a packed table: unpack it",
        "export.zip/OPS/bad.pdf": "damaged PDF (cut short: it has no end)",
        "export.zip/OPS/probes.jsonl": "no document by its name",
        "export.zip/OPS/.DS_Store": "hidden",
        "export.zip/__MACOSX/OPS/Home.md": "hidden",
    }


def test_documents_of_an_archive_that_is_given_itself_are_named_as_in_a_folder(tmp_path: Path) -> None:
    """So that the next export, whose name has another number, holds newer versions of the same documents."""
    texts = []
    for number, days in enumerate((7, 8)):
        path = tmp_path / f"space-export-{number}.html.zip"
        path.write_bytes(_pages(days))
        corpus = read_corpus(path, held_out=0)
        assert [d.id for d in corpus.documents] == ["OPS/Home.md", "OPS/rota_1.html"]
        texts.append(whole_texts(corpus.documents))
    assert texts[0].keys() == texts[1].keys() and texts[0] != texts[1]
    assert moved(*texts) == {}
    path.write_bytes(zipped([("a.md", b"One."), ("b.png", b"x"), ("c.eml", b"no letter")]))
    assert [*skipped(read_corpus(path, held_out=0))] == [f"{path.name}/b.png", f"{path.name}/c.eml"]


def test_an_archive_in_an_archive_is_read_and_no_deeper_one(tmp_path: Path) -> None:
    third = zipped([("c.md", b"Third.")])
    part = zipped([("b.md", b"Second."), ("three.zip", third)])
    corpus = read(tmp_path, a__zip=zipped([("part-1.zip", part), ("a.md", b"First."), ("bad.zip", part[:-9])]))
    assert [d.id for d in corpus.documents] == ["a.zip/a.md", "a.zip/part-1.zip/b.md"]
    assert skipped(corpus) == {
        "a.zip/bad.zip": "damaged ZIP (BadZipFile)",
        "a.zip/part-1.zip/three.zip": "a zip archive in an archive in an archive: unpack it",
    }


def test_members_that_are_not_what_they_seem_are_named(tmp_path: Path) -> None:
    names = ("../up.md", "/etc/a.md", "..\\up2.md", "C:\\c.md", "x/../../y.md")
    good = [("a.md", b"First."), ("dir\\b.md", b"Second."), ("caf\u00e9.md", b"Third.")]
    bad = [*((entry(name), b"Out.") for name in names), ("a.md", b"Again."), (entry("link.md", _LINK), b"a.md")]
    corpus = read(tmp_path, a__zip=zipped([*good, *bad]))
    assert [d.id for d in corpus.documents] == ["a.zip/a.md", "a.zip/caf\u00e9.md", "a.zip/dir/b.md"]
    assert skipped(corpus) == {
        "a.zip/a.md": "a second file of this name in the archive",
        "a.zip/link.md": "symbolic link",
        **{f"a.zip/{name}".replace("\\", "/"): "a name that leads out of the archive" for name in names},
    }


def test_encrypted_damaged_and_unusually_packed_members_are_named(tmp_path: Path) -> None:
    data = bytearray(zipped([("a.md", b"First."), ("b.md", b"Second."), ("c.md", b"Third.")], zipfile.ZIP_STORED))
    data[data.index(b"Second.")] ^= 1
    for field, at in ((8, data.index(b"PK\x01\x02")), (10, data.rindex(b"PK\x01\x02"))):
        data[at + field] = 1 if field == 8 else 99  # encrypted; a method that does not exist
    corpus = read(tmp_path, d__md=b"Fourth.", a__zip=bytes(data), cut__zip=_pages(7)[:-30], empty__zip=b"")
    assert [d.id for d in corpus.documents] == ["d.md"]
    assert skipped(corpus) == {
        "a.zip/a.md": "protected by a password",
        "a.zip/b.md": "damaged in the archive (BadZipFile)",
        "a.zip/c.md": "packed by a method that is not supported",
        "cut.zip": "damaged ZIP (BadZipFile)",
        "empty.zip": "damaged ZIP (BadZipFile)",
    }


def test_archives_that_explode_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "_SMALL", 100_000)
    monkeypatch.setattr(containers, "_LARGEST_UNPACKED", 200_000)
    monkeypatch.setattr(containers, "_MOST_MEMBERS", 9)
    spaces, text = b" " * 150_000, bytes(range(32, 127)) * 1_000
    pages = [("a.txt", b"1" + text), ("c.png", spaces), ("d.txt", b"2" + text), ("e.txt", text)]
    gz = {"f__txt__gz": gzip.compress(spaces), "g__txt__gz": gzip.compress(b"7 " + text)}
    monkeypatch.setattr(containers, "_RATIO", 50)
    corpus = read(
        tmp_path,
        a__zip=zipped(pages, zipfile.ZIP_STORED),
        b__zip=zipped([("b.txt", spaces), ("in.zip", zipped([("c.txt", spaces)]))]),
        many__zip=zipped([(f"{n}.md", b"x") for n in range(10)]),
        **gz,
    )
    assert [d.id for d in corpus.documents] == ["a.zip/a.txt", "a.zip/d.txt", "g.txt.gz"]
    assert skipped(corpus) == {
        "a.zip/c.png": "unsupported type .png",
        "a.zip/e.txt": "an archive of over 0 MB of documents: unpack it",
        "b.zip/b.txt": "unpacks to over 50 times its size",
        "b.zip/in.zip/c.txt": "unpacks to over 50 times its size",
        "f.txt.gz": "unpacks to over 50 times its size",
        "many.zip": "an archive of more than 9 files: unpack it, and give the folder",
    }


def test_the_limit_of_a_file_is_that_of_what_it_unpacks_to(tmp_path: Path) -> None:
    text = bytes(range(32, 127)) * 200
    (tmp_path / "a.zip").write_bytes(zipped([("big.txt", text), ("small.txt", b"Small.")]))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text))
    corpus = read_corpus(tmp_path, held_out=0, limit_file_mb=0.01)
    assert [d.id for d in corpus.documents] == ["a.zip/small.txt"]
    assert set(skipped(corpus).values()) == {"unpacks to over the limit of 0.01 MB a file"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("page.md.gz", b"# Ferry\n\nThe ferry leaves at six."),
        ("page.txt.gz", b"Ferry\n=====\n\nThe ferry leaves at six."),
        ("page.html.GZ", b"<title>Ferry</title><p>The ferry leaves at six.</p>"),
        ("page.jsonl.gz", b'{"title": "Ferry", "text": "The ferry leaves at six."}\n'),
    ],
)
def test_a_file_packed_by_gzip_is_read_by_its_inner_name(name: str, content: bytes, tmp_path: Path) -> None:
    half = len(content) // 2
    (tmp_path / name).write_bytes(gzip.compress(content[:half]) + gzip.compress(content[half:]))  # as `cat` joins them
    (document,) = read_corpus(tmp_path, held_out=0).documents
    assert document.title == "Ferry" and "The ferry leaves at six." in document.text


def test_packed_files_that_are_cut_or_of_other_types_are_named(tmp_path: Path) -> None:
    packed = gzip.compress(b"The ferry leaves at six. " * 99)
    broken = packed[:-8] + bytes(8)
    files = {"a__md": b"Good.", "cut__md__gz": packed[:-9], "crc__md__gz": broken, "none__md__gz": b"plain text"}
    others = ("x__gz", "a__md__gz__gz", "b__tar__gz", "c__csv__gz", "d__zip__gz")
    corpus = read(tmp_path, **files, **dict.fromkeys(others, packed))
    assert skipped(corpus) == {
        "cut.md.gz": "damaged gzip file (EOFError)",
        "crc.md.gz": "damaged gzip file (BadGzipFile)",
        "none.md.gz": "damaged gzip file (BadGzipFile)",
        "x.gz": "unsupported type .gz",
        "a.md.gz.gz": "unsupported type .gz.gz",
        "b.tar.gz": "unsupported type .tar.gz",
        "c.csv.gz": "a packed table: unpack it",
        "d.zip.gz": "unsupported type .zip.gz",
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (zipped([]), r"^the archive .*a\.zip is empty"),
        (b"PK\x03\x04", r"a\.zip cannot be used as documents: damaged ZIP"),
        (zipped([("a.png", b"x")]), r"no readable document in .*a\.zip \(a\.zip/a\.png: unsupported type \.png\)"),
    ],
)
def test_an_archive_without_documents_is_one_line(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(CorpusError, match=message) as raised:
        read_corpus(tmp_path / "a.zip")
    assert "\n" not in str(raised.value)


def test_names_in_utf_8_without_the_mark_of_zip_are_read_as_such(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("K\u00fcche.md", "Soup.")
    data = bytearray(buffer.getvalue())
    for sign, field in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(sign) + field + 1] &= ~0x08
    corpus = read(tmp_path, a__zip=bytes(data))
    assert [(d.id, d.title) for d in corpus.documents] == [("a.zip/K\u00fcche.md", "K\u00fcche")]
