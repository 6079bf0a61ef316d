"""Zip archives of XML parts: Office and OpenDocument files, and EPUB books.

Nothing is unpacked to the disk, no macro is run, and nothing outside the archive is read: a part that declares a
document type, and could define entities, is refused. Names of XML namespaces are not compared, since the strict form of
Office files has others.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from typing import Any, NamedTuple
from urllib.parse import unquote

from lxml import etree

from recovery.data.corpus.documents import UnreadableError
from recovery.data.corpus.html_parts import one_line

_OLE = b"\xd0\xcf\x11\xe0"  # files of Office before 2007, and encrypted ones


class Related(NamedTuple):
    """A part that another one names: the last word of its relation's type, and its name in the archive."""

    type: str
    name: str


class XmlArchive:
    """The parts of an archive by name."""

    def __init__(self, data: bytes, kind: str) -> None:
        if data.startswith(_OLE):
            raise UnreadableError(f"protected by a password, or of an older format than {kind}")
        self._kind = kind
        self._zip = zipfile.ZipFile(io.BytesIO(data))
        self._names = set(self._zip.namelist())

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def read(self, name: str) -> bytes:
        """Return the bytes of a part. Raise UnreadableError if it is encrypted, KeyError if there is none."""
        if self._zip.getinfo(name).flag_bits & 1:
            raise UnreadableError(f"{self._kind} protected by a password")
        return self._zip.read(name)

    def xml(self, name: str) -> Any:
        """Return the root element of a part."""
        parser = etree.XMLParser(
            resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True, remove_pis=True
        )
        root = etree.fromstring(self.read(name), parser)
        if root.getroottree().docinfo.internalDTD is not None:
            raise UnreadableError(f"{self._kind} with a document type definition, which is not safe to read")
        return root

    def xml_or_none(self, name: str) -> Any:
        """Return the root element of a part, None if there is no such part."""
        return self.xml(name) if name in self else None

    def related(self, name: str = "") -> dict[str, Related]:
        """Return the parts that a part of an Office file, or the file itself, refers to, by id."""
        folder, _, file = name.rpartition("/")
        root = self.xml_or_none(posixpath.join(folder, "_rels", f"{file}.rels"))
        links = [] if root is None else [link for link in root if link.get("TargetMode") != "External"]
        return {
            link.get("Id", ""): Related(link.get("Type", "").rpartition("/")[2], inside(folder, link.get("Target", "")))
            for link in links
        }

    def of_type(self, type: str, name: str = "") -> str:
        """Return the name of the first part that is related in this way, "" if there is none in the archive."""
        names = (part.name for part in self.related(name).values() if part.type == type)
        return next((part for part in names if part in self), "")

    def office_title(self) -> str:
        """Return the title in the properties of an Office file, "" without one."""
        root = self.xml_or_none(self.of_type("core-properties"))
        return "" if root is None else one_line(root.findtext("{*}title") or "")


def inside(folder: str, target: str) -> str:
    """Return the name of a part that another one in ``folder`` refers to, without a fragment ("#")."""
    return posixpath.normpath(posixpath.join("/", folder, unquote(target.partition("#")[0]))).lstrip("/")


def local(node: Any) -> str:
    """Return the name of an element without its namespace."""
    return str(node.tag).rpartition("}")[2]


def attribute(node: Any, name: str, default: str = "") -> str:
    """Return an attribute by its name without its namespace; one without a namespace comes first."""
    if (value_without_namespace := node.get(name)) is not None:
        return str(value_without_namespace)
    return next((str(value) for key, value in node.attrib.items() if key.endswith("}" + name)), default)


def relation_id(node: Any) -> str:
    """Return the id of a relation that an element names; an id of its own has no namespace."""
    return next((str(value) for key, value in node.attrib.items() if key.endswith("}id")), "")


# Formulas of Word and PowerPoint (OMML) as a line of text, such as ``(a+b)/c^2``.

_MOST_DEEP = 50
_ATOM = re.compile(r"[\w.,]*|\([^()]*\)")


def office_formula(node: Any, depth: int = 0) -> str:
    """Return the text of a formula, or of a part of one."""
    if depth > _MOST_DEEP:
        return ""

    def part(name: str) -> str:
        found = node.find(f"{{*}}{name}")
        return "" if found is None else office_formula(found, depth + 1)

    kind = local(node)
    if kind == "t":
        return str(node.text or "")
    if kind == "f":
        return f"{_bracketed(part('num'))}/{_bracketed(part('den'))}"
    if kind in ("sSup", "sSub", "sSubSup"):
        low, high = _bracketed(part("sub")), _bracketed(part("sup"))
        return _bracketed(part("e")) + (f"_{low}" if low else "") + (f"^{high}" if high else "")
    if kind == "rad":
        root = part("deg")
        return f"root({root}, {part('e')})" if root else f"sqrt({part('e')})"
    if kind == "d":
        inner = ", ".join(office_formula(part_node, depth + 1) for part_node in node.iterfind("{*}e"))
        begin, end = node.find("{*}dPr/{*}begChr"), node.find("{*}dPr/{*}endChr")
        signs = "(" if begin is None else attribute(begin, "val"), ")" if end is None else attribute(end, "val")
        return f"{signs[0]}{inner}{signs[1]}"
    if kind == "nary":
        sign = node.find("{*}naryPr/{*}chr")
        low, high = part("sub"), part("sup")
        limits = (f"_{_bracketed(low)}" if low else "") + (f"^{_bracketed(high)}" if high else "")
        return f"{'∫' if sign is None else attribute(sign, 'val')}{limits} {part('e')}"
    return "".join(office_formula(child, depth + 1) for child in node)


def _bracketed(text: str) -> str:
    return text if _ATOM.fullmatch(text) else f"({text})"
