"""Cloze gaps: names, numbers and terms of a sentence that a question can ask for. No model is needed.

Counts of the neighbouring words tell nouns from adjectives and measure how similarly two words are used.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from recovery.data.corpus.languages import Language, language_of
from recovery.data.corpus.sentences import Sentence, plain_text
from recovery.data.corpus.text import NUMBER_WORDS, join_sentences, normalise, share, word_count, words

KINDS = ("number", "name", "term")
CLASSES = (  # small closed sets: a distractor for a member is another member
    tuple("January February March April May June July August September October November December".split(" ")),
    tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(" ")),
    tuple(NUMBER_WORDS),
)
_LOWER = "".join(c for c in map(chr, range(0x530)) if c.islower())  # Latin, Greek and Cyrillic
_UPPER = "".join(c for c in map(chr, range(0x530)) if c.isupper())
_W = f"0-9_{_LOWER}{_UPPER}"  # \w without scripts that have no spaces between words
_WORD = re.compile(r"[^\W_]+")
_LOWERED = re.compile(rf"[{_LOWER}][{_LOWER}-]+")
_LOWERED_ALONE = re.compile(rf"(?<![{_W}])[{_LOWER}][{_LOWER}-]+")
_WORD_NUMBER = re.compile(rf"(?<![\w-])(?:{'|'.join(NUMBER_WORDS)})(?![\w-])")
_SPACE = r"[ \u00a0\u2007\u2009\u202f]"
_GROUPED = rf"\d{{1,3}}(?:{_SPACE}\d{{3}})+(?!\d)"  # "10 000"
_WITHIN = "|".join(rf"(?<=(?<![\w.,:/#+-])\d{{{n}}}{_SPACE})" for n in (1, 2, 3))  # behind a first group
_NUMBER, _NUMBER_WITH_COMMA = (
    re.compile(
        rf"(?<![{_W}.,:/#+-])(?!(?:{_WITHIN})\d{{3}}(?!\d))"
        rf"(?:(?>{_GROUPED}(?:[.,]\d+)?)|(?!{_GROUPED})(?:\d{{1,3}}(?:,\d{{3}})+|\d{{2,}}|\d+{decimal}\d+))"
        rf"(?![{_W}:/-]|[.,]\d)"
    )
    for decimal in (r"\.", "[.,]")
)
_ELIDED = "(?<=[ (][ldLD]['’])"  # behind "l'"
_NAME = re.compile(
    rf"(?:(?<![{_W}.'-])|{_ELIDED})[{_UPPER}][{_W}-]*[{_W}](?: [{_UPPER}](?:[{_W}-]*[{_W}])?){{0,3}}"
    rf"(?![{_W}'’]|\.[{_W}]| [{_UPPER}]|(?<= [{_UPPER}])\.)"  # "Donald E." goes on
    r"|[\u30a1-\u30fa\u30fc]{3,}(?:・[\u30a1-\u30fa\u30fc]+)*"  # a word in katakana
    r"|(?<=[「『《])[^「」『』《》]{2,15}(?=[」』》])"  # a name in Chinese or Japanese
)
_TERM = re.compile(rf"(?:(?<![{_W}.'’/@-])|{_ELIDED})[{_LOWER}]{{5,}}(?:-[{_LOWER}]+)?(?![{_W}'’/-]|\.[{_W}])")
_NOUN_SIGN = re.compile(
    rf"\b(?:[Tt]he|[Aa]n?|[Tt]his|[Ee]ach|[Ee]very|[Nn]o|any|some|its|their|of) ([{_LOWER}][{_LOWER}-]+)"
)
_AFTER_A_NAME = re.compile(rf"[{_UPPER}][{_W}'’-]*\s+$")  # the rest of a longer name is not a name
_IN_EXAMPLES = re.compile(r"(?:\be\.g\.|\bsuch as\b|\b[Ff]or (?:example|instance)\b)[^.;)]*$")  # an example
# A link or a role that is open at the gap: a choice is scored as text, so not within an address.
_OPEN = re.compile(r"\]\([^)]*$|<[^>]*$|:\w+:`[^`]*$")
# The word after one of these is a verb or anaphoric, so no term to ask for.
_NO_TERM_AFTER = words(
    "to this these such it they he she we you i who which that can could may might must will would shall should do "
    "does did not"
)
_NOUN_SHARE = 0.3
_MOST_FREQUENT_SHARE = 0.03
_LEAST_FREQUENT = 20
_LEAST_BEFORE = 3
_PER_SENTENCE = 3  # gaps

# Common English words: asking for one of them tests the language, not the document.
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
    value values works written description descriptions detail details information effect effects
    """
)


