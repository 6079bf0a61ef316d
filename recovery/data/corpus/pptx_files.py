"""Text of presentations, as Markdown: titles of slides are headings; lists, tables and the speaker's notes are kept.

The values of charts and the texts of diagrams are read. Hidden slides are left out with a remark. Slide numbers, dates,
footers, pictures and comments are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from recovery.data.corpus.documents import counted
from recovery.data.corpus.html_parts import one_line
from recovery.data.corpus.outline import Cell, Outline, cell_text, raised
from recovery.data.corpus.xlsx_files import shown
from recovery.data.corpus.xml_archives import XmlArchive, attribute, local, office_formula, relation_id

_TITLES = ("title", "ctrTitle")
_ON_EACH_SLIDE = ("sldNum", "dt", "ftr", "hdr")
_LISTS = ("body", "obj", "subTitle", "")
_NO_TITLE = re.compile(r"(?:\S+ )?power ?point\b.*|.{0,15}\bpower ?point|presentation\s?\d*|slide \d+", re.IGNORECASE)
_LONGEST_TITLE = 12  # words of the first text of a slide without a title, which is taken for one
_MOST_DEEP = 50  # groups within each other
_MOST_POINTS = 200  # of a chart
_SIGNS = ("buNone", "buChar", "buAutoNum", "buBlip")  # elements that say which bullet a paragraph has
_STRUCK = ("sngStrike", "dblStrike")


def read_pptx(data: bytes, fallback_title: str) -> tuple[str, str, list[str]]:
    """Return the title of a presentation, its text and remarks. ``fallback_title`` is used if it has none."""
    archive = XmlArchive(data, "PPTX")
    main = archive.of_type("officeDocument")
    related = archive.related(main)
    ids = [relation_id(slide) for slide in archive.xml(main).iterfind("{*}sldIdLst/{*}sldId")]
    slides = [_Slide(archive, related[id].name) for id in ids if id in related and related[id].name in archive]
    visible = [slide for slide in slides if not slide.hidden]
    stored = archive.office_title()
    title = (visible[0].named if visible else "") or ("" if _NO_TITLE.fullmatch(stored) else stored) or fallback_title
    outline = Outline()
    outline.heading(title, 1)
    current_title = title
    for slide in visible:
        if (name := slide.title or title) != current_title:
            outline.heading(name, 2)
        slide.write(outline)
        current_title = name
    hidden = len(slides) - len(visible)
    notes = [f"{counted(hidden, 'hidden slide')} left out"] if hidden else []
    if unread := sum(slide.unread for slide in visible):
        notes.append(f"{counted(unread, 'chart')} without stored values by category left out")
    return title, outline.text, notes


class _Slide:
    """A slide. ``named`` is its title if it has one by its layout, ``title`` also a short text above the others.

    ``unread`` counts the charts of which no value is read.
    """

    def __init__(self, archive: XmlArchive, name: str) -> None:
        self._archive, self._name, self.unread = archive, name, 0
        root = archive.xml(name)
        self.hidden = root.get("show") in ("0", "false")
        shapes = list(_shapes(root.find("{*}cSld/{*}spTree")))
        heading = next((s for s in shapes if _placeholder_type(s) in _TITLES and _text(s).strip()), None)
        self.named = one_line(_text(heading)) if heading is not None else ""
        if heading is None and shapes and _is_title(shapes[0]):
            heading = shapes[0]
        self.title = one_line(_text(heading)) if heading is not None else ""
        self._shapes = [shape for shape in shapes if shape is not heading]
        layout = archive.of_type("slideLayout", name)
        master = archive.of_type("slideMaster", layout) if layout else ""
        self._styles = [archive.xml(part) for part in (layout, master) if part]

    def write(self, outline: Outline) -> None:
        """Add the content of the slide below its title, and its notes."""
        for shape in self._shapes:
            if local(shape) == "sp":
                self._write_text(shape, outline)
            elif (table := shape.find("{*}graphic/{*}graphicData/{*}tbl")) is not None:
                outline.table(list(_rows(table)))
            else:
                self._write_graphic(shape, outline)
        notes = self._archive.of_type("notesSlide", self._name)
        for shape in _shapes(self._archive.xml(notes).find("{*}cSld/{*}spTree")) if notes else ():
            if _placeholder_type(shape) == "body":
                for paragraph in shape.iterfind("{*}txBody/{*}p"):
                    outline.paragraph(_words(paragraph))

    def _write_text(self, shape: Any, outline: Outline) -> None:
        styles = self._list_styles(shape)
        for paragraph in shape.iterfind("{*}txBody/{*}p"):
            own = paragraph.find("{*}pPr")
            depth = int(own.get("lvl") or 0) if own is not None else 0
            levels = (style.find(f"{{*}}lvl{depth + 1}pPr") for style in styles)
            signs = (sign for level in (own, *levels) if level is not None for sign in level if local(sign) in _SIGNS)
            sign = next(signs, None)
            if sign is None or local(sign) == "buNone":
                outline.paragraph(_words(paragraph))
            else:
                number = outline.next_number(depth, int(sign.get("startAt") or 1))
                outline.item(_words(paragraph), depth, number if local(sign) == "buAutoNum" else None)

    def _list_styles(self, shape: Any) -> list[Any]:
        """Return the list styles of a shape, its layout and its master, which decide on bullets."""
        styles = [shape.find("{*}txBody/{*}lstStyle")]
        if (kind := _placeholder_type(shape)) is not None and self._styles:
            number = _placeholder_element(shape).get("idx", "0")
            layout, *masters = self._styles
            like = [other for other in _placeholders(layout) if _placeholder_element(other).get("idx", "0") == number]
            like += [
                other for master in masters for other in _placeholders(master) if _placeholder_type(other) == "body"
            ]
            styles += [other.find("{*}txBody/{*}lstStyle") for other in like]
            name = "bodyStyle" if kind in _LISTS else "otherStyle"
            styles += [master.find(f"{{*}}txStyles/{{*}}{name}") for master in masters]
        return [style for style in styles if style is not None]

    def _write_graphic(self, shape: Any, outline: Outline) -> None:
        """Add the values of a chart, or the texts of a diagram (SmartArt) in the order in which they are written."""
        data = shape.find("{*}graphic/{*}graphicData")
        related = self._archive.related(self._name)
        for reference in data if data is not None else ():
            part = related.get(attribute(reference, "dm") or relation_id(reference))
            if part is None or part.name not in self._archive:
                continue
            if local(reference) == "chart":
                rows = list(_chart_rows(self._archive.xml(part.name)))
                outline.table(rows)
                self.unread += not rows
            elif local(reference) == "relIds":
                for text in self._archive.xml(part.name).iterfind("{*}ptLst/{*}pt/{*}t"):
                    outline.item(" ".join(map(_words, text.iterfind("{*}p"))))


def _shapes(tree: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the shapes with text, tables and diagrams, those in groups too, in the order of reading."""
    for child in tree if tree is not None else ():
        name = local(child)
        about = child.find("*/{*}cNvPr")
        if about is not None and about.get("hidden") in ("1", "true"):
            continue
        if name == "grpSp" and depth < _MOST_DEEP:
            yield from _shapes(child, depth + 1)
        elif name == "AlternateContent" and depth < _MOST_DEEP:
            forms = (list(_shapes(form, depth + 1)) for form in child)
            yield from next((form for form in forms if any(map(_is_filled, form))), ())
        elif name == "graphicFrame" or (name == "sp" and _placeholder_type(child) not in _ON_EACH_SLIDE):
            yield child


