"""Characters that are not seen, ligatures, and characters and glyphs without a meaning, in every format."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path

import pytest

from evals.answer_matching import contains, exact_match, token_f1
from evals.probe_building import about, also_asked, build_probes, leaked
from recovery.data.corpus.documents import Document
from recovery.data.corpus.folder import read_corpus
from recovery.data.corpus.holdout import in_common
from recovery.data.corpus.pdf_glyphs import text_of_name
from recovery.data.corpus.text import normalise, tidy, without_format, without_lost
from recovery.data.document_questions import ProbeGuard
from recovery.types import Message, Probe, Prompt
from tests.corpus_reading import read, skipped, texts
from tests.office_files import presentation, rows, shape, slide, workbook, zipped
from tests.torture.hostile_files import OF_CODE_1, docx, paragraphs, pdf

PLAIN = "The reconstruction of the traffic office took two years."
UNSEEN = "The re\u00adcon\u200bstruc\u2060tion of\ufeff the tra\ufb03c of\ufb01ce took\u200c two years."


def _letter(text: str) -> bytes:
    letter = EmailMessage()
    letter["Subject"] = "office"
    letter.set_content(text)
    return letter.as_bytes()


def _odt(text: str) -> bytes:
    names = "urn:oasis:names:tc:opendocument:xmlns"
    return zipped(
        {
            "content.xml": f'<d xmlns:office="{names}:office:1.0" xmlns:text="{names}:text:1.0"><office:body>'
            f"<office:text><text:p>{text}</text:p></office:text></office:body></d>"
        }
    )


FORMATS: dict[str, Callable[[str], bytes]] = {
    **dict.fromkeys(("txt", "md", "rst", "adoc", "mdx"), lambda text: text.encode()),
    "html": lambda text: f"<title>{text.split()[1]}</title><p>{text}</p>".replace("\u00ad", "&shy;").encode(),
    "json": lambda text: json.dumps({"text": text}).encode(),
    "jsonl": lambda text: json.dumps({"text": text}).encode(),
    "csv": lambda text: f"text\n{text}\n".encode(),
    "ipynb": lambda text: json.dumps({"nbformat": 4, "cells": [{"cell_type": "markdown", "source": [text]}]}).encode(),
    "docx": lambda text: docx(paragraphs(text)),
    "xlsx": lambda text: workbook(("A", rows(("text", "n"), (text, 1)))),
    "pptx": lambda text: presentation(slide(shape("office", 'type="title"'), shape(text))),
    "odt": _odt,
    "eml": _letter,
}


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_is_not_seen_leaves_the_text_and_ligatures_are_written_out(tmp_path: Path, suffix: str) -> None:
    dirty, clean = (
        read_corpus(_written(tmp_path / name, suffix, FORMATS[suffix](text)), held_out=0)
        for name, text in (("dirty", UNSEEN), ("clean", PLAIN))
    )
    assert PLAIN in dirty.documents[0].text
    assert [(d.title, d.text) for d in dirty.documents] == [(d.title, d.text) for d in clean.documents]
    assert dirty.report.notes == clean.report.notes  # nothing is lost


def _written(folder: Path, suffix: str, data: bytes) -> Path:
    folder.mkdir()
    (folder / f"a.{suffix}").write_bytes(data)
    return folder


@pytest.mark.parametrize("suffix", [suffix for suffix in FORMATS if suffix not in ("docx", "xlsx", "pptx", "odt")])
def test_control_characters_are_dropped_counted_and_named(tmp_path: Path, suffix: str) -> None:
    corpus = read_corpus(
        _written(tmp_path / "a", suffix, FORMATS[suffix]("The town counts tra\x00c at an e\x01cient o\x1ece.")),
        held_out=0,
    )
    assert "The town counts trac at an ecient oce." in corpus.documents[0].text
    assert f"a.{suffix}: dropped 3 control characters" in corpus.report.notes


@pytest.mark.parametrize(
    ("page", "text", "count"),
    [
        ("tra&#0;c e&#1;cient o&#x1E;ce &#x7f;", "trac ecient oce", 4),
        ("don&#146;t &#x81;go", "don’t go", 1),
        ("a&#10;b&#9;c &#65;", "a b c A", 0),
    ],
)
def test_references_to_control_characters_are_those(tmp_path: Path, page: str, text: str, count: int) -> None:
    corpus = read(tmp_path, a__html=f"<p>{page}</p>")
    assert corpus.documents[0].text == text
    assert sum("dropped" in note for note in corpus.report.notes) == bool(count)
    assert not count or f"a.html: dropped {count} control character{'s' * (count > 1)}" in corpus.report.notes


@pytest.mark.parametrize(
    ("given", "tidied"),
    [
        ("recon\u00ad\nstruction", "reconstruction"),  # hyphenated at the end of a line
        ("a title\u00ad\n\nA text", "a title\n\nA text"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"),
        ("\u0915\u094d\u200d\u0937", "\u0915\u094d\u200d\u0937"),
        (
            "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f\u200d\U0001f525",
            "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f\u200d\U0001f525",
        ),
        ("Auf\u200clage, \u0434\u200d\u043e\u043c", "Auflage, \u0434\u043e\u043c"),
        ("\u2066Berlin\u2069 \u200eLund", "\u2066Berlin\u2069 \u200eLund"),  # marks of direction stay
        ("N\x08NA\x08AM\x08ME, _\x08a, \x1b[1;31mred\x1b[0m", "NAME, a, red"),
        ("one\x0btwo\x85three", "one\ntwo\nthree"),
        ("\ufb00 \ufb01 \ufb02 \ufb03 \ufb04 \ufb05 \ufb06", "ff fi fl ffi ffl st st"),
    ],
)
def test_tidy_of_odd_characters(given: str, tidied: str) -> None:
    assert tidy(given) == tidied == tidy(tidied)


def test_lost_characters_are_counted_until_they_are_dropped() -> None:
    assert without_lost(tidy("a\x00b \x07\n\x01\n\nc")) == ("ab\n\nc", 3, 0)
    assert without_lost("plain") == ("plain", 0, 0)


def test_binary_files_are_none_of_text_with_a_control_character(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        a__txt=b"The tra\x00c is counted.",
        b__txt=b"\x00\x01\x02\x03 text \x00\x00\x00\x00",
        c__txt=b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + b"words " * 99,
        d__txt=("Été " * 20_000).encode()[:70_001] + b"\x00\xa9",
    )
    assert "The trac is counted." in texts(found)
    assert {"b.txt", "c.txt"} <= skipped(found).keys()


def test_all_format_characters_are_ignored_where_texts_are_compared() -> None:
    formats = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) == "Cf"]
    variations = [chr(code) for code in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), 0x180B, 0x180F, 0x34F)]
    assert without_format("a".join(["", *formats, *variations, ""])) == "a" * (len(formats) + len(variations) + 1)
    others = [chr(code) for code in range(0x10000) if unicodedata.category(chr(code))[0] in "LNPSZ"]
    assert without_format("".join(others)) == "".join(others)


ODD = "doc\u00adumen\u200dta\u200etion\ufe0f"


@pytest.mark.parametrize("odd", [ODD, "\u2067documentation\u2069", "documentati\u2060on", "\u200cdocumentation"])
def test_answers_match_with_and_without_what_is_not_seen(odd: str) -> None:
    assert exact_match("Documentation.", [odd]) and exact_match(odd, ["documentation"])
    assert contains(f"It is the {odd} of it", ["documentation"]) and token_f1(odd, ["the documentation"]) == 1
    assert normalise(odd) == "documentation"
    assert not exact_match("documentations", [odd])


def test_probes_are_guarded_against_texts_with_what_is_not_seen() -> None:
    question = f"Which set of papers is called {ODD} by the harbour office of Vorna?"
    plain = normalise(question).replace("vorna", "Vorna?")
    probe = Probe("p", "question", question, (ODD,), passage=f"The {ODD} is kept in the old house by the pier.")
    assert leaked([probe], [f"{plain} It is the documentation."]) == [probe]
    asked = Prompt("q", (Message(role="user", content=plain),), "knowledge", answer="documentation")
    assert also_asked([probe], [asked]) == [probe]
    assert ProbeGuard([probe]).has_wording(plain)
    clean = "The documentation is kept in the old house by the pier."
    assert about([probe], [Document("a", "", clean, "a")]) == [probe]
    assert (
        about([probe], [Document("a", "", clean, "a")], [Document("b", "", clean.replace("pier", "pi\u200eer"), "b")])
        == []
    )


def test_the_same_page_with_and_without_soft_hyphens_is_one_document(tmp_path: Path) -> None:
    page = " ".join(f"The reconstruction of pier {n} took {n * 3} years of administration." for n in range(30))
    soft = page.replace("struction", "struc\u00adtion").replace("istra", "is\u200btra")
    marked = page.replace("recon", "\u200erecon").replace("years", "years\ufe0f")
    corpus = read(tmp_path, a__md=page, b__md=soft, c__txt=marked)
    assert skipped(corpus) == {"b.md": "the same text as a.md", "c.txt": "the same text as a.md"}
    assert in_common(page, marked) == 1


def test_probes_hold_nothing_that_is_not_seen(tmp_path: Path) -> None:
    table = "| setting | default |\n|---|---|\n" + "".join(f"| `docu\u00admen{n}` | {n} |\n" for n in range(30))
    probes = build_probes(read(tmp_path, a__md=f"# Set\u00adtings\n\n{table}"))
    assert probes
    assert not any("\u00ad" in text for p in probes for text in (p.question, *p.answers, *p.choices, p.passage))


WORDS = (
    b"BT /F1 12 Tf 72 700 Td 16 TL (The tra\\001c on the bridge and an e\\001cient o\\001ce) Tj T* (of the town) Tj ET"
)
WITH_NAME = b"/BaseFont /ABCDEF+Serif /Encoding << /Type /Encoding /Differences [ 1 /%s ] >>"
MAPPED = b"/BaseFont /Helvetica /Encoding /WinAnsiEncoding /ToUnicode 6 0 R"


@pytest.mark.parametrize(
    ("font", "more", "read_as"),
    [
        (WITH_NAME % b"f_f_i", (), "ffi"),
        (WITH_NAME % b"f_f_i.liga", (), "ffi"),
        (WITH_NAME % b"u0066_uni00660069", (), "ffi"),
        (WITH_NAME % b"ffi", (), "ffi"),  # which PDFium knows
        (MAPPED, (OF_CODE_1 % b"FB03",), "ffi"),
        (MAPPED, (OF_CODE_1 % b"006600660069",), "ffi"),
        (WITH_NAME % b"g12", (), ""),
        (b"/BaseFont /Helvetica /Encoding /WinAnsiEncoding", (), ""),
        (b"/BaseFont /Helvetica /Encoding << /Differences 9 0 R >>", (), ""),
        *((MAPPED, (OF_CODE_1 % code,), "") for code in (b"0000", b"0001", b"0002", b"E001", b"FFFD", b"FFFF")),
    ],
)
def test_glyphs_of_a_pdf_are_read_by_their_names_or_counted(
    tmp_path: Path, font: bytes, more: tuple[bytes, ...], read_as: str
) -> None:
    pytest.importorskip("pypdfium2")
    corpus = read(tmp_path, a__pdf=pdf(WORDS, font=font, more=more))
    assert corpus.documents[0].text.replace("\n", " ") == (
        f"The tra{read_as}c on the bridge and an e{read_as}cient o{read_as}ce of the town"
    )
    lost = () if read_as else ("a.pdf: dropped 3 glyphs that the PDF gives no character for",)
    assert corpus.report.notes == lost


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (b"00AD", "The reconstruction of two piers goes on; reconstruction took Years."),
        (b"200B", "The reconstruction of two piers goes on; reconstruction took Years."),
        (b"2060", "The reconstruction of two piers goes on; recon\nstruction took Years."),
    ],
)
def test_places_to_break_a_word_in_a_pdf(tmp_path: Path, code: bytes, text: str) -> None:
    pytest.importorskip("pypdfium2")
    page = b"BT /F1 12 Tf 72 700 Td 16 TL (The recon\\001struction of two piers goes on; recon\\001) Tj T* "
    page += b"(struction took \\001Years.) Tj ET"
    (found,) = read(tmp_path, a__pdf=pdf(page, font=MAPPED, more=(OF_CODE_1 % code,))).documents
    assert found.text == text


@pytest.mark.parametrize(
    ("name", "text"),
    [("f_f_i", "ffi"), ("T_h.swash", "Th"), ("uni00660069", "fi"), ("u1F600", "\U0001f600"), ("s_t", "st")]
    + [(name, "") for name in ("g12", ".notdef", "", "_", "cid_7", "uniD800", "u110000", "glyph1", "f__i")],
)
def test_names_of_glyphs(name: str, text: str) -> None:
    assert text_of_name(name) == text
