"""Presentations as Markdown."""

from __future__ import annotations

import pytest

from recovery.data.corpus.readers import read_file
from tests.corpus_reading import read, skipped
from tests.office_files import DRAWING, PACKAGE, paragraph, presentation, shape, slide

TABLE = (
    '<p:graphicFrame><a:graphic><a:graphicData><a:tbl><a:tblPr firstRow="1"/>'
    "<a:tr><a:tc>{0}</a:tc><a:tc>{1}</a:tc></a:tr>"
    '<a:tr><a:tc rowSpan="2">{2}</a:tc><a:tc>{3}</a:tc></a:tr>'
    '<a:tr><a:tc vMerge="1"/><a:tc>{4}</a:tc></a:tr></a:tbl></a:graphicData></a:graphic></p:graphicFrame>'
)

FRAME = (
    '<p:graphicFrame><a:graphic><a:graphicData><c:chart xmlns:c="c" xmlns:r="r" r:id="r9"/></a:graphicData>'
    "</a:graphic></p:graphicFrame>"
)


def _table(*texts: str) -> str:
    return TABLE.format(*(f"<a:txBody><a:p><a:r><a:t>{text}</a:t></a:r></a:p></a:txBody>" for text in texts))


def test_slides_are_sections_with_nested_lists_tables_and_notes(tmp_path):
    body = "\n".join(
        (
            "Forty berths",
            paragraph("Deep water", 'lvl="1"/>'),
            paragraph("Register", '><a:buAutoNum type="arabicPeriod" startAt="3"/></a:pPr>'),
            paragraph("Pay", '><a:buAutoNum type="arabicPeriod" startAt="3"/></a:pPr>'),
        )
    )
    notes = slide(shape("The office closes at noon.", 'type="body"'), shape("4", 'type="sldNum"'), tag="notes")
    made = presentation(
        slide(shape("Harbour handbook", 'type="ctrTitle"'), shape("For guests", 'type="body" idx="9"')),
        slide(shape("7", 'type="sldNum"'), shape("Berths", 'type="title"'), shape(body, 'idx="1"')),
        slide(shape("Berths", 'type="title"'), _table("Dock", "Fee | day", "North", "9", "11")),
        slide(shape("Old fees", 'type="title"'), attributes='show="0"'),
        notes={2: notes},
    )
    corpus = read(tmp_path, a__pptx=made)
    (found,) = corpus.documents
    assert found.title == "Harbour handbook"
    assert found.text == (
        "# Harbour handbook\n\nFor guests\n\n"
        "## Berths\n\n- Forty berths\n  - Deep water\n3. Register\n4. Pay\n\nThe office closes at noon.\n\n"
        "| Dock | Fee \\| day |\n| --- | --- |\n| North | 9 |\n| North | 11 |"
    )
    assert "a.pptx: 1 hidden slide left out" in corpus.report.notes


def test_text_boxes_groups_and_charts_are_read_and_a_first_short_text_is_the_title(tmp_path):
    points = '<c:pt idx="0"><c:v>{}</c:v></c:pt>'
    numbers = "<c:numRef><c:numCache><c:formatCode>{}</c:formatCode>{}</c:numCache></c:numRef>"
    dates, shares = numbers.format("mmm yy", points.format("45292")), numbers.format("0.0%", points.format("0.255"))
    chart = (
        f'<c:chartSpace xmlns:c="c"><c:chart><c:ser><c:tx><c:strRef>{points.format("Boats")}</c:strRef></c:tx>'
        f"<c:cat>{dates}</c:cat><c:val>{shares}</c:val></c:ser></c:chart></c:chartSpace>"
    )
    group = f"<p:grpSp>{shape('Boats wait <![CDATA[<]]> one hour.')}</p:grpSp>"
    link = '<Relationship Id="r9" Type="x/chart" Target="/ppt/charts/c.xml"/>'
    rels = f'<Relationships xmlns="{PACKAGE}">{link}</Relationships>'
    made = presentation(
        slide(shape("Waiting times"), group, shape("Nobody waits at night."), FRAME),
        more={"ppt/charts/c.xml": chart, "ppt/slides/_rels/slide1.xml.rels": rels},
    )
    (found,) = read(tmp_path, harbour_plan__pptx=made).documents
    assert found.title == "harbour plan"
    assert found.text == (
        "# harbour plan\n\n## Waiting times\n\nBoats wait < one hour.\n\nNobody waits at night.\n\n"
        "|  | Boats |\n| --- | --- |\n| 2024-01 | 25.5% |"
    )


MC = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'


@pytest.mark.parametrize(
    ("choice", "fallback", "text"),
    [
        ("<p:pic/>", shape("Only here."), "Only here."),
        (shape("New."), shape("Old."), "New."),
        (f"<p:grpSp>{shape('New.')}</p:grpSp>", shape("Old."), "New."),
        (shape(""), f"<p:grpSp>{shape('Only here.')}</p:grpSp>", "Only here."),
    ],
)
def test_of_two_forms_of_a_shape_the_one_with_text_is_read(choice, fallback, text):
    forms = f"<mc:AlternateContent {MC}><mc:Choice>{choice}</mc:Choice><mc:Fallback>{fallback}</mc:Fallback>"
    made = presentation(slide(shape("Fees", 'type="title"'), f"{forms}</mc:AlternateContent>"))
    assert read_file("a.pptx", made).pieces[0].text == f"# Fees\n\n{text}"


def test_charts_without_stored_values_are_counted():
    link = '<Relationship Id="r9" Type="x/chart" Target="/ppt/charts/c.xml"/>'
    more = {
        "ppt/charts/c.xml": '<c:chartSpace xmlns:c="c"><c:ser><c:val><c:f>A1:A9</c:f></c:val></c:ser></c:chartSpace>',
        "ppt/slides/_rels/slide1.xml.rels": f'<Relationships xmlns="{PACKAGE}">{link}</Relationships>',
    }
    made = presentation(slide(shape("Fees", 'type="title"'), shape("Nine."), FRAME, FRAME), more=more)
    assert read_file("a.pptx", made).notes == ["2 charts without stored values by category left out"]


def test_damaged_protected_and_unsafe_presentations_are_one_line_each(tmp_path):
    laughs = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>' + slide(shape("&b;"))
    corpus = read(
        tmp_path,
        a__pptx=b"no archive",
        b__pptx=b"\xd0\xcf\x11\xe0" + bytes(100),
        c__pptx=presentation(laughs),
        d__pptx=presentation(slide(f'<p:x xmlns:a="{DRAWING}"/>')),
        e__md=b"Boats wait one hour.",
    )
    assert skipped(corpus) == {
        "a.pptx": "damaged PPTX (BadZipFile)",
        "b.pptx": "protected by a password, or of an older format than PPTX",
        "c.pptx": "PPTX with a document type definition, which is not safe to read",
        "d.pptx": "no text in the PPTX",
    }
    assert len(corpus.documents) == 1
