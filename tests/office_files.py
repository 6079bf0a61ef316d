"""Writes small Office, OpenDocument and EPUB files, part by part as their programs do."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
SLIDES = "http://schemas.openxmlformats.org/presentationml/2006/main"
SHEETS = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def zipped(parts: Mapping[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def relations(*links: tuple[str, str]) -> str:
    """Return the relations of a part: pairs of a type and a target, with the ids r1, r2, ..."""
    entries = (
        f'<Relationship Id="r{number}" Type="{OFFICE}/{type}" Target="{target}"/>'
        for number, (type, target) in enumerate(links, start=1)
    )
    return f'<Relationships xmlns="{PACKAGE}">{"".join(entries)}</Relationships>'


def shape(text: str, kind: str = "", before: str = "") -> str:
    """Return a shape of a slide; each line of ``text`` is a paragraph, or XML of one. ``kind`` is its placeholder."""
    place = f"<p:ph {kind}/>" if kind else ""
    lines = "".join(
        line if line.startswith("<a:p>") else f"<a:p><a:r><a:t>{line}</a:t></a:r></a:p>" for line in text.split("\n")
    )
    return (
        f'<p:sp><p:nvSpPr><p:cNvPr id="1" name="x"/><p:nvPr>{place}</p:nvPr></p:nvSpPr>'
        f"<p:txBody>{before}{lines}</p:txBody></p:sp>"
    )


def paragraph(text: str, properties: str = "") -> str:
    return f"<a:p><a:pPr {properties}<a:r><a:t>{text}</a:t></a:r></a:p>"


def slide(*shapes: str, tag: str = "sld", attributes: str = "") -> str:
    return (
        f'<p:{tag} xmlns:p="{SLIDES}" xmlns:a="{DRAWING}" {attributes}><p:cSld><p:spTree>{"".join(shapes)}'
        f"</p:spTree></p:cSld></p:{tag}>"
    )


MASTER = slide(tag="sldMaster").replace(
    "</p:cSld>", '</p:cSld><p:txStyles><p:bodyStyle><a:lvl1pPr><a:buChar char="•"/></a:lvl1pPr>'
    '<a:lvl2pPr><a:buChar char="–"/></a:lvl2pPr></p:bodyStyle></p:txStyles>',
)  # fmt: skip


def presentation(*slides: str, notes: dict[int, str] | None = None, more: dict[str, str] | None = None) -> bytes:
    """Return a presentation; ``notes`` are the pages of notes by the number of their slide, from 1."""
    ids = "".join(f'<p:sldId id="{255 + n}" r:id="r{n}"/>' for n in range(1, len(slides) + 1))
    parts = {
        "_rels/.rels": relations(("officeDocument", "ppt/presentation.xml")),
        "ppt/presentation.xml": f'<p:presentation xmlns:p="{SLIDES}" xmlns:r="{OFFICE}"><p:sldIdLst>{ids}'
        "</p:sldIdLst></p:presentation>",
        "ppt/_rels/presentation.xml.rels": relations(
            *(("slide", f"slides/slide{n}.xml") for n in range(1, len(slides) + 1))
        ),
        "ppt/slideLayouts/layout1.xml": slide(
            shape("Click", 'type="body" idx="9"', "<a:lstStyle><a:lvl1pPr><a:buNone/></a:lvl1pPr></a:lstStyle>"),
            tag="sldLayout",
        ),
        "ppt/slideLayouts/_rels/layout1.xml.rels": relations(("slideMaster", "../slideMasters/master1.xml")),
        "ppt/slideMasters/master1.xml": MASTER,
    }
    for number, text in enumerate(slides, start=1):
        links = [("slideLayout", "../slideLayouts/layout1.xml")]
        if page := (notes or {}).get(number):
            parts[f"ppt/notesSlides/notes{number}.xml"] = page
            links.append(("notesSlide", f"../notesSlides/notes{number}.xml"))
        parts[f"ppt/slides/slide{number}.xml"] = text
        parts[f"ppt/slides/_rels/slide{number}.xml.rels"] = relations(*links)
    return zipped({**parts, **(more or {})})


def workbook(
    *sheets: tuple[str, str],
    texts: tuple[str, ...] = (),
    formats: tuple[str, ...] = (),
    hidden: tuple[str, ...] = (),
    doctype: str = "",
) -> bytes:
    """Return a workbook of sheets with their names; the style of number n has the n-th of ``formats``, from 1."""
    entries = "".join(
        f'<sheet name="{name}" sheetId="{n}" r:id="r{n}" state="{"hidden" if name in hidden else "visible"}"/>'
        for n, (name, _) in enumerate(sheets, start=1)
    )
    codes = "".join(f'<numFmt numFmtId="{200 + n}" formatCode="{code}"/>' for n, code in enumerate(formats))
    styles = "".join(f'<xf numFmtId="{200 + n}"/>' for n in range(len(formats)))
    links = [("worksheet", f"worksheets/sheet{n}.xml") for n in range(1, len(sheets) + 1)]
    parts = {
        "_rels/.rels": relations(("officeDocument", "xl/workbook.xml")),
        "xl/workbook.xml": f'<workbook xmlns="{SHEETS}" xmlns:r="{OFFICE}"><sheets>{entries}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": relations(
            *links, ("sharedStrings", "sharedStrings.xml"), ("styles", "/xl/styles.xml")
        ),
        "xl/sharedStrings.xml": f'<sst xmlns="{SHEETS}">{"".join(f"<si><t>{text}</t></si>" for text in texts)}</sst>',
        "xl/styles.xml": f'<styleSheet xmlns="{SHEETS}"><numFmts>{codes}</numFmts><cellXfs><xf numFmtId="0"/>{styles}'
        "</cellXfs></styleSheet>",
    }
    for n, (_, body) in enumerate(sheets, start=1):
        parts[f"xl/worksheets/sheet{n}.xml"] = f'{doctype}<worksheet xmlns="{SHEETS}">{body}</worksheet>'
    return zipped(parts)


def rows(*lines: tuple[object, ...], first: int = 1, after: str = "") -> str:
    """Return the rows of a sheet: texts, numbers, None for an empty cell, or XML of a cell without its place."""
    found = []
    for number, line in enumerate(lines, start=first):
        cells = "".join(_cell(value, f"{chr(65 + at)}{number}") for at, value in enumerate(line) if value is not None)
        found.append(f'<row r="{number}">{cells}</row>')
    return f"<sheetData>{''.join(found)}</sheetData>{after}"


def _cell(value: object, place: str) -> str:
    if isinstance(value, str) and value.startswith("<c"):
        return value.replace("<c", f'<c r="{place}"', 1)
    if isinstance(value, str):
        return f'<c r="{place}" t="inlineStr"><is><t>{value}</t></is></c>'
    return f'<c r="{place}"><v>{value}</v></c>'


def cell(inner: object = "", repeated: int = 1, attributes: str = "") -> str:
    """Return a cell of an OpenDocument table: a text, or XML of its paragraphs."""
    shown = str(inner) if str(inner).startswith("<") or inner == "" else f"<text:p>{inner}</text:p>"
    again = f'table:number-columns-repeated="{repeated}"' if repeated > 1 else ""
    return f"<table:table-cell {again} {attributes}>{shown}</table:table-cell>"


def spreadsheet(*rows: object, names: tuple[str, ...] = ("Sheet1",), hidden: tuple[str, ...] = ()) -> bytes:
    """Return an OpenDocument spreadsheet whose sheets have these rows of cells; a number after a row repeats it."""
    found: list[str] = []
    for row in rows:
        if isinstance(row, int):
            found[-1] = found[-1].replace("<table:table-row", f'<table:table-row table:number-rows-repeated="{row}"', 1)
        else:
            found.append(f"<table:table-row>{row}</table:table-row>")
    tables = (
        f'<table:table table:name="{name}" table:style-name="{"ta2" if name in hidden else "ta1"}">{"".join(found)}'
        "</table:table>"
        for name in names
    )
    styles = '<style:style style:name="ta2"><style:table-properties table:display="false"/></style:style>'
    spaces = 'xmlns:office="o" xmlns:text="t" xmlns:table="b" xmlns:style="s"'
    content = (
        f"<office:document-content {spaces}><office:automatic-styles>{styles}</office:automatic-styles><office:body>"
        f"<office:spreadsheet>{''.join(tables)}</office:spreadsheet></office:body></office:document-content>"
    )
    return zipped({"content.xml": content})
