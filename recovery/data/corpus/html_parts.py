"""Parts of HTML pages: which are not for reading, which one is the main part, what stands for a picture; code."""

from __future__ import annotations

import re
from html import escape
from itertools import islice
from typing import Any

from lxml import etree

from recovery.data.corpus.text import words

BLOCKS = words(
    "address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure "
    "footer form h1 h2 h3 h4 h5 h6 header hgroup hr legend li main nav ol p pre search section summary table tbody td "
    "tfoot th thead tr ul"
)
_UNSEEN = words(
    "script style noscript template head nav search button select datalist option iframe object audio video canvas "
    "del s strike"  # struck out
)
_ROLES = words("navigation search contentinfo")
_PAGES = words("next prev previous up")  # to which a link leads
WHOLE = words("html body main article")
_ANCHORS = words("# ¶ § 🔗")  # links to the heading that they stand in
_INVISIBLE = "\u200b\u2060\ufeff"  # the text of such links in Docusaurus and VitePress
_MAIN = 0.5  # of the text of a page is in its main part, or else it is not all of the content
_FILE = re.compile(r".*(?:\.(?:png|jpe?g|gif|svg|webp|avif|bmp|ico|tiff?)|\b(?:logo|icon|badge))", re.IGNORECASE)
_SIGN = re.compile(r"[!-/:-@\[-`{-~\s]*|\[[^\]]{0,20}\]")  # "*", or "[Note]" beside the word itself

_NEAR, _LONGEST = 10, 300  # elements, characters: what is looked through for the words of an image, for links


def is_unseen(node: Any) -> bool:
    """Return whether an element is no text of its page: a program, a menu, a footer, a link to its own place."""
    tag = node.tag
    if tag in _UNSEEN or _is_anchor(node):
        return True
    if tag == "footer":  # in a quotation its source
        return node.getparent().tag != "blockquote"
    if tag in WHOLE:
        return False
    if (tag == "p" and _leads_on(node)) or (tag not in BLOCKS and node.get("aria-hidden") == "true"):
        return True
    return node.get("role") in _ROLES


def _is_anchor(node: Any) -> bool:
    """Return whether an element is a link that only marks a place, most often the heading that it stands in."""
    text = (node.text or "").strip()
    return node.tag == "a" and not len(node) and bool(text) and (text.strip(_INVISIBLE) or "#") in _ANCHORS


def _leads_on(paragraph: Any) -> bool:
    """Return whether a paragraph is a row of links to the next page, the previous one, ..."""
    if not any(link.get("rel") in _PAGES for link in islice(paragraph.iterchildren("a"), 2)):
        return False
    texts = list(islice(paragraph.itertext(), 3 * _NEAR))
    return len(texts) < 3 * _NEAR and sum(map(len, texts)) < _LONGEST


def main_part(tree: Any) -> Any:
    """Return the element that a page marks as its main part, if it has most of the text, or else the whole page."""
    main = next((node for node in tree.iter(etree.Element) if node.tag == "main" or node.get("role") == "main"), None)
    return tree if main is None or _size(main) < _MAIN * _size(tree) else main


def _size(tree: Any) -> int:
    """Return how many characters of a tree are for reading."""
    size = 0
    walk = etree.iterwalk(tree, events=("start", "end"))
    for event, node in walk:
        text = node.text if event == "start" else node.tail if node is not tree else None
        if event == "start" and is_unseen(node):
            walk.skip_subtree()
        else:
            size += len((text or "").strip())
    return size


def picture(node: Any) -> str:
    """Return the text that stands for an image, "" if it is none, a name of a file, a logo or what stands beside it."""
    if node.tag == "svg":
        return one_line(node.findtext("title") or "")
    told = one_line(node.get("alt") or "")
    file = re.split(r"[?#]", node.get("src") or "", maxsplit=1)[0].rpartition("/")[2]
    if told == file.partition(".")[0] or _SIGN.fullmatch(told) or _FILE.fullmatch(told):
        return ""
    around = next((parent for parent in islice(node.iterancestors(), 3) if parent.tag in ("a", "figure")), None)
    beside = [] if around is None else [(part.text, part.tail) for part in islice(around.iter(), _NEAR)]
    texts = (text[:_LONGEST] for pair in beside for text in pair if text)
    return "" if told.casefold() in one_line(" ".join(texts)).casefold() else told


def one_line(text: str) -> str:
    """Return a text with single spaces in place of every white space."""
    return " ".join(text.split())


def code(text: str) -> str:
    """Return code as HTML."""
    return f"<code>{escape(one_line(text), quote=False)}</code>"
