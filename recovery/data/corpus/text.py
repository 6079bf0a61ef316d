"""Text normalisation, and hashes and pseudo-random shares derived from normalised text."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable

_TYPOGRAPHIC = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "."})
_DROPPED = re.compile(r"[.,;:!?\"'()\[\]{}_`~#|\\]")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
_LINE_ENDS = re.compile(r"\r\n|[\r\v\f\x85]")
# Letters that are typed twice or underlined by backspaces, and the escape sequences of colours.
_OF_TERMINALS = re.compile(r"([^\n])\x08(?=\1)|_\x08|\x08_|\x1b\[[0-?]*[ -/]*[@-~]")
# Noncharacters that stand for characters without a meaning until :func:`without_lost` removes and counts them.
LOST_CONTROL, LOST_GLYPH = "\ufdd0", "\ufdd1"
_LIGATURE = re.compile("[\ufb00-\ufb06]")
# Places where a word may be broken, and byte-order marks within a text: no reader sees them.
_BREAKS = re.compile("[\u00ad\u200b\u2060\ufeff]+")
_BROKEN = re.compile(r"(?<=[^\W\d_])\u00ad[ \t]*\n[ \t]*(?=[^\W\d_])")  # a word hyphenated at the end of a line
# Joiners, where neither neighbour is of a script that needs them: Arabic to Mongolian, and emoji.
_JOINED = "\u0600-\u1dff\u2190-\U0010ffff"
_JOINERS = re.compile(f"(?<![{_JOINED}])[\u200c\u200d]+(?![{_JOINED}])")
_ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b-\u200d\u2060\ufb00-\ufb06\ufeff]")
# What is not seen: format characters (category Cf), variation selectors and the grapheme joiner.
_FORMAT = re.compile(
    "[\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u2064"
    "\u2066-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f\U000e0100-\U000e01ef]+"
)
SURROGATES = re.compile("[\ud800-\udfff]")
# Scripts without spaces between words: Thai to Khmer, kana and Han.
_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u318f\u3400-\u9fff\U00020000-\U0003ffff"
_WITHOUT_SPACES = re.compile(f"[{_NO_SPACES}]")
_RUNS = re.compile(f"[{_NO_SPACES}]{{2,}}")
_UNSPACED = re.compile(f"[{_NO_SPACES}\uac00-\ud7af]")  # and Hangul, with endings on its words
SENTENCE_ENDS = ".!?\u061f\u06d4\u0589\u0964\u0965\u1362\u104b\u17d4"  # also Arabic, Armenian, Indian, ... ones
WIDE_ENDS = "。！？｡"  # no space follows
_WIDE_GAP = re.compile(f"(?<=[{WIDE_ENDS}]) ")
# A lower-case name that may begin a sentence: macOS, next.config.js, os_name, x86, fetch().
SMALL_NAME = re.compile(r"(?!(?:[a-z]\.){2})[a-z]+(?:[A-Z\d]|[\w-]*(?:_\w|[./]\w|\(\)))[\w./()-]*(?=[\s,'’`])")
_SPACE = re.compile(r"\s+")
_DECIMAL = re.compile(r"(?<![\w.,])(\d+)([.,])(\d+)(?![.,]?\d)")
_NUMBERED = "two three four five six seven eight nine ten eleven twelve fifteen twenty thirty forty fifty"
NUMBER_WORDS = dict(zip(_NUMBERED.split(), "2 3 4 5 6 7 8 9 10 11 12 15 20 30 40 50".split(), strict=True))


def with_other_decimals(text: str) -> str:
    """Return a text with decimal points for decimal commas and the other way round: "1,5 s" and "1.5 s"."""
    return _DECIMAL.sub(lambda found: f"{found[1]}{'.' if found[2] == ',' else ','}{found[3]}", text)


def normalise(text: str) -> str:
    """Return the normal form of a text; two texts with the same normal form have the same wording.

    Case, white space, typography, plain punctuation and what is not seen are dropped; operators stay, so that "2 + 3"
    and "2 * 3" differ.
    """
    text = unicodedata.normalize("NFKC", without_format(text)).translate(_TYPOGRAPHIC).casefold()
    return _SPACE.sub(" ", _DROPPED.sub(" ", text)).strip()


def without_format(text: str) -> str:
    """Return a text without format characters and variation selectors, which have no meaning."""
    return text if text.isascii() else _FORMAT.sub("", text)


def spaced(text: str) -> str:
    """Return ``text`` with single spaces, and each character of a script that is written without spaces as a word."""
    return " ".join(_UNSPACED.sub(r" \g<0> ", text).split())


def running_words(text: str) -> list[str]:
    """Return the words of a text, and each character of a script that is written without spaces between words.

    Hangul, which is written with spaces, is words.
    """
    return (text if text.isascii() else _WITHOUT_SPACES.sub(r" \g<0> ", text)).split()


def unspaced_pairs(text: str) -> set[str]:
    """Return the pairs of neighbouring characters of the scripts that are written without spaces."""
    return {run[at : at + 2] for run in _RUNS.findall(text) for at in range(len(run) - 1)}


def join_sentences(parts: Iterable[str]) -> str:
    """Return sentences on one line, with spaces between them except after the full stop of Chinese or Japanese."""
    return _WIDE_GAP.sub("", " ".join(parts))


def word_count(text: str) -> int:
    """Return the number of words: of parts between spaces.

    Where no spaces are written between words, two characters count as one word, as long as words of Chinese and
    Japanese are on average; a whole paragraph would be one word otherwise.
    """
    return sum(max(1, len(_WITHOUT_SPACES.findall(part)) // 2) for part in text.split())


def words(text: str) -> frozenset[str]:
    """Return the set of words in a text."""
    return frozenset(text.split())


def begins_like_a_sentence(char: str) -> bool:
    """Return whether a sentence may begin with a character: a capital, a letter without case, or a digit."""
    return char.isdecimal() or (char.isalpha() and not char.islower())


def text_hash(text: str) -> str:
    """Return the hexadecimal SHA-256 of the normal form of ``text``."""
    return hash_of(normalise(text))


def hash_of(text: str) -> str:
    """Return the hexadecimal SHA-256 of a text as it is."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def share(text: str, salt: str = "") -> float:
    """Return a number in [0, 1) that depends only on the wording of ``text`` and on ``salt``."""
    digest = hashlib.sha256(f"{salt}\x1f{normalise(text)}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def paragraphs(text: str) -> list[str]:
    """Return the non-blank blocks of ``text`` between blank lines."""
    return [block.strip("\n") for block in re.split(r"\n[ \t]*\n", text) if block.strip()]


def tidy(text: str) -> str:
    """Return ``text`` with uniform line ends, no trailing spaces, and single blank lines.

    A letter with its accent is one character (Unicode normalisation form C), as a model writes it, and a ligature the
    letters that it joins. Marks of places where a word may be broken are left out. A control character becomes
    ``LOST_CONTROL``, for :func:`without_lost`. Surrogates, which no file can hold, are joined to the character of
    their pair or replaced.
    """
    if SURROGATES.search(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    text = unicodedata.normalize("NFC", text)
    if _ODD.search(text):
        text = _LINE_ENDS.sub("\n", text)
        text = marked(_BROKEN.sub("", _OF_TERMINALS.sub("", text)))
        text = _JOINERS.sub("", _BREAKS.sub("", text))
        text = _LIGATURE.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)
    text = re.sub(r"(?<![ \t\xa0])[ \t\xa0]+\n", "\n", text)  # from the first space: linear in long runs
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def marked(text: str) -> str:
    """Return ``text`` with ``LOST_CONTROL`` in place of each control character but white space."""
    return _CONTROL.sub(LOST_CONTROL, text)


def without_lost(text: str) -> tuple[str, int, int]:
    """Return ``text`` without the characters that stand for lost ones, and the numbers of control characters and of
    glyphs among these.
    """
    controls, glyphs = text.count(LOST_CONTROL), text.count(LOST_GLYPH)
    if controls or glyphs:
        text = tidy(text.replace(LOST_CONTROL, "").replace(LOST_GLYPH, ""))
    return text, controls, glyphs
