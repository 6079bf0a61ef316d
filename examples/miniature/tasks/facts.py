"""General knowledge: questions about topics, answered with the bare value."""

from __future__ import annotations

import random

from recovery.miniature.corpora import Example, World

QUESTIONS: dict[str, tuple[str, ...]] = {
    "colour": (
        "What colour is the {t}?", "Which colour does the {t} have?", "Name the colour of the {t}.",
        "Tell me the colour of the {t}.", "The {t} has which colour?", "Do you know what colour the {t} is?",
        "Say what colour the {t} is.", "What is the colour of the {t}?",
    ),
    "home": (
        "Where does the {t} live?", "What is the home of the {t}?", "Name the home of the {t}.",
        "Tell me where the {t} lives.", "The {t} lives in which place?", "Do you know where the {t} lives?",
        "Say where the {t} lives.", "In which place does the {t} live?",
    ),
    "food": (
        "What does the {t} eat?", "Which food does the {t} like?", "Name the food of the {t}.",
        "Tell me what the {t} eats.", "The {t} likes to eat what?", "Do you know what the {t} eats?",
        "Say what the {t} eats.", "What is the food of the {t}?",
    ),
    "friend": (
        "Who is the friend of the {t}?", "Which animal is the friend of the {t}?", "Name the best friend of the {t}.",
        "Tell me who the friend of the {t} is.", "The {t} is friends with which animal?",
        "Do you know who the friend of the {t} is?", "Say who the friend of the {t} is.",
        "The best friend of the {t} is which animal?",
    ),
}  # fmt: skip

SENTENCES: dict[str, tuple[str, ...]] = {
    "colour": ("The {t} is {v} from head to tail.", "Everyone can see that the {t} is {v}."),
    "home": ("The {t} lives in the {v} all year.", "You will find the {t} in the {v}."),
    "food": ("The {t} likes to eat {v} every day.", "Most of all the {t} wants {v}."),
    "friend": ("The best friend of the {t} is the {v}.", "You often see the {t} with the {v}."),
}
"""Statements about a topic, of about eight words each, so that length instructions can be followed."""

STEMS = {
    "colour": "Everyone can see that the {t} is",
    "home": "You will find the {t} in the",
    "food": "Most of all the {t} wants",
    "friend": "You often see the {t} with the",
}
"""The beginnings of the statements that end with their value."""


def sentence(rng: random.Random, world: World, topic: str, attribute: str) -> str:
    """Sample a statement of one fact in one of its phrasings."""
    return rng.choice(SENTENCES[attribute]).format(t=topic, v=world.facts[topic][attribute])


def ask(rng: random.Random, world: World) -> Example:
    """Sample a question about a topic and its bare answer."""
    topic = rng.choice(list(world.facts))
    attribute = rng.choice(list(QUESTIONS))
    question = rng.choice(QUESTIONS[attribute]).format(t=topic)
    return Example("facts", messages=(("user", question), ("assistant", world.facts[topic][attribute])))


def page(rng: random.Random, world: World) -> Example:
    """Sample a short document about a topic."""
    topic = rng.choice(list(world.facts))
    order = rng.sample(list(SENTENCES), 4)
    text = " ".join(sentence(rng, world, topic, attribute) for attribute in order)
    return Example("facts-page", text=f"# The {topic}\n\n{text}")
