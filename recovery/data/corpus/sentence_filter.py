"""Filter for self-contained sentences: no anaphora, no references to other text, no fragments."""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache
from typing import NamedTuple

from recovery.data.corpus.languages import Language, languages
from recovery.data.corpus.text import SENTENCE_ENDS, WIDE_ENDS, begins_like_a_sentence, word_count, words

_LEANING = words(
    "it they he she which this that these those its their his her such both here then also but and so or however "
    "otherwise instead thus therefore hence similarly note accordingly again likewise conversely moreover furthermore "
    "nevertheless consequently previously neither either another other others more"
)
_PHRASES = (
    "for example|for instance|in particular|in addition|in other words|in general|as a result|as a consequence|"
    "on the other hand|on the contrary|doing so|the former|the latter|the same|the others?"
)
_CASES = r"in (?:all|both|either|each|any|some|most|other|neither|many)(?: \w+)? cases?"
_REFERRING = "this|these|those|such|them|it|they|he|she|both|neither|either"
_INTRO = "in|on|at|by|from|since|until|under|with|within|without|for|before|after|during|across|through|to"
_LEANS = re.compile(
    rf"(?:{_PHRASES}|{_CASES})\b"
    rf"|\w+(?: of| that)? (?:{_REFERRING})\b"  # "If this ...", "Most of them ..."
    rf"|(?:{_INTRO})\b[^,;.]{{0,60}}, (?:it|they|he|she|this|these|those)\b"  # "From now on, they ..."
    rf"|(?:{_INTRO})(?: [\w-]+){{1,5}} (?:it|they|he|she)\b"  # "In earlier versions they ..."
    r"|[^,;.]{0,100}\b(?:this|these|those|such (?!as\b))",  # "Some of the rules for these ..."
    re.IGNORECASE,
)
_REFERS = re.compile(
    r"\b(?:the|these|this|those) (?:following|above|below|preceding|previous|former|latter|example)\b"
    r"|\b(?:as|shown|listed|described|given|mentioned|defined|discussed|see|also|explained) "
    r"(?:above|below|follows|earlier)\b"
    r"|\betc\.|\b(?:above|below|aforementioned)[.,;:)]|\bexamples? (?:above|below|shows?|given)\b",
    re.IGNORECASE,
)
_FOREIGN = re.compile(r"https?://|[{}<>=|\\]|\w\(|\.\.\.|__|::|(?<!\w)--\w")  # code and URLs in running text
_FEWEST_WORDS, _MOST_WORDS, _LETTERS = 6, 45, 0.78
# macOS, eBay, pH: not the name of a setting, which begins an entry and no sentence.
_SMALL_BRAND = re.compile(r"(?:[a-z][A-Z]|[a-z]{2,3}[A-Z]{2})\w*(?=[\s'’,])")
_OPENING = "\"'“„«「『"
_ENDS = frozenset(f"{SENTENCE_ENDS}{WIDE_ENDS}\"')”»」』）") - set("?？؟")  # no questions
_PAIRS = (("(", ")"), ("[", "]"), ("“", "”"), ("«", "»"), ("「", "」"), ("『", "』"), ("（", "）"))


class _Elsewhere(NamedTuple):
    """The languages besides English, their words that lean where no spaces divide words, and what refers elsewhere."""

    languages: tuple[Language, ...]
    prefixes: tuple[str, ...]
    refers: re.Pattern[str]


@cache
def _elsewhere() -> _Elsewhere:
    found = tuple(language for language in languages().values() if language.fact is not None)
    prefixes = tuple(word for language in found if not language.frequent for word in language.leaning)
    refers = "|".join(re.escape(phrase) for language in found for phrase in language.referring)
    return _Elsewhere(found, prefixes, re.compile(refers, re.IGNORECASE))


def leans(plain: str) -> bool:
    """Return whether a sentence depends on the one before it: it begins with a pronoun or another anaphoric phrase."""
    start = plain.lstrip("\"'(")
    first = re.match(r"\w+", start)
    if first and (first[0].lower() in _LEANING or _leans_elsewhere(first[0].lower(), plain)):
        return True
    return start.startswith(_elsewhere().prefixes) or bool(_LEANS.match(start))


def _leans_elsewhere(first: str, plain: str) -> bool:
    """Return whether a sentence's first word is a pronoun in its language: "il" is one in French, "the" in Italian."""
    pronoun = [language for language in _elsewhere().languages if first in language.leaning]
    other = [language for language in _elsewhere().languages if first in language.frequent - language.leaning]
    if not pronoun or not other:
        return bool(pronoun)
    own = re.findall(r"\w+", plain.lower())

    def known(language: Language) -> int:
        return sum(word in language.frequent or word in language.leaning for word in own)

    return max(map(known, pronoun)) >= max(map(known, other))


def usable(plain: str) -> bool:
    """Return whether a sentence is complete, self-contained running text: no fragment, code or reference."""
    if leans(plain) or _REFERS.search(plain) or _elsewhere().refers.search(plain):
        return False
    return _whole(plain) and running(plain)


@lru_cache(maxsize=64)  # asked for alone, and again by ``usable``
def running(plain: str) -> bool:
    """Return whether text is running text of a sentence's length: no code, URL or table."""
    if not _FEWEST_WORDS <= word_count(plain) <= _MOST_WORDS or _FOREIGN.search(plain):
        return False
    return sum(c.isspace() or _is_letter(c) for c in plain) / len(plain) > _LETTERS


def _is_letter(char: str) -> bool:
    """Return whether a character is a letter or a mark of one, such as a vowel sign of Hindi or Thai."""
    return char.isalpha() or unicodedata.category(char).startswith("M")


def _whole(plain: str) -> bool:
    """Return whether a sentence has a proper start and end and balanced brackets and quotation marks."""
    first = plain[1:] if plain.startswith(tuple(_OPENING)) else plain
    if plain.startswith("See ") or not first or plain[-1] not in _ENDS:
        return False
    if not begins_like_a_sentence(first[0]) and not _SMALL_BRAND.match(first):
        return False
    paired = all(plain.count(pair[0]) == plain.count(pair[1]) for pair in _PAIRS)
    return paired and plain.count('"') % 2 == 0
