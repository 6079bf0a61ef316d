"""Distractors: plausible wrong answers of the same kind, similar to the answer in frequency, length and form.

Frequencies are those of the corpus, so that neither rarity nor form reveals the answer.
"""

from __future__ import annotations

import bisect
import math
import random
import re
import unicodedata

from recovery.data.corpus.cloze import Gap, Vocabulary, same_root
from recovery.data.corpus.cooccurrence import frame
from recovery.data.corpus.text import normalise

_NEAREST = 200
_SOME = 0.3
_SUFFIXES = ("ing", "ed", "ion", "ment", "ness", "ity", "able", "ible", "ive", "al", "ous", "ful", "er", "or", "s")


def distractors(vocabulary: Vocabulary, gap: Gap, count: int, seed: int) -> list[str]:
    """Return up to ``count`` wrong answers for a gap, the most similar first; fewer if the corpus has no more."""
    rng = random.Random(f"{seed}:{gap.key}")
    for members in vocabulary.classes:
        if gap.answer in members:
            others = [w for w in members if w != gap.answer]
            return rng.sample(others, min(count, len(others)))
    near = normalise(f"{gap.sentence.plain} {gap.sentence.title}")
    pool = [w for w in _neighbours(vocabulary, gap) if _fits(vocabulary, w, gap, near)]
    ranked = sorted(pool, key=lambda w: (_distance(vocabulary, w, gap) + 0.25 * rng.random(), w))
    chosen = ranked[:count]
    if gap.kind == "number":
        chosen += _made_up(gap.answer, count - len(chosen), {gap.answer, *chosen}, rng)
    return chosen


def _neighbours(vocabulary: Vocabulary, gap: Gap) -> list[str]:
    """Return the candidates of the gap's kind nearest in frequency and length; all of them in a small corpus."""
    order = vocabulary.order(gap.kind)
    place = bisect.bisect_left(order, (*vocabulary.rank(gap.kind, gap.answer), ""))
    return [word for _, _, word in order[max(0, place - _NEAREST) : place + _NEAREST]]


def _fits(vocabulary: Vocabulary, word: str, gap: Gap, near: str) -> bool:
    """Return whether a candidate fits the gap and is wrong there: not in the sentence, not a form of the answer."""
    if gap.kind == "number":
        if _shape(word) != _shape(gap.answer):
            return False
    elif gap.kind == "name" and (not vocabulary.is_name(word) or word.isupper() != gap.answer.isupper()):
        return False
    if any(word in members for members in vocabulary.classes) or _script(word) != _script(gap.answer):
        return False
    if normalise(word) in near or any(same_root(a, word.lower()) for a in gap.answer.lower().split()):
        return False
    if gap.kind == "term" and not _same_part_of_speech(vocabulary, word, gap):
        return False
    article = gap.kind != "number" and re.search(r"\b[Aa]n?\s+[\W_]*$", gap.before)
    return not article or (word[0].lower() in "aeiou") == (gap.answer[0].lower() in "aeiou")


def _script(word: str) -> str:
    """Return the script of a word's first letter: "LATIN", "CYRILLIC", "KATAKANA", "CJK", ...; "" if it has none."""
    letter = next((c for c in word if c.isalpha()), None)
    return unicodedata.name(letter, "").split(" ")[0] if letter else ""


def _same_part_of_speech(vocabulary: Vocabulary, word: str, gap: Gap) -> bool:
    """Return whether a word has the grammatical number and the part of speech (noun or adjective) of the answer."""
    if _plural(word) != _plural(gap.answer):
        return False
    modifies = vocabulary.usage.modifies(word)
    if frame(gap.before, gap.after)[0] == "<be":  # "the number is ...": not a noun
        return modifies >= _SOME or vocabulary.usage.can_follow(word, gap.before)
    return modifies >= _SOME if frame(gap.before, gap.after)[1] == ">*" else modifies <= 1 - _SOME


def _plural(word: str) -> bool:
    return word.endswith("s") and not word.endswith(("ss", "us", "is", "as", "os"))


def _distance(vocabulary: Vocabulary, word: str, gap: Gap) -> float:
    """Return how different a candidate is from the answer: log frequency, length, usage, and form."""
    counts, usage, answer = vocabulary.counts(gap.kind), vocabulary.usage, gap.answer
    distance = abs(math.log2((counts[word] + 1) / (counts[answer] + 1))) + abs(len(word) - len(answer)) / 3
    if gap.kind == "number":
        return distance
    distance += 4 * (1 - usage.alike(word, answer)) + usage.unseen(word, gap.before, gap.after)
    if gap.kind == "name":
        distance += 2 * abs(word.count(" ") - answer.count(" ")) + 3 * (_look(word) != _look(answer))
        return distance - 2 * (_tail(word) == _tail(answer))
    return distance + 2 * (_ending(word) != _ending(answer))


def _look(name: str) -> tuple[bool, ...]:
    """Return how a name is written: all capitals, two initial capitals, an inner capital, a hyphen, a digit."""
    inner = any(c.isupper() for part in name.split() for c in part[1:])
    return name.isupper(), name[:2].isupper(), inner, "-" in name, any(c.isdigit() for c in name)


def _tail(name: str) -> str:
    """Return the last part of a compound name ("Error" of "TypeError"); any other name unchanged."""
    parts = re.findall(r"[A-Z][a-z]+", name)
    return parts[-1] if len(parts) > 1 else name


def _ending(word: str) -> str:
    return next((s for s in _SUFFIXES if word.endswith(s) and not word.endswith("ss")), "")


def _shape(text: str) -> tuple[str, int]:
    """Return the form of a number (year, integer, grouped, spaced or decimal) and its length or number of decimals."""
    if " " in text:
        return "spaced", len(text)
    if "." in text:
        return "decimal", len(text.split(".")[1])
    if re.fullmatch(r"1[5-9]\d\d|20\d\d", text):
        return "year", 4
    return ("grouped" if "," in text else "integer"), len(text)


def _made_up(answer: str, count: int, taken: set[str], rng: random.Random) -> list[str]:
    """Return generated numbers of the answer's form, for corpora with too few: other digits, or a nearby year."""
    made: list[str] = []
    for _ in range(count * 20):
        if len(made) >= count:
            break
        if _shape(answer)[0] == "year":
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
