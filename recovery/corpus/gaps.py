"""Gaps: names, numbers and terms of a sentence that can be asked for, and wrong answers of the same sort.

Nothing here needs a model. What is common in the corpus itself counts as common; a distractor is of the answer's
type and close to it in frequency and length, so that neither gives the answer away.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from recovery.corpus.sentences import Sentence, plain_text
from recovery.corpus.text import normalise, share, words

KINDS = ("number", "name", "term")
_NUMBER = re.compile(r"(?<![\w.,:/#+-])(?:\d{1,3}(?:,\d{3})+|\d{2,}|\d+\.\d+)(?![\w:/-]|[.,]\d)")
_NAME = re.compile(r"(?<![\w.'-])[A-Z][\w-]*\w(?: [A-Z][\w-]*\w){0,3}(?![\w'’]|\.\w)")
_TERM = re.compile(r"(?<![\w.'’/@-])[a-z]{5,}(?:-[a-z]+)?(?![\w'’/-]|\.\w)")
_LEAST_BEFORE = 4
_SUFFIXES = ("ing", "ed", "ion", "ment", "ness", "ity", "able", "ible", "ive", "al", "ous", "ful", "er", "or", "s")

# Words of any English text: asking for one of them tests the language, not the document.
_COMMON = words(
    """
    about above across after again against almost along already although always among another anyone anything
    around because become becomes before began behind being below besides better between beyond bring called
    cannot cases certain clear close common could course currently different doing during early easily either
    enough entire especially every everything exactly example examples except first follow following follows
    found fully further general generally getting given gives giving going great greater happen happens having
    hence however important include included includes including instead itself keeps known large larger later
    least leave less like likely little longer looks makes making makes maybe means might moment never nothing
    number numbers often other others otherwise outside particular parts people perhaps place possible possibly
    rather really right same second several shall should similar simple simply since small smaller something
    sometimes still such taken takes than their theirs them themselves there therefore these thing things third
    those though three through throughout thus together toward towards under unless until unlike using usual
    usually various very want wants way ways what whatever when whenever where whereas wherever whether which
    whichever while whole whose within without would years yours each only some must used uses useful allows
    allow allowed called needed needs additional additionally appropriate available based behave change changes
    contain contains corresponding current default define defined described directly discussed done equal
    equivalent explicitly implicitly itself left mainly normal normally note occur occurs original permitted
    present previous previously provide provided provides purpose refer referred refers related respective
    respectively result results section sections similarly special specific specified subject typically types
    value values works written
    """
)


@dataclass(frozen=True)
class Gap:
    """One answer in one sentence: ``before`` and ``after`` are verbatim text, ``kind`` one of KINDS."""

    sentence: Sentence
    kind: str
    answer: str
    before: str
    after: str

    @property
    def key(self) -> tuple[str, str]:
        """(sentence, answer) in normal form: no two askings of the same thing differ in it."""
        return self.sentence.key, normalise(self.answer)


class Vocabulary:
    """What a corpus says how often: the source of answers worth asking for and of their distractors."""

    def __init__(self, sentences: Sequence[Sentence]) -> None:
        self.words: Counter[str] = Counter()
        self.names: Counter[str] = Counter()
        self.numbers: Counter[str] = Counter()
        self.lower: Counter[str] = Counter()
        for sentence in sentences:
            text = sentence.plain
            self.words.update(re.findall(r"[a-z][a-z-]+", text.lower()))
            self.lower.update(re.findall(r"(?<![\w])[a-z][a-z-]+", text))
            self.names.update(m[0] for m in _NAME.finditer(text) if m.start() > 1)
            self.numbers.update(m[0] for m in _NUMBER.finditer(text))
        self._common = self._most_common()
        self.terms = Counter({w: n for w in self.lower if self._is_term(w, n := self.lower[w])})

    def _most_common(self) -> frozenset[str]:
        """The words that make up the first half of all running text."""
        total, seen, words = sum(self.words.values()), 0, set()
        for word, n in self.words.most_common():
            if seen > 0.5 * total:
                break
            words.add(word)
            seen += n
        return frozenset(words)

    def _is_term(self, word: str, n: int) -> bool:
        return n >= 2 and bool(_TERM.fullmatch(word)) and not self._ordinary(word)

    def _ordinary(self, word: str) -> bool:
        return word in _COMMON or word in self._common or word.endswith("ly")

    def counts(self, kind: str) -> Counter[str]:
        """How often each candidate of a kind occurs."""
        return {"number": self.numbers, "name": self.names, "term": self.terms}[kind]

    def is_name(self, text: str) -> bool:
        """Whether a capitalised word is a name: never or seldom seen in lower case, and no ordinary word."""
        words = [w.lower() for w in text.split()]
        if len(words) == 1 and (words[0] in _COMMON or len(words[0]) < 3):
            return False
        return any(self.lower[w] * 4 <= self.names[text] or not self.lower[w] for w in words)

    def gaps(self, sentence: Sentence) -> list[Gap]:
        """The gaps of a sentence, the most telling first: numbers, then rarer names, then rarer terms."""
        found = [
            *self._matches(sentence, "number", _NUMBER),
            *(g for g in self._matches(sentence, "name", _NAME) if self.is_name(g.answer)),
            *(g for g in self._matches(sentence, "term", _TERM) if g.answer in self.terms),
        ]
        return sorted(found, key=lambda g: (_rank(g), self.counts(g.kind)[g.answer], -len(g.before)))

    def _matches(self, sentence: Sentence, kind: str, pattern: re.Pattern[str]) -> Iterable[Gap]:
        lead = normalise(f"{sentence.title} {sentence.heading}").split()
        for match in pattern.finditer(sentence.raw):
            gap = Gap(sentence, kind, match[0], sentence.raw[: match.start()], sentence.raw[match.end() :])
            rest = normalise(plain_text(gap.before) + " " + plain_text(gap.after)).split()
            told = any(_same_root(word, other) for word in normalise(match[0]).split() for other in rest + lead)
            if len(plain_text(gap.before).split()) >= _LEAST_BEFORE and not told and _balanced(gap.before):
                yield gap

    # --- wrong answers --------------------------------------------------------------------------------------

    def distractors(self, gap: Gap, count: int, seed: int) -> list[str]:
        """Up to ``count`` wrong answers of the answer's kind, the closest in frequency, length and form."""
        rng = random.Random(f"{seed}:{gap.key}")
        counts = self.counts(gap.kind)
        near = normalise(f"{gap.sentence.plain} {gap.sentence.title}")
        pool = [w for w in counts if self._fits(w, gap, near)]
        own = counts[gap.answer]
        ranked = sorted(pool, key=lambda w: (_distance(w, counts[w], gap, own) + 0.25 * rng.random(), w))
        chosen = ranked[:count]
        if gap.kind == "number":
            chosen += made_up_numbers(gap.answer, count - len(chosen), {gap.answer, *chosen}, rng)
        return chosen

    def _fits(self, word: str, gap: Gap, near: str) -> bool:
        if gap.kind == "name" and not self.is_name(word):
            return False
        if normalise(word) in near or any(_same_root(a, word.lower()) for a in gap.answer.lower().split()):
            return False
        article = re.search(r"\b(an?)\s+[\W_]*$", gap.before)
        if article and gap.kind != "number" and (word[0].lower() in "aeiou") != (gap.answer[0].lower() in "aeiou"):
            return False
        if gap.kind == "number":
            return _number_shape(word) == _number_shape(gap.answer)
        return gap.kind != "name" or word.isupper() == gap.answer.isupper()


