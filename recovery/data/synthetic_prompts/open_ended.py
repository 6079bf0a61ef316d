"""Plain questions: arithmetic, words, facts with one correct answer, and open questions about topics."""

from __future__ import annotations

import random

from recovery.data.synthetic_prompts.topics import TOPICS
from recovery.types import Message, Prompt

OPEN = (
    "What should a beginner know about {t}?", "What are three common mistakes with {t}?",
    "How would you explain {t} in two sentences?", "What is there to like about {t}?",
    "Which tools or materials belong to {t}?", "How has the world of {t} changed over time?",
    "What is hard about {t}?", "Where could I find out more about {t}?", "What would you ask an expert on {t}?",
    "Why do some people love {t}?", "How much time does it take to get to know {t}?", "What can go wrong with {t}?",
    "Which words should I know before I read about {t}?", "Is there a famous person connected with {t}?",
    "Give me a short summary of {t}.", "What changes about {t} from one country to another?",
    "What surprised you most about {t}?", "How would you teach {t} in ten minutes?",
)  # fmt: skip
_PLACES = """
Portugal Lisbon; Kenya Nairobi; Peru Lima; Norway Oslo; Japan Tokyo; Egypt Cairo; Chile Santiago; Hungary
Budapest; Finland Helsinki; Cuba Havana; Greece Athens; Poland Warsaw; Ireland Dublin; Thailand Bangkok;
Austria Vienna; Denmark Copenhagen; Ecuador Quito; Ghana Accra; Iceland Reykjavik; Italy Rome; Spain Madrid;
Sweden Stockholm; Uruguay Montevideo; Senegal Dakar; Bulgaria Sofia; Latvia Riga; Canada Ottawa; Colombia
Bogota; Croatia Zagreb; Nepal Kathmandu; Ethiopia Addis Ababa; Jordan Amman
"""
_CAPITALS = tuple((c, p) for c, p in (entry.split(None, 1) for entry in " ".join(_PLACES.split()).split(";")))
_UNITS = (
    ("minutes", "hour", 60), ("seconds", "minute", 60), ("hours", "day", 24), ("days", "week", 7),
    ("months", "year", 12), ("grams", "kilogram", 1000), ("metres", "kilometre", 1000), ("centimetres", "metre", 100),
    ("eggs", "dozen", 12), ("millimetres", "centimetre", 10), ("years", "century", 100), ("years", "decade", 10),
    ("sheets", "pack of 500", 500),
)  # fmt: skip
_FACTS = (
    ("How many legs does a spider have?", "8"), ("How many sides has a hexagon?", "6"),
    ("Which planet is closest to the sun?", "Mercury"), ("What do bees make from nectar?", "honey"),
    ("What gas do plants take in from the air to grow?", "carbon dioxide"),
    ("How many days are in a leap year?", "366"), ("What is frozen water called?", "ice"),
    ("Which animal is known for building dams?", "beaver"),
    ("What colour do you get when you mix blue and yellow paint?", "green"),
    ("How many strings does a violin have?", "4"), ("Which ocean lies between Africa and Australia?", "Indian Ocean"),
    ("What is the young of a cow called?", "calf"), ("Which metal is liquid at room temperature?", "mercury"),
    ("How many letters are in the English alphabet?", "26"), ("What is the opposite of north?", "south"),
    ("Which season follows spring?", "summer"), ("What force pulls things towards the ground?", "gravity"),
    ("What do you call a shape with three sides?", "triangle"),
    ("Which organ pumps blood through the body?", "heart"), ("What is the largest mammal on earth?", "blue whale"),
    ("Which star is nearest to the earth?", "the sun"), ("What is the hardest natural material?", "diamond"),
    ("How many players of one team are on a football pitch at the start?", "11"),
    ("What is the plural of mouse?", "mice"), ("In which direction does the sun rise?", "east"),
    ("What is the past tense of go?", "went"), ("What is half of a hundred?", "50"),
    ("Which bird is a symbol of peace?", "dove"), ("How many cents make a euro?", "100"),
    ("What language is mostly spoken in Brazil?", "Portuguese"),
)  # fmt: skip
_STYLES = (
    "{q}",
    "{q} Answer in one sentence.",
    "{q} Give only the answer.",
    "A quick question: {q}",
    "{q} Be brief.",
    "Tell me: {q}",
)


def plain(rng: random.Random) -> Prompt:
    """Draw one plain question, with a reference answer if there is exactly one."""
    kind = rng.choices((_open, _sum, _words, _capital, _unit, _fact), (10, 4, 4, 1, 1, 1))[0]
    return kind(rng)


def _prompt(text: str, tag: str, answer: str | None = None) -> Prompt:
    return Prompt("", (Message(role="user", content=text),), answer=answer, tags=("plain", tag))


def _open(rng: random.Random) -> Prompt:
    topic = rng.choice(TOPICS)
    return _prompt(rng.choice(OPEN).format(t=topic.name), f"topic:{topic.name}")


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
