"""Text normalisation, and hashes and pseudo-random shares derived from normalised text."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence

_TYPOGRAPHIC = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "."})
_DROPPED = re.compile(r"[.,;:!?\"'()\[\]{}_`~#|\\]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_FENCE = re.compile(r"\s*(?:```[^`]*$|~~~)")
# Thai to Khmer, kana, Han and Hangul: what is written without spaces, or with endings on its words.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u318f\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003ffff]"
)
_SPACE = re.compile(r"\s+")


def normalise(text: str) -> str:
    """Return the normal form of a text; two texts with the same normal form have the same wording.

    Case, white space, typography and plain punctuation are dropped; operators stay, so that "2 + 3" and
    "2 * 3" differ.
    """
    text = unicodedata.normalize("NFKC", text).translate(_TYPOGRAPHIC).casefold()
    return _SPACE.sub(" ", _DROPPED.sub(" ", text)).strip()


def spaced(text: str) -> str:
    """Return ``text`` with single spaces, and each character of a script that is written without spaces as a word."""
    return " ".join(_UNSPACED.sub(r" \g<0> ", text).split())


def words(text: str) -> frozenset[str]:
    """Return the set of words in a text."""
    return frozenset(text.split())


def text_hash(text: str) -> str:
    """Return the hexadecimal SHA-256 of the normal form of ``text``."""
    return hash_of(normalise(text))


def hash_of(normal: str) -> str:
    """Return the hexadecimal SHA-256 of a text in normal form."""
    return hashlib.sha256(normal.encode("utf-8", "surrogatepass")).hexdigest()


def share(text: str, salt: str = "") -> float:
    """Return a number in [0, 1) that depends only on the wording of ``text`` and on ``salt``."""
    digest = hashlib.sha256(f"{salt}\x1f{normalise(text)}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def paragraphs(text: str) -> list[str]:
    """Return the non-blank blocks of ``text`` between blank lines."""
    return [block.strip("\n") for block in re.split(r"\n[ \t]*\n", text) if block.strip()]


def fenced(blocks: Sequence[str]) -> list[bool]:
    """Return for each of the ``paragraphs`` of a text whether it is inside of fenced code or has a fence.

    A line of tildes below a text is the underline of a heading (reStructuredText). A fence that is never closed counts
    for its own block alone.
    """
    found: list[bool] = []
    inside, opened = False, 0
    for number, block in enumerate(blocks):
        code, above = inside, ""
        for line in block.split("\n"):
            if _FENCE.match(line) and (inside or not above.strip() or line.strip("~ \t")):
                inside, code, opened = not inside, True, number
            above = line
        found.append(code)
    if inside:
        found[opened + 1 :] = [False] * (len(found) - opened - 1)
    return found


def heading_of(line: str) -> str | None:
    """Return the text of a Markdown heading without its marks, or None if the line is no heading."""
    marks = len(line) - len(line.lstrip("#"))
    text = line[marks:].lstrip()
    if not 1 <= marks <= 6 or len(line) - marks - len(text) < 1 or len(line) - marks < 2:
        return None
    # By strip and not by one pattern, which takes time in the square of a run of spaces or marks.
    return text.rstrip("#").rstrip() or text[:1]


def tidy(text: str) -> str:
    """Return ``text`` with uniform line ends, no trailing spaces or control characters, and single blank lines.

    A letter with its accent is one character (Unicode normalisation form C), as a model writes it.
    Surrogates, which no file can hold, are joined to the character of their pair or replaced.
    """
    if _SURROGATES.search(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    text = unicodedata.normalize("NFC", text)
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n").replace("\ufeff", "")
    text = _CONTROL.sub("", text)
    text = re.sub(r"(?<![ \t\xa0])[ \t\xa0]+\n", "\n", text)  # from the first space: linear in long runs
    return re.sub(r"\n{3,}", "\n\n", text).strip()
