"""Texts of a PDF's glyphs by their names, which PDFium does not give: "f_f_i" is "ffi"."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

# A part of a name: a letter, or the numbers of its characters (Adobe's Glyph List Specification, section 2).
_PART = re.compile(r"[A-Za-z]|uni(?P<four>(?:[0-9A-F]{4})+)|u(?P<one>[0-9A-F]{4,6})")
_MOST_RESOURCES, _DEEPEST_FORM = 10_000, 3  # fonts, forms and images of a file; forms within each other


class GlyphNames:
    """The names that the fonts of a file give to their glyphs; the file is read for them when one is asked for."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def text(self, font: str, code: int) -> str:
        """Return the text of the glyph with a code in a font, "" if its name has none."""
        names = {by_code[code] for by_code in self._fonts.get(font, ()) if code in by_code}
        return text_of_name(names.pop()) if len(names) == 1 else ""  # several fonts may have one name

    @cached_property
    def _fonts(self) -> dict[str, list[dict[int, str]]]:
        """The names of glyphs by code, of all fonts with a name."""
        fonts: dict[str, list[dict[int, str]]] = {}
        try:
            for font in self._each_font():
                encoding = font.get("/Encoding")
                differences = encoding.get("/Differences") if hasattr(encoding, "get") else None
                if differences:
                    fonts.setdefault(str(font.get("/BaseFont", ""))[1:], []).append(_numbered(differences))
        except Exception:  # pypdf fails in many ways on what PDFium reads: then the names are not known
            return fonts
        return fonts

    def _each_font(self) -> Iterator[Any]:
        import pypdf

        reader = pypdf.PdfReader(io.BytesIO(self._data), strict=False)
        seen: set[int] = set()
        holders = [(page, 0) for page in reader.pages]
        while holders and len(seen) < _MOST_RESOURCES:
            holder, depth = holders.pop()
            resources = holder.get("/Resources") or {}
            forms = resources.get("/XObject") or {} if depth < _DEEPEST_FORM else {}
            for resource in [*(resources.get("/Font") or {}).values(), *forms.values()]:
                resource = resource.get_object()
                if id(resource) in seen:
                    continue
                seen.add(id(resource))
                if resource.get("/Subtype") == "/Form":
                    holders.append((resource, depth + 1))
                elif "/Encoding" in resource:
                    yield resource


def _numbered(differences: Any) -> dict[int, str]:
    """Return the glyph names by code, from a list of codes that each precede the names of consecutive codes."""
    names: dict[int, str] = {}
    code = 0
    for entry in (item.get_object() for item in differences):
        if isinstance(entry, int):
            code = int(entry)
        else:
            names[code] = str(entry).removeprefix("/")
            code += 1
    return names


def text_of_name(name: str) -> str:
    """Return the text of a glyph's name, for a letter or a ligature ("f_f_i.alt" is "ffi"), else ""."""
    parts = [_PART.fullmatch(part) for part in name.partition(".")[0].split("_")]
    return "" if None in parts else "".join(_characters(part) for part in parts if part)


def _characters(part: re.Match[str]) -> str:
    numbers = re.findall("....", part["four"]) if part["four"] else [part["one"]] if part["one"] else []
    codes = [int(number, 16) for number in numbers]
    if any(0xD800 <= code <= 0xDFFF or code > 0x10FFFF for code in codes):
        return ""
    return "".join(map(chr, codes)) if numbers else part[0]