def _is_filled(shape: Any) -> bool:
    return local(shape) == "graphicFrame" or bool(_text(shape).strip())


def _placeholder_element(shape: Any) -> Any:
    return shape.find("{*}nvSpPr/{*}nvPr/{*}ph")


def _placeholders(root: Any) -> list[Any]:
    """Return the placeholders of a layout or a master."""
    return [shape for shape in root.iterfind("{*}cSld/{*}spTree/{*}sp") if _placeholder_element(shape) is not None]


def _placeholder_type(shape: Any) -> str | None:
    """Return the type of a shape's placeholder, "" for any content, None for a shape without one."""
    place = _placeholder_element(shape)
    return None if place is None else str(place.get("type") or "")


def _is_title(shape: Any) -> bool:
    text = _text(shape).strip() if local(shape) == "sp" else ""
    return 0 < len(text.split()) <= _LONGEST_TITLE and "\n" not in text and text[-1] not in ".!?:;,"


def _text(shape: Any) -> str:
    return "\n".join(_words(paragraph) for paragraph in shape.iterfind("{*}txBody/{*}p"))


def _words(paragraph: Any) -> str:
    parts: list[str] = []
    for child in paragraph:
        name, style = local(child), child.find("{*}rPr")
        if name == "br":
            parts.append("\n")
        elif name == "AlternateContent":  # a formula; other programs' form of it may be the only one with text
            parts.append(next(filter(str.strip, map(office_formula, child)), ""))
        elif name == "m":
            parts.append(office_formula(child))
        elif name in ("r", "fld") and not _is_unseen(child, style):
            text = child.findtext("{*}t") or ""
            high = style is not None and int(style.get("baseline") or 0) > 0
            parts.append(raised(text, "".join(parts[-1:])) if high else text)
    return re.sub(r"[\v\f]", "\n", "".join(parts))


