"""Formulas of Word and PowerPoint (OMML) as a line of text, such as ``(a+b)/c^2``."""

from __future__ import annotations

import re
from typing import Any

from recovery.data.corpus.xml_archives import attribute, local

_MOST_DEEP = 50
_WHOLE = re.compile(r"[\w.,]*|\([^()]*\)")


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
        inner = ", ".join(office_formula(one, depth + 1) for one in node.iterfind("{*}e"))
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
    return text if _WHOLE.fullmatch(text) else f"({text})"
