"""EPUB books, OpenDocument texts and letters as Markdown."""

from __future__ import annotations

from email import policy
from email.message import EmailMessage

from recovery.data.corpus.readers import read_file
from tests.corpus_reading import read, skipped
from tests.office_files import zipped

CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OPS/book.opf"/></rootfiles></container>'
)
PACKAGE = (
    '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
    "<dc:title>The harbour</dc:title></metadata><manifest>"
    '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>'
    '<item id="b" href="text/b.xhtml" media-type="application/xhtml+xml"/>'
    '<item id="a" href="text/a%20one.xhtml" media-type="application/xhtml+xml"/></manifest>'
    '<spine><itemref idref="nav"/><itemref idref="a"/><itemref idref="b"/></spine></package>'
)


def _page(body: str) -> str:
    return (
        '<?xml version="1.0"?><!DOCTYPE html><html xmlns="http://www.w3.org/1999/xhtml"><head><title/>'
        f'<script src="x.js"/></head><body>{body}</body></html>'
    )


def _book(**more: str | bytes) -> bytes:
    parts = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": CONTAINER,
        "OPS/book.opf": PACKAGE,
        "OPS/nav.xhtml": _page("<nav><a href='x'>Tides</a></nav>"),
        "OPS/text/a one.xhtml": _page('<h1><a id="x"/>Tides</h1><p>The tide turns twice.</p>'),
        "OPS/text/b.xhtml": _page("<h1>Fees</h1><ul><li>Nine crowns</li></ul>"),
    }
    return zipped({**parts, **{name.replace("__", "/"): text for name, text in more.items()}})


def test_books_are_read_in_the_order_of_their_pages(tmp_path):
    (found,) = read(tmp_path, a__epub=_book()).documents
    assert found.title == "The harbour"
    assert found.text == "# The harbour\n\n# Tides\n\nThe tide turns twice.\n\n# Fees\n\n- Nine crowns"


def test_protected_and_damaged_books_are_one_line_each(tmp_path):
    def lock(*names: str) -> str:
        entries = "".join(f'<EncryptedData><CipherReference URI="{name}"/></EncryptedData>' for name in names)
        return f'<encryption xmlns="urn:x">{entries}</encryption>'

    pages = "OPS/text/a%20one.xhtml", "OPS/text/b.xhtml"
    corpus = read(
        tmp_path,
        a__epub=_book(**{"META-INF__encryption.xml": lock(*pages)}),
        b__epub=_book(**{"META-INF__encryption.xml": lock("OPS/font.otf")}),
        c__epub=b"PK\x03\x04",
        d__epub=zipped({"mimetype": "application/epub+zip"}),
    )
    assert [d.id for d in corpus.documents] == ["b.epub"]
    assert skipped(corpus) == {
        "a.epub": "EPUB protected by DRM",
        "c.epub": "damaged EPUB (BadZipFile)",
        "d.epub": "damaged EPUB (KeyError)",
    }


def test_a_part_that_is_no_text_is_named(tmp_path):
    letter = b"Subject: Fees\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: base64\n\n/wAB/gAC\n"
    corpus = read(tmp_path, a__epub=_book(**{"OPS__text__a one.xhtml": b"\x00\x01\xff" * 99}), b__eml=letter)
    assert [d.text for d in corpus.documents] == ["# The harbour\n\n# Fees\n\n- Nine crowns"]
    assert any("1 page left out: binary, not text" in note for note in corpus.report.notes)
    assert skipped(corpus) == {"b.eml": "binary, not text"}


