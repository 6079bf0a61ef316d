"""Heuristic grammar: the noun for the entries of a table or list, and the form that a description begins with."""

from __future__ import annotations

import re

from recovery.data.corpus.text import words

KINDS = words(
    "option hook function property prop method flag component directive parameter setting command header package "
    "field codemod attribute variable file tool object endpoint class profile strategy configuration convention "
    "export value key argument event plugin library module type interface operator endpoint route helper "
    "utility decorator macro keyword role policy rule mode level state status unit port table column script "
    "extension adapter provider service feature argument preset target"
)
_IRREGULAR = {"properties": "property", "strategies": "strategy", "libraries": "library", "classes": "class"}
_IRREGULAR |= {"policies": "policy", "utilities": "utility", "statuses": "status", "queries": "query", "props": "prop"}
_NO_VERB = words(
    "this its options props params settings values as always sometimes perhaps besides whereas unless across less "
    "plus versus series class process access address status analysis is was has does us gas bus focus various "
    "features files names packages modules classes headers types"
)
_VERBS = words(
    "get set return look build compile run create find show list add remove update check read write extract apply "
    "enable disable configure define allow specify control convert migrate open start stop make fetch send print "
    "generate delete load save parse render restart clear inspect move copy force skip include exclude limit override "
    "provide retrieve search select sort split merge install inject invalidate refresh track detect transform"
)
_NAMES = {"params": "parameter", "args": "argument", "env": "variable", "environment": "variable"}


def noun_of(text: str, *, plural: bool = False) -> str:
    """Return the singular noun for the entries under a header, heading or intro ("Runtime tools" -> "tool"), or "".

    With ``plural`` only plurals match: "The `x` object has these fields:" is about fields.
    """
    for word in reversed(re.findall(r"[a-z]+", text.lower())):
        single = _IRREGULAR.get(word) or _NAMES.get(word) or word.removesuffix("s")
        if single in KINDS and (single != word or not plural):
            return single
    return ""


def third_person(text: str) -> bool:
    """Return whether a text begins with a verb in the third person: "Matches against ...", "Controls whether ..."."""
    match = re.match(r"([A-Z]?[a-z]+s)\s+\S", text)
    return bool(match) and match[1].lower() not in _NO_VERB and not match[1].endswith(("ss", "ous"))  # type: ignore[index]


def imperative(text: str) -> bool:
    """Return whether a text begins with an imperative: "Get the current error state"."""
    match = re.match(r"([A-Z][a-z]+) \S", text)
    return bool(match) and match[1].lower() in _VERBS  # type: ignore[index]


def noun_phrase_start(text: str) -> bool:
    """Return whether a text begins like a noun phrase."""
    return bool(re.match(r"(?:The|A|An|All|Any|Whether|How|Maximum|Minimum|Number|List|Name|Path)\b", text))