@dataclass(frozen=True)
class Gap:
    """A blanked answer in a sentence: ``before`` and ``after`` are verbatim text, ``kind`` is one of KINDS."""

    sentence: Sentence
    kind: str
    answer: str
    before: str
    after: str

    @property
    def written(self) -> str:
        """The answer as in the sentence, where a number may have non-breaking spaces."""
        return self.sentence.raw[len(self.before) :][: len(self.answer)]

    @property
    def key(self) -> tuple[str, str]:
        """(sentence, answer) in normal form: equal for two gaps that ask for the same thing."""
        return self.sentence.key, normalise(self.answer)


class Vocabulary:
    """Frequencies of the words, names and numbers of a corpus: the source of answers and of their distractors."""

    def __init__(self, sentences: Sequence[Sentence]) -> None:
        self.words: Counter[str] = Counter()
        self.lower: Counter[str] = Counter()
        self.names: Counter[str] = Counter()
        self.numbers: Counter[str] = Counter()
        self.as_noun: Counter[str] = Counter()
        self.usage = Cooccurrence()
        self._order: dict[str, list[tuple[int, int, str]]] = {}
        self._language = language_of(" ".join(s.plain[:100] for s in sentences[:: max(1, len(sentences) // 100)]))
        self._noun_sign = _noun_sign(self._language)
        self._no_gap_after = _no_gap_after(self._language)
        self._number = _NUMBER_WITH_COMMA if self._language.decimal_comma else _NUMBER
        self.classes = (*self._language.classes, *CLASSES)
        for sentence in sentences:
            self._read(sentence.plain)
        self._everywhere = max(_LEAST_FREQUENT, _MOST_FREQUENT_SHARE * len(sentences))
        self._common = self._most_common()
        self.terms = Counter({w: n for w, n in self.lower.items() if self._is_term(w, n)})

    def _read(self, text: str) -> None:
        self.words.update(_LOWERED.findall(text.lower()))
        self.lower.update(_LOWERED_ALONE.findall(text))
        self.as_noun.update(self._noun_sign.findall(text) if self._noun_sign else ())
        self.numbers.update(m[0] for m in self._number.finditer(text) if not _may_be_two_numbers(m[0]))
        for match in _NAME.finditer(text):
            if not _begins_sentence(text[: match.start()]):
                self.names[match[0]] += 1
                self.usage.add(match[0], text[: match.start()], text[match.end() :])
        for match in _TERM.finditer(text):
            self.usage.add(match[0], text[: match.start()], text[match.end() :])

    def _most_common(self) -> frozenset[str]:
        """Return the most frequent words, which together make up half of the text."""
        ranked = self.words.most_common()
        before = accumulate((n for _, n in ranked), initial=0)
        half = 0.5 * self.words.total()
        return frozenset(word for (word, _), passed in zip(ranked, before, strict=False) if passed <= half)

    def _is_term(self, word: str, n: int) -> bool:
        """Return whether a word occurs twice, is not ordinary, and is probably a noun (often after a determiner)."""
        noun = self.as_noun[word] >= _NOUN_SHARE * n
        return n >= 2 and noun and bool(_TERM.fullmatch(word)) and not self._is_ordinary(word)

    def _is_ordinary(self, word: str) -> bool:
        language = self._language
        if word in NUMBER_WORDS or word.endswith(("ly", *language.no_nouns)):
            return True
        return any(word in known for known in (_COMMON, self._common, language.frequent, language.leaning))

    def counts(self, kind: str) -> Counter[str]:
        """Return how often each candidate of a kind occurs."""
        return {"number": self.numbers, "name": self.names, "term": self.terms}[kind]

    def rank(self, kind: str, word: str) -> tuple[int, int]:
        """Return (bit length of the frequency, length): words of equal rank look equally likely."""
        return (self.counts(kind)[word] + 1).bit_length(), len(word)

    def order(self, kind: str) -> list[tuple[int, int, str]]:
        """Return the candidates of a kind, sorted by rank."""
        if kind not in self._order:
            self._order[kind] = sorted((*self.rank(kind, word), word) for word in self.counts(kind))
        return self._order[kind]

    def is_name(self, text: str) -> bool:
        """Return whether a capitalised word is a name: rarely or never in lower case, and not an ordinary word."""
        parts = [w.lower() for w in text.split()]
        if len(parts) == 1 and (parts[0] in _COMMON or len(parts[0]) < 3):
            return False
        return any(self.lower[w] * 4 <= self.names[text] or not self.lower[w] for w in parts)

    def gaps(self, sentence: Sentence) -> list[Gap]:
        """Return the gaps of a sentence, the most informative first: numbers, then rarer names, then rarer terms."""
        found = [
            *self._matches(sentence, "number", self._number, lambda g: not _may_be_two_numbers(g.written)),
            *self._matches(sentence, "number", _WORD_NUMBER),
            *self._matches(sentence, "name", _NAME, self._askable_name),
            *self._matches(sentence, "term", _TERM, lambda g: g.answer in self.terms and not _is_no_term(g)),
        ]
        return sorted(found, key=lambda g: (_rank(g), self.counts(g.kind)[g.answer], -len(g.before)))

    def _askable_name(self, gap: Gap) -> bool:
        """Return whether a capitalised word is a complete name that is not too frequent in the corpus."""
        # In "Building 7" the number is more informative; in "March 2016" both words are.
        numbered = re.match(r"\s\d", gap.after) and not any(gap.answer in members for members in self.classes)
        if _begins_sentence(gap.before) or _AFTER_A_NAME.search(gap.before) or numbered:
            return False
        return self.is_name(gap.answer) and self.names[gap.answer] <= self._everywhere

    def _matches(
        self, sentence: Sentence, kind: str, pattern: re.Pattern[str], askable: Callable[[Gap], object] = lambda _: True
    ) -> Iterable[Gap]:
        """Yield the askable gaps of a kind, unless the rest of the sentence, its title or heading gives the answer."""
        for match in pattern.finditer(sentence.raw):
            # The vocabulary has plain spaces in numbers.
            answer = re.sub(r"\s", " ", match[0])
            gap = Gap(sentence, kind, answer, sentence.raw[: match.start()], sentence.raw[match.end() :])
            # Removing markup takes most of the time, so it comes last.
            if not askable(gap) or _OPEN.search(gap.before) or self._no_gap_after.search(gap.before):
                continue
            before = plain_text(gap.before)
            if word_count(before) >= _LEAST_BEFORE and not _repeats_answer(gap, before):
                yield gap


def _noun_sign(language: Language) -> re.Pattern[str] | None:
    """Return a pattern for words that often precede a noun, with the next word; None without such words."""
    if language.fact is None:
        return _NOUN_SIGN
    before = "|".join(sorted(language.before_nouns))
    return re.compile(rf"(?<![{_W}])(?i:(?:{before}) |[ld]['’])([{_LOWER}][{_LOWER}-]+)") if before else None


def _no_gap_after(language: Language) -> re.Pattern[str]:
    """Return a pattern for text before an example or a section's number, since neither is knowledge to ask for."""
    examples, parts = ("|".join(re.escape(text) for text in texts) for texts in (language.examples, language.parts))
    patterns = [rf"(?<![{_W}])(?i:{examples})[^.;)。]*$"] if examples else []
    patterns += [rf"(?<![{_W}])(?i:{parts})[\s«„“]*$"] if parts else []
    return re.compile("|".join((_IN_EXAMPLES.pattern, *patterns)))


def _may_be_two_numbers(text: str) -> bool:
    """Return whether a number may be two adjacent ones: "HTTP 404 500", "May 5 300 people"."""
    return re.fullmatch(r"\d{1,3} (?!000)\d{3}", text) is not None


def _repeats_answer(gap: Gap, before: str) -> bool:
    """Return whether a form of a word of the answer is also in the rest of the sentence, its title or heading."""
    lead = f"{gap.sentence.title} {gap.sentence.heading}"
    others = _WORD.findall(normalise(f"{lead} {before} {plain_text(gap.after)}"))
    return any(same_root(word, other) for word in _WORD.findall(normalise(gap.answer)) for other in others)


def _begins_sentence(before: str) -> bool:
    """Return whether the next word begins a sentence, where any word is capitalised."""
    return not before.strip(" \n\"'(*_`") or bool(re.search(r"[.!?:][\"')*_`]*\s+[\"'(*_`]*$", before))


def _is_no_term(gap: Gap) -> bool:
    """Return whether the next word is a verb, part of a compound, or anaphoric."""
    before = gap.before
    preceding = re.findall(r"\w+", before[-40:])
    if before.rstrip().endswith("-") or not preceding or re.match(r"\s+(?:the|an?|its|their)\s", gap.after):
        return True
    return preceding[-1].lower() in _NO_TERM_AFTER or preceding[-1].endswith("ly")


def same_root(a: str, b: str) -> bool:
    """Return whether two words are forms of the same word: equal, or equal except for a short ending."""
    if a == b:
        return True
    short = min(len(a), len(b))
    return short >= 5 and a[: max(5, short - 2)] == b[: max(5, short - 2)] and abs(len(a) - len(b)) <= 3


def _rank(gap: Gap) -> int:
    """Return the sort rank: numbers, then names, then terms that look like nouns, then terms that look like verbs."""
    return KINDS.index(gap.kind) + (gap.kind == "term" and gap.answer.endswith(("ed", "ing")))


def pick_gaps(sentences: Sequence[Sentence], vocabulary: Vocabulary, count: int, seed: int) -> list[Gap]:
    """Return up to ``count`` gaps, spread over sentences and answers: every sentence once before any is used again."""
    rounds: list[list[Gap]] = [[] for _ in range(_PER_SENTENCE)]
    order = sorted(sentences, key=lambda s: share(s.plain, f"pick {seed}"))
    for sentence in order[: max(2000, 8 * count)]:  # enough to choose from in a corpus of any size
        for turn, gap in zip(rounds, vocabulary.gaps(sentence), strict=False):
            turn.append(gap)
    picked: list[Gap] = []
    used: Counter[str] = Counter()
    limit = max(4, count // 200)
    for gap in (g for turn in rounds for g in sorted(turn, key=_rank)):
        if len(picked) == count:
            break
        if used[gap.answer] < limit:
            used[gap.answer] += 1
            picked.append(gap)
    return picked


_FRAME = words(
    "the a an of in on at to for from by with into as and or but nor than is are was were be been being has have had "
    "can could may might must will would shall should do does not no if when while which that who whose this these "
    "those its their his her our your each every any all some it they he she we you one two"
)
_BE = words("is are was were be been being")
_BEFORE = re.compile(r"([\w'’-]+|[^\w\s])\s*[\"'“‘*`]*$")
_AFTER = re.compile(r"[\"'”’*`]*\s*([\w'’-]+|[^\w\s])")


class Cooccurrence:
    """Counts of the frames before and after each word: a function word, a punctuation mark, or any other word."""

    def __init__(self) -> None:
        self._seen: dict[str, Counter[str]] = {}

    def add(self, word: str, before: str, after: str) -> None:
        """Count one occurrence of ``word`` between ``before`` and ``after``."""
        self._seen.setdefault(word, Counter()).update(frame(before, after))

    def alike(self, a: str, b: str) -> float:
        """Return the cosine similarity of the frame counts of two words, from 0 to 1."""
        counts_a, counts_b = self._seen.get(a, Counter()), self._seen.get(b, Counter())
        product = sum(n * counts_b[key] for key, n in counts_a.items())
        squares = (sum(n * n for n in counts.values()) for counts in (counts_a, counts_b))
        return product / math.sqrt(math.prod(squares)) if product else 0.0

    def unseen(self, word: str, before: str, after: str) -> int:
        """Return on how many of the two sides, before and after, ``word`` never occurs with this frame (0 to 2)."""
        seen = self._seen.get(word, Counter())
        return sum(not seen[key] for key in frame(before, after))

    def can_follow(self, word: str, before: str) -> bool:
        """Return whether ``word`` occurs after the frame at the end of ``before``."""
        return self._seen.get(word, Counter())[frame(before, "")[0]] > 0

    def modifies(self, word: str) -> float:
        """Return how often a content word follows: near 1 for adjectives, near 0 for nouns."""
        seen = self._seen.get(word, Counter())
        return seen[">*"] / max(1, sum(n for key, n in seen.items() if key[0] == ">"))


def frame(before: str, after: str) -> tuple[str, str]:
    """Return the frames directly before and after a position in a text."""
    left, right = _BEFORE.search(before[-60:]), _AFTER.match(after[:60])
    return f"<{_frame_word(left)}", f">{_frame_word(right)}"


def _frame_word(match: re.Match[str] | None) -> str:
    if match is None:
        return "."
    word = match[1].lower()
    if word in _BE:
        return "be"
    return "*" if word[0].isalnum() and word not in _FRAME else word


# Section openings and passages, from which probes are built.

_FEWEST_GAPS = 2
_LONGEST_PASSAGE = 60  # words


@dataclass(frozen=True)
class Passage:
    """Consecutive sentences of one section."""

    sentences: tuple[Sentence, ...]

    @property
    def text(self) -> str:
        """The sentences without markup, one per line."""
        return "\n".join(s.plain for s in self.sentences)

    @property
    def line(self) -> str:
        """The sentences without markup, on one line."""
        return join_sentences(s.plain for s in self.sentences)


def openings(sentences: Sequence[Sentence], vocabulary: Vocabulary) -> list[Sentence]:
    """Return, for each section, the first informative sentence that does not name the section.

    A sentence that names its section could be matched with the title without knowledge of the document.
    """
    first_sentences: dict[str, Sentence] = {}
    for sentence in sentences:
        if sentence.lead and sentence.lead not in first_sentences and _is_informative(sentence, vocabulary):
            first_sentences[sentence.lead] = sentence
    return list(first_sentences.values())


def passages(sentences: Iterable[Sentence], count: int, seed: int) -> list[Passage]:
    """Return up to ``count`` passages for question generation, spread over the text."""
    all_passages = [passage for section in sections(sentences) for passage in section]
    return sorted(all_passages, key=lambda p: share(p.text, f"passage {seed}"))[:count]


def sections(sentences: Iterable[Sentence]) -> list[list[Passage]]:
    """Return the passages of every section, in order."""
    all_sections: list[list[Passage]] = []
    for _, section in groupby(sentences, key=lambda s: (s.document, s.lead)):
        parts: list[list[Sentence]] = [[]]
        for sentence in section:
            if parts[-1] and sum(word_count(s.plain) for s in [*parts[-1], sentence]) > _LONGEST_PASSAGE:
                parts.append([])
            parts[-1].append(sentence)
        all_sections.append([Passage(tuple(part)) for part in parts])
    return all_sections


def _is_informative(sentence: Sentence, vocabulary: Vocabulary) -> bool:
    """Return whether a sentence has enough gaps and no word of its title or heading."""
    title = [w for w in normalise(f"{sentence.title} {sentence.heading}").split() if len(w) > 3]
    sentence_words = normalise(sentence.plain).split()
    if any(same_root(a, b) for a in title for b in sentence_words):
        return False
    return len({g.answer for g in vocabulary.gaps(sentence)}) >= _FEWEST_GAPS
