"""Kinds of answers by their form, and the candidates that questions of one kind share; no model is involved."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evals.answer_matching import contains, normalise
from recovery.data.corpus.text import NUMBER_WORDS, SENTENCE_ENDS, WIDE_ENDS, word_count
from recovery.types import Probe

OTHER = "other"
FEWEST_ANSWERS = 8
"""Different answers of a kind: fewer are pooled as "other", and fewer of those are not compared."""
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
    """The candidates of a question: ``texts`` of one kind, and the places of those that are right for it.

    The first of ``right`` is the question's own answer. ``kind`` has a number where a kind is dealt into several parts.
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
    asked = [probe for probe in probes if probe.form == "question" and not probe.control and probe.answers]
    of_kind: dict[str, dict[str, list[Probe]]] = {}
    for probe in asked:
        if key := normalise(probe.answers[0]):
            of_kind.setdefault(kind_of(probe.answers[0]), {}).setdefault(key, []).append(probe)
    pooled: dict[str, list[Probe]] = {}
    for kind in [kind for kind, answers in of_kind.items() if len(answers) < FEWEST_ANSWERS]:
        for key, members in of_kind.pop(kind).items():
            pooled.setdefault(key, []).extend(members)
    if len(pooled) >= FEWEST_ANSWERS:
        of_kind[OTHER] = pooled
    found: dict[str, Candidates] = {}
    for kind, answers in of_kind.items():
        for name, part in _dealt(kind, sorted(answers, key=_drawn)):
            texts = tuple(min(probe.answers[0].strip() for probe in answers[key]) for key in part)
            for at, key in enumerate(part):
                found |= {probe.id: Candidates(name, texts, _right(probe, texts, at)) for probe in answers[key]}
    return found


def _dealt(kind: str, keys: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    """Deal the answers of a kind into as few parts of equal size as hold 32 each."""
    parts = -(-len(keys) // MOST_CANDIDATES)
    if parts == 1:
        return [(kind, keys)]
    return [(f"{kind} {part + 1}", keys[part::parts]) for part in range(parts)]


def _right(probe: Probe, texts: Sequence[str], own: int) -> tuple[int, ...]:
    return own, *(at for at, text in enumerate(texts) if at != own and contains(text, probe.answers))


def _drawn(key: str) -> bytes:
    return hashlib.sha256(f"{SEED}\x1f{key}".encode("utf-8", "surrogatepass")).digest()
