"""Whether a response is an accepted answer: normalisation, exact match, F1 over words; and the kinds of answers."""

from __future__ import annotations

import hashlib
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from recovery.data.corpus.text import NUMBER_WORDS, SENTENCE_ENDS, WIDE_ENDS, spaced, without_format, word_count
from recovery.types import Probe


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

# Marks that distinguish answers, and their normal form. Characters of private use stand for them while punctuation is
# dropped.
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

    Unlike SQuAD it keeps marks that distinguish numbers and names: decimal points, a sign, marks between digits, "C++"
    and "C#". Invisible characters such as soft hyphens are dropped. In scripts without spaces each character is a word.
    With ``letter`` an "a" stays, for a comparison with an answer that is or ends in the letter A.
    """
    articles = _ARTICLES_BUT_A if letter else _ARTICLES
    text = unicodedata.normalize("NFKC", without_format(text)).lower()
    text = _GROUPED.sub(lambda number: re.sub(r"\D", "", number[0]), text)
    for pattern, replacement in _MARKS:
        text = pattern.sub(replacement.translate(_HIDDEN), text)
    return spaced(articles.sub(" ", text.translate(_PUNCTUATION).translate(_SHOWN)))


def exact_match(response: str, answers: Sequence[str]) -> bool:
    """Return whether the normalised response equals one of the accepted answers."""
    return any(bool(answer) and text == answer for text, answer in _normalised(response, answers))


def contains(response: str, answers: Sequence[str]) -> bool:
    """Return whether an accepted answer occurs in the response as whole words, both normalised."""
    return any(bool(answer) and f" {answer} " in f" {text} " for text, answer in _normalised(response, answers))


def contained(responses: Sequence[str], answers: Sequence[Sequence[str]]) -> list[list[bool]]:
    """Return :func:`contains` of each response, the columns, with each list of accepted answers, the rows."""
    texts = {letter: [f" {normalise(text, letter=letter)} " for text in responses] for letter in (False, True)}
    rows = []
    for accepted in answers:
        letters = [_LETTER.search(answer) is not None for answer in accepted]
        forms = [(letter, normalise(answer, letter=letter)) for answer, letter in zip(accepted, letters, strict=True)]
        needles = [(texts[letter], f" {text} ") for letter, text in forms if text]
        rows.append([any(needle in padded[at] for padded, needle in needles) for at in range(len(responses))])
    return rows


def token_f1(response: str, answers: Sequence[str]) -> float:
    """Return the best F1 over words between the response and an accepted answer, both normalised (SQuAD)."""
    best = 0.0
    for text, answer in _normalised(response, answers):
        words, answer_words = Counter(text.split()), Counter(answer.split())
        common = (words & answer_words).total()
        if common:
            best = max(best, 2 * common / (words.total() + answer_words.total()))
    return best


def _normalised(response: str, answers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the response with each accepted answer, both normalised in the same way."""
    for accepted in answers:
        letter = _LETTER.search(accepted) is not None
        yield normalise(response, letter=letter), normalise(accepted, letter=letter)


# Kinds of answers by their form, and the candidates that questions of one kind share; no model is involved.

OTHER = "other"
FEWEST_ANSWERS = 8
"""Minimum number of different answers of a kind. Kinds with fewer are pooled as "other", which needs as many."""
MOST_CANDIDATES = 32
SEED = 0

_QUOTES = "`'\"“”‘’«»„ "
_UNIT = r"(?:\s?(?:%|°|[^\W\d_][\w°²³/]*))?"
_LONGEST_NAME = 4  # words
# The first form that a whole answer has.
_FORMS = (
    ("flag", re.compile(r"--?[^\W\d_][\w.-]*(?:[= ]\S+)?")),
    ("version", re.compile(r"[<>=~^]*\s?(?:v(?:ersion)?\s?\d+(?:\.\d+)*|\d+(?:\.\d+){2,})(?:[-+][\w.-]+)?", re.I)),
    ("number", re.compile(rf"[-−+~±≈<>$€£¥]*\s?\d[\d.,:\s]*{_UNIT}")),
    ("number", re.compile(rf"(?:{'|'.join(NUMBER_WORDS)}){_UNIT}", re.I)),
    ("path", re.compile(r"\S*/\S*|[.~%]?[\w-]*[^\W\d_][\w-]*\.[a-z][a-z0-9]{0,4}|\S*\\\S*")),
)
_NAME_WORD = re.compile(r"[^\W\d_a-z]|\d")  # a capital, or a letter without case
_CODE = re.compile(r"[_$@(){}<>=:.]|[a-z][A-Z]|[A-Za-z]-[A-Za-z]|\w\d")
_PARTICLES = frozenset("a an and at by de del der des di du for from in la le of on or the to van von with y".split())


