"""Workbooks as Markdown, and numbers as they are shown."""

from __future__ import annotations

import pytest

from recovery.data.corpus import xlsx_files
from recovery.data.corpus.number_formats import built_in, shown
from tests.corpus_reading import read, skipped
from tests.office_files import rows, workbook


@pytest.mark.parametrize(
    ("value", "code", "text"),
    [
        ("1234.5", "#,##0.00", "1,234.50"),
        ("12500", r"#\ ##0", "12 500"),
        ("-12500.5", "# ##0.00", "-12 500.50"),
        ("5551234567", "(000) 000-0000", "(555) 123-4567"),
        ("3", "00-00", "00-03"),
        ("5.5", '0.0" [kW]"', "5.5 [kW]"),
        ("0", '_-* #,##0_-;-* #,##0_-;_-* "-"??_-;_-@_-', "-"),
        ("0.375", "[$-409]h:mm AM/PM;@", "09:00"),
        ("0.075", "0.0%", "7.5%"),
        ("12", '0" km"', "12 km"),
        ("-3", '#,##0.00 "€";[Red]-#,##0.00 "€"', "-3.00 €"),
        ("1234.5", '_-* #,##0.00\\ [$€-407]_-;-* #,##0.00\\ [$€-407]_-', "1,234.50 €"),
        ("0", '0;-0;"none"', "none"),
        ("0.30000000000000004", "General", "0.3"),
        ("7", "0", "7"),
        ("2.675", built_in("2"), "2.68"),
        ("42", "00000", "00042"),
        ("1500000", '0.0,,"M"', "1.5M"),
        ("45000", built_in("14"), "2023-03-15"),
        ("45000.5", "dd/mm/yyyy hh:mm", "2023-03-15 12:00"),
        ("0.5", built_in("18"), "12:00"),
        ("45000", "mmm yyyy", "2023-03"),
        ("1.5", "[h]:mm", "36:00"),
        ("59", built_in("14"), "1900-02-28"),
        ("61", built_in("14"), "1900-03-01"),
        ("text", "0", "text"),
        ("5", "General", "5"),
    ],
)  # fmt: skip
def test_numbers_stand_as_their_format_shows_them(value, code, text):
    assert shown(value, code) == text


def test_sheets_are_sections_with_tables_of_what_is_shown(tmp_path):
    merged = '<mergeCells><mergeCell ref="A4:A5"/></mergeCells>'
    fees = rows(
        ("Fees of the harbour",),
        (),
        ("Dock", None, "Fee", "Since", "Paid"),
        ("North", None, '<c s="1"><f>A1*2</f><v>9</v></c>', '<c s="2"><v>45000</v></c>', '<c t="b"><v>1</v></c>'),
        (None, None, 11, '<c t="e"><v>#N/A</v></c>', '<c t="s"><v>0</v></c>'),
        (),
        ("Prices are for one night.",),
        after=merged,
    )
    made = workbook(
        ("Fees", fees),
        ("Lists", rows(("a", "b"))),
        ("Boats", rows(("Name", "Length"), ("Ada", 12))),
        texts=("a | b",),
        formats=("0.00", "d.m.yyyy"),
        hidden=("Lists",),
    )
    corpus = read(tmp_path, harbour_fees__xlsx=made)
    (found,) = corpus.documents
    assert found.title == "harbour fees"
    assert found.text == (
        "# harbour fees\n\n## Fees\n\nFees of the harbour\n\n"
        "| Dock | Fee | Since | Paid |\n| --- | --- | --- | --- |\n"
        "| North | 9.00 | 2023-03-15 | TRUE |\n| North | 11 |  | a \\| b |\n\nPrices are for one night.\n\n"
        "## Boats\n\n| Name | Length |\n| --- | --- |\n| Ada | 12 |"
    )
    assert corpus.report.notes == ("harbour_fees.xlsx: 1 hidden sheet left out",)


def test_a_header_of_two_rows_is_joined_and_tables_with_other_columns_are_apart(tmp_path):
    body = rows(
        ("Dock", "Summer", None),
        (None, "June", "July"),
        ("North", 1, 2),
        ("South", 3, 4),
        (),
        (None, None, None, "Boat", "Length"),
        (None, None, None, "Ada", 12),
        after='<mergeCells><mergeCell ref="B1:C1"/></mergeCells>',
    )
    (found,) = read(tmp_path, a__xlsx=workbook(("Sheet1", body))).documents
    assert found.text == (
        "# a\n\n| Dock | Summer June | Summer July |\n| --- | --- | --- |\n| North | 1 | 2 |\n| South | 3 | 4 |\n\n"
        "| Boat | Length |\n| --- | --- |\n| Ada | 12 |"
    )


def test_a_sheet_of_texts_is_sections_so_that_its_sentences_are_found(tmp_path):
    answer = "The harbour office opens at seven in summer. Boats without a booking wait at the outer pier."
    made = workbook(("Questions", rows(("No", "Question", "Answer"), (1, "When does it open?", answer))))
    (found,) = read(tmp_path, a__xlsx=made).documents
    assert found.text == f"# a\n\n## When does it open?\n\nNo: 1\n\n{answer}"


def test_long_sheets_are_cut_and_bad_workbooks_are_one_line_each(tmp_path, monkeypatch):
    monkeypatch.setattr(xlsx_files, "_MOST_ROWS", 3)
    long = workbook(("Data", rows(*((f"boat {n}", n) for n in range(9)))))
    unsafe = workbook(("Data", rows(("a", "b"))), doctype='<!DOCTYPE x [<!ENTITY a "ha">]>')
    corpus = read(
        tmp_path, a__xlsx=long, b__xlsx=b"PK\x03\x04 cut off", c__xlsx=workbook(("Empty", rows())), d__xlsx=unsafe
    )
    assert corpus.documents[0].text.count("boat") == 3
    assert corpus.report.notes == ("a.xlsx: of the sheet Data the first 3 rows and 200 columns are read",)
    assert skipped(corpus) == {
        "b.xlsx": "damaged XLSX (BadZipFile)",
        "c.xlsx": "no cell of the XLSX has text",
        "d.xlsx": "XLSX with a document type definition, which is not safe to read",
    }
