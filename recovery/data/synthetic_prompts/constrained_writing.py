"""Constrained writing: a request about a topic with one to three compatible rules.

Compatibility of rules: which can all be followed in one answer, so that every prompt is feasible.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from recovery.data.synthetic_prompts import constraints as r
from recovery.data.synthetic_prompts.constraints import RULES, Rule
from recovery.data.synthetic_prompts.topics import TOPICS, Topic, texts
from recovery.types import Check, Message, Prompt

# Rules with few compatible rules list these; the others list their incompatible rules.
_ONLY_WITH: dict[str, frozenset[str]] = {
    r.CONSTRAINED: frozenset(),
    r.JSON: frozenset({r.EXISTENCE, r.FORBIDDEN}),
    r.TWO: frozenset({r.EXISTENCE, r.FORBIDDEN, r.TITLE, r.NO_COMMA}),
    r.REPEAT: frozenset({r.EXISTENCE, r.TITLE, r.NO_COMMA}),
    r.LANGUAGE: frozenset({r.TITLE, r.NO_COMMA, r.PARAGRAPHS, r.PLACEHOLDERS}),
}
_NOT_WITH: dict[str, frozenset[str]] = {
    # Its checker counts blank lines, so no rule that adds a block of its own.
    r.FIRST_WORD: frozenset({r.PARAGRAPHS, r.SENTENCES, r.TITLE, r.POSTSCRIPT, r.SECTIONS, r.BULLETS}),
    r.PARAGRAPHS: frozenset({r.SENTENCES, r.SECTIONS}),
    # Headings such as "Section 1" mix capital and small letters.
    r.SECTIONS: frozenset({r.UPPER, r.LOWER, r.HIGHLIGHTS, r.BULLETS, r.SENTENCES}),
    r.UPPER: frozenset({r.LOWER, r.CAPITAL_WORDS, r.ENDING}),
    r.LOWER: frozenset({r.CAPITAL_WORDS, r.ENDING, r.POSTSCRIPT}),
    # Both require the end of the text.
    r.POSTSCRIPT: frozenset({r.ENDING}),
    # A bullet that begins with an emphasised word, or a title in quotes, is ambiguous.
    r.BULLETS: frozenset({r.HIGHLIGHTS, r.SENTENCES}),
    r.QUOTATION: frozenset({r.TITLE, r.BULLETS}),
}


def kinds_agree(a: str, b: str) -> bool:
    """Return whether two rule ids can be in the same prompt, whatever their arguments."""
    if a == b:
        return False
    pairs = ((a, b), (b, a))
    return all(other in _ONLY_WITH.get(one, RULES) and other not in _NOT_WITH.get(one, ()) for one, other in pairs)


def partners(ids: Sequence[str]) -> list[str]:
    """Return the rule ids that agree with all of ``ids``."""
    return [id for id in sorted(RULES) if all(kinds_agree(id, other) for other in ids)]


def agree(rules: Sequence[Rule], request: str = "") -> bool:
    """Return whether rules with their arguments can all be followed in an answer to ``request``."""
    ids = [rule.id for rule in rules]
    if not all(kinds_agree(a, b) for i, a in enumerate(ids) for b in ids[i + 1 :]):
        return False
    required = [text for rule in rules for text in rule.requires]
    if r.REPEAT in ids:
        required.append(request)
    needed = sum(rule.words for rule in rules)
    return all(_permits(rule, rules, required, needed) for rule in rules)


def _permits(rule: Rule, rules: Sequence[Rule], required: list[str], needed: int) -> bool:
    """Return whether one rule permits the text and length that all rules require."""
    kwargs = rule.check.kwargs
    text = " ".join(required).lower()
    if rule.id == r.NO_COMMA:
        return "," not in text
    if rule.id == r.FORBIDDEN:
        return not any(re.search(rf"\b{re.escape(w)}\b", text) for w in kwargs["forbidden_words"])
    if rule.id == r.FREQUENCY and kwargs["relation"] == "less than":
        return text.count(kwargs["keyword"]) < kwargs["frequency"]
    if rule.id == r.LETTERS and kwargs["let_relation"] == "less than":
        long = any(o.id == r.WORDS and o.check.kwargs["relation"] == "at least" for o in rules)
        return not long and Counter(text)[kwargs["letter"]] < kwargs["let_frequency"] and needed <= 60
    if rule.id == r.CAPITAL_WORDS and kwargs["capital_relation"] == "less than":
        return sum(word.isupper() for word in " ".join(required).split()) < kwargs["capital_frequency"] - 1
    if rule.id == r.WORDS and kwargs["relation"] == "less than":
        return needed <= 0.6 * kwargs["num_words"]
    if rule.id == r.SENTENCES and kwargs["relation"] == "less than":
        return needed <= 8 * kwargs["num_sentences"] and "." not in text.replace("p.s.", "")[:-1]
    return True


REQUESTS, JSON_REQUESTS, YES_NO = texts("requests"), texts("json_requests"), texts("yes_no")
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
        repeat = Check(r.REPEAT, {"prompt_to_repeat": request})
        checks = tuple(repeat if check.instruction == r.REPEAT else check for check in checks)
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
