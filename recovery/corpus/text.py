"""Normal forms of text, and what is derived from them: hashes and shares that depend on content alone."""

from __future__ import annotations

import hashlib
import re
import unicodedata

_TYPOGRAPHIC = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "."})
_DROPPED = re.compile(r"[.,;:!?\"'()\[\]{}_`~#|\\]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SPACE = re.compile(r"\s+")


def normalise(text: str) -> str:
    """The form in which two texts count as the same wording.

    Case, white space, typography and plain punctuation are dropped; operators stay, so that "2 + 3" and
    "2 * 3" differ.
    """
    text = unicodedata.normalize("NFKC", text).translate(_TYPOGRAPHIC).casefold()
    return _SPACE.sub(" ", _DROPPED.sub(" ", text)).strip()


def words(text: str) -> frozenset[str]:
    """A set of words, written as running text."""
    return frozenset(text.split())


def text_hash(text: str) -> str:
    """Hexadecimal SHA-256 of the normal form of ``text``."""
    return hashlib.sha256(normalise(text).encode()).hexdigest()


def share(text: str, salt: str = "") -> float:
    """A number in [0, 1) that depends only on the wording of ``text`` and on ``salt``."""
    digest = hashlib.sha256(f"{salt}\x1f{normalise(text)}".encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def paragraphs(text: str) -> list[str]:
    """The blocks of ``text`` between blank lines, without the blank ones."""
    return [block.strip("\n") for block in re.split(r"\n[ \t]*\n", text) if block.strip()]


def tidy(text: str) -> str:
    """``text`` with one kind of line end, no trailing space, no control characters, at most one blank line."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n").replace("\ufeff", "")
    text = _CONTROL.sub("", text)
    text = re.sub(r"[ \t\xa0]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()
