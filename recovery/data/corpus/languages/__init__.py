"""The languages of documents: how a text's language is recognised, and the wordings of questions in each.

A language is a file ``CODE.toml`` here. Wordings combine names and values with fixed words, so that none must be
inflected. ``others.toml`` has frequent words of languages without wordings; texts in those get English ones.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recovery.data.corpus.text import words

if TYPE_CHECKING:
    from recovery.data.corpus.documents import Document

_FOLDER = Path(__file__).parent
_OTHERS = "others"
_READ, _PIECES = 10_000, 5  # characters of a text, in pieces: the beginning may be a preface in another language
_LEAST_SHARE = 0.12  # of frequent words
_MIXED = 0.25  # of the score of English: that much of another language is in a translation with English parts only
_OWN_SCRIPT = 0.2  # of the letters
_LETTERS = re.compile(r"[^\W\d_]+(?:'(?=[^\W\d_]))?")  # "l'" and "heure"
_ABBREVIATED = re.compile(r"\b[ei]\.\s?[eg]\.")  # "i.e." is no Italian
_KANA, _HAN = re.compile("[\u3041-\u30ff]"), re.compile("[\u3400-\u9fff]")
_HANGUL, _CYRILLIC = re.compile("[\uac00-\ud7af]"), re.compile("[\u0400-\u04ff]")


@dataclass(frozen=True)
class Wordings:
    """Questions for a relation and statements of it."""

    questions: tuple[str, ...]
    statements: tuple[str, ...]


@dataclass(frozen=True)
class FactWordings:
    """Questions about facts of tables and lists: the instruction after each, and the wordings by relation."""

    under: str
    brief: str
    name_only: str
    value_only: str
    type_only: str
    version_only: str
    cell: Wordings
    description: Wordings
    default: Wordings
    type: Wordings
    change: Wordings


@dataclass(frozen=True)
class GapWordings:
    """Training questions for a gap in a sentence, and for the end of a sentence."""

    training: tuple[str, ...]
    continuation: str


@dataclass(frozen=True)
class DescribeWordings:
    """Requests to describe a subject, a section or a page, and for what follows a passage."""

    subject: tuple[str, ...]
    section: str
    page: str
    next: str


@dataclass(frozen=True)
class Language:
    """What is known of a language.

    ``frequent`` are function words, by which it is recognised; ``leaning`` are words that refer to the sentence before
    if they begin one, ``referring`` phrases that refer to other text; nouns often follow ``before_nouns`` and have none
    of the endings ``no_nouns``. ``examples`` stand before an example and ``parts`` before the number of a section.
    ``classes`` are small closed sets of words, such as the months. With ``decimal_comma``, "1,5" is one and a half.
    ``headers`` are column headers by kind. ``fact`` is None for English, which has rules of its own, and wordings of
    each of its ``relations``.
    """

    code: str
    frequent: frozenset[str]
    leaning: frozenset[str]
    referring: tuple[str, ...]
    abbreviations: frozenset[str]
    before_nouns: frozenset[str]
    no_nouns: tuple[str, ...]
    examples: tuple[str, ...]
    parts: tuple[str, ...]
    classes: tuple[tuple[str, ...], ...]
    missing: Mapping[str, str]
    gap: GapWordings
    describe: DescribeWordings
    decimal_comma: bool = False
    headers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    fact: FactWordings | None = None
    relations: Mapping[str, Wordings] = field(default_factory=dict)


@cache
def languages() -> dict[str, Language]:
    """Return all languages with wordings, by code; English first."""
    codes = sorted(path.stem for path in _FOLDER.glob("*.toml") if path.stem != _OTHERS)
    return {code: _language(code) for code in sorted(codes, key=lambda code: code != "en")}


def english() -> Language:
    return languages()["en"]


def language_of(text: str) -> Language:
    """Return the language of a document; English if its language has no wordings or is unclear.

    The script decides for Japanese and Chinese, otherwise the function words: each counts for the languages that have
    it, less if several do. A translation of which a part is still English is in the other language.
    """
    text = _sample(text)
    letters = _letters(text)
    wide = _wide_script(text, sum(map(len, letters)))
    if wide is not None:
        return languages().get(wide, english())
    # Cyrillic has few languages, and few function words.
    cyrillic = len(_CYRILLIC.findall(text)) > _OWN_SCRIPT * sum(map(len, letters))
    scores: dict[str, float] = defaultdict(float)
    hits: dict[str, int] = defaultdict(int)
    for word in letters if not cyrillic else filter(_CYRILLIC.match, letters):
        for code in (owners := _owners().get(word, ())):
            scores[code] += 1 / len(owners)
            hits[code] += 1
    english_score = scores.pop("en", 0.0)
    best = max(scores, key=lambda code: scores[code], default="en")
    frequent = hits[best] >= _LEAST_SHARE * len(letters) and scores.get(best, 0.0) > _MIXED * english_score
    return languages().get(best, english()) if cyrillic or frequent else english()


def languages_of(documents: Iterable[Document]) -> dict[str, Language]:
    """Return the language of each document, by its id."""
    return {document.id: language_of(document.text) for document in documents}


def language_within(text: str, likely: Language) -> Language:
    """Return the language of a sentence in a document of the language ``likely``: that one, or English.

    Translations have untranslated sentences, and one sentence alone can be taken for one of a related language.
    """
    of_script = len(_KANA.findall(text)) + len(_HAN.findall(text))
    letters = _letters(text)
    in_english = sum("en" in _owners().get(word, ()) for word in letters)
    in_likely = of_script + sum(likely.code in _owners().get(word, ()) for word in letters)
    return english() if in_english > in_likely else likely


def _sample(text: str) -> str:
    """Return pieces of a long text, from its beginning to its end."""
    if len(text) <= _READ:
        return text
    size = _READ // _PIECES
    starts = (n * (len(text) - size) // (_PIECES - 1) for n in range(_PIECES))
    return " ".join(text[start : start + size] for start in starts)


def _letters(text: str) -> list[str]:
    return _LETTERS.findall(_ABBREVIATED.sub(" ", text.lower()).replace("\u2019", "'"))


def _wide_script(text: str, letters: int) -> str | None:
    """Return "ja", "zh" or "ko" if many letters are of its script, else None. ``letters`` are all letters."""
    kana, han, hangul = (len(pattern.findall(text)) for pattern in (_KANA, _HAN, _HANGUL))
    if 2 * (kana + han + hangul) < max(1, _OWN_SCRIPT * letters):  # one is as much text as two of Latin, or more
        return None
    if hangul > kana + han:
        return "ko"
    return "ja" if 10 * kana > han else "zh"


@cache
def _owners() -> dict[str, tuple[str, ...]]:
    """Return the languages of each frequent word."""
    owners: dict[str, list[str]] = defaultdict(list)
    others = tomllib.loads((_FOLDER / f"{_OTHERS}.toml").read_text(encoding="utf-8"))
    sets = {code: language.frequent | language.leaning for code, language in languages().items()}
    for code, frequent in (sets | {code: words(text) for code, text in others.items()}).items():
        for word in frequent:
            owners[word].append(code)
    return {word: tuple(codes) for word, codes in owners.items()}


def _language(code: str) -> Language:
    table = tomllib.loads((_FOLDER / f"{code}.toml").read_text(encoding="utf-8"))
    return Language(
        code=code,
        frequent=words(table["frequent"]),
        leaning=words(table["leaning"]),
        referring=tuple(table["referring"]),
        abbreviations=words(table["abbreviations"]),
        before_nouns=words(table["before_nouns"]),
        no_nouns=tuple(table["no_nouns"].split()),
        examples=tuple(table["examples"]),
        parts=tuple(table["parts"].split()),
        classes=tuple(tuple(members.split()) for members in table["classes"]),
        missing=table["missing"],
        gap=GapWordings(**_frozen(table["gap"])),
        describe=DescribeWordings(**_frozen(table["describe"])),
        decimal_comma=table.get("decimal_comma", False),
        headers={kind: frozenset(names) for kind, names in table.get("headers", {}).items()},
        fact=FactWordings(**_wordings(table["fact"])) if "fact" in table else None,
        relations=_wordings(table.get("relations", {})),
    )


def _wordings(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with wordings in place of the tables within it."""
    return {key: Wordings(**_frozen(value)) if isinstance(value, dict) else value for key, value in table.items()}


def _frozen(table: Mapping[str, str | Sequence[str]]) -> dict[str, Any]:
    """Return a table with lists as tuples."""
    return {key: value if isinstance(value, str) else tuple(value) for key, value in table.items()}
