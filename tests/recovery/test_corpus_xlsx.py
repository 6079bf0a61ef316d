"""Workbooks as Markdown, and numbers as they are shown."""

from __future__ import annotations

import io
import zipfile

import pytest

from recovery.data.corpus import xlsx_files
from recovery.data.corpus.readers import read_file
from recovery.data.corpus.xlsx_files import built_in, shown
from tests.corpus_reading import read, skipped
from tests.office_files import cell, rows, spreadsheet, workbook, zipped


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
        ("-1.5", "[hh]:mm:ss", "-36:00:00"),
        ("1.5", "[h]", "36"),
        ("0.0625", "[mm]:ss", "90:00"),
        ("0.0625", "[m]", "90"),
        ("0.001", "[s]", "86"),
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


SUM = "<c><f>SUM(B2:B3)</f></c>"


def _told(count: int) -> list[str]:
    cells = "1 cell holds a formula" if count == 1 else f"{count} cells hold formulas"
    return [f"{cells} without a stored value, blank here: open and save the file in a spreadsheet"] if count else []


@pytest.mark.parametrize(
    ("lines", "table", "blanks"),
    [
        ([("item", "amount"), ("rope", 2), ("total", SUM)], "| rope | 2 |\n| total |  |", 1),
        ([("item", "amount"), ("rope", 2), ("total", None)], "| rope | 2 |\n| total |  |", 0),
        ([("item", "amount"), ("rope", SUM), ("anchor", SUM)], "| rope |  |\n| anchor |  |", 2),
        ([("item", "amount"), ("rope", 2), ("anchor", 3), (), ("total", SUM)],
         "| rope | 2 |\n| anchor | 3 |\n| total |  |", 1),
        ([("item", "amount"), ("rope", '<c><f t="shared" ref="B2:B3" si="0">A1</f><v>1</v></c>'),
          ("anchor", '<c><f t="shared" si="0"/></c>')], "| rope | 1 |\n| anchor |  |", 1),
        ([("item", "amount"), ("rope", '<c><f t="array" ref="B2:B2">A1</f><v></v></c>'), ("anchor", 3)],
         "| rope |  |\n| anchor | 3 |", 1),
        ([("item", "late", "days"), ("rope", '<c t="b"><f>TRUE()</f></c>', 1)], "| rope |  | 1 |", 1),
        ([("item", "name", "days"), ("rope", '<c t="str"><f>A1</f></c>', 1)], "| rope |  | 1 |", 1),
        ([("item", "name", "days"), ("rope", '<c t="str"><f>IF(A1,"","x")</f><v></v></c>', 1)], "| rope |  | 1 |", 0),
        ([("item", "name", "days"), ("rope", '<c t="e"><f>1/0</f><v>#DIV/0!</v></c>', 1)], "| rope |  | 1 |", 0),
    ],
)  # fmt: skip
def test_formulas_without_a_stored_value_are_counted_and_leave_the_header(lines, table, blanks):
    found = read_file("a.xlsx", workbook(("Data", rows(*lines))))
    names = lines[0]
    header = f"| {' | '.join(names)} |\n|{' --- |' * len(names)}"
    assert (found.pieces[0].text, found.notes) == (f"# a\n\n{header}\n{table}", _told(blanks))


def test_a_row_with_a_formula_without_a_value_is_a_row_of_its_table_and_a_workbook_of_them_says_why_it_is_empty(
    tmp_path,
):
    corpus = read(
        tmp_path,
        a__xlsx=workbook(("Data", rows(("a", SUM), ("bb", 2)))),
        b__xlsx=workbook(("Data", rows((SUM,), (SUM,)))),
        c__ods=spreadsheet(cell(attributes='table:formula="of:=1"', repeated=2)),
    )
    assert corpus.documents[0].text == "# a\n\n|  |  |\n| --- | --- |\n| a |  |\n| bb | 2 |"
    assert corpus.report.notes == (f"a.xlsx: {_told(1)[0]}",)
    assert skipped(corpus) == {
        "b.xlsx": f"no cell of the XLSX has text; {_told(2)[0]}",
        "c.ods": f"no cell of the ODS has text; {_told(2)[0]}",
    }


