"""Formulas of MathML in HTML pages, as text: their TeX if they bring it along, or else a line such as (a + b)/c^2."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from lxml import etree

from recovery.data.corpus.html_parts import one_line

_STYLE = re.compile(r"\{\\displaystyle\s(.*)\}")  # Wikipedia's
_ATOM = re.compile(r"[-+−]?[\w.,]+|\S")
_RELATIONS = frozenset("= < > ≤ ≥ ≠ ≈ ≡ ∼ ∈ → ⇒".split())
_UNWRITTEN = "\u2061\u2062\u2063\u2064"  # signs for the application of a function and the like
_SCRIPTS = {"msub": "_", "munder": "_", "msup": "^", "mover": "^"}
_LONGEST = 5_000  # characters and elements


def formula(node: Any) -> str:
    """Return the text of a formula."""
    notes = (note for note in node.iter("annotation") if "tex" in (note.get("encoding") or ""))
    tex = one_line(next((note.text or "" for note in notes), "") or node.get("alttext") or "")
    if tex:
        styled = _STYLE.fullmatch(tex)
        return f"${one_line(styled[1]) if styled else tex}$"
    plain = "".join(node.itertext())
    if len(plain) > _LONGEST or next(islice(node.iter(), _LONGEST, None), None) is not None:
        return one_line(plain)  # what is copied from each level to the next one takes time in the square of both
    levels: list[list[str]] = [[]]
    for event, part in etree.iterwalk(node, events=("start", "end")):
        if event == "start":
            levels.append([])
        else:
            text = _composed(part, levels.pop())
            levels[-1].append(text)
    return one_line("".join(levels[0]))


def _composed(node: Any, parts: Sequence[str]) -> str:
    """Return one element of a formula, of which the parts are written already."""
    tag, own = node.tag, (node.text or "").strip(f" \t\n\r{_UNWRITTEN}")
    if tag in ("annotation", "annotation-xml", "mphantom"):
        return ""
    if tag == "mo":
        return f" {own} " if own in _RELATIONS else own
    if tag == "mtext":
        return node.text or ""
    if tag in _SCRIPTS and len(parts) == 2:
        return parts[0] + _script(_SCRIPTS[tag], parts[1])
    if tag in ("msubsup", "munderover") and len(parts) == 3:
        return parts[0] + _script("_", parts[1]) + _script("^", parts[2])
    if tag == "mfrac" and len(parts) == 2:
        return f"{_bracketed(parts[0])}/{_bracketed(parts[1])}"
    if tag == "msqrt":
        return f"√{_bracketed(''.join(parts))}"
    if tag == "mroot" and len(parts) == 2:
        return f"{_bracketed(parts[0])}^(1/{parts[1].strip()})"
    if tag in ("mtable", "mtr"):
        return ("; " if tag == "mtable" else ", ").join(parts)
    if tag == "mfenced":
        return f"{node.get('open') or '('}{', '.join(parts)}{node.get('close') or ')'}"
    return own + "".join(parts)


def _script(sign: str, text: str) -> str:
    return f"{sign}{_bracketed(text)}" if text.strip() else ""


def _bracketed(text: str) -> str:
    text = text.strip()
    return text if _ATOM.fullmatch(text) else f"({text})"