ODT = """<office:document-content xmlns:office="o" xmlns:text="t" xmlns:table="b" xmlns:style="s" xmlns:draw="d">
<office:automatic-styles>
<style:style style:name="P1" style:family="paragraph" style:parent-style-name="Preformatted_20_Text"/>
<style:style style:name="T1" style:family="text"><style:text-properties style:text-position="super 58%"/></style:style>
<style:style style:name="T2" style:family="text"><style:text-properties style:text-position="-33% 58%"/></style:style>
<text:list-style style:name="L1"><text:list-level-style-number text:level="1" style:num-format="1"/>
<text:list-level-style-bullet text:level="2"/></text:list-style></office:automatic-styles>
<office:body><office:text>
<text:tracked-changes><text:deletion><text:p>Old fees.</text:p></text:deletion></text:tracked-changes>
<text:h text:outline-level="2">Berths</text:h>
<text:p>Forty<text:s text:c="2"/>berths<text:note><text:note-citation>1</text:note-citation><text:note-body>
<text:p>Ten are for guests.</text:p></text:note-body></text:note> are free, 10<text:span
text:style-name="T1">6</text:span> l<text:span text:style-name="T2">2</text:span>.</text:p>
<text:list text:style-name="L1"><text:list-item><text:p>Register</text:p><text:list><text:list-item>
<text:p>at the office</text:p></text:list-item></text:list></text:list-item>
<text:list-item><text:p>Pay</text:p></text:list-item></text:list>
<text:p text:style-name="P1">pay --now</text:p><text:p text:style-name="P1">pay --later</text:p>
<table:table><table:table-header-rows><table:table-row>
<table:table-cell><text:p>Dock</text:p></table:table-cell><table:table-cell><text:p>Fee</text:p></table:table-cell>
</table:table-row></table:table-header-rows><table:table-row>
<table:table-cell table:number-rows-spanned="2"><text:p>North</text:p></table:table-cell>
<table:table-cell><text:p>9</text:p></table:table-cell></table:table-row><table:table-row>
<table:covered-table-cell/><table:table-cell><text:p>11</text:p></table:table-cell></table:table-row></table:table>
</office:text></office:body></office:document-content>"""


def test_opendocument_texts_keep_headings_lists_code_and_tables(tmp_path):
    corpus = read(tmp_path, harbour__odt=zipped({"content.xml": ODT}), b__odt=b"PK", c__odt=zipped({"x": ""}))
    (found,) = corpus.documents
    assert found.text == (
        "# harbour\n\n## Berths\n\nForty  berths are free, 10^6 l2.\n\nTen are for guests.\n\n"
        "1. Register\n   - at the office\n2. Pay\n\n```\npay --now\npay --later\n```\n\n"
        "| Dock | Fee |\n| --- | --- |\n| North | 9 |\n| North | 11 |"
    )
    assert skipped(corpus) == {"b.odt": "damaged ODT (BadZipFile)", "c.odt": "damaged ODT (KeyError)"}


def test_letters_give_their_subject_and_text_and_count_attachments(tmp_path):
    letter = EmailMessage()
    letter["Subject"], letter["From"] = "Fees of the härbour", "master@harbour.example"
    letter.set_content("A berth costs nine crowns.\n\n-- \nThe master\n")
    letter.add_alternative("<p>A berth costs <b>nine</b> crowns.</p>", subtype="html")
    letter.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="fees.pdf")
    assert read_file("b.eml", letter.as_bytes(policy=policy.SMTP)).pieces[0].text.endswith("nine crowns."), "CRLF"
    corpus = read(tmp_path, a__eml=letter.as_bytes())
    (found,) = corpus.documents
    assert (found.title, found.text) == ("Fees of the härbour", "# Fees of the härbour\n\nA berth costs nine crowns.")
    assert corpus.report.notes == ("a.eml: 1 attachment left out",)


def test_letters_without_a_plain_part_are_read_as_html_and_wrong_encodings_are_guessed(tmp_path):
    page = EmailMessage()
    page["Subject"] = "Tides"
    page.set_content("<h2>Today</h2><p>The tide turns twice.</p>", subtype="html")
    wrong = b"Subject: Caf\xe9\nContent-Type: text/plain; charset=nothing\n\nThe caf\xe9 opens at seven.\n"
    assert read_file("a.eml", page.as_bytes()).pieces[0].text == "# Tides\n\n## Today\n\nThe tide turns twice."
    assert "The café opens at seven." in read_file("b.eml", wrong).pieces[0].text
    assert skipped(read(tmp_path, c__eml=b"no letter at all", d__md=b"Text.")) == {
        "c.eml": "not a letter: it has no headers"
    }