@dataclass(frozen=True)
class Candidates:
    """The candidates of a question: ``texts`` of one kind, and the indices of those that are ``right`` for it.

    The first of ``right`` is the question's own answer. ``kind`` ends in a number if the kind has several parts.
    """

    kind: str
    texts: tuple[str, ...]
    right: tuple[int, ...]


def kind_of(answer: str) -> str:
    """Return the form of an answer: version, number, path, flag, identifier, name or sentence."""
    text = answer.strip().strip(_QUOTES)
    for kind, form in _FORMS:
        if form.fullmatch(text):
            return kind
    words = text.split()
    if len(words) == 1 and not (text.istitle() and text.isalpha()):
        cased = text.lower() != text.upper()
        if cased and (_CODE.search(text) or text == text.lower()):
            return "identifier"
    bare = [word for word in words if word.lower() not in _PARTICLES]
    ended = text[-1:] in SENTENCE_ENDS + WIDE_ENDS
    if bare and not ended and word_count(text) <= _LONGEST_NAME and all(_NAME_WORD.match(word) for word in bare):
        return "name"
    return "sentence"


def candidates_of(probes: Iterable[Probe]) -> dict[str, Candidates]:
    """Return the candidates of each question by its id; questions that cannot be compared have none.

    Candidates are the different first answers of all questions of the kind, but of control questions. A kind with more
    than 32 is dealt into parts of equal size by a hash with :data:`SEED`: every question keeps its own answer, and the
    others of its part. The result follows from the questions alone, so that all checkpoints share it.
    """
    questions = [probe for probe in probes if probe.form == "question" and not probe.control and probe.answers]
    by_kind: dict[str, dict[str, list[Probe]]] = {}
    for probe in questions:
        if key := normalise(probe.answers[0]):
            by_kind.setdefault(kind_of(probe.answers[0]), {}).setdefault(key, []).append(probe)
    pooled: dict[str, list[Probe]] = {}
    for kind in [kind for kind, answers in by_kind.items() if len(answers) < FEWEST_ANSWERS]:
        for key, members in by_kind.pop(kind).items():
            pooled.setdefault(key, []).extend(members)
    if len(pooled) >= FEWEST_ANSWERS:
        by_kind[OTHER] = pooled
    candidates: dict[str, Candidates] = {}
    for kind, answers in by_kind.items():
        for name, part in _parts_of_kind(kind, sorted(answers, key=_draw_order)):
            texts = tuple(min(probe.answers[0].strip() for probe in answers[key]) for key in part)
            asked = [(at, probe) for at, key in enumerate(part) for probe in answers[key]]
            # Texts are normalised once for all questions: one by one takes seconds for a thousand.
            for (own, probe), right in zip(asked, contained(texts, [probe.answers for _, probe in asked]), strict=True):
                others = (at for at, is_right in enumerate(right) if is_right and at != own)
                candidates[probe.id] = Candidates(name, texts, (own, *others))
    return candidates


def _parts_of_kind(kind: str, keys: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    """Deal the answers of a kind into as few parts of equal size as hold 32 each."""
    parts = -(-len(keys) // MOST_CANDIDATES)
    if parts == 1:
        return [(kind, keys)]
    return [(f"{kind} {part + 1}", keys[part::parts]) for part in range(parts)]


def _draw_order(key: str) -> bytes:
    return hashlib.sha256(f"{SEED}\x1f{key}".encode("utf-8", "surrogatepass")).digest()


def doubts(probes: Iterable[Probe]) -> list[str]:
    """Return a line for each question that contains its answer, and for each whose passage lacks the answer.

    Answers are compared without most marks: "[[...slug]]" and "slug" are the same.
    """
    lines = []
    for probe in probes:
        if probe.form != "question" or probe.absent:
            continue
        if any(contains(probe.question, [answer]) for answer in probe.answers):
            lines.append(f"look again: {probe.id}: its question contains its answer, so that repeating it is right")
        if probe.passage and not contains(probe.passage, probe.answers):
            lines.append(f"look again: {probe.id}: its passage does not contain its answer")
    return lines
