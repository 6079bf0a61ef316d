"""Two-turn dialogues, in which the second request depends on the first answer."""

from __future__ import annotations

import random

from recovery.data.synthetic_prompts import constraints as r
from recovery.data.synthetic_prompts.constrained_writing import agree, draw_rules, put_together, shuffled
from recovery.data.synthetic_prompts.constraints import NUMBERS, RULES, Rule
from recovery.data.synthetic_prompts.open_ended import arithmetic
from recovery.data.synthetic_prompts.topics import TOPICS, Topic
from recovery.types import Check, Message, Prompt

_ALONE = frozenset({r.REPEAT, r.CONSTRAINED, r.JSON, r.LANGUAGE, r.TWO, r.FORBIDDEN, r.EXISTENCE, r.FREQUENCY})
_RULES = tuple(id for id in sorted(RULES) if id not in _ALONE)


def dialogue(rng: random.Random) -> Prompt | None:
    """Draw one dialogue that ends with the user's second turn; None if its rules are incompatible."""
    topic = shuffled(rng.choice(TOPICS), rng)
    return rng.choice((_words_then_text, _words_then_text, _name_then_text, _restate, _sums, _clarify))(rng, topic)


def _turns(first: str, answer: str, second: str) -> tuple[Message, ...]:
    return (
        Message(role="user", content=first),
        Message(role="assistant", content=answer),
        Message(role="user", content=second),
    )


def _prompt(
    messages: tuple[Message, ...], topic: Topic, checks: tuple[Check, ...] = (), answer: str | None = None
) -> Prompt:
    return Prompt("", messages, checks=checks, answer=answer, tags=("dialogue", f"topic:{topic.name}"))


def _extra(rng: random.Random, topic: Topic, count: int) -> list[Rule]:
    """Draw rules, the first of a kind that suits a follow-up."""
    return draw_rules(rng, topic, count, first=rng.choice(_RULES)) if count else []


def _words_then_text(rng: random.Random, topic: Topic) -> Prompt | None:
    n = rng.randint(2, 3)
    named = topic.words[:n]
    first = rng.choice(
        (
            f"Name {NUMBERS[n]} things that belong to {topic.name}.",
            f"Give me {NUMBERS[n]} words to do with {topic.name}.",
        )
    )
    answer = f"{', '.join(named[:-1])} and {named[-1]}.".capitalize()
    form = rng.choice(("a short story", "a small poem", "a diary entry", "a few lines of advice", "an advertisement"))
    request = rng.choice((
        f"Now write {form} that uses all of them.",
        f"Good. Put every one of those words into {form}.",
        f"Turn them into {form} and leave none out.",
    ))  # fmt: skip
    existence = Rule(Check(r.EXISTENCE, {"keywords": list(named)}), "", named, 12)
    extra = [rule for rule in _extra(rng, topic, rng.choice((0, 1))) if rule.id in _RULES]
    if not agree([existence, *extra], request):
        return None
    text, checks = put_together(rng, request, extra, follow_up=True)
    return _prompt(_turns(first, answer, text), topic, (existence.check, *checks))


def _name_then_text(rng: random.Random, topic: Topic) -> Prompt | None:
    words = topic.words
    name = f"The {words[0].capitalize()} and the {words[1].capitalize()}"
    form = rng.choice(("story", "poem", "song", "leaflet", "short play"))
    first = f"I am going to write a {form} about {topic.name}. What could I call it?"
    answer = rng.choice((f'How about "{name}"?', f'You might call it "{name}".'))
    request = f"I like that. Write the {form} for me and put its name at the top between << and >>."
    title = Rule(Check(r.TITLE), "", ("<<", name), 12)
    extra = [rule for rule in _extra(rng, topic, rng.choice((0, 1))) if rule.id in _RULES and rule.id != r.TITLE]
    if not agree([title, *extra], request) or any(rule.id in (r.UPPER, r.LOWER) for rule in extra):
        return None
    text, checks = put_together(rng, request, extra, follow_up=True)
    return _prompt(_turns(first, answer, text), topic, (title.check, *checks))


def _restate(rng: random.Random, topic: Topic) -> Prompt | None:
    a, b = topic.words[:2]
    first = rng.choice((f"Say something short about {topic.name}.", f"One remark on {topic.name}, please."))
    answer = rng.choice((
        f"When I think of {topic.name}, the {a} and the {b} come to mind first.",
        f"The {a} is what most people notice about {topic.name}; the {b} they overlook.",
        f"Whoever knows {topic.name} has a story about the {a} and another about the {b}.",
    ))  # fmt: skip
    request = rng.choice(
        ("Say that again in other words.", "Make that longer.", "Now tell it to a child.", "Make it sound solemn.")
    )
    rules = _extra(rng, topic, rng.choice((1, 2)))
    if not rules or not agree(rules, request) or any(rule.id not in _RULES for rule in rules):
        return None
    text, checks = put_together(rng, request, rules, follow_up=True)
    return _prompt(_turns(first, answer, text), topic, checks)


def _sums(rng: random.Random, _: Topic) -> Prompt:
    text, value = arithmetic(rng)
    step = rng.randint(2, 9)
    second, result = rng.choice((
        (f"And {step} more than that?", value + step),
        (f"Now multiply that by {step}.", value * step),
        ("What is twice that?", 2 * value),
        (f"Add {step} to it.", value + step),
    ))  # fmt: skip
    messages = _turns(f"What is {text}?", rng.choice((f"{value}", f"{text} is {value}.")), second)
    return Prompt("", messages, answer=str(result), tags=("dialogue", "sum"))


def _clarify(rng: random.Random, topic: Topic) -> Prompt:
    first = rng.choice(
        (
            f"I have a question about {topic.name}.",
            f"Can we talk about {topic.name}?",
            f"Do you know about {topic.name}?",
        )
    )
    answer = rng.choice(("Of course. What would you like to know?", "Gladly. Go ahead.", "A little. What is it about?"))
    second = rng.choice((
        f"What part does the {topic.words[0]} play?",
        f"How do the {topic.words[0]} and the {topic.words[1]} go together?",
        "Where would you begin if you knew nothing about it?",
        "Why should I care about it? Two sentences will do.",
        f"Somebody told me that it is all about the {topic.words[0]}. Is that so?",
    ))  # fmt: skip
    return _prompt(_turns(first, answer, second), topic)
