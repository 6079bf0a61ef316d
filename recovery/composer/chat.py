"""Ordinary chat: what people ask when they set no terms. No prompt holds a check or words of an instruction on format.

For whoever doubts that a recovery gives back more than what its prompts train: the same recovery on these teaches
nothing of verifiable instructions. They come from the other parts of the composer, without their rules.
"""

from __future__ import annotations

import random
import re

from recovery.composer.code import code
from recovery.composer.dialogues import dialogue
from recovery.composer.plain import plain
from recovery.composer.refusals import refusal
from recovery.composer.rules import LANGUAGES
from recovery.composer.topics import TOPICS
from recovery.composer.writing import JSON_REQUESTS, REQUESTS, YES_NO
from recovery.types import Message, Prompt

_REQUESTS = (*REQUESTS, *YES_NO, *JSON_REQUESTS)
_DRAWS = (plain, code, refusal, dialogue)
_SHARES = (16, 5, 3, 3)
_REST = 73
# Wide on purpose: a prompt that only might be an instruction on form is left out, and there are enough others.
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
# A sum in digits may hold the sign of a product.
_SUM = re.compile(r"\d+ [-+*] \d+")


def formatted(text: str) -> bool:
    """Whether a request has words of an instruction on the form of its answer."""
    return _FORMAT.search(_SUM.sub("", text)) is not None or _LANGUAGE.search(text) is not None


def ordinary(prompt: Prompt) -> bool:
    """Whether a prompt holds no check, and no turn of its user such words."""
    asked = (message["content"] for message in prompt.messages if message["role"] == "user")
    return not prompt.checks and not any(formatted(text) for text in asked)


def chat(rng: random.Random) -> Prompt | None:
    """One prompt of ordinary chat; None where what was drawn is not one."""
    (draw,) = rng.choices((*_DRAWS, _request), (*_SHARES, _REST))
    prompt = draw(rng)
    return prompt if prompt is not None and ordinary(prompt) else None


def _request(rng: random.Random) -> Prompt:
    """A request about a topic, or a question about it, as it is before rules are put to it."""
    topic = rng.choice(TOPICS)
    text = rng.choice(_REQUESTS).format(t=topic.name)
    return Prompt("", (Message(role="user", content=text),), tags=("writing", f"topic:{topic.name}"))
