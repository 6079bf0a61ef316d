"""Tasks whose answer depends on context: an earlier turn, a system prompt, rules, demonstrations."""

from __future__ import annotations

import random

from examples.miniature.tasks.facts import QUESTIONS
from recovery.miniature import corpora, words
from recovery.miniature.corpora import ENTITY_ATTRIBUTES, Example, World, fresh_entity, random_name

FOLLOW_UPS = {
    "colour": ("And what colour is it?", "Which colour does it have?"),
    "home": ("And where does it live?", "What is its home?"),
    "food": ("And what does it eat?", "Which food does it like?"),
    "friend": ("And who is its friend?", "Which animal is its friend?"),
}


def two_turns(rng: random.Random, world: World) -> Example:
    """Sample a dialogue whose second question refers to the topic of the first as "it"."""
    topic = rng.choice(words.TOPICS)
    first, second = rng.sample(list(QUESTIONS), 2)
    return Example(
        "dialogue",
        messages=(
            ("user", rng.choice(QUESTIONS[first]).format(t=topic)),
            ("assistant", world.facts[topic][first]),
            ("user", rng.choice(FOLLOW_UPS[second])),
            ("assistant", world.facts[topic][second]),
        ),
    )


def system_prompt(rng: random.Random, world: World) -> Example:
    """Sample a system prompt with a name, which the assistant must state or put before its answer."""
    name, topic = random_name(rng), rng.choice(words.TOPICS)
    attribute = rng.choice(list(QUESTIONS))
    if rng.random() < 0.5:
        asked = rng.choice(("What is your name?", "Who are you?"))
        return Example(
            "system", messages=(("system", f"Your name is {name}."), ("user", asked), ("assistant", f"I am {name}."))
        )
    return Example(
        "system",
        messages=(
            ("system", f"Begin every answer with {name}:"),
            ("user", rng.choice(QUESTIONS[attribute]).format(t=topic)),
            ("assistant", f"{name}: {world.facts[topic][attribute]}"),
        ),
    )


def rules(rng: random.Random, world: World) -> Example:
    """Sample two rules on how to begin the answer to two kinds of question, and a question."""
    first, second = rng.sample(list(QUESTIONS), 2)
    tokens = {first: random_name(rng, 2), second: random_name(rng, 2)}
    topic, attribute = rng.choice(words.TOPICS), rng.choice((first, second))
    text = " ".join(f"If I ask about the {name} begin with {token}." for name, token in tokens.items())
    asked = f"{text} {rng.choice(QUESTIONS[attribute]).format(t=topic)}"
    answer = f"{tokens[attribute]} {world.facts[topic][attribute]}"
    return Example("rules", messages=(("user", asked), ("assistant", answer)))


def demonstrations(rng: random.Random, world: World) -> Example:
    """Sample three pairs that demonstrate an attribute, and a topic to complete."""
    attribute = rng.choice(list(QUESTIONS))
    topics = rng.sample(words.TOPICS, 4)
    lines = [f"{topic}: {world.facts[topic][attribute]}" for topic in topics[:3]]
    asked = "\n".join([*lines, f"{topics[3]}:"])
    return Example("demonstrations", messages=(("user", asked), ("assistant", world.facts[topics[3]][attribute])))


def echo(rng: random.Random, world: object = None) -> Example:
    """Sample a request to repeat a text word for word: copying, on which the other tasks depend."""
    kind = rng.randrange(3)
    if kind == 0:
        text = " ".join(random_name(rng) for _ in range(rng.randint(1, 6)))
    elif kind == 1:
        text = " ".join(str(rng.randint(1000, 9999)) for _ in range(rng.randint(1, 6)))
    else:
        entity = fresh_entity(rng)
        attributes = rng.sample(ENTITY_ATTRIBUTES, rng.choice((1, 2, 3)))
        text = " ".join(corpora.statement(rng, entity, attribute) for attribute in attributes)
    return Example("echo", messages=(("user", f"Repeat: {text}"), ("assistant", text)))