def _is_unseen(run: Any, style: Any) -> bool:
    """Return whether words are struck out, a slide number or a date."""
    struck = style is not None and style.get("strike") in _STRUCK
    return struck or (run.get("type") or "").startswith(("slidenum", "datetime"))


def _chart_rows(root: Any) -> Iterator[list[Cell]]:
    """Yield the stored values of a chart: a row for each category, a column for each series."""
    series = list(root.iterfind(".//{*}ser"))
    names = [" ".join(text for _, text in _points(one_series, "tx")) for one_series in series]
    since_1904 = any(mark.get("val") in ("1", "true") for mark in root.iterfind(".//{*}date1904"))
    categories = _points(series[0], "cat", since_1904) if series else []
    values = [dict(_points(one_series, "val", since_1904)) for one_series in series]
    if not categories or not any(names):
        return
    yield [Cell(cell_text(name), 1, 1, True) for name in ("", *names)]
    for at, category in categories[:_MOST_POINTS]:
        cells = [category, *(value.get(at, "") for value in values)]
        yield [Cell(cell_text(text), 1, 1, False) for text in cells]


def _points(series: Any, name: str, since_1904: bool = False) -> list[tuple[str, str]]:
    """Return the texts of one part of a series, or its numbers as they are shown, by their place."""
    code = series.findtext(f"{{*}}{name}//{{*}}formatCode", "General" if name == "val" else "")  # "": texts
    points: list[tuple[str, str]] = []
    for point in series.iterfind(f"{{*}}{name}//{{*}}pt"):
        text, format = point.findtext("{*}v") or "", point.get("formatCode") or code
        points.append((point.get("idx") or "", shown(text, format, since_1904=since_1904) if format else text))
    return points


def _rows(table: Any) -> Iterator[list[Cell]]:
    style = table.find("{*}tblPr")
    headed = style is not None and style.get("firstRow") in ("1", "true")
    for number, row in enumerate(table.iterfind("{*}tr")):
        line = []
        for cell in row.iterfind("{*}tc"):
            if not {cell.get("hMerge"), cell.get("vMerge")} & {"1", "true"}:
                text = cell_text(" ".join(map(_words, cell.iterfind("{*}txBody/{*}p"))))
                columns, rows = (int(cell.get(name) or 1) for name in ("gridSpan", "rowSpan"))
                line.append(Cell(text, columns, rows, headed and number == 0))
        yield line
