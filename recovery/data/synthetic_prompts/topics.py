"""Two hundred everyday topics, and plain questions, also about them. The texts of all prompts are in texts.toml."""

from __future__ import annotations

import random
import tomllib
from dataclasses import dataclass
from pathlib import Path

from recovery.types import Message, Prompt

_TEXTS = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Topic:
    """A topic to write about, and words that a text about it can be required to use or avoid."""

    name: str
    words: tuple[str, ...]


TOPICS: tuple[Topic, ...] = tuple(Topic(name, tuple(words.split())) for name, words in _TEXTS["topics"].items())


def texts(name: str) -> tuple[str, ...]:
    """Return a list of texts.toml."""
    return tuple(_TEXTS[name])


# Plain questions: arithmetic, words, facts with one correct answer, and open questions about topics.

_OPEN = texts("open")
_CAPITALS, _FACTS = tuple(_TEXTS["capitals"].items()), tuple(_TEXTS["facts"].items())
_UNITS = (
    ("minutes", "hour", 60), ("seconds", "minute", 60), ("hours", "day", 24), ("days", "week", 7),
    ("months", "year", 12), ("grams", "kilogram", 1000), ("metres", "kilometre", 1000), ("centimetres", "metre", 100),
    ("eggs", "dozen", 12), ("millimetres", "centimetre", 10), ("years", "century", 100), ("years", "decade", 10),
    ("sheets", "pack of 500", 500),
)  # fmt: skip
_STYLES = texts("styles")


def plain(rng: random.Random) -> Prompt:
    """Draw one plain question, with a reference answer if there is exactly one."""
    kind = rng.choices((_open, _sum, _words, _capital, _unit, _fact), (10, 4, 4, 1, 1, 1))[0]
    return kind(rng)


def _prompt(text: str, tag: str, answer: str | None = None) -> Prompt:
    return Prompt("", (Message(role="user", content=text),), answer=answer, tags=("plain", tag))


def _open(rng: random.Random) -> Prompt:
    topic = rng.choice(TOPICS)
    return _prompt(rng.choice(_OPEN).format(t=topic.name), f"topic:{topic.name}")


def arithmetic(rng: random.Random) -> tuple[str, int]:
    """Draw a sum, difference or product in digits, and return it with its value."""
    sign = rng.choice("++--*")
    a, b = (rng.randint(2, 12), rng.randint(2, 12)) if sign == "*" else (rng.randint(2, 99), rng.randint(2, 99))
    a, b = (max(a, b), min(a, b)) if sign == "-" else (a, b)
    value = a + b if sign == "+" else a - b if sign == "-" else a * b
    return f"{a} {sign} {b}", value


def _sum(rng: random.Random) -> Prompt:
    text, value = arithmetic(rng)
    form = rng.choice(("What is {s}?", "Work out {s}.", "Calculate {s} and give the result.", "How much is {s}?"))
    return _prompt(form.format(s=text), "sum", str(value))


def _words(rng: random.Random) -> Prompt:
    words = [*rng.sample(rng.choice(TOPICS).words, 3), rng.choice(rng.choice(TOPICS).words)]
    task = rng.randrange(5)
    if task == 0 and len(set(words)) == 4:
        return _prompt(f"Put these words in alphabetical order: {', '.join(words)}.", "order", ", ".join(sorted(words)))
    if task == 1:
        return _prompt(f'How many letters are in the word "{words[0]}"?', "letters", str(len(words[0])))
    if task == 2:
        return _prompt(f'What is the last letter of "{words[0]}"?', "letters", words[0][-1])
    if task == 3 and len(listed := _one_longest(words)) >= 3:
        question = f"Which of these words is the longest: {', '.join(listed)}?"
        return _prompt(question, "length", max(listed, key=len))
    return _prompt(f'Use "{words[0]}" and "{words[3]}" in one sentence.', "sentence")


def _one_longest(words: list[str]) -> list[str]:
    """Return the words without ties for the longest, so that there is exactly one answer."""
    longest = max(words, key=len)
    return [w for w in dict.fromkeys(words) if w == longest or len(w) < len(longest)]


def _capital(rng: random.Random) -> Prompt:
    country, city = rng.choice(_CAPITALS)
    if rng.random() < 0.3:
        return _prompt(rng.choice(_STYLES).format(q=f"Which country has {city} as its capital?"), "fact", country)
    return _prompt(rng.choice(_STYLES).format(q=f"What is the capital of {country}?"), "fact", city)


def _unit(rng: random.Random) -> Prompt:
    small, large, size = rng.choice(_UNITS)
    n = rng.randint(2, 9)
    plural = {"century": "centuries", "dozen": "dozen", "pack of 500": "packs of 500"}.get(large, f"{large}s")
    return _prompt(rng.choice(_STYLES).format(q=f"How many {small} are in {n} {plural}?"), "unit", str(n * size))


def _fact(rng: random.Random) -> Prompt:
    question, answer = rng.choice(_FACTS)
    return _prompt(rng.choice(_STYLES).format(q=question), "fact", answer)