FORMULA = 'table:formula="of:=SUM([.B2])"'
VALUE = f'{FORMULA} office:value-type="float" office:value="5"'
EMPTY = f'{FORMULA} office:value-type="string" office:string-value=""'
DAY = 'office:value-type="date" office:date-value="2026-11-28T10:30:00"'


@pytest.mark.parametrize(
    ("last", "shown", "blanks"),
    [
        (cell(attributes=FORMULA), "", 1),
        (cell("5 kg", attributes=VALUE), "5 kg", 0),
        (cell(attributes=VALUE), "5", 0),
        (cell(attributes=EMPTY), "", 0),
        (cell("<office:annotation><text:p>Note</text:p></office:annotation>", attributes=FORMULA), "", 1),
        (cell("28.11.26", attributes=DAY), "2026-11-28 10:30:00", 0),
    ],
)
def test_spreadsheets_of_opendocument_are_read_as_workbooks(last, shown, blanks):
    made = spreadsheet(
        cell("item") + cell("amount"), cell("rope") + cell(2), 2, cell("total") + last + cell(repeated=1000),
        cell(repeated=1024), 10**6, cell("Prices are for one night."), names=("Fees", "Lists"), hidden=("Lists",),
    )  # fmt: skip
    found = read_file("fees.ods", made)
    table = f"| item | amount |\n| --- | --- |\n| rope | 2 |\n| rope | 2 |\n| total | {shown} |"
    assert found.pieces[0].text == f"# fees\n\n{table}\n\nPrices are for one night."
    assert found.notes == [*_told(blanks), "1 hidden sheet left out"]


def test_tables_of_opendocument_texts_count_their_formulas_and_locked_files_are_called_so(tmp_path):
    sheet = spreadsheet(cell("item") + cell("fee"), cell("rope") + cell(attributes=FORMULA))
    with zipfile.ZipFile(io.BytesIO(sheet)) as archive:
        text = zipped(
            {"content.xml": archive.read("content.xml").decode().replace("office:spreadsheet", "office:text")}
        )
    lock = "<manifest><file-entry><encryption-data/></file-entry></manifest>"
    corpus = read(tmp_path, a__odt=text, b__odt=zipped({"META-INF/manifest.xml": lock, "content.xml": "?"}))
    assert corpus.report.notes == (f"a.odt: {_told(1)[0]}",)
    assert skipped(corpus) == {"b.odt": "protected by a password"}


@pytest.mark.parametrize(
    "made",
    [
        workbook(("A", rows(("a", 1), after='<mergeCells><mergeCell ref="A1:XFD1048576"/></mergeCells>'))),
        workbook(("A", rows(("a", 1), first=1_048_576, after='<dimension ref="A1:XFD1048576"/>'))),
    ],
)
def test_huge_ranges_of_a_workbook_cost_nothing(made):
    assert len(read_file("a.xlsx", made).pieces[0].text) < 100


@pytest.mark.parametrize(
    ("rows_", "cells"),
    [((cell("a", 10**9), 2), 400), ((cell("a"), 10**9), 10_000), ((cell("a" * 10**6, 99), 99), 2 * 10**6)],
)
def test_a_cell_that_is_repeated_a_billion_times_is_cut(rows_, cells):
    found = read_file("a.ods", spreadsheet(*rows_))
    assert found.pieces[0].text[5:].count("a") == cells
    assert found.notes == ["of the sheet Sheet1 the first 10,000 rows and 200 columns are read"]


@pytest.mark.parametrize(("code", "text"), [('0" kg"', "0 kg"), ("0.00", "0.00"), ('??" kg"', "kg")])
def test_nothing_is_shown_unless_its_format_has_places_alone(code, text):
    assert shown("0", code) == text
