"""Compatibility of rules: which can all be followed in one answer, so that every prompt is feasible."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from recovery.data.synthetic_prompts import constraints as r
from recovery.data.synthetic_prompts.constraints import RULES, Rule

_ALL = frozenset(RULES)

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
    for one, other in ((a, b), (b, a)):
        if one in _ONLY_WITH and other not in _ONLY_WITH[one]:
            return False
        if other in _NOT_WITH.get(one, ()):
            return False
    return True


def partners(ids: Sequence[str]) -> list[str]:
    """Return the rule ids that agree with all of ``ids``."""
    return [id for id in sorted(_ALL) if all(kinds_agree(id, other) for other in ids)]


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
