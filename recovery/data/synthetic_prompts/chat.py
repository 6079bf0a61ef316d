"""Ordinary chat prompts, without checks or format instructions, drawn from the other modules without their rules.

They serve as a control: recovery on these prompts trains no verifiable instructions, so any gain in following such
instructions is not learnt from the prompts.
"""

from __future__ import annotations

import random
import re

from recovery.data.synthetic_prompts.code import code
from recovery.data.synthetic_prompts.constrained_writing import JSON_REQUESTS, REQUESTS, YES_NO
from recovery.data.synthetic_prompts.constraints import LANGUAGES
from recovery.data.synthetic_prompts.dialogues import dialogue
from recovery.data.synthetic_prompts.open_ended import plain
from recovery.data.synthetic_prompts.refusals import refusal
from recovery.data.synthetic_prompts.topics import TOPICS
from recovery.types import Message, Prompt

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
