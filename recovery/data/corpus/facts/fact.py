"""The ``Fact`` data class (subject, relation, value, questions, answers, statements) and the grammar of its texts."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from recovery.data.corpus.text import NUMBER_WORDS, join_sentences, normalise, share, spaced, word_count, words

# Heuristic grammar: the noun for the entries of a table or list, and the form that a description begins with.

KINDS = words(
    "option hook function property prop method flag component directive parameter setting command header package "
    "field codemod attribute variable file tool object endpoint class profile strategy configuration convention "
    "export value key argument event plugin library module type interface operator route helper "
    "utility decorator macro keyword role policy rule mode level state status unit port table column script "
    "extension adapter provider service feature argument preset target"
)
_NOUNS = {  # of plurals that have more than an "s", and of short names
    "properties": "property", "strategies": "strategy", "libraries": "library", "classes": "class",
    "policies": "policy", "utilities": "utility", "statuses": "status",
    "params": "parameter", "args": "argument", "env": "variable", "environment": "variable",
}  # fmt: skip
_NO_VERB = words(
    "this its options props params settings values as always sometimes perhaps besides whereas unless across less "
    "plus versus series class process access address status analysis is was has does us gas bus focus various "
    "features files names packages modules classes headers types"
)
_VERBS = words(
    "get set return look build compile run create find show list add remove update check read write extract apply "
    "enable disable configure define allow specify control convert migrate open start stop make fetch send print "
    "generate delete load save parse render restart clear inspect move copy force skip include exclude limit override "
    "provide retrieve search select sort split merge install inject invalidate refresh track detect transform"
)


def noun_of(text: str, *, plural: bool = False) -> str:
    """Return the singular noun for the entries under a header, heading or intro ("Runtime tools" -> "tool"), or "".

    With ``plural`` only plurals match: "The `x` object has these fields:" is about fields.
    """
    for word in reversed(re.findall(r"[a-z]+", text.lower())):
        single = _NOUNS.get(word) or word.removesuffix("s")
        if single in KINDS and (single != word or not plural):
            return single
    return ""


def third_person(text: str) -> bool:
    """Return whether a text begins with a verb in the third person: "Matches against ...", "Controls whether ..."."""
    match = re.match(r"([A-Z]?[a-z]+s)\s+\S", text)
    return match is not None and match[1].lower() not in _NO_VERB and not match[1].endswith(("ss", "ous"))


def imperative(text: str) -> bool:
    """Return whether a text begins with an imperative: "Get the current error state"."""
    match = re.match(r"([A-Z][a-z]+) \S", text)
    return match is not None and match[1].lower() in _VERBS


def noun_phrase_start(text: str) -> bool:
    """Return whether a text begins like a noun phrase."""
    return bool(re.match(r"(?:The|A|An|All|Any|Whether|How|Maximum|Minimum|Number|List|Name|Path)\b", text))


MOST_WORDS, MOST_CHARACTERS = 6, 60  # of a value that can be graded
_GUESSED = words(
    "true false yes no required optional recommended string number boolean object function array null none undefined "
    "ja nein oui non sí sim não sì да нет 是 否 はい いいえ"
)
_ALTERNATIVES = re.compile(r" or | \| |, ?| ")
_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)")


@dataclass(frozen=True)
class Fact:
    """One fact stated by a document, identified by ``subject`` and ``relation``; ``value`` is the answer.

    ``place`` is the document's title plus the heading, if any; ``sentence`` states the fact plainly. ``questions`` and
    ``statements`` are several wordings each; ``brief`` is the instruction to give the value only. ``answers`` are the
    accepted spellings, the value first.
    """

    document: str
    place: str
    subject: str
    relation: str
    value: str
    sentence: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    statements: tuple[str, ...]
    brief: str = "Answer as briefly as you can."

    @property
    def key(self) -> str:
        """Hexadecimal id derived from subject and relation only."""
        return hashlib.sha256(f"{self.relation}\x1f{normalise(self.subject)}".encode()).hexdigest()[:16]

    @property
    def side(self) -> str:
        """ "probe" or "question", by the key: no fact is both evaluated and asked for in training."""
        return "probe" if share(self.key, "side") < 0.5 else "question"

    def brief_question(self, wording: int) -> str:
        """Return a question with the instruction to give the value only."""
        return join_sentences((self.questions[wording], self.brief))

    @property
    def guessed(self) -> bool:
        """Whether the value is easy to guess, such as a boolean or a type, or one of two: "null or Boolean"."""
        return all(part in _GUESSED for part in _ALTERNATIVES.split(normalise(self.value)))

    @property
    def name(self) -> str:
        """The subject without the page that it is on."""
        return self.subject.rpartition(": ")[2]


def gradable(value: str) -> bool:
    """Return whether a value can be graded as an answer: short, and not empty without punctuation."""
    short = len(value) <= MOST_CHARACTERS and word_count(value) <= MOST_WORDS
    return short and bool(re.search(r"[^\W_]", value)) and value.lower() not in ("a", "an", "the")


def spellings(value: str, *, version: bool = False, product: str = "") -> tuple[str, ...]:
    """Return the value and its accepted spellings: a version with and without ``v`` or a trailing zero, and so on.

    Graders ignore quotation marks, case and backticks, so such variants are not listed.
    """
    if version and (match := _VERSION.fullmatch(value)):
        number = match[1]
        short = re.sub(r"(?<=\d)\.0$", "", number) if number.count(".") > 1 else number
        accepted = [f"{prefix}{n}" for n in (number, short) for prefix in ("", "v", "version ")]
        accepted += [f"{product} {n}" for n in (number, short) if product]
        return tuple(dict.fromkeys(accepted))
    accepted = [value]
    if match := re.fullmatch(r"(.+?)\s+\(([^()]+)\)", value):  # not a call: "cookies.get(name)"
        accepted += [match[1], match[2]] if _restates(match[1], match[2]) else [match[1]]
    if re.fullmatch(r"\d{1,3}(,\d{3})+", value):
        accepted.append(value.replace(",", ""))
    if re.fullmatch(r"[\w.$-]+\(\)", value):
        accepted.append(value[:-2])
    if match := re.fullmatch(r"(?:experimental|unstable)[._](.+)", value):
        accepted.append(match[1])
    if " | " in value:
        accepted += [value.replace(" | ", " or "), value.replace(" | ", ", ")]
    return tuple(dict.fromkeys(v for v in accepted if gradable(v)))


def _restates(value: str, bracket: str) -> bool:
    """Return whether a bracket restates its value: a quantity, "259200000 (3 days)", or an abbreviation.

    Other brackets describe the value, "Paris (France)", and are not accepted as an answer.
    """
    are_quantities = [re.search(r"\d", text) or text.casefold() in NUMBER_WORDS for text in (value, bracket)]
    return all(are_quantities) or _abbreviates(bracket, value) or _abbreviates(value, bracket)


def _abbreviates(short: str, long: str) -> bool:
    """Return whether a word consists of letters of a longer text, in order and from the first: "K8s", "Wasm"."""
    letters = re.sub(r"[\W\d_]", "", short).casefold()
    remaining = iter(re.sub(r"[\W\d_]", "", re.sub(r"^(?:the|an?) ", "", long, flags=re.IGNORECASE)).casefold())
    if " " in short or len(letters) < 2 or len(short) >= len(long) or next(remaining, "") != letters[0]:
        return False
    return all(letter in remaining for letter in letters[1:])  # `in` consumes the iterator: each after the last


def content(text: str) -> frozenset[str]:
    """Return the words of a text in normal form, without function words."""
    return frozenset(w for w in re.findall(r"[\w-]+", spaced(normalise(text))) if w not in _FRAME)


_FRAME = frozenset(
    "a an the of in on at to for from by with as and or is are was were be it its this that which what you your can "
    "use used when not no than".split()
)


class Stated:
    """Container test for texts: ``text in Stated(facts)`` if it has all subject words and the value of a fact.

    Facts are indexed by their rarest word, since many facts share values such as "true" and words such as "option".
    """

    def __init__(self, facts: Iterable[Fact]) -> None:
        entries: dict[tuple[str, frozenset[str]], frozenset[str]] = {}  # to the words that a text must have
        for fact in facts:
            subject = content(fact.subject)
            values = (spaced(normalise(answer)) for answer in fact.answers)
            entries |= {(v, subject): subject.union(v.split()) for v in values if v}
        counts = Counter(word for required in entries.values() for word in required)
        self._by_word: dict[str, list[tuple[str, frozenset[str]]]] = defaultdict(list)
        for entry, required in entries.items():
            self._by_word[min(required, key=lambda word: (counts[word], word))].append(entry)

    def __contains__(self, text: str) -> bool:
        normal = spaced(normalise(text))
        words = content(text)
        return any(
            subject <= words and f" {value} " in f" {normal} "
            for word in words.union(normal.split())
            for value, subject in self._by_word.get(word, ())
        )
