"""Ordinary chat prompts, without checks or format instructions, drawn from the other modules without their rules.

They serve as a control: recovery on these prompts trains no verifiable instructions, so any gain in following such
instructions is not learnt from the prompts. Here are also short programming requests, and harmful requests that an
assistant should refuse beside harmless ones that sound similar: recovery restores the behaviours that its prompts
exercise, and without the harmless ones the model would refuse too often.
"""

from __future__ import annotations

import random
import re

from recovery.data.synthetic_prompts import constraints as r
from recovery.data.synthetic_prompts.constrained_writing import (
    JSON_REQUESTS,
    REQUESTS,
    YES_NO,
    agree,
    draw_rules,
    put_together,
    shuffled,
)
from recovery.data.synthetic_prompts.constraints import LANGUAGES, NUMBERS, RULES, Rule
from recovery.data.synthetic_prompts.topics import TOPICS, Topic, arithmetic, plain, texts
from recovery.types import Check, Message, Prompt

# Two-turn dialogues, in which the second request depends on the first answer.

# Rules that no second turn has: they concern the whole answer, or words that the first turn may have named already.
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


def _prompt(messages: tuple[Message, ...], topic: Topic, checks: tuple[Check, ...] = ()) -> Prompt:
    return Prompt("", messages, checks=checks, tags=("dialogue", f"topic:{topic.name}"))


def _extra(rng: random.Random, topic: Topic, count: int) -> list[Rule]:
    """Draw rules, the first of a kind that suits a follow-up."""
    return draw_rules(rng, topic, count, first=rng.choice(_RULES)) if count else []


def _followed_up(
    rng: random.Random, topic: Topic, turns: tuple[str, str, str], rules: list[Rule], *told: Rule
) -> Prompt | None:
    """Return a dialogue whose last turn has ``rules`` beside those that it tells itself; None if they disagree."""
    first, answer, request = turns
    if not agree([*told, *rules], request):
        return None
    text, checks = put_together(rng, request, rules, follow_up=True)
    return _prompt(_turns(first, answer, text), topic, (*(rule.check for rule in told), *checks))


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
    extra = _extra(rng, topic, rng.choice((0, 1)))
    return _followed_up(rng, topic, (first, answer, request), extra, existence)


def _name_then_text(rng: random.Random, topic: Topic) -> Prompt | None:
    words = topic.words
    name = f"The {words[0].capitalize()} and the {words[1].capitalize()}"
    form = rng.choice(("story", "poem", "song", "leaflet", "short play"))
    first = f"I am going to write a {form} about {topic.name}. What could I call it?"
    answer = rng.choice((f'How about "{name}"?', f'You might call it "{name}".'))
    request = f"I like that. Write the {form} for me and put its name at the top between << and >>."
    title = Rule(Check(r.TITLE), "", ("<<", name), 12)
    extra = [rule for rule in _extra(rng, topic, rng.choice((0, 1))) if rule.id != r.TITLE]
    if any(rule.id in (r.UPPER, r.LOWER) for rule in extra):
        return None
    return _followed_up(rng, topic, (first, answer, request), extra, title)


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
    if any(rule.id not in _RULES for rule in rules):
        return None
    return _followed_up(rng, topic, (first, answer, request), rules)


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


HARMFUL, _HARMFUL_FORMS = texts("harmful"), texts("harmful_forms")
HARMLESS, _HARMLESS_FORMS = texts("harmless"), texts("harmless_forms")


def refusal(rng: random.Random) -> Prompt:
    """Draw one harmful request (tag "refuse") or a harmless request that sounds similar (tag "harmless")."""
    if rng.random() < 0.6:
        text, tag = rng.choice(_HARMFUL_FORMS).format(x=rng.choice(HARMFUL)), "refuse"
    else:
        text, tag = rng.choice(_HARMLESS_FORMS).format(x=rng.choice(HARMLESS)), "harmless"
    return Prompt("", (Message(role="user", content=text),), tags=("refusal", tag))


# Short programming requests.

_PROGRAMMING = ("Python", "JavaScript", "Go", "Java", "Rust", "C", "Ruby", "TypeScript")
_TASKS, _FORMS, _QUESTIONS = texts("tasks"), texts("task_forms"), texts("code_questions")


def code(rng: random.Random) -> Prompt:
    """Draw one programming request."""
    language = rng.choice(_PROGRAMMING)
    if rng.random() < 0.9:
        text = rng.choice(_FORMS).format(l=language, d=rng.choice(_TASKS))
    else:
        text = rng.choice(_QUESTIONS).format(l=language)
    return Prompt("", (Message(role="user", content=text),), tags=("code", language.lower()))


_REQUESTS = (*REQUESTS, *YES_NO, *JSON_REQUESTS)
_DRAWS = (plain, code, refusal, dialogue)
_SHARES = (16, 5, 3, 3)
_REQUEST_SHARE = 73
# Deliberately broad: a prompt that might contain a format instruction is dropped; there are enough others.
_FORMAT = re.compile(
    r"""
    \b(?:
        sentences? | words? | keywords? | phrases? | paragraphs? | lines? | letters? | characters? | commas? |
        punctuat\w* | quot\w* | bullets? | bulleted | numbered | points | parts | lists? | sections? |
        headings? | titles? | names? | highlight\w* | bold | italics? | asterisks? | markdown | json | xml | html |
        yaml | tables? | format\w* | style | placeholders? | postscript | p\.?\s?s | brackets? | upper-?case |
        lower-?case | capitals | capital\ letters | capitali\w+ | language | english | repeat\w* | include |
        mention | avoid | brief(?:ly)? | concise(?:ly)? | length | long(?:er|est)? |
        at\ (?:least|most) | more\ than | less\ than |
        fewer | exactly | only | nothing\ but | just\ the | without | (?:begin|start|end|finish|wrap|close)\w*\ with |
        end\ (?:it|your) | finish\ (?:it|your) | answer\ (?:in|with) | reply\ (?:in|with) | respond\w* | response |
        separate\w* | two | three | four | five | six | seven | eight | nine | ten | eleven | twelve | twice | times |
        first | second | third | fourth | fifth | last
    )\b
    | <<|>>|\[|\]|\*|["“”]
    """,
    re.IGNORECASE | re.VERBOSE,
)
_LANGUAGE = re.compile(rf"\b(?:{'|'.join(LANGUAGES.values())})\b")
# Arithmetic in digits, whose "*" is not an asterisk of an instruction.
_SUM = re.compile(r"\d+ [-+*] \d+")


def formatted(text: str) -> bool:
    """Return whether a request has words of a format instruction."""
    return _FORMAT.search(_SUM.sub("", text)) is not None or _LANGUAGE.search(text) is not None


def ordinary(prompt: Prompt) -> bool:
    """Return whether a prompt has no check and no user turn with words of a format instruction."""
    requests = (message["content"] for message in prompt.messages if message["role"] == "user")
    return not prompt.checks and not any(formatted(text) for text in requests)


def chat(rng: random.Random) -> Prompt | None:
    """Draw one prompt of ordinary chat; None if the prompt drawn is not ordinary."""
    (draw,) = rng.choices((*_DRAWS, _request), (*_SHARES, _REQUEST_SHARE))
    prompt = draw(rng)
    return prompt if prompt is not None and ordinary(prompt) else None


def _request(rng: random.Random) -> Prompt:
    """Draw a request or question about a topic, without rules."""
    topic = rng.choice(TOPICS)
    text = rng.choice(_REQUESTS).format(t=topic.name)
    return Prompt("", (Message(role="user", content=text),), tags=("writing", f"topic:{topic.name}"))
