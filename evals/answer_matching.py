"""Whether a response is an accepted answer: normalisation, exact match, containment and F1 over words."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence

from recovery.data.corpus.text import spaced, without_format


class _WithoutPunctuation(dict[int, int | None]):
    """A table for str.translate that drops ASCII symbols and the punctuation of every script."""

    def __missing__(self, code: int) -> int | None:
        self[code] = None if unicodedata.category(chr(code)).startswith("P") else code
        return self[code]


_PUNCTUATION = _WithoutPunctuation(dict.fromkeys(map(ord, string.punctuation)))
_ARTICLES = re.compile(r"(?<!\S)(a|an|the)(?!\S)")
_ARTICLES_BUT_A = re.compile(r"(?<!\S)(an|the)(?!\S)")
# An answer that is a letter or ends in one: "A", "Terminal A". Lower case may be an article: "vitamin a" as well.
_LETTER = re.compile(r"\bA\W*$")

# Marks without which an answer is another one, and how they are written. While punctuation is dropped, characters of
# private use stand for them.
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:[,'’]\d{3})+(?!\d|,\d)")  # 1,000
_MARKS = (
    (re.compile(r"(?<=\d),(?=\d)"), " "),  # 1,2
    (re.compile(r"(?<=\d)[^\w\s.,](?=\d)"), "-"),  # 1-3, 1–3, 10:30
    (re.compile(r"(?<=\d)\.(?=\d)"), "."),  # 1.5
    (re.compile(r"(?<![^\W_])(?<!\.)\.(?=\d)"), "0."),  # .5
    (re.compile(r"(?<![^\W_])[-−–](?=\d)"), "-"),  # -1
    (re.compile(r"(?<=[^\W\d_])\+\+(?![^\W\d_])"), "++"),  # C++, C++17
    (re.compile(r"(?<=[^\W\d_])\+(?![^\W_])"), "+"),  # A+
    (re.compile(r"(?<=[^\W\d_])#(?![^\W_])"), "#"),  # C#
)
_HIDDEN = str.maketrans(".-+#", "\ue000\ue001\ue002\ue003")
_SHOWN = str.maketrans("\ue000\ue001\ue002\ue003", ".-+#")


def normalise(text: str, *, letter: bool = False) -> str:
    """Normalise a text as SQuAD does (arXiv 1606.05250): lower case, no punctuation or articles, single spaces.

    Beyond SQuAD, what makes another answer of a number or a name stays: decimal points, a sign, marks between digits,
    "C++" and "C#". What is not seen is dropped, as a soft hyphen. In scripts without spaces each character is a word.
    With ``letter`` an "a" stays: the answer that the text is compared with is or ends in the letter A.
    """
    articles = _ARTICLES_BUT_A if letter else _ARTICLES
    text = unicodedata.normalize("NFKC", without_format(text)).lower()
    text = _GROUPED.sub(lambda number: re.sub(r"\D", "", number[0]), text)
    for pattern, written in _MARKS:
        text = pattern.sub(written.translate(_HIDDEN), text)
    return spaced(articles.sub(" ", text.translate(_PUNCTUATION).translate(_SHOWN)))


def exact_match(response: str, answers: Sequence[str]) -> bool:
    """Return whether the normalised response equals one of the accepted answers."""
    return any(bool(wanted) and text == wanted for text, wanted in _normalised(response, answers))


def contains(response: str, answers: Sequence[str]) -> bool:
    """Return whether an accepted answer occurs in the response as whole words, both normalised."""
    return any(bool(wanted) and f" {wanted} " in f" {text} " for text, wanted in _normalised(response, answers))


def contained(responses: Sequence[str], answers: Sequence[Sequence[str]]) -> list[list[bool]]:
    """Return :func:`contains` of each response, the columns, with each list of accepted answers, the rows."""
    texts = {letter: [f" {normalise(text, letter=letter)} " for text in responses] for letter in (False, True)}
    rows = []
    for accepted in answers:
        letters = [_LETTER.search(answer) is not None for answer in accepted]
        wanted = [(letter, normalise(answer, letter=letter)) for answer, letter in zip(accepted, letters, strict=True)]
        needles = [(texts[letter], f" {text} ") for letter, text in wanted if text]
        rows.append([any(needle in of[at] for of, needle in needles) for at in range(len(responses))])
    return rows


def token_f1(response: str, answers: Sequence[str]) -> float:
    """Return the best F1 over words between the response and an accepted answer, both normalised (SQuAD)."""
    best = 0.0
    for text, accepted in _normalised(response, answers):
        words, wanted = Counter(text.split()), Counter(accepted.split())
        common = (words & wanted).total()
        if common:
            best = max(best, 2 * common / (words.total() + wanted.total()))
    return best


def _normalised(response: str, answers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the response and each accepted answer, normalised alike."""
    for accepted in answers:
        letter = _LETTER.search(accepted) is not None
        yield normalise(response, letter=letter), normalise(accepted, letter=letter)
