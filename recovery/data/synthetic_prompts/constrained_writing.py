"""Constrained writing: a request about a topic with one to three compatible rules."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from recovery.data.synthetic_prompts import constraints as r
from recovery.data.synthetic_prompts.compatibility import agree, partners
from recovery.data.synthetic_prompts.constraints import RULES, Rule
from recovery.data.synthetic_prompts.topics import TOPICS, Topic
from recovery.types import Check, Message, Prompt

REQUESTS = (
    "Write a short story about {t}.", "Write a poem about {t}.", "Explain {t} to a child of eight.",
    "Describe a day that revolves around {t}.", "Draft a friendly note to a neighbour about {t}.",
    "Compose an invitation to an evening on {t}.", "Give advice to somebody who is new to {t}.",
    "Write an opening paragraph for an article on {t}.", "Tell me what you find curious about {t}.",
    "Write a diary entry that turns to {t} by surprise.", "Draft a speech of thanks to a club devoted to {t}.",
    "Write a riddle whose answer has to do with {t}.", "Sum up what most people get wrong about {t}.",
    "Write a conversation between two strangers about {t}.", "Describe {t} for somebody who cannot see.",
    "Make the case for paying more attention to {t}.", "Write a postcard from a holiday spent on {t}.",
    "Compose a radio announcement about {t}.", "Write a letter of complaint that mentions {t}.",
    "Invent a legend on the beginnings of {t}.", "Write a review of an imaginary book on {t}.",
    "Plan a one-day workshop on {t}.", "Write a song verse about {t}.",
    "Draft a notice for a village board about {t}.",
    "Write a product description for a gift that has to do with {t}.",
    "Set out the pros and cons of {t} as a hobby or a field of study.",
    "Write instructions for a game inspired by {t}.", "Write a cover letter for a job connected with {t}.",
    "Tell a joke about {t} and say why it is funny.", "Write a weather report from a place known for {t}.",
    "Describe three pictures you would hang in a room about {t}.", "Write a toast to a friend who loves {t}.",
    "Propose a name for a magazine on {t} and introduce it.", "Write a scene for a film that opens with {t}.",
    "Write a quiz question about {t} and its answer.", "Write a reply to a reader who finds {t} boring.",
    "Compare {t} with something quite different.", "Write an obituary for an imaginary expert on {t}.",
    "Suggest a school project on {t}.", "Write a message in a bottle that mentions {t}.",
)  # fmt: skip
JSON_REQUESTS = (
    "List facts worth knowing about {t}.",
    "Describe an imaginary event on {t}: its name and place and date.",
    "Give me a glossary of four terms that belong to {t}.",
    "Plan a week of evening talks on {t}.",
    "Set out a shopping list for a weekend of {t}.",
    "Make a profile of an imaginary person who lives for {t}.",
    "Write three quiz questions on {t} with their answers.",
)
YES_NO = (
    "Could somebody who has little time still enjoy {t}?",
    "Would a museum about {t} draw visitors?",
    "Is it worth reading a whole book about {t}?",
    "Has the world of {t} changed much in the last hundred years?",
    "Do you think that children would like to hear about {t}?",
    "Can one learn something useful from {t}?",
    "Would you expect {t} to be in the news next week?",
    "Would you bring up {t} at a first meeting?",
)
_LEADS = ("Please keep to this:", "Rules for your answer:", "Mind the following:", "What matters to me:")
_RULE_COUNTS = (1, 1, 1, 2, 2, 2, 3, 3)
_PRECEDING = ("Before you start:", "First the terms.", "Note well:")


def shuffled(topic: Topic, rng: random.Random) -> Topic:
    """Return the topic with its words shuffled, so that rules draw different words from it."""
    return replace(topic, words=tuple(rng.sample(topic.words, len(topic.words))))


def draw_rules(rng: random.Random, topic: Topic, count: int, first: str | None = None) -> list[Rule]:
    """Draw up to ``count`` rules with compatible ids; ``agree`` checks their arguments together with the request."""
    ids = [first or rng.choice(sorted(RULES))]
    while len(ids) < count:
        options = partners(ids)
        if not options:
            break
        ids.append(rng.choice(options))
    return [RULES[id](rng, topic) for id in ids]


def writing(rng: random.Random) -> Prompt | None:
    """Draw one prompt of constrained writing; None if its rules cannot all be followed."""
    topic = shuffled(rng.choice(TOPICS), rng)
    drawn = draw_rules(rng, topic, rng.choice(_RULE_COUNTS))
    ids = {rule.id for rule in drawn}
    forms = YES_NO if r.CONSTRAINED in ids else JSON_REQUESTS if r.JSON in ids else REQUESTS
    request = rng.choice(forms).format(t=topic.name)
    if not agree(drawn, request):
        return None
    text, checks = put_together(rng, request, drawn)
    tags = ("writing", f"topic:{topic.name}")
    return Prompt("", (Message(role="user", content=text),), checks=checks, tags=tags)


def put_together(
    rng: random.Random, request: str, drawn: Sequence[Rule], *, follow_up: bool = False
) -> tuple[str, tuple[Check, ...]]:
    """Return the text of a request with its rules, in one of several layouts, and its checks.

    With ``follow_up`` the request always comes before its rules.
    """
    texts = [rule.text for rule in drawn]
    checks = tuple(rule.check for rule in drawn)
    if any(rule.id == r.REPEAT for rule in drawn):
        checks = tuple(
            Check(c.instruction, {"prompt_to_repeat": request}) if c.instruction == r.REPEAT else c for c in checks
        )
        first = sorted(drawn, key=lambda rule: rule.id != r.REPEAT)
        return f"{request}\n\n" + "\n".join(rule.text for rule in first), checks
    layout = rng.random()
    if layout < 0.45 or not texts:
        return " ".join([request, *texts]), checks
    if layout < 0.65:
        return f"{request}\n" + "\n".join(texts), checks
    if layout < 0.85 and len(texts) > 1:
        return f"{request} {rng.choice(_LEADS)}\n" + "\n".join(f"- {text}" for text in texts), checks
    if layout < 0.9 and not follow_up:
        return f"{rng.choice(_PRECEDING)} {' '.join(texts)}\n\n{request}", checks
    return f"{request}\n\n" + " ".join(texts), checks