def _rank(gap: Gap) -> int:
    """Numbers and names before terms, and terms that look like nouns before those that look like verbs."""
    return KINDS.index(gap.kind) + (gap.kind == "term" and gap.answer.endswith(("ed", "ing")))


def _same_root(a: str, b: str) -> bool:
    """Whether two words are forms of one: equal, or equal in all but a short ending."""
    if a == b:
        return True
    short = min(len(a), len(b))
    return short >= 5 and a[: max(5, short - 2)] == b[: max(5, short - 2)] and abs(len(a) - len(b)) <= 3


def _balanced(before: str) -> bool:
    """Whether no link or role is open at the gap: a choice is scored as text, and must not sit in an address."""
    return not re.search(r"\]\([^)]*$|<[^>]*$|:\w+:`[^`]*$", before)


def _number_shape(text: str) -> tuple[str, int]:
    if "." in text:
        return "decimal", len(text.split(".")[1])
    if re.fullmatch(r"1[5-9]\d\d|20\d\d", text):
        return "year", 4
    return ("grouped" if "," in text else "integer"), len(text)


def made_up_numbers(answer: str, count: int, taken: set[str], rng: random.Random) -> list[str]:
    """Numbers of the answer's form for corpora that hold too few: other digits, or another year nearby."""
    made: list[str] = []
    for _ in range(count * 20):
        if len(made) >= count:
            break
        if _number_shape(answer)[0] == "year":
            text = str(int(answer) + rng.choice((-1, 1)) * rng.randint(1, 15))
        else:
            digits = [str(rng.randint(0, 9)) if c.isdigit() else c for c in answer]
            digits[0] = str(rng.randint(1, 9)) if answer[0] != "0" else "0"
            digits[-1] = answer[-1] if answer[-1] in "05" and rng.random() < 0.7 else digits[-1]
            text = "".join(digits)
        if text not in taken:
            taken.add(text)
            made.append(text)
    return made


def _distance(word: str, n: int, gap: Gap, own: int) -> float:
    """How unlike the answer a candidate is: frequency on a log scale, length, number of words, ending."""
    answer = gap.answer
    distance = abs(math.log2((n + 1) / (own + 1))) + abs(len(word) - len(answer)) / 3
    if gap.kind == "name":
        distance += 2 * abs(word.count(" ") - answer.count(" "))
    if gap.kind == "term":
        distance += 2 * (_ending(word) != _ending(answer))
    return distance


def _ending(word: str) -> str:
    return next((s for s in _SUFFIXES if word.endswith(s) and not word.endswith("ss")), "")


def pick_gaps(
    sentences: Sequence[Sentence], vocabulary: Vocabulary, count: int, seed: int, *, per_sentence: int = 3
) -> list[Gap]:
    """Up to ``count`` gaps, spread over sentences and answers: every sentence once before any a second time."""
    rounds: list[list[Gap]] = [[] for _ in range(per_sentence)]
    for sentence in sorted(sentences, key=lambda s: share(s.plain, f"pick {seed}")):
        for turn, gap in zip(rounds, vocabulary.gaps(sentence), strict=False):
            turn.append(gap)
    picked: list[Gap] = []
    used: Counter[str] = Counter()
    limit = max(2, count // 50)
    for gap in (g for turn in rounds for g in sorted(turn, key=_rank)):
        if len(picked) == count:
            break
        if used[gap.answer] < limit:
            used[gap.answer] += 1
            picked.append(gap)
    return picked
