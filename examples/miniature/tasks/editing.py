"""Minimal editing: correct a corrupted sentence without other changes. Most corruptions are never trained."""

from __future__ import annotations

import random
from collections.abc import Callable

from examples.miniature.tasks import facts
from recovery.miniature import corpora, words
from recovery.miniature.corpora import Example, World, fresh_entity

ASK = ("Correct this sentence: {s}", "Mend the mistake and change nothing else: {s}", "Fix the sentence: {s}")


Corruption = Callable[[random.Random, str], str]


def _in_a_word(change: Corruption, shortest: int = 4) -> Corruption:
    """Return a corruption that applies ``change`` to one word of at least ``shortest`` letters, if there is one."""

    def damage(rng: random.Random, sentence: str) -> str:
        parts = sentence.split(" ")
        long_enough = [i for i, part in enumerate(parts) if len(part.strip(".")) >= shortest]
        if not long_enough:
            return sentence
        index = rng.choice(long_enough)
        parts[index] = change(rng, parts[index])
        return " ".join(parts)

    return damage


@_in_a_word
def _swap_letters(rng: random.Random, word: str) -> str:
    at = rng.randrange(1, len(word.rstrip(".")) - 2)
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


@_in_a_word
def _drop_letter(rng: random.Random, word: str) -> str:
    at = rng.randrange(1, len(word.rstrip(".")) - 1)
    return word[:at] + word[at + 1 :]


@_in_a_word
def _double_letter(rng: random.Random, word: str) -> str:
    at = rng.randrange(1, len(word.rstrip(".")) - 1)
    return word[: at + 1] + word[at] + word[at + 1 :]


@_in_a_word
def _reverse_word(_rng: random.Random, word: str) -> str:
    letters = word.rstrip(".")
    return letters[::-1] + word[len(letters) :] if letters.isalpha() else word


def _double_word(rng: random.Random, sentence: str) -> str:
    parts = sentence.split(" ")
    at = rng.randrange(len(parts) - 1)
    return " ".join([*parts[: at + 1], parts[at], *parts[at + 1 :]])


def _swap_words(rng: random.Random, sentence: str) -> str:
    parts = sentence.split(" ")
    at = rng.randrange(1, len(parts) - 2)
    parts[at], parts[at + 1] = parts[at + 1], parts[at]
    return " ".join(parts)


def _join_words(rng: random.Random, sentence: str) -> str:
    parts = sentence.split(" ")
    at = rng.randrange(len(parts) - 1)
    return " ".join([*parts[:at], parts[at] + parts[at + 1], *parts[at + 2 :]])


def _several(count: int) -> Corruption:
    """Return a corruption that swaps, drops or doubles letters ``count`` times."""

    def damage(rng: random.Random, sentence: str) -> str:
        for _ in range(count):
            sentence = rng.choice((_swap_letters, _drop_letter, _double_letter))(rng, sentence)
        return sentence

    return damage


CORRUPTIONS: dict[str, Corruption] = {
    "lower-start": lambda rng, s: s[0].lower() + s[1:],
    "no-stop": lambda rng, s: s.removesuffix("."),
    "double-word": _double_word,
    "swap-letters": _swap_letters,
    "drop-letter": _drop_letter,
    "swap-words": _swap_words,
    "double-letter": _double_letter,
    "join-words": _join_words,
    "split-word": _in_a_word(lambda rng, word: f"{word[:2]} {word[2:]}"),
    "shout": _in_a_word(lambda rng, word: word.upper(), 3),
    "reverse-word": _reverse_word,
    "drop-vowels": _in_a_word(lambda rng, word: word[0] + "".join(c for c in word[1:] if c not in "aeiou")),
    "two-damages": lambda rng, s: _double_word(rng, _swap_words(rng, s)),
    "two-slips": _several(2),
    "three-slips": _several(3),
    "four-slips": _several(4),
}
TRAINED = ("lower-start", "no-stop", "double-word", "swap-letters", "drop-letter", "swap-words")
HELD_OUT = tuple(name for name in CORRUPTIONS if name not in TRAINED)
_HARD = ("two-slips", "three-slips", "four-slips")
MEASURED = (
    *("swap-letters", "drop-letter", "double-letter", "split-word", "shout", "reverse-word", "drop-vowels"),
    *(_HARD * 2),
)
"""The corruptions on which the skill is measured: those with room for improvement."""


def _sentence(rng: random.Random, world: World) -> str:
    if rng.random() < 0.7:
        return facts.sentence(rng, world, rng.choice(words.TOPICS), rng.choice(list(facts.SENTENCES)))
    return corpora.statement(rng, fresh_entity(rng), rng.choice(list(corpora.SENTENCES)))


def draw(rng: random.Random, world: World, kinds: tuple[str, ...] = TRAINED) -> Example:
    """Sample a corrupted sentence and its original. ``kinds`` are the corruptions to draw from."""
    kind = rng.choice(kinds)
    sound = damaged = _sentence(rng, world)
    while damaged == sound:
        damaged = CORRUPTIONS[kind](rng, sound)
    asked = rng.choice(ASK).format(s=damaged)
    held_out = ("held-out-corruption",) if kind in HELD_OUT else ()
    return Example("editing", messages=(("user", asked), ("assistant", sound)), tags=(kind, *held_out))
