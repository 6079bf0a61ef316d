"""PDF and DOCX documents, and what is said without the packages that read them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recovery.data.corpus import docx_files, pdf_layout, readers
from recovery.data.corpus.documents import Corpus
from recovery.data.corpus.readers import Read, UnreadableError, read_file
from recovery.data.corpus.text import tidy
from tests.corpus_reading import read, skipped
from tests.office_files import OFFICE, relations
from tests.torture import hostile_files

WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def _docx(tmp_path: Path, add: Callable[[Any, Callable[[str], Any]], None], **others: bytes) -> Corpus:
    """Write a document with python-docx and read it; ``add`` gets it and a parser of XML."""
    docx = pytest.importorskip("docx")
    document = docx.Document()
    add(document, docx.oxml.parse_xml)
    document.save(tmp_path / "a.docx")
    return read(tmp_path, **others)


def _markdown(*rows: str) -> str:
    """Return a table of rows of cells that are divided by bars."""
    first, *others = rows
    lines = [f"| {first} |", f"|{' --- |' * len(first.split('|'))}", *(f"| {row} |" for row in others)]
    return "\n".join(lines)


def test_docx_gives_paragraphs_and_tables(tmp_path):
    def add(document, _):
        document.core_properties.title = "Harbour fees"
        document.add_paragraph("A berth costs nine crowns.")
        cells = document.add_table(rows=1, cols=2).rows[0].cells
        cells[0].text, cells[1].text = "Dock", "4"
        document.add_paragraph("Pay at the gate.")

    corpus = _docx(tmp_path, add, b__docx=b"not an archive")
    assert corpus.documents[0].title == "Harbour fees"
    assert corpus.documents[0].text == (
        "Harbour fees\n\nA berth costs nine crowns.\n\n|  |  |\n| --- | --- |\n| Dock | 4 |\n\nPay at the gate."
    )
    assert skipped(corpus)["b.docx"].startswith("damaged DOCX")


def test_docx_keeps_headings_lists_and_inserted_words_but_nothing_deleted(tmp_path):
    def add(document, xml):
        document.add_heading("Fees", level=2)
        paragraph = document.add_paragraph("A boat costs ")
        for part in (
            f"<w:del {WORD}><w:r><w:delText>12</w:delText></w:r></w:del>",
            f"<w:ins {WORD}><w:r><w:t>45</w:t></w:r></w:ins>",
            f"<w:moveFrom {WORD}><w:r><w:t> moved</w:t></w:r></w:moveFrom>",
            f'<w:r {WORD}><w:t xml:space="preserve"> euros a day.</w:t></w:r>',
        ):
            paragraph._p.append(xml(part))
        paragraph._p.addnext(xml(f"<w:sdt {WORD}><w:sdtContent>{_p('Pay ahead.')}</w:sdtContent></w:sdt>"))
        table = document.add_table(rows=2, cols=3)
        table.rows[0].cells[0].merge(table.rows[0].cells[2]).text = "Docks"
        for cell, text in zip(table.rows[1].cells, ("North", "", "4"), strict=True):
            cell.text = text
        document.add_paragraph("Ask the master.")._p.get_or_add_pPr().get_or_add_numPr()

    (found,) = _docx(tmp_path, add).documents
    assert found.title == "Fees"
    assert found.text == (
        "## Fees\n\nA boat costs 45 euros a day.\n\nPay ahead.\n\n"
        "Docks\n\n|  |  |  |\n| --- | --- | --- |\n| North |  | 4 |\n\n- Ask the master."
    )


def test_docx_lists_are_nested_and_numbered_by_their_styles(tmp_path):
    def add(document, _):
        document.add_heading("Handbook", 0)
        numbers, bullets = "List Number", "List Bullet"
        for text, style in (("Register", numbers), ("Pay", numbers), ("North dock", bullets)):
            document.add_paragraph(text, style=style)
        document.add_paragraph("Deep water", style="List Bullet 2")
        document.add_paragraph("pay --now\npay --later", style="macro")

    assert _docx(tmp_path, add).documents[0].text == (
        "# Handbook\n\n1. Register\n2. Pay\n- North dock\n  - Deep water\n\n```\npay --now\npay --later\n```"
    )


def test_docx_tables_have_their_header_and_merged_cells_are_in_each_row(tmp_path):
    def add(document, _):
        table = document.add_table(rows=3, cols=3)
        lines = (("Dock", "Berths", "Fee"), ("North", "12", "9"), ("", "14", "11"))
        for row, line in zip(table.rows, lines, strict=True):
            for cell, text in zip(row.cells, line, strict=True):
                cell.text = text
        table.cell(1, 0).merge(table.cell(2, 0))
        document.add_table(rows=1, cols=1).cell(0, 0).text = "Ring twice."

    table = _markdown("Dock | Berths | Fee", "North | 12 | 9", "North | 14 | 11")
    assert _docx(tmp_path, add).documents[0].text == f"{table}\n\nRing twice."


def test_docx_text_boxes_powers_and_formulas_are_read_and_what_is_struck_out_is_not(tmp_path):
    formula = (
        '<m:oMath xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"><m:f><m:num><m:r><m:t>a+b</m:t>'
        "</m:r></m:num><m:den><m:r><m:t>2</m:t></m:r></m:den></m:f></m:oMath>"
    )

    def add(document, xml):
        paragraph = document.add_paragraph("It takes 30 m")
        paragraph.add_run("2").font.superscript = True
        paragraph.add_run(", not 20").font.strike = True
        paragraph.add_run(", or ")
        paragraph._p.append(xml(formula))
        paragraph._p.append(xml(_boxed(_p("Closed on Sundays.")).replace("<w:r>", f"<w:r {WORD}>", 1)))
        document.sections[0].header.paragraphs[0].text = "Confidential"
        document.add_paragraph("Berths ... 4", style=document.styles.add_style("toc 1", 1))

    assert _docx(tmp_path, add).documents[0].text == "It takes 30 m^2, or (a+b)/2\n\nClosed on Sundays."


def test_docx_footnotes_follow_their_paragraph():
    text = hostile_files.paragraphs("Children pay half.")
    note = f'<w:footnotes {WORD}><w:footnote w:id="2">{text}</w:footnote></w:footnotes>'
    links = relations(("footnotes", "footnotes.xml")).encode()
    body = '<w:p><w:r><w:t>A berth costs nine crowns.</w:t><w:footnoteReference w:id="2"/></w:r></w:p>'
    data = hostile_files.docx(body, {"word/footnotes.xml": note.encode(), "word/_rels/document.xml.rels": links})
    assert read_file("a.docx", data).pieces[0].text == "A berth costs nine crowns.\n\nChildren pay half."


def _pdf(*pages: str | bytes) -> bytes:
    """A PDF of one page for each text or list of operators, by hand to avoid a dependency on a PDF writer."""
    numbers = range(6, 6 + 2 * len(pages), 2)
    kids = " ".join(f"{number} 0 R" for number in numbers)
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        *(
            f"<< /Type /Font /Subtype /Type1 /BaseFont /{name} /Encoding /WinAnsiEncoding >>".encode()
            for name in ("Helvetica", "Helvetica-Bold", "Courier")
        ),
    ]
    for number, page in zip(numbers, pages, strict=True):
        stream = page if isinstance(page, bytes) else f"BT /F1 12 Tf 72 700 Td ({page}) Tj ET".encode()
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {number + 1} 0 R "
            "/Resources << /Font << /F1 3 0 R /F2 4 0 R /F3 5 0 R >> >> >>".encode(),
            b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        ]
    return hostile_files.pdf_of(objects)


def _lines(*lines: str, left: int = 72, top: int = 700) -> bytes:
    """Operators of lines of text; one that begins with "#" is large, with "!" bold, with "`" in a fixed font."""
    fonts = {"#": "/F2 20", "!": "/F2 10", "`": "/F3 10"}
    drawn = []
    for number, line in enumerate(lines):
        mark = line[:1] if line[:1] in fonts else ""
        text = line.removeprefix(mark).replace("(", r"\(").replace(")", r"\)")
        if text:
            drawn.append(f"BT {fonts.get(mark, '/F1 10')} Tf 1 0 0 1 {left} {top - 13 * number} Tm ({text}) Tj ET")
    return "\n".join(drawn).encode("cp1252")


def _pdf_text(*pages: str | bytes) -> str:
    pytest.importorskip("pypdfium2")
    return read_file("a.pdf", _pdf(*pages)).pieces[0].text


def test_pdf_gives_its_text(tmp_path):
    pytest.importorskip("pypdfium2")
    corpus = read(tmp_path, a__pdf=_pdf("The ferry leaves at noon."), b__pdf=b"%PDF-1.4 cut off", c__pdf=_pdf(" "))
    assert [d.text for d in corpus.documents] == ["The ferry leaves at noon."]
    assert skipped(corpus)["b.pdf"].startswith("damaged PDF")
    assert skipped(corpus)["c.pdf"] == "no text in the PDF (scanned pages?)"


@pytest.mark.parametrize(
    ("split", "joined"),
    [("the har-\nbour", "the harbour"), ("state-of-the-\nart", "state-of-the-art"), ("von Stra-\nße", "von Straße")]
    + [(text, text) for text in ("from 10-\n20 o'clock", "2024-\n2025", "vitamin B-\n12", "North-\nSouth")],
)
def test_words_split_in_a_pdf_are_joined_and_numbers_are_not(split, joined):
    assert _pdf_text(_lines(*split.split("\n"))) == joined


def test_running_headers_and_numbers_of_pages_are_left_out_and_sentences_across_pages_are_whole():
    pages = [
        "Harbour Handbook, Release 2\nBoats pay at the gate. The office\n4 Chapter 1. Fees",
        "Harbour Handbook, Release 2\nopens at seven. Guests of the hotel pay\nChapter 1. Fees 5",
        "Harbour Handbook, Release 2\nnothing.\n12\n6 Chapter 1. Fees",
        "Harbour Handbook, Release 2\nThe tide turns twice.\n12\nChapter 1. Fees 7",
        "Harbour Handbook, Release 2\nDogs are welcome.\n12\n8 Chapter 1. Fees",
        "Chapter 1. Fees 9",
    ]
    assert _pdf_text(*(_lines(*page.split("\n")) for page in pages)) == (
        "Boats pay at the gate. The office\nopens at seven. Guests of the hotel pay\nnothing.\n12\n\n"
        "The tide turns twice.\n12\n\nDogs are welcome.\n12"
    )


def test_a_header_that_names_each_section_is_left_out_where_others_stand():
    names = ["Fees", "Fees", "Fees", "Berths", "Dogs"]
    pages = [_lines(name, top=760) + b"\n" + _lines(f"Rule {'abcde'[n]} holds.") for n, name in enumerate(names)]
    assert _pdf_text(*pages) == "\n\n".join(f"Rule {letter} holds." for letter in "abcde")


def test_a_short_pdf_keeps_all_lines_and_a_word_across_pages_is_joined():
    pages = [("Fees", "Nine crowns for the har-"), ("bour. Pay now.", "Fees"), (), ("7",)]
    assert _pdf_text(*(_lines(*page) for page in pages)) == "Fees\nNine crowns for the harbour. Pay now.\nFees\n\n7"


def test_a_pdf_keeps_headings_lists_code_and_paragraphs():
    lines = "#Harbour||Fees . . . . . . . 4||!Fees|Boats pay at|the gate.||The office is open."
    lines += "||\u2022 Register|\u2022 Pay||`pay --now|`  --later"
    assert _pdf_text(_lines(*lines.split("|"))) == (
        "# Harbour\n\n## Fees\n\nBoats pay at\nthe gate.\n\nThe office is open.\n\n- Register\n- Pay\n\n"
        "```\npay --now\n  --later\n```"
    )


def test_bullets_that_are_drawn_begin_items():
    """Browsers print the signs of a list as small discs."""
    disc = "{0} {1} m {0} {2} {3} {2} {3} {1} c {3} {4} {0} {4} {0} {1} c f"
    discs = "\n".join(disc.format(60, y, y + 2.5, 64, y - 2.5) for y in (703, 677)).encode()
    page = _lines("Register at the", "gate", "Pay at the office") + b"\n" + discs
    assert _pdf_text(page) == "- Register at the gate\n- Pay at the office"
    far = disc.format(20, 703, 705.5, 24, 700.5).encode()
    assert _pdf_text(_lines("Register at the", "gate") + b"\n" + far) == "Register at the\ngate"


def test_two_columns_of_a_pdf_are_read_one_after_the_other():
    page = _lines("Boats pay at", "the gate, guests") + b"\n" + _lines("pay nothing.", "Dogs pay half.", left=320)
    assert _pdf_text(page) == "Boats pay at\nthe gate, guests\npay nothing.\nDogs pay half."
    apart = _lines("Boats pay at", "the gate of", "the pier") + b"\n" + _lines("Dogs pay half.", left=320)
    text = "Boats pay at\nthe gate of\nthe pier\n\nDogs pay half."
    assert _pdf_text(apart) == text, "a column begins with a paragraph"


def test_tables_of_a_pdf_are_tables_with_rules_and_without():
    cells = {(74, 690): "!Dock", (174, 690): "!Fee", (74, 670): "North", (174, 670): "nine", (174, 658): "crowns"}
    cells |= {(74, 640): "South", (174, 640): "ten crowns"}
    rules = b"".join(b"72 %d m 272 %d l S\n" % (y, y) for y in (700, 682, 652, 632))
    rules += b"".join(b"%d 632 m %d 700 l S\n" % (x, x) for x in (72, 172, 272))
    ruled = rules + b"\n".join(_lines(text, left=x, top=y) for (x, y), text in cells.items())
    assert _pdf_text(ruled) == _markdown("Dock | Fee", "North | nine crowns", "South | ten crowns")
    bare = _rows(("Dock", "Berths", "Fee"), ("North", "12", "9"), ("South", "14", "11"))
    assert _pdf_text(bare) == _markdown("Dock | Berths | Fee", "North | 12 | 9", "South | 14 | 11")


def _rows(*rows: tuple[str, ...], top: int = 700) -> bytes:
    """Operators of a table without rules; see ``_lines``."""
    cells = ((n, c, text) for n, row in enumerate(rows) for c, text in enumerate(row))
    return b"\n".join(_lines(text, left=72 + 120 * c, top=top - 13 * n) for n, c, text in cells)


_PRICES = [("Dock", "Where it is", "Fee"), ("North", "by the gate", "9"), ("South", "at the pier", "11")]


@pytest.mark.parametrize(
    ("last", "below"),
    [
        ([("Total", "of both", "20")], ""),
        ([("Total", "of both", "20")], "All fees are for one night and are paid at the gate."),
        ([("", "of both", "20")], "Fees are in crowns."),
        ([("!Total", "!of both", "!20")], ""),
        ([("#Total", "#of both", "#20")], ""),  # PDFium takes it for the end of the row above
        ([("", "", ""), ("Total", "of both", "20")], ""),
        ([("Total", "of both", "20"), ("", "and more", "")], "Fees are in crowns."),
    ],
)
def test_a_table_without_rules_keeps_its_last_row(last: list[tuple[str, ...]], below: str) -> None:
    page = _rows(*_PRICES, *last) + b"\n" + _lines(below, top=700 - 13 * (len(last) + 4))
    cells = [" ".join(text.lstrip("#!") for text in column if text) for column in zip(*last, strict=True)]
    table = _markdown(*map(" | ".join, [*_PRICES, cells]))
    assert _pdf_text(page) == table + (f"\n\n{below}" if below else "")


def test_a_cell_of_a_table_without_rules_goes_on_below_and_a_paragraph_beside_a_term_is_text() -> None:
    wrapped = [("Dock", "Where it is", "Fee"), ("North", "by the cus-", "9"), ("", "toms house", "")]
    assert _pdf_text(_rows(*wrapped, ("South", "at the pier", "11"))) == (
        _markdown("Dock | Where it is | Fee", "North | by the customs house | 9", "South | at the pier | 11")
    )
    terms = [("Dock", "A place"), ("", "for boats"), ("", "that stay"), ("", "a night."), ("Fee", "What it costs.")]
    assert "|" not in _pdf_text(_rows(*terms))


def test_the_last_row_of_a_table_on_each_of_several_pages_is_no_footer() -> None:
    rows = [(f"item {n}", "crowns", f"{7 * n}") for n in range(20)]
    foot = "Prices of 2026, page"
    pages = [_rows(*rows[5 * n : 5 * n + 5]) + b"\n" + _lines(f"{foot} {n + 3} of 9", top=50) for n in range(4)]
    table = "".join(f"\n| {' | '.join(row)} |" for row in rows)
    assert _pdf_text(*pages) == f"|  |  |  |\n| --- | --- | --- |{table}"


def test_a_pdf_that_was_cut_short_or_explodes_is_refused(monkeypatch):
    pytest.importorskip("pypdfium2")
    whole = _pdf("The ferry leaves at noon.")
    with pytest.raises(UnreadableError, match="cut short"):
        read_file("a.pdf", whole[:-6])
    monkeypatch.setattr(pdf_layout, "_OBJECTS_MOST", 3)
    with pytest.raises(UnreadableError, match="more than 3 objects"):
        _pdf_text(b"BT /F1 12 Tf " + b"(a) Tj " * 4 + b"ET")


def test_a_pdf_with_a_password_says_so():
    pytest.importorskip("pypdfium2")
    keys = b"/O (%s) /U (%s)" % (b"o" * 32, b"u" * 32)  # no password opens it
    lock = b"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 %s >> /ID [(a) (a)]" % keys
    locked = _pdf("The ferry leaves at noon.").replace(b"/Root 1 0 R", b"/Root 1 0 R " + lock)
    with pytest.raises(UnreadableError, match="PDF protected by a password"):
        read_file("a.pdf", locked)


def test_halves_of_surrogate_pairs_are_joined_or_replaced():
    """Some fonts give them; no tokenizer takes them and no file can hold them."""
    assert tidy("a\ud83d\ude00 b\ud835 \udc9c\r\n") == "a\U0001f600 b\ufffd \ufffd"


def test_without_the_docs_extra_pdf_is_skipped_with_an_install_hint_and_docx_is_read(tmp_path):
    (tmp_path / "a.pdf").write_bytes(_pdf("Text."))
    (tmp_path / "b.docx").write_bytes(hostile_files.docx(hostile_files.paragraphs("Pay at the gate.")))
    (tmp_path / "c.txt").write_text("Readable.")
    program = (
        "import sys; sys.modules['pypdfium2'] = sys.modules['docx'] = None\n"
        "from pathlib import Path; from recovery.data.corpus.folder import read_corpus\n"
        f"print('\\n'.join(read_corpus(Path({str(tmp_path)!r})).report.lines()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert "skipped a.pdf: reading PDF needs pip install 'recovery[docs]'" in done.stdout
    assert "read 2 files" in done.stdout


def test_inserted_symbols_are_characters():
    signs = "".join(f'<w:sym w:font="{font}" w:char="{char}"/>' for font, char in SYMBOLS)
    body = f'<w:p><w:r><w:t xml:space="preserve">At least </w:t>{signs}<w:t>5 kW.</w:t></w:r></w:p>'
    assert read_file("a.docx", hostile_files.docx(body)).pieces[0].text == "At least ≥±✓5 kW."


SYMBOLS = (("Symbol", "F0B3"), ("Symbol", "00B1"), ("Wingdings", "F0FC"), ("Webdings", "F0FC"), ("Symbol", "none"))

MC = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
GONE = '<w:del w:id="1" w:author="a"/>'


def _p(inner: str, mark: str = "") -> str:
    """Return a paragraph of a text or runs; ``mark`` is what a revision did to its end."""
    runs = inner if inner.startswith("<") else f'<w:r><w:t xml:space="preserve">{inner}</w:t></w:r>'
    return f"<w:p><w:pPr><w:rPr>{mark}</w:rPr></w:pPr>{runs}</w:p>"


def _either(choice: str, fallback: str) -> str:
    return (
        f'<mc:AlternateContent {MC}><mc:Choice Requires="wps">{choice}</mc:Choice>'
        f"<mc:Fallback>{fallback}</mc:Fallback></mc:AlternateContent>"
    )


def _boxed(*paragraphs: str) -> str:
    """Return a run with a text box as Word writes it: in the form of today, and as VML for older programs."""
    box = f"<w:txbxContent>{''.join(paragraphs)}</w:txbxContent>"
    return f"<w:r>{_either(f'<w:drawing>{box}</w:drawing>', f'<w:pict>{box}</w:pict>')}</w:r>"


def _row(*cells: str, properties: str = "") -> str:
    return f"<w:tr>{properties}{''.join(f'<w:tc>{cell}</w:tc>' for cell in cells)}</w:tr>"


def _field(instruction: str, result: str | None = None) -> str:
    """Return a field; without a result it has not been updated yet."""
    begin, middle, end = (f'<w:r><w:fldChar w:fldCharType="{one}"/></w:r>' for one in ("begin", "separate", "end"))
    shown = "" if result is None else f"{middle}<w:r><w:t>{result}</w:t></w:r>"
    return f"{begin}<w:r><w:instrText>{instruction}</w:instrText></w:r>{shown}{end}"


def _docx_read(body: str, **parts: bytes) -> Read:
    """Return what is read of a body; ``parts`` are documents within it, with the ids r1, r2, ..."""
    names = {name.replace("__", "."): data for name, data in parts.items()}
    links = {"word/_rels/document.xml.rels": relations(*(("aFChunk", name) for name in names)).encode()}
    return read_file("a.docx", hostile_files.docx(body, links | {f"word/{n}": data for n, data in names.items()}))


EMPTY = "|  |  |\n| --- | --- |"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (_p(_boxed(_p("Out."), _p(_boxed(_p("In."))))), "Out.\n\nIn."),
        (_p(_boxed(_p(_boxed(_p(_boxed(_p("Deep."))))))), "Deep."),
        (_p(_boxed(_p("One."), _p(_boxed(_p("Two.")) + _boxed(_p("Three."))))), "One.\n\nTwo.\n\nThree."),
        (f"<w:tbl>{_row(_p(_boxed(_p(_boxed(_p('In.'))))), _p('A'))}</w:tbl>", f"{EMPTY}\n|  | A |\n\nIn."),
        (_p(f"<w:r>{_either('<w:other/>', '<w:t>☕</w:t>')}</w:r>"), "☕"),
        (_either("<w:p/>", _p("Only here.")), "Only here."),
        (_either(_p("New."), _p("Old.")), "New."),
        (f"<w:tbl>{_row(_either('', _p('Cell')), _p('A'))}</w:tbl>", f"{EMPTY}\n| Cell | A |"),
    ],
)
def test_docx_boxes_within_boxes_are_read_once_and_of_two_forms_of_a_content_the_one_with_text(body, text):
    assert _docx_read(body).pieces[0].text == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (_p("A berth ", GONE) + _p("costs nine."), "A berth costs nine."),
        (_p("A ", GONE) + _p("b ", GONE) + _p("", GONE) + _p("c."), "A b c."),
        (_p("A ", GONE.replace("del", "moveFrom")) + _p("b.") + _p("Two."), "A b.\n\nTwo."),
        (_p("A ", GONE.replace("del", "ins")) + _p("b."), "A\n\nb."),
        (_p("Last ", GONE) + f"<w:tbl>{_row(_p('A ', GONE) + _p('b', GONE), _p('c'))}</w:tbl>" + _p("End", GONE),
         f"Last\n\n{EMPTY}\n| A b | c |\n\nEnd"),
        (_p(f"<w:r><w:t>Noted </w:t></w:r>{_boxed(_p('In ', GONE) + _p('box.'))}", GONE) + _p("here."),
         "Noted here.\n\nIn box."),
        (f"<w:tbl>{_row(_p('x'), _p('y'), properties=f'<w:trPr>{GONE}</w:trPr>')}{_row(_p('a'), _p('b'))}</w:tbl>",
         f"{EMPTY}\n| a | b |"),
    ],
)  # fmt: skip
def test_docx_paragraphs_whose_end_a_revision_deleted_go_on_in_the_next_one(body, text):
    assert _docx_read(body).pieces[0].text == text


EMBEDDED = f'<w:altChunk xmlns:r="{OFFICE}" r:id="r1"/>'
INNER = hostile_files.docx(_p("Dogs pay half."))


@pytest.mark.parametrize(
    ("parts", "text", "notes"),
    [
        ({"a__htm": b"<html><h2>Fees</h2><p>Nine <b>crowns</b>.</p>"}, "## Fees\n\nNine crowns.", []),
        ({"a__txt": "Fünf.\r\n\r\nSechs.".encode()}, "Fünf.\n\nSechs.", []),
        ({"a__docx": INNER}, "Dogs pay half.", []),
        ({"a__mht": b"MIME-Version: 1.0\nContent-Type: text/html\n\n<p>As a page.</p>"}, "As a page.", []),
        ({"a__rtf": rb"{\rtf1 Lost.}"}, "", ["1 embedded document left out (a.rtf: RTF, which is not read)"]),
        ({"a__docx": b"PK no"}, "", ["1 embedded document left out (a.docx: damaged (BadZipFile))"]),
        ({}, "", ["1 embedded document left out (without a name: not in the file)"]),
        (
            {"a__docx": hostile_files.docx(_p("Outer.") + EMBEDDED)},
            "Outer.",
            ["a.docx: 1 embedded document left out (without a name: in an embedded document)"],
        ),
    ],
)  # fmt: skip
def test_docx_documents_within_it_are_read_in_their_place_or_counted(parts, text, notes):
    body = _p("Before.") + EMBEDDED + f"<w:tbl>{_row(EMBEDDED + _p('a'), _p('b'))}</w:tbl>"
    found = _docx_read(body, **parts)
    table = f"{EMPTY}\n| a | b |"
    assert (found.pieces[0].text, found.notes) == ("\n\n".join(filter(None, ["Before.", text, table])), notes)


def test_docx_that_holds_itself_and_one_that_explodes_end(monkeypatch):
    monkeypatch.setattr(docx_files, "_MOST_EMBEDDED", 10)
    found = _docx_read(_p("Before.") + EMBEDDED, a__txt=b"x" * 11)
    assert found.notes == ["1 embedded document left out (a.txt: over 10 characters)"]
    monkeypatch.setattr(readers, "_LARGEST_XML", 10_000)
    found = _docx_read(_p("Before.") + EMBEDDED, a__docx=hostile_files.docx(_p("x" * 20_000)))
    assert found.notes == ["1 embedded document left out (a.docx: a DOCX file that unpacks to 0 MB)"]


@pytest.mark.parametrize(
    ("body", "blank"),
    [
        (_field(" =SUM(ABOVE) "), 1),
        (_field(" =SUM(ABOVE) ", "5"), 0),
        (_field(" =SUM(ABOVE) ", ""), 1),
        ('<w:fldSimple w:instr=" =2+3 "/><w:fldSimple w:instr=" SEQ Table "/>', 2),
        ('<w:fldSimple w:instr=" =2+3 "><w:r><w:t>5</w:t></w:r></w:fldSimple>', 0),
        (_field(' XE "Fees" ') + _field(" PAGE ") + _field(' TOC \\o "1-3" '), 0),
        (_field(" =2*" + "</w:instrText></w:r>" + _field(" REF fee ") + "<w:r><w:instrText>", "6"), 0),
        (f"<w:del>{_field(' DATE ')}</w:del>", 0),
    ],
)
def test_docx_fields_without_a_stored_result_are_counted(body, blank):
    found = _docx_read(_p(f"<w:r><w:t>Total: </w:t></w:r>{body}"))
    told = {1: ["1 field has no stored result and is blank"], 2: ["2 fields have no stored result and are blank"]}
    assert [note.partition(":")[0] for note in found.notes] == told.get(blank, [])


@pytest.mark.parametrize(("bold", "header"), [(0, "| 12 | 9 |"), (1, "|  |  |"), (None, "|  |  |")])
def test_a_bold_first_row_of_a_docx_table_is_its_header(bold, header):
    def cell(text: str, row: int) -> str:
        return _p(f"<w:r><w:rPr>{'<w:b/>' if row == bold else ''}</w:rPr><w:t>{text}</w:t></w:r>")

    lines = [_row(*(cell(text, row) for text in texts)) for row, texts in enumerate([("12", "9"), ("14", "11")])]
    assert _docx_read(f"<w:tbl>{''.join(lines)}</w:tbl>").pieces[0].text.startswith(header)


def test_a_line_of_code_close_below_text_of_a_pdf_is_text():
    pytest.importorskip("pypdfium2")
    lines = ("Type the command", "`pay --now", "and wait for it.")
    page = b"\n".join(_lines(line, top=700 - 11 * number) for number, line in enumerate(lines))
    assert _pdf_text(page) == "Type the command\npay --now\nand wait for it."
